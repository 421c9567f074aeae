"""The planner's figures against what was allocated and measured on a GPU, and its advice in cases that are clear."""

import dataclasses
import itertools

import pytest

from course_utils import costs, measured, planner
from course_utils.planner import advice, plan
from course_utils.planner.devices import DEVICES

MIB = 2**20


def extra(method):
    """Bytes beyond query, key and value."""
    return sum(part.bytes for part in method.parts if part.name not in ("Q", "K", "V"))


def verdicts(*args, target_ms=10, **options):
    return [step.verdict for step in advice(plan(*args, **options), target_ms)]


# ---- memory


def test_memory_at_the_shape_of_the_training_step_is_what_was_allocated_on_the_h200():
    planned = plan(
        2048, 16, 12, 64, is_causal=False
    ).methods  # naive torch 3120 MiB, FLASH 50: speed table of 2026-11-21
    assert extra(planned["dense"]) / MIB == pytest.approx(3120, abs=0.5)
    assert extra(planned["flash"]) / MIB == pytest.approx(50, abs=0.6)


@pytest.mark.parametrize(("name", "method"), [("dense, written out", "dense"), ("torch FLASH", "flash")])
def test_memory_is_what_the_recorded_runs_allocated(name, method):
    rows = measured.load("08_choosing").select(name=name)
    checked = 0
    for row in rows:
        if row["peak_extra_bytes"] and row["length"] >= 1024:  # below, torch's flash splits the keys
            assert extra(plan(row["length"]).methods[method]) == pytest.approx(row["peak_extra_bytes"], rel=0.07)
            checked += 1
    assert checked >= 5


def test_where_the_recorded_dense_run_failed_the_planner_runs_out_too():
    rows = measured.load("08_choosing").select(name="dense, written out")
    for row in rows:
        dense = plan(row["length"]).methods["dense"]
        assert dense.fits == (row["why_not"] is None)
        if not dense.fits:
            assert dense.breaking_part.bytes == row["asked_bytes"]


def test_scores_of_one_head_at_128k_are_34_gb():
    dense = plan(131072, heads=1).methods["dense"]
    assert {part.name: part.bytes for part in dense.parts}["S"] == pytest.approx(34.4e9, rel=5e-3)


def test_a_mask_makes_nothing_smaller():
    for length, window in itertools.product((512, 65536), (128, 4096)):
        methods = plan(length, window=window).methods
        assert methods["sparse"].memory_bytes == methods["flash"].memory_bytes


def test_key_heads_shrink_k_and_v_alone():
    many, few = (plan(4096, heads=32, kv_heads=heads).methods["flash"].parts for heads in (32, 4))
    ratios = {a.name: a.bytes / b.bytes for a, b in zip(many, few, strict=True)}
    assert ratios == {"Q": 1, "K": 8, "V": 8, "O": 1, "log-sum-exp, fp32": 1}


def test_the_part_that_breaks_is_the_first_that_does_not_fit_any_more():
    half = plan(65536).methods["dense"]  # S fits, P does not
    assert (half.breaking_part.name, half.fits) == ("P", False)
    assert plan(131072).methods["dense"].breaking_part.name == "S"
    whole = plan(2048).methods["dense"]
    assert whole.breaking_part is None and whole.fits
    exact = dataclasses.replace(whole, capacity=whole.memory_bytes)
    assert exact.fits and exact.breaking_part is None
    assert dataclasses.replace(whole, capacity=whole.memory_bytes - 1).breaking_part.name == "P"


def test_the_indexer_s_logits_are_of_size_l_squared_and_the_latents_are_not():
    short, long = ({part.name: part.bytes for part in plan(length).methods["dsa"].parts} for length in (4096, 8192))
    ratios = {name: long[name] / short[name] for name in short}
    assert ratios.pop("logits of the indexer, fp32") == 4 and set(ratios.values()) == {2}


# ---- floors


