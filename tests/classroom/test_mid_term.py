"""What happens to a class in mid-term, in nbgrader too: an exercise comes, a student leaves, points are given by hand.

A stand-in grades: it does what the text of the "kernel" says (conftest.py).
"""

import csv
import os
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("nbgrader")
pytest.importorskip("distributed")

from nbgrader.api import Gradebook, MissingEntry

from course_utils.classroom import nbgrader_course
from course_utils.classroom.by_hand import ByHand, choose, hand_in_code, read_by_hand
from course_utils.classroom.class_folder import ClassroomError, read_class
from course_utils.classroom.grading import Summary
from tests.helpers.all_of import all_of
from tests.helpers.class_folder import CHAPTER, EXERCISE, NAME, hand_in, make, table

Graded = Callable[..., Summary]
OWN = f"{CHAPTER}/scale_rows"
RIGHT = 5  # the stand-in's points with seed 7
SHARED = "02_flash_attention_minimal"


def assign(folder: Path, *lines: str) -> None:
    (folder / "assignments.csv").write_text("assignment,due\n" + "".join(f"{line},\n" for line in lines))


def by_hand(folder: Path, *lines: str) -> None:
    (folder / "by_hand.csv").write_text("\n".join(("student,exercise,points,comment,hand_in", *lines, "")))


def pages(folder: Path) -> dict[str, str]:
    """By student and exercise, what a page says of points."""
    found = {}
    for path in sorted((folder / "feedback").glob("*/*/*.html")):
        points = path.read_text().partition('<p class="points">')[2].partition("</p>")[0]
        found[f"{path.parts[-3]}/{path.stem}"] = points
    return found


def change_in_formgrader(folder: Path, student: str, points: float) -> None:
    with Gradebook(f"sqlite:///{folder}/gradebook.db") as gradebook:
        (grade,) = gradebook.find_submission_notebook(NAME, CHAPTER, student).grades
        grade.manual_score = points
        gradebook.db.commit()


def totals(folder: Path) -> dict[str, str]:
    return {student: row["total"] for student, row in table(folder, "grades_by_student.csv").items()}


# ---- an exercise comes


