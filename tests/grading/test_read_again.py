"""Where a diagnosis sends a learner to read again: the notebook, the section and its heading are there."""

import ast
import functools
import re
import tomllib
from pathlib import Path

import pytest

from course_utils.course import CHAPTERS
from course_utils.grading.catalog import SOLUTIONS
from tests.helpers.notebooks import read_notebook

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ROOT / "course_utils" / "grading", ROOT / "course_utils" / "puzzles"
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
            if not place.startswith("this exercise, "):
                found.add(POINTER.fullmatch(place).groups())
    return found


def headings(slug):
    """(section or None, heading) of a notebook."""
    section = None
    for cell in read_notebook(ROOT / "notebooks" / f"{slug}.ipynb").cells:
        for mark, number, heading in re.findall(r"^(###?) (?:(\d+) )?(.+)$", cell.source, re.MULTILINE):
            if cell.cell_type == "markdown":
                section = number or None if mark == "##" else section
                yield section, heading.strip()


@pytest.mark.parametrize("chapter", CHAPTERS, ids=[one.slug for one in CHAPTERS])
def test_a_section_to_read_again_is_in_the_notebook_that_is_named(chapter):
    notebook = f"{chapter.number} {chapter.title}"
    named = {(section, heading) for name, section, heading in pointers() if name == notebook}
    assert named <= set(headings(chapter.slug))


def test_there_are_such_sections_and_each_names_a_notebook():
    assert len(pointers()) > 50
    assert {notebook for notebook, _, _ in pointers()} <= {f"{one.number} {one.title}" for one in CHAPTERS}
