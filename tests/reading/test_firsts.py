"""A learner sees and writes early: limits for what is read before a first picture, a first kernel of one's own."""

import re
from pathlib import Path

import nbformat
import pytest

from course_utils.course import CHAPTERS, notebooks_of
from course_utils.puzzles.puzzle import PUZZLES
from course_utils.reading.minutes import MINUTES_PER_PUZZLE, Reading, chapter_reading, section_readings
from course_utils.reading.sections import Section, chapter_path

ROOT = Path(__file__).resolve().parents[2]
PUZZLE = "^%%puzzle "
PICTURE = r"\bplots\.(?!look)[a-z]\w*\(|\bplt\.|\bsteps\.climb\(|\bwidgets\.(?!guess\b)\w+\("


def first(slug: str, pattern: str) -> tuple[int, Reading] | None:
    """How many cells stand above the first cell of code with this pattern, and what there is to read in them; None:
    the chapter has no such cell."""
    above = []
    for cell in nbformat.read(chapter_path(slug), as_version=4).cells:
        if cell.cell_type == "code" and re.search(pattern, cell.source, re.MULTILINE):
            return len(above), sum(section_readings(above).values(), Reading())
        if "navigation" not in cell.metadata.get("tags", ()):
            texts, codes = ((), ((0, cell.source),)) if cell.cell_type == "code" else ((cell.source,), ())
            above.append(Section(str(len(above)), "", texts, codes))
    return None


def minutes_until(puzzle: str) -> float:
    """Minutes of a chapter's text, code and puzzles up to one of its puzzles, that one included."""
    slug, name = puzzle.split("/")
    assert name in PUZZLES[slug]
    _, above = first(slug, f"^%%puzzle {puzzle}$")
    return above.text_minutes + MINUTES_PER_PUZZLE


def test_a_kernel_of_ones_own_comes_within_twenty_minutes_and_attention_within_half_an_hour():
    cells, above = first("00_start_here", PUZZLE)
    assert above.text_minutes <= 10 and cells <= 10 and above.words <= 600
    assert minutes_until("00_start_here/scores_of_one_query") <= 25
    assert minutes_until("00_start_here/attention") <= 30  # the rest of an hour is for a clone and a second try
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert "your own attention kernel within half an hour" in readme


def test_a_flash_kernel_of_ones_own_comes_within_three_hours_of_whole_chapters():
    before = sum(chapter_reading(slug).minutes for slug in ("00_start_here", "01_attention_basics"))
    assert before + minutes_until("02_flash_attention_minimal/rescale") <= 180
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert "your own flash kernel within three hours" in readme


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda one: one.slug)
def test_every_chapter_has_a_picture_and_those_with_puzzles_say_so(chapter):
    assert first(chapter.slug, PICTURE) is not None
    puzzles = [first(one.slug, PUZZLE) for one in notebooks_of(chapter.number)]
    assert any(puzzles) == (chapter.home in PUZZLES)


def test_what_stands_above_is_counted():
    cells, _ = first("00_start_here", r"^plots\.score_bytes")
    assert cells == 6  # title, imports, heading, picture, text, attention
    assert first("00_start_here", "nothing like it") is None
