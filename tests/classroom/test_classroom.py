"""A class on Dask: nothing is lost, nothing is graded twice, nobody is left out of the tables.

Most tests use a stand-in for the grader that does what the text of the "kernel" says; the last one grades in earnest.
"""

import csv
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("distributed", reason="Dask is not installed (pip install course-kernels[classroom])")

import dask

from course_utils.__main__ import main
from course_utils.classroom import grading as class_grading
from course_utils.classroom import results_store
from course_utils.classroom.by_hand import ByHand, read_by_hand
from course_utils.classroom.class_folder import ClassFolder, ClassroomError, LateRule, Student, parse_time, read_class
from course_utils.classroom.demo import ODD_FILES, make_class
from course_utils.classroom.gradebook import Row, _by_student, _text, harmless
from course_utils.classroom.grading import Interrupted, Summary, grade_class
from course_utils.classroom.overview import overview, part_results
from course_utils.classroom.results_store import GRADER_FAILED, Key, Record, ResultsStore, exercise_seed, grader_version
from course_utils.grading.catalog import exercise, exercise_ids
from course_utils.grading.exercise import Diagnosis
from course_utils.grading.result import OF_A_FILE, PartResult, Result
from course_utils.grading.sandbox import parent as sandbox
from course_utils.grading.submission import LARGEST_KERNEL, Submission
from tests.helpers.class_folder import CHAPTER, EXERCISE, METHOD, NAME, asked, hand_in, make, notebook, table, tables

OPTIONAL = {"diagnosis", "submitted_at", "points_by_hand", "notes", "hand_in"}  # columns that may be empty


def when_there(path: Path, then: Callable[[], None]) -> threading.Thread:
    """Does something as soon as a file is there and written."""

    def wait() -> None:
        for _ in range(600):
            if path.exists() and path.read_text():
                return then()
            time.sleep(0.05)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


# ---- every student has a row


def test_each_status_has_a_row_and_a_reason(tmp_path: Path, graded: Callable[..., Summary]) -> None:
    names = (
        "right wrong none empty_folder empty_kernel bad_json no_text large directory both late linked refused".split()
    )
    folder = make(tmp_path / "class", *names)
    for name in set(names) - {"none", "linked"}:
        hand_in(folder, name, name if name in ("right", "wrong") else "right")
    place = {name: folder / "submitted" / name / CHAPTER for name in names}
    for path in (place["empty_folder"] / f"{NAME}.cu", place["empty_folder"] / f"{NAME}.ipynb"):
        path.unlink()
    (place["empty_kernel"] / f"{NAME}.cu").write_text("")
    (place["bad_json"] / f"{NAME}.ipynb").write_text('{"cells": [')
    (place["no_text"] / f"{NAME}.cu").write_bytes(b"\xff\xfe\x00\x01")
    (place["large"] / f"{NAME}.cu").write_bytes(b" " * (LARGEST_KERNEL + 1))
    (place["directory"] / f"{NAME}.cu").unlink()
    (place["directory"] / f"{NAME}.cu").mkdir()
    for suffix in ("cu", "ipynb"):
        (place["both"] / f"{NAME}.{suffix}").write_bytes(b"\xff")
    (place["wrong"] / f"{NAME}.ipynb").write_text(notebook().replace("answers = {}", "'half \\ud800 a pair'"))
    (place["late"] / "timestamp.txt").write_text("2026-11-02 13:00:30.5 +0100 ")
    os.symlink(place["right"].parent, folder / "submitted" / "linked")
    (place["refused"] / f"{NAME}.cu").unlink()
    os.symlink(place["right"] / f"{NAME}.cu", place["refused"] / f"{NAME}.cu")
    hand_in(folder, "stranger")

    summary = graded(folder)
    rows = table(folder)
    assert list(rows) == sorted([*names, "stranger"])
    assert {name: row["status"] for name, row in rows.items()} == {
        **dict.fromkeys(("right", "wrong", "late", "stranger"), "graded"),
        "none": "missing",
        "empty_folder": "empty",
        "empty_kernel": "partly empty",
        **dict.fromkeys(("bad_json", "no_text", "large", "directory", "refused"), "partly unreadable"),
        **dict.fromkeys(("both", "linked"), "unreadable"),
    }
    assert rows["right"]["parts"].startswith("values 4/4; seed ")
    assert rows["bad_json"]["parts"].startswith("values 4/4"), "the kernel is graded without the notebook"
    assert rows["wrong"]["diagnosis"] == "wrong"
    assert rows["none"]["diagnosis"] == "nothing was handed in"
    assert rows["linked"]["late_seconds"] == "unknown", "its time was not read"
    assert {row["late_seconds"] for name, row in rows.items() if name not in ("late", "linked")} == {"0"}
    assert (rows["late"]["late_seconds"], rows["late"]["submitted_at"]) == ("30", "2026-11-02 12:00:30 UTC")
    assert all(
        all(row[column] for column in row if column not in OPTIONAL)
        for row in rows.values()
        if row["student_id"] != "stranger"
    )
    assert (rows["stranger"]["in_roster"], rows["right"]["in_roster"]) == ("no", "yes")
    text = str(summary)
    for words in (
        "missing: 1: none (coalesced_scores)",
        "late: 1: late (",
        "time of hand-in unknown: 1:",
        "partly empty: 1: empty_kernel",
        "unreadable: 2: both (coalesced_scores), linked (",
        "linked is a symbolic link",
        "not in students.csv, graded all the same: stranger",
    ):
        assert words in text
    by_student = table(folder, "grades_by_student.csv")
    assert list(by_student) == list(rows)
    assert by_student["none"][EXERCISE] == "0" and by_student["none"]["remarks"] == f"{CHAPTER}: missing"
    assert by_student["late"]["remarks"] == f"{CHAPTER}: late"
    assert by_student["linked"]["remarks"] == f"{CHAPTER}: unreadable, time unknown"