def test_floors_are_those_of_costs_and_no_recorded_run_beats_its_floor():
    where = DEVICES["H200"]
    flash = plan(8192).methods["flash"]
    flops = costs.attention_flops(1, 16, 8192, 8192, 128, is_causal=True)
    assert flash.flops == flops
    assert flash.seconds == costs.time_floor(
        flops, costs.least_bytes(1, 16, 8192, 8192, 128, 2), where.half_flops, where.bandwidth
    )
    names = {"dense, written out": "dense", "torch FLASH": "flash", "flash_attention_v2": "flash"}
    names["sliding window of 4096"] = "sparse"
    checked = 0
    for row in measured.load("08_choosing").rows:
        if row.get("name") in names and row["median_ms"]:
            method = plan(row["length"]).methods[names[row["name"]]]
            assert row["median_ms"] / 1e3 > method.seconds
            checked += 1
    assert checked > 30


def test_mla_and_dsa_keep_deepseek_s_sizes_whatever_is_asked_for():
    usual, other = (plan(8192, heads=heads, head_dim=d, dtype=dtype) for heads, d, dtype in SIZES)
    for name in ("mla", "dsa"):
        assert usual.methods[name] == other.methods[name]
    assert usual.methods["mla"].flops == costs.mla_flops(8192, 8192)
    assert usual.methods["dsa"].flops == costs.dsa_flops(8192, 8192)


SIZES = ((16, 128, "float16"), (8, 64, "float32"))


def test_dsa_floors_add_up_and_its_indexer_runs_in_fp8_where_there_is_fp8():
    fast, slow = (plan(131072, device=name).methods["dsa"] for name in ("H200", "A100 80 GB"))
    indexer, select, core = costs.dsa_work(131072, 131072)
    h200 = DEVICES["H200"]
    floors = [
        indexer.time_floor(h200.fp8_flops, h200.bandwidth),
        select.time_floor(h200.half_flops, h200.bandwidth),
        core.time_floor(h200.half_flops, h200.bandwidth),
    ]
    assert fast.seconds == pytest.approx(sum(floors))
    assert fast.arithmetic_seconds + fast.memory_seconds == pytest.approx(fast.seconds)
    keys = {part.name: part.bytes for part in slow.parts}["index keys"]
    assert keys == 131072 * 2 * 128  # bf16, without scales


def test_what_the_l2_cache_may_hold_is_not_charged_to_dense():
    small, large = plan(512).methods["dense"], plan(16384).methods["dense"]
    assert small.least_bytes == plan(512).methods["flash"].least_bytes
    whole = costs.total_bytes(costs.naive_traffic(1, 16, 16384, 16384, 128, 2))
    assert large.least_bytes == whole - 4 * DEVICES["H200"].l2_bytes


def test_without_a_causal_mask_deepseek_s_are_left_out():
    planned = plan(4096, is_causal=False)
    assert set(planned.methods) == {"dense", "flash", "sparse"} and set(planned.left_out) == {"mla", "dsa"}
    assert planned.methods["flash"].flops == 2 * plan(4096).methods["flash"].flops


def test_a_long_flash_is_bound_by_arithmetic_and_dense_by_memory():
    methods = plan(131072).methods
    assert (methods["flash"].bound, methods["dense"].bound) == ("arithmetic", "memory")


# ---- advice


def test_what_the_texts_say_of_torch_is_what_was_recorded():
    rows = measured.load("08_choosing").select(part="backends")
    chosen = {row["case"]: row["backend"] for row in rows if row["chosen"]}
    assert chosen["fp32"] == "EFFICIENT_ATTENTION" and "MATH" not in chosen.values() and len(chosen) == 5


def test_flash_comes_first_and_ends_it_where_it_is_enough():
    assert verdicts(8192) == ["try this", "not needed", "not needed", "not needed"]


def test_a_long_sequence_needs_fewer_pairs_and_retrieval_is_the_last_resort():
    assert verdicts(131072) == ["try this", "no help", "try this", "last"]


def test_if_a_window_is_not_enough_either_retrieval_is_next():
    assert verdicts(2**20, target_ms=1) == ["try this", "no help", "try this", "try this"]


def test_a_window_as_wide_as_the_sequence_does_not_help():
    assert verdicts(32768, window=32768, target_ms=1)[2] == "no help"


