"""A kernel that fails is an exception that says where; the caller's data and its next launch are untouched."""

import contextlib
import os
import pickle
import re
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from course_utils.cuda import KernelError, RawModule, read_kernel
from course_utils.emulator import configure, launch, launcher, sanitize
from course_utils.emulator.launch import Settings, settings
from course_utils.emulator.memory import PAGE
from tests.helpers.fresh_process import run_without_the_course
from tests.helpers.processes import descendants, interrupt, is_running, once_it_runs, wait_for, workers

BROKEN = {
    "endless loop": (
        """
        extern "C" __global__ void k(int* out, int n) {
            if (threadIdx.x == 5)
                while (n == 40) out[0] = out[0] + 1;    // BUG
        }""",
        "time limit",
        r"still running after 0\.2 s",
        (5, 0, 0),
    ),
    "endless loop without effect": (
        """
        extern "C" __global__ void k(int* out, int n) { if (threadIdx.x == 5) for (;;) {} }    // BUG""",
        "time limit",
        "still running",
        (5, 0, 0),
    ),
    "write far past the end": (
        """
        extern "C" __global__ void k(int* out, int n) {
            if (threadIdx.x == 5)
                out[100000000] = n;    // BUG
        }""",
        "crash",
        r"write 399,999,\d\d\d bytes past the end of argument 0 \('out'\) of k\(\) \(256 bytes\)",
        (5, 0, 0),
    ),
    "read far before the start": (
        """
        extern "C" __global__ void k(int* out, int n) {
            if (threadIdx.x == 5)
                out[threadIdx.x] = out[-50000000];    // BUG
        }""",
        "crash",
        r"read 200,000,000 bytes before argument 0 \('out'\)",
        (5, 0, 0),
    ),
    "one past the end": (
        """
        extern "C" __global__ void k(int* out, int n) {
            out[threadIdx.x + 59] = n;    // BUG
        }""",
        "crash",
        r"write the first bytes past the end of argument 0",
        (5, 0, 0),
    ),
    "null pointer": (
        """
        extern "C" __global__ void k(int* out, int n) {
            int* nowhere = (int*)(long long)(n - 40);
            if (threadIdx.x == 5)
                *nowhere = 1;    // BUG
        }""",
        "crash",
        "invalid memory access",
        (5, 0, 0),
    ),
    "in an inlined function": (
        """
        __device__ void store(int* to, int i) {
            to[i] = 1;    // BUG
        }
        extern "C" __global__ void k(int* out, int n) {
            if (threadIdx.x == 5) store(out, 100000000);
        }""",
        "crash",
        "past the end",
        (5, 0, 0),
    ),
    "in a called function": (
        """
        __device__ __noinline__ void store(int* to, int i) {
            to[i] = 1;    // BUG
        }
        extern "C" __global__ void k(int* out, int n) {
            if (threadIdx.x == 5) store(out, 100000000);
        }""",
        "crash",
        "past the end",
        (5, 0, 0),
    ),
    "barriers of two branches": (
        """
        extern "C" __global__ void k(int* out, int n) {
            if (threadIdx.x < 5)
                __syncthreads();
            else
                __syncthreads();    // BUG
        }""",
        "divergent barrier",
        r"thread \(\d+,0,0\) of the same block waits at the one in line 4",
        None,
    ),
    "barrier passed by": (
        """
        extern "C" __global__ void k(int* out, int n) {
            if (threadIdx.x == 5)
                __syncthreads();    // BUG
            out[threadIdx.x] = n;
        }""",
        "divergent barrier",
        r"1 of the block's 64 threads wait at this __syncthreads\(\)",
        (5, 0, 0),
    ),
    "barrier in a loop of uneven length": (
        """
        extern "C" __global__ void k(int* out, int n) {
            for (int i = 0; i < 1 + threadIdx.x % 2; i++)
                __syncthreads();    // BUG
        }""",
        "divergent barrier",
        "32 of the block's 64 threads wait",
        (1, 0, 0),
    ),
    "shuffle against barrier": (
        """
        extern "C" __global__ void k(int* out, int n) {
            if (threadIdx.x % 32 < 16)
                out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, n, 1);    // BUG
            else
                __syncthreads();
        }""",
        "deadlock",
        r"32 threads in __shfl_xor_sync\(\) at line 4, 32 threads in __syncthreads\(\) at line 6",
        (0, 0, 0),
    ),
    "two collectives meet": (
        """
        extern "C" __global__ void k(int* out, int n) {
            if (threadIdx.x % 2)
                out[0] = __any_sync(0xffffffffu, 1);    // BUG
            else
                out[0] = __shfl_sync(0xffffffffu, n, 0);
        }""",
        "bad collective",
        r"__any_sync\(\) here, __shfl_sync\(\) in line 6",
        None,
    ),
    "mask without the caller": (
        """
        extern "C" __global__ void k(int* out, int n) {
            if (threadIdx.x == 5)
                __syncwarp(0xf);    // BUG
        }""",
        "bad collective",
        "the mask 0x0000000f does not name lane 5",
        (5, 0, 0),
    ),
    "endless recursion": (
        """
        __device__ __noinline__ int more(volatile int* out, int n) { return more(out, n + 1) + out[n & 7]; }    // BUG
        extern "C" __global__ void k(int* out, int n) {
            if (threadIdx.x == 5) out[0] = more(out, n);
        }""",
        "crash",
        "stack overflow",
        (5, 0, 0),
    ),
    "integer division by zero": (
        """
        extern "C" __global__ void k(int* out, int n) {
            out[threadIdx.x] = n / ((int)threadIdx.x - 5);    // BUG
        }""",
        "crash",
        "integer division by zero",
        (5, 0, 0),
    ),
    "assert": (
        """
        extern "C" __global__ void k(int* out, int n) {
            assert(threadIdx.x != 5 && "five");    // BUG
        }""",
        "trap",
        r'Assertion `threadIdx.x != 5 && "five"` failed',
        (5, 0, 0),
    ),
    "trap": (
        """
        extern "C" __global__ void k(int* out, int n) {
            if (threadIdx.x == 5)
                __trap();    // BUG
        }""",
        "trap",
        r"__trap\(\)",
        (5, 0, 0),
    ),
}
GOOD = 'extern "C" __global__ void k(int* out, int n) { out[threadIdx.x] = n; }'
ENDLESS = 'extern "C" __global__ void k(int* out, int n) { while (n) out[0] = out[0] + 1; }'