def test_an_unreadable_time_is_said_and_not_taken_as_in_time(tmp_path: Path, graded: Callable[..., Summary]) -> None:
    folder = make(tmp_path / "class", "a", "b", "none")
    hand_in(folder, "a", when="yesterday")
    (hand_in(folder, "b") / "timestamp.txt").unlink()
    summary = graded(folder)
    rows = table(folder)
    assert [rows[name]["late_seconds"] for name in ("a", "b", "none")] == ["unknown", "unknown", "0"]
    assert [rows[name]["submitted_at"] for name in ("a", "b", "none")] == ["unknown", "", ""]
    assert {table(folder, "grades_by_student.csv")[name]["remarks"] for name in "ab"} == {f"{CHAPTER}: time unknown"}
    said = str(summary)
    assert f"note: the time in submitted/a/{CHAPTER}/timestamp.txt cannot be read" in said
    assert "time of hand-in unknown: 2:" in said and "late: " not in said

    (folder / "assignments.csv").unlink()
    graded(folder)
    assert table(folder)["b"]["late_seconds"] == "0", "nothing was due"


def test_remarks_name_a_chapter_once() -> None:
    chapter, names = "02_flash_attention_minimal", ("online_softmax", "mini_flash", "mend_the_race")
    key, due = Key("", "", 7, "cpu"), datetime(2026, 11, 2, tzinfo=UTC)
    rows = []
    for name, status, problem in zip(
        names, ("graded", "partly missing", "missing"), ("", "notebook", "all"), strict=True
    ):
        of_notebook, of_all = (Diagnosis(f"{name}.{suffix} is missing", kind=OF_A_FILE) for suffix in ("ipynb", "cu"))
        said = {"": None, "notebook": of_notebook, "all": of_all}
        parts = (
            PartResult("values", "Values", 4, 0, "wrong", diagnosis=Diagnosis("m is not initialized")),
            PartResult("question", "Question", 1, 0, "wrong", diagnosis=said[problem]),
        )
        result = Result(f"{chapter}/{name}", "T", "", 7, "cpu", status, parts)
        record = Record("a", f"{chapter}/{name}", status, key, result)
        rows.append(Row(Student("a"), f"{chapter}/{name}", record, datetime(2026, 11, 3, tzinfo=UTC), due))
    assert rows[0].diagnosis == "m is not initialized"
    assert rows[1].diagnosis == "m is not initialized; mini_flash.ipynb is missing"
    (line,) = list(csv.DictReader(_text(_by_student(rows)).splitlines()))
    assert line["remarks"] == f"{chapter}: partly missing (mini_flash), missing (mend_the_race), late"
    assert (line["total"], line["max_total"]) != ("", "")


@pytest.mark.parametrize(("second", "late_seconds"), [(-1, 0), (0, 0), (1, 1)])
def test_late_is_a_second_after_the_due_date(second: int, late_seconds: int) -> None:
    due = datetime(2026, 11, 2, tzinfo=UTC)
    record = Record("a", EXERCISE, "graded", Key("", "", 7, "cpu"), Result(EXERCISE, "T", "", 7, "cpu", "graded", ()))
    row = Row(Student("a"), EXERCISE, record, due + timedelta(seconds=second), due)
    assert (row.late_seconds, row.is_late) == (late_seconds, second > 0)
    (line,) = csv.DictReader(_text(_by_student([row])).splitlines())
    assert line["remarks"] == (f"{CHAPTER}: late" if second > 0 else "")


