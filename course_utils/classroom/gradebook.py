"""The tables of a class: grades.csv, a row per student and exercise; grades_by_student.csv, for people; and the same
for Moodle and Canvas to import.

Every student has a row for every exercise, with a status. Tables of equal grades are equal, byte for byte: they are
sorted, and hold no times but the times of hand-ins. What is not due yet, and not handed in, is no zero.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from course_utils.classroom.by_hand import ByHand, hand_in_code
from course_utils.classroom.class_folder import LateRule, Student
from course_utils.classroom.results_store import Record, write_atomically
from course_utils.grading.catalog import exercise
from course_utils.grading.result import OF_A_FILE

NOT_GRADED, NOT_DUE = "not graded", "not due yet"
UNKNOWN = "unknown"
BOM = "\ufeff"  # by which Excel knows that a table is in UTF-8
COLUMNS = (
    "student_id", "last_name", "first_name", "assignment", "exercise", "points", "max_points", "status",
    "late_seconds", "diagnosis", "parts", "submitted_at", "in_roster",
    "points_by_grader", "points_by_hand", "late_penalty", "notes", "hand_in",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One student and one exercise.

    record: its grade; None if it is not graded yet. submitted_at: in UTC; None if there is no time, "unknown" if it
    cannot be read. due: None if no time is set. is_open: whether it may still be handed in. handed_in: whether anything
    was. late_rule: what late work costs. by_hand: points given by hand that count; outdated: the latest that do not,
    because they were given for another hand-in.
    """

    student: Student
    exercise: str
    record: Record | None
    submitted_at: datetime | str | None = None
    due: datetime | None = None
    is_open: bool = False
    handed_in: bool = True
    late_rule: LateRule | None = None
    by_hand: ByHand | None = None
    outdated: ByHand | None = None

    @property
    def status(self) -> str:
        missing = not self.handed_in if self.record is None else self.record.status == "missing"
        if self.is_open and missing:
            return NOT_DUE
        return NOT_GRADED if self.record is None else self.record.status

    @property
    def has_points(self) -> bool:
        """Whether the points are known. A missing submission has 0; one that is not graded or not due has none yet."""
        return self.status != NOT_DUE and (self.points_by_grader is not None or self.by_hand is not None)

    @property
    def points_by_grader(self) -> int | None:
        """None if the grader has given none."""
        graded = self.record is not None and self.record.result is not None and self.status != NOT_DUE
        return self.record.result.earned if graded else None

    @property
    def points(self) -> float | int | None:
        """The points that count: the teacher's or the grader's, less the late penalty. None if they are not known."""
        if not self.has_points:
            return None
        return short(self._before_penalty() - self.penalty)

    @property
    def penalty(self) -> float | int:
        """Points taken off for late work."""
        if not self.has_points or self.late_rule is None:
            return 0
        return short(self.late_rule.penalty(self._before_penalty(), self.late_seconds if self.is_late else 0))

    def _before_penalty(self) -> float:
        return self.points_by_grader if self.by_hand is None else self.by_hand.points

    @property
    def late_seconds(self) -> int | str:
        """0 if it was in time, or if nothing was due or handed in; "unknown" for a hand-in without a time.

        Without a time, it was in time if it was seen before the due date.
        """
        if self.due is None or self.status in ("missing", NOT_DUE):
            return 0
        if isinstance(self.submitted_at, datetime):
            return max(0, int((self.submitted_at - self.due).total_seconds()))
        seen = self.record.seen if self.record is not None else ""
        if self.is_open or (seen and datetime.fromisoformat(seen) <= self.due):
            return 0
        return 0 if self.submitted_at is None and self.status == NOT_GRADED else UNKNOWN

    @property
    def is_late(self) -> bool:
        return self.late_seconds not in (0, UNKNOWN)

    @property
    def diagnosis(self) -> str:
        """The main diagnosis, and what is wrong with a file; or why there are no points."""
        if self.status == NOT_DUE:
            return ""
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
            diagnoses = [part.diagnosis for part in self.record.result.parts if part.diagnosis is not None]
            names += [diagnosis.name for diagnosis in diagnoses if diagnosis.kind == OF_A_FILE]
        return "; ".join(dict.fromkeys(names))

    @property
    def parts(self) -> str:
        """Points part by part: "causal 2/3; ragged 0/2"."""
        parts = self.record.result.parts if self.has_points else ()
        return "; ".join(f"{part.name} {part.earned}/{part.points}{' bonus' * part.bonus}" for part in parts)

    @property
    def notes(self) -> str:
        """Notes for student and teacher on the files and on points given by hand."""
        notes = list(self.record.result.notes) if self.record is not None and self.record.result is not None else []
        if self.by_hand is not None:
            notes.append(f"points given by hand: {self.by_hand.comment}".removesuffix(": "))
        return "; ".join(notes)

    @property
    def hand_in(self) -> str:
        """The code of what was handed in and graded, for by_hand.csv; "" where there is none."""
        return hand_in_code(self.record.key.digest) if self.record is not None and self.handed_in else ""

    def warning(self, delimiter: str = ",") -> str:
        """What the teacher should look at again: points by hand for another hand-in, or below the grader's."""
        given = self.by_hand or self.outdated
        if given is None:
            return ""
        grader = "none yet" if self.points_by_grader is None else self.points_by_grader
        words = f"{_decimal(short(given.points), delimiter)} points of {given.where}"
        if self.by_hand is None:
            now = f"now there is {self.hand_in or 'another'}, which counts with the grader's points: {grader}"
            return f"{words} were for the hand-in {given.hand_in}; {now}"
        below = self.points_by_grader is not None and given.points < self.points_by_grader
        return f"{words} count, though the grader gives {grader}" if below else ""


