"""The puzzles' kernels here are ours: they are graded without a child, which is ten times as fast as in the sandbox."""

import pytest

from tests.helpers.runner_here import grade_here


@pytest.fixture(autouse=True)
def graded_here(monkeypatch):
    grade_here(monkeypatch)
