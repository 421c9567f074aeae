"""What comes after full marks: the learner's kernel beside the course's own."""

import pytest

from course_utils.grading import comparison
from course_utils.grading.catalog import EXERCISE_IDS, exercise
from course_utils.grading.grader import outcome_of
from course_utils.grading.release import SOLUTIONS
from course_utils.grading.submission import Submission

ID = "01_attention_basics/coalesced_scores"
pytestmark = pytest.mark.usefixtures("no_child")


def solution(exercise_id):
    return (SOLUTIONS / f"{exercise_id}.cu").read_text(encoding="utf-8")


@pytest.mark.parametrize("exercise_id", [one for one in EXERCISE_IDS if exercise(one).kernels])
def test_an_exercise_with_a_kernel_has_a_record_and_something_harder(exercise_id):
    assert comparison.solutions_counted()[exercise_id]["bytes loaded"] > 0 and comparison.HARDER[exercise_id]


@pytest.mark.parametrize(
    "exercise_id",
    [
        ID,
        *(
            pytest.param(one, marks=pytest.mark.exhaustive("each solution is run by the grader's tests"))
            for one in EXERCISE_IDS
            if one != ID and exercise(one).kernels
        ),
    ],
)
def test_the_record_is_what_the_solution_counts(exercise_id):
    task = exercise(exercise_id)
    outcome = outcome_of(task, Submission(exercise_id, kernel=solution(exercise_id)), comparison.counted_case(task))
    assert comparison.counts(outcome) == comparison.solutions_counted()[exercise_id], "run make exercises"


def test_a_wasteful_kernel_is_seen_beside_the_courses_and_the_least():
    """Without the column of padding a warp reads a column of K's tile from one bank."""
    conflicts = Submission(ID, kernel=solution(ID).replace("K_tile[TILE][TILE + 1]", "K_tile[TILE][TILE]"))
    shown = comparison.compare_with_solution(conflicts)
    figures = {figure.name: figure for figure in shown.figures}
    assert figures["bytes loaded"].yours == figures["bytes loaded"].ours >= figures["bytes loaded"].least > 0
    assert figures["bank conflicts"].yours > figures["bank conflicts"].ours == 0
    assert "no finding of the sanitizer" in shown.line and shown.title in shown.line
    assert shown.to_html().count("ak-yours") == len(figures) and shown.harder in str(shown)


def test_a_kernel_that_does_not_run_has_no_picture():
    assert comparison.compare_with_solution(Submission(ID, kernel="no kernel")) is None


@pytest.mark.parametrize(("count", "text"), [(12, "12 bytes"), (82_000, "82 kB"), (1_300_000, "1.3 MB")])
def test_bytes_in_words(count, text):
    assert comparison.shown_bytes(count) == text
