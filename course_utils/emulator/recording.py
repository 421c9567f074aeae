"""The recording of one block of a launch: what its warps did, step by step; who wrote a byte, and from what.

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

from course_utils.emulator.origins import Origins, Reads
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
    "words.value": "uint32",
    "arrays.initial": "uint8",
    "changes.step": "int32",
    "changes.thread": "int32",
    "changes.variable": "int32",
    "changes.element": "int32",
    "changes.word": "uint32",
}
DELTA = {"steps.turn", "steps.first", "lanes.offset", "changes.step"}  # these are packed as differences


@dataclass(frozen=True, eq=False)
class Recording:
    """One block of a launch. `columns` has what `COLUMNS` lists, as NumPy arrays. Where g++ is not the
    compiler there are no `variables`; `left_out` are those that are known by their names alone."""

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
    left_out: tuple[RecordedVariable, ...] = ()
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
            "arrays": [
                asdict(array) | {"may_stay": may_stay}
                for array, may_stay in zip(self.arrays, self._origins.may_stay, strict=True)
            ],
            "names": self._origins.names,
            "sets": self._origins.sets,
            "statements": self._origins.statement_of,
            "lost": self._origins.is_lost,
            "variables": [
                asdict(variable) | made for variable, made in zip(self.variables, self._origins.made, strict=False)
            ],
            "unrecorded": {"at": self._origins.others, "made": self._origins.made[len(self.variables) :]},
            "findings": [asdict(finding) for finding in self.findings],
            "failure": self.failure,
            "columns": columns,
        }
        return json.loads(json.dumps(meta)), zlib.compress(b"".join(parts))

    def without_variables(self) -> Recording:
        """The same recording without the local variables of its lanes, which take most of the room. Of those that may
        carry a number from memory it keeps the names, so that it is known where a way is lost."""
        empty = {name: values[:0] for name, values in self.columns.items() if name.startswith("changes.")}
        left_out = tuple(self._origins.carriers)
        return replace(self, variables=(), left_out=left_out, columns={**self.columns, **empty})

    # ---- who wrote what

    @cached_property
    def _origins(self) -> Origins:
        return Origins(self.columns, self.places, self.arrays, self.variables, self.left_out, self.sources, self.kernel)

    def writer(self, array: str | int, offset: int, step: int | None = None) -> Access | None:
        """Who last wrote the byte at `offset` of an array (its name, or its number in `arrays`) before `step` (None: at
        all); None where it still is what it was at the launch. Raises TypeError and ValueError for an array, a byte or
        a step that is not there."""
        return self._origins.writer(*self._byte(array, offset), self._before(step))

    def inputs(self, step: int, thread: int) -> Reads:
        """What a thread's write in `step` was made from: the reads of the same statement, and those behind the local
        variables that it names, the conditions on which it is executed, and all from which these may be made. Of a
        copy, what it copied.

        Statements are known by their lines, and variables by their names there, so that this is rather too much than
        too little: all elements of an array are taken, and all lanes that a shuffle or a product joins, and of a
        variable all that it held before. What comes by way of registers that the recording leaves out (`left_out`) is
        not among them: `is_all` of the answer, which is a list, is False then, and where it is not known how a write
        was made. Missed without a word is what names do not show, such as what stands in a macro within a macro, or is
        set through a pointer within a struct. A write that was not done comes from nothing, but where the kernel itself
        decides by what it has just read whether it writes to an array: then `is_all` of `origins` is False.
        """
        return self._origins.inputs(self._access_of(step, thread))

    def origins(self, array: str | int, offset: int, step: int | None = None) -> Reads:
        """Where a byte comes from, through all that this block did: the reads from global memory that nobody in the
        block had written before. Errors, `is_all`, and what it misses, as of `inputs`."""
        return self._origins.first_reads(*self._byte(array, offset), self._before(step))

    def _byte(self, array: str | int, offset: int) -> tuple[int, int]:
        names = [one.name for one in self.arrays]
        if isinstance(array, str):
            if array not in names:
                raise ValueError(f"array takes one of {', '.join(names)}, got {array!r}")
            number = names.index(array)
        else:
            number = _number("array", array, len(names), "a name, or a number")
        return number, _number("offset", offset, self.arrays[number].size, f"a byte of {self.arrays[number].name}")

    def _before(self, step: int | None) -> int:
        return self.steps if step is None else _number("step", step, self.steps + 1, "None, or a number")

    def _access_of(self, step: int, thread: int) -> Access:
        step = _number("step", step, self.steps, "a number")
        thread = _number("thread", thread, self.threads, "a number", first=-1)
        rows = self._origins.rows_of(step)
        mine = [row for row in rows if self._origins.thread_of[row] == thread]
        if not mine:
            raise ValueError(f"thread {thread} touches no memory in step {step}")
        return Access(step, thread, mine[0])


def _number(name: str, value: object, end: int, takes: str, *, first: int = 0) -> int:
    """An argument that is an integer from `first` on and below `end`; TypeError or ValueError for another one."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} takes {takes} from {first} to {end - 1}, got {value!r}")
    if not first <= value < end:
        raise ValueError(f"{name} takes {takes} from {first} to {end - 1}, got {value}")
    return int(value)
