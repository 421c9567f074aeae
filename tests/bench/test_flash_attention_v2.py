"""Chapter 03's benchmarks, on the emulator: each calls what it says it times."""

import json

import pytest
import torch
from torch.nn.attention import SDPBackend

from course_utils import costs
from course_utils.bench import flash_attention_v2 as chapter
from course_utils.bench.timed import by_kernel, random_inputs


@pytest.fixture
def flash_v2_on_cpu(one_run_each, monkeypatch):
    """Chapter 03's benchmarks on the emulator: torch's kernels for GPUs are played by its plain one."""
    monkeypatch.setattr(chapter, "PEERS", dict.fromkeys(chapter.PEERS, SDPBackend.MATH))
    for name in chapter.PRESCRIBED:
        monkeypatch.setitem(chapter.ATTENTIONS, name, by_kernel(SDPBackend.MATH))


def test_flash_v2_is_timed_beside_torch_forward_and_backward(flash_v2_on_cpu):
    rows = chapter.by_length(device="cpu", tokens=80, width=128, lengths=(40, 80), head_dims=(64,))
    summaries = [row for row in rows if row["part"] == "summary"]
    assert [row["pass"] for row in summaries] == ["forward", "backward"]
    assert all(row["shapes"] == 4 and row["geometric_mean"] == row["lowest"] == 1 for row in summaries)
    rows = [row for row in rows if row["part"] == "lengths"]
    names = {"flash_attention_v2", "torch FLASH again", "naive torch", *chapter.PEERS}
    shapes = {(d, causal, length) for d in (64,) for causal in (False, True) for length in (40, 80)}
    found = {(row["pass"], row["name"], row["head_dim"], row["is_causal"], row["length"]) for row in rows}
    assert found == {(p, n, *s) for p in ("forward", "backward") for n in names for s in shapes}
    forward, backward = (
        next(row for row in rows if row["pass"] == p and row["is_causal"] and row["length"] == 80)
        for p in ("forward", "backward")
    )
    assert forward["tflop_per_s"] == pytest.approx(costs.attention_flops(1, 2, 80, 80, 64, True) / 2e-3 / 1e12)
    assert backward["tflop_per_s"] == pytest.approx(2.5 * forward["tflop_per_s"])
    assert forward["ratio_low"] == forward["ratio_to_flash"] == 1
    json.dumps(rows)


def test_a_kernel_that_torch_does_not_have_here_is_left_out(flash_v2_on_cpu, monkeypatch, capsys):
    monkeypatch.setitem(chapter.PEERS, "torch cuDNN", SDPBackend.CUDNN_ATTENTION)  # for GPUs only
    inputs = random_inputs((1, 1, 8, 64), "cpu", count=4)
    for backward in (False, True):
        functions = chapter._functions(*inputs, is_causal=False, backward=backward)
        assert "torch cuDNN" not in functions and "torch memory-efficient" in functions
        assert "torch cuDNN is left out at [1, 1, 8, 64]" in capsys.readouterr().out


def test_short_lengths_have_the_time_of_a_call_too(flash_v2_on_cpu):
    rows = chapter.short_lengths(device="cpu", heads=1, lengths=(7,), head_dims=(64,))
    assert {row["call_ms"] for row in rows if row["name"] != "torch FLASH again"} == {0.5}
    assert {row["part"] for row in rows} == {"short"}


SMALL_CACHES = {"caches": ((1, 128),), "query_lengths": (1, 3), "heads": 4, "kv_heads": 2, "head_dim": 64}


def test_few_queries_are_timed_packed_and_not_with_the_keys_split_and_not_beside_torch(flash_v2_on_cpu):
    rows = chapter.few_queries(device="cpu", places=8, **SMALL_CACHES)
    ours = chapter.UNPACKED, chapter.OURS
    names = {*ours, *(name + chapter.SPLIT for name in ours)}
    names |= {name + by for name in ("torch FLASH", "torch cuDNN") for by in ("", chapter.BY_HAND)}
    assert {(row["query_length"], row["name"]) for row in rows} == {(n, name) for n in (1, 3) for name in names}
    # 4 heads are 4 blocks of 8 places, and 2 where two heads share a tile.
    assert [row["pieces"] for row in rows[:4]] == [1, 2, 1, 4]
    assert rows[0]["tb_per_s"] == pytest.approx(2 * 2 * 128 * 64 * 2 / 2e-3 / 1e12)
    json.dumps(rows)


