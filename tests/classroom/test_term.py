"""A term with 14 students: killed, resumed, by Dask, an exercise added, points by hand. No grade is lost or wrong."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("nbgrader")
pytest.importorskip("distributed")

from course_utils.classroom import nbgrader_course
from course_utils.classroom.grading import Summary
from tests.helpers.class_folder import CHAPTER, EXERCISE, NAME, asked, hand_in, make, table, tables

STUDENTS = [f"s{number:02}" for number in range(1, 15)]
OWN = f"{CHAPTER}/scale_rows"
KILLED = """
import sys
from classroom_stand_in import grade
from course_utils.classroom.grading import grade_class
grade_class(sys.argv[1], scheduler=sys.argv[2], isolation="limits", grade=grade)
"""


def kernel(student: str) -> str:
    """Every third is wrong, each in its own words; the seventh takes until it may go on."""
    number = int(student[1:])
    return f"{'wrong' if number % 3 == 0 else 'right'} kernel of {student}"


def points(folder: Path) -> dict[str, list[str]]:
    """By student, the points of both exercises."""
    by_student = table(folder, "grades_by_student.csv")
    return {student: [row[one] for one in (EXERCISE, OWN) if one in row] for student, row in by_student.items()}


@pytest.mark.exhaustive("test_mid_term.py has each of its events, with one or two students")
@pytest.mark.timeout(1200)
def test_a_term(
    tmp_path: Path, graded: Callable[..., Summary], scheduler: str, stand_in: object, own_exercise: str
) -> None:
    folder, started = make(tmp_path / "class", *STUDENTS), tmp_path / "started"
    (folder / "assignments.csv").write_text(f"assignment,due\n{NAME},2026-11-02 12:00 UTC\n")
    assert nbgrader_course.release(folder) == 0
    for student in STUDENTS:
        hand_in(folder, student, kernel(student) if student != "s07" else f"wait {started}")
    expected = {student: ["0" if int(student[1:]) % 3 == 0 else "5"] for student in STUDENTS}

    # Killed in the middle, and resumed: nothing that was stored is graded again.
    command = [sys.executable, "-c", KILLED, str(folder), scheduler]
    paths = os.pathsep.join((str(Path(stand_in.__file__).parent), *filter(None, sys.path)))
    run = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": paths})
    while not started.exists():
        assert run.poll() is None
        time.sleep(0.1)
    run.kill()
    run.wait()
    stored = len(list((folder / "results").rglob("*.json")))
    assert 0 < stored < 14 and not (folder / "grades.csv").exists()
    Path(f"{started}.go").touch()
    before = len(asked())
    summary = graded(folder)
    assert (summary.graded, summary.unchanged, len(asked()) - before) == (14 - stored, stored, 14 - stored)
    assert points(folder) == expected
    assert nbgrader_course.feedback(folder) == 0

    # Points by hand for two who were wrong; one of them hands in again.
    codes = {student: row["hand_in"] for student, row in table(folder).items()}
    lines = [f"{student},{NAME},3,,{codes[student]}\n" for student in ("s03", "s06")]
    (folder / "by_hand.csv").write_text("student,exercise,points,comment,hand_in\n" + "".join(lines))
    hand_in(folder, "s06", "right in the end")
    # An exercise comes; one student leaves, one comes late.
    (folder / "assignments.csv").write_text(f"assignment,due\n{NAME},2026-11-02 12:00 UTC\nscale_rows,\n")
    assert nbgrader_course.release(folder) == 0
    for student in STUDENTS[:5]:
        (folder / "submitted" / student / CHAPTER / "scale_rows.cu").write_text(f"right scale_rows of {student}")
    roster = (folder / "students.csv").read_text().replace("s14,First s14,Last,s14@example.org\n", "s15,New,One,\n")
    (folder / "students.csv").write_text(roster)
    shutil.rmtree(folder / "submitted" / "s14")
    hand_in(folder, "s15", "right but late", "2026-12-01 12:00:00 UTC")
    summary = graded(folder)
    # Two hand-ins of the first exercise and five of the second; for nine others it is noted that they have none.
    assert summary.graded == 2 + 5 + 9
    del expected["s14"]
    expected |= {"s03": ["3"], "s06": ["5"], "s15": ["5"]}
    assert points(folder) == {s: [*earned, "5" if s in STUDENTS[:5] else "0"] for s, earned in expected.items()}
    assert "s06" in str(summary) and "look again: s06" in str(summary) and "look again: s03" not in str(summary)
    assert nbgrader_course.feedback(folder) == 0
    shown = {path.parts[-3]: path.read_text() for path in (folder / "feedback").glob(f"*/{CHAPTER}/{NAME}.html")}
    assert shown.keys() == expected.keys()
    for student, (earned,) in expected.items():
        assert f'<p class="points">{earned} of 17 points</p>' in shown[student]

    # The same class, graded anew in another folder at once, has the same tables; and again there is nothing to do.
    again = tmp_path / "Zweite Übung (copy)"
    shutil.copytree(folder, again, ignore=shutil.ignore_patterns("results", "grades*", "run.lock"))
    graded(again)
    assert tables(again) == tables(folder)
    shutil.copytree(folder, tmp_path / "restored")
    assert graded(tmp_path / "restored").graded == 0
