"""From a program counter in a compiled kernel to the learner's source line."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from course_utils.emulator.library_tables import code_ranges


class DebugLines:
    """Looks addresses up, relative to the start of the library. `files` are the names that count as the learner's;
    `wrapped` are lines of them that stand for an instruction: who called their function is named instead."""

    def __init__(self, library: Path, files: Collection[str], wrapped: Collection[tuple[str, int]] = ()) -> None:
        self._files, self._wrapped = set(files), set(wrapped)
        self.rows, self._inlined = code_ranges(library)

    def locate(self, address: int) -> tuple[str, int] | None:
        """(file, line) of the innermost frame that lies in one of the learner's files, and not in `wrapped` if there is
        one around it."""
        innermost = None
        for place in self._frames(address):
            if place not in self._wrapped:
                return place
            innermost = innermost or place
        return innermost

    def places(self, where: int | Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """All frames of an address that are not in `wrapped`, the innermost first; or those of `where` itself."""
        frames = self._frames(where) if isinstance(where, int) else where
        return [place for place in frames if place not in self._wrapped]

    def _frames(self, address: int) -> Iterator[tuple[str, int]]:
        i = bisect.bisect_right(self.rows, address, key=lambda row: row.low) - 1
        rows = [self.rows[i]] if i >= 0 else []
        for frame in itertools.chain(rows, self._inlined):
            if frame.low <= address < frame.high and frame.line and frame.file in self._files:
                yield frame.file, frame.line
