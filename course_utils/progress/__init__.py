"""What a learner has done: chapters run, questions answered, exercises graded, and what that amounts to.

`finish` and `show` are cards for notebooks.
"""

from course_utils.aliases import look_up_in
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
    "finish",
    "learner_seed",
    "overview",
    "progress_file",
    "record_answer",
    "record_exercise",
    "record_finished",
    "record_guess",
    "reset",
    "show",
]


__getattr__ = look_up_in(__name__)
