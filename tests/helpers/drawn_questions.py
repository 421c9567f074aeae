"""The questions of all chapters, as learners draw them."""

import functools

from course_utils import course
from course_utils.questions.catalog import question, question_ids
from course_utils.questions.question import Question
from course_utils.questions.sheet import labels

SEEDS = range(200)
IDS = [one for chapter in course.CHAPTERS for one in question_ids(chapter.slug)]


def ids_of(*kinds: type) -> list[str]:
    """The ids of the questions of these kinds."""
    return [one for one in IDS if isinstance(question(one, 0), kinds)]


@functools.cache
def drawn(question_id: str, seeds: range = SEEDS) -> tuple[Question, ...]:
    """The different questions among those of the seeds; in which order options stand makes no difference."""
    found = (question(question_id, seed) for seed in seeds)
    return tuple({(one.prompt, *sorted(labels(one))): one for one in found}.values())
