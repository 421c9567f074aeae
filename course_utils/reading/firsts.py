"""How soon a chapter shows and asks: what is read before its first picture, its first widget, its first puzzle."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

import nbformat

from course_utils.puzzles.puzzle import PUZZLES
from course_utils.reading.minutes import Reading, chapter_reading, section_readings
from course_utils.reading.sections import Section, chapter_path

WIDGETS = (
    r"\b(bank_places|dsa_explorer|mask_explorer|planner_widget|tile_stepper|warp_fragments|widgets\.(?!guess\b)\w+)\("
)
WHAT = {
    "picture": re.compile(rf"\bplots\.(?!look)[a-z]\w*\(|\bplt\.|\bsteps\.climb\(|{WIDGETS}"),
    "widget": re.compile(WIDGETS),
    "puzzle": re.compile(r"^%%puzzle "),
}
ATTENTION = "00_start_here/attention"  # the first puzzle that makes a complete attention kernel
FLASH = "02_flash_attention_minimal/rescale"  # the first that makes one which never holds a row of scores
BEFORE_FLASH = ("00_start_here", "01_attention_basics")  # read whole; 00_memory_and_tools stands beside them


@dataclass(frozen=True)
class First:
    """Where something stands for the first time in a chapter: cells, words and minutes of reading above it."""

    cells: int
    words: int
    minutes: float


def first(slug: str, pattern: re.Pattern[str]) -> First | None:
    """What stands above the first cell of code that the pattern is found in; None: the chapter has no such cell."""
    above = Reading()
    for number, (cell, read) in enumerate(_cells(slug)):
        if cell.codes and pattern.search(cell.codes[0][1]):
            return First(number, above.words, above.text_minutes)
        above += read
    return None


def first_attention_kernel() -> float:
    """Minutes of reading and puzzles up to a complete attention kernel of one's own, that puzzle included."""
    return _up_to(ATTENTION)


def first_flash_kernel() -> float:
    """The same up to a flash kernel, with the chapters before it: `BEFORE_FLASH`, their questions included."""
    return sum(chapter_reading(slug).minutes for slug in BEFORE_FLASH) + _up_to(FLASH)


def _up_to(puzzle_id: str) -> float:
    """Minutes of a chapter's text, code and puzzles up to a puzzle of it, that one included."""
    slug, name = puzzle_id.split("/")
    assert name in PUZZLES[slug]
    there = first(slug, re.compile(rf"^%%puzzle {puzzle_id}$", re.MULTILINE))
    assert there is not None
    return there.minutes + Reading(puzzles=1).minutes


@functools.cache
def _cells(slug: str) -> tuple[tuple[Section, Reading], ...]:
    """Each cell of a chapter, but for the bars with links, as a section of its own, and what there is to read in it."""
    found = []
    for cell in nbformat.read(chapter_path(slug), as_version=4).cells:
        if "navigation" in cell.metadata.get("tags", ()):
            continue
        texts, codes = ((), ((0, cell.source),)) if cell.cell_type == "code" else ((cell.source,), ())
        found.append(Section(str(len(found)), "", texts, codes))
    return tuple(zip(found, section_readings(found).values(), strict=True))
