"""What a student handed in for one exercise, read with care: files may be missing, empty, links, or not what they say.

Reading never raises for a bad file: what cannot be used becomes a Diagnosis that the student gets to see, and the parts
that need the file lose their points; the others do not.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

from course_utils.grading.catalog import exercise
from course_utils.grading.result import Diagnosis

LARGEST_KERNEL = 256 << 10  # bytes
LARGEST_NOTEBOOK = 16 << 20
LARGEST_CELL = 64 << 10  # characters


@dataclass(frozen=True)
class Submission:
    """One hand-in for one exercise; small, and safe to send to another process.

    kernel: text of the .cu file; None where it cannot be used. cells: source of the notebook's cells that the exercise
    asks for, by grade_id. problems: what is wrong with a file or cell, by its name. statuses: of each file the exercise
    has: "ok", "missing", "empty" or "unreadable".
    """

    exercise: str
    kernel: str | None = None
    cells: dict[str, str] = field(default_factory=dict)
    problems: dict[str, Diagnosis] = field(default_factory=dict)
    statuses: dict[str, str] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """Of the whole: "ok", or the worst word, after "partly" if another file can be used."""
        there_are = set(self.statuses.values())
        worst = next((word for word in ("unreadable", "empty", "missing") if word in there_are), "ok")
        return f"partly {worst}" if worst != "ok" and "ok" in there_are else worst

    @property
    def digest(self) -> str:
        """Equal for equal content, as far as grading looks at it."""
        content = [self.exercise, self.kernel, sorted(self.cells.items()), sorted(self.statuses.items())]
        content.append(sorted((name, problem.name) for name, problem in self.problems.items()))
        return hashlib.sha256(json.dumps(content).encode("utf-8", "surrogatepass")).hexdigest()


class _Unusable(Exception):
    """Why a file cannot be used: status and words."""

    def __init__(self, status: str, words: str) -> None:
        super().__init__(words)
        self.status = status


def read_submission(folder: str | os.PathLike[str], exercise_id: str) -> Submission:
    """What `folder` holds for an exercise: `name.cu` (if it has a kernel) and `name.ipynb` (if it has Python cells).

    A folder that does not exist gives a submission whose files are missing. Raises LookupError for an unknown exercise.
    """
    task = exercise(exercise_id)
    folder = Path(folder)
    kernel, cells = None, {}
    problems: dict[str, Diagnosis] = {}
    statuses: dict[str, str] = {}
    if task.kernels:
        file = f"{task.name}.cu"
        try:
            kernel = _read(folder / file, LARGEST_KERNEL)
            statuses[file] = "ok"
        except _Unusable as error:
            statuses[file], problems[file] = error.status, Diagnosis(str(error))
    if task.cells:
        file = f"{task.name}.ipynb"
        try:
            cells, unusable = _cells(_read(folder / file, LARGEST_NOTEBOOK), task.cells, file)
            statuses[file] = "ok"
            problems |= unusable
        except _Unusable as error:
            statuses[file], problems[file] = error.status, Diagnosis(str(error))
    return Submission(exercise_id, kernel, cells, problems, statuses)


def _read(path: Path, most: int) -> str:
    """The text of a regular file, never through a link at its end."""
    name = path.name
    try:
        # O_NONBLOCK: a pipe in place of the file must not hold us up.
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise _Unusable("missing", f"{name} is missing") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _Unusable("unreadable", f"{name} is a symbolic link: hand in the file itself") from None
        raise _Unusable("unreadable", f"{name} cannot be read: {os.strerror(error.errno or 0)}") from None
    kind = os.fstat(number)
    if not stat.S_ISREG(kind.st_mode):
        os.close(number)
        raise _Unusable("unreadable", f"{name} is not a file")
    with os.fdopen(number, "rb") as file:
        if kind.st_size > most:
            raise _Unusable("unreadable", f"{name} has {kind.st_size:,} bytes; at most {most:,} are read")
        try:
            content = file.read(most + 1)
        except OSError as error:
            raise _Unusable("unreadable", f"{name} cannot be read: {os.strerror(error.errno or 0)}") from None
    if not content.strip():
        raise _Unusable("empty", f"{name} is empty")
    try:
        return re.sub(r"\r\n?", "\n", content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        utf_16 = " but in UTF-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        words = f"{name} is not text in UTF-8{utf_16} (byte {error.start:,}): save it as UTF-8"
        raise _Unusable("unreadable", words) from None


def _cells(text: str, wanted: tuple[str, ...], file: str) -> tuple[dict[str, str], dict[str, Diagnosis]]:
    """The cells by grade_id, and what is wrong with others. Of copies of a cell the last counts, as in nbgrader."""
    try:
        notebook = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _Unusable("unreadable", f"{file} is not a notebook: bad JSON ({str(error)[:200]})") from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise _Unusable("unreadable", f"{file} is not a notebook: it has no list of cells")
    found: dict[str, str] = {}
    for cell in cells:
        name = _path(cell, "metadata", "nbgrader", "grade_id")
        source = _path(cell, "source")
        if isinstance(source, list) and all(isinstance(line, str) for line in source):
            source = "".join(source)
        if isinstance(name, str) and name in wanted and _path(cell, "cell_type") == "code" and isinstance(source, str):
            found[name] = source
    problems = {}
    for name in wanted:
        if name not in found:
            words = "it was deleted or lost its tag; take it from a fresh copy of the exercise"
            problems[name] = Diagnosis(f"the cell {name!r} is not in {file}", words)
        elif (length := len(found[name])) > LARGEST_CELL:
            problems[name] = Diagnosis(
                f"the cell {name!r} has {length:,} characters; at most {LARGEST_CELL:,} are read"
            )
            del found[name]
    return found, problems


def _path(value: object, *keys: str) -> object:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
