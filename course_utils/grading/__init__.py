"""Exercises and their grader. `check` is for notebooks, `grade` for scripts; what they need is imported when called."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from course_utils.grading.grader import grade
    from course_utils.grading.panel import check

__all__ = ["check", "grade"]


def __getattr__(name: str) -> object:
    if name == "check":
        from course_utils.grading.panel import check

        return check
    if name == "grade":
        from course_utils.grading.grader import grade

        return grade
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
