"""The folder of a class: who is in it, what is due when, and what was handed in.

    students.csv                   the roster, with nbgrader's columns: id, first_name, last_name, email; and, where
                                   Canvas is to know them, canvas_id and section
    assignments.csv                optional: assignment (a chapter or an exercise), due ("2026-11-30 18:00 UTC", a day,
                                   which lasts to its end, or empty), and what late work costs: late_percent_per_day,
                                   late_percent_most
    release/NN_slug/               what was handed out
    submitted/STUDENT/NN_slug/     name.cu and name.ipynb of each exercise, and nbgrader's timestamp.txt

What a teacher wrote is checked, and a mistake in it stops the run with its line. What a student handed in never does.
Tables may have commas, semicolons or tabs between their values.
"""

from __future__ import annotations

import csv
import difflib
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from course_utils.grading.catalog import all_ids, exercise
from course_utils.grading.result import Diagnosis
from course_utils.grading.submission import Submission, read_submission

_TIMESTAMP = "timestamp.txt"
_DAY = re.compile(r"(\d{4}-\d\d-\d\d)(?:\s+([A-Za-z+-]\S*))?")


def chapters() -> tuple[str, ...]:
    """The chapters that have exercises."""
    return tuple(dict.fromkeys(one.split("/")[0] for one in all_ids()))


class ClassroomError(Exception):
    """What stops a run, in words for the teacher: a bad roster, a lock, a worker that cannot grade."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around what writes to a file or folder of the class: an OSError becomes a ClassroomError that names it."""
    try:
        yield
    except OSError as error:
        raise ClassroomError(f"{path} cannot be written: {error.strerror or error}") from None


@dataclass(frozen=True)
class Student:
    """One line of the roster, or (`enrolled` False) a folder in submitted/ that has no line."""

    id: str
    first_name: str = ""
    last_name: str = ""
    email: str = ""
    enrolled: bool = True
    canvas_id: str = ""
    section: str = ""

    @property
    def name(self) -> str:
        """First and last name, or the id where there is none."""
        return f"{self.first_name} {self.last_name}".strip() or self.id


@dataclass(frozen=True)
class LateRule:
    """What late work costs: so many percent of its points for each day begun, and at most `most` percent."""

    per_day: float
    most: float = 100.0

    def penalty(self, points: float, late_seconds: float) -> float:
        """Points to take off, to a hundredth."""
        days = math.ceil(late_seconds / 86_400)
        return round(max(0.0, points) * min(self.most, self.per_day * days) / 100, 2)


@dataclass(frozen=True)
class ClassFolder:
    """What the folder of a class says, without the hand-ins themselves.

    students: sorted by id, those who are not enrolled too. due: by exercise; None where no time is set.
    released: ids of the exercises that every student has a row for: the exercises of assignments.csv if there is one,
    else of all chapters with a hand-in; of a chapter in release/ only the exercises that are there. remarks: what
    the teacher should look at. late: what late work costs, by exercise. delimiter: what stands between the values of
    the roster, and so of the tables of grades.
    """

    path: Path
    students: tuple[Student, ...]
    due: Mapping[str, datetime | None]
    released: tuple[str, ...]
    remarks: tuple[str, ...]
    late: Mapping[str, LateRule] = field(default_factory=dict)
    delimiter: str = ","

    def due_of_chapter(self, chapter: str) -> datetime | None:
        """The last of its exercises' due times."""
        times = [self.due.get(exercise_id) for exercise_id in self.assigned(chapter)]
        return max((time for time in times if time is not None), default=None)

    def several_due(self, chapter: str) -> bool:
        """Whether its exercises are due at different times."""
        return len({self.due.get(exercise_id) for exercise_id in self.assigned(chapter)}) > 1

    def assigned(self, chapter: str) -> tuple[str, ...]:
        """Its exercises that assignments.csv names; all of them where there is no such file."""
        return tuple(one for one in all_ids() if one.split("/")[0] == chapter and (not self.due or one in self.due))

    def hand_in(self, student: str, exercise_id: str) -> Submission:
        """What the student handed in; missing or refused files are part of it. A link to a folder is refused."""
        folder = self.path / "submitted" / student
        chapter = folder / exercise_id.split("/")[0]
        for level in (folder, chapter):
            if os.path.islink(level):
                return _without_files(exercise_id, "unreadable", f"{level.name} is a symbolic link: hand in the folder")
        if os.path.isfile(chapter):
            words = f"{chapter.name} is a file: hand in a folder of that name, with the exercise's files in it"
            return _without_files(exercise_id, "unreadable", words)
        submission = read_submission(chapter, exercise_id)
        if submission.status == "missing" and _is_empty(chapter):
            return _without_files(exercise_id, "empty", f"the folder {chapter.name} is empty")
        return submission

    def hand_ins(self) -> list[tuple[str, str]]:
        """Student and chapter of each hand-in, also if it is a link, or a file in the place of a folder."""
        folder = self.path / "submitted"
        there_are = [(student.id, chapter) for student in self.students for chapter in chapters()]
        return [place for place in there_are if os.path.lexists(folder.joinpath(*place))]

    def submitted_at(self, student: str, chapter: str) -> datetime | None:
        """The time in timestamp.txt, in UTC; None where there is none. Raises ValueError if it cannot be read."""
        try:
            text = self.small_file(student, chapter, _TIMESTAMP)
            return parse_time(text.decode("utf-8-sig")) if text is not None else None
        except ValueError as error:
            path = self.path / "submitted" / student / chapter / _TIMESTAMP
            raise ValueError(f"the time in {path} cannot be read ({error})") from None

    def small_file(self, student: str, chapter: str, name: str) -> bytes | None:
        """The first 1000 bytes of a file beside the hand-in; None where there is none. Links are not followed. Raises
        ValueError if it cannot be read.
        """
        path = self.path / "submitted" / student / chapter / name
        if os.path.islink(path.parent) or os.path.islink(path.parent.parent):
            return None
        try:
            number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(number, "rb") as file:
                return file.read(1000)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ValueError(error.strerror) from None


