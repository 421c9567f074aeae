"""What watches launches: clients of one interface. tracing.py has the sanitizer, the profiler and threads that go in
step, recorder.py the recorder.

A client is open for as long as its `with`. Each launch asks all that are open how it is to be watched, and hands them
what it has left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from course_utils.emulator.debug_lines import DebugLines
from course_utils.emulator.frames import Function
from course_utils.emulator.memory import DeviceMemory
from course_utils.emulator.raw_recording import RawRecording
from course_utils.emulator.sanitizer import Finding
from course_utils.emulator.struct_members import Member
from course_utils.emulator.trace_results import TraceResults
from course_utils.toolchain.errors import Index3
from course_utils.toolchain.source import line_text

Place = tuple[str, int] | None


@dataclass(frozen=True)
class Watch:
    """What one launch is watched for, and by which clients; `blocks` are linear indices, none means all."""

    sanitize: bool = False
    profile: bool = False
    blocks: tuple[int, ...] = ()
    in_step: bool = False
    hopper: bool = False  # the kernel is for sm_90a
    fences: bool = False  # something in its file is a fence
    record: int = 0  # accesses of threads of the one block in `blocks` to be recorded, at most; 0: none
    preferred: Index3 | None = None  # of which a finding tells if it is in several; None: the first of them
    clients: tuple[Client, ...] = ()


@dataclass(frozen=True)
class LaunchTrace:
    """What a watched launch has left. `sources`: the text of each file by its name. Of a recorded launch alone:
    `recorded`, its `statics` (name, bytes and members of each __shared__ variable), the `functions` whose variables
    were recorded, the `entries` (from where to where the code goes that calls kernels), the sanitizer's `findings`."""

    kernel: str
    file: str
    grid: Index3
    block: Index3
    shared_mem: int
    watch: Watch
    results: TraceResults
    memory: DeviceMemory
    lines: DebugLines
    sources: Mapping[str, str]
    recorded: RawRecording | None = None
    statics: Sequence[tuple[str, int, Member | None]] = ()
    functions: Sequence[Function] = ()
    entries: Sequence[tuple[int, int]] = ()
    findings: tuple[Finding, ...] = ()

    def place(self, counter: int) -> Place:
        """(file, line) of a program counter; None where it is in no source."""
        return self.lines.locate(counter)

    def text(self, place: Place) -> str | None:
        """The line there."""
        return line_text(self.sources.get(place[0], ""), place[1]) if place else None


class Client:
    """Watches the launches inside a `with watching(client)`."""

    alone = False  # whether launches are its own: other clients that are open see none

    def conflict(self, other: Client) -> str:
        """Why it cannot be opened while `other` is open; "" if it can."""
        return ""

    def watch(self, grid: Index3, kernel: str) -> Watch | None:
        """How it wants a launch to be watched; None: not at all. Raises ValueError for a block that is not there."""
        raise NotImplementedError

    def refusal(self, watch: Watch) -> str:
        """Why a kernel for sm_90a cannot be watched as all clients want together; "" if it can."""
        return ""

    def take(self, trace: LaunchTrace) -> None:
        """Takes what a launch has left."""


_clients: list[Client] = []


@contextlib.contextmanager
def watching(client: Client) -> Iterator[None]:
    """Has a client watch the launches inside a `with`. Raises ValueError where it cannot beside those that are open."""
    for other in _clients:
        if why := client.conflict(other):
            raise ValueError(why)
    _clients.append(client)
    try:
        yield
    finally:
        _clients.remove(client)


def active() -> bool:
    """Whether launches belong to the emulator in any case."""
    return bool(_clients)


def watch(grid: Index3, kernel: str) -> Watch | None:
    """How to watch a launch of this grid now; None: not at all."""
    clients = next(([client] for client in _clients if client.alone), _clients)
    wanted = {client: one for client in clients if (one := client.watch(grid, kernel)) is not None}
    if not wanted:
        return None
    return replace(
        next(iter(wanted.values())),
        sanitize=any(one.sanitize for one in wanted.values()),
        profile=any(one.profile for one in wanted.values()),
        clients=tuple(wanted),
    )


def linear_index(block: Index3, grid: Index3) -> int | None:
    """The number of a block in the grid; None where the grid does not have it."""
    inside = all(index < size for index, size in zip(block, grid, strict=True))
    return block[0] + grid[0] * (block[1] + grid[1] * block[2]) if inside else None
