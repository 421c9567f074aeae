"""The folder of a class: who is in it, what is due when, and what was handed in.

    students.csv                   the roster, with nbgrader's columns: id, first_name, last_name, email
    assignments.csv                optional: assignment, due (a chapter's slug; "2026-11-30 18:00 UTC", or empty)
    submitted/STUDENT/NN_slug/     name.cu and name.ipynb of each exercise, and nbgrader's timestamp.txt

What a teacher wrote is checked, and a mistake in it stops the run with its line. What a student handed in never does.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from course_utils.grading.catalog import EXERCISE_IDS, exercise
from course_utils.grading.result import Diagnosis
from course_utils.grading.submission import Submission, read_submission

CHAPTERS = tuple(dict.fromkeys(exercise_id.split("/")[0] for exercise_id in EXERCISE_IDS))
_TIMESTAMP = "timestamp.txt"


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


@dataclass(frozen=True)
class ClassFolder:
    """What the folder of a class says, without the hand-ins themselves.

    students: sorted by id, those who are not enrolled too. due: by chapter; None where no time is set.
    released: ids of the exercises that every student has a row for: those of assignments.csv if there is one, else of
    the chapters in which anybody handed in anything. remarks: what the teacher should look at.
    """

    path: Path
    students: tuple[Student, ...]
    due: Mapping[str, datetime | None]
    released: tuple[str, ...]
    remarks: tuple[str, ...]

    def hand_in(self, student: str, exercise_id: str) -> Submission:
        """What the student handed in; missing or refused files are part of it. A link to a folder is refused."""
        folder = self.path / "submitted" / student
        chapter = folder / exercise_id.split("/")[0]
        for level in (folder, chapter):
            if os.path.islink(level):
                return _without_files(exercise_id, "unreadable", f"{level.name} is a symbolic link: hand in the folder")
        submission = read_submission(chapter, exercise_id)
        if submission.status == "missing" and _is_empty(chapter):
            return _without_files(exercise_id, "empty", f"the folder {chapter.name} is empty")
        return submission

    def submitted_at(self, student: str, chapter: str) -> datetime | None:
        """The time in timestamp.txt, in UTC; None where there is none. Raises ValueError if it cannot be read."""
        path = self.path / "submitted" / student / chapter / _TIMESTAMP
        if os.path.islink(path.parent) or os.path.islink(path.parent.parent):
            return None
        try:
            number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(number, "rb") as file:
                return parse_time(file.read(100).decode())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise ValueError(f"the time in {path} cannot be read ({error})") from None


def read_class(folder: str | os.PathLike[str]) -> ClassFolder:
    """Reads the roster, the due dates and the names of the hand-ins. Raises ClassroomError, naming file and line."""
    path = Path(folder)
    submitted = path / "submitted"
    if not submitted.is_dir():
        raise ClassroomError(f"{path} is not the folder of a class: there is no {submitted}/STUDENT/NN_slug/")
    roster = _roster(path / "students.csv")
    due = _due(path / "assignments.csv")
    try:
        handed_in, chapters, remarks = _look_through(submitted)
    except OSError as error:
        raise ClassroomError(f"{submitted} cannot be read: {error.strerror}") from None
    strangers = sorted(handed_in - roster.keys())
    if strangers:
        remarks.append(f"not in students.csv, graded all the same: {', '.join(strangers)}")
    students = [*roster.values(), *(Student(name, enrolled=False) for name in strangers)]
    listed = due if due is not None else chapters
    return ClassFolder(
        path,
        tuple(sorted(students, key=lambda student: student.id)),
        due or {},
        tuple(exercise_id for exercise_id in EXERCISE_IDS if exercise_id.split("/")[0] in listed),
        tuple(remarks),
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
    """The students and chapters that submitted/ has folders of, and remarks on what is none."""
    students, chapters, remarks = set(), set(), []
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
        chapters |= there_are & set(CHAPTERS)
        remarks += [f"submitted/{name}/{entry!r} is no chapter" for entry in sorted(there_are - set(CHAPTERS))]
    return students, chapters, remarks


def _roster(path: Path) -> dict[str, Student]:
    students: dict[str, Student] = {}
    for line, row in _rows(path, "id", "id,first_name,last_name,email"):
        reason = _bad_id(row["id"])
        if reason:
            raise ClassroomError(f"{path}, line {line}: the id {row['id']!r} cannot be a folder's name: {reason}")
        if row["id"] in students:
            raise ClassroomError(f"{path}, line {line}: the id {row['id']!r} is there twice")
        names = ("first_name", "last_name", "email")
        students[row["id"]] = Student(row["id"], *(row.get(name) or "" for name in names))
    return students


def _due(path: Path) -> dict[str, datetime | None] | None:
    """Due times by chapter; None if there is no such file."""
    if not path.exists():
        return None
    due: dict[str, datetime | None] = {}
    for line, row in _rows(path, "assignment", "assignment,due"):
        chapter = row["assignment"]
        if chapter not in CHAPTERS:
            raise ClassroomError(f"{path}, line {line}: {chapter!r} is no assignment; there are: {', '.join(CHAPTERS)}")
        try:
            due[chapter] = parse_time(row["due"]) if row.get("due") else None
        except ValueError as error:
            like = "write it like 2026-11-30 18:00 UTC"
            raise ClassroomError(f"{path}, line {line}: the due time {row['due']!r}: {error}; {like}") from None
    return due


def _rows(path: Path, needed: str, columns: str) -> list[tuple[int, dict[str, str]]]:
    """The lines of a table of the teacher's with their numbers, values stripped."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            if needed not in (reader.fieldnames or ()):
                raise ClassroomError(f"{path} has no column {needed!r}: its first line must be {columns}")
            rows = []
            for row in reader:
                if None in row or None in row.values():
                    raise ClassroomError(f"{path}, line {reader.line_num}: more or fewer values than columns")
                rows.append((reader.line_num, {name: value.strip() for name, value in row.items()}))
            return rows
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
    """A hand-in of which nothing can be used, each of its files for the same reason."""
    task = exercise(exercise_id)
    files = [f"{task.name}.cu"] * bool(task.kernels) + [f"{task.name}.ipynb"] * bool(task.cells)
    return Submission(
        exercise_id, problems={file: Diagnosis(words) for file in files}, statuses={file: status for file in files}
    )