def test_what_a_student_wrote_is_no_formula(tmp_path: Path, graded: Callable[..., Summary]) -> None:
    folder = make(tmp_path / "class", "=1+1", "b")
    hand_in(folder, "=1+1", '@SUM(A1:A9)\n"x",\n')
    hand_in(folder, "b", "=HYPERLINK(1)")
    graded(folder)
    for cell in (cell for name in ("'=1+1", "b") for cell in table(folder)[name].values()):
        assert cell[:1] not in ("=", "+", "-", "@") and "\n" not in cell
    assert table(folder)["'=1+1"]["diagnosis"].startswith("'@SUM")


@pytest.mark.parametrize(
    ("value", "text"), [(-3, "-3"), (" =x", "'=x"), ("-1", "'-1"), ("a\t\r\nb", "a b"), ("\x00+", "'+"), ("ok", "ok")]
)
def test_harmless(value: object, text: str) -> None:
    assert harmless(value) == text


# ---- what is due, what counts


def graded_row(points: int = 8, when: datetime | str | None = None, **more: object) -> Row:
    part = PartResult("values", "Values", 10, points, "wrong")
    record = Record("a", EXERCISE, "graded", Key("", "", 7, "cpu"), Result(EXERCISE, "T", "", 7, "cpu", "ok", (part,)))
    return Row(Student("a"), EXERCISE, record, when, datetime(2026, 11, 2, tzinfo=UTC), **more)


def test_what_is_not_due_yet_is_no_zero_and_nobody_is_late(tmp_path: Path, graded: Callable[..., Summary]) -> None:
    folder = make(tmp_path / "class", "early", "none", "undated")
    hand_in(folder, "early")
    (hand_in(folder, "undated") / "timestamp.txt").unlink()
    before = graded(folder, now=datetime(2026, 11, 1, tzinfo=UTC))
    assert before.graded == 2, "nobody is graded for what may still come"
    rows, by_student = table(folder), table(folder, "grades_by_student.csv")
    assert [rows[name]["status"] for name in ("early", "none", "undated")] == ["graded", "not due yet", "graded"]
    assert {row["late_seconds"] for row in rows.values()} == {"0"} and rows["none"]["points"] == ""
    assert {(row["total"], row["max_total"]) for row in by_student.values()} == {("0", "0")}
    assert by_student["early"]["remarks"] == f"{CHAPTER}: not in the total yet"
    assert f"not due yet, so in no total: {EXERCISE} (until 2026-11-02 12:00 UTC)" in str(before)

    assert graded(folder).graded == 1, "now the one who has nothing"
    rows, by_student = table(folder), table(folder, "grades_by_student.csv")
    assert rows["none"]["status"] == "missing" and by_student["none"]["total"] == "0"
    assert rows["undated"]["late_seconds"] == "0", "it was there before the due time"
    assert by_student["early"]["max_total"] == str(exercise(EXERCISE).points)


def test_exercises_of_a_chapter_may_be_due_at_different_times(tmp_path: Path, graded: Callable[..., Summary]) -> None:
    """Who hands in the chapter again for the second exercise is not late with the first, which is as it was."""
    folder, chapter = make(tmp_path / "class", "a"), "02_flash_attention_minimal"
    (folder / "assignments.csv").write_text(
        f"assignment\tdue\nmend_the_race\t2026-11-20 12:00 UTC\n{chapter}\t2026-11-02 12:00 UTC\n"
    )
    place = folder / "submitted" / "a" / chapter
    place.mkdir(parents=True)
    (place / "online_softmax.cu").write_text("right")
    (place / "timestamp.txt").write_text("2026-11-01 12:00:00 UTC")
    graded(folder)
    (place / "mend_the_race.cu").write_text("right")
    (place / "timestamp.txt").write_text("2026-11-19 12:00:00 UTC")
    assert graded(folder).why == {"handed in again": 1}
    with (folder / "grades.csv").open(encoding="utf-8-sig", newline="") as file:
        late = {row["exercise"]: row["late_seconds"] for row in csv.DictReader(file)}
    assert late == {one.split("/")[1]: "0" for one in exercise_ids(chapter)}
    read = read_class(folder)
    assert read.due_of_chapter(chapter) == datetime(2026, 11, 20, 12, tzinfo=UTC) and read.several_due(chapter)

    (folder / "assignments.csv").write_text("assignment,due\n02_flash_attention_minimal/mend_the_race,\n")
    assert read_class(folder).released == ("02_flash_attention_minimal/mend_the_race",)


