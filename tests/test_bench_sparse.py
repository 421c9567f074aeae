"""The benchmarks of chapter 04: on the emulator, that each calls what it says it times; and `bench PATTERN`."""

import argparse
import json

import pytest
import torch
from torch.nn.attention import SDPBackend
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from course_utils import measured, patterns, timing
from course_utils.bench import sparse_patterns as bench_sparse
from course_utils.bench.sparse_patterns import FLASH, OURS, SDPA_MASK, TORCH_SPARSE
from course_utils.commands import bench
from course_utils.cuda import RawModule

FLEX_128, FLEX_64, FLEX_TUNED = bench_sparse.FLEX

pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning"),
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning"),
]


@pytest.fixture
def on_cpu(monkeypatch):
    """Timing without a clock: every function runs once, on the emulator, and is said to take 2 ms. torch's kernels for
    GPUs are played by its plain one, and FlexAttention is not compiled."""

    def compare(functions, **options):
        for fn in functions.values():
            fn()
        return dict.fromkeys(functions, timing.Timing(2.0, 0.1))

    monkeypatch.setattr(timing, "compare", compare)
    monkeypatch.setattr(timing, "peak_memory", lambda fn: 3_000_000)
    monkeypatch.setattr(timing, "time_calls", lambda fn: 0.5 if fn() is not None else None)
    monkeypatch.setattr(bench_sparse, "DENSE", dict.fromkeys(bench_sparse.DENSE, SDPBackend.MATH))
    monkeypatch.setattr(bench_sparse, "compile_flex", lambda: flex_attention)
    monkeypatch.setattr("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)  # no tracing


def named(rows, name):
    return next(row for row in rows if row["name"] == name)


# ---------------------------------------------------------------------------------------------- the chapter


def test_peers_are_timed_beside_both_block_sizes_of_flex_attention_and_causal_dense_attention(on_cpu, monkeypatch):
    chosen = [patterns.streaming(4, 40), patterns.bigbird(64, random_blocks=1)]
    monkeypatch.setattr(bench_sparse, "peer_patterns", lambda: chosen)
    rows = bench_sparse.peers(device="cpu", heads=1, lengths=(192,))
    names = [OURS, *bench_sparse.FLEX, *bench_sparse.DENSE]
    assert [(row["pattern"], row["name"]) for row in rows] == [(p.name, name) for p in chosen for name in names]
    ours, dense = named(rows, OURS), named(rows, FLASH)
    assert ours["useful_tflop_per_s"] == pytest.approx(4 * 128 * chosen[0].pairs(192) / 2e-3 / 1e12)
    assert ours["ratio_to_flex"] == ours["ratio_low"] == ours["ratio_to_dense"] == 1 and ours["kernel"] == "range"
    assert dense["dense_mask"] == "causal" and dense["useful_tflop_per_s"] is None and "ratio_to_flex" not in dense
    json.dumps(rows)


def test_bf16_is_timed_too(on_cpu):
    rows = bench_sparse.race(patterns.block_diagonal(8), (1, 1, 64, 64), device="cpu", dtype=torch.bfloat16)
    assert [row["name"] for row in rows] == [OURS, *bench_sparse.FLEX, *bench_sparse.DENSE]


def test_the_better_block_size_of_flex_attention_is_the_one_that_counts(on_cpu, monkeypatch):
    times = {OURS: 2.0, FLEX_128: 6.0, FLEX_64: 3.0, FLEX_TUNED: 2.5, FLASH: 10.0, "dense cuDNN": 8.0}
    monkeypatch.setattr(timing, "compare", lambda functions, **_: {n: timing.Timing(times[n], 0) for n in functions})
    rows = bench_sparse.race(patterns.local(8), (1, 1, 64, 64), device="cpu")
    ratios = {row["name"]: row["ratio_to_flex"] for row in rows if "ratio_to_flex" in row}
    assert ratios == {OURS: 1.5, FLEX_128: 0.5, FLEX_64: 1.0, FLEX_TUNED: 1.2}
    assert named(rows, OURS)["ratio_to_tuned"] == 1.25
    assert named(rows, OURS)["ratio_to_dense"] == 5


def test_what_does_not_run_here_is_left_out_and_it_is_said_why(on_cpu, monkeypatch, capsys):
    monkeypatch.setitem(bench_sparse.DENSE, "dense cuDNN", SDPBackend.CUDNN_ATTENTION)  # for GPUs only
    rows = bench_sparse.race(patterns.sliding_window(40), (1, 1, 96, 64), device="cpu", backward=True, flex=(FLEX_64,))
    assert [row["name"] for row in rows] == [OURS, FLASH]  # FlexAttention has no backward pass on a CPU
    printed = capsys.readouterr().out
    assert f"{FLEX_64} is left out at sliding_window(window=40), L = 96: " in printed and "dense cuDNN is" in printed
    assert rows[0]["pass"] == "backward"


def test_a_wrong_output_is_not_timed(on_cpu):
    pattern, inputs = patterns.sliding_window(8), [torch.randn(1, 1, 40, 64).half() for _ in range(3)]
    right = flex_attention(*inputs, block_mask=create_block_mask(pattern.mask_mod, None, None, 40, 40, device="cpu"))
    bench_sparse.require_right("ours", right, *inputs, pattern)
    with pytest.raises(RuntimeError, match="ours, sliding_window.* is off by"):
        bench_sparse.require_right("ours", right, *inputs, patterns.sliding_window(9))


def test_blocks_are_those_that_flex_attention_finds(on_cpu, monkeypatch):
    pattern = patterns.streaming(4, 100)
    found = bench_sparse.flex_block_mask(pattern, 320, 320, 64, "cpu")
    monkeypatch.setattr(bench_sparse, "MOST_PAIRS", 0)
    ours = bench_sparse.flex_block_mask(pattern, 320, 320, 64, "cpu")
    assert torch.equal(found.to_dense(), ours.to_dense()) and ours.to_dense().sum() < 25
    monkeypatch.setattr(bench_sparse, "MOST_PAIRS", 10**9)
    monkeypatch.setattr(
        bench_sparse,
        "create_block_mask",
        lambda mask_mod, *sizes, **options: create_block_mask(patterns.full().mask_mod, *sizes, **options),
    )
    with pytest.raises(RuntimeError, match="the blocks of 64 at L = 320 are not FlexAttention's"):
        bench_sparse.flex_block_mask(pattern, 320, 320, 64, "cpu")


def test_everything_is_compiled_ahead_with_skipping_and_without(monkeypatch):
    compiled = []
    monkeypatch.setattr(RawModule, "compile", lambda module, device: compiled.append((module.options, device)))
    bench_sparse.compile_all(device="cpu")
    assert {device for _, device in compiled} == {"cpu"}
    assert sum("-DSKIP=0" in options for options, _ in compiled) == 1 and len(compiled) > 10


def test_skipping_is_timed_beside_masking(on_cpu):
    rows = bench_sparse.skip(device="cpu", heads=1, lengths=(160,), window=40)
    assert [row["name"] for row in rows] == ["tiles skipped", "tiles only masked", SDPA_MASK]


def test_short_sequences_have_the_time_of_a_call_too(on_cpu):
    rows = bench_sparse.small(device="cpu", heads=1, lengths=(40, 72), flex_lengths=(40,))
    assert [(row["length"], row["name"]) for row in rows[:5]] == [
        (40, OURS),
        (40, FLASH),
        (40, FLEX_128),
        (72, OURS),
        (72, FLASH),
    ]
    assert len(rows) == 10 and {row["call_ms"] for row in rows} == {0.5}


def test_scaling_has_every_pattern_by_a_name_without_its_length(on_cpu, monkeypatch):
    everything = bench_sparse.scaling_patterns
    assert everything(1024).keys() == everything(2048).keys()
    some = ("power_of_two()", "global_tokens(16) | local(256)")
    monkeypatch.setattr(
        bench_sparse, "scaling_patterns", lambda length: {name: everything(length)[name] for name in some}
    )
    rows = bench_sparse.scaling(device="cpu", heads=1, lengths=(128,))
    assert [row["pattern"] for row in rows] == ["causal, dense", *some] and rows[0]["name"] == FLASH
    assert rows[1]["density"] == patterns.power_of_two().density(128) and rows[1]["kernel"] == "block_sparse"


@pytest.mark.parametrize("length", [100, 1024, 5000, 131072])
def test_documents_fill_the_sequence(length):
    assert sum(bench_sparse.documents(length)) == length and min(bench_sparse.documents(length)) > 0


def test_break_even_goes_by_density_and_length(on_cpu):
    rows = bench_sparse.break_even(
        device="cpu", heads=2, lengths=(128, 256), densities=(1 / 4, 1 / 2), sparse_lengths=(256,)
    )
    found = [(row["length"], row["per_row"], row["name"]) for row in rows]
    names = [OURS, FLEX_TUNED, FLASH]
    assert found == [
        *((128, 1, name) for name in names),
        *((256, per_row, name) for per_row in (1, 2) for name in (*names, TORCH_SPARSE)),
    ]
    assert rows[0]["density"] == 1 / 2 and rows[0]["ratio_to_dense"] == 1


def test_a_tree_of_tokens_hangs_on_the_end_of_its_context():
    assert bench_sparse.token_tree(2, 7, children=2) == [-1, 0, 1, 2, 2, 3, 3, 4, 4]
    assert bench_sparse.token_tree(0, 4, children=2) == [-1, 0, 0, 1]


def test_tree_is_timed_alone_and_behind_a_context(on_cpu):
    rows = bench_sparse.tree(device="cpu", heads=1, contexts=(0, 70), tokens=(33,), flex_tokens=(33,))
    assert [(row["context"], row["name"]) for row in rows] == [
        (context, name) for context in (0, 70) for name in (OURS, SDPA_MASK, FLEX_128)
    ]
    assert rows[3]["density"] > 70 / 103 > rows[0]["density"] and rows[0]["call_ms"] == 0.5


def test_lists_have_their_bytes_and_the_time_to_build_them(on_cpu, monkeypatch):
    chosen = {"w": patterns.sliding_window(40), "p": patterns.power_of_two()}
    monkeypatch.setattr(bench_sparse, "scaling_patterns", lambda length: chosen)
    monkeypatch.setattr(bench_sparse.sparse, "CSR_BLOCK_COST", 10**6)  # so that one pattern goes to csr_gather
    rows = bench_sparse.lists(device="cpu", heads=1, length=192, warm_length=64)
    assert [(row["pattern"], row["kernel"]) for row in rows] == [
        ("w", "range"),
        ("w", "block_sparse"),
        ("p", "csr_gather"),
    ]
    found = patterns.sliding_window(40).block_lists(192)
    assert rows[0]["list_bytes"] == 0 and rows[0]["build_ms"] is None
    assert rows[1]["list_bytes"] == 4 * (4 + 2 * 5) + 512 * len(found.bits) and rows[1]["build_ms"] > 0
    assert rows[2]["list_bytes"] == 8 * 193 + 4 * patterns.power_of_two().pairs(192)
    assert rows[0]["peak_extra_bytes"] == 3_000_000 - rows[0]["output_bytes"]


def test_csr_counts_the_bytes_that_it_gathers(on_cpu):
    rows = bench_sparse.csr(device="cpu", heads=1, length=100, share=0.1)
    assert [row["name"] for row in rows] == ["csr_gather", "block_sparse", FLASH] * 3
    pairs = patterns.power_of_two().pairs(100)
    assert rows[0]["gbytes_per_s"] == pytest.approx(2 * 128 * 2 * pairs / 2e-3 / 1e9)


def test_torch_sparse_computes_attention():
    pattern, inputs = patterns.random_blocks(64, 1, seed=0), [torch.randn(1, 2, 150, 64).half() for _ in range(3)]
    bench_sparse.require_right("torch.sparse", bench_sparse.torch_sparse(pattern, *inputs)(), *inputs, pattern)


# ---------------------------------------------------------------------------------------------- bench PATTERN


def bench_command(*words):
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return bench.run(parser.parse_args([str(word) for word in words]))


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """One row of chapter 04, on a machine without a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("course_utils.measured.measurement.FOLDER", tmp_path)
    rows = [
        {"part": part, "pattern": f"{kind}(window=8)", "length": 512, "name": OURS, "median_ms": 1.25}
        for part, kind in (("scaling", "sliding_window"), ("small", "sliding_window"), ("peers", "dilated"))
    ]
    versions = {"torch": "2.11.0", "cuda": "13.0", "cupy": "14.2.0", "python": "3.12.3"}
    measurement = measured.Measurement("04_sparse_patterns", "NVIDIA H200", "1", versions, "2026-11-21", "bench", rows)
    measured.write(measurement)
    return measurement


@pytest.mark.parametrize("subject", ["sliding_window", "window"])
def test_without_a_gpu_a_pattern_is_counted_and_the_record_shown(recorded, subject, tmp_path, capsys):
    files = tmp_path / "w.json", tmp_path / "w.png"
    assert bench_command(subject, "--window", 64, "--seq-len", 512, 1024, "--json", files[0], "--plot", files[1]) == 0
    printed = capsys.readouterr().out
    assert "sliding_window(window=64)" in printed and str(patterns.sliding_window(64).pairs(1024)) in printed
    assert "no usable NVIDIA GPU" in printed and "NVIDIA H200, 2026-11-21" in printed
    assert measured.load("any", files[0]).rows == recorded.rows[:1] and files[1].stat().st_size > 1000


def test_an_image_has_its_own_length(recorded, capsys):
    assert bench_command("local_2d", "--height", 8, "--width", 16, "--radius", 2) == 1  # nothing is recorded of it
    assert str(patterns.local_2d(8, 16, 2).pairs(128)) in capsys.readouterr().out


def test_counts_are_those_of_the_mask():
    (row,) = bench_sparse.counts(patterns.local(40), [200], heads=2, head_dim=64)
    mask = patterns.local(40).mask(200)
    assert row["pairs"] == mask.sum() and row["density"] == mask.sum() / 200**2
    assert (row["blocks"], row["visited"], row["kernel"]) == (16, 10, "range")
    assert row["useful_gflop"] == pytest.approx(4 * 64 * 2 * row["pairs"] / 1e9)


def test_blocks_of_a_dilated_pattern_are_counted_in_its_residue_classes():
    (row,) = bench_sparse.counts(patterns.dilated(20, 3), [385], heads=1, head_dim=64)  # classes of 129, 128 and 128
    assert (row["visited"], row["partial"]) == (5 + 3 + 3, 5 + 3 + 3)


def test_with_a_gpu_a_pattern_is_timed_as_the_options_say(recorded, monkeypatch, capsys):
    asked = []

    def race(pattern, shape, **options):
        asked.append((pattern.name, shape, options))
        return [{"pattern": pattern.name, "length": shape[2], "name": OURS, "median_ms": 7.0}]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(bench_sparse, "race", race)
    monkeypatch.setattr(bench_sparse, "counts", lambda *_: [{"density": 0.5}])
    options = "--sinks 4 --window 60 --heads 2 --head-dim 64 --dtype bfloat16 --backward --seq-len 128 192"
    assert bench_command("streaming", *options.split()) == 0
    name, how = "streaming(sinks=4, window=60)", {"dtype": torch.bfloat16, "backward": True}
    assert asked == [(name, (1, 2, length, 64), how) for length in (128, 192)]
    assert "a GPU, " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["streaming", "--window", 8], "streaming needs --sinks; it takes --sinks, --window"),
        (["sliding_window", "--window", 8, "--block", 64], "sliding_window does not take --block; it takes --window"),
        (["causal", "--window", 8], "causal does not take --window; it takes no options of its own"),
        (["sliding_window", "--window", 0], "window"),
        (["sliding_window", "--window", 8, "--seq-len", 0], "--seq-len is 0; it must be at least 1"),
        (["sliding_window", "--window", 8, "--record"], "do not belong to patterns"),
        (["02_flash_attention_minimal", "--window", 8], "--window belongs to a pattern"),
        (["emulator", "--backward"], "--backward belongs to a pattern"),
        (["causal", "--seq-len", 64], "no figures are recorded for causal"),
    ],
)
def test_what_cannot_be_done_is_one_line_that_names_the_option(recorded, capsys, words, message):
    assert bench_command(*words) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_every_pattern_of_numbers_is_a_subject():
    numeric = [
        name
        for name in ("causal", "sliding_window", "dilated", "power_of_two", "strided", "fixed", "streaming", "full")
        + ("local", "local_2d", "block_diagonal", "random_blocks", "bigbird", "document", "global_tokens", "tree")
    ]
    assert list(bench.PATTERNS) == numeric
