"""Quick children for submissions that we trust."""

import pytest
import torch

from course_utils.grading import children
from tests.helpers.forked_child import run_fork
from tests.helpers.runner_here import grade_here


@pytest.fixture
def quick_child(monkeypatch):
    """The grader without its sandbox, which costs two seconds a submission. A process with CUDA cannot be forked."""
    if not torch.cuda.is_initialized():
        monkeypatch.setattr(children, "run_child", run_fork)


@pytest.fixture
def no_child(monkeypatch):
    """The grader without any child, for submissions that neither end their process nor hang."""
    grade_here(monkeypatch)