def short(points: float) -> float | int:
    """The number without trailing zeros."""
    rounded = round(points, 2)
    return int(rounded) if rounded == int(rounded) else rounded


def write_tables(folder: Path, rows: Sequence[Row], delimiter: str = ",") -> tuple[Path, ...]:
    """Writes the tables, sorted by student and in the order of the course; returns their paths.

    Those for people begin with a BOM and have the roster's delimiter, so that the spreadsheet that wrote it opens them.
    """
    tables = {
        "grades.csv": BOM + _text([COLUMNS, *(_values(row) for row in rows)], delimiter),
        "grades_by_student.csv": BOM + _text(_by_student(rows, delimiter), delimiter),
        "grades_moodle.csv": _text(_for_moodle(rows)),
        "grades_canvas.csv": _text(_for_canvas(rows)),
    }
    for name, text in tables.items():
        write_atomically(folder / name, text)
    return tuple(folder / name for name in tables)


def harmless(value: object) -> str:
    """A cell that a spreadsheet shows as text: no formula, no line break. Numbers stay."""
    if isinstance(value, int | float):
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
        "" if row.points_by_grader is None else row.points_by_grader,
        "" if row.by_hand is None else short(row.by_hand.points),
        row.penalty,
        row.notes,
        row.hand_in,
    )


