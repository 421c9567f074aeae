"""The benchmarks: their table and command line, and on the emulator that each of them calls what it says it times."""

import argparse
import json
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend

from course_utils import bench, bench_emulator, bench_gpu, costs, measured, timing
from course_utils.kernel_source import read_kernel

ROWS = [
    {"name": "naive torch", "pass": "forward", "length": 512, "median_ms": 2.0, "peak_mb": 12.5},
    {"name": "naive torch", "pass": "forward", "length": 1024, "median_ms": 8.0, "peak_mb": 50.0},
    {"name": "ours", "pass": "forward", "length": 512, "median_ms": 1.0, "peak_mb": None},
    {"name": "ours", "pass": "backward", "length": 512, "median_ms": 3.0},
]


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """One recorded chapter, on a machine without a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(measured, "FOLDER", tmp_path)
    versions = {"torch": "2.11.0+cu130", "cuda": "13.0", "cupy": "14.2.0", "python": "3.12.3"}
    measurement = measured.Measurement(
        "02_flash_attention_minimal", "NVIDIA H200", "580.1", versions, "2026-11-21", "bench", ROWS
    )
    measured.write(measurement)
    return measurement


def bench_command(*words):
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return bench.run(parser.parse_args([str(word) for word in words]))


# ---------------------------------------------------------------------------------------------- table and command line


def test_table_aligns_numbers_right_and_leaves_missing_cells_empty():
    rows = [{"name": "a", "ms": 1.23456}, {"name": "long", "ms": 12345.6, "mb": 3}, {"name": "c", "ms": None}]
    assert bench.table(rows).splitlines() == [
        "name     ms  mb",
        "----  -----  --",
        "a     1.235",
        "long  12346   3",
        "c",
    ]


def test_without_a_gpu_the_recorded_figures_are_shown_and_labelled(recorded, capsys):
    assert bench_command("02_flash_attention_minimal") == 0
    printed = capsys.readouterr().out
    assert "no usable NVIDIA GPU" in printed and "recorded figures" in printed
    assert "NVIDIA H200, 2026-11-21, torch 2.11.0, CUDA 13.0" in printed and "naive torch" in printed


def test_json_and_plot_are_written(recorded, tmp_path, capsys):
    json_file, plot_file = tmp_path / "out" / "figures.json", tmp_path / "figures.png"
    assert bench_command("02_flash_attention_minimal", "--json", json_file, "--plot", plot_file) == 0
    assert measured.load("any", json_file) == recorded
    assert plot_file.stat().st_size > 1000


def test_plot_has_a_panel_per_pass_and_a_line_per_implementation(recorded):
    figure = bench.plot(recorded)
    assert [axes.get_title("left") for axes in figure.axes] == ["forward", "backward"]
    assert [line.get_label() for line in figure.axes[0].lines] == ["naive torch", "ours"]


def test_plot_of_rows_without_length_is_bars():
    rows = [{"name": "copy", "median_ms": 1.0, "gb_per_s": 4000.0}, {"name": "L2 cache", "bytes": 50}]
    versions = {"torch": "2.11.0", "cuda": "13.0"}
    figure = bench.plot(measured.Measurement("00_start_here", "GPU", "1", versions, "2026-11-21", "bench", rows))
    assert len(figure.axes[0].patches) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["01_attention_basics"], "no figures are recorded for '01_attention_basics'"),
        (["02_flash_attention_minimal", "--record"], "--record needs a GPU"),
        (["02_flash_attention_minimal", "--against", "x"], "--against belongs to"),
        (["emulator", "--plot", "x.png"], "--plot and --record belong to"),
        (["emulator", "--against", "nowhere"], r"no emu.py in that folder"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_status_1(recorded, capsys, words, message):
    assert bench_command(*words) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_with_a_gpu_the_chapter_is_measured_and_recorded(recorded, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "another GPU")
    monkeypatch.setitem(bench.CHAPTERS, "02_flash_attention_minimal", lambda: [{"median_ms": 7.0}])
    assert bench_command("02_flash_attention_minimal") == 0
    assert measured.load("02_flash_attention_minimal") == recorded  # nothing kept without --record
    assert bench_command("02_flash_attention_minimal", "--record") == 0
    kept = measured.load("02_flash_attention_minimal")
    assert kept.device == "another GPU" and kept.rows == [{"median_ms": 7.0}]
    assert kept.command == "python -m course_utils bench 02_flash_attention_minimal"


# ---------------------------------------------------------------------------------------------- what is timed


@pytest.fixture
def one_run_each(monkeypatch):
    """Timing without a clock: every function runs once, on the emulator, and is said to take 2 ms."""

    def compare(functions):
        for fn in functions.values():
            fn()
        return dict.fromkeys(functions, timing.Timing(2.0, 0.1))

    monkeypatch.setattr(timing, "compare", compare)
    monkeypatch.setattr(timing, "peak_memory", lambda fn: 3_000_000)
    monkeypatch.setattr(bench_gpu, "SDPA_KERNELS", {"SDPA math": SDPBackend.MATH})


def test_ceilings_count_bytes_and_flops(one_run_each):
    rows = {row["name"]: row for row in bench_gpu.ceilings(device="cpu", matrix=64, copy_bytes=4096, fma_steps=4)}
    assert rows["device memory copy"]["gb_per_s"] == pytest.approx(2 * 4096 / 2e-3 / 1e9)
    assert rows["fp16 matrix product, tensor cores"]["tflop_per_s"] == pytest.approx(2 * 64**3 / 2e-3 / 1e12)
    threads = 32 * 256
    assert rows["fp32 multiply-add, CUDA cores"]["tflop_per_s"] == pytest.approx(threads * 16 * 4 / 2e-3 / 1e12)


def test_kernels_of_chapter_00_are_timed_at_the_work_they_do(one_run_each):
    rows = bench_gpu.copies(device="cpu", n=1000) + bench_gpu.transposes(device="cpu", side=40)
    rows += bench_gpu.rereads(device="cpu", working_sets=(2**20, 2**21), total_bytes=2**22)
    rows += bench_gpu.matmuls(device="cpu", side=40)
    found = {row["name"]: row for row in rows}
    assert found["copy.cu"]["gb_per_s"] == pytest.approx(2 * 4000 / 2e-3 / 1e9)
    assert [row["stride"] for row in rows if "stride" in row] == list(bench_gpu.STRIDES)
    assert found["transpose_tiled.cu"]["gb_per_s"] == pytest.approx(2 * 4 * 40**2 / 2e-3 / 1e9)
    assert [row["working_set_bytes"] for row in rows if "working_set_bytes" in row] == [2**20, 2**21]
    assert {row["gb_per_s"] for row in rows if "working_set_bytes" in row} == {2**22 / 2 / 1e6}
    products = [name for name, row in found.items() if "tflop_per_s" in row]
    assert products == ["matmul_naive.cu", "matmul_tiled.cu", "matmul_registers.cu", "torch.mm"]
    assert found["torch.mm"]["tflop_per_s"] == pytest.approx(2 * 40**3 / 2e-3 / 1e12)


def test_naive_steps_time_every_step_beside_torch(one_run_each):
    rows = bench_gpu.naive_steps(device="cpu", batch=1, heads=2, lengths=(40,))
    assert [row["name"] for row in rows] == list(bench_gpu._STEPS)
    softmax = next(row for row in rows if row["name"] == "softmax.cu")
    assert softmax["traffic_gb_per_s"] == pytest.approx(2 * 4 * 2 * 40 * 40 / 2e-3 / 1e9)
    whole = next(row for row in rows if row["name"] == "naive_attention")
    total = costs.total_bytes(costs.naive_traffic(1, 2, 40, 40, 64, 4))
    assert whole["traffic_gb_per_s"] == pytest.approx(total / 2e-3 / 1e9) and whole["peak_mb"] == 3


def test_timed_steps_compute_what_their_names_say():
    query, key, value = bench_gpu._inputs(1, 2, 40, "cpu")
    functions = bench_gpu._naive_step_functions(query, key, value)
    results = {name: fn().clone() for name, fn in functions.items()}
    scaled = results["torch Q @ K.mT"] * 64**-0.5
    for ours, expected in [
        ("scores_uncoalesced.cu", scaled),
        ("scores_uncoalesced.cu, K transposed", scaled),
        ("scores.cu", scaled),
        ("softmax.cu", results["torch softmax"]),
        ("output.cu", results["torch P @ V"]),
        ("naive_attention", results["naive torch"]),
        ("SDPA", results["naive torch"]),
    ]:
        torch.testing.assert_close(results[ours], expected, atol=1e-5, rtol=1e-4)


def test_lengths_that_do_not_fit_the_gpu_are_left_out(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10 * 2**30, 16 * 2**30))
    assert bench_gpu._fitting((512, 4096), 16, 12, "cuda") == [512]
    assert "L = 4096 is left out" in capsys.readouterr().out


def test_minimal_flash_times_forward_and_backward(one_run_each):
    rows = bench_gpu.minimal_flash(device="cpu", batch=1, heads=2, lengths=(40,))
    names = {(row["pass"], row["name"]) for row in rows}
    everywhere = {"naive torch", "flash_attention_minimal", "SDPA math", "SDPA flash, fp16"}
    assert names == {("forward", "forward_plain.cu")} | {(p, n) for p in ("forward", "backward") for n in everywhere}
    forward = next(row for row in rows if row["name"] == "flash_attention_minimal" and row["pass"] == "forward")
    backward = next(row for row in rows if row["name"] == "flash_attention_minimal" and row["pass"] == "backward")
    assert forward["tflop_per_s"] == pytest.approx(costs.attention_flops(1, 2, 40, 40, 64) / 2e-3 / 1e12)
    assert backward["tflop_per_s"] == pytest.approx(2.5 * forward["tflop_per_s"])
    assert forward["speed_over_naive"] == 1 and forward["peak_mb"] == 3 and backward["code_lines"] is None
    json.dumps(rows)


def test_a_wrong_kernel_is_not_timed():
    with pytest.raises(RuntimeError, match="ours is off by"):
        bench_gpu._require_close("ours", torch.ones(2), torch.zeros(2))
    with pytest.raises(RuntimeError, match="ours is off by nan"):
        bench_gpu._require_close("ours", torch.full((2,), torch.nan), torch.zeros(2))


def test_code_lines_leaves_out_blank_lines_and_comments():
    assert bench_gpu.code_lines('// a\n\nint x; // b\n/* c\n d */\nchar* s = "// text";\n') == 2


@pytest.mark.parametrize("file", ["forward_plain.cu", "forward.cu"])
def test_minimal_forward_kernels_have_at_most_100_lines_of_at_most_100_columns(file):
    source = read_kernel(f"02_flash_attention_minimal/{file}")
    assert bench_gpu.code_lines(source) <= 100
    assert '#include "' not in source
    code = [line for line in source.splitlines() if not line.startswith("//")]
    assert max(map(len, code)) <= 100


# ---------------------------------------------------------------------------------------------- the emulator's speed


def test_emulator_benchmark_runs_its_three_kernels():
    result = bench_emulator.measure(length=64, repeats=1)
    modes = ("plain", "profile", "sanitize")
    kernels = ("naive.cu", "flash_half.cu", "flash_mma.cu")
    assert [(row["kernel"], row["mode"]) for row in result.rows] == [(k, m) for k in kernels for m in modes]
    assert all(row["emulator_ms"] > 0 for row in result.rows)


def test_emulator_benchmark_runs_another_emulator_side_by_side(tmp_path):
    """A stand-in for the prototype that answers with plain torch after a while, a longer one when it traces."""
    (tmp_path / "emu.py").write_text(
        "import time, numpy as np, torch\n"
        "from torch.nn.functional import scaled_dot_product_attention as sdpa\n"
        "asarray = np.ascontiguousarray\n"
        "zeros = lambda shape: np.zeros(tuple(shape), np.float32)\n"
        "class RawModule:\n"
        "    def __init__(self, path, cc, trace): self.seconds = {None: 0.01, 'tsan': 0.03}[trace]\n"
        "    def get_function(self, name):\n"
        "        def kernel(grid, block, args, *, shared_mem, threads):\n"
        "            q, k, v = (torch.from_numpy(x).float() for x in args[:3])\n"
        "            args[3][...] = sdpa(q, k, v).numpy()\n"
        "            time.sleep(self.seconds)\n"
        "        return kernel\n"
    )
    result = bench_emulator.measure(tmp_path, length=64, repeats=1)
    for row in result.rows:
        assert row["prototype_ms"] >= (10 if row["mode"] == "plain" else 30)
        assert row["ratio"] == pytest.approx(row["prototype_ms"] / row["emulator_ms"])
    bench_emulator.write(result, tmp_path / "speed.json")
    assert json.loads((tmp_path / "speed.json").read_text())["rows"] == result.rows


@pytest.mark.parametrize(
    "file", ["fma_peak.cu", "emulator/naive.cu", "emulator/flash_half.cu", "emulator/flash_mma.cu"]
)
def test_benchmark_kernels_compile_for_gpus(file):
    from course_utils.nvrtc import ARCHITECTURES, compile_kernel

    source = read_kernel(Path(bench_gpu.BENCHMARKS) / file)
    lowest = 80 if "arch: sm_80" in source else 75
    for architecture in ARCHITECTURES:
        if architecture >= lowest:
            resources = compile_kernel(source, arch=f"sm_{architecture}").resources
            assert all(kernel.spill_stores == 0 for kernel in resources.values())
