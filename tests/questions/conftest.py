"""The demo chapter with one question of each kind."""

import sys

import pytest

from course_utils import course


@pytest.fixture
def demo(monkeypatch):
    """The module of the demo's questions, installed as a chapter of the course for one test."""
    monkeypatch.syspath_prepend(__file__.rpartition("/")[0])
    monkeypatch.setattr(course, "CHAPTERS", course.CHAPTERS)
    import demo_questions

    demo_questions.install()
    yield demo_questions
    sys.modules.pop("course_utils.questions.sources.demo")
