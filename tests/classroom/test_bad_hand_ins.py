"""Twenty-one ways to spoil a hand-in: each gets a sentence for the student, and no class run stops."""

import csv
import shutil
from pathlib import Path

import pytest

from course_utils.classroom.class_folder import read_class
from course_utils.grading.catalog import EXERCISE_IDS, exercise_ids
from course_utils.grading.examples import examples_of
from course_utils.grading.release import ROOT, SOLUTIONS
from course_utils.grading.submission import Submission, read_submission
from tests.helpers.bad_hand_ins import BAD, words_of

CHAPTER, NAME = "01_attention_basics", "coalesced_scores"
ID = f"{CHAPTER}/{NAME}"


def spoiled(folder: Path, kind: str) -> Path:
    """submitted/KIND/ of a class: the solution, spoiled."""
    place = folder / "submitted" / kind / CHAPTER
    place.mkdir(parents=True)
    for suffix in (".cu", ".ipynb"):
        shutil.copy(SOLUTIONS / f"{ID}{suffix}", place / f"{NAME}{suffix}")
    BAD[kind][0](place, NAME)
    return place


def told(submission: Submission) -> str:
    return "; ".join((*(problem.name for problem in submission.problems.values()), *submission.notes))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "students.csv").write_text("id\n" + "".join(f"{kind}\n" for kind in BAD))
    return tmp_path


def test_each_gets_a_sentence(folder: Path) -> None:
    for kind in BAD:
        spoiled(folder, kind)
    classroom = read_class(folder)
    assert {student for student, _ in classroom.hand_ins()} == set(BAD)
    for kind in BAD:
        submission = classroom.hand_in(kind, ID)
        assert words_of(kind, NAME) in told(submission), kind
        assert submission.status != "ok" or kind in ("browsers_name", "half_a_pair")
        assert "\n" not in told(submission) and "Traceback" not in told(submission)


@pytest.mark.parametrize(
    "name",
    [
        "* (1).cu", "*(2).cu", "* - Copy.cu", "* - Copy (2).cu", "* copy.cu", "Copy of *.cu", "*-Copy1.cu", "*.cu.txt",
        "* - Kopie.cu", "*.CU",
    ],
)  # fmt: skip
def test_a_browsers_name_is_taken_if_it_is_the_only_one(tmp_path: Path, name: str) -> None:
    name = name.replace("*", NAME)
    shutil.copy(SOLUTIONS / f"{ID}.cu", tmp_path / name)
    submission = read_submission(tmp_path, ID)
    assert submission.kernel is not None and submission.notes == (f"{name} was taken as {NAME}.cu",)
    shutil.copy(SOLUTIONS / f"{ID}.cu", tmp_path / f"{NAME}.cu")
    both = read_submission(tmp_path, ID)
    assert both.notes == (f"{name} lies beside {NAME}.cu and was not graded",) and both.digest != submission.digest


def test_no_exercise_is_taken_for_another() -> None:
    """Neither the solution nor the skeleton nor a known submission, right or wrong, is refused."""
    for exercise_id in EXERCISE_IDS:
        for example in examples_of(exercise_id, ROOT / "tests" / "grading" / "submissions"):
            submission = example.submission()
            assert set(submission.statuses.values()) == {"ok"} and not submission.notes, (exercise_id, example.name)


@pytest.mark.timeout(1200)
@pytest.mark.exhaustive("test_nbgrader.py has the ways that nbgrader stops at, with a stand-in for the grader")
def test_a_hundred_hand_ins_of_which_twenty_are_bad(folder: Path) -> None:
    """From release to feedback, as a teacher does it: everybody has a mark and a page, and the page says why."""
    pytest.importorskip("nbgrader")
    pytest.importorskip("distributed")
    from course_utils.classroom import nbgrader_course
    from course_utils.classroom.grading import grade_class
    from tests.helpers.forked_child import grade_in_fork_or_sandbox

    assert exercise_ids(CHAPTER) == (ID,)
    students = [*BAD, *(f"s{number}" for number in range(100 - len(BAD)))]
    (folder / "students.csv").write_text("id;last_name\n" + "".join(f"{student};L\n" for student in students))
    for kind in BAD:
        spoiled(folder, kind)
    known = examples_of(ID, ROOT / "tests" / "grading" / "submissions")
    handed_in = {student: known[place % len(known)] for place, student in enumerate(students[len(BAD) :])}
    for student, example in handed_in.items():
        example.write(folder / "submitted" / student / CHAPTER)
    assert nbgrader_course.release(folder, [CHAPTER]) == 0
    summary = grade_class(folder, isolation="limits", grade=grade_in_fork_or_sandbox)
    assert summary.graded == 100 and not summary.failures
    with (folder / "grades.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file, delimiter=";")}
    assert set(rows) == set(students) and all(row["points"] for row in rows.values())
    for student, example in handed_in.items():
        full = rows[student]["points"] == rows[student]["max_points"]
        assert full == example.right, (student, example.name, rows[student])
    assert nbgrader_course.feedback(folder) == 0
    pages = {path.parts[-3]: path.read_text() for path in (folder / "feedback").glob(f"*/{CHAPTER}/{NAME}.html")}
    assert set(pages) == set(students)
    for student, page in pages.items():
        assert f'<p class="points">{rows[student]["points"]} of {rows[student]["max_points"]} points</p>' in page
        assert "Traceback" not in page and "nbgrader" not in page
    for kind in BAD:
        assert words_of(kind, NAME) in pages[kind], kind
