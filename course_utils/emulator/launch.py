"""One launch, seen from the caller: the settings, the request to the launcher process, and its end."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from course_utils.emulator.frames import Function
from course_utils.emulator.launcher import MESSAGE_BYTES
from course_utils.emulator.memory import Array, DeviceMemory, Mapped
from course_utils.emulator.raw_recording import RECORDING_BYTES, RawRecording
from course_utils.emulator.report import FINISHED, REPORT_BYTES, Report, printed_text
from course_utils.emulator.trace_results import MOST_ARRAYS, RESULTS_BYTES, TraceResults
from course_utils.emulator.waiting import Progress
from course_utils.emulator.watching import Watch
from course_utils.toolchain.errors import Index3


def _threads() -> int:
    """The number of host threads: OMP_NUM_THREADS, as for PyTorch; else one for each core that this process may use."""
    said = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(said) if said.isdigit() and int(said) else len(os.sched_getaffinity(0))


ORDERS = ("late", "early", "random")  # as emu_order in runtime/launch.h has them,
THREAD_ORDERS = ("forward", "reverse", "random")  # and emu_thread_order


@dataclass(frozen=True)
class Settings:
    """`time_limit` of a launch in seconds; `threads`: over how many OS threads its blocks are spread; `order`: when the
    asynchronous work of an sm_90a kernel is done; `thread_order`: which of a block's threads goes on; `seed` of both;
    `exact_sums`: whether wgmma adds exactly, where silicon cuts terms and sums to a few bits (docs/validation.md)."""

    time_limit: float = 60.0
    threads: int = field(default_factory=_threads)
    order: str = ORDERS[0]
    thread_order: str = THREAD_ORDERS[0]
    seed: int = 0
    exact_sums: bool = False


_settings = Settings()


def settings() -> Settings:
    """The settings in force."""
    return _settings


def patience() -> float:
    """How many seconds of computing a launch that is recorded has to come further: to a step, or to another block."""
    return max(_settings.time_limit / 20, min(_settings.time_limit, 1.0))


@contextlib.contextmanager
def configure(
    *,
    time_limit: float | None = None,
    threads: int | None = None,
    order: str | None = None,
    thread_order: str | None = None,
    seed: int | None = None,
    exact_sums: bool | None = None,
) -> Iterator[None]:
    """Sets the emulator's time limit (seconds per launch) or number of OS threads for the launches inside a `with`.

    order: when the products (wgmma) and copies (cp.async.bulk) of a kernel for sm_90a are done, a choice that a GPU
    has, too: "late", as late as the rules allow; "early", at once; "random", some of them at once and the others in any
    order, another one for each seed. A race shows in the values of one of them, as a rule.

    thread_order: a thread of a block runs on until it has to wait, at a barrier, for its warp or in a spin loop. Then
    the next one goes on, in "forward" order, or in "reverse", the last thread first, or at "random", by the seed. A
    kernel that is right gives the same result in each, but for what adds floats by atomics and what prints. Blocks
    begin by ascending numbers in any case: kernels that wait for earlier blocks rely on that, as on a GPU.

    exact_sums: wgmma adds exactly, and not as silicon does.
    """
    global _settings
    if time_limit is not None and not (isinstance(time_limit, (int, float)) and 0 < time_limit < math.inf):
        raise ValueError(f"time_limit takes a positive, finite number of seconds, got {time_limit!r}")
    if threads is not None and not (isinstance(threads, int) and threads >= 1):
        raise ValueError(f"threads takes a positive int, got {threads!r}")
    if order is not None and order not in ORDERS:
        raise ValueError(f"order takes one of {', '.join(ORDERS)}, got {order!r}")
    if thread_order is not None and thread_order not in THREAD_ORDERS:
        raise ValueError(f"thread_order takes one of {', '.join(THREAD_ORDERS)}, got {thread_order!r}")
    if seed is not None and not (isinstance(seed, int) and 0 <= seed < 2**32):
        raise ValueError(f"seed takes an int from 0 to 2**32 - 1, got {seed!r}")
    if exact_sums is not None and not isinstance(exact_sums, bool):
        raise ValueError(f"exact_sums takes True or False, got {exact_sums!r}")
    before = _settings
    given = {
        "time_limit": time_limit,
        "threads": threads,
        "order": order,
        "thread_order": thread_order,
        "seed": seed,
        "exact_sums": exact_sums,
    }
    _settings = replace(before, **{name: value for name, value in given.items() if value is not None})
    try:
        yield
    finally:
        _settings = before


# ---- the launcher process


INTERRUPT_SECONDS = 0.1  # until an interrupt is noticed, at most


class _LauncherEnded(Exception):
    """The launcher is gone, and its worker with it: killed by the system or by hand."""


class _Launcher:
    """The process of launcher.py: one for each process that launches kernels, started at the first launch."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        script = Path(__file__).with_name("launcher.py")
        with theirs:
            # In a session of its own: an interrupt is for the notebook, which then stops the launcher and its worker.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(script), str(theirs.fileno()), str(self.owner)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def send(self, request: dict[str, Any], file: int) -> None:
        socket.send_fds(self._connection, [pickle.dumps(request)], [file])

    def answer(self, meanwhile: Callable[[], None]) -> tuple[int, int] | OSError:
        """The worker's exit status and the address of the kernel's library, or what the launcher could not have."""
        # An interrupt that another thread received does not wake this one: it looks for itself.
        while not select.select([self._connection], [], [], INTERRUPT_SECONDS)[0]:
            meanwhile()
        message = self._connection.recv(MESSAGE_BYTES)
        if not message:
            raise _LauncherEnded
        return pickle.loads(message)

    def stop(self) -> None:
        """Ends the launcher and its worker."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._connection.close()
        self._process.wait()


_launcher: _Launcher | None = None
_one_at_a_time = threading.Lock()


def _exchange(request: dict[str, Any], file: int, meanwhile: Callable[[], None]) -> tuple[int, int]:
    global _launcher
    with _one_at_a_time:
        if _launcher is None or _launcher.owner != os.getpid():  # a forked child must not use its parent's
            _launcher = _Launcher()
        try:
            try:
                _launcher.send(request, file)
            except (BrokenPipeError, ConnectionResetError):  # somebody ended it since the last launch
                _launcher = _Launcher()
                _launcher.send(request, file)
            answer = _launcher.answer(meanwhile)
        except BaseException as error:  # whatever a signal handler raises: this launcher's answer would come too late
            _launcher.stop()
            _launcher = None
            if isinstance(error, _LauncherEnded):
                return signal.SIGKILL, 0
            raise
    if isinstance(answer, OSError):
        raise answer
    return answer


# ---- a launch


@dataclass
class Global:
    """A __device__ or __constant__ variable: its name in the library, and its value between launches (uint8).

    `first` is what the library starts with in this process; None once a launch has brought a value back. A variable
    that still has it keeps what the library starts with in the worker: pointers differ between the two.
    """

    name: str
    value: torch.Tensor
    first: torch.Tensor | None

    @property
    def untouched(self) -> bool:
        return self.first is not None and torch.equal(self.value, self.first)


class Launch(NamedTuple):
    """What a caller asks for: a kernel by its name, and what it is launched with."""

    kernel: str
    grid: Index3
    block: Index3
    cluster: Index3
    arguments: Sequence[Array | Mapped | bytes]
    shared_mem: int


class Ended(NamedTuple):
    """How a launch ended. `load_address` is where the worker had the kernel's library; `traced`: None if unwatched, and
    `recorded` if not recorded."""

    report: Report
    exit_status: int
    load_address: int
    traced: TraceResults | None
    recorded: RawRecording | None


def front_bytes(global_variables: list[Global], watch: Watch | None) -> int:
    """The room that `run` needs at the front of the device memory: report, variables, what a trace leaves and takes."""
    if not watch:
        return _results_offset(global_variables)
    return _recording_offset(global_variables, watch) + (RECORDING_BYTES if watch.record else 0)


def _results_offset(global_variables: list[Global]) -> int:
    return -(-(REPORT_BYTES + sum(variable.value.numel() for variable in global_variables)) // 64) * 64


def _recording_offset(global_variables: list[Global], watch: Watch) -> int:
    blocks_end = _results_offset(global_variables) + RESULTS_BYTES + 8 * len(watch.blocks) + 8
    return -(-blocks_end // 4096) * 4096


def run(
    runtime: Path,
    library: Path,
    asked: Launch,
    *,
    kernel: int,
    dynamic_shared_base: int,
    global_variables: list[Global],
    global_offsets: list[int],
    memory: DeviceMemory,
    watch: Watch | None,
    statics: list[tuple[int, int, bool]],
    functions: Sequence[Function] = (),
    statements: Sequence[int] = (),
) -> Ended:
    """Runs a launch in a worker process and waits for its end.

    `kernel`, `dynamic_shared_base` and `global_offsets` are offsets in the library. The values of `global_variables` go
    to the worker; `keep` brings them back. `watch` says what a traced library reports, `statics` where its shared
    variables are, `functions` whose variables are recorded, `statements` what `RawRecording` takes. An interrupt
    (KeyboardInterrupt) ends the worker.
    """
    if watch and len(memory.spans) > MOST_ARRAYS:
        raise ValueError(f"the sanitizer and the profiler take up to {MOST_ARRAYS} tensors, got {len(memory.spans)}")
    results_offset = _results_offset(global_variables)
    recording_offset = _recording_offset(global_variables, watch) if watch and watch.record else 0
    report = Report.from_buffer(memory.front)
    for shared_value, variable in zip(_shared_values(memory, global_variables), global_variables, strict=True):
        shared_value.copy_(variable.value)
    request = {
        "runtime": str(runtime),
        "library": str(library),
        "kernel": kernel,
        "dynamic_shared_base": dynamic_shared_base,
        "globals": [
            (offset, variable.value.numel(), variable.untouched)
            for offset, variable in zip(global_offsets, global_variables, strict=True)
        ],
        "grid": asked.grid,
        "block": asked.block,
        "cluster": asked.cluster,
        "arguments": [_value(argument, memory) for argument in asked.arguments],
        "shared_mem": asked.shared_mem,
        # Recorded blocks run in order: else a crash in another one would end the recording at any step.
        "threads": 1 if watch and watch.record else _settings.threads,
        "order": ORDERS.index(_settings.order),
        "thread_order": THREAD_ORDERS.index(_settings.thread_order),
        "seed": _settings.seed,
        "time_limit": _settings.time_limit,
        "exact_sums": _settings.exact_sums,
        "front_bytes": memory.front_bytes,
        "report_bytes": REPORT_BYTES,
        "reserved": memory.reserved,
        "regions": memory.mappings,
        "tracing": watch and _tracing(watch, memory, statics, results_offset, recording_offset),
    }
    if watch and watch.blocks:
        chosen = torch.frombuffer(memory.front, dtype=torch.int64, offset=results_offset + RESULTS_BYTES)
        chosen[: len(watch.blocks)] = torch.tensor(watch.blocks)
    recorded = None
    if watch and watch.record:
        recorded = RawRecording(memory.front, recording_offset, watch.record, functions, statements, patience())
    with contextlib.closing(Progress(asked.kernel, math.prod(asked.grid), lambda: report.blocks_done)) as progress:
        exit_status, load_address = _exchange(request, memory.file, progress.look)
    traced = TraceResults.from_buffer(memory.front, results_offset) if watch else None
    return Ended(report, exit_status, load_address, traced, recorded)


def _value(argument: Array | Mapped | bytes, memory: DeviceMemory) -> bytes:
    """An argument as the kernel takes it."""
    if isinstance(argument, Array):
        return memory.pointer(argument.tensor).to_bytes(8, "little")
    return argument.encode(memory.pointer(argument.array.tensor)) if isinstance(argument, Mapped) else argument


def _tracing(
    watch: Watch,
    memory: DeviceMemory,
    statics: list[tuple[int, int, bool]],
    results_offset: int,
    recording_offset: int,
) -> dict[str, Any]:
    """What the worker needs to know of what it reports, and where in the device memory that goes."""
    return {
        "sanitize": watch.sanitize,
        "profile": watch.profile,
        "in_step": watch.in_step,
        "hopper": watch.hopper,
        "fences": watch.fences,
        "block_count": len(watch.blocks),
        "arrays": memory.spans,
        "statics": statics,
        "results_offset": results_offset,
        "blocks_offset": results_offset + RESULTS_BYTES,
        "recording_offset": recording_offset,
        "preferred": watch.preferred,
    }


def keep(report: Report, memory: DeviceMemory, global_variables: list[Global]) -> None:
    """Keeps what a launch leaves besides its arrays: what the kernel printed goes to sys.stdout, and the values of
    `global_variables` come back, unless the launch has failed."""
    sys.stdout.write(printed_text(report))
    if report.outcome == FINISHED:
        for shared_value, variable in zip(_shared_values(memory, global_variables), global_variables, strict=True):
            variable.value.copy_(shared_value)
            variable.first = None


def _shared_values(memory: DeviceMemory, global_variables: list[Global]) -> Sequence[torch.Tensor]:
    """Where the worker has the values of the variables, one after the other behind its report."""
    sizes = [variable.value.numel() for variable in global_variables]
    return torch.frombuffer(memory.front, dtype=torch.uint8, offset=REPORT_BYTES)[: sum(sizes)].split(sizes)
