"""The speed of the emulator: three kernels of benchmarks/emulator, plain, profiled and sanitized, alone or beside a
prototype, whose traced launches do both at once.

B=1, H=2, L=1024, d=64. Compilation is left out, runs are interleaved, and both sides use the same number of OS threads.
"""

import contextlib
import json
import multiprocessing
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from course_utils import reference
from course_utils.cuda import RawModule, read_kernel
from course_utils.emulator import configure, profile, sanitize
from course_utils.emulator.compiler import find_compiler
from course_utils.emulator.launch import settings
from course_utils.measured import Row

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "emulator"
HEADS, HEAD_DIM, SCALE = 2, 64, np.float32(0.125)
REPEATS = 5
MAX_ERROR = 2e-3


class Benchmark(NamedTuple):
    """A kernel of benchmarks/emulator with its launch."""

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


@dataclass(frozen=True)
class Result:
    """Rows of the table, and the machine they were taken on."""

    machine: str
    rows: list[Row]


def measure(prototype: Path | None = None, *, length: int = 1024, repeats: int = REPEATS) -> Result:
    """Time the three kernels on the emulator; with `prototype` also on the emulator whose `emu.py` lies in that folder.

    The times are medians. `ratio` is the prototype's time over ours: above 1 the emulator is the faster. Raises
    FileNotFoundError for a folder without `emu.py`, RuntimeError for a wrong result.
    """
    if prototype is not None and not (prototype / "emu.py").is_file():
        raise FileNotFoundError(f"--against {prototype}: there is no emu.py in that folder")
    threads = settings().threads
    with contextlib.ExitStack() as stack:
        other = None if prototype is None else stack.enter_context(_prototype_process(prototype))
        rows = [_row(benchmark, mode, length, repeats, threads, other) for benchmark in BENCHMARKS for mode in MODES]
    machine = f"{platform.machine()}, {os.cpu_count()} CPUs, {threads} threads, {find_compiler().kind}; medians"
    return Result(machine, rows)


def write(result: Result, path: Path) -> None:
    """Write the result as JSON."""
    path.write_text(json.dumps(asdict(result), indent=1) + "\n", encoding="utf-8")


def _row(benchmark: Benchmark, mode: str, length: int, repeats: int, threads: int, other: Connection | None) -> Row:
    generator = torch.Generator().manual_seed(1)
    shape = (1, HEADS, length, HEAD_DIM)
    inputs = [torch.randn(shape, generator=generator).to(benchmark.dtype) for _ in range(3)]
    expected = reference.attention(*inputs)
    runs: dict[str, Run] = {"emulator": _on_emulator(benchmark, mode, inputs, threads)}
    if other is not None:
        runs["prototype"] = _on_prototype(other, benchmark, mode, inputs, threads)
    for name, run in runs.items():  # the first run compiles, so it is not timed
        error = (run()[1] - expected).abs().max().item()
        if not error <= MAX_ERROR:
            raise RuntimeError(f"{benchmark.name}.cu on the {name} is off by {error:.2e}: not timed")

    samples: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs.items())
    for _ in range(repeats):  # A B, B A, A B, ...
        for name, run in order:
            samples[name].append(run()[0])
        order.reverse()
    row: Row = {"kernel": f"{benchmark.name}.cu", "mode": mode, "length": length}
    for name, of_name in samples.items():
        row[f"{name}_ms"] = 1000 * statistics.median(of_name)
    if other is not None:
        row["ratio"] = row["prototype_ms"] / row["emulator_ms"]
    return row


def _on_emulator(benchmark: Benchmark, mode: str, inputs: list[Tensor], threads: int) -> Run:
    kernel = RawModule(code=read_kernel(FOLDER / f"{benchmark.name}.cu")).get_function(benchmark.name)
    length = inputs[0].shape[2]
    grid = (length // benchmark.rows_per_block, HEADS)
    out = torch.empty(inputs[0].shape)
    arguments = (*inputs, out, np.int32(length), SCALE)

    def run() -> tuple[float, Tensor]:
        with configure(threads=threads), MODES[mode]():
            start = time.perf_counter()
            kernel(grid, (benchmark.threads,), arguments, shared_mem=benchmark.shared_bytes)
            return time.perf_counter() - start, out

    return run


# ---- the prototype, in a process of its own, since two emulator runtimes in one process would mix up their symbols


@contextlib.contextmanager
def _prototype_process(folder: Path) -> Iterator[Connection]:
    """A process that loads the prototype from a copy of `folder`, where it may build; yields the pipe to it."""
    processes = multiprocessing.get_context("spawn")
    here, there = processes.Pipe()
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(shutil.copytree(folder, Path(scratch) / "prototype", ignore=shutil.ignore_patterns("build")))
        process = processes.Process(target=_serve_prototype, args=(there, str(copy)), daemon=True)
        process.start()
        there.close()
        try:
            yield here
        finally:
            here.close()
            process.join(10)


def _on_prototype(pipe: Connection, benchmark: Benchmark, mode: str, inputs: list[Tensor], threads: int) -> Run:
    pipe.send((benchmark, mode != "plain", [tensor.numpy() for tensor in inputs], threads))

    def run() -> tuple[float, Tensor]:
        pipe.send(None)
        try:
            seconds, out = pipe.recv()
        except EOFError:
            raise RuntimeError(f"the prototype ended while it ran {benchmark.name}.cu") from None
        return seconds, torch.from_numpy(out)

    return run


def _serve_prototype(pipe: Connection, folder: str) -> None:
    """Loop of the prototype's process: a benchmark to set up, or None to run the last one, until the pipe closes."""
    sys.path.insert(0, folder)
    import emu  # the prototype's module

    compiler = {"gcc": "g++", "clang": "clang++", "zig": "zig"}[find_compiler().kind]
    while True:
        try:
            message = pipe.recv()
        except EOFError:
            return
        if message is not None:
            benchmark, traced, inputs, threads = message
            trace = "tsan" if traced else None
            module = emu.RawModule(path=str(FOLDER / f"{benchmark.name}.cu"), cc=compiler, trace=trace)
            kernel = module.get_function(benchmark.name)
            length = inputs[0].shape[2]
            grid = (length // benchmark.rows_per_block, HEADS)
            out = emu.zeros(inputs[0].shape)
            arguments = (*map(emu.asarray, inputs), out, np.int32(length), SCALE)
            continue
        start = time.perf_counter()
        kernel(grid, (benchmark.threads,), arguments, shared_mem=benchmark.shared_bytes, threads=threads)
        seconds = time.perf_counter() - start
        pipe.send((seconds, np.array(out)))