@pytest.mark.parametrize(
    ("seconds", "penalty"), [(0, 0), (1, 0.8), (86_400, 0.8), (86_401, 1.6), (10 * 86_400, 4), (None, 0)]
)
def test_late_work_costs_what_the_class_says(seconds: int | None, penalty: float) -> None:
    when = None if seconds is None else datetime(2026, 11, 2, tzinfo=UTC) + timedelta(seconds=seconds)
    row = graded_row(8, when, late_rule=LateRule(10, 50))
    assert (row.penalty, row.points, row.points_by_grader) == (penalty, 8 - penalty, 8)


def by_hand(points: float, hand_in: str = "", comment: str = "") -> ByHand:
    return ByHand("a", EXERCISE, points, comment, hand_in)


def test_points_by_hand_go_before_the_graders() -> None:
    row = graded_row(8, by_hand=by_hand(3.5, comment="at the board"))
    assert (row.points, row.points_by_grader, row.notes) == (3.5, 8, "points given by hand: at the board")
    failed = Record("a", EXERCISE, GRADER_FAILED, Key("", "", 7, "cpu"))
    assert Row(Student("a"), EXERCISE, failed, by_hand=by_hand(3.0)).points == 3


def test_a_gradebook_that_cannot_be_read_stops_the_tables(tmp_path: Path) -> None:
    assert read_by_hand(ClassFolder(tmp_path, (), {}, (), ())) == {}
    (tmp_path / "gradebook.db").write_text("no database")
    with pytest.raises(ClassroomError, match="gradebook.db cannot be read .*points given by hand are there"):
        read_by_hand(ClassFolder(tmp_path, (), {}, (), ()))


def test_tables_of_a_spreadsheet_with_semicolons(tmp_path: Path, graded: Callable[..., Summary]) -> None:
    folder = make(tmp_path / "class")
    (folder / "students.csv").write_text(
        "\ufeffid;first_name;last_name;email;canvas_id\r\na;Zoë;Müller;z@example.org;77\r\n", "utf-8"
    )
    (folder / "assignments.csv").write_text(
        f"assignment;due;late_percent_per_day;late_percent_most\n{CHAPTER};2026-10-31 12:00 UTC;12,5 %;50%\n"
    )
    hand_in(folder, "a")
    graded(folder)
    text = (folder / "grades.csv").read_text("utf-8")
    assert text.startswith("\ufeffstudent_id;last_name;first_name;") and "\na;Müller;Zoë;" in text
    (row,) = csv.DictReader(text.removeprefix("\ufeff").splitlines(), delimiter=";")
    penalty = round(int(row["points_by_grader"]) * 0.125, 2)
    assert float(row["late_penalty"].replace(",", ".")) == penalty > 0
    moodle = list(csv.DictReader((folder / "grades_moodle.csv").read_text("utf-8").splitlines()))
    assert moodle[0]["ID number"] == "a" and moodle[0]["Email address"] == "z@example.org"
    assert float(moodle[0][f"{EXERCISE} (points)"]) == int(row["points_by_grader"]) - penalty
    assert "points taken off" in moodle[0][f"{EXERCISE} (feedback)"]
    most, canvas = csv.DictReader((folder / "grades_canvas.csv").read_text("utf-8").splitlines())
    assert (most["Student"], most[EXERCISE]) == ("Points Possible", str(exercise(EXERCISE).points))
    assert [canvas[name] for name in ("Student", "ID", "SIS User ID")] == ["Müller, Zoë", "77", "a"]


def test_where_the_class_stands(tmp_path: Path, graded: Callable[..., Summary]) -> None:
    folder = make(tmp_path / "class", "a", "b", "c", "none")
    for student, kernel in {"a": "right", "b": "wrong", "c": "wrong"}.items():
        hand_in(folder, student, kernel)
    with pytest.raises(ClassroomError, match="nothing is graded"):
        overview(folder)
    graded(folder)
    parts = part_results([ResultsStore(folder).read(student, EXERCISE).result for student in "abc"])
    assert [part.earned for part in parts["Values"]] == [4, 0, 0] and len(parts) == 2
    assert overview(folder).read_text().count("<svg") == 1


# ---- an exercise of one's own


def test_another_exercise_or_a_picture_does_not_change_the_grader() -> None:
    needed = results_store._needed(f"course_utils.grading.tasks.{NAME}")
    assert {"course_utils.grading.grader", "course_utils.emulator.sanitizer", "course_utils.checks"} <= needed
    assert [name for name in needed if ".tasks." in name] == [f"course_utils.grading.tasks.{NAME}"]
    rooms = {name.split(".")[1] for name in needed if "." in name}
    assert not rooms & {"plots", "classroom", "commands", "widgets", "site", "questions", "progress"}
    assert grader_version(EXERCISE) != grader_version("00_start_here/conflict_free_tile")


# ---- resuming


