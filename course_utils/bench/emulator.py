"""What `bench emulator` measures: the speed of the emulator on three kernels, plain, profiled and sanitized.

B=1, H=2, L=1024, d=64. Compilation is left out. It needs no GPU.
"""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from course_utils import reference
from course_utils.bench.timed import KERNELS
from course_utils.cuda import RawModule, read_kernel
from course_utils.emulator import profile, sanitize
from course_utils.emulator.compiler import find_compiler
from course_utils.emulator.launch import settings
from course_utils.measured import Row

HEADS, HEAD_DIM, SCALE = 2, 64, np.float32(0.125)
REPEATS = 5
MAX_ERROR = 2e-3


class Benchmark(NamedTuple):
    """A kernel with its launch."""

    name: str
    dtype: torch.dtype
    rows_per_block: int
    threads: int
    shared_bytes: int


BENCHMARKS = (
    Benchmark("naive", torch.float32, 64, 64, 0),
    Benchmark("flash_half", torch.float16, 32, 128, 2 * 96 * 66),
    Benchmark("flash_mma", torch.float16, 64, 128, 2 * 5 * 64 * 72),
)


MODES: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
    "plain": contextlib.nullcontext,
    "profile": profile,
    "sanitize": sanitize,
}

Run = Callable[[], tuple[float, Tensor]]  # seconds by the wall clock, and the result


def measure(*, length: int = 1024, repeats: int = REPEATS) -> list[Row]:
    """Time the three kernels on the emulator, plain, profiled and sanitized; the times are medians.

    Raises RuntimeError for a wrong result.
    """
    return [_row(benchmark, mode, length, repeats) for benchmark in BENCHMARKS for mode in MODES]


def machine() -> str:
    """What determines the emulator's speed: the processor's kind, the CPUs, the number of threads, and its compiler."""
    return f"{platform.machine()}, {os.cpu_count()} CPUs, {settings().threads} threads, {find_compiler().kind}"


def _row(benchmark: Benchmark, mode: str, length: int, repeats: int) -> Row:
    generator = torch.Generator().manual_seed(1)
    shape = (1, HEADS, length, HEAD_DIM)
    inputs = [torch.randn(shape, generator=generator).to(benchmark.dtype) for _ in range(3)]
    run = _on_emulator(benchmark, mode, inputs)
    error = (run()[1] - reference.attention(*inputs)).abs().max().item()  # the first run compiles, so it is not timed
    if not error <= MAX_ERROR:
        raise RuntimeError(f"{benchmark.name}.cu on the emulator is off by {error:.2e}: not timed")
    milliseconds = 1000 * statistics.median(run()[0] for _ in range(repeats))
    return {"name": f"{benchmark.name}.cu", "mode": mode, "length": length, "median_ms": milliseconds}


def _on_emulator(benchmark: Benchmark, mode: str, inputs: list[Tensor]) -> Run:
    kernel = RawModule(code=read_kernel(KERNELS / f"{benchmark.name}.cu")).get_function(benchmark.name)
    length = inputs[0].shape[2]
    grid = (length // benchmark.rows_per_block, HEADS)
    out = torch.empty(inputs[0].shape)
    arguments = (*inputs, out, np.int32(length), SCALE)

    def run() -> tuple[float, Tensor]:
        with MODES[mode]():
            start = time.perf_counter()
            kernel(grid, (benchmark.threads,), arguments, shared_mem=benchmark.shared_bytes)
            return time.perf_counter() - start, out

    return run
