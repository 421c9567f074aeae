"""The mirror of runtime/recording.h: what a recorded launch takes, and what it leaves behind."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

import numpy as np

from course_utils.emulator.frames import Function
from course_utils.emulator.recorded import COPY_READ, COPY_WRITE, END, PHASE, WRITE, WRITING, row_counts

MOST_FUNCTIONS, MOST_VARIABLES, MOST_SITES, MOST_CALLS, MOST_STATEMENTS = 1024, 16 << 10, 1024, 64 << 10, 256 << 10
MOST_STEPS, MOST_ROWS, MOST_CHANGES, MOST_WORDS = 4 << 20, 16 << 20, 16 << 20, 32 << 20
IS_SITE = 1 << 31
IDLE = 2  # of emu_full in recording.h
WRITE_BEHIND = PHASE + 1  # an op of the worker's alone: a write that belongs behind the step `extra`


class _Function(ctypes.Structure):
    _fields_ = [
        ("start", ctypes.c_uint32),
        ("end", ctypes.c_uint32),
        ("low", ctypes.c_int32),
        ("high", ctypes.c_int32),
        ("first", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("returns", ctypes.c_uint32),
    ]


class _Variable(ctypes.Structure):
    _fields_ = [
        ("offset", ctypes.c_int32),
        ("bytes", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("is_parameter", ctypes.c_uint32),
        ("is_pointer", ctypes.c_uint32),
    ]


class _Site(ctypes.Structure):
    _fields_ = [("line", ctypes.c_int32), ("file", ctypes.c_char * 252)]


class _Call(ctypes.Structure):
    _fields_ = [("counter", ctypes.c_uint32), ("caller", ctypes.c_uint32), ("depth", ctypes.c_uint32)]


class _Step(ctypes.Structure):
    _fields_ = [
        ("turn", ctypes.c_uint32),
        ("warp", ctypes.c_int32),
        ("place", ctypes.c_uint32),
        ("array", ctypes.c_int32),
        ("mask", ctypes.c_uint32),
        ("width", ctypes.c_uint32),
        ("first", ctypes.c_uint32),
        ("extra", ctypes.c_int32),
        ("op", ctypes.c_uint32),
    ]


class _Change(ctypes.Structure):
    _fields_ = [
        ("step", ctypes.c_uint32),
        ("thread", ctypes.c_uint32),
        ("variable", ctypes.c_uint32),
        ("element", ctypes.c_uint32),
        ("word", ctypes.c_uint32),
    ]


class _Recording(ctypes.Structure):
    _fields_ = [
        ("most_rows", ctypes.c_uint32),
        ("full", ctypes.c_uint32),
        ("step_count", ctypes.c_uint32),
        ("row_count", ctypes.c_uint32),
        ("word_count", ctypes.c_uint32),
        ("site_count", ctypes.c_uint32),
        ("call_count", ctypes.c_uint32),
        ("change_count", ctypes.c_uint32),
        ("function_count", ctypes.c_uint32),
        ("statement_count", ctypes.c_uint32),
        ("patience", ctypes.c_double),
        ("block_count", ctypes.c_uint32),
        ("padding", ctypes.c_uint32),
        ("functions", _Function * MOST_FUNCTIONS),
        ("variables", _Variable * MOST_VARIABLES),
        ("statements", ctypes.c_uint32 * MOST_STATEMENTS),
        ("sites", _Site * MOST_SITES),
        ("calls", _Call * MOST_CALLS),
        ("steps", _Step * MOST_STEPS),
        ("rows", ctypes.c_uint32 * MOST_ROWS),
        ("changes", _Change * MOST_CHANGES),
        ("words", ctypes.c_uint32 * MOST_WORDS),
    ]


RECORDING_BYTES = ctypes.sizeof(_Recording)


class RawRecording:
    """The recording in memory that the worker shares. most_rows: of how many accesses there may be; functions: whose
    variables are to be recorded, by ascending addresses, as many as there is room for; statements: where the code of
    each begins, ascending, if g++ is the compiler: of a copy of a struct it reports the write before the read, and this
    puts it behind; patience: after how many seconds of computing without a step or another block a launch ends."""

    def __init__(
        self,
        front: mmap.mmap,
        offset: int,
        most_rows: int,
        functions: Sequence[Function],
        statements: Sequence[int],
        patience: float,
    ) -> None:
        self._raw = raw = _Recording.from_buffer(front, offset)
        raw.most_rows = min(most_rows, MOST_ROWS)
        raw.patience = patience
        first = 0
        for number, function in enumerate(functions[:MOST_FUNCTIONS]):
            variables = function.variables[: MOST_VARIABLES - first]
            low = min((one.offset for one in variables), default=0)
            high = max((one.offset + one.bytes * one.count for one in variables), default=0)
            raw.functions[number] = _Function(
                function.start, function.end, low, high, first, len(variables), function.returns
            )
            for i, one in enumerate(variables):
                is_pointer = one.target is not None
                size, words = (one.bytes, 1) if is_pointer else (min(one.bytes, 4), one.words * one.count)
                raw.variables[first + i] = _Variable(one.offset, size, words, one.is_parameter, is_pointer)
            first += len(variables)
        raw.function_count = min(len(functions), MOST_FUNCTIONS)
        if len(statements) <= MOST_STATEMENTS:
            raw.statements[: len(statements)] = statements
            raw.statement_count = len(statements)

    @property
    def full(self) -> bool:
        """Whether the launch ended because there was no room for what came next, or because it was idle."""
        return bool(self._raw.full)

    @property
    def idle(self) -> bool:
        """Whether the launch ended because the block went on and on without an access to memory."""
        return self._raw.full == IDLE

    @property
    def sites(self) -> list[tuple[str, int]]:
        """(file, line) of those places that are no program counters."""
        return [(site.file.decode(errors="replace"), site.line) for site in self._raw.sites[: self._raw.site_count]]

    def calls(self) -> np.ndarray:
        """A structured array: `counter`, `caller`, `depth` of each place; the first is none."""
        return self._copy("calls", np.dtype(_Call), self._raw.call_count)

    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(steps, rows, words, changes). A step: `turn`, `warp`, `place` (a number of a call), `array`, `mask`,
        `width`, `first`, `extra`, `op`; rows: uint32 byte offsets in the steps' arrays; words: uint32, what each row of
        a write left in memory; a change: `step`, `thread`, `variable` (counted through all functions), `element`,
        `word`; of a pointer that now points into shared memory `element` is the array and `word` the byte in it."""
        raw = self._raw
        steps = self._copy("steps", np.dtype(_Step), raw.step_count)
        rows = self._copy("rows", np.dtype(np.uint32), raw.row_count)
        words = self._copy("words", np.dtype(np.uint32), raw.word_count)
        changes = self._copy("changes", np.dtype(_Change), raw.change_count)
        return _in_order(steps, rows, words, changes)

    def _copy(self, name: str, dtype: np.dtype, count: int) -> np.ndarray:
        return np.frombuffer(self._raw, dtype, count, getattr(_Recording, name).offset).copy()


