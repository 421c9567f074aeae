"""Which lines of a kernel pass data to each other in shared memory, and which barrier orders them, from a recording."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from course_utils.emulator.recorded import ATOMIC, BARRIER, END, READING, WARP_BARRIER, WITH_ROWS, WRITING
from course_utils.emulator.recording import Recording

CELL = 4  # bytes
MOST_LOOKED_AT = 64  # pairs of steps of the same two lines
MOST_STEPS, MOST_THREADS = 1 << 21, 1 << 10
KINDS = ("write after read", "read after write", "write after write")


@dataclass(frozen=True)
class HandOver:
    """Two lines of the kernel's file in which different threads access the same bytes one after the other, at least one
    of them writing.

    kind: "read after write", "write after read" or "write after write"; above, below: the lines of one function that
    contain both accesses or their calls; first, then: the earliest steps of both; by, by_line: step and line at which a
    barrier between the two opens, −1 and None if there are steps without a barrier between them.
    """

    array: str
    kind: str
    line: int
    then_line: int
    above: int
    below: int
    first: int
    then: int
    by: int
    by_line: int | None


def hand_overs(recording: Recording) -> list[HandOver]:
    """All pairs of lines that pass shared memory from thread to thread, the earliest first. An access in a header is
    one of the line that calls it; accesses of the copy engine and the tensor cores are left out."""
    pairs = _pairs(recording)
    places = recording.columns["steps.place"]
    writes = np.isin(recording.columns["steps.op"], WRITING)
    kind = 2 * writes[pairs[:, 0]] + writes[pairs[:, 2]]  # 1: write after read, 2: read after write, 3: both write
    both = np.stack((places[pairs[:, 0]], places[pairs[:, 2]], recording.columns["steps.array"][pairs[:, 0]], kind))
    shape = (len(recording.places), len(recording.places), len(recording.arrays), 4)
    inside = (both[:2] >= 0).all(0)
    groups: dict[tuple[int, ...], list[int]] = {}  # lines, array and kind → keys
    keys = np.where(inside, np.ravel_multi_index(np.where(inside, both, 0), shape), -1)
    for key in np.unique(keys[inside]):
        first, then, *rest = map(int, np.unravel_index(key, shape))
        own = own_line(recording, first), own_line(recording, then)
        if None not in own:
            groups.setdefault((*own, *same_function(recording, first, then), *rest), []).append(key)
    order = _Order(recording)
    found = []
    for (line, then_line, above, below, array, of_kind), own_keys in groups.items():
        of_group = pairs[np.isin(keys, own_keys)]
        looked_at = of_group[np.linspace(0, len(of_group) - 1, min(len(of_group), MOST_LOOKED_AT)).astype(int)]
        by = [order.between(*map(int, pair)) for pair in looked_at]
        at = by.index(-1) if -1 in by else 0
        first, _, then, _ = map(int, looked_at[at])
        by_line = recording.places[places[by[at]]].line if by[at] >= 0 else None
        name, kind_name = recording.arrays[array].name, KINDS[of_kind - 1]
        opened = order.opened(by[at])
        found.append(HandOver(name, kind_name, line, then_line, above, below, first, then, opened, by_line))
    return sorted(found, key=lambda one: (one.first, one.then))


def own_line(recording: Recording, place: int) -> int | None:
    """The line of the kernel's own file that a place is in or was called from."""
    while place >= 0 and recording.places[place].file != recording.file:
        place = recording.places[place].caller
    return recording.places[place].line if place >= 0 else None


def same_function(recording: Recording, place: int, other: int) -> tuple[int, int]:
    """The lines of one function that contain two places or their calls; 0 if one of them is in another file."""
    chains = []
    for at in (place, other):
        chain = []
        while at >= 0:
            chain.append(at)
            at = recording.places[at].caller
        chains.append(chain[::-1])
    calls = zip(*chains, strict=False)
    both = next((pair for pair in calls if pair[0] != pair[1]), (chains[0][-1], chains[1][-1]))
    lines = [recording.places[at].line if recording.places[at].file == recording.file else 0 for at in both]
    return lines[0], lines[1]


