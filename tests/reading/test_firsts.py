"""A learner sees and writes early: limits for what is read before, and the counting itself."""

import argparse
import re
from pathlib import Path

import pytest

from course_utils.commands import reading
from course_utils.course import CHAPTERS, notebooks_of
from course_utils.reading import firsts
from course_utils.reading.firsts import WHAT, First, first
from course_utils.reading.minutes import chapter_reading

ROOT = Path(__file__).resolve().parents[2]


def test_a_kernel_of_ones_own_comes_within_twenty_minutes_and_attention_within_an_hour():
    puzzle = first("00_start_here", WHAT["puzzle"])
    assert puzzle.minutes <= 10 and puzzle.cells <= 10 and puzzle.words <= 600
    assert first("00_start_here", re.compile("^%%puzzle 00_start_here/scores_of_one_query")).minutes <= 20
    assert firsts.first_attention_kernel() <= 30  # the rest of the hour is for a clone, an installation, a second try


def test_a_flash_kernel_of_ones_own_comes_within_three_hours_of_whole_chapters():
    before = sum(chapter_reading(slug).minutes for slug in ("00_start_here", "01_attention_basics"))
    assert before + 10 < firsts.first_flash_kernel() <= 180


def test_the_readme_says_when_and_the_command_prints_it(capsys):
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert "a whole attention kernel of your own before half an hour is over" in readme
    assert "a flash kernel of your own before three hours are" in readme
    reading.run(argparse.Namespace(write=False))
    printed = capsys.readouterr().out
    assert f"attention kernel of one's own: after {firsts.first_attention_kernel():.0f} minutes" in printed
    assert f"flash kernel of one's own: after {firsts.first_flash_kernel():.0f} minutes" in printed


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda one: one.slug)
def test_every_chapter_has_a_picture_and_those_with_puzzles_say_so(chapter):
    assert first(chapter.slug, WHAT["picture"]) is not None
    puzzles = [first(one.slug, WHAT["puzzle"]) for one in notebooks_of(chapter.number)]
    assert any(puzzles) == (chapter.home in firsts.PUZZLES)


def test_what_stands_above_is_counted():
    found = first("00_start_here", re.compile(r"^plots\.score_bytes"))
    assert isinstance(found, First) and found.cells == 6  # title, imports, heading, picture, text, attention
    assert first("00_start_here", re.compile("nothing like it")) is None
