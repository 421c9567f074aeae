"""Questions of the chapters: kinds, sources, judging, and the widget that asks them.

The widget, which needs Jupyter, is imported when `ask` is first looked up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from course_utils.questions.widget import ask

__all__ = ["ask"]


def __getattr__(name: str) -> object:
    if name == "ask":
        from course_utils.questions.widget import ask

        return ask
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