def test_fp32_needs_16_bits_before_flash_is_on():
    first, second = advice(plan(8192, dtype="float32"))[:2]
    assert "16-bit inputs only" in first.why and "memory-efficient kernel runs" in first.why
    assert second.verdict == "try this" and "float32 → float16" in second.effect


def test_the_batch_shrinks_to_the_largest_that_fits_and_meets_the_target():
    planned = plan(8192, 64)
    step = advice(planned, target_ms=5)[1]
    flash = planned.methods["flash"].seconds / 64
    assert f"batch 64 → {int(5e-3 / flash)}" in step.effect and step.seconds <= 5e-3


def test_if_q_k_v_and_o_do_not_fit_chunks_help_and_a_mask_does_not():
    planned = plan(2**20, 8, 64, device="A100 40 GB")
    step = advice(planned)[2]
    assert step.verdict == "try this" and "a mask makes none of them smaller" in step.why
    assert step.memory_bytes < DEVICES["A100 40 GB"].memory_bytes < 2**20 * 64 * 4 * 256


def test_chunks_keep_k_and_v_whole():
    setting = plan(16384).setting
    tensor = 16 * 16384 * 128 * 2
    assert planner.chunked_bytes(setting, 16384) == 4 * tensor + 16 * 16384 * 4
    assert planner.chunked_bytes(setting, 4096) == 2 * tensor + (2 * tensor + 16 * 16384 * 4) // 4


def test_the_order_is_said_in_words():
    steps = advice(plan(131072))
    assert planner.order(steps) == "flash, then sparse or chunks, with a quality check"


# ---- words and errors


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 bytes"), (999, "999 bytes"), (999_600, "1 MB"), (34_359_738_368, "34.4 GB"), (1.1e15, "1.1 PB")],
)
def test_amounts_have_three_digits(count, words):
    assert planner.amount(count) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(71.1e-3, "71.1 ms"), (2.42, "2.42 s"), (208e-6, "208 µs"), (2897.4, "2,897 s"), (1e-9, "1 ns")],
)
def test_durations_have_three_digits(seconds, words):
    assert planner.duration(seconds) == words


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 0}, "length: got 0, takes a positive whole number"),
        ({"batch": True}, "batch: got True"),
        ({"heads": 16, "kv_heads": 5}, "kv_heads: got 5, takes a divisor of heads, 16"),
        ({"head_dim": 64.0}, "head_dim: got 64.0"),
        ({"dtype": "fp16"}, "dtype: got 'fp16', takes float16, bfloat16 or float32 on H200"),
        ({"dtype": "bfloat16", "device": "T4"}, "dtype: got 'bfloat16', takes float16 or float32 on T4"),
        ({"device": "H300"}, "device: got 'H300'"),
        ({"is_causal": 1}, "is_causal: got 1, takes True or False"),
        ({"window": -1}, "window: got -1"),
        ({"top_k": 0}, "top_k: got 0"),
    ],
)
def test_bad_input_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        plan(**{"length": 4096, **change})


@pytest.mark.parametrize("target", [0, -1, True, "10"])
def test_a_target_must_be_positive(target):
    with pytest.raises(ValueError, match="target_ms: got"):
        advice(plan(4096), target)


# ---- which of the course's kernels


@pytest.mark.parametrize(
    ("device", "dtype", "head_dim", "name"),
    [
        ("H100", "float16", 64, "flash_attention_hopper"),
        ("H200", "bfloat16", 128, "flash_attention_hopper"),
        ("A100 80 GB", "float16", 128, "flash_attention_v2"),
        ("B200", "bfloat16", 128, "flash_attention_v2"),
        ("H200", "float32", 64, "flash_attention_minimal"),
        ("T4", "float16", 64, None),
        ("H200", "float16", 256, None),
    ],
)
def test_the_courses_kernel_for_flash_follows_device_dtype_and_head_dimension(device, dtype, head_dim, name):
    planned = plan(4096, head_dim=head_dim, dtype=dtype, device=device)
    assert planner.flash_kernel(planned.setting) == name
    why = advice(planned)[0].why
    assert (f"The course's kernel for it is {name}." in why) if name else "course" not in why
