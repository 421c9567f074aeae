"""The recording of one block of a launch: what its warps did, step by step, and who wrote a byte.

A step is a request of one warp: those of its lanes that do the same thing at the same place at the same time. Of each
lane a step that touches memory has a row. Steps stand in the order in which they were done: before step s, memory is
what it was at the launch and what the writes of all earlier steps have made of it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from course_utils.emulator.origins import LastWrites
from course_utils.emulator.recorded import (
    OPS,
    Access,
    RecordedArray,
    RecordedFinding,
    RecordedPlace,
    RecordedVariable,
)

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
    "lanes.into": "int32",  # of a read: the row of the write that it went into, or -1
    "words.value": "uint32",
    "arrays.initial": "uint8",
    "changes.step": "int32",
    "changes.thread": "int32",
    "changes.variable": "int32",
    "changes.element": "int32",
    "changes.word": "uint32",
}
# These are packed as differences.
DELTA = {"steps.turn", "steps.first", "lanes.offset", "lanes.into", "changes.step"}


@dataclass(frozen=True, eq=False)
class Recording:
    """One block of a launch. `columns` has what `COLUMNS` lists, as NumPy arrays. Where g++ is not the
    compiler there are no `variables`."""

    kernel: str
    file: str
    sources: Mapping[str, str]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    index: tuple[int, int, int]
    places: tuple[RecordedPlace, ...]
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
        return f"<recording of {where}: {self.steps:,} steps, {len(self.columns['lanes.offset']):,} accesses>"

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

    def without_variables(self) -> Recording:
        """The same recording without the local variables of its lanes, which take most of the room."""
        empty = {name: values[:0] for name, values in self.columns.items() if name.startswith("changes.")}
        return replace(self, variables=(), columns={**self.columns, **empty})

    # ---- who wrote what

    @cached_property
    def _last_writes(self) -> LastWrites:
        return LastWrites(self.columns)

    def writer(self, array: str | int, offset: int, step: int | None = None) -> Access | None:
        """Who last wrote the byte at `offset` of an array (its name, or its number in `arrays`) before `step` (None: at
        all); None where it still is what it was at the launch. Raises TypeError and ValueError for an array, a byte or
        a step that is not there."""
        row = self._last_writes.before(*self._byte(array, offset), self._before(step))
        return None if row is None else self._access(row)

    def inputs(self, write: Access) -> list[Access]:
        """What went into a write, such as `writer` gives it: what the thread has read since its last write, in the same
        execution of the same line or statement; of a copy, what was copied there, and nothing where that was zeros.

        A number that the thread had in its registers before the statement is not among the reads, nor is what an atomic
        operation finds where it writes. What a statement is, `write_of_each_read` says.
        """
        if not isinstance(write, Access):
            raise TypeError(f"write takes an Access, as writer() gives it, got {write!r}")
        return [self._access(row) for row in np.flatnonzero(self.columns["lanes.into"] == write.row).tolist()]

    def _access(self, row: int) -> Access:
        first, warp = self.columns["steps.first"], self.columns["steps.warp"]
        step = int(np.searchsorted(first, row, side="right")) - 1  # steps without rows stand before the row's own
        lanes = [lane for lane in range(32) if self.columns["steps.mask"][step] >> lane & 1]
        return Access(step, -1 if warp[step] < 0 else 32 * int(warp[step]) + lanes[row - int(first[step])], row)

    def member(self, array: str, offset: int) -> tuple[str, int]:
        """The same byte of an array in shared memory as one of the member in which it lies, if its members are arrays
        of their own here."""
        for one in self.arrays:
            if one.part_of == array and one.begin <= offset < one.begin + one.size:
                return one.name, offset - one.begin
        return array, offset

    def _byte(self, array: str | int, offset: int) -> tuple[int, int]:
        names = [one.name for one in self.arrays]
        if isinstance(array, str):
            if isinstance(offset, (int, np.integer)):
                array, offset = self.member(array, offset)
            if array not in names:
                raise ValueError(f"array takes one of {', '.join(names)}, got {array!r}")
            number = names.index(array)
        else:
            number = _number("array", array, len(names), "a name, or a number")
        return number, _number("offset", offset, self.arrays[number].size, f"a byte of {self.arrays[number].name}")

    def _before(self, step: int | None) -> int:
        return self.steps if step is None else _number("step", step, self.steps + 1, "None, or a number")


def _number(name: str, value: object, end: int, takes: str) -> int:
    """An argument that is an integer from 0 on and below `end`; TypeError or ValueError for another one."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} takes {takes} from 0 to {end - 1}, got {value!r}")
    if not 0 <= value < end:
        raise ValueError(f"{name} takes {takes} from 0 to {end - 1}, got {value}")
    return int(value)
