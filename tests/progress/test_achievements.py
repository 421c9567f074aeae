"""Achievements and what comes next: from nothing done to everything done."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from course_utils.course import CHAPTERS
from course_utils.grading.catalog import EXERCISE_IDS
from course_utils.progress import Answered, Finished, Overview, Standing, achievements
from course_utils.progress.achievements import _RULES
from course_utils.progress.state import chapter_states, next_steps
from course_utils.questions import catalog

SLUGS = [one.slug for one in CHAPTERS]


def date(day):
    return datetime(2027, 1, day, tzinfo=UTC)  # chapters have their second notebooks


def answered(question, day=1, *, right=True):
    return Answered(question, 1, date(day) if right else None, right, None, 0, date(day))


def finished(slug, day=1):
    return Finished(slug, 1, date(day), date(day))


@pytest.fixture
def solved(graded):
    def make(exercise, day=1, earned=10):
        result = graded(earned, exercise=exercise)
        return Standing(exercise, 1, result, date(day), result, date(day))

    return make


@pytest.fixture
def everything(two_questions, solved):
    return Overview(
        tuple(solved(one) for one in EXERCISE_IDS),
        tuple(answered(one) for one in two_questions),
        tuple(finished(one) for one in SLUGS),
    )


def named(kept):
    return {one.name: one for one in achievements.achievements(kept)}


def test_nothing_is_reached_at_first_and_everything_at_the_end(everything):
    assert 10 <= len(named(Overview())) <= 15
    assert not any(one.reached or one.done for one in named(Overview()).values())
    assert all(one.reached and one.done == one.of > 0 for one in named(everything).values())
    assert next_steps(chapter_states(everything)) == []


def test_each_achievement_is_lost_with_each_thing_that_it_asks_for(everything):
    fields = {"exercise": "exercises", "question": "questions", "chapter": "chapters"}
    keys = {"exercise": "exercise", "question": "question", "chapter": "slug"}
    for rule in _RULES:
        if rule.enough:
            continue
        for kind, one in rule.pieces():
            left = tuple(kept for kept in getattr(everything, fields[kind]) if getattr(kept, keys[kind]) != one)
            found = named(replace(everything, **{fields[kind]: left}))[rule.name]
            assert (found.reached, found.done, found.when) == (False, found.of - 1, None), (rule.name, one)


def test_every_achievement_asks_for_what_the_course_has():
    known = {("chapter", one) for one in SLUGS} | {("exercise", one) for one in EXERCISE_IDS}
    known |= {("question", one) for slug in SLUGS for one in catalog.question_ids(slug)}
    asked = set()
    for rule in _RULES:
        pieces = rule.pieces()
        assert len(set(pieces)) == len(pieces) and set(pieces) <= known, rule.name
        assert rule.description.endswith(".")
        asked |= set(pieces)
    assert asked == known  # nothing of the course is without effect
    # An exercise that is named wrongly in a rule would silently be left out.
    words = " ".join(rule.description for rule in _RULES)
    for exercise in EXERCISE_IDS:
        assert exercise.split("/")[1] in words


def test_an_achievement_dates_from_what_completed_it(solved, two_questions):
    kept = Overview(exercises=(solved("02_flash_attention_minimal/online_softmax", 5),))
    assert named(kept)["First kernel"].when == date(5)
    kept = Overview(exercises=(*kept.exercises, solved("02_flash_attention_minimal/mini_flash", 3)))
    assert (named(kept)["First kernel"].when, named(kept)["Never stored"].when) == (date(3), date(5))


def test_lost_points_and_wrong_answers_do_not_count(solved, two_questions):
    kept = Overview((solved(EXERCISE_IDS[0], earned=9),), (answered(two_questions[0], right=False),))
    assert not any(one.done for one in named(kept).values())


def test_progress_is_told_in_words(two_questions):
    kept = Overview(questions=tuple(answered(one) for one in two_questions[:3]))
    found = named(kept)["Counted before measured"]
    asked = 2 * len([one for one in CHAPTERS if one.number in ("00", "01")])
    assert (found.progress, found.reached) == (f"3 of {asked}", False)


def test_what_this_edition_does_not_have_is_left_out(two_questions, everything):
    more = replace(everything, questions=(*everything.questions, answered("01_attention_basics/gone")))
    assert named(more) == named(everything)
    states = chapter_states(replace(more, chapters=(*more.chapters, finished("06_gone"))))
    assert [len(state.questions) for state in states] == [2] * len(SLUGS)


def test_chapters_without_questions_give_no_achievement_for_nothing(monkeypatch):
    monkeypatch.setattr(achievements, "question_ids", lambda slug: ())
    everything_run = Overview(chapters=tuple(finished(one) for one in SLUGS))
    found = named(everything_run)
    assert not found["Every question"].reached and found["Every question"].of == 0
    assert found["Through the course"].reached


# ---- what comes next


def test_a_newcomer_is_sent_to_the_first_chapter(two_questions):
    (step,) = next_steps(chapter_states(Overview()))
    assert step.path == "notebooks/00_start_here.ipynb" and step.words == "Run chapter 00, Start here"


def test_the_chapter_that_stands_beside_the_way_is_run_last():
    steps = next_steps(chapter_states(Overview(chapters=(finished(SLUGS[0]),))), SLUGS[0])
    assert steps[-1].path == "notebooks/01_attention_basics.ipynb"
    kept = Overview(chapters=tuple(finished(one) for one in SLUGS if one != "00_memory_and_tools"))
    assert next_steps(chapter_states(kept))[-1].path == "notebooks/00_memory_and_tools.ipynb"


def test_after_a_chapter_come_its_open_questions_its_exercise_and_the_next_one(two_questions, solved):
    kept = Overview(
        (solved("02_flash_attention_minimal/online_softmax"),),
        (answered("02_flash_attention_minimal/first"),),
        (finished("00_memory_and_tools"), finished("02_flash_attention_minimal")),
    )
    following = CHAPTERS[SLUGS.index("02_flash_attention_minimal") + 1]
    steps = next_steps(chapter_states(kept), "02_flash_attention_minimal")
    assert [(step.words, step.path, step.heading) for step in steps] == [
        ("Answer the 1 open question of chapter 02", "notebooks/02_flash_attention_minimal.ipynb", "Questions"),
        ("Solve the exercise mini_flash", "exercises/02_flash_attention_minimal/mini_flash.ipynb", ""),
        (f"Run chapter {following.number}, {following.title}", f"notebooks/{following.slug}.ipynb", ""),
    ]
    # Seen from the whole course, what was left open first comes first.
    steps = next_steps(chapter_states(kept))
    assert [step.words for step in steps] == [
        "Answer the 2 open questions of chapter 00, Memory and tools",
        "Solve the exercise conflict_free_tile",
        "Run chapter 00, Start here",
    ]


def test_after_the_last_chapter_comes_what_was_left_out(two_questions, solved):
    of_the_last = tuple(solved(one) for one in EXERCISE_IDS if one.startswith(SLUGS[-1]))
    kept = Overview(of_the_last, chapters=tuple(finished(one) for one in SLUGS if one != SLUGS[3]))
    steps = next_steps(chapter_states(kept), SLUGS[-1])
    assert [step.path for step in steps] == [
        f"notebooks/{SLUGS[-1]}.ipynb",
        f"exercises/{EXERCISE_IDS[0]}.ipynb",
        f"notebooks/{SLUGS[3]}.ipynb",
    ]