def fill(run_kernel, code, *, blocks=2, threads=64):
    out = torch.full((threads,), 7, dtype=torch.int32)
    run_kernel(code, (blocks,), (threads,), (out, np.int32(40)))
    return out


def raised(code):
    """The error of a kernel that was given a tensor of 64 sevens, and that tensor."""
    out = torch.full((64,), 7, dtype=torch.int32)
    kernel = RawModule(code=code).get_function("k")
    with pytest.raises(KernelError) as caught:
        kernel((2,), (64,), (out, np.int32(40)))
    return caught.value, out


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_kernel_is_an_exception_that_says_where(case, compiler, run_kernel):
    code, kind, message, thread = BROKEN[case]
    line = code[: code.index("// BUG")].count("\n") + 1
    # On two OS threads two blocks loop side by side. Where both are seen, on a busy machine, neither is named.
    with configure(time_limit=0.2, threads=1 if kind == "time limit" else None):
        error, out = raised(code)
    assert error.kind == kind
    assert (error.file, error.line) == ("kernel.cu", line)
    assert error.kernel == "k" and "kernel k" in str(error)
    assert error.block in ((0, 0, 0), (1, 0, 0)) and f"block {error.block}" in str(error)
    assert thread in (None, error.thread) and f"thread {error.thread}" in str(error)
    assert str(error).startswith(f"kernel.cu:{line}: ")
    assert "// BUG" in str(error).splitlines()[-1]
    assert re.search(message, str(error))
    assert (out == 7).all(), "a failed launch changed its argument"
    assert (fill(run_kernel, GOOD) == 40).all(), "the next launch does not work"


