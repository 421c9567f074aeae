"""Questions of the chapters: kinds, sources and judging. `ask` shows them in a notebook."""

from course_utils import aliases

__all__ = ["ask"]

__getattr__ = aliases(__name__)
