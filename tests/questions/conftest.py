"""The demo chapter with one question of each kind."""

import sys

import pytest

from course_utils import course
from tests.helpers.one_thread import one_thread  # noqa: F401


@pytest.fixture(scope="session")
def seeds(request):
    """seeds(few, many): as many seeds as a test draws a question with, few in `make test`, many in `make test-all`."""
    return lambda few, many: range(many if request.config.getoption("--exhaustive") else few)


@pytest.fixture
def demo(monkeypatch):
    """The module of the demo's questions, installed as a chapter of the course for one test."""
    monkeypatch.syspath_prepend(__file__.rpartition("/")[0])
    monkeypatch.setattr(course, "CHAPTERS", course.CHAPTERS)
    import demo_questions

    demo_questions.install()
    yield demo_questions
    sys.modules.pop("course_utils.questions.sources.demo")
