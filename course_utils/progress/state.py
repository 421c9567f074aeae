"""How far a learner is, chapter by chapter, and what comes next."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from course_utils.course import CHAPTERS, Chapter, chapter
from course_utils.grading.catalog import exercises_of_notebook
from course_utils.progress.store import Answered, Finished, Overview, Standing
from course_utils.questions.catalog import question_ids

QUESTIONS_HEADING = "Questions"
ONE_NOTEBOOK_UNTIL = datetime(2026, 11, 25, tzinfo=UTC)  # then some chapters got a second one


@dataclass(frozen=True)
class ChapterState:
    """One chapter: whether it was run to its end, its questions and its exercises by id, in their order.

    None: the question was not answered, or the exercise not graded. Ids in the store that this edition of the course
    does not have are left out.
    """

    chapter: Chapter
    finished: Finished | None
    questions: dict[str, Answered | None]
    exercises: dict[str, Standing | None]

    @property
    def open_questions(self) -> list[str]:
        """The questions without a right answer so far."""
        return [one for one, record in self.questions.items() if record is None or record.right_at is None]

    @property
    def open_exercises(self) -> list[str]:
        """The exercises without all their points so far."""
        return [one for one, record in self.exercises.items() if record is None or not record.best.full]

    @property
    def questions_right(self) -> int:
        """How many questions have a right answer."""
        return len(self.questions) - len(self.open_questions)

    @property
    def exercises_done(self) -> int:
        """How many exercises have all their points."""
        return len(self.exercises) - len(self.open_exercises)


@dataclass(frozen=True)
class Step:
    """Something to do next, and the notebook to do it in.

    path: relative to the repository's root. heading: where in the notebook ("Questions"); "" for its beginning.
    """

    words: str
    path: str
    heading: str = ""


def chapter_state(slug: str, overview: Overview) -> ChapterState:
    """The state of one chapter. Raises LookupError for a chapter that does not exist."""
    exercises = {one.exercise: one for one in overview.exercises}
    questions = {one.question: one for one in overview.questions}
    return ChapterState(
        chapter=chapter(slug),
        finished=finished(overview).get(slug),
        questions={one: questions.get(one) for one in question_ids(slug)},
        exercises={one: exercises.get(one) for one in exercises_of_notebook(slug)},
    )


def finished(overview: Overview) -> dict[str, Finished]:
    """The chapters that were run to their end, by slug.

    A chapter that was finished when it still had one notebook was finished whole, with what is in its second one now.
    """
    runs = {one.slug: one for one in overview.chapters}
    whole = {slug: one for slug, one in runs.items() if one.first_at < ONE_NOTEBOOK_UNTIL}
    return {one.slug: whole[one.of] for one in CHAPTERS if one.of in whole} | runs


def chapter_states(overview: Overview) -> list[ChapterState]:
    """All chapters, in the order of the course."""
    return [chapter_state(one.slug, overview) for one in CHAPTERS]


def next_steps(states: list[ChapterState], slug: str = "") -> list[Step]:
    """At most one chapter with open questions, one exercise and one chapter to run; empty once everything is done.

    slug: the learner's current chapter: its open parts and the later chapters' come before what was left open earlier.
    A side chapter is run last.
    """
    here = next((n for n, state in enumerate(states) if state.chapter.slug == slug), 0)
    ahead = states[here:] + states[:here]
    steps = []
    # A chapter that was not run yet has its turn with its questions and exercises later.
    known = [state for state in ahead if state.finished]
    if state := next((state for state in known if state.open_questions), None):
        open_ones = counted(len(state.open_questions), "open question")
        words = f"Answer the {open_ones} of {state.chapter.words}"
        steps.append(Step(words, notebook(state.chapter.slug), QUESTIONS_HEADING))
    if found := next((one for state in known for one in state.open_exercises), None):
        steps.append(Step(f"Solve the exercise {found.split('/')[1]}", exercise_notebook(found)))
    to_run = sorted((state for state in ahead if not state.finished), key=lambda state: state.chapter.on_demand)
    if state := next(iter(to_run), None):
        steps.append(Step(f"Run chapter {state.chapter.number}, {state.chapter.title}", notebook(state.chapter.slug)))
    return steps


def notebook(slug: str) -> str:
    """A chapter's notebook, relative to the repository's root."""
    return f"notebooks/{slug}.ipynb"


def exercise_notebook(exercise_id: str) -> str:
    """An exercise's notebook, relative to the repository's root."""
    return f"exercises/{exercise_id}.ipynb"


def counted(count: int, noun: str) -> str:
    """ "1 exercise", "3 exercises"."""
    return f"{count} {noun}{'s' if count != 1 else ''}"