def test_a_finished_grade_is_kept_until_what_it_depends_on_changes(
    tmp_path: Path, graded: Callable[..., Summary]
) -> None:
    folder = make(tmp_path / "class", "a", "b")
    hand_in(folder, "a", "right 1")
    hand_in(folder, "b", "wrong 1")
    assert (graded(folder).why, graded(folder).unchanged) == ({"new": 2}, 2)

    hand_in(folder, "b", "right 2", "2026-11-03 12:00:00 UTC")
    again = graded(folder)
    assert (again.graded, again.unchanged) == (1, 1), "b replaced a file, and is late"
    assert str(again).startswith("1 graded now (1 handed in again), 1 graded before and unchanged\n")
    assert table(folder)["b"]["parts"].startswith("values 4/4")
    assert table(folder)["b"]["late_seconds"] == "86400"

    (folder / "results" / "a" / f"{EXERCISE}.json").write_text('{"student": ')
    assert graded(folder).graded == 1, "a damaged result is no result"
    before = tables(folder)
    new = graded(folder, new_seed=True)
    assert (new.why, new.unchanged) == ({"another seed": 2}, 0)
    assert json.loads((folder / "run.json").read_text())["seed"] != 7 and graded(folder).unchanged == 2
    (folder / "run.json").write_text('{"seed": 7}')
    graded(folder)
    assert tables(folder) == before