def _in_order(
    steps: np.ndarray, rows: np.ndarray, words: np.ndarray, changes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The same with each write that belongs behind another step in its place there, and in that step's turn."""
    late = steps["op"] == WRITE_BEHIND
    if not late.any():
        return steps, rows, words, changes
    where = np.arange(len(steps), dtype=np.float64)
    where[late] = steps["extra"][late] + 0.5
    order = np.argsort(where, kind="stable")
    steps["turn"][late] = steps["turn"][steps["extra"][late]]
    steps["op"][late], steps["extra"][late] = WRITE, 0
    now = np.searchsorted(
        where[order], np.arange(len(steps))
    )  # of each step its new number; of one that moves, the next
    begun = np.isin(steps["op"], (COPY_READ, COPY_WRITE, END))  # `extra` is the number of a step
    steps["extra"][begun] = now[steps["extra"][begun]]
    changes["step"] = now[changes["step"]]
    row_count = row_counts(steps["op"], steps["mask"])
    word_count = np.where(np.isin(steps["op"], WRITING), row_count * -(-steps["width"].astype(np.int64) // 4), 0)
    rows, words = rows[_runs(row_count, order)], words[_runs(word_count, order)]
    steps = steps[order]
    steps["first"] = np.cumsum(row_count[order]) - row_count[order]
    return steps, rows, words, changes


def _runs(counts: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Indices that put runs of so many elements into another order."""
    first = np.cumsum(counts) - counts
    moved = np.cumsum(counts[order]) - counts[order]
    return np.repeat(first[order] - moved, counts[order]) + np.arange(counts.sum())
