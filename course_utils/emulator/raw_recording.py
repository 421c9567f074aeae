"""The mirror of runtime/recording.h: what a recorded launch takes, and what it leaves behind."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

import numpy as np

from course_utils.emulator.frames import Function

MOST_FUNCTIONS, MOST_VARIABLES, MOST_SITES, MOST_CALLS = 1024, 16 << 10, 1024, 64 << 10
MOST_STEPS, MOST_ROWS, MOST_CHANGES, MOST_WORDS = 4 << 20, 16 << 20, 16 << 20, 32 << 20
IS_SITE = 1 << 31


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
        ("padding", ctypes.c_uint32),
        ("functions", _Function * MOST_FUNCTIONS),
        ("variables", _Variable * MOST_VARIABLES),
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
    variables are to be recorded, by ascending addresses, as many as there is room for."""

    def __init__(self, front: mmap.mmap, offset: int, most_rows: int, functions: Sequence[Function]) -> None:
        self._raw = raw = _Recording.from_buffer(front, offset)
        raw.most_rows = min(most_rows, MOST_ROWS)
        first = 0
        for number, function in enumerate(functions[:MOST_FUNCTIONS]):
            variables = function.variables[: MOST_VARIABLES - first]
            low = min((one.offset for one in variables), default=0)
            high = max((one.offset + one.bytes * one.count for one in variables), default=0)
            raw.functions[number] = _Function(
                function.start, function.end, low, high, first, len(variables), function.returns
            )
            for i, one in enumerate(variables):
                words = one.words * one.count
                raw.variables[first + i] = _Variable(one.offset, min(one.bytes, 4), words, one.is_parameter)
            first += len(variables)
        raw.function_count = min(len(functions), MOST_FUNCTIONS)

    @property
    def full(self) -> bool:
        """Whether the launch ended because there was no room for what came next."""
        return bool(self._raw.full)

    @property
    def sites(self) -> list[tuple[str, int]]:
        """(file, line) of those places that are no program counters."""
        return [(site.file.decode(errors="replace"), site.line) for site in self._raw.sites[: self._raw.site_count]]

    def calls(self) -> np.ndarray:
        """A structured array: `counter`, `caller`, `depth` of each place; the first is none."""
        return self._copy("calls", np.dtype(_Call), self._raw.call_count)

    def steps(self) -> np.ndarray:
        """A structured array: `turn`, `warp`, `place` (a number of a call), `array`, `mask`, `width`, `first`, `extra`,
        `op`."""
        return self._copy("steps", np.dtype(_Step), self._raw.step_count)

    def rows(self) -> np.ndarray:
        """uint32 byte offsets in the steps' arrays."""
        return self._copy("rows", np.dtype(np.uint32), self._raw.row_count)

    def words(self) -> np.ndarray:
        """uint32: what each row of a write left in memory."""
        return self._copy("words", np.dtype(np.uint32), self._raw.word_count)

    def changes(self) -> np.ndarray:
        """A structured array: `step`, `thread`, `variable` (counted through all functions), `element`, `word`."""
        return self._copy("changes", np.dtype(_Change), self._raw.change_count)

    def _copy(self, name: str, dtype: np.dtype, count: int) -> np.ndarray:
        return np.frombuffer(self._raw, dtype, count, getattr(_Recording, name).offset).copy()