def test_few_queries_are_not_timed_where_an_output_is_wrong(flash_v2_on_cpu, monkeypatch):
    monkeypatch.setattr(chapter, "split_keys", lambda attention, query, *_: torch.zeros_like(query))
    with pytest.raises(RuntimeError, match="a tile for each head, keys split, .* is off by"):
        chapter.few_queries(device="cpu", places=8, **SMALL_CACHES)


def test_ladder_has_speed_and_resources_of_each_step(flash_v2_on_cpu):
    steps = chapter.LADDER[-2:]
    rows = chapter.ladder(device="cpu", tokens=70, width=64, lengths=(70,), head_dims=(64,), steps=steps)
    names = ["torch FLASH", "torch cuDNN", *(step.title for step in steps)]
    assert [row["name"] for row in rows] == names * 2  # causal and not
    last = rows[-1]
    assert last["spill_bytes"] == 0 and last["registers"] <= 255 and last["shared_bytes"] == steps[-1].shared_bytes(64)
    assert 0 < last["occupancy"] <= 1 and last["ratio_to_flash"] == 1


def test_tuning_times_the_final_kernel_without_each_of_its_ideas(flash_v2_on_cpu, monkeypatch):
    monkeypatch.setattr(chapter, "TUNING", chapter.TUNING[2:3])
    rows = chapter.tuning(device="cpu", tokens=70, width=64, lengths=(70,), head_dims=(64,))
    assert [row["name"] for row in rows] == ["torch FLASH", "torch cuDNN", "tuned", "O rescaled at every tile"] * 2
    assert {row["part"] for row in rows} == {"tuning"}


def test_table_has_time_and_memory_of_each_implementation(flash_v2_on_cpu):
    rows = chapter.time_and_memory(device="cpu", shape=(1, 1, 40, 64))
    assert [row["name"] for row in rows] == [
        "naive torch",
        "flash_attention_minimal",
        "torch FLASH",
        "torch cuDNN",
        "flash_attention_v2",
    ]
    assert rows[0]["peak_mb"] == 3 and rows[0]["hbm_read_mb"] is None
    assert rows[1]["least_mb"] == 2 * rows[4]["least_mb"]


