"""From a program counter in a compiled kernel to the learner's source line."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Collection
from pathlib import Path

from course_utils.emulator.library_tables import code_ranges


class DebugLines:
    """Looks addresses up, relative to the start of the library. `files` are the names that count as the learner's;
    `wrapped` are lines of them that stand for an instruction: who called their function is named instead."""

    def __init__(self, library: Path, files: Collection[str], wrapped: Collection[tuple[str, int]] = ()) -> None:
        self._files, self._wrapped = set(files), set(wrapped)
        self._rows, self._inlined = code_ranges(library)

    def locate(self, address: int) -> tuple[str, int] | None:
        """(file, line) of the innermost frame that lies in one of the learner's files, and not in `wrapped` if there is
        one around it."""
        i = bisect.bisect_right(self._rows, address, key=lambda row: row.low) - 1
        frames = [self._rows[i]] if i >= 0 else []
        innermost = None
        for frame in itertools.chain(frames, self._inlined):
            if frame.low <= address < frame.high and frame.line and frame.file in self._files:
                if (frame.file, frame.line) not in self._wrapped:
                    return frame.file, frame.line
                innermost = innermost or (frame.file, frame.line)
        return innermost
