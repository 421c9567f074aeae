"""The tables of a class: grades.csv, a row per student and exercise, and grades_by_student.csv, for a gradebook.

Every student has a row for every exercise, with a status. Tables of equal grades are equal, byte for byte: they are
sorted, and hold no times but those of hand-ins.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from course_utils.classroom.class_folder import Student
from course_utils.classroom.results_store import Record, write_atomically
from course_utils.grading.catalog import exercise

NOT_GRADED = "not graded"
UNKNOWN = "unknown"
COLUMNS = (
    "student_id", "last_name", "first_name", "assignment", "exercise", "points", "max_points", "status",
    "late_seconds", "diagnosis", "parts", "submitted_at", "in_roster",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One student and one exercise.

    record: its grade; None if it is not graded yet. submitted_at: in UTC; None if there is no time, "unknown" if it
    cannot be read. due: None if no time is set.
    """

    student: Student
    exercise: str
    record: Record | None
    submitted_at: datetime | str | None = None
    due: datetime | None = None

    @property
    def status(self) -> str:
        return NOT_GRADED if self.record is None else self.record.status

    @property
    def has_points(self) -> bool:
        """Whether it is known how many. A missing submission has 0; one that is not graded has no points yet."""
        return self.record is not None and self.record.result is not None

    @property
    def points(self) -> int | None:
        """None where it is not known how many."""
        return self.record.result.earned if self.has_points else None

    @property
    def late_seconds(self) -> int | str:
        """0 if it was in time, or if nothing was due or handed in; "unknown" for a hand-in without a time."""
        if self.due is None or self.status == "missing":
            return 0
        if isinstance(self.submitted_at, datetime):
            return max(0, int((self.submitted_at - self.due).total_seconds()))
        return 0 if self.submitted_at is None and self.status == NOT_GRADED else UNKNOWN

    @property
    def is_late(self) -> bool:
        return self.late_seconds not in (0, UNKNOWN)

    @property
    def diagnosis(self) -> str:
        """The main one, and what is wrong with a file; or why there are no points."""
        if self.record is None:
            return "not graded by this run; grade it with --assignment " + self.exercise.split("/")[0]
        if self.record.result is None:
            return self.record.message
        main = self.record.result.diagnosis
        if self.status == "missing":
            return "nothing was handed in"
        if main is None:
            return ""
        names = [main.name]
        if self.status.startswith("partly "):
            task = exercise(self.exercise).name
            files = [part.diagnosis.name for part in self.record.result.parts if part.diagnosis is not None]
            names += [name for name in files if name.startswith((f"{task}.cu ", f"{task}.ipynb "))]
        return "; ".join(dict.fromkeys(names))

    @property
    def parts(self) -> str:
        """Points part by part: "causal 2/3; ragged 0/2"."""
        there_are = self.record.result.parts if self.has_points else ()
        return "; ".join(f"{part.name} {part.earned}/{part.points}{' bonus' * part.bonus}" for part in there_are)


def write_tables(folder: Path, rows: Sequence[Row]) -> tuple[Path, Path]:
    """Writes both tables, sorted by student and in the order of the course; returns their paths."""
    tables = folder / "grades.csv", folder / "grades_by_student.csv"
    write_atomically(tables[0], _text([COLUMNS, *(_values(row) for row in rows)]))
    write_atomically(tables[1], _text(_by_student(rows)))
    return tables


def harmless(value: object) -> str:
    """A cell that a spreadsheet shows as text: no formula, no line break. Numbers stay."""
    if isinstance(value, int):
        return str(value)
    text = " ".join("".join(char if char.isprintable() else " " for char in str(value)).split())
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def _values(row: Row) -> tuple[object, ...]:
    time = row.submitted_at
    return (
        row.student.id,
        row.student.last_name,
        row.student.first_name,
        *row.exercise.split("/"),
        "" if row.points is None else row.points,
        exercise(row.exercise).points,
        row.status,
        row.late_seconds,
        row.diagnosis,
        row.parts,
        f"{time:%Y-%m-%d %H:%M:%S} UTC" if isinstance(time, datetime) else time or "",
        "yes" if row.student.enrolled else "no",
    )


def _by_student(rows: Sequence[Row]) -> list[Sequence[object]]:
    """One line per student; remarks name what is odd.

    Where the points of an exercise are not known, its cell says so in words, and there is no total.
    """
    exercises = list(dict.fromkeys(row.exercise for row in rows))
    most = sum(exercise(exercise_id).points for exercise_id in exercises)
    table: list[Sequence[object]] = [
        ("student_id", "last_name", "first_name", "email", *exercises, "total", "max_total", "remarks")
    ]
    by_student: dict[str, list[Row]] = {}
    for row in rows:
        by_student.setdefault(row.student.id, []).append(row)
    for mine in by_student.values():
        student = mine[0].student
        remarks = [] if student.enrolled else ["not in students.csv"]
        remarks += _remarks(mine)
        points = [row.status if row.points is None else row.points for row in mine]
        total = sum(row.points or 0 for row in mine) if all(row.has_points for row in mine) else ""
        names = (student.id, student.last_name, student.first_name, student.email)
        table.append((*names, *points, total, most, "; ".join(remarks)))
    return table


def _remarks(rows: Sequence[Row]) -> list[str]:
    """What is odd about a student's hand-ins, a remark for each chapter: "NN_slug: missing (a, b), late"."""
    by_chapter: dict[str, list[Row]] = {}
    for row in rows:
        by_chapter.setdefault(row.exercise.split("/")[0], []).append(row)
    remarks = []
    for chapter, mine in by_chapter.items():
        names: dict[str, list[str]] = {}
        for row in mine:
            if row.status != "graded":
                names.setdefault(row.status, []).append(row.exercise.split("/")[1])
        odd = [status if len(who) == len(mine) else f"{status} ({', '.join(who)})" for status, who in names.items()]
        odd += ["late"] * any(row.is_late for row in mine)
        odd += ["time unknown"] * any(row.late_seconds == UNKNOWN for row in mine)
        if odd:
            remarks.append(f"{chapter}: {', '.join(odd)}")
    return remarks


def _text(table: Sequence[Sequence[object]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([harmless(value) for value in line] for line in table)
    return file.getvalue()