@pytest.mark.parametrize(("asked", "index"), [(0, 0), (0, 50000), (1000, PAGE // 4), (PAGE, PAGE // 4)])
def test_dynamic_shared_memory_that_was_not_asked_for_is_out_of_bounds(asked, index, compiler):
    out = torch.zeros(1)
    kernel = RawModule(
        code="""extern "C" __global__ void k(float* out, int i) {
            extern __shared__ float shared[];
            shared[i] = 1;
            out[0] = shared[i];
        }"""
    ).get_function("k")
    with pytest.raises(
        KernelError, match=r"kernel\.cu:3: .* past the end of the dynamic shared memory .* \(shared_mem\)"
    ):
        kernel((1,), (1,), (out, np.int32(index)), shared_mem=asked)
    kernel((1,), (1,), (out, np.int32(index)), shared_mem=4 * index + 4)
    assert out.item() == 1


def test_a_local_array_larger_than_the_stack_is_a_stack_overflow(compiler):
    error, _ = raised("""extern "C" __global__ void k(int* out, int n) {
        volatile int large[1000000];
        large[n] = 1;
        out[threadIdx.x] = large[n];
    }""")
    assert "stack overflow" in str(error) and error.file == "kernel.cu"


def test_a_local_array_of_250_kilobytes_fits(compiler, run_kernel):
    code = """extern "C" __global__ void k(int* out, int n) {
        volatile int large[64000];
        large[n] = n;
        out[threadIdx.x] = large[n];
    }"""
    assert (fill(run_kernel, code) == 40).all()


def test_a_crash_in_a_header_names_the_header_and_its_line(compiler, tmp_path):
    (tmp_path / "store.cuh").write_text(
        "// stores\n#pragma once\n__device__ void store(int* to, int i) {\n    to[i] = 1;\n}\n"
    )
    kernel = tmp_path / "broken.cu"
    kernel.write_text(
        '#include "store.cuh"\nextern "C" __global__ void k(int* out, int n) { store(out, 100000000); }\n'
    )
    error, _ = raised(read_kernel(kernel))
    assert (error.file, error.line) == ("store.cuh", 4)
    assert "to[i] = 1;" in str(error)


def test_a_barrier_in_a_header_names_the_header(compiler, tmp_path):
    (tmp_path / "wait.cuh").write_text("\n\n__device__ void wait() { __syncthreads(); }\n")
    kernel = tmp_path / "broken.cu"
    kernel.write_text(
        '#include "wait.cuh"\nextern "C" __global__ void k(int* out, int n) { if (threadIdx.x == 5) wait(); }\n'
    )
    error, _ = raised(read_kernel(kernel))
    assert (error.kind, error.file, error.line, error.thread) == ("divergent barrier", "wait.cuh", 3, (5, 0, 0))


def test_a_crash_in_a_library_function_names_the_line_that_called_it(each_compiler):
    error, _ = raised("""extern "C" __global__ void k(int* out, int n) {
        memset(out, 0, 4);
        memset(out + 100000000, 0, (size_t)n << 20);
    }""")
    assert (error.kind, error.line) == ("crash", 3)


def test_block_and_thread_of_a_failure_are_three_dimensional():
    out = torch.zeros(1, dtype=torch.int32)
    kernel = RawModule(
        code="""extern "C" __global__ void k(int* out) {
            bool block = blockIdx.x == 1 && blockIdx.y == 2 && blockIdx.z == 3;
            bool thread = threadIdx.x == 3 && threadIdx.y == 2 && threadIdx.z == 1;
            if (block && thread) __trap();
        }"""
    ).get_function("k")
    with pytest.raises(KernelError) as caught:
        kernel((2, 3, 4), (4, 3, 2), (out,))
    assert (caught.value.block, caught.value.thread) == ((1, 2, 3), (3, 2, 1))


def test_when_every_thread_fails_one_of_them_is_reported():
    error, _ = raised('extern "C" __global__ void k(int* out, int n) { out[100000000 + threadIdx.x] = 1; }')
    assert error.kind == "crash" and error.line == 1


def test_a_failure_ends_the_launch_though_another_block_waits_for_the_failed_one():
    start = time.monotonic()
    with configure(threads=2):
        error, _ = raised("""extern "C" __global__ void k(int* out, int n) {
            if (blockIdx.x == 0) { __nanosleep(1); __trap(); }
            while (atomicAdd(out, 0) == 7) {}
        }""")
    assert error.kind == "trap" and time.monotonic() - start < 10


def test_the_time_limit_is_kept():
    start = time.monotonic()
    with configure(time_limit=0.2):
        error, _ = raised(ENDLESS)
    assert error.kind == "time limit" and 0.2 <= time.monotonic() - start < 5
    assert (
        "(0 of 2 blocks done; emulator.configure(time_limit=...) sets the limit, threads=... how many blocks run"
        in str(error)
    )


SHUFFLES = """while (step >= 0) {
            sum += __shfl_xor_sync(0xffffffff, sum, step);
            step /= 2;
        }"""
COMPUTES = """while (n > 0) {
            sum = expf(sum) - expf(sum * 0.5f);
            sum = fmaxf(sum, -1.0f);
            n |= 1;
        }"""


ANOTHER_LOOP = pytest.mark.exhaustive("`make test` has an endless loop of shuffles that is watched")


@pytest.mark.parametrize(
    "loop, watched, line",
    [
        pytest.param(SHUFFLES, False, 8, id="of shuffles"),
        pytest.param(SHUFFLES, True, 8, id="of shuffles, watched"),
        pytest.param("while (n > 0) { __syncwarp(); }", True, 8, id="of __syncwarp, watched", marks=ANOTHER_LOOP),
        pytest.param(COMPUTES, False, 8, id="of arithmetic"),
        pytest.param("sum += 1.0f;\n\n    while (true) ;", False, 10, id="that is empty"),
        pytest.param("out[1] = 2;\n    while (out[0] == 40) {\n    }", False, 9, id="that is hoisted empty"),
        pytest.param("for (int j = 0; j < n; j += 0)\n    sum += add(sum);", False, 8, id="with a function above it"),
        pytest.param("for (int i = 0; i < 9; i++)\n    for (int j = 0; j < n; j += 0) {\n\n    sum *= sum - 1.5f; }",
                     False, 9, id="in another"),
    ],
)  # fmt: skip
def test_an_endless_loop_is_named_by_its_first_line(loop, watched, line):
    code = f"""__device__ float add(float value) {{
        value = value * 0.5f;
        return value + 1;
    }}
    extern "C" __global__ void k(int* out, int n) {{
        float sum = n;
        int step = 16;
        {loop}
        out[threadIdx.x] = sum;
    }}"""
    with configure(time_limit=0.1), sanitize() if watched else contextlib.nullcontext():
        error, _ = raised(code)
    assert error.kind == "time limit" and error.line == line


def test_a_launch_of_many_short_blocks_is_stopped_too():
    start = time.monotonic()
    out = torch.zeros(1, dtype=torch.int32)
    kernel = RawModule(code='extern "C" __global__ void k(int* out) {}').get_function("k")
    with configure(time_limit=0.3), pytest.raises(KernelError, match="still running"):
        kernel((2**31 - 1,), (32,), (out,))
    assert time.monotonic() - start < 10


def test_the_time_limit_leaves_its_with_block():
    with configure(time_limit=0.3):
        assert settings().time_limit == 0.3
    with pytest.raises(ZeroDivisionError), configure(time_limit=0.3):
        raise ZeroDivisionError
    assert settings().time_limit == 60


@pytest.mark.parametrize(("said", "threads"), [("3", 3), (" 2,4", 2), ("", None), ("0", None), ("many", None)])
def test_a_launch_has_as_many_threads_as_pytorch_is_told_to_have_or_as_there_are_cores(said, threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert Settings().threads == (threads or len(os.sched_getaffinity(0)))


@pytest.mark.parametrize("limit", [0, -1.0, float("inf"), float("nan"), "5"])
def test_an_impossible_time_limit_is_rejected(limit):
    with pytest.raises(ValueError, match="time_limit takes a positive, finite number"), configure(time_limit=limit):
        pass


@pytest.mark.parametrize("threads", [0, -1, 1.5])
def test_an_impossible_number_of_threads_is_rejected(threads):
    with pytest.raises(ValueError, match="threads takes a positive int"), configure(threads=threads):
        pass


def with_launcher(workers):
    return {psutil.Process(worker).ppid() for worker in workers} | workers


def test_an_interrupt_ends_the_worker(run_kernel):
    RawModule(code=ENDLESS).compile()  # so that no compiler runs meanwhile
    before = descendants()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), once_it_runs(lambda workers: interrupt()):
        fill(run_kernel, ENDLESS)
    assert time.monotonic() - start < 10
    assert descendants() <= before
    assert (fill(run_kernel, GOOD) == 40).all()


def test_an_interrupt_that_reaches_the_worker_too_is_still_a_keyboard_interrupt(run_kernel):
    RawModule(code=ENDLESS).compile()  # so that no compiler runs meanwhile
    before = descendants()

    def interrupt_both(workers):  # as a terminal or Jupyter does: the whole process group
        for process in with_launcher(workers):
            os.kill(process, signal.SIGINT)
        interrupt()

    with pytest.raises(KeyboardInterrupt), once_it_runs(interrupt_both):
        fill(run_kernel, ENDLESS)
    assert descendants() <= before


@pytest.mark.parametrize("which", ["worker", "launcher"])
def test_a_worker_that_is_killed_is_an_exception(which):
    """A launcher's worker ends with it."""
    RawModule(code=ENDLESS).compile()  # so that no compiler runs meanwhile
    found = set()

    def kill(workers):
        found.update(workers)
        for process in workers if which == "worker" else with_launcher(workers) - workers:
            os.kill(process, signal.SIGKILL)

    with once_it_runs(kill):
        error, out = raised(ENDLESS)
    assert error.kind == "died" and "signal 9" in str(error)
    assert (out == 7).all()
    assert wait_for(lambda: not any(map(is_running, found)), 10)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_worker_of_a_process_that_is_killed_ends_too(how):
    """Though a child of that process lives on, with all that it has inherited."""
    RawModule(code=ENDLESS).compile()
    caller = os.fork()
    if caller == 0:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            launch._launcher = launch._Launcher()
            if os.fork() == 0:
                time.sleep(20)
            else:
                raised(ENDLESS)
        finally:
            os._exit(1)
    assert wait_for(lambda: workers(caller))
    started = with_launcher(workers(caller))
    os.kill(caller, how)
    os.waitpid(caller, 0)
    assert wait_for(lambda: not any(map(is_running, started)), 10)


def test_a_launcher_that_has_loaded_many_libraries_starts_over_as_the_same_process(run_kernel, tmp_path, monkeypatch):
    text = Path(launcher.__file__).read_text(encoding="utf-8")
    few = re.sub(r"^MOST_LIBRARIES = \d+", "MOST_LIBRARIES = 1", text, flags=re.MULTILINE)  # the runtime is one
    (tmp_path / "launcher.py").write_text(few, encoding="utf-8")
    monkeypatch.setattr(launch, "__file__", str(tmp_path / "launch.py"))
    monkeypatch.setattr(launch, "_launcher", None)
    processes = set()
    for factor in (2, 3, 4):
        out = torch.zeros(1)
        run_kernel(f'extern "C" __global__ void k(float* out) {{ out[0] = {factor}; }}', (1,), (1,), (out,))
        process = launch._launcher._process.pid
        processes.add(process)
        assert out.item() == factor
        loaded = re.findall(r"kernels-\w+\.so", Path(f"/proc/{process}/maps").read_text(encoding="utf-8"))
        assert len(set(loaded)) <= 1
    assert len(processes) == 1
    launch._launcher.stop()


def test_a_launch_without_enough_memory_says_so():
    program = """
import resource, torch
from course_utils.cuda import KernelError, RawModule
module = RawModule(code='extern "C" __global__ void k() {}')
module.compile()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1300 << 20), used + (1300 << 20)))
try:
    from course_utils.emulator import configure
    with configure(threads=16):
        module.get_function("k")((1000,), (1024,), ())
except (KernelError, MemoryError) as error:
    print(type(error).__name__, error)
"""
    wanting = "memory for the stacks of a block: Cannot allocate memory|a thread: Resource temporarily unavailable"
    assert re.search(f"KernelError the emulator could not get ({wanting})", run_without_the_course(program))


def test_an_error_can_be_pickled():
    error, _ = raised(BROKEN["write far past the end"][0])
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert (copy.kind, copy.kernel, copy.line, copy.block, copy.thread) == ("crash", "k", 4, error.block, (5, 0, 0))


def test_an_error_raised_by_a_signal_handler_leaves_the_next_launch_alone(run_kernel):
    def give_up(*_):
        raise TimeoutError("enough")  # an OSError, as many graders raise it

    RawModule(code=ENDLESS).compile()  # so that no compiler runs meanwhile
    before = signal.signal(signal.SIGALRM, give_up)
    try:
        with (
            pytest.raises(TimeoutError, match="enough"),
            once_it_runs(lambda workers: os.kill(os.getpid(), signal.SIGALRM)),
        ):
            fill(run_kernel, ENDLESS)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert (fill(run_kernel, GOOD) == 40).all()