def by_student(rows: Iterable[Row]) -> list[list[Row]]:
    """The rows of one student after the other."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.student.id, []).append(row)
    return list(found.values())


def _by_student(rows: Sequence[Row], delimiter: str = ",") -> list[Sequence[object]]:
    """One line per student; remarks name what is odd.

    Where the points of an exercise are not known, its cell says so in words, and there is no total. What may still be
    handed in is not in the total, for nobody.
    """
    exercises = list(dict.fromkeys(row.exercise for row in rows))
    table: list[Sequence[object]] = [
        ("student_id", "last_name", "first_name", "email", *exercises, "total", "max_total", "remarks")
    ]
    for mine in by_student(rows):
        student = mine[0].student
        remarks = [] if student.enrolled else ["not in students.csv"]
        remarks += _remarks(mine, delimiter)
        points = [row.status if row.points is None else row.points for row in mine]
        names = (student.id, student.last_name, student.first_name, student.email)
        table.append((*names, *points, *_total(mine), "; ".join(remarks)))
    return table


def _total(mine: Sequence[Row]) -> tuple[object, int]:
    """Points of the exercises that are due, "" if one is not known; and the most that can be earned."""
    due = [row for row in mine if not row.is_open]
    total = short(sum(row.points for row in due)) if all(row.has_points for row in due) else ""
    return total, sum(exercise(row.exercise).points for row in due)


def _for_moodle(rows: Sequence[Row]) -> list[Sequence[object]]:
    """What Moodle's "Grades › Import › CSV" takes: a student by ID number or email, a column of points and one of
    feedback for each exercise. A cell without points is empty, which Moodle leaves as it is.
    """
    exercises = list(dict.fromkeys(row.exercise for row in rows))
    heads = [head for one in exercises for head in (f"{one} (points)", f"{one} (feedback)")]
    table: list[Sequence[object]] = [("ID number", "First name", "Last name", "Email address", *heads, "Total")]
    for mine in by_student(rows):
        student = mine[0].student
        cells = [cell for row in mine for cell in (_points(row), _lost_points(row))]
        names = (student.id, student.first_name, student.last_name, student.email)
        table.append((*names, *cells, _total(mine)[0]))
    return table


def _for_canvas(rows: Sequence[Row]) -> list[Sequence[object]]:
    """What Canvas's "Grades › Import" takes: Canvas finds a student by ID (canvas_id of the roster) or by SIS User ID,
    here the roster's id; the second line says how many points there are.
    """
    exercises = list(dict.fromkeys(row.exercise for row in rows))
    heads = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
    most = [exercise(one).points for one in exercises]
    table: list[Sequence[object]] = [(*heads, *exercises), ("Points Possible", "", "", "", "", *most)]
    for mine in by_student(rows):
        student = mine[0].student
        name = ", ".join(part for part in (student.last_name, student.first_name) if part) or student.id
        place = (name, student.canvas_id, student.id, student.email, student.section)
        table.append((*place, *(_points(row) for row in mine)))
    return table


def _points(row: Row) -> object:
    return "" if row.points is None else row.points


def _lost_points(row: Row) -> str:
    """Why points are lost, in one line."""
    lost = [row.diagnosis if row.has_points else row.status, row.notes]
    if row.penalty:
        lost.append(f"late: {row.penalty} points taken off")
    return "; ".join(words for words in lost if words)


def _remarks(rows: Sequence[Row], delimiter: str) -> list[str]:
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
        odd += ["not in the total yet"] * any(row.is_open and row.status != NOT_DUE for row in mine)
        taken_off = _decimal(short(sum(row.penalty for row in mine)), delimiter)
        late = "late" + f" ({taken_off} points taken off)" * any(row.penalty for row in mine)
        odd += [late] * any(row.is_late for row in mine)
        odd += ["time unknown"] * any(row.late_seconds == UNKNOWN for row in mine)
        said = [(row.exercise.split("/")[1], words) for row in mine for words in (row.notes, row.warning(delimiter))]
        odd += [f"{name}: {words}" for name, words in said if words]
        if odd:
            remarks.append(f"{chapter}: {', '.join(odd)}")
    return remarks


def _decimal(value: float | int, delimiter: str) -> str:
    """A number as the table's spreadsheet writes it: half a point is 0,5 if the delimiter is a semicolon."""
    return str(value).replace(".", ",") if delimiter == ";" else str(value)


def _text(table: Sequence[Sequence[object]], delimiter: str = ",") -> str:
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
    for line in table:
        writer.writerow(_decimal(cell, delimiter) if isinstance(cell, float) else harmless(cell) for cell in line)
    return file.getvalue()