def test_each_function_of_the_table_runs_between_two_markers(flash_v2_on_cpu, monkeypatch):
    done = []
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: done.append("marker"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    functions = {name: lambda name=name: done.append(name) for name in "ab"}
    monkeypatch.setattr(chapter, "_table_functions", lambda shape, device: functions)
    chapter.run_between_markers("cpu")
    assert done == ["marker", "a", "marker", "marker", "b", "marker"]


def test_hbm_bytes_are_those_of_the_kernels_between_markers(monkeypatch):
    marker = ("spin_kernel", {"dram__bytes_read": 1})

    def kernel(read, written):
        return "any", {"dram__bytes_read": read, "dram__bytes_write": written}

    kernels = [kernel(9, 9), marker, kernel(1e6, 2e6), kernel(3e6, 0), marker, marker, kernel(5e6, 6e6), marker]
    monkeypatch.setattr(chapter.tools, "count_program", lambda *args, **options: kernels)
    assert chapter._hbm_bytes(["a", "b"]) == {"a": (4.0, 2.0), "b": (5.0, 6.0)}


def test_without_ncu_there_are_no_hbm_bytes_and_it_is_said_why(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert chapter._hbm_bytes(["a"]) == {}
    assert "no HBM bytes: ncu needs an NVIDIA GPU" in capsys.readouterr().out


def test_recomputing_is_timed_beside_storing(flash_v2_on_cpu):
    rows = chapter.recompute_or_store(device="cpu", tokens=40, heads=1, lengths=(20, 40))
    assert [(row["name"], row["length"]) for row in rows] == [
        (name, length) for length in (20, 40) for name in ("recomputes P", "stores P")
    ]


@pytest.mark.parametrize("head_dim", [64, pytest.param(128, marks=pytest.mark.exhaustive("`make test` has d = 64"))])
def test_reading_p_is_timed_beside_computing_it_again_and_gives_the_same(flash_v2_on_cpu, head_dim):
    rows = chapter.fused_recompute_or_read(
        device="cpu", tokens=128, width=head_dim, lengths=(128,), head_dims=(head_dim,)
    )
    assert [(row["name"], row["read_p_mb"]) for row in rows] == [("recomputes P", 0), ("reads P", 2 * 128**2 / 1e6)]


def test_the_kernel_that_reads_p_is_held_against_the_one_that_computes_it(flash_v2_on_cpu, monkeypatch):
    monkeypatch.setattr(chapter, "in_left_factors", lambda weights: weights.mT.contiguous())
    with pytest.raises(RuntimeError, match="backward_reads_p is off by"):
        chapter.fused_recompute_or_read(device="cpu", tokens=128, width=64, lengths=(128,), head_dims=(64,))


def test_training_block_is_timed_with_each_attention(flash_v2_on_cpu):
    rows = chapter.training_block(device="cpu", batch=2, length=20, width=64, heads=1)
    assert [row["name"] for row in rows] == ["naive torch", "flash_attention_v2", "SDPA", "torch FLASH", "torch cuDNN"]
    assert all(row["median_ms"] == row["gpu_ms"] == 2 and row["peak_mb"] == 3 for row in rows)
    assert [row["largest_batch"] is None for row in rows] == [False] * 3 + [True] * 2
    parts = ("forward_ms", "backward_ms", "dense_forward_ms", "dense_backward_ms")
    assert all(row[part] == 2 for row in rows for part in parts)


def test_blocks_compute_the_same_with_each_attention(flash_v2_on_cpu):
    torch.manual_seed(0)
    x = torch.randn(2, 20, 128).half()
    weights = chapter.Block(None, 128, 2).half().state_dict()
    results = []
    for attention in chapter.ATTENTIONS.values():
        block = chapter.Block(attention, 128, 2).half()
        block.load_state_dict(weights)
        results.append(block(x))
    for result in results[1:]:
        torch.testing.assert_close(results[0], result, atol=5e-3, rtol=0)


def test_largest_batch_is_predicted_from_two_and_then_run():
    ran = []

    def peak(batch):
        ran.append(batch)
        if 100 + 10 * batch > 960:  # a little more than the prediction knows of
            raise torch.OutOfMemoryError
        return 100 + 10 * batch

    assert chapter.largest_batch(peak, 1000) == 86
    assert ran == [2, 4, 90, 88, 86]


def test_underflow_of_gradients_is_counted():
    tiny = torch.tensor([0.0, 2.0**-24, 2.0**-15, 1.0, torch.inf]).half()
    assert chapter.lost_shares(tiny) == pytest.approx({"zero": 0.2, "subnormal": 0.4, "not_finite": 0.2})
    rows = chapter.gradient_underflow(device="cpu", shape=(1, 2, 64, 64), tokens=2**15)
    lost = {(row["dtype"], row["loss_scale"], row["name"]): row["zero"] + row["subnormal"] for row in rows}
    assert lost["float16", 1, "dq"] > 0.9 > lost["float16", 2**16, "dq"]
    assert lost["bfloat16", 1, "dq"] < 0.01


def test_the_gradient_of_an_output_is_that_of_a_mean_over_tokens():
    few, many = (chapter.output_gradient((1, 2, 16, 64), tokens) for tokens in (16, 1024))
    assert few.shape == (1, 2, 16, 64) and torch.allclose(few, 64 * many)
    assert 0.5 < many.std().item() * 1024 / (0.02**2 * 128**0.5) < 2
