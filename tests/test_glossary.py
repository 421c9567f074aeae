"""The glossary: in alphabetical order, every link leads to a heading, every term is one that the chapters use."""

import functools
import re
from pathlib import Path

from course_utils.site.navigation import is_navigation
from tests.helpers.all_of import all_of
from tests.helpers.notebooks import read_notebook

ROOT = Path(__file__).resolve().parent.parent
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
ENTRY = re.compile(
    r"^### (?P<term>.+)\n\n(?P<text>.+) → \[.+\]\(\.\./notebooks/(?P<slug>\w+)\.ipynb#\S+\)$", re.MULTILINE
)
ENTRIES = {match["term"]: match for match in ENTRY.finditer(GLOSSARY)}
SHORTEST, LONGEST = 40, 300  # characters: more than a synonym, less than a section


@functools.cache
def chapter_text(slug: str) -> str:
    """What a chapter's text says, in lower case, without emphasis and without the bars that link to the glossary."""
    cells = read_notebook(ROOT / "notebooks" / f"{slug}.ipynb").cells
    text = " ".join(cell.source for cell in cells if cell.cell_type == "markdown" and not is_navigation(cell))
    return re.sub(r"[*`]", "", text).casefold()


def test_every_heading_is_an_entry_of_the_right_form():
    assert re.findall(r"^### (.+)$", GLOSSARY, re.MULTILINE) == list(ENTRIES)
    assert len(ENTRIES) >= 60


def test_the_terms_are_in_alphabetical_order():
    assert list(ENTRIES) == sorted(ENTRIES, key=str.casefold)


@all_of("term", ENTRIES)
def test_an_entry_is_two_or_three_lines(term):
    assert SHORTEST <= len(ENTRIES[term]["text"]) <= LONGEST


@all_of("term", ENTRIES)
def test_the_chapter_that_an_entry_names_uses_the_term(term):
    assert term.casefold() in re.sub(r"\s+", " ", chapter_text(ENTRIES[term]["slug"]))
