"""The benchmarks: their table and command line, and on the emulator that each of them calls what it says it times."""

import argparse
import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend

from course_utils import costs, measured, timing
from course_utils.bench import emulator as bench_emulator
from course_utils.bench import flash_attention_v2 as bench_flash_v2
from course_utils.bench import gpu as bench_gpu
from course_utils.commands import bench
from course_utils.cuda import RawModule
from course_utils.toolchain.source import read_kernel

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
    monkeypatch.setattr("course_utils.measured.measurement.FOLDER", tmp_path)
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


def test_lines_of_a_panel_have_colours_of_their_own(recorded):
    rows = [
        {"panel": panel, "name": f"{panel} {n}", "length": 512, "median_ms": 1.0} for panel in "ab" for n in range(5)
    ]
    figure = bench.plot(dataclasses.replace(recorded, rows=rows + [rows[0] | {"panel": "b"}]))
    assert [axes.get_title("left") for axes in figure.axes] == ["a", "b"]
    assert [len({line.get_color() for line in axes.lines}) for axes in figure.axes] == [5, 5]


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

    def compare(functions, **options):
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
        bench_gpu.require_close("ours", torch.ones(2), torch.zeros(2))
    with pytest.raises(RuntimeError, match="ours is off by nan"):
        bench_gpu.require_close("ours", torch.full((2,), torch.nan), torch.zeros(2))


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
    from course_utils.toolchain.nvrtc import ARCHITECTURES, compile_kernel

    source = read_kernel(Path(bench_gpu.BENCHMARKS) / file)
    lowest = 80 if "arch: sm_80" in source else 75
    for architecture in ARCHITECTURES:
        if architecture >= lowest:
            resources = compile_kernel(source, arch=f"sm_{architecture}").resources
            assert all(kernel.spill_stores == 0 for kernel in resources.values())


# ---------------------------------------------------------------------------------------------- chapter 03


@pytest.fixture
def flash_v2_on_cpu(one_run_each, monkeypatch):
    """Chapter 03's benchmarks on the emulator: torch's kernels for GPUs are played by its plain one."""
    monkeypatch.setattr(bench_flash_v2, "PEERS", dict.fromkeys(bench_flash_v2.PEERS, SDPBackend.MATH))
    monkeypatch.setattr(timing, "time_calls", lambda fn: 0.5 if fn() is not None else None)


def test_flash_v2_is_timed_beside_torch_forward_and_backward(flash_v2_on_cpu):
    rows = bench_flash_v2.by_length(device="cpu", tokens=80, width=128, lengths=(40, 80), head_dims=(64,))
    summaries = [row for row in rows if row["part"] == "summary"]
    assert [row["pass"] for row in summaries] == ["forward", "backward"]
    assert all(row["shapes"] == 4 and row["geometric_mean"] == row["lowest"] == 1 for row in summaries)
    rows = [row for row in rows if row["part"] == "lengths"]
    names = {"flash_attention_v2", "torch FLASH again", "naive torch", *bench_flash_v2.PEERS}
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
    monkeypatch.setitem(bench_flash_v2.PEERS, "torch cuDNN", SDPBackend.CUDNN_ATTENTION)  # for GPUs only
    inputs = bench_flash_v2._inputs((1, 1, 8, 64), "cpu")
    for backward in (False, True):
        functions = bench_flash_v2._functions(*inputs, is_causal=False, backward=backward)
        assert "torch cuDNN" not in functions and "torch memory-efficient" in functions
        assert "torch cuDNN is left out at [1, 1, 8, 64]" in capsys.readouterr().out


def test_ratios_are_taken_within_each_run(monkeypatch):
    times = iter([(2.0, 1.0), (4.0, 1.0), (3.0, 2.0)])

    def compare(functions, **options):
        return {name: timing.Timing(time, 0) for name, time in zip(functions, next(times), strict=True)}

    monkeypatch.setattr(timing, "compare", compare)
    found = bench_flash_v2._interleaved({"base": print, "ours": print}, "base", runs=3, head_start_us=0.0)
    assert found["ours"] == (timing.Timing(1.0, 0), [2.0, 4.0, 1.5]) and found["base"][1] == [1.0] * 3


