"""What a learner has done: chapters run, questions answered, exercises graded, and what that amounts to.

The store is imported at once; the cards, which need Jupyter, when they are called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from course_utils.progress.store import (
    Answered,
    Finished,
    Forgotten,
    Overview,
    ProgressError,
    Standing,
    export,
    learner_seed,
    overview,
    progress_file,
    record_answer,
    record_exercise,
    record_finished,
    reset,
)

if TYPE_CHECKING:
    from course_utils.progress.card import finish, show

__all__ = [
    "Answered",
    "Finished",
    "Forgotten",
    "Overview",
    "ProgressError",
    "Standing",
    "export",
    "finish",
    "learner_seed",
    "overview",
    "progress_file",
    "record_answer",
    "record_exercise",
    "record_finished",
    "reset",
    "show",
]


def __getattr__(name: str) -> object:
    if name in ("finish", "show"):
        from course_utils.progress import card

        return getattr(card, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
