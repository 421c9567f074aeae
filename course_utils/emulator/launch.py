"""One launch: the mirror of runtime/launch.h, the worker process, and its end."""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from course_utils.emulator.report import FINISHED, Dim3, Report, printed_text


@dataclass(frozen=True)
class Settings:
    """`time_limit` of a launch in seconds; `threads`: over how many OS threads its blocks are spread."""

    time_limit: float = 60.0
    threads: int = len(os.sched_getaffinity(0))


_settings = Settings()


def settings() -> Settings:
    """The settings in force."""
    return _settings


@contextlib.contextmanager
def configure(*, time_limit: float | None = None, threads: int | None = None) -> Iterator[None]:
    """Sets the emulator's time limit (seconds per launch) or number of OS threads for the launches inside a `with`."""
    global _settings
    if time_limit is not None and not (isinstance(time_limit, (int, float)) and 0 < time_limit < math.inf):
        raise ValueError(f"time_limit takes a positive, finite number of seconds, got {time_limit!r}")
    if threads is not None and not (isinstance(threads, int) and threads >= 1):
        raise ValueError(f"threads takes a positive int, got {threads!r}")
    before = _settings
    given = {"time_limit": time_limit, "threads": threads}
    _settings = replace(before, **{name: value for name, value in given.items() if value is not None})
    try:
        yield
    finally:
        _settings = before


class Global(NamedTuple):
    """A __device__ or __constant__ variable: where a kernel finds it, and its value between launches (uint8)."""

    address: int
    value: torch.Tensor


class Span(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("bytes", ctypes.c_uint64)]


class LaunchRequest(ctypes.Structure):
    _fields_ = [
        ("kernel", ctypes.c_void_p),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("grid", Dim3),
        ("block", Dim3),
        ("dynamic_shared", ctypes.c_uint32),
        ("os_threads", ctypes.c_uint32),
        ("time_limit", ctypes.c_double),
        ("dynamic_shared_base", ctypes.c_void_p),
        ("globals", ctypes.POINTER(Span)),
        ("global_values", ctypes.c_void_p),
        ("global_count", ctypes.c_uint64),
        ("report", ctypes.POINTER(Report)),
    ]


def run(
    runtime: ctypes.CDLL,
    *,
    kernel: int,
    dynamic_shared_base: int,
    global_variables: list[Global],
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    arguments: list[bytes],
    shared_mem: int,
) -> tuple[Report, int]:
    """Runs a launch in a worker process and waits for it; returns its report and its exit status.

    `arguments` are the values as the kernel takes them. The values of `global_variables` go to the worker and, unless
    the launch fails, come back. What the kernel printed goes to sys.stdout. An interrupt (KeyboardInterrupt) ends the
    worker.
    """
    values = [ctypes.create_string_buffer(value, len(value)) for value in arguments]
    pointers = (ctypes.c_void_p * max(1, len(values)))(*[ctypes.addressof(value) for value in values])
    sizes = [variable.value.numel() for variable in global_variables]
    spans = (Span * max(1, len(sizes)))(*map(Span, [variable.address for variable in global_variables], sizes))
    shared = mmap.mmap(-1, ctypes.sizeof(Report) + sum(sizes) + 1)  # what it holds for others keeps it alive
    report = Report.from_buffer(shared)
    behind_report = torch.frombuffer(shared, dtype=torch.uint8, offset=ctypes.sizeof(Report))
    shared_values = behind_report[: sum(sizes)].split(sizes)
    for shared_value, variable in zip(shared_values, global_variables, strict=True):
        shared_value.copy_(variable.value)
    request = LaunchRequest(
        kernel=kernel,
        arguments=ctypes.cast(pointers, ctypes.POINTER(ctypes.c_void_p)),
        grid=Dim3(*grid),
        block=Dim3(*block),
        dynamic_shared=shared_mem,
        os_threads=_settings.threads,
        time_limit=_settings.time_limit,
        dynamic_shared_base=dynamic_shared_base,
        globals=spans,
        global_values=behind_report.data_ptr(),
        global_count=len(global_variables),
        report=ctypes.pointer(report),
    )
    sys.stdout.flush()
    worker = runtime.emu_start(ctypes.byref(request))
    if worker < 0:
        raise OSError(-worker, "the emulator could not start a worker process: " + os.strerror(-worker))
    status = _wait(worker)
    sys.stdout.write(printed_text(report))
    if report.outcome == FINISHED:
        for shared_value, variable in zip(shared_values, global_variables, strict=True):
            variable.value.copy_(shared_value)
    return report, status


def _wait(worker: int) -> int:
    try:
        return os.waitpid(worker, 0)[1]
    except ChildProcessError:  # somebody else's SIGCHLD handler was faster; the report tells how it ended
        return 0
    except BaseException:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # the interrupt may have ended it, too
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
        raise
