"""The mirror of runtime/recording.h: what a recorded launch leaves behind."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

MOST_SITES, MOST_STEPS, MOST_ROWS, MOST_WORDS = 1024, 4 << 20, 16 << 20, 32 << 20
IS_SITE, NO_PLACE = 1 << 31, (1 << 32) - 1


class Site(ctypes.Structure):
    _fields_ = [("line", ctypes.c_int32), ("file", ctypes.c_char * 252)]


class Step(ctypes.Structure):
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


class _Recording(ctypes.Structure):
    _fields_ = [
        ("most_rows", ctypes.c_uint32),
        ("full", ctypes.c_uint32),
        ("step_count", ctypes.c_uint32),
        ("row_count", ctypes.c_uint32),
        ("word_count", ctypes.c_uint32),
        ("site_count", ctypes.c_uint32),
        ("sites", Site * MOST_SITES),
        ("steps", Step * MOST_STEPS),
        ("rows", ctypes.c_uint32 * MOST_ROWS),
        ("words", ctypes.c_uint32 * MOST_WORDS),
    ]


RECORDING_BYTES = ctypes.sizeof(_Recording)


class RawRecording:
    """The recording in memory that the worker shares. most_rows: of how many accesses there may be."""

    def __init__(self, front: mmap.mmap, offset: int, most_rows: int) -> None:
        self._raw = _Recording.from_buffer(front, offset)
        self._raw.most_rows = min(most_rows, MOST_ROWS)

    @property
    def full(self) -> bool:
        """Whether the launch ended because there was no room for what came next."""
        return bool(self._raw.full)

    @property
    def sites(self) -> list[tuple[str, int]]:
        """(file, line) of those places that are no program counters."""
        return [(site.file.decode(errors="replace"), site.line) for site in self._raw.sites[: self._raw.site_count]]

    def steps(self) -> np.ndarray:
        """A structured array with the fields of `Step`."""
        return self._copy("steps", np.dtype(Step), self._raw.step_count)

    def rows(self) -> np.ndarray:
        """uint32 byte offsets in the steps' arrays."""
        return self._copy("rows", np.dtype(np.uint32), self._raw.row_count)

    def words(self) -> np.ndarray:
        """uint32: what each row of a write left in memory."""
        return self._copy("words", np.dtype(np.uint32), self._raw.word_count)

    def _copy(self, name: str, dtype: np.dtype, count: int) -> np.ndarray:
        return np.frombuffer(self._raw, dtype, count, getattr(_Recording, name).offset).copy()
