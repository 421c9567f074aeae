"""Who has worked through a chapter when it had one notebook has done all of it: no mark and no achievement is lost.

`ids_of_november_2026.txt` has the ids of that edition: what a progress file of then can hold.
"""

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from course_utils.course import CHAPTERS
from course_utils.grading.catalog import EXERCISE_IDS, IN_SECOND_NOTEBOOK, exercises_of_notebook
from course_utils.progress import Answered, Finished, Overview, Standing, achievements, store
from course_utils.progress.state import ONE_NOTEBOOK_UNTIL, chapter_state, chapter_states, finished, next_steps
from course_utils.questions.catalog import question, question_ids, source, title

SECOND = [one for one in CHAPTERS if one.of]
BEFORE, AFTER = ONE_NOTEBOOK_UNTIL - timedelta(days=9), ONE_NOTEBOOK_UNTIL + timedelta(days=9)


def ids(kind: str) -> list[str]:
    """Of "chapters", "questions", "exercises" or "questions taken out since"."""
    text = (Path(__file__).parent / "ids_of_november_2026.txt").read_text(encoding="utf-8")
    return text.split(f"# {kind}\n")[1].split("\n#")[0].split()


@pytest.fixture
def all_done(graded):
    def make(day: datetime) -> Overview:
        """All that the edition of then had, done on a day."""
        results = {one: graded(10, exercise=one) for one in ids("exercises")}
        return Overview(
            tuple(Standing(one, 1, result, day, result, day) for one, result in results.items()),
            tuple(Answered(one, 1, day, True, None, 0, day) for one in ids("questions")),
            tuple(Finished(one, 1, day, day) for one in ids("chapters")),
        )

    return make


def test_an_old_file_keeps_every_mark_and_every_achievement(all_done):
    """But for those that ask for everything: the course has gained chapters and exercises, and they are left to do."""
    kept, new = all_done(BEFORE), [one for one in EXERCISE_IDS if one not in ids("exercises")]
    gained = [one.slug for one in CHAPTERS if one.home not in ids("chapters")]
    assert gained == ["06_serving", "07_hopper"] and not any(chapter_state(one, kept).finished for one in gained)
    for state in chapter_states(kept):
        if state.chapter.slug in gained:
            continue
        assert state.finished and state.finished.first_at == BEFORE, state.chapter.slug
        assert state.open_questions == [] and set(state.open_exercises) <= set(new)
    reached = {one.name: one.when for one in achievements.achievements(kept)}
    asks_for_more = "Every exercise", "Every question", "Through the course", "One token at a time"
    assert [reached.pop(name) for name in asks_for_more] == [None] * 4
    assert set(reached.values()) == {BEFORE}
    assert [step.path for step in next_steps(chapter_states(kept))] == [
        f"exercises/{new[0]}.ipynb",
        f"notebooks/{gained[0]}.ipynb",
    ]


def test_the_questions_and_exercises_of_then_are_there_once():
    asked = [one for chapter in CHAPTERS for one in question_ids(chapter.slug)]
    assert sorted(asked) == sorted(set(asked))
    assert set(ids("questions")) - set(ids("questions taken out since")) <= set(asked)
    led_to = [one for chapter in CHAPTERS for one in exercises_of_notebook(chapter.slug)]
    assert sorted(led_to) == sorted(set(led_to)) and set(ids("exercises")) <= set(led_to)
    assert set(IN_SECOND_NOTEBOOK) <= set(led_to)


def test_no_question_has_the_id_of_one_that_was_taken_out():
    """Whoever answered the old one would else have answered the new one."""
    asked = {one for chapter in CHAPTERS for one in question_ids(chapter.slug)}
    assert asked.isdisjoint(ids("questions taken out since"))


def test_an_answer_to_a_question_that_was_taken_out_stays_in_the_file_and_counts_nowhere():
    for one in ids("questions taken out since"):
        store.record_answer(one, True, 1, 0)
    kept = store.overview()
    assert [one.question for one in kept.questions] == ids("questions taken out since")
    assert not any(state.questions_right for state in chapter_states(kept))
    assert not any(one.done for one in achievements.achievements(kept))
    left = [one for chapter in CHAPTERS for one in question_ids(chapter.slug)]
    for one in left:
        store.record_answer(one, True, 1, 0)
    kept = store.overview()
    assert sum(state.questions_right for state in chapter_states(kept)) == len(left)
    (every,) = (one for one in achievements.achievements(kept) if one.name == "Every question")
    assert every.reached and every.done == every.of == len(left)


@pytest.mark.parametrize("chapter", SECOND, ids=lambda one: one.slug)
def test_who_finishes_the_first_notebook_now_has_the_second_before_them(chapter, all_done):
    state = chapter_state(chapter.slug, all_done(AFTER))
    assert state.finished is None
    run = Finished(chapter.slug, 1, AFTER, AFTER)
    assert finished(Overview(chapters=(run,))) == {chapter.slug: run}


@pytest.mark.parametrize("chapter", SECOND, ids=lambda one: one.slug)
def test_the_second_notebook_asks_under_the_ids_of_the_chapter(chapter):
    asked = question_ids(chapter.slug)
    assert asked and not set(asked) & set(question_ids(chapter.of))
    for one in asked:
        assert one.startswith(f"{chapter.of}/") and title(one) and question(one, 0) == question(one, 0)
        assert source(one).__module__.endswith(f".{chapter.name}")