def read_class(folder: str | os.PathLike[str]) -> ClassFolder:
    """Reads the roster, the due dates and the names of the hand-ins. Raises ClassroomError, naming file and line."""
    path = Path(folder)
    submitted = path / "submitted"
    if not submitted.is_dir():
        raise ClassroomError(f"{path} is not the folder of a class: there is no {submitted}/STUDENT/NN_slug/")
    roster, delimiter = _roster(path / "students.csv")
    due, late, by_name = _due(path / "assignments.csv")
    try:
        handed_in, in_use, remarks = _look_through(submitted)
    except OSError as error:
        raise ClassroomError(f"{submitted} cannot be read: {error.strerror}") from None
    strangers = sorted(handed_in - roster.keys())
    if strangers:
        hint = "; with nbgrader's exchange an id is the student's login name"
        remarks.append(f"not in students.csv, graded all the same: {', '.join(strangers)}{hint}")
    students = [*roster.values(), *(Student(name, enrolled=False) for name in strangers)]
    chosen = [one for one in all_ids() if (one in due if due else one.split("/")[0] in in_use)]
    not_handed_out = [one for one in chosen if one not in by_name and _lacks(path / "release", one)]
    for one in not_handed_out:
        chapter = one.split("/")[0]
        remarks.append(f"{one} is not in release/: it is in no table until `classroom release {chapter}` hands it out")
    return ClassFolder(
        path,
        tuple(sorted(students, key=lambda student: student.id)),
        due,
        tuple(one for one in chosen if one not in not_handed_out),
        tuple(remarks),
        late,
        delimiter,
    )


def parse_time(text: str) -> datetime:
    """A time as nbgrader writes it ("2026-11-22 08:15:00.5 UTC", "... +0100") or in ISO 8601, in UTC.

    A time without a zone is taken as UTC, as nbgrader does. Raises ValueError.
    """
    words = text.split()
    zone: object = UTC
    if len(words) == 3:
        name = words.pop()
        offset = re.fullmatch(r"([+-]\d\d):?(\d\d)", name)
        if offset is not None:
            words[-1] += f"{offset[1]}:{offset[2]}"
        elif name != "UTC":
            try:
                zone = ZoneInfo(name)
            except (LookupError, OSError, ValueError):
                raise ValueError(f"unknown time zone {name[:40]!r}") from None
    time = datetime.fromisoformat(" ".join(words))
    return (time if time.tzinfo is not None else time.replace(tzinfo=zone)).astimezone(UTC)


def _look_through(submitted: Path) -> tuple[set[str], set[str], list[str]]:
    """Students and chapters found in submitted/, and a remark for each folder that is neither."""
    students, in_use, remarks = set(), set(), []
    for name in sorted(_names(submitted)):
        folder = submitted / name
        if name.startswith("."):
            continue
        if _bad_id(name):
            remarks.append(f"submitted/{name!r} is not graded: {_bad_id(name)}")
            continue
        if not os.path.isdir(folder) and not os.path.islink(folder):
            remarks.append(f"submitted/{name} is not graded: it is not a folder")
            continue
        students.add(name)
        if os.path.islink(folder):
            remarks.append(f"submitted/{name} is a symbolic link and was not followed")
            continue
        try:
            there_are = {entry for entry in _names(folder) if not entry.startswith(".")}
        except OSError as error:
            remarks.append(f"submitted/{name} cannot be read: {error.strerror}")
            continue
        in_use |= there_are & set(chapters())
        remarks += [_no_chapter(name, entry) for entry in sorted(there_are - set(chapters()))]
    return students, in_use, remarks


def _no_chapter(student: str, entry: str) -> str:
    close = difflib.get_close_matches(entry, chapters(), 1, 0.8)
    hint = f": is it {close[0]}? Then name it so" if close else ""
    if entry.endswith((".cu", ".ipynb")):
        hint = ": a file belongs into the folder of its chapter"
    return f"submitted/{student}/{entry!r} is no chapter{hint}"


