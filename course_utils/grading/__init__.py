"""Grades one submission of an exercise. `check` is for notebooks, `grade` for scripts."""

from course_utils.aliases import look_up_in

__all__ = ["check", "grade"]

__getattr__ = look_up_in(__name__)
