"""What goes wrong in a launch is a step of its recording; what goes wrong in another block is none."""

import time

import numpy as np
import pytest
import torch

from course_utils.cuda import RawModule
from course_utils.emulator import configure, launch, record, sanitize
from course_utils.emulator.recorded import OPS


def run(code, *args, blocks=1, threads=64, shared=0):
    kernel = RawModule(code=f'extern "C" __global__ void k({code}').get_function("k")
    return lambda: kernel((blocks,), (threads,), args, shared_mem=shared)


def step(recording, number):
    c = recording.columns
    array = c["steps.array"][number]
    name = recording.arrays[array].name if array >= 0 else None
    return (
        OPS[c["steps.op"][number]],
        recording.places[c["steps.place"][number]].line,
        name,
        int(c["steps.mask"][number]),
    )


def test_an_access_outside_of_every_array_is_a_step_and_what_was_written_before_it_is_there():
    call = run("float* y) {\n y[threadIdx.x] = 1;\n y[1 << 30] = 2; }", torch.zeros(4), threads=3)
    recording = record(call)
    assert "invalid memory access" in recording.failure
    (finding,) = recording.findings
    assert (finding.tool, finding.step, finding.other_step) == ("memcheck", 1, -1)
    assert step(recording, 1) == ("write", 3, None, 0b111)
    assert (recording.columns["steps.width"][1], recording.columns["steps.extra"][1]) == (0, 4)
    assert recording.columns["words.value"].view(np.float32).tolist() == [1, 1, 1]
    assert recording.writer("y", 0)[:2] == (0, 0)
    recording.packed()


def test_what_is_written_just_before_a_crash_is_recorded():
    code = "float* y, int zero) {\n y[threadIdx.x] = 5;\n y[4 / zero] = 1; }"
    recording = record(run(code, torch.zeros(4), np.int32(0), threads=1))
    assert "division by zero" in recording.failure
    assert recording.columns["words.value"].view(np.float32).tolist() == [5]


def test_a_finding_of_one_party_is_at_the_access_that_it_is_about():
    code = "const float* x, float* y) {\n __shared__ float s[4];\n s[threadIdx.x + 1] = x[threadIdx.x];\n"
    code += " __syncthreads();\n y[threadIdx.x] = s[threadIdx.x]; }"
    recording = record(run(code, torch.ones(4), torch.zeros(4), threads=4))
    at = {finding.tool: step(recording, finding.step) for finding in recording.findings}
    assert at == {"memcheck": ("write", 3, None, 0b1000), "initcheck": ("read", 5, "s", 0b1111)}


def test_where_another_thread_ends_the_launch_first_its_access_stands_for_that_of_the_finding():
    recording = record(run("float* y) {\n y[64 * threadIdx.x] = y[threadIdx.x]; }", torch.zeros(64)))
    (finding,) = recording.findings
    assert step(recording, finding.step)[:3] == ("write", 2, None)


def test_dynamic_shared_memory_ends_where_the_launch_says():
    code = "float* y) {\n extern __shared__ float s[];\n s[threadIdx.x] = y[threadIdx.x];\n s[threadIdx.x + 64] = 1; }"
    recording = record(run(code, torch.zeros(64), shared=300))
    (finding,) = recording.findings
    assert step(recording, finding.step) == ("write", 4, None, 0xFFFFF800)  # 256 + 4 * 11 = 300


RACE_OF_BLOCK_3 = """float* y) {
 __shared__ float s[64];
 s[threadIdx.x] = y[64 * blockIdx.x + threadIdx.x];
 if (blockIdx.x != 3) __syncthreads();
 y[64 * blockIdx.x + threadIdx.x] = s[63 - threadIdx.x]; }"""


def test_what_another_block_does_wrong_is_no_step_of_this_one():
    call = run(RACE_OF_BLOCK_3, torch.zeros(256), blocks=4)
    assert [(one.step, one.other_step) for one in record(call).findings] == [(-1, -1)]
    (race,) = record(call, block=3).findings
    assert step(record(call, block=3), race.step)[:2] == ("read", 5) and race.other_step >= 0


def test_what_every_block_does_wrong_is_found_in_the_recorded_one():
    call = run(RACE_OF_BLOCK_3.replace("if (blockIdx.x != 3) __syncthreads()", ""), torch.zeros(256), blocks=4)
    with sanitize() as report:
        call()
    assert report.findings[0].block == (0, 0, 0)
    for block in range(4):
        assert all(one.step >= 0 and one.other_step >= 0 for one in record(call, block=block).findings)


def test_a_kernel_that_does_not_end_is_told_soon():
    endless = run(
        "volatile float* y) {\n for (;;) {\n  if (y[0] == 7) break;\n }\n y[1] = 2; }", torch.zeros(4), threads=1
    )
    before = time.perf_counter()
    with pytest.raises(ValueError, match=r"longer than 1,000 accesses .* the last in line 3: does a loop there end"):
        record(endless, limit=1000)
    assert time.perf_counter() - before < 15


ENDLESS = """float* y, int which) {
 int q = 0;
 if (which == 0) while (true) q++;
 if (which == 1 && blockIdx.x == 1) while (true) y[threadIdx.x] += 1;
 if (which == 2 && threadIdx.x < 16) while (true) __syncthreads();
 while (which == 3) __syncthreads();
 y[0] = q; }"""


def test_a_loop_that_comes_no_further_does_not_wait_for_the_time_limit(monkeypatch):
    def asked(which):
        return run(ENDLESS, torch.zeros(64), np.int32(which), blocks=2)

    monkeypatch.setattr(launch, "patience", lambda: 0.3)
    record(asked(4))  # what is compiled
    with configure(time_limit=10):
        failures, seconds = [], []
        for which in range(3):
            before = time.perf_counter()
            failures.append((recording := record(asked(which))).failure)
            seconds.append(time.perf_counter() - before)
        with pytest.raises(ValueError, match=r"turns of its warps, the last in line 6, .* does a loop there end\?"):
            record(asked(3))
    assert [failure.partition(" (")[0] for failure in failures[:2]] == [
        f"kernel.cu:{line}: time limit: in 0.3 s of computing there was no step to record, and no other block began"
        for line in (3, 4)
    ]
    assert "barrier in a divergent branch" in failures[2] and recording.findings[0].tool == "synccheck"
    assert max(seconds) < 9


def test_a_launch_that_is_out_of_time_is_not_run_again():
    turning = run(
        "float* y, int n) {\n y[0] = 1;\n for (int i = 0; i >= 0; i = (i + n) % 7) {}\n }",
        torch.zeros(1),
        np.int32(1),
        threads=1,
    )
    before = time.perf_counter()
    with configure(time_limit=0.5):
        recording = record(turning)
    assert "time limit" in recording.failure and recording.findings == () and time.perf_counter() - before < 15
    assert recording.columns["words.value"].view(np.float32).tolist() == [1]


def test_the_sanitizer_sees_what_the_recording_saw():
    """The launch changes its input and a variable; each of the two runs starts from what they were."""
    code = "int* y) {\n int at = y[0]++ + count++;\n y[1 + at] = 1; }"
    y = torch.zeros(2, dtype=torch.int32)
    kernel = RawModule(code=f'__device__ int count; extern "C" __global__ void k({code}').get_function("k")
    assert record(lambda: kernel((1,), (1,), (y,))).findings == () and y.tolist() == [1, 1]
    (finding,) = record(lambda: kernel((1,), (1,), (y,))).findings
    assert finding.tool == "memcheck" and finding.step >= 0