def test_an_exercise_comes_to_a_chapter_in_use(
    tmp_path: Path, graded: Graded, own_exercise: str, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = make(tmp_path / "class", "a", "b")
    assign(folder, NAME)
    assert nbgrader_course.release(folder) == 0
    hand_in(folder, "a")
    hand_in(folder, "b", "wrong")
    graded(folder)
    assert nbgrader_course.feedback(folder) == 0
    assert pages(folder) == {f"a/{NAME}": "5 of 17 points", f"b/{NAME}": "0 of 17 points"}

    assign(folder, NAME, "scale_rows")
    capfd.readouterr()
    graded(folder)
    assert nbgrader_course.feedback(folder) == 1
    assert (
        f"{OWN}: no feedback: it is not in {folder}/release; run `classroom release {CHAPTER}`"
        in capfd.readouterr().out
    )
    assert nbgrader_course.release(folder) == 0
    assert {path.name for path in (folder / "release" / CHAPTER).iterdir()} == {
        f"{name}.{suffix}" for name in (NAME, "scale_rows") for suffix in ("cu", "ipynb")
    }
    (folder / "submitted" / "a" / CHAPTER / "scale_rows.cu").write_text("right __global__ void scale_rows(")
    graded(folder)
    assert nbgrader_course.feedback(folder) == 0
    assert pages(folder) == {
        f"a/{NAME}": "5 of 17 points", "a/scale_rows": "5 of 5 points",
        f"b/{NAME}": "0 of 17 points", "b/scale_rows": "0 of 5 points",
    }  # fmt: skip
    with Gradebook(f"sqlite:///{folder}/gradebook.db") as gradebook:
        scores = {one.student.id: (one.score, one.max_score) for one in gradebook.assignment_submissions(CHAPTER)}
    assert scores == {"a": (10, 22), "b": (0, 22)}

    assign(folder, NAME)
    assert nbgrader_course.release(folder) == 0 and nbgrader_course.feedback(folder) == 0
    assert pages(folder).keys() == {f"a/{NAME}", f"b/{NAME}"}, "one that is taken back leaves no page"


def test_what_was_handed_out_outlives_a_release_that_fails(
    tmp_path: Path, own_exercise: str, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = make(tmp_path / "class", "a")
    assign(folder, NAME)
    nbgrader_course.release(folder)
    before = {path.name: path.read_bytes() for path in (folder / "release" / CHAPTER).iterdir()}
    assign(folder, NAME, "scale_rows")
    kernel = Path(os.environ["COURSE_OWN_EXERCISES"], f"{OWN}.cu")
    kernel.write_text(kernel.read_text().replace("// BEGIN SOLUTION\n", ""))
    capfd.readouterr()
    assert nbgrader_course.release(folder) == 1
    said = "".join(capfd.readouterr())
    assert "not released, what was released before is as it was" in said and "Traceback" not in said
    assert {path.name: path.read_bytes() for path in (folder / "release" / CHAPTER).iterdir()} == before


def test_an_exercise_that_an_update_brings_is_no_zero_before_it_is_handed_out(tmp_path: Path, graded: Graded) -> None:
    for lines in ([], [SHARED]):
        folder = make(tmp_path / f"class {len(lines)}", "a")
        (folder / "assignments.csv").unlink()
        if lines:
            assign(folder, *lines)
        (folder / "release" / SHARED).mkdir(parents=True)
        (folder / "release" / SHARED / "mini_flash.ipynb").touch()
        (folder / "submitted" / "a" / SHARED).mkdir(parents=True)
        summary = graded(folder)
        assert [row.exercise for row in summary.rows] == [f"{SHARED}/mini_flash"]
        assert f"note: {SHARED}/online_softmax is not in release/: it is in no table until `classroom release" in str(
            summary
        )


def test_only_what_is_assigned_is_released_and_in_the_gradebook(tmp_path: Path, graded: Graded) -> None:
    folder = make(tmp_path / "class", "a")
    assign(folder, "mini_flash", NAME)
    assert nbgrader_course.release(folder) == 0
    assert {path.name for path in (folder / "release").iterdir()} == {CHAPTER, SHARED}
    assert {path.stem for path in (folder / "release" / SHARED).iterdir()} == {"mini_flash"}
    with pytest.raises(ValueError, match="chapters: got 00_start_here; takes 01_attention_basics, 02_flash"):
        nbgrader_course.release(folder, ["00_start_here"])
    with Gradebook(f"sqlite:///{folder}/gradebook.db") as gradebook:
        assert [one.name for one in gradebook.find_assignment(SHARED).notebooks] == ["mini_flash"]
        with pytest.raises(MissingEntry):
            gradebook.find_assignment("03_flash_attention_v2")


def test_a_chapter_that_is_not_assigned_any_more_is_taken_back(tmp_path: Path, graded: Graded) -> None:
    folder = make(tmp_path / "class", "a")
    assign(folder, "mini_flash", NAME)
    nbgrader_course.release(folder)
    hand_in(folder, "a", "wrong")
    graded(folder)
    nbgrader_course.feedback(folder)
    change_in_formgrader(folder, "a", 4.0)
    assign(folder, "mini_flash")
    assert nbgrader_course.release(folder, [SHARED]) == 0
    assert (folder / "release" / CHAPTER).exists(), "only what was asked for"
    assert nbgrader_course.release(folder) == 0
    assert {path.name for path in (folder / "release").iterdir()} == {SHARED} and pages(folder) == {}
    with Gradebook(f"sqlite:///{folder}/gradebook.db") as gradebook:
        assert [one.name for one in gradebook.assignments] == [SHARED]
    assign(folder, "mini_flash", NAME)
    assert nbgrader_course.release(folder) == 0
    graded(folder)
    assert nbgrader_course.feedback(folder) == 0
    assert pages(folder)[f"a/{NAME}"] == "4 of 17 points"
    assert table(folder, "grades_by_student.csv")["a"][EXERCISE] == "4"


# ---- points by hand


def test_points_by_hand_hold_for_the_hand_in_that_they_were_given_for(tmp_path: Path, graded: Graded) -> None:
    folder = make(tmp_path / "class", "a", "b")
    hand_in(folder, "a", "wrong")
    graded(folder)
    code = table(folder)["a"]["hand_in"]
    assert code == hand_in_code(read_class(folder).hand_in("a", EXERCISE).digest) and code.startswith("h")
    by_hand(folder, f"a,{NAME},4.5,at the board,{code}", f"b,{EXERCISE},2,,", "gone,mini_flash,1,,")
    summary = graded(folder)
    rows = table(folder)
    assert (rows["a"]["points"], rows["a"]["points_by_hand"], rows["a"]["points_by_grader"]) == ("4.5", "4.5", "0")
    assert rows["a"]["notes"] == "points given by hand: at the board" and rows["b"]["points"] == "2"
    assert table(folder, "grades_moodle.csv", "ID number")["a"][f"{EXERCISE} (feedback)"].endswith(rows["a"]["notes"])
    said = str(summary)
    assert "points given by hand: 2, see" in said and "look again" not in said
    assert "note: by_hand.csv, line 4: there is no student 'gone'" in said

    hand_in(folder, "a", "right now")
    said = str(graded(folder))
    row = table(folder)["a"]
    assert row["points"] == str(RIGHT) and row["points_by_hand"] == "", "the better hand-in counts"
    words = f"4.5 points of by_hand.csv, line 2 were for the hand-in {code}; now there is {row['hand_in']}"
    assert f"look again: a, {EXERCISE}: {words}, which counts with the grader's points: 5" in said
    assert words in table(folder, "grades_by_student.csv")["a"]["remarks"]
    assert "look again" not in str(table(folder, "grades_moodle.csv", "ID number")) and row["notes"] == ""

    hand_in(folder, "a", "wrong")
    graded(folder)
    assert table(folder)["a"]["points"] == "4.5", "the hand-in of then is there again"
    by_hand(folder, f"a,{NAME},4,,")
    hand_in(folder, "a", "right")
    said = str(graded(folder))
    assert f"look again: a, {EXERCISE}: 4 points of by_hand.csv, line 2 count, though the grader gives 5" in said


ANY, OF_X, OF_Y = (ByHand("a", EXERCISE, points, hand_in=code) for points, code in ((1, ""), (2, "x"), (3, "y")))


@all_of(
    "case",
    [
        ([], (None, None)),
        ([ANY, OF_X], (OF_X, None)),
        ([OF_X, ANY], (ANY, None)),
        ([OF_X, OF_Y], (OF_X, None)),
        ([OF_Y], (None, OF_Y)),
    ],
)
def test_of_several_lines_the_last_that_counts_for_the_hand_in_does(case: tuple) -> None:
    given, chosen = case
    assert choose(given, "x") == chosen


def test_mistakes_in_by_hand_csv_stop_the_tables_and_name_the_line(tmp_path: Path) -> None:
    folder = make(tmp_path / "class", "a")
    for line, words in (
        (f"a,{NAME},many,,", "line 2: points takes a number from 0 to 17, got 'many'"),
        (f"a,{NAME},18,,", "line 2: points takes a number from 0 to 17, got '18'"),
        (f"a,{NAME},,a comment alone,", "line 2: points takes a number"),
        ("a,no_such,3,,", "line 2: 'no_such' is no exercise; there are: "),
    ):
        by_hand(folder, line)
        with pytest.raises(ClassroomError, match=words):
            read_by_hand(read_class(folder))


def test_points_of_formgrader_hold_for_the_hand_in_too_and_need_no_second_look(tmp_path: Path, graded: Graded) -> None:
    folder = make(tmp_path / "class", "a")
    assign(folder, NAME)
    nbgrader_course.release(folder)
    hand_in(folder, "a", "wrong")
    graded(folder)
    nbgrader_course.feedback(folder)
    change_in_formgrader(folder, "a", 4.0)
    for _ in range(2):
        graded(folder)
        assert table(folder)["a"]["points"] == "4" and table(folder)["a"]["notes"] == "points given by hand"
        assert nbgrader_course.feedback(folder) == 0
        assert pages(folder) == {f"a/{NAME}": "4 of 17 points"}
        with Gradebook(f"sqlite:///{folder}/gradebook.db") as gradebook:
            assert not gradebook.find_submission(CHAPTER, "a").needs_manual_grade

    code = table(folder)["a"]["hand_in"]
    hand_in(folder, "a", "right")
    assert "4 points of formgrader were for the hand-in" in str(graded(folder))
    assert nbgrader_course.feedback(folder) == 0
    assert pages(folder) == {f"a/{NAME}": "5 of 17 points"}
    with (folder / "by_hand.csv").open() as file:
        (kept,) = csv.DictReader(file)
    assert kept == {"student": "a", "exercise": EXERCISE, "points": "4.0", "comment": "", "hand_in": code}
    graded(folder)
    assert table(folder)["a"]["points"] == str(RIGHT)


# ---- students come and go, and what else there is to say


def test_a_student_who_left_has_no_page_and_those_who_stay_keep_theirs(tmp_path: Path, graded: Graded) -> None:
    folder = make(tmp_path / "class", "a", "b")
    assign(folder, NAME)
    nbgrader_course.release(folder)
    hand_in(folder, "a")
    hand_in(folder, "b", "wrong")
    graded(folder)
    nbgrader_course.feedback(folder)
    (folder / "students.csv").write_text("id\na\n")
    (folder / "submitted" / "b").rename(tmp_path / "b has left")
    graded(folder)
    assert nbgrader_course.feedback(folder) == 0
    assert pages(folder).keys() == {f"a/{NAME}"} and totals(folder) == {"a": str(RIGHT)}
    assert (folder / "results" / "b" / f"{EXERCISE}.json").exists(), "the grade is kept"


def test_equal_hand_ins_are_named_and_the_exercise_as_handed_out_is_none(tmp_path: Path, graded: Graded) -> None:
    folder = make(tmp_path / "class", *"abcde")
    kernels = {"a": "right one", "b": "right one", "c": "right two", "d": "wrong", "e": "wrong"}
    for student, kernel in kernels.items():
        hand_in(folder, student, kernel)
    assert [line for line in str(graded(folder)).splitlines() if "the same" in line] == [
        f"the same hand-in: {EXERCISE}: a, b"
    ]


def test_remarks_have_the_decimal_sign_of_the_table(tmp_path: Path, graded: Graded) -> None:
    folder = make(tmp_path / "class")
    (folder / "students.csv").write_text("id;last_name\na;A\n")
    (folder / "assignments.csv").write_text(f"assignment;due;late_percent_per_day\n{CHAPTER};2026-10-31 12:00 UTC;10\n")
    hand_in(folder, "a", when="2026-10-31 13:00:00 UTC")
    (folder / "by_hand.csv").write_text(f"student;exercise;points\na;{NAME};4,5\n")
    graded(folder)
    text = (folder / "grades_by_student.csv").read_text("utf-8-sig")
    assert "4,05;" in text and "late (0,45 points taken off)" in text and "4,5 points of by_hand.csv" in text


def test_an_unknown_id_may_be_a_login_name(tmp_path: Path) -> None:
    folder = make(tmp_path / "class", "a")
    hand_in(folder, "jovyan")
    (remark,) = read_class(folder).remarks
    assert remark.endswith("jovyan; with nbgrader's exchange an id is the student's login name")


def test_a_worker_without_the_exercise_is_refused(
    tmp_path: Path, graded: Graded, own_exercise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(tmp_path / "class", "a")
    assign(folder, "scale_rows")
    (folder / "submitted" / "a" / CHAPTER).mkdir(parents=True)
    here = tmp_path / "own"
    Path(os.environ["COURSE_OWN_EXERCISES"]).rename(here)
    try:
        monkeypatch.setenv("COURSE_OWN_EXERCISES", str(here))
        with pytest.raises(ClassroomError, match=f"the worker on .* has no exercise {OWN}: copy own_exercises/ there"):
            graded(folder)
    finally:
        monkeypatch.undo()
        here.rename(os.environ["COURSE_OWN_EXERCISES"])