def test_another_version_of_the_grader_grades_again(
    tmp_path: Path, graded: Callable[..., Summary], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(tmp_path / "class", "a")
    hand_in(folder, "a")
    graded(folder)
    monkeypatch.setattr(class_grading, "grader_version", lambda exercise_id: "another")
    with pytest.raises(ClassroomError, match=f"has version {grader_version(EXERCISE).replace('+', '.')} of the course"):
        graded(folder)


def test_an_update_says_why_it_grades_again_and_one_student_can_be(
    tmp_path: Path, graded: Callable[..., Summary]
) -> None:
    folder = make(tmp_path / "class", "a", "b")
    hand_in(folder, "a")
    hand_in(folder, "b", "wrong")
    graded(folder)
    before = tables(folder)
    assert graded(folder, students=["b"]).why == {"asked for": 1} and tables(folder) == before
    for words, options in (("no student c in .*there are: a, b", {}), ("all students", {"new_seed": True})):
        with pytest.raises(ClassroomError, match=words):
            graded(folder, students=["b"] if options else ["c"], **options)
    store = ResultsStore(folder)
    for student in "ab":
        record = store.read(student, EXERCISE)
        store.write(replace(record, key=replace(record.key, grader="0.0+older")))
    one = graded(folder, students=["a"])
    assert tables(folder) == before, "the grade of an earlier version stays in the table"
    assert "note: 1 graded before an update of the course that changed the grader" in str(one)
    assert graded(folder).why == {f"the grader of {EXERCISE} changed in an update of the course": 1}


def test_a_killed_worker_changes_nothing(tmp_path: Path, graded: Callable[..., Summary]) -> None:
    started = tmp_path / "started"
    for name in ("calm", "killed"):
        make(tmp_path / name, "a", "b", "c")
        for student, kernel in {"a": "right", "b": f"wait {started}", "c": "wrong"}.items():
            hand_in(tmp_path / name, student, kernel)
    started.touch()  # nothing to wait for
    graded(tmp_path / "calm")
    started.unlink()
    thread = when_there(started, lambda: os.kill(int(started.read_text()), signal.SIGKILL))
    assert graded(tmp_path / "killed").graded == 3
    thread.join()
    assert tables(tmp_path / "killed") == tables(tmp_path / "calm")


def test_a_stopped_run_goes_on_and_repeats_nothing(tmp_path: Path, graded: Callable[..., Summary]) -> None:
    folder, started = make(tmp_path / "class", "a", "b", "c"), tmp_path / "started"
    for student, kernel in {"a": "right first", "b": f"wait {started}", "c": "right third"}.items():
        hand_in(folder, student, kernel)
    thread = when_there(started, lambda: os.kill(os.getpid(), signal.SIGINT))
    words = "stopped: 1 of 3 graded and kept. The same command goes on; the tables were not written again"
    with pytest.raises(Interrupted, match=words):
        graded(folder)
    thread.join()
    assert not (folder / "grades.csv").exists()
    Path(f"{started}.go").touch()
    before = len(asked())
    summary = graded(folder)
    assert (summary.graded, summary.unchanged) == (2, 1)
    assert len(asked()) - before == 2 and {row["status"] for row in table(folder).values()} == {"graded"}


def test_what_takes_the_grader_down_is_reported_and_stops_nobody(
    tmp_path: Path, graded: Callable[..., Summary]
) -> None:
    folder = make(tmp_path / "class", "a", "b", "c")
    for student, kernel in {"a": "die", "b": "raise", "c": "right"}.items():
        hand_in(folder, student, kernel)
    summary = graded(folder)
    rows = table(folder)
    assert [rows[name]["status"] for name in "abc"] == [GRADER_FAILED, GRADER_FAILED, "graded"]
    assert "the grader's process died each time" in rows["a"]["diagnosis"]
    assert "RuntimeError: a bug in the grader" in rows["b"]["diagnosis"]
    assert [rows[name]["points"] for name in "abc"] == ["", "", rows["c"]["points"]] and rows["c"]["points"]
    by_student = table(folder, "grades_by_student.csv")
    assert (by_student["a"][EXERCISE], by_student["a"]["total"]) == (GRADER_FAILED, ""), "no silent 0"
    assert by_student["c"]["total"] == rows["c"]["points"]
    assert [row.student.id for row in summary.failures] == ["a", "b"]
    assert f"{GRADER_FAILED}: a ({EXERCISE})" in str(summary)

    hand_in(folder, "a", "right")
    assert graded(folder).graded == 2, "failures are tried again"


def test_two_workers_give_the_table_of_one(tmp_path: Path, graded: Callable[..., Summary]) -> None:
    for name, options in (("one", {}), ("two", {"workers": 2})):
        folder = make(tmp_path / name, *"abcdef", "none")
        for student in "abcdef":
            hand_in(folder, student, "right" if student in "ace" else f"wrong {student}")
        graded(folder, **options)
    assert tables(tmp_path / "one") == tables(tmp_path / "two")


def test_a_second_run_in_the_folder_is_refused(tmp_path: Path, graded: Callable[..., Summary]) -> None:
    folder = make(tmp_path / "class", "a")
    hand_in(folder, "a")
    with ResultsStore(folder).lock(), pytest.raises(ClassroomError, match=f"process {os.getpid()} on .* is grading"):
        graded(folder)
    assert graded(folder).graded == 1


def test_only_the_exercises_asked_for_and_the_others_are_not_forgotten(
    tmp_path: Path, graded: Callable[..., Summary]
) -> None:
    folder = make(tmp_path / "class", "a")
    hand_in(folder, "a")
    graded(folder, exercises=["05_deepseek_sparse/topk_gather"])
    text = (folder / "grades.csv").read_text()
    assert text.count("\n") == 3 and ",missing," in text and ",not graded," in text
    assert table(folder, "grades_by_student.csv")["a"][EXERCISE] == "not graded"


def test_a_new_seed_for_some_exercises_is_refused_and_no_grade_is_lost(
    tmp_path: Path, graded: Callable[..., Summary]
) -> None:
    folder = make(tmp_path / "class", "a")
    hand_in(folder, "a")
    graded(folder)
    before = (folder / "grades.csv").read_bytes(), (folder / "run.json").read_bytes()
    with pytest.raises(ClassroomError, match=f"a new seed draws the inputs of all exercises, .*{EXERCISE}"):
        graded(folder, exercises=["05_deepseek_sparse/topk_gather"], new_seed=True)
    assert ((folder / "grades.csv").read_bytes(), (folder / "run.json").read_bytes()) == before


# ---- the folder


def test_the_seed_is_drawn_once_and_each_exercise_has_its_own(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    assert store.seed() == store.seed() != store.seed(new=True)
    assert exercise_seed(7, EXERCISE) == exercise_seed(7, EXERCISE) < 2**31
    assert exercise_seed(7, EXERCISE) not in (exercise_seed(8, EXERCISE), exercise_seed(7, "other"))
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ClassroomError, match="--new-seed"):
        store.seed()


def test_a_record_comes_back_as_it_was_whatever_a_student_wrote(tmp_path: Path, stand_in: object) -> None:
    store, key = ResultsStore(tmp_path), Key("digest", "grader", 7, "cpu")
    submission = Submission(EXERCISE, "half \ud800 a pair, ü", statuses={"a.cu": "ok"})
    result = Result.from_json(stand_in.grade(submission, 7, "cpu", "limits"))
    record = Record("a", EXERCISE, "graded", key, result)
    store.write(record)
    assert store.read("a", EXERCISE) == record and store.read("b", EXERCISE) is None
    assert [path.name for path in (tmp_path / "results" / "a" / CHAPTER).iterdir()] == [f"{NAME}.json"]


@pytest.mark.parametrize(
    ("roster", "words"),
    [
        ("name\na\n", "no column 'id'"),
        ("id,last_name\na,A\na,B\n", "line 3: the id 'a' is there twice"),
        ("id\n../../etc\n", "line 2: the id '../../etc' cannot be a folder's name: it is empty or starts with a dot"),
        ("id\nx/../../y\n", "it has a slash"),
        ('id\n""\n', "it is empty"),
        ("id\nx\x07\n", "cannot be printed"),
        ("id,last_name\na\n", "more or fewer values"),
        (b"id,last_name\na,M\xfcller\n", "not text in UTF-8"),
    ],
)
def test_mistakes_in_the_roster(tmp_path: Path, roster: str | bytes, words: str) -> None:
    folder = make(tmp_path / "class", "a")
    (folder / "students.csv").write_bytes(roster.encode() if isinstance(roster, str) else roster)
    with pytest.raises(ClassroomError, match=words.replace("(", r"\(")):
        read_class(folder)


def test_mistakes_in_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ClassroomError, match="not the folder of a class"):
        read_class(tmp_path)
    folder = make(tmp_path / "class", "a")
    for line, words in (
        ("02_flash,,", "'02_flash' is no assignment"),
        (f"{CHAPTER},soon,", "the due time 'soon'"),
        (f"{CHAPTER},,-3", "late_percent_per_day takes a number from 0 to 100, got '-3'"),
        (f"{CHAPTER},,much", "late_percent_per_day takes a number from 0 to 100, got 'much'"),
    ):
        (folder / "assignments.csv").write_text(f"assignment,due,late_percent_per_day\n{line}\n")
        with pytest.raises(ClassroomError, match=f"line 2: {words}"):
            read_class(folder)
    (folder / "assignments.csv").unlink()
    with pytest.raises(ClassroomError, match="nothing to grade"):
        grade_class(folder, isolation="limits")
    (folder / "students.csv").unlink()
    with pytest.raises(ClassroomError, match="students.csv cannot be read"):
        read_class(folder)


