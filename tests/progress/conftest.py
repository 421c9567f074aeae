"""A learner of their own for each test, results to keep, and a small catalogue of questions."""

from datetime import UTC, datetime

import pytest

from course_utils.course import CHAPTERS
from course_utils.grading.exercise import Diagnosis
from course_utils.grading.result import RIGHT, WRONG, PartResult, Result
from course_utils.progress import achievements, state
from course_utils.questions import catalog


@pytest.fixture(autouse=True)
def data_home(tmp_path, monkeypatch):
    """The folder below which this test's progress is kept."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def graded():
    """graded(earned, ...) -> a result of ten points, `earned` of them."""

    def make(earned, *, exercise="02_flash_attention_minimal/mini_flash", seed=0, bonus=0):
        found = Diagnosis("the mask is off by one", "at 0, 1", "chapter 02, section 2")
        lost = PartResult("mask", "Causal", 10 - earned, 0, WRONG, diagnosis=found)
        parts = [PartResult("values", "Values", earned, earned, RIGHT)]
        parts += [lost] if earned < 10 else []
        parts += [PartResult("speed", "Speed", bonus, bonus, RIGHT, bonus=True)] if bonus else []
        return Result(exercise, "Mini <Flash>", "d1ge57", seed, "cpu", "ok", tuple(parts))

    return make


@pytest.fixture
def two_questions(monkeypatch):
    """Every chapter has two questions, `<slug>/first` and `<slug>/second`; returns all ids."""

    def question_ids(slug):
        return f"{slug}/first", f"{slug}/second"

    monkeypatch.setattr(state, "question_ids", question_ids)
    monkeypatch.setattr(achievements, "question_ids", question_ids)
    monkeypatch.setattr(catalog, "title", lambda question_id: f"Title of {question_id} <&>")
    return [one for chapter in CHAPTERS for one in question_ids(chapter.slug)]


@pytest.fixture
def after_the_split(monkeypatch):
    """Today is later than the day up to which a finished first notebook stands for both: else tests would say one thing
    before it and another after it."""
    monkeypatch.setattr(state, "ONE_NOTEBOOK_UNTIL", datetime(2000, 1, 1, tzinfo=UTC))
