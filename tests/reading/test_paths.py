"""Every section can be the first that a learner runs, after the cells that its chapter's contents name, and every path
through the course has all that it uses.

Which names a cell reads and binds is read off its code, so all chapters and paths are checked within a second. What is
not followed is values that change in place, such as a random generator's: they change figures, but no name is lost.
Cells are run for real as well: one path's beginning here, whole chapters by nbval, and every section and path of every
chapter in `make test-all`.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import pytest

from course_utils.course import CHAPTERS, PATHS
from course_utils.reading.sections import HEAD, chapter_sections, missing, needs, sections
from course_utils.reading.stated import BRACKETS, with_needs
from tests.helpers.run_sections import run_sections

ROOT = Path(__file__).resolve().parents[2]
SLUGS = [one.slug for one in CHAPTERS]
LEGS = [(path.reader, slug, numbers) for path in PATHS for slug, numbers in path.legs]


def keys_of(slug, numbers):
    """The sections of a leg, with what stands above the first; all of the chapter for none."""
    chapter = chapter_sections(slug)
    return {HEAD, *map(str, numbers)} if numbers else {section.key for section in chapter}


@pytest.mark.parametrize(("reader", "slug", "numbers"), LEGS)
def test_a_path_has_every_name_that_its_cells_use(reader, slug, numbers):
    chapter, keys = chapter_sections(slug), keys_of(slug, numbers)
    assert keys <= {section.key for section in chapter}
    assert [str(one) for one in missing(chapter, keys)] == []


@pytest.mark.parametrize("slug", SLUGS)
def test_the_contents_of_a_chapter_say_what_each_section_needs(slug):
    (first,) = [text for text in chapter_sections(slug)[0].texts if "**Contents**" in text]
    assert first == with_needs(first, slug), "run: .venv/bin/python -m course_utils reading --write"


@pytest.mark.parametrize("slug", SLUGS)
def test_a_section_has_every_name_that_it_uses_after_those_that_it_needs(slug):
    chapter = chapter_sections(slug)
    for key, first in needs(chapter).items():
        assert [str(one) for one in missing(chapter, {HEAD, *first, key})] == []


def test_a_section_runs_in_a_fresh_kernel_after_those_that_it_needs():
    """For real, how the path of those who know CUDA begins: with section 4 of chapter 00, without the first kernel."""
    chapter = chapter_sections("00_memory_and_tools")
    first = needs(chapter)["5"]
    assert first == ("4",)
    assert "work" in run_sections(chapter, {HEAD, *first, "5"})
    plt.close("all")


@pytest.mark.exhaustive("all are checked by name above, and one is run; whole chapters are run by nbval")
@pytest.mark.parametrize("slug", SLUGS)
def test_every_section_and_every_path_runs_in_a_fresh_kernel(slug, tmp_path):
    """Each section after those that it needs, then the sections of each path in their order."""
    chapter = chapter_sections(slug)
    first = needs(chapter)
    runs = [(*first[one.key], one.key) for one in chapter if one.codes and one.key != HEAD]
    runs += dict.fromkeys(numbers for _, leg, numbers in LEGS if leg == slug and numbers)
    done = subprocess.run(
        [sys.executable, "-m", "tests.helpers.run_sections", slug, *(",".join(map(str, run)) for run in runs)],
        cwd=ROOT,
        env={**os.environ, "XDG_DATA_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr[-6000:]


# ---- the check itself


def test_brackets_are_put_in_and_other_text_stays():
    text = "**Contents**\n[8 Memory](#a) (4) ·\n[9 Traffic](#b)"
    written = with_needs(f"# Title\n\n{text}\n\nLast words.", "01_attention_basics")
    told = BRACKETS.format(first=1)
    assert written == f"# Title\n\n**Contents**\n[8 Memory](#a) ·\n[9 Traffic](#b) (5)\n\n{told}\n\nLast words."
    assert with_needs(written, "01_attention_basics") == written


def chapter_of(*cells):
    """Sections of a chapter: texts of headings and sources of code."""
    kinds = nbformat.v4.new_markdown_cell, nbformat.v4.new_code_cell
    return sections(nbformat.v4.new_notebook(cells=[kinds[not one.startswith("## ")](one) for one in cells]))


SMALL = ("import math", "## 1 One", "x = math.pi", "## 2 Two", "def f():\n    return x", "## 3 Three", "y = f()")


def test_what_a_function_reads_is_needed_where_it_is_called():
    assert needs(chapter_of(*SMALL)) == {"0": (), "1": (), "2": (), "3": ("1", "2")}


def test_a_name_that_means_something_else_in_between_counts_as_missing():
    chapter = chapter_of(*SMALL[:-2], "## 3 Other", "x = 'text'", "## 4 Last", "print(x)")
    (found,) = missing(chapter, {HEAD, "1", "4"})
    assert (found.name, found.found_in) == ("x", "3")


def test_the_words_say_cell_name_and_section():
    assert str(missing(chapter_of(*SMALL), {HEAD, "2", "3"})[0]) == "section 3, cell 6: x is bound in section 1"
    assert str(missing(chapter_of("print(x)"), {HEAD})[0]) == "section 0, cell 0: x is bound nowhere before"


@pytest.mark.parametrize("name", ["gpu", "never_bound"])
def test_a_planted_name_error_is_found_as_the_run_finds_it(name):
    """A cell in section 8 of chapter 00 reads a name of section 4, or of none: found by reading, and by running."""
    chapter = chapter_sections("00_memory_and_tools")
    eight = next(section for section in chapter if section.key == "8")
    planted = replace(eight, codes=((999, f"print({name})"),))
    changed = tuple(planted if section is eight else section for section in chapter)
    head = tuple(section for section in changed if section.key in (HEAD, "8"))
    assert [(one.cell, one.name) for one in missing(changed, {HEAD, "8"})] == [(999, name)]
    with pytest.raises(NameError, match=name):
        run_sections(head, {HEAD, "8"})