def _roster(path: Path) -> tuple[dict[str, Student], str]:
    students: dict[str, Student] = {}
    rows, delimiter = read_table(path, "id", "id,first_name,last_name,email")
    for line, row in rows:
        reason = _bad_id(row["id"])
        if reason:
            raise ClassroomError(f"{path}, line {line}: the id {row['id']!r} cannot be a folder's name: {reason}")
        if row["id"] in students:
            raise ClassroomError(f"{path}, line {line}: the id {row['id']!r} is there twice")
        names = ("first_name", "last_name", "email", "canvas_id", "section")
        students[row["id"]] = Student(row["id"], **{name: row[name] for name in names if name in row})
    return students, delimiter


def _due(path: Path) -> tuple[dict[str, datetime | None], dict[str, LateRule], set[str]]:
    """Due times by exercise, what late work costs, and the exercises that have a line of their own.

    A line for a chapter is one for each of its exercises; a line for an exercise goes before it.
    """
    due: dict[str, datetime | None] = {}
    late: dict[str, LateRule] = {}
    by_name: set[str] = set()
    if not path.exists():
        return due, late, by_name
    rows, _ = read_table(path, "assignment", "assignment,due")
    for line, row in sorted(rows, key=lambda numbered: numbered[1]["assignment"] not in chapters()):
        assignment, where = row["assignment"], f"{path}, line {line}"
        mine = [one for one in all_ids() if assignment in (one, *one.split("/"))]
        if not mine:
            there_are = ", ".join((*chapters(), *all_ids()))
            raise ClassroomError(f"{where}: {assignment!r} is no assignment; there are: {there_are}")
        try:
            time = _due_time(row["due"]) if row.get("due") else None
        except ValueError as error:
            like = "write it like 2026-11-30 18:00 UTC"
            raise ClassroomError(f"{where}: the due time {row['due']!r}: {error}; {like}") from None
        due |= dict.fromkeys(mine, time)
        rule = _late_rule(row, where)
        late |= dict.fromkeys(mine, rule) if rule else {}
        by_name |= {*mine} if assignment not in chapters() else set()
    return due, late, by_name


def _lacks(release: Path, exercise_id: str) -> bool:
    """Whether this exercise's chapter was handed out without it."""
    return (release / exercise_id).parent.is_dir() and not (release / f"{exercise_id}.ipynb").exists()


def _due_time(text: str) -> datetime:
    """As `parse_time`; a day without an hour, with or without a zone, lasts to its last second."""
    day = _DAY.fullmatch(text.strip())
    return parse_time(f"{day[1]} 23:59:59 {day[2] or 'UTC'}" if day else text)


def _late_rule(row: Mapping[str, str], where: str) -> LateRule | None:
    """The late rule of a line; None if it has none. Raises ClassroomError."""
    percent = []
    for name in ("late_percent_per_day", "late_percent_most"):
        text = row.get(name, "")
        try:
            percent.append(float(text.removesuffix("%").replace(",", ".")) if text else None)
        except ValueError:
            percent.append(math.nan)
        if percent[-1] is not None and not 0 <= percent[-1] <= 100:
            raise ClassroomError(f"{where}: {name} takes a number from 0 to 100, got {text!r}")
    per_day, most = percent
    return None if per_day is None else LateRule(per_day, 100.0 if most is None else most)


def read_table(path: Path, needed: str, columns: str) -> tuple[list[tuple[int, dict[str, str]]], str]:
    """The lines of a teacher's table with their numbers, values stripped; and the delimiter."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            delimiter = max(",;\t", key=first.count)
            file.seek(0)
            reader = csv.DictReader(file, delimiter=delimiter)
            if needed not in (reader.fieldnames or ()):
                raise ClassroomError(f"{path} has no column {needed!r}: its first line must be {columns}")
            rows = []
            for row in reader:
                if None in row or None in row.values():
                    raise ClassroomError(f"{path}, line {reader.line_num}: more or fewer values than columns")
                rows.append((reader.line_num, {name: value.strip() for name, value in row.items()}))
            return rows, delimiter
    except UnicodeDecodeError:
        raise ClassroomError(f"{path} is not text in UTF-8: save it as CSV UTF-8") from None
    except (OSError, csv.Error) as error:
        raise ClassroomError(f"{path} cannot be read ({error}); its first line must be {columns}") from None


def _bad_id(name: str) -> str:
    """Why a student's id cannot name a folder; "" if it can."""
    if not name or name.startswith("."):
        return "it is empty or starts with a dot"
    if "/" in name or "\\" in name:
        return "it has a slash"
    if not name.isprintable():
        return "it has a character that cannot be printed"
    return ""


def _names(folder: Path) -> set[str]:
    return {entry.name for entry in os.scandir(folder)}


def _is_empty(chapter: Path) -> bool:
    """Whether it is a folder that holds nothing of the student's."""
    try:
        return _names(chapter) <= {_TIMESTAMP}
    except OSError:
        return False


def _without_files(exercise_id: str, status: str, words: str) -> Submission:
    """A hand-in none of whose files can be used, all for the same reason."""
    task = exercise(exercise_id)
    files = [f"{task.name}.cu"] * bool(task.kernels) + [f"{task.name}.ipynb"] * bool(task.cells)
    return Submission(
        exercise_id, problems={file: Diagnosis(words) for file in files}, statuses={file: status for file in files}
    )
