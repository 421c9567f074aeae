"""A learner sees and writes early: limits for what is read before, and the counting itself."""

import re

import pytest

from course_utils.course import CHAPTERS, notebooks_of
from course_utils.reading import firsts
from course_utils.reading.firsts import WHAT, First, first


def test_a_kernel_of_ones_own_comes_within_twenty_minutes_and_attention_within_an_hour():
    puzzle = first("00_start_here", WHAT["puzzle"])
    assert puzzle.minutes <= 10 and puzzle.cells <= 10 and puzzle.words <= 600
    assert first("00_start_here", re.compile("^%%puzzle 00_start_here/scores_of_one_query")).minutes <= 20
    assert firsts.first_attention_kernel() <= 30  # the rest of the hour is for a clone, an installation, a second try


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda one: one.slug)
def test_every_chapter_has_a_picture_and_those_with_puzzles_say_so(chapter):
    assert first(chapter.slug, WHAT["picture"]) is not None
    puzzles = [first(one.slug, WHAT["puzzle"]) for one in notebooks_of(chapter.number)]
    assert any(puzzles) == (chapter.home in firsts.PUZZLES)


def test_what_stands_above_is_counted():
    found = first("00_start_here", re.compile(r"^plots\.score_bytes"))
    assert isinstance(found, First) and found.cells == 6  # title, imports, heading, picture, text, attention
    assert first("00_start_here", re.compile("nothing like it")) is None
