"""Where the bytes of a recording come from: which write made a byte, and which reads went into that write.

Both are read off the steps. A number that a thread keeps in registers from one statement to another is not followed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from course_utils.emulator.recorded import (
    ATOMIC,
    COPY_READ,
    COPY_WRITE,
    READ,
    WRITE,
    WRITING,
    RecordedPlace,
    row_counts,
)
from course_utils.toolchain.source import blank_comments

HEAD = re.compile(r"(\} *)?(else\b *)?(if|for|while|switch|do|else)\b")

Columns = Mapping[str, np.ndarray]
Lanes = tuple[np.ndarray, np.ndarray, np.ndarray]  # as `_lanes` gives them


def write_of_each_read(columns: Columns, places: Sequence[RecordedPlace], sources: Mapping[str, str]) -> np.ndarray:
    """For each row that reads, the row of the write that it went into; -1 where there is none. int32 [rows].

    A read of a thread goes into the thread's next write if both belong to one execution of one statement: from the read
    to the write the thread is in that statement, or in functions that the statement calls. A statement is what stands
    in the lines up to one that ends in `;`, `{` or `}`, or with the head of a loop or condition; two statements in one
    line are not told apart. Where a struct is stored piece by piece, the reads go into the
    first piece. A read of a copy goes into the copy's write of the same piece.
    """
    into = np.full(len(columns["lanes.offset"]), -1, np.int32)
    lanes = _lanes(columns)
    for reads, writes in (_in_statements(columns, lanes, places, sources), _in_copies(columns, lanes)):
        into[reads] = writes
    return into


def _in_statements(
    columns: Columns, lanes: Lanes, places: Sequence[RecordedPlace], sources: Mapping[str, str]
) -> tuple[np.ndarray, np.ndarray]:
    """Rows that threads read, and the row that each went into."""
    steps, threads, rows = lanes
    own = np.flatnonzero((threads >= 0) & (columns["steps.op"][steps] != COPY_WRITE))  # a copy lands at any time
    own = own[np.argsort(threads[own], kind="stable")]  # one thread after the other, each in its order
    steps, threads, rows = steps[own], threads[own], rows[own]
    op, place = columns["steps.op"][steps], columns["steps.place"][steps].astype(np.int64) + 1  # 0: no place
    number, last = np.arange(len(own)), len(own) - 1
    is_write = np.isin(op, (WRITE, ATOMIC))
    writes = np.append(np.where(is_write, number, last), last)
    next_write = np.minimum.accumulate(writes[::-1])[::-1][1:]  # of each its number; the last where there is none
    pairs, pair_of = np.unique(place * (len(places) + 1) + place[next_write], return_inverse=True)
    statements = _statements(places, sources)
    is_within = [_is_within(*divmod(pair, len(places) + 1), places, statements) for pair in pairs.tolist()]
    is_inside = np.array(is_within, bool)[pair_of] & (threads == threads[next_write])
    outside = np.concatenate([[0], np.cumsum(~is_inside)])  # how many lie outside of the statement, before each
    is_read = np.isin(op, (READ, ATOMIC)) & (columns["steps.array"][steps] >= 0)
    has_write = is_write[next_write] & (next_write > number) & (outside[next_write] == outside[number])
    reads = is_read & has_write
    return rows[reads], rows[next_write[reads]]


def _in_copies(columns: Columns, lanes: Lanes) -> tuple[np.ndarray, np.ndarray]:
    """Rows that copies read, and the row that each went into. Zeros that a copy writes it has not read."""
    steps, threads, rows = lanes
    op = columns["steps.op"][steps]
    is_async = (op == COPY_READ) & (threads >= 0)  # the read of a cp.async is the step in which it begins
    copy = np.where(is_async, steps, columns["steps.extra"][steps])

    def pieces(kind: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows of copies in their order, and a key of copy and piece: of a cp.async the thread is the piece."""
        of = np.flatnonzero(op == kind)
        of = of[np.argsort(copy[of], kind="stable")]
        _, first, copies = np.unique(copy[of], return_index=True, return_inverse=True)
        piece = np.where(threads[of] >= 0, threads[of], np.arange(len(of)) - first[copies])
        return of, copy[of].astype(np.int64) << 32 | piece

    (reads, read_keys), (writes, write_keys) = pieces(COPY_READ), pieces(COPY_WRITE)
    _, of_reads, of_writes = np.intersect1d(read_keys, write_keys, assume_unique=True, return_indices=True)
    reads, writes = reads[of_reads], writes[of_writes]
    has_read = columns["steps.width"][steps[reads]] > 0
    return rows[reads[has_read]], rows[writes[has_read]]


