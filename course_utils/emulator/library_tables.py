"""What a compiled kernel library says of itself: where its symbols lie, and from which lines its code was made.

Reading that takes longer than a small launch, so it is kept: in this process, and as JSON beside the library.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from elftools.elf.elffile import ELFFile


class Symbol(NamedTuple):
    """Where a symbol lies in the library, and its ELF type, such as STT_OBJECT."""

    offset: int
    size: int
    kind: str
    section: str


class CodeRange(NamedTuple):
    """Addresses, relative to the start of the library, of code that was made from a line, or is inlined there."""

    low: int
    high: int
    file: str
    line: int


@functools.cache
def symbols(library: Path) -> dict[str, Symbol]:
    """Everything defined in the library, by name."""
    return {name: Symbol(*values) for name, *values in cached_table(library, _read_symbols)}


@functools.cache
def asked_for(library: Path) -> frozenset[str]:
    """The names of what the library uses of others."""
    return frozenset(cached_table(library, _read_asked_for))


@functools.cache
def code_ranges(library: Path) -> tuple[list[CodeRange], list[CodeRange]]:
    """The rows of the line table, by address, and the inlined calls, the innermost first."""
    rows, inlined = cached_table(library, _read_code_ranges)
    return [CodeRange(*row) for row in rows], [CodeRange(*call) for call in inlined]


def cached_table(library: Path, read: Callable[[Path], Any], *readers: Path) -> Any:
    """What `read` finds in the library, from the JSON file beside it where an earlier call has written that.

    readers: the files whose code reads the library, this one by default. After a change of one, it is read again.
    """
    file = library.with_suffix(f".{_digest(readers or (Path(__file__),))}{read.__name__}.json")
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError):
        found = read(library)
    try:
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            written = Path(folder) / file.name
            written.write_text(json.dumps(found), encoding="utf-8")
            os.replace(written, file)
    except OSError:
        pass  # a folder that cannot be written, or a full disk: it is read again next time
    return found


@functools.cache
def _digest(files: tuple[Path, ...]) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def _read_symbols(library: Path) -> list[tuple[str, int, int, str, str]]:
    with library.open("rb") as handle:
        elf = ELFFile(handle)
        sections = [section.name for section in elf.iter_sections()]
        return [
            (one.name, one["st_value"], one["st_size"], one["st_info"]["type"], sections[one["st_shndx"]])
            for one in elf.get_section_by_name(".symtab").iter_symbols()
            if isinstance(one["st_shndx"], int)
        ]


def _read_asked_for(library: Path) -> list[str]:
    with library.open("rb") as handle:
        table = ELFFile(handle).get_section_by_name(".dynsym")
        return [one.name for one in table.iter_symbols() if one["st_shndx"] == "SHN_UNDEF" and one.name]


def _read_code_ranges(library: Path) -> tuple[list[CodeRange], list[CodeRange]]:
    """By the library's DWARF tables."""
    with library.open("rb") as handle:
        dwarf = ELFFile(handle).get_dwarf_info(relocate_dwarf_sections=False)  # the linker has done that
        units = list(dwarf.iter_CUs())
        rows = sorted(row for unit in units for row in _line_rows(dwarf, unit))
        inlined = [call for unit in units for call in _inlined_calls(dwarf, unit)]
    return rows, inlined[::-1]  # DWARF has an outer call before those in it


def full_names(dwarf: Any, unit: Any) -> dict[int, str]:
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


def _line_rows(dwarf: Any, unit: Any) -> Iterator[CodeRange]:
    program = dwarf.line_program_for_CU(unit)
    if program is None:
        return
    names = full_names(dwarf, unit)
    previous = None
    for entry in program.get_entries():
        state = entry.state
        if state is None:
            continue
        if previous is not None and state.address > previous.address:
            yield CodeRange(previous.address, state.address, names.get(previous.file, ""), previous.line)
        previous = None if state.end_sequence else state


def _inlined_calls(dwarf: Any, unit: Any) -> Iterator[CodeRange]:
    names = full_names(dwarf, unit)
    for entry in unit.iter_DIEs():
        if entry.tag != "DW_TAG_inlined_subroutine" or "DW_AT_call_line" not in entry.attributes:
            continue
        file = names.get(entry.attributes["DW_AT_call_file"].value, "")
        for low, high in _address_ranges(dwarf, unit, entry):
            yield CodeRange(low, high, file, entry.attributes["DW_AT_call_line"].value)


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
