"""From a program counter in a compiled kernel to the learner's source line, by the library's DWARF tables."""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from elftools.elf.elffile import ELFFile


class _Range(NamedTuple):
    low: int
    high: int
    file: str
    line: int


class DebugLines:
    """Looks addresses up, relative to the start of the library. `files` are the names that count as the learner's;
    `wrapped` are lines of them that stand for an instruction: who called their function is named instead."""

    def __init__(self, library: Path, files: Collection[str], wrapped: Collection[tuple[str, int]] = ()) -> None:
        self._files, self._wrapped = set(files), set(wrapped)
        self._rows, self._starts, self._inlined = _tables(library)

    def locate(self, address: int) -> tuple[str, int] | None:
        """(file, line) of the innermost frame that lies in one of the learner's files, and not in `wrapped` if there is
        one around it."""
        i = bisect.bisect_right(self._starts, address) - 1
        frames = [self._rows[i]] if i >= 0 else []
        innermost = None
        for frame in itertools.chain(frames, self._inlined):
            if frame.low <= address < frame.high and frame.line and frame.file in self._files:
                if (frame.file, frame.line) not in self._wrapped:
                    return frame.file, frame.line
                innermost = innermost or (frame.file, frame.line)
        return innermost


@functools.cache  # a library's name tells what is in it; reading the tables takes longer than a small launch
def _tables(library: Path) -> tuple[list[_Range], list[int], list[_Range]]:
    """The rows of the line table, where each begins, and the inlined calls, the innermost first."""
    with library.open("rb") as handle:
        dwarf = ELFFile(handle).get_dwarf_info(relocate_dwarf_sections=False)  # the linker has done that
        units = list(dwarf.iter_CUs())
        rows = sorted(row for unit in units for row in _line_rows(dwarf, unit))
        inlined = [call for unit in units for call in _inlined_calls(dwarf, unit)]
    return rows, [row.low for row in rows], sorted(inlined, key=lambda call: call.high - call.low)


def _full_names(dwarf: Any, unit: Any) -> dict[int, str]:
    """File names as `#line` gave them: the directory that the line table keeps apart is joined again."""
    header = dwarf.line_program_for_CU(unit).header
    folders = [folder.decode(errors="replace") for folder in header.include_directory]
    first = 0 if header.version >= 5 else 1
    names = {}
    for index, entry in enumerate(header.file_entry, start=first):
        folder_index = entry.dir_index - first
        folder = folders[folder_index] if 0 <= folder_index < len(folders) else ""
        name = entry.name.decode(errors="replace")
        names[index] = f"{folder}/{name}" if folder and not name.startswith("/") else name
    return names


def _line_rows(dwarf: Any, unit: Any) -> Iterator[_Range]:
    program = dwarf.line_program_for_CU(unit)
    if program is None:
        return
    names = _full_names(dwarf, unit)
    previous = None
    for entry in program.get_entries():
        state = entry.state
        if state is None:
            continue
        if previous is not None and state.address > previous.address:
            yield _Range(previous.address, state.address, names.get(previous.file, ""), previous.line)
        previous = None if state.end_sequence else state


def _inlined_calls(dwarf: Any, unit: Any) -> Iterator[_Range]:
    names = _full_names(dwarf, unit)
    for entry in unit.iter_DIEs():
        if entry.tag != "DW_TAG_inlined_subroutine" or "DW_AT_call_line" not in entry.attributes:
            continue
        file = names.get(entry.attributes["DW_AT_call_file"].value, "")
        for low, high in _address_ranges(dwarf, unit, entry):
            yield _Range(low, high, file, entry.attributes["DW_AT_call_line"].value)


def _address_ranges(dwarf: Any, unit: Any, entry: Any) -> Iterator[tuple[int, int]]:
    attributes = entry.attributes
    if "DW_AT_high_pc" in attributes:
        low, high = attributes["DW_AT_low_pc"].value, attributes["DW_AT_high_pc"]
        yield low, high.value if high.form == "DW_FORM_addr" else low + high.value
    elif "DW_AT_ranges" in attributes:
        top = unit.get_top_DIE().attributes
        base = top["DW_AT_low_pc"].value if "DW_AT_low_pc" in top else 0
        for item in dwarf.range_lists().get_range_list_at_offset(attributes["DW_AT_ranges"].value):
            if hasattr(item, "base_address"):
                base = item.base_address
            else:
                yield base + item.begin_offset, base + item.end_offset
