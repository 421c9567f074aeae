"""The recording of one block of a launch: what its warps did, step by step; who wrote a byte, and from what.

A step is a request of one warp: those of its lanes that do the same thing at the same place at the same time. Of each lane
a step that touches memory has a row. Steps stand in the order in which they were done: before step s, memory is what it was
at the launch and what the writes of all earlier steps have made of it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

# What a step does; runtime/recording.h numbers them so. "end": what the step `extra` has begun is over.
OPS = ("read", "write", "atomic", "copy read", "copy write", "barrier", "warp barrier", "product", "wgmma", "copy")
OPS += ("arrive", "wait", "end", "exchange", "phase")
READ, WRITE, ATOMIC, COPY_READ, COPY_WRITE = range(5)
WITH_ROWS = COPY_WRITE  # the ops up to this one have addresses
WRITING = (WRITE, ATOMIC, COPY_WRITE)
READING = (READ, ATOMIC, COPY_READ)

# The columns that steps, rows, words and changes of variables have, with their types.
COLUMNS = {
    "steps.turn": "int32",
    "steps.warp": "int32",
    "steps.place": "int32",
    "steps.op": "uint8",
    "steps.array": "int32",
    "steps.mask": "uint32",
    "steps.width": "int32",
    "steps.first": "int32",
    "steps.extra": "int32",
    "lanes.offset": "int32",
    "words.value": "uint32",
    "arrays.initial": "uint8",
    "changes.step": "int32",
    "changes.thread": "int32",
    "changes.variable": "int32",
    "changes.element": "int32",
    "changes.word": "uint32",
}
DELTA = {"steps.turn", "steps.first", "lanes.offset", "changes.step"}  # these are packed as differences


def row_counts(op: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """How many rows each step has: one for each lane of `mask`, if its op has addresses. int64."""
    lanes = np.unpackbits(np.ascontiguousarray(mask, np.uint32).view(np.uint8)).reshape(-1, 32).sum(1, dtype=np.int64)
    return np.where(op <= WITH_ROWS, lanes, 0)


@dataclass(frozen=True)
class RecordedArray:
    """An array in global or shared memory. `low`, `bytes`: the part of it whose bytes at the launch are kept, which is all
    that the block touches; `dtype`: "bytes" where nobody says how shared memory is used."""

    name: str
    space: str
    dtype: str
    shape: tuple[int, ...]
    itemsize: int
    low: int
    bytes: int


@dataclass(frozen=True)
class RecordedVariable:
    """A local variable of a function: of `count` elements of 32 bits or less, in the form `shape` if it is an array."""

    function: str
    name: str
    type: str
    count: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class RecordedFinding:
    """What the sanitizer finds in the same launch, and the steps of both parties; -1 where they are not in this block."""

    tool: str
    message: str
    line: int | None
    other_line: int | None
    step: int
    other_step: int


class Access(NamedTuple):
    """What one thread did to memory in a step. `thread`: its number in the block; -1: none of it (the copy engine, a tensor
    core, another block). `row`: of the columns of rows."""

    step: int
    thread: int
    row: int


@dataclass(frozen=True, eq=False)
class Recording:
    """One block of a launch. `columns` has what `COLUMNS` lists, as NumPy arrays; `places` are (file, line)."""

    kernel: str
    file: str
    sources: Mapping[str, str]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    index: tuple[int, int, int]
    places: tuple[tuple[str, int], ...]
    arrays: tuple[RecordedArray, ...]
    variables: tuple[RecordedVariable, ...]
    findings: tuple[RecordedFinding, ...]
    columns: Mapping[str, np.ndarray]
    failure: str = ""  # why the launch did not come to its end

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def warps(self) -> int:
        return -(-self.threads // 32)

    @property
    def steps(self) -> int:
        """How many there are."""
        return len(self.columns["steps.op"])

    def __repr__(self) -> str:
        where = f"block {self.index} of {self.kernel}()"
        return f"<recording of {where}: {self.steps:,} steps, {len(self._row_step):,} accesses>"

    def packed(self) -> tuple[dict[str, Any], bytes]:
        """(meta, data): meta is JSON; data are the columns one after the other, little-endian, deflated with zlib."""
        columns, parts = [], []
        for name, dtype in COLUMNS.items():
            values = np.ascontiguousarray(self.columns[name], dtype)
            columns.append({"name": name, "type": dtype, "count": len(values), "delta": name in DELTA})
            if name in DELTA:
                values = np.diff(values, prepend=np.zeros(1, values.dtype))
            parts.append(values.astype(values.dtype.newbyteorder("<")).tobytes())
        meta = {
            "kernel": self.kernel,
            "file": self.file,
            "sources": dict(self.sources),
            "grid": self.grid,
            "block": self.block,
            "index": self.index,
            "threads": self.threads,
            "warps": self.warps,
            "places": self.places,
            "ops": OPS,
            "arrays": [asdict(array) for array in self.arrays],
            "variables": [asdict(variable) for variable in self.variables],
            "findings": [asdict(finding) for finding in self.findings],
            "failure": self.failure,
            "columns": columns,
        }
        return json.loads(json.dumps(meta)), zlib.compress(b"".join(parts))

    # ---- who wrote what

    @cached_property
    def _row_step(self) -> np.ndarray:
        """The step of each row."""
        return np.repeat(np.arange(self.steps), self._row_counts)

    @cached_property
    def _row_counts(self) -> np.ndarray:
        return row_counts(self.columns["steps.op"], self.columns["steps.mask"])

    @cached_property
    def _row_thread(self) -> np.ndarray:
        """The thread of each row; -1: none of the block."""
        bits = np.unpackbits(self.columns["steps.mask"].view(np.uint8), bitorder="little").reshape(-1, 32)
        bits[self.columns["steps.op"] > WITH_ROWS] = 0
        steps, lanes = np.nonzero(bits)
        warps = self.columns["steps.warp"][steps]
        return np.where(warps < 0, -1, 32 * warps + lanes)

    def _rows(self, ops: tuple[int, ...]) -> np.ndarray:
        return np.flatnonzero(np.isin(self.columns["steps.op"], ops)[self._row_step])

    @cached_property
    def _writes(self) -> np.ndarray:
        return self._rows(WRITING)

    def _array(self, array: str | int) -> int:
        names = [one.name for one in self.arrays]
        if isinstance(array, str):
            if array not in names:
                raise ValueError(f"array takes one of {', '.join(names)}, got {array!r}")
            return names.index(array)
        if not 0 <= array < len(names):
            raise ValueError(f"array takes a name, or a number below {len(names)}, got {array!r}")
        return array

    def writer(self, array: str | int, offset: int, step: int | None = None) -> Access | None:
        """Who last wrote the byte at `offset` of an array (its name, or its number in `arrays`) before `step` (None: at
        all); None where it still is what it was at the launch."""
        of_step, rows = self._row_step, self._writes
        first = self.columns["lanes.offset"][rows]
        found = (self.columns["steps.array"][of_step[rows]] == self._array(array)) & (first <= offset)
        found &= offset < first + self.columns["steps.width"][of_step[rows]]
        if step is not None:
            found &= of_step[rows] < step
        hits = rows[found]
        return self._access(hits[-1]) if len(hits) else None

    def _access(self, row: int) -> Access:
        return Access(int(self._row_step[row]), int(self._row_thread[row]), int(row))

    def inputs(self, step: int, thread: int) -> list[Access]:
        """What a thread's write in `step` was made from: the reads in the same statement. Of a copy, what it copied.

        A statement is known by its line alone: the thread's reads at the line of the write, back to its last write there
        or to what it did at another line. What came through a local variable from another line is not seen, nor which of
        several statements in a line it was.
        """
        row = self._row_of(step, thread)
        columns = self.columns
        if columns["steps.op"][step] == COPY_WRITE:
            return self._copied(step, row)
        found: list[Access] = []
        for access in self._before(step, thread):
            op = columns["steps.op"][access.step]
            if columns["steps.place"][access.step] != columns["steps.place"][step]:
                break
            if op in WRITING and access.step != step:
                break
            if op in READING:
                found.append(access)
        return found[::-1]

    def _row_of(self, step: int, thread: int) -> int:
        if not 0 <= step < self.steps:
            raise ValueError(f"step takes a number below {self.steps}, got {step}")
        rows = np.flatnonzero(self._row_step == step)
        mine = rows[self._row_thread[rows] == thread]
        if not len(mine):
            raise ValueError(f"thread {thread} touches no memory in step {step}")
        return int(mine[0])

    def _copied(self, step: int, row: int) -> list[Access]:
        """The source of a copied row: the same lane of the cp.async, or the same row of the step before."""
        columns = self.columns
        thread = self._row_thread[row]
        begun = int(columns["steps.extra"][step])
        if columns["steps.op"][begun] == COPY_READ:
            rows = np.flatnonzero((self._row_step == begun) & (self._row_thread == thread))
            return [self._access(r) for r in rows if columns["steps.width"][begun]]
        if step and columns["steps.op"][step - 1] == COPY_READ and columns["steps.extra"][step - 1] == begun:
            return [self._access(row - columns["steps.first"][step] + columns["steps.first"][step - 1])]
        return []

    def _before(self, step: int, thread: int) -> Iterator[Access]:
        """The accesses of a thread up to a step, the last first."""
        rows = np.flatnonzero(self._row_thread == thread)
        for row in rows[self._row_step[rows] <= step][::-1]:
            yield self._access(row)