def test_what_runs_once_takes_part_in_the_first_run_only(monkeypatch):
    runs = []
    monkeypatch.setattr(
        timing, "compare", lambda fns, **_: runs.append(list(fns)) or dict.fromkeys(fns, timing.Timing(1, 0))
    )
    bench_flash_v2._interleaved({"base": print, "slow": print}, "base", runs=3, head_start_us=0.0, once=("slow",))
    assert runs == [["base", "slow"], ["base"], ["base"]]


def test_everything_that_the_chapter_launches_is_compiled_ahead(monkeypatch):
    compiled = []
    monkeypatch.setattr(RawModule, "compile", lambda self, device: compiled.append((self.name, device)))
    bench_flash_v2.compile_all("cpu")
    files = {Path(name).name for name, _ in compiled}
    assert files == {"backward.cu", *(Path(step.file).name for step in bench_flash_v2.LADDER)}
    assert {device for _, device in compiled} == {"cpu"}


def test_short_lengths_have_the_time_of_a_call_too(flash_v2_on_cpu):
    rows = bench_flash_v2.short_lengths(device="cpu", heads=1, lengths=(7,), head_dims=(64,))
    assert {row["call_ms"] for row in rows if row["name"] != "torch FLASH again"} == {0.5}
    assert {row["part"] for row in rows} == {"short"}


def test_ladder_has_speed_and_resources_of_each_step(flash_v2_on_cpu):
    steps = bench_flash_v2.LADDER[-2:]
    rows = bench_flash_v2.ladder(device="cpu", tokens=70, width=64, lengths=(70,), head_dims=(64,), steps=steps)
    assert [row["name"] for row in rows] == ["torch FLASH", *(step.title for step in steps)] * 2  # causal and not
    last = rows[-1]
    assert last["spill_bytes"] == 0 and last["registers"] <= 255 and last["shared_bytes"] == steps[-1].shared_bytes(64)
    assert 0 < last["occupancy"] <= 1 and last["ratio_to_flash"] == 1


def test_tuning_times_the_final_kernel_without_each_of_its_ideas(flash_v2_on_cpu, monkeypatch):
    monkeypatch.setattr(bench_flash_v2, "TUNING", bench_flash_v2.TUNING[2:3])
    rows = bench_flash_v2.tuning(device="cpu", tokens=70, width=64, lengths=(70,), head_dims=(64,))
    assert [row["name"] for row in rows] == ["torch FLASH", "tuned", "O rescaled at every tile"] * 2
    assert {row["part"] for row in rows} == {"tuning"}


def test_table_has_time_and_memory_of_four_implementations(flash_v2_on_cpu):
    rows = bench_flash_v2.time_and_memory(device="cpu", shape=(1, 1, 40, 64))
    assert [row["name"] for row in rows] == [
        "naive torch",
        "flash_attention_minimal",
        "torch FLASH",
        "flash_attention_v2",
    ]
    assert rows[0]["peak_mb"] == 3 and rows[0]["hbm_read_mb"] is None
    assert rows[1]["least_mb"] == 2 * rows[3]["least_mb"]


