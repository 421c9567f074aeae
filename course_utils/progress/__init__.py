"""A learner's progress: chapters run, questions answered, exercises graded, and the achievements for them.

`course_utils.widgets` has the cards for notebooks, `finish_chapter` and `show_progress`.
"""

from course_utils.progress.store import (
    Answered,
    Finished,
    Forgotten,
    Guessed,
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
    record_guess,
    reset,
)

__all__ = [
    "Answered",
    "Finished",
    "Forgotten",
    "Guessed",
    "Overview",
    "ProgressError",
    "Standing",
    "export",
    "learner_seed",
    "overview",
    "progress_file",
    "record_answer",
    "record_exercise",
    "record_finished",
    "record_guess",
    "reset",
]
