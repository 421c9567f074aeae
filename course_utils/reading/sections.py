"""The sections of a chapter's notebook, and which of them need cells of others: any section may be begun with then."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import nbformat

from course_utils.course import ROOT
from course_utils.reading.names import CellNames, names_of

HEAD = "0"  # the cells above the first section, the imports among them; a reader of any section runs these first


@dataclass(frozen=True)
class Section:
    """One section. key: its number, "0" for what stands above the first one, or the title of one without a number.
    texts: of its Markdown cells. codes: (number of the cell in the notebook, source) of its cells of code."""

    key: str
    title: str
    texts: tuple[str, ...]
    codes: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Missing:
    """A name that a cell reads and that no cell run before has bound as the whole chapter binds it.

    found_in: the key of the section that binds it for this cell when the chapter is run from the top; "" if none does.
    """

    section: str
    cell: int
    name: str
    found_in: str

    def __str__(self) -> str:
        where = f"is bound in section {self.found_in}" if self.found_in else "is bound nowhere before"
        return f"section {self.section}, cell {self.cell}: {self.name} {where}"


def chapter_path(slug: str, root: Path = ROOT) -> Path:
    """Where the notebook of a chapter lies."""
    return root / "notebooks" / f"{slug}.ipynb"


@functools.cache
def chapter_sections(slug: str) -> tuple[Section, ...]:
    """The sections of a chapter of this checkout, in order."""
    return sections(nbformat.read(chapter_path(slug), as_version=4))


def sections(notebook: nbformat.NotebookNode) -> tuple[Section, ...]:
    """The sections of a notebook in order: each heading "## ..." begins one, also in the middle of a cell. The bars
    with links to other chapters belong to none."""
    found = [(HEAD, "", [], [])]
    for number, cell in enumerate(notebook.cells):
        if "navigation" in cell.metadata.get("tags", ()):
            continue
        if cell.cell_type == "code":
            found[-1][3].append((number, cell.source))
            continue
        for part in re.split(r"^(?=## )", cell.source, flags=re.MULTILINE):
            if part.startswith("## "):
                title = part.partition("\n")[0].removeprefix("## ").strip()
                numbered = re.match(r"(\d+) ", title)
                found.append((numbered[1] if numbered else title, title, [], []))
            found[-1][2].append(part)
    return tuple(Section(key, title, tuple(texts), tuple(codes)) for key, title, texts, codes in found)


def missing(chapter: Collection[Section], run: Collection[str]) -> list[Missing]:
    """What the cells of the sections `run` (keys) lack when they are run in order in a fresh kernel, and nothing else.

    A name counts as there only if the binding that reaches the cell in the whole chapter is among what was run: a name
    that an earlier section uses for something else would not be a NameError, and still be wrong. Values that are
    changed in place (a random generator, a list) are not followed.
    """
    found = []
    bound: dict[str, str] = {}  # name: the section that has bound it last, in the whole chapter
    functions: dict[str, frozenset[str]] = {}
    for section in chapter:
        for number, source in section.codes:
            cell = _names(source)
            if section.key in run:
                for name in sorted(_all_read(cell, functions)):
                    place = bound.get(name, "")
                    if place not in run:
                        found.append(Missing(section.key, number, name, place))
            bound |= dict.fromkeys(cell.binds, section.key)
            functions = {name: reads for name, reads in functions.items() if name not in cell.binds} | cell.functions
    return found


def needs(chapter: Collection[Section]) -> dict[str, tuple[str, ...]]:
    """For each section, by key: the sections whose cells must be run before it, besides those above section 1."""
    order = [section.key for section in chapter]
    found = {}
    for key in order:
        run = {HEAD, key}
        while more := {one.found_in for one in missing(chapter, run) if one.found_in}:
            run |= more
        found[key] = tuple(one for one in order if one in run - {HEAD, key})
    return found


_names = functools.cache(names_of)


def _all_read(cell: CellNames, functions: dict[str, frozenset[str]]) -> set[str]:
    """What a cell reads, and what the functions of earlier cells that it reads go on to read."""
    read, todo = set(), list(cell.needs)
    while todo:
        name = todo.pop()
        if name not in read:
            read.add(name)
            todo += functions.get(name, frozenset())
    return read
