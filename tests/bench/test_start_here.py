"""Chapter 00's benchmarks, on the emulator: each counts the work that it does."""

import pytest

from course_utils import timing
from course_utils.bench import start_here


def test_ceilings_count_bytes_and_flops(one_run_each):
    rows = {
        row["name"]: row
        for row in start_here.ceilings(device="cpu", matrix=64, copy_bytes=4096, fma_steps=4, mma_steps=2, exp_steps=1)
    }
    assert rows["device memory copy"]["gb_per_s"] == pytest.approx(2 * 4096 / 2e-3 / 1e9)
    assert rows["fp16 matrix product, tensor cores"]["tflop_per_s"] == pytest.approx(2 * 64**3 / 2e-3 / 1e12)
    threads = 32 * 256
    products = threads // 32 * 8 * 2
    assert rows["fp16 mma.sync alone, tensor cores"]["tflop_per_s"] == pytest.approx(products * 2 * 16 * 8 * 16 / 2e9)
    assert rows["exponentials, special function units"]["per_s"] == pytest.approx(threads * 8 / 2e-3)
    assert rows["fp32 multiply-add, CUDA cores"]["tflop_per_s"] == pytest.approx(threads * 16 * 4 / 2e-3 / 1e12)


def test_kernels_of_chapter_00_are_timed_at_the_work_they_do(one_run_each):
    rows = start_here.copies(device="cpu", n=1000) + start_here.transposes(device="cpu", side=40)
    rows += start_here.rereads(device="cpu", working_sets=(2**20, 2**21), total_bytes=2**22)
    rows += start_here.matmuls(device="cpu", side=40)
    found = {row["name"]: row for row in rows}
    assert found["copy.cu"]["gb_per_s"] == pytest.approx(2 * 4000 / 2e-3 / 1e9)
    assert [row["stride"] for row in rows if "stride" in row] == list(start_here.STRIDES)
    assert found["transpose_tiled.cu"]["gb_per_s"] == pytest.approx(2 * 4 * 40**2 / 2e-3 / 1e9)
    assert [row["working_set_bytes"] for row in rows if "working_set_bytes" in row] == [2**20, 2**21]
    assert {row["gb_per_s"] for row in rows if "working_set_bytes" in row} == {2**22 / 2 / 1e6}
    products = [name for name, row in found.items() if "tflop_per_s" in row]
    assert products == ["matmul_naive.cu", "matmul_tiled.cu", "matmul_registers.cu", "torch.mm"]
    assert found["torch.mm"]["tflop_per_s"] == pytest.approx(2 * 40**3 / 2e-3 / 1e12)


def test_a_chase_visits_every_line_before_it_comes_back():
    following = start_here._random_cycle(64)
    place, visited = 0, set()
    for _ in range(64):
        visited.add(place)
        place = int(following[place])
    assert place == 0 and len(visited) == 64


def test_latency_is_the_surplus_of_a_longer_walk(monkeypatch):
    times = {", 1": timing.Timing(1.0, 0.1), ", 2": timing.Timing(3.0, 0.1)}
    monkeypatch.setattr(timing, "compare", lambda functions: {name: times[name[-3:]] for name in functions})
    fits, does_not = start_here.latencies(device="cpu", sizes=(4096, 2**21), steps=10)
    assert fits["ns_per_load"] == pytest.approx(2e6 / (4096 / 128))  # once through the array, at least
    assert does_not["ns_per_load"] == pytest.approx(2e6 / 10)


def test_divergence_times_each_run(one_run_each):
    rows = start_here.divergence(device="cpu", threads=256, steps=2)
    assert [row["run"] for row in rows] == list(start_here.RUNS)