def test_each_function_of_the_table_runs_between_two_markers(flash_v2_on_cpu, monkeypatch):
    done = []
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: done.append("marker"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    functions = {name: lambda name=name: done.append(name) for name in "ab"}
    monkeypatch.setattr(bench_flash_v2, "_table_functions", lambda shape, device: functions)
    bench_flash_v2.run_between_markers("cpu")
    assert done == ["marker", "a", "marker", "marker", "b", "marker"]


def test_hbm_bytes_are_those_of_the_kernels_between_markers(monkeypatch):
    marker = ("spin_kernel", {"dram__bytes_read": 1})

    def kernel(read, written):
        return "any", {"dram__bytes_read": read, "dram__bytes_write": written}

    kernels = [kernel(9, 9), marker, kernel(1e6, 2e6), kernel(3e6, 0), marker, marker, kernel(5e6, 6e6), marker]
    monkeypatch.setattr(bench_flash_v2.nvidia_tools, "count_program", lambda *args, **options: kernels)
    assert bench_flash_v2._hbm_bytes(["a", "b"]) == {"a": (4.0, 2.0), "b": (5.0, 6.0)}


def test_without_ncu_there_are_no_hbm_bytes_and_it_is_said_why(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench_flash_v2._hbm_bytes(["a"]) == {}
    assert "no HBM bytes: ncu needs an NVIDIA GPU" in capsys.readouterr().out


def test_recomputing_is_timed_beside_storing(flash_v2_on_cpu):
    rows = bench_flash_v2.recompute_or_store(device="cpu", tokens=40, heads=1, lengths=(20, 40))
    assert [(row["name"], row["length"]) for row in rows] == [
        (name, length) for length in (20, 40) for name in ("recomputes P", "stores P")
    ]
    assert [row["stored_p_mb"] for row in rows] == [0, 2 * 2 * 20 * 20 / 1e6, 0, 2 * 40 * 40 / 1e6]


def test_training_block_is_timed_with_each_attention(flash_v2_on_cpu):
    rows = bench_flash_v2.training_block(device="cpu", batch=2, length=20, width=64, heads=1)
    assert [row["name"] for row in rows] == ["naive torch", "flash_attention_v2", "SDPA"]
    assert all(row["median_ms"] == 2 and row["peak_mb"] == 3 for row in rows)


def test_blocks_compute_the_same_with_each_attention():
    torch.manual_seed(0)
    x = torch.randn(2, 20, 128).half()
    weights = bench_flash_v2.Block(None, 128, 2).half().state_dict()
    results = []
    for attention in bench_flash_v2.ATTENTIONS.values():
        block = bench_flash_v2.Block(attention, 128, 2).half()
        block.load_state_dict(weights)
        results.append(block(x))
    torch.testing.assert_close(results[0], results[1], atol=5e-3, rtol=0)
    torch.testing.assert_close(results[0], results[2], atol=5e-3, rtol=0)


def test_largest_batch_is_predicted_from_two_and_then_run():
    ran = []

    def peak(batch):
        ran.append(batch)
        if 100 + 10 * batch > 960:  # a little more than the prediction knows of
            raise torch.OutOfMemoryError
        return 100 + 10 * batch

    assert bench_flash_v2.largest_batch(peak, 1000) == 86
    assert ran == [2, 4, 90, 88, 86]


def test_underflow_of_gradients_is_counted():
    tiny = torch.tensor([0.0, 2.0**-24, 2.0**-15, 1.0, torch.inf]).half()
    assert bench_flash_v2.lost_shares(tiny) == pytest.approx({"zero": 0.2, "subnormal": 0.4, "not_finite": 0.2})
    rows = bench_flash_v2.gradient_underflow(device="cpu", shape=(1, 2, 64, 64))
    lost = {(row["dtype"], row["loss_scale"], row["name"]): row["zero"] + row["subnormal"] for row in rows}
    assert lost["float16", 1, "dq"] > 0.9 > 0.1 > lost["float16", 2**16, "dq"]
    assert lost["bfloat16", 1, "dq"] < 0.01


def test_an_operator_stands_for_its_chapter(recorded, capsys):
    assert bench_command("flash_attention_v2") == 1
    assert "no figures are recorded for '03_flash_attention_v2'" in capsys.readouterr().err


def test_parts_of_a_chapter_are_tables_of_their_own_and_the_first_is_drawn(recorded):
    rows = [
        {"part": "lengths", "pass": "forward", "head_dim": 64, "is_causal": c, "length": 8, "name": "a", "median_ms": 1}
        for c in (False, True)
    ]
    rows.append({"part": "summary", "geometric_mean": 1.0})
    assert list(map(len, bench._parts(rows))) == [2, 1] and bench._parts(ROWS) == [ROWS]
    figure = bench.plot(dataclasses.replace(recorded, rows=rows))
    assert [axes.get_title("left") for axes in figure.axes] == ["forward, d=64", "forward, d=64, causal"]
