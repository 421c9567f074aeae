"""Grades one submission of an exercise. `check` is for notebooks, `grade` for scripts."""

from course_utils import aliases

__all__ = ["check", "grade"]

__getattr__ = aliases(__name__)
