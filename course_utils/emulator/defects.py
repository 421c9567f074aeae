"""The mirror of runtime/defects.h: what is wrong with a kernel, as the runtime gives it."""

from __future__ import annotations

import ctypes
from string import Formatter

from course_utils.emulator.sanitizer import Defect, Wait
from course_utils.emulator.words import KINDS, WORDS


class Figures(ctypes.Structure):
    _fields_ = [("of", ctypes.c_longlong * 5)]


class RawWait(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("line", ctypes.c_int64),
        ("figures", Figures),
        ("name", ctypes.c_char * 64),
    ]


class RawDefect(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_uint32),
        ("wait_count", ctypes.c_uint32),
        ("threads", ctypes.c_uint64),
        ("figures", Figures),
        ("name", ctypes.c_char * 128),
        ("other_name", ctypes.c_char * 64),
        ("waits", RawWait * 8),
    ]


def _count(template: str) -> int:
    """How many numbers a sentence has."""
    names = [name for _, name, _, _ in Formatter().parse(template) if name]
    return max((int(name) + 1 for name in names if name.isdigit()), default=0)


_COUNTS = {kind: _count(template) for kind, template in WORDS.items()}


def defect_of(raw: RawDefect) -> Defect:
    """The same in Python's terms: of the figures, those that belong to the kind."""
    kind = KINDS[raw.kind]
    waits = tuple(
        Wait(
            (its := KINDS[one.kind]),
            one.threads,
            one.line,
            tuple(one.figures.of[: _COUNTS[its]]),
            one.name.decode(errors="replace"),
        )
        for one in raw.waits[: raw.wait_count]
    )
    # The compiler quotes the type of an array.
    name = raw.name.decode(errors="replace").strip("'")
    other = raw.other_name.decode(errors="replace")
    return Defect(kind, tuple(raw.figures.of[: _COUNTS[kind]]), name, other, raw.threads, waits)