def _lanes(columns: Columns) -> Lanes:
    """Of each lane of each step, in order: the step, the thread (-1: none of the block), and the row, or that of the
    lane before where the step has no rows. int64 each."""
    mask = np.ascontiguousarray(columns["steps.mask"], np.uint32)
    steps, lane = np.nonzero(np.unpackbits(mask.view(np.uint8), bitorder="little").reshape(-1, 32))
    warp = columns["steps.warp"][steps].astype(np.int64)
    has_row = row_counts(columns["steps.op"], mask)[steps] > 0
    return steps, np.where(warp < 0, -1, 32 * warp + lane), np.cumsum(has_row) - 1


def _statements(places: Sequence[RecordedPlace], sources: Mapping[str, str]) -> list[tuple[str, int, int]]:
    """Of each place file, first line and caller of the statement in which it lies."""
    first = {file: _first_lines(text) for file, text in sources.items()}
    return [(place.file, first[place.file][place.line], place.caller) for place in places]


def _first_lines(text: str) -> list[int]:
    """Of each line, counted from 1 (line 0 is before them), the first line of the statement that it is part of."""
    lines, is_over = [0], True
    for number, line in enumerate(blank_comments(text).split("\n"), start=1):
        lines.append(number if is_over else lines[-1])
        if code := line.strip():
            is_head = bool(HEAD.match(code)) and code.endswith((")", "else", "do"))
            is_over = is_head or code.startswith("#") or code.endswith((";", "{", "}"))
    return lines


def _is_within(
    place: int, around: int, places: Sequence[RecordedPlace], statements: Sequence[tuple[str, int, int]]
) -> bool:
    """Whether a place lies in the statement of another one, or in what is called there. Counted from 1; 0: nowhere."""
    while around and place:
        if statements[place - 1] == statements[around - 1]:
            return True
        place = places[place - 1].caller + 1
    return False


class LastWrites:
    """Looks up who wrote a byte last."""

    def __init__(self, columns: Columns) -> None:
        counts = row_counts(columns["steps.op"], columns["steps.mask"])
        self._step_of = np.repeat(np.arange(len(counts)), counts)
        rows = np.flatnonzero(np.isin(columns["steps.op"], WRITING)[self._step_of])
        steps = self._step_of[rows]
        offset, width = columns["lanes.offset"][rows].astype(np.int64), columns["steps.width"][steps].astype(np.int64)
        self._unit = int(np.gcd.reduce(np.concatenate([offset, width, [16]])))  # bytes that are always written together
        units = width // self._unit
        within = np.arange(units.sum()) - np.repeat(np.cumsum(units) - units, units)
        number = np.repeat(offset // self._unit, units) + within
        keys = np.repeat(columns["steps.array"][steps].astype(np.int64), units) << 40 | number
        order = np.argsort(keys, kind="stable")
        self._keys, self._rows = keys[order], np.repeat(rows, units)[order]

    def before(self, array: int, offset: int, step: int) -> int | None:
        """The row of the last write of a byte before a step; None where there is none."""
        key = array << 40 | offset // self._unit
        low, high = np.searchsorted(self._keys, key), np.searchsorted(self._keys, key, side="right")
        count = np.searchsorted(self._step_of[self._rows[low:high]], step)
        return int(self._rows[low + count - 1]) if count else None
