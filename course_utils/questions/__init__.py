"""Questions of the chapters: kinds, sources and judging. `ask` shows them in a notebook."""

from course_utils.aliases import look_up_in

__all__ = ["ask"]

__getattr__ = look_up_in(__name__)
