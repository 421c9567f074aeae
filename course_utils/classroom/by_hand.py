"""Points that a teacher gives by hand: in by_hand.csv, or in formgrader.

    student,exercise,points,comment,hand_in
    ada,online_softmax,9,explained it at the board,h3f9a1c2

hand_in is the code of the hand-in that the points are for, as grades.csv shows it. When the student hands in something
else, the line no longer counts, and `classroom grade` says so. A line without a code counts for whatever is handed in.
Of two lines that count, the later one does; a line of by_hand.csv goes before formgrader.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from course_utils.classroom.class_folder import ClassFolder, ClassroomError, read_table
from course_utils.classroom.results_store import write_atomically
from course_utils.grading.catalog import all_ids, exercise

FILE = "by_hand.csv"
COLUMNS = ("student", "exercise", "points", "comment", "hand_in")
RESULT = "course_result"  # metadata of the output, in an autograded notebook, that shows the result
_IN_FORMGRADER = """
SELECT handed_in.student_id, assignment.name, notebook.name,
       SUM(COALESCE(grade.manual_score, grade.auto_score, 0)) + SUM(COALESCE(grade.extra_credit, 0))
FROM submitted_notebook AS mine
JOIN submitted_assignment AS handed_in ON mine.assignment_id = handed_in.id
JOIN assignment ON handed_in.assignment_id = assignment.id
JOIN notebook ON mine.notebook_id = notebook.id
JOIN grade ON grade.notebook_id = mine.id
GROUP BY mine.id
HAVING MAX(grade.manual_score IS NOT NULL) OR SUM(COALESCE(grade.extra_credit, 0)) != 0
"""


@dataclass(frozen=True)
class ByHand:
    """Points given by hand for one exercise of one student. hand_in: a code of `hand_in_code`, or "" for any hand-in.
    where: what the teacher wrote them in.
    """

    student: str
    exercise: str
    points: float
    comment: str = ""
    hand_in: str = ""
    where: str = FILE

    def counts_for(self, code: str) -> bool:
        return self.hand_in in ("", code)


def hand_in_code(digest: str) -> str:
    """The short name of a hand-in. It begins with a letter, so that a spreadsheet takes it for text."""
    return f"h{digest[:7]}"


def choose(given: Sequence[ByHand], code: str) -> tuple[ByHand | None, ByHand | None]:
    """The points that count for the hand-in `code`, of all given for one exercise of one student; and if none do, the
    latest that were given for another hand-in.
    """
    counting = [one for one in given if one.counts_for(code)]
    return (counting[-1], None) if counting else (None, given[-1] if given else None)


def read_by_hand(classroom: ClassFolder) -> dict[tuple[str, str], list[ByHand]]:
    """What was given by hand, by student and exercise id. Raises ClassroomError, naming file and line."""
    found: dict[tuple[str, str], list[ByHand]] = {}
    for one in (*in_formgrader(classroom.path), *_in_file(classroom)):
        found.setdefault((one.student, one.exercise), []).append(one)
    return found


def _in_file(classroom: ClassFolder) -> list[ByHand]:
    path = classroom.path / FILE
    if not path.exists():
        return []
    rows, _ = read_table(path, "student", ",".join(COLUMNS))
    ids = {part: one for one in all_ids() for part in (one, one.split("/")[1])}
    lines = []
    for line, row in rows:
        where = f"{path}, line {line}"
        if row.get("exercise") not in ids:
            raise ClassroomError(
                f"{where}: {row.get('exercise', '')!r} is no exercise; there are: {', '.join(all_ids())}"
            )
        task = exercise(ids[row["exercise"]])
        most = sum(part.points for part in (*task.parts, *task.questions))
        try:
            points = float(row.get("points", "").replace(",", "."))
        except ValueError:
            points = -1.0
        if not 0 <= points <= most:
            raise ClassroomError(f"{where}: points takes a number from 0 to {most}, got {row.get('points', '')!r}")
        words, code = row.get("comment", ""), row.get("hand_in", "")
        lines.append(ByHand(row["student"], task.id, points, words, code, f"{FILE}, line {line}"))
    return lines


def in_formgrader(folder: Path) -> list[ByHand]:
    """Points changed or added in formgrader, for the hand-ins that it shows. Raises ClassroomError.

    Read straight from gradebook.db, which nbgrader may have open at the same time; nbgrader need not be installed.
    """
    path = folder / "gradebook.db"
    if not path.is_file() or not path.stat().st_size:
        return []
    try:
        uri = f"{path.resolve().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=20)) as database:
            rows = database.execute(_IN_FORMGRADER).fetchall()
    except sqlite3.Error as error:
        words = "points given by hand are there, so no table is written without it; mend it or move it away"
        raise ClassroomError(f"{path} cannot be read ({error}): {words}") from None
    found = [
        ByHand(student, f"{chapter}/{name}", points, where="formgrader") for student, chapter, name, points in rows
    ]
    return [replace(one, hand_in=_shown_in_formgrader(folder, one)) for one in found]


def _shown_in_formgrader(folder: Path, given: ByHand) -> str:
    """The code of the hand-in in autograded/; "" if that is not known."""
    path = folder / "autograded" / given.student / f"{given.exercise}.ipynb"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for output in cell.get("outputs", ()):
                if RESULT in output["metadata"]:
                    return hand_in_code(output["metadata"][RESULT]["digest"])
    return ""


def append(folder: Path, given: Sequence[ByHand]) -> None:
    """Adds lines to by_hand.csv, in the columns and with the delimiter that the teacher has there."""
    if not given:
        return
    path = folder / FILE
    before = path.read_text(encoding="utf-8-sig").rstrip() if path.exists() else ",".join(COLUMNS)
    head = before.partition("\n")[0].strip()
    delimiter = max(",;\t", key=head.count)
    file = io.StringIO()
    writer = csv.DictWriter(
        file, head.split(delimiter), delimiter=delimiter, lineterminator="\n", extrasaction="ignore"
    )
    writer.writerows({name: getattr(one, name) for name in COLUMNS} for one in given)
    write_atomically(path, f"{before}\n{file.getvalue()}")
