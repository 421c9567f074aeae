"""What the sanitizer found, as data and as text. Its page for a notebook, in pages.py, is unknown here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from course_utils.toolchain.errors import Index3

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")  # compute-sanitizer's
Numbers = tuple[int, ...]


@dataclass(frozen=True)
class Event:
    """One of the two events that asynccheck wants to be ordered.

    step: when it was: the number of the access, product or copy in the launch's cluster. what: what happened, in words;
    goes_on: it only started something, which goes on by itself. `line`, `block` and `thread`: whose deed; None if it is
    nobody's (the block ends).
    """

    step: int
    what: str
    goes_on: bool
    line: int | None
    block: Index3 | None
    thread: Index3 | None

    def __str__(self) -> str:
        who = f"block {self.block}, thread {self.thread} " if self.thread is not None else ""
        place = f", line {self.line}" if self.line else ""
        return f"step {self.step:,}{place}: {who}{self.what}{', which goes on by itself' if self.goes_on else ''}"


class Wait(NamedTuple):
    """Threads of a block that wait at one place for good. kind: "stuck at ..."; numbers: as in its `WORDS`; name: of a
    collective."""

    kind: str
    threads: int
    line: int
    numbers: tuple[int, ...]
    name: str


class Defect(NamedTuple):
    """What is wrong, as the runtime gives it (emu_defect in runtime/defects.h)."""

    kind: str
    numbers: tuple[int, ...]
    name: str
    other_name: str
    threads: int
    waits: tuple[Wait, ...]


@dataclass(frozen=True)
class Finding:
    """One defect that a launch ran into, found by one of compute-sanitizer's tools (here: our own of that name), or by
    asynccheck, which NVIDIA does not have.

    `file`, `line` and `source`: the place and its text (None where unknown). `block` and `thread`: the first to run
    into it, as (x, y, z); `count`: how often it happened; `launch`: the first of the watched launches in which it did,
    counted from 0. For a race and for threads that wait at different barriers, `other_line`, `other_source`,
    `other_block` and `other_thread` are the other party; None for a finding with one party. `events`: of asynccheck,
    and of races in its kernels, what happened, the first first; `wants`: what had to stand in between.

    `message` is a sentence, which words.py makes of the fields from `kind` on; programs read the fields.

    kind: one of words.KINDS; "" for what compute-sanitizer found. space: "global" or "shared" memory, "" if it is not
    about memory. is_write, bytes: of the access. by: what made it, if it was no plain load or store (words.BY).
    array, side: of an access out of bounds of global memory, the name of the nearest argument and where the access
    begins: "before" it, "past" its end, or "over", inside of it, but so wide that it reaches over its end. Both are ""
    if no argument is near. alignment: what a misaligned address should be a multiple of. name: of an instruction, a
    collective or a type; other_name: of the collective that another lane is in. numbers: those of the sentence; out of
    bounds, how many bytes away from the array the access begins, which argument that is, and its bytes; if none is
    near, the address. same_warp: whether both parties are of one warp. by_flags: whether flags order threads in this
    file. deed, other_deed: what the parties of asynccheck did (words.DEEDS). threads: how many wait here in a deadlock;
    waits: where all threads of the block wait.
    """

    tool: str
    message: str
    kernel: str
    file: str | None
    line: int | None
    source: str | None
    block: Index3 | None
    thread: Index3 | None
    other_line: int | None = None
    other_source: str | None = None
    other_block: Index3 | None = None
    other_thread: Index3 | None = None
    count: int = 1
    events: tuple[Event, ...] = ()
    wants: str = ""
    launch: int = 0
    kind: str = ""
    space: str = ""
    is_write: bool = False
    bytes: int = 0
    by: str = ""
    array: str = ""
    side: str = ""
    alignment: int = 0
    name: str = ""
    other_name: str = ""
    numbers: Numbers = ()
    same_warp: bool = False
    by_flags: bool = False
    deed: str = ""
    other_deed: str = ""
    threads: int = 0
    waits: tuple[Wait, ...] = ()

    @property
    def is_between_blocks(self) -> bool:
        """Whether the other party is in another block."""
        return self.other_block not in (None, self.block)

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: " if self.line else ""
        who = [f"kernel {self.kernel}"]
        if self.block is not None:
            who.append(f"block {self.block}")
        if self.thread is not None:
            who.append(f"thread {self.thread}")
        if self.other_thread is not None:
            of_block = f" of block {self.other_block}" if self.other_block not in (None, self.block) else ""
            at_line = f" at line {self.other_line}" if self.other_line else ""
            who.append(f"other party: thread {self.other_thread}{of_block}{at_line}")
        if self.count > 1:
            who.append(f"{self.count:,} times")
        lines = [f"{self.tool}: {place}{self.message} [{', '.join(who)}]"]
        shown = {self.line: self.source, self.other_line: self.other_source}
        lines += [f"{line:6d} | {text}" for line, text in sorted((n, t) for n, t in shown.items() if n and t)]
        if self.events:
            first, second = self.events
            lines += [f"  first    {first}", f"  wanted   {self.wants}", f"  then     {second}"]
        return "\n".join(lines)


@dataclass(repr=False)
class SanitizerReport:
    """The findings of the launches inside a `with sanitize()`, launch by launch, ordered by line.

    Findings are errors on the path that was executed. That there is none proves nothing about other inputs.
    `launches` counts the launches that were watched, `dropped` the findings for which there was no room.
    """

    findings: list[Finding] = field(default_factory=list)
    launches: int = 0
    dropped: int = 0

    def __str__(self) -> str:
        launches = f"{self.launches} launch{'es' if self.launches != 1 else ''}"
        if not self.findings:
            return f"no finding in {launches} (on these inputs)"
        number = len(self.findings)
        head = f"{number} finding{'s' if number != 1 else ''} in {launches}"
        lost = [f"... and {self.dropped} more, for which there was no room"] if self.dropped else []
        return "\n".join([head, *map(str, self.findings), *lost])

    __repr__ = __str__