def test_odd_things_in_submitted_are_named(tmp_path: Path) -> None:
    folder = make(tmp_path / "class", "a")
    (folder / "assignments.csv").unlink()
    hand_in(folder, "a")
    (folder / "submitted" / "a" / "01_attention").mkdir()
    (folder / "submitted" / "a" / f"{CHAPTER} (1)").mkdir()
    (folder / "submitted" / "a" / f"{NAME}.cu").touch()
    (folder / "submitted" / "notes.txt").touch()
    (folder / "submitted" / "bad\nname").mkdir()
    (folder / "submitted" / ".DS_Store").touch()
    read = read_class(folder)
    assert read.released == (EXERCISE,) and [student.id for student in read.students] == ["a"]
    remarks = "; ".join(read.remarks)
    assert f"{CHAPTER} (1)' is no chapter: is it {CHAPTER}?" in remarks
    assert f"{NAME}.cu' is no chapter: a file belongs into the folder of its chapter" in remarks
    assert "01_attention' is no chapter" in remarks and "notes.txt is not graded" in remarks
    assert "bad\\nname' is not graded" in remarks and "DS_Store" not in remarks


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-22 08:15:00 UTC",
        "2026-11-22 08:15:00",
        "2026-11-22T09:15:00+01:00",
        "2026-11-22 09:15:00.0 +0100\n",
        "2026-11-22 09:15:00 Europe/Berlin",
        "2026-11-22 08:15",
    ],
)
def test_times_as_nbgrader_writes_them(text: str) -> None:
    assert parse_time(text) == datetime(2026, 11, 22, 8, 15, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("2026-11-30", datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC)),
        ("2026-11-30 +0100", datetime(2026, 11, 30, 22, 59, 59, tzinfo=UTC)),
        ("2026-11-30 Europe/Berlin", datetime(2026, 11, 30, 22, 59, 59, tzinfo=UTC)),
        ("2026-11-30 00:00", datetime(2026, 11, 30, tzinfo=UTC)),
        ("2026-11-30 18:00 +0100", datetime(2026, 11, 30, 17, tzinfo=UTC)),
    ],
)
def test_a_due_day_without_an_hour_lasts_to_its_end(tmp_path: Path, text: str, last: datetime) -> None:
    folder = make(tmp_path / "class", "anna")
    (folder / "assignments.csv").write_text(f"assignment,due\n{CHAPTER},{text}\n")
    assert read_class(folder).due[EXERCISE] == last


def test_a_time_that_an_editor_saved_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    folder = make(tmp_path / "class", "anna")
    (hand_in(folder, "anna") / "timestamp.txt").write_bytes(b"\xef\xbb\xbf2026-11-22 08:15:00 UTC\r\n")
    assert read_class(folder).submitted_at("anna", CHAPTER) == datetime(2026, 11, 22, 8, 15, tzinfo=UTC)


def test_times_that_are_none() -> None:
    for text in ("", "soon", "2026-11-22 08:15:00 Mars"):
        with pytest.raises(ValueError):
            parse_time(text)


