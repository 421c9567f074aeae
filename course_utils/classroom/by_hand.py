"""What a teacher changed in nbgrader's gradebook: points given by hand in formgrader, and penalties of a plugin.

Read straight from gradebook.db, which nbgrader may have open at the same time: nothing is written, and nbgrader need
not be installed.
"""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from course_utils.classroom.class_folder import ClassroomError

_QUERY = """
SELECT handed_in.student_id, assignment.name, notebook.name, SUM(grade.manual_score), SUM(grade.extra_credit),
       MAX(grade.manual_score IS NOT NULL AND grade.needs_manual_grade), MAX(mine.late_submission_penalty)
FROM submitted_notebook AS mine
JOIN submitted_assignment AS handed_in ON mine.assignment_id = handed_in.id
JOIN assignment ON handed_in.assignment_id = assignment.id
JOIN notebook ON mine.notebook_id = notebook.id
LEFT JOIN grade ON grade.notebook_id = mine.id
GROUP BY mine.id
"""


@dataclass(frozen=True)
class ByHand:
    """Of one student and exercise. points: in the place of the grader's; None where nobody gave any. extra: added to
    these or to the grader's. penalty: of a plugin for late work. review: whether it was graded again since.
    """

    points: float | None = None
    extra: float = 0.0
    penalty: float = 0.0
    review: bool = False


def read_by_hand(folder: Path) -> dict[tuple[str, str], ByHand]:
    """What is not as the grader left it, by student and exercise id. Raises ClassroomError if it cannot be read."""
    path = folder / "gradebook.db"
    if not path.is_file() or not path.stat().st_size:
        return {}
    try:
        with contextlib.closing(
            sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=20)
        ) as database:
            rows = database.execute(_QUERY).fetchall()
    except sqlite3.Error as error:
        words = "points given by hand are there, so no table is written without it; mend it or move it away"
        raise ClassroomError(f"{path} cannot be read ({error}): {words}") from None
    found = {
        (student, f"{chapter}/{name}"): ByHand(points, extra or 0.0, penalty or 0.0, bool(review))
        for student, chapter, name, points, extra, review, penalty in rows
    }
    return {place: by_hand for place, by_hand in found.items() if by_hand != ByHand()}
