"""The demo chapter with one question of each kind."""

import sys

import pytest
import torch

from course_utils import course


@pytest.fixture(scope="package", autouse=True)
def one_thread():
    """The sources' small tensors: to share them out costs more than the work, most on a machine that is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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