def _pairs(recording: Recording) -> np.ndarray:
    """[n, 4]: step and thread of an access to shared memory, and of the one that it hands its bytes to: from each write
    to the reads before the next write, and from these, and the write itself, to that. Each pair of steps and threads
    once. int64."""
    columns = recording.columns
    shared = np.array([array.space == "shared" for array in recording.arrays])
    lanes = np.unpackbits(np.ascontiguousarray(columns["steps.mask"], np.uint32).view(np.uint8), bitorder="little")
    has_rows = columns["steps.op"] <= WITH_ROWS
    steps, lane = np.nonzero(lanes.reshape(-1, 32) & has_rows[:, None])  # of each row
    array, op, warp = (columns[f"steps.{name}"][steps] for name in ("array", "op", "warp"))
    rows = np.flatnonzero(shared[array] & (array >= 0) & (warp >= 0))
    width = columns["steps.width"][steps[rows]].astype(np.int64)
    cells = -(-width // CELL)
    of_row = np.repeat(rows, cells)
    part = np.arange(cells.sum()) - np.repeat(np.cumsum(cells) - cells, cells)
    cell = columns["lanes.offset"][of_row] // CELL + part
    key = array[of_row].astype(np.int64) << 32 | cell
    by_cell = np.lexsort((of_row, key))
    of_row, key = of_row[by_cell], key[by_cell]
    step, thread = steps[of_row], 32 * warp[of_row].astype(np.int64) + lane[of_row]
    write, reads = np.isin(op[of_row], WRITING), np.isin(op[of_row], READING)
    place = np.arange(len(key))
    last = np.maximum.accumulate(np.where(write, place, -1))
    before = np.concatenate(([-1], last[:-1]))  # the last write before
    after = np.minimum.accumulate(np.where(write, place, len(key))[::-1])[::-1]
    after = np.concatenate((after[1:], [len(key)]))  # the next write
    is_read_then = (after < len(key)) & reads
    first = np.concatenate((before[before >= 0], place[is_read_then]))
    then = np.concatenate((place[before >= 0], after[is_read_then]))
    atomic = op[of_row] == ATOMIC
    real = (key[first] == key[then]) & (thread[first] != thread[then]) & ~(atomic[first] & atomic[then])
    first, then = first[real], then[real]
    # The earliest second step first, and of its partners the latest: between such two little else happens.
    back = recording.steps - step[first]
    packed = ((step[then] * MOST_STEPS + back) * MOST_THREADS + thread[then]) * MOST_THREADS + thread[first]
    packed = np.unique(packed)
    packed, first_thread = np.divmod(packed, MOST_THREADS)
    packed, then_thread = np.divmod(packed, MOST_THREADS)
    then_step, back = np.divmod(packed, MOST_STEPS)
    return np.stack((recording.steps - back, first_thread, then_step, then_thread), axis=1)


class _Order:
    """Which step orders two others."""

    def __init__(self, recording: Recording) -> None:
        columns = self.columns = recording.columns
        self.op, self.warp = columns["steps.op"], columns["steps.warp"]
        self.openings = []  # (step at which it opens, warp → step of its arrival)
        for end in np.flatnonzero(self.op == END):
            begun = int(columns["steps.extra"][end])
            if self.op[begun] != BARRIER:
                continue
            there = np.arange(begun, end)
            number = columns["steps.extra"]
            there = there[(self.op[there] == BARRIER) & (number[there] == number[begun])]
            arrivals = {int(self.warp[step]): int(step) for step in there[::-1]}  # the first of each warp
            self.openings.append((int(end), arrivals))

    def between(self, first: int, thread: int, then: int, then_thread: int) -> int:
        """The step of the second thread's warp at a barrier that orders `then` after `first`; -1: there is none."""
        warp, then_warp = thread // 32, then_thread // 32
        for end, arrivals in self.openings:
            if first < end < then and arrivals.get(warp, -1) > first and then_warp in arrivals:
                return arrivals[then_warp]
        own = np.arange(first + 1, then)
        own = own[self.warp[own] == then_warp]
        if warp == then_warp:
            mask = self.columns["steps.mask"][own]
            both = (mask >> np.uint32(thread % 32)) & (mask >> np.uint32(then_thread % 32)) & 1
            met = own[(self.op[own] == WARP_BARRIER) & (both == 1)]
            if len(met):
                return int(met[0])
        return -1

    def opened(self, by: int) -> int:
        """The step at which the barrier of an arrival opens; of another step, the step itself."""
        return next((end for end, arrivals in self.openings if by in arrivals.values()), by)
