"""Where a diagnosis sends a learner to read again: the notebook, the section and its heading are there."""

import ast
import functools
import re
import tomllib
from pathlib import Path
from urllib.parse import unquote

import pytest

from course_utils.course import CHAPTERS
from course_utils.grading.catalog import SOLUTIONS
from course_utils.puzzles.attempt import linked
from tests.helpers.notebooks import read_notebook

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ROOT / "course_utils" / "grading", ROOT / "course_utils" / "puzzles"
THIS_EXERCISE = "this exercise, 'What to write'"
HEADING = re.compile(r"^(###?) (?:(\d+) )?(.+)$", re.MULTILINE)
POINTER = re.compile(r"(\d\d .+?|chapter \d\d), (?:section (\d+), )?'(.+)'")


@functools.cache  # not while tests are collected, which each of their processes does
def pointers():
    """(notebook, section or None, heading) of every text of the grader, its tables of mistakes and the puzzles."""
    found = set()
    for path in (path for room in ROOMS for path in room.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if named := POINTER.fullmatch(node.value):
                    found.add(named.groups())
    for table in SOLUTIONS.rglob("*_mistakes.toml"):
        for place in tomllib.loads(table.read_text(encoding="utf-8"))["read"].values():
            if place != THIS_EXERCISE:
                found.add(POINTER.fullmatch(place).groups())
    return found


@functools.cache
def marked(slug):
    """(mark, number or "", heading) of a notebook's headings."""
    cells = read_notebook(ROOT / "notebooks" / f"{slug}.ipynb").cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return [(mark, number, heading.strip()) for mark, number, heading in HEADING.findall(text)]


def headings(slug):
    """(section or None, heading) of a notebook."""
    section = None
    for mark, number, heading in marked(slug):
        section = number or None if mark == "##" else section
        yield section, heading


@pytest.mark.parametrize("chapter", CHAPTERS, ids=[one.slug for one in CHAPTERS])
def test_a_section_to_read_again_is_in_the_notebook_that_is_named(chapter):
    notebook = f"{chapter.number} {chapter.title}"
    named = {(section, heading) for name, section, heading in pointers() if name == notebook}
    assert named <= set(headings(chapter.slug))


def test_there_are_such_sections_and_each_names_a_notebook():
    assert len(pointers()) > 50
    assert {notebook for notebook, _, _ in pointers()} <= {f"{one.number} {one.title}" for one in CHAPTERS}


def test_a_puzzle_links_to_its_section():
    for notebook, section, heading in pointers():
        number = f"section {section}, " if section else ""
        slug, anchor = re.search(r'href="(\w+)\.ipynb#(.+?)"', linked(f"{notebook}, {number}'{heading}'")).groups()
        shown = {f"{number} {title}" if number and mark == "##" else title for mark, number, title in marked(slug)}
        assert unquote(anchor) in {title.replace(" ", "-") for title in shown}