def test_without_bubblewrap_a_class_is_not_graded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "isolation_available", lambda: (False, "it is not here"))
    class_grading._refuse_without_bubblewrap.cache_clear()
    folder = make(tmp_path / "class", "a")
    with pytest.raises(ClassroomError, match=r"bubblewrap \(it is not here\).*--isolation limits"):
        grade_class(folder)


# ---- the commands


def run(*words: str) -> int:
    return main(["classroom", *words])


def test_the_demo_is_the_same_for_a_seed_and_leaves_a_folder_in_use_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        assert (
            run("demo", "--folder", str(tmp_path / name), "--exercise", NAME, "--students", "30", "--seed", seed) == 0
        )
    drawn = [(tmp_path / name / "demo.csv").read_text() for name in "abc"]
    assert drawn[0] == drawn[1] != drawn[2] and drawn[0].count("\n") == 32
    assert all(words in drawn[0] for words in (*ODD_FILES, "nothing", "; late", "solution: ", "wrong: ", "visitor,"))
    assert len(read_class(tmp_path / "a").students) == 31
    handed_in = [path for path in (tmp_path / "a" / "submitted").glob("*/*/*.*") if path.suffix in (".cu", ".ipynb")]
    texts = [path.read_bytes() for path in handed_in if path.is_file()]
    assert texts and not any(b"SOLUTION" in text for text in texts)
    assert run("demo", "--folder", str(tmp_path / "a")) == 1
    assert "is not empty" in capsys.readouterr().err


def test_mistakes_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ("--folder", str(make(tmp_path / "class", "a")), "--isolation", "limits")
    assert run("grade", *folder, "--assignment", "02_flash") == 1
    said = capsys.readouterr().err
    assert "there is no 02_flash; there are: 00_start_here" in said
    assert "read and change what this account can" in said, "what limits alone do not enforce"
    assert run("grade", *folder, "--workers", "0") == 1
    assert "workers takes a number from 1, got 0" in capsys.readouterr().err
    assert run("grade", "--folder", str(tmp_path / "nowhere"), "--isolation", "limits") == 1
    assert "not the folder of a class" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_said_in_one_line(
    tmp_path: Path, graded: Callable[..., Summary], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make(tmp_path / "class", "a")
    hand_in(folder, "a")
    (folder / "results").write_text("a file where a folder must be")
    with pytest.raises(ClassroomError, match=f"results/a/{EXERCISE}.json cannot be written: "):
        graded(folder)
    (folder / "run.lock").unlink()
    (folder / "run.lock").mkdir()
    assert run("grade", "--folder", str(folder), "--isolation", "limits") == 1
    assert f"error: {folder / 'run.lock'} cannot be written: Is a directory" in capsys.readouterr().err
    assert run("demo", "--folder", str(folder / "students.csv" / "class"), "--students", "1") == 1
    assert "cannot be written: Not a directory" in capsys.readouterr().err


def test_ctrl_c_does_not_reach_the_workers(graded: Callable[..., Summary], scheduler: str) -> None:
    from distributed import Client

    with Client(scheduler, set_as_default=False) as client:
        assert client.submit(signal.getsignal, signal.SIGINT, pure=False).result() == signal.SIG_IGN


def test_a_scheduler_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="takes an address like tcp://HOST:8786, got 'nonsense'"):
        grade_class(make(tmp_path / "nonsense", "a"), scheduler="nonsense", isolation="limits")
    monkeypatch.setattr(class_grading, "SECONDS_TO_CONNECT", 0.5)
    with pytest.raises(ClassroomError, match="no worker through the scheduler tcp://127.0.0.1:9"):
        grade_class(make(tmp_path / "class", "a"), scheduler="tcp://127.0.0.1:9", isolation="limits")


# ---- in earnest


def test_a_real_class(tmp_path: Path) -> None:
    folder = tmp_path / "class"
    make_class(folder, students=2, exercises=[EXERCISE], seed=6)
    isolation = "bubblewrap" if sandbox.isolation_available()[0] else "limits"
    class_grading._refuse_without_bubblewrap.cache_clear()
    with dask.config.set({METHOD: "spawn"}):
        summary = grade_class(folder, workers=1, isolation=isolation)
    assert not summary.failures, str(summary)
    with (folder / "demo.csv").open(newline="") as file:
        drawn = {row["student"]: row["handed_in"] for row in csv.DictReader(file)}
    rows = table(folder)
    assert rows.keys() == drawn.keys()
    for student, handed_in in drawn.items():
        full = rows[student]["points"] == rows[student]["max_points"]
        assert full == handed_in.startswith(("solution", "right")) or ";" in handed_in, rows[student]
