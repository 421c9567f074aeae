"""At which steps of a recording the two parties of a finding did what it is about: where they touch the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from course_utils.emulator.recorded import (
    ATOMIC,
    BARRIER,
    COPY_READ,
    COPY_WRITE,
    END,
    WAIT,
    WITH_ROWS,
    WRITING,
    row_counts,
)
from course_utils.emulator.sanitizer import Finding
from course_utils.toolchain.errors import Index3

OWN = 16  # of a wait without an mbarrier, `extra` above: for what the warp itself began, which orders nobody else's
MOST_ROWS = 5000  # of a party, that are looked at: the first
IN_FLIGHT, UNPARTED, BEFORE, BEHIND = range(4)  # how two deeds lie to each other, the likeliest of a race first


class _Touches(NamedTuple):
    """Rows of bytes: those from `low` up to `high`, counted through all arrays, are touched in `step`, by what was
    begun in the step `begun`: the same one, if it did not go on by itself. int64, but for `writes`: bool."""

    step: np.ndarray
    begun: np.ndarray
    low: np.ndarray
    high: np.ndarray
    writes: np.ndarray


class FindingSteps:
    """What is looked up once for all findings of a recording."""

    def __init__(
        self,
        columns: Mapping[str, np.ndarray],
        lines: Sequence[int],
        is_shared: Sequence[bool],
        block: Index3,
        index: Index3,
    ) -> None:
        """columns: those of the recording; lines: of each of its places; is_shared: of each array whether it is in
        shared memory; block: its threads in x, y and z; index: which block it is."""
        names = ("op", "warp", "mask", "extra", "width", "array")
        self._op, self._warp, self._mask, self._extra, width, array = (columns[f"steps.{name}"] for name in names)
        self._line = np.array([*lines, -1])[columns["steps.place"]]
        self._block, self._index = block, index
        self._array, self._in_shared = array, np.array([*is_shared, False])[array]
        self._step = np.repeat(np.arange(len(self._op)), row_counts(self._op, self._mask))  # of each row
        lanes = self._mask[:, None] >> np.arange(32, dtype=np.uint32) & 1
        self._lane = np.nonzero(lanes[self._op <= WITH_ROWS])[1]
        self._low = columns["lanes.offset"] + (array.astype(np.int64) << 40)[self._step]
        self._high = self._low + width[self._step]
        ends = np.flatnonzero(self._op == END)
        self._openings = ends[self._op[self._extra[ends]] == BARRIER]
        self._waits = np.flatnonzero((self._op == WAIT) & ((array >= 0) | (self._extra <= OWN)))
        by_itself = (self._op == COPY_WRITE) | ((self._op == COPY_READ) & (self._warp < 0))
        self._begun = np.where(by_itself, self._extra, -1)  # of what goes on by itself the step that started it

    def of(self, finding: Finding) -> tuple[int, int]:
        """The steps of a finding's two parties; -1 where there is none in this block."""
        if finding.block not in (None, self._index):
            its = self._steps(finding.other_line, finding.other_thread) if finding.other_block == self._index else ()
            return (int(its[0]) if len(its) else -1), -1
        if finding.other_block is None:
            mine = self._of_one_party(finding, self._steps(finding.line, finding.thread))
            return (int(mine[0]) if len(mine) else -1), -1
        of_another = finding.other_block != finding.block
        other_line = None if of_another else finding.other_line
        for thread, other in ((finding.thread, finding.other_thread), (None, None)):
            mine, its = self._steps(finding.line, thread), self._steps(other_line, other)
            met = self._meeting(self._touches(mine, thread), self._touches(its, other))
            if met is not None:
                return met
        mine, its = self._steps(finding.line, finding.thread), self._steps(other_line, finding.other_thread)
        return (int(mine[0]) if len(mine) else -1), (int(its[0]) if len(its) else -1)

    def _number(self, thread: Index3) -> int:
        return thread[0] + self._block[0] * (thread[1] + self._block[1] * thread[2])

    def _does(self, thread: Index3) -> np.ndarray:
        """Whether a thread takes part in each step, as a bool array."""
        warp, lane = divmod(self._number(thread), 32)
        return (self._warp == warp) & (self._mask >> np.uint32(lane) & 1 == 1)

    def _steps(self, line: int | None, thread: Index3 | None) -> np.ndarray:
        """The steps of a thread at a line; where there are none, those of all threads there."""
        at_line = (self._line == line) & (self._warp >= 0)
        mine = at_line if thread is None else at_line & self._does(thread)
        return np.flatnonzero(mine if mine.any() else at_line)

    def _of_one_party(self, finding: Finding, steps: np.ndarray) -> np.ndarray:
        """The steps of a thread that its finding may be about. Out of bounds: accesses outside of every array, or any
        access to shared memory if only an index is known. initcheck: reads of bytes that were never written."""
        shared = steps[(self._op[steps] <= ATOMIC) & self._in_shared[steps]]
        if finding.tool == "memcheck" and finding.kind != "misaligned":
            outside = self._outside(steps)
            if not len(outside):  # another thread came there first, and the launch ended
                outside = self._outside(self._steps(finding.line, None))
            if len(outside) or finding.kind != "index out of bounds":
                return outside
            return shared if len(shared) else steps
        if finding.tool == "initcheck":
            unwritten = [step for step in shared.tolist() if not self._is_written(step, finding.thread)]
            return np.array(unwritten) if unwritten else steps
        return steps

    def _outside(self, steps: np.ndarray) -> np.ndarray:
        return steps[(self._op[steps] <= ATOMIC) & (self._array[steps] < 0)]

    def _is_written(self, step: int, thread: Index3 | None) -> bool:
        """Whether somebody has written all bytes that a thread (None: each) reads in a step, before it."""
        mine = self._touches(np.array([step]), thread)
        before = np.isin(self._op, WRITING)[self._step] & (self._step < step)
        low, high = self._low[before], self._high[before]
        return all(_are_covered(*at, low, high) for at in zip(mine.low.tolist(), mine.high.tolist(), strict=True))

    def _touches(self, steps: np.ndarray, thread: Index3 | None) -> _Touches:
        """What a thread (None: each) touches in these steps, and what that touches which it started there."""
        touched = np.isin(self._step, steps) | np.isin(self._begun, steps)[self._step]
        if thread is not None and self._does(thread)[steps].any():
            touched &= (self._lane == self._number(thread) % 32) | (self._warp < 0)[self._step]
        rows = np.flatnonzero(touched)[:MOST_ROWS]
        step = self._step[rows]
        begun = np.where(self._begun[step] < 0, step, self._begun[step])
        return _Touches(step, begun, self._low[rows], self._high[rows], np.isin(self._op[step], WRITING))

    def _meeting(self, mine: _Touches, its: _Touches) -> tuple[int, int] | None:
        """The likeliest pair of steps in which both parties touch the same bytes and one of them writes. Among equally
        likely pairs: the first step of mine, with the nearest of the other party. None: there is no such pair."""
        best = None
        waited = {begun: self._waited(begun) for begun in np.unique(mine.begun).tolist()}
        for step, begun, low, high, writes in zip(*mine, strict=True):
            meets = (its.low < high) & (low < its.high) & (its.writes | writes) & (its.step != step)
            if not meets.any():
                continue
            other, other_begun = its.step[meets], its.begun[meets]
            kinds = np.where(other < step, BEFORE, BEHIND)
            parted = (self._opened(other) < self._opened(begun)) | (other < waited[int(begun)])
            kinds[(other < begun) & ~parted] = UNPARTED
            kinds[((other_begun < begun) & (step < other)) | ((begun < other) & (other < step))] = IN_FLIGHT
            kind = kinds.min()
            near = other[kinds == kind]
            if best is None or kind < best[0]:
                best = kind, int(step), int(near[np.abs(near - step).argmin()])
        return best and best[1:]

    def _waited(self, step: int) -> int:
        """The step with which the warp of a step went on from its last wait before that, or -1."""
        warp = self._warp[step]
        before = self._waits[(self._waits < step) & (self._warp[self._waits] == warp)]
        if not len(before):
            return -1
        own = np.flatnonzero(self._warp == warp)
        return int(own[np.searchsorted(own, before[-1], side="right")])

    def _opened(self, step: np.ndarray) -> np.ndarray:
        """How many barriers of the block opened before a step."""
        return np.searchsorted(self._openings, step)


def _are_covered(low: int, high: int, lows: np.ndarray, highs: np.ndarray) -> bool:
    """Whether the bytes from `low` up to `high` are all in one of the stretches."""
    return all(((lows <= byte) & (byte < highs)).any() for byte in range(low, high))
