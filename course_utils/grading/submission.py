"""What a student handed in for one exercise, read with care: files may be missing, empty, links, or not what they say.

Reading never raises for a bad file: what cannot be used becomes a Diagnosis that the student gets to see, and the parts
that need the file lose their points; the others do not. A file named as browsers and file managers name a second copy,
"online_softmax (1).cu", is taken if it is the only one, with a note.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from course_utils.grading.catalog import EXERCISE_IDS, all_ids, exercise
from course_utils.grading.result import OF_A_FILE, Diagnosis

LARGEST_KERNEL = 256 << 10  # bytes
LARGEST_NOTEBOOK = 16 << 20
LARGEST_CELL = 64 << 10  # characters
MOST_NAMED = 5  # files that a message names
_COPY = "copy|copie|kopie|copia|kopia|cópia"
_WHICH = r"(?:another|\d+(?:st|nd|rd|th)|weitere|altra|otra|autre|\d+\.)"
_APART = r"[\s_‐-―-]"  # the dashes of Unicode, too
_OF_COPIES = (
    rf"{_APART}*[(\[]\s*(({_WHICH} )?({_COPY})[ _-]*)?\d*\s*[)\]]$",
    rf"{_APART}+({_WHICH} )?({_COPY}){_APART}*\d*$",
    rf"{_APART}+\d{{1,2}}$",
)
_NO_TEXT = {b"PK\x03\x04": "a ZIP archive", b"%PDF": "a PDF", b"\x1f\x8b": "a gzip archive", b"\x89PNG": "a picture"}


@dataclass(frozen=True)
class Submission:
    """One hand-in for one exercise; small, and safe to send to another process.

    kernel: text of the .cu file; None where it cannot be used. cells: source of the notebook's cells that the exercise
    asks for, by grade_id. problems: what is wrong with a file or cell, by its name. statuses: of each file the exercise
    has: "ok", "missing", "empty" or "unreadable" (which it is, too, if it is another exercise's). notes: what student
    and teacher should know of files: "online_softmax (1).cu was taken as online_softmax.cu".
    """

    exercise: str
    kernel: str | None = None
    cells: dict[str, str] = field(default_factory=dict)
    problems: dict[str, Diagnosis] = field(default_factory=dict)
    statuses: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def status(self) -> str:
        """The status of the whole submission: "ok", or the worst word, after "partly" if another file can be used."""
        there_are = set(self.statuses.values())
        worst = next((word for word in ("unreadable", "empty", "missing") if word in there_are), "ok")
        return f"partly {worst}" if worst != "ok" and "ok" in there_are else worst

    @property
    def digest(self) -> str:
        """Equal for equal content, as far as grading looks at it."""
        content = [self.exercise, self.kernel, sorted(self.cells.items()), sorted(self.statuses.items())]
        content.append(sorted((name, problem.name) for name, problem in self.problems.items()))
        content += [self.notes] if self.notes else []
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
    there_are = _names(folder)
    kernel, cells = None, {}
    problems: dict[str, Diagnosis] = {}
    statuses: dict[str, str] = {}
    notes: list[str] = []
    for suffix, needed in ((".cu", task.kernels), (".ipynb", task.cells)):
        if not needed:
            continue
        file = f"{task.name}{suffix}"
        try:
            name = _choose(file, there_are, notes)
            if suffix == ".cu":
                kernel = _kernel(_read(folder / name, LARGEST_KERNEL), task.kernels, name)
            else:
                cells, unusable = _cells(_read(folder / name, LARGEST_NOTEBOOK), task.cells, name, exercise_id)
                problems |= unusable
            statuses[file] = "ok"
        except _Unusable as error:
            statuses[file], problems[file] = error.status, Diagnosis(str(error), kind=OF_A_FILE)
    return Submission(exercise_id, kernel, cells, problems, statuses, tuple(notes))


# ---- which file


def _names(folder: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError:
        return []


def _choose(file: str, there_are: list[str], notes: list[str]) -> str:
    """The name of the file to read for `file`: itself, or the only copy of it under a browser's name."""
    copies = [name for name in there_are if name != file and name.isprintable() and as_released(name) == file]
    if file in there_are:
        notes += [f"{name} lies beside {file} and was not graded" for name in copies[:MOST_NAMED]]
        return file
    if len(copies) == 1:
        notes.append(f"{copies[0]} was taken as {file}")
        return copies[0]
    if copies:
        words = f"there are {', '.join(copies[:MOST_NAMED])}: hand in the one that counts, under that name"
        raise _Unusable("missing", f"{file} is missing; {words}")
    others = [name for name in there_are if name.isprintable() and not _is_of_an_exercise(name)]
    others = [name for name in others if name not in ("timestamp.txt", "submission_secret.txt")]
    if others:
        others = [name for name in others if name.endswith(Path(file).suffix)] or others
        words = f"there is {', '.join(others[:MOST_NAMED])}: files keep the names that they were handed out with"
        raise _Unusable("missing", f"{file} is missing; {words}")
    return file


def as_released(name: str) -> str:
    """A file's name without what browsers and file managers add to that of a second copy, and what e-mail makes of it.

    A number of one or two digits, a word for "copy" and brackets go; "_v2", "_old" or another name stay.
    """
    name = unicodedata.normalize("NFKC", name).lower()
    name = re.sub(r"\.(txt|json|download)$", "", name)
    name = re.sub(rf"^({_COPY}) (of|von|de|di) ", "", name)
    stem, dot, suffix = _without_copy(name).rpartition(".")
    return (_without_copy(stem) + dot + suffix if dot else suffix).replace(" ", "")


def _without_copy(name: str) -> str:
    """The name without marks of a copy. An exercise's own name is left as it is, since it may end in a number."""
    exercises = {one.split("/")[1] for one in all_ids()}
    for pattern in _OF_COPIES * 2:  # "x - Kopie (2)", "x (copy 1) (1)"
        if name in exercises:
            break
        name = re.sub(pattern, "", name)
    return name


def _is_of_an_exercise(name: str) -> bool:
    released = as_released(name)
    return any(released in (f"{task}.cu", f"{task}.ipynb") for task in (one.split("/")[1] for one in all_ids()))


# ---- what is in it


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
            hint = ": clear its outputs and save it again" if ".ipynb" in name else ""
            raise _Unusable("unreadable", f"{name} has {kind.st_size:,} bytes; at most {most:,} are read{hint}")
        try:
            content = file.read(most + 1)
        except OSError as error:
            raise _Unusable("unreadable", f"{name} cannot be read: {os.strerror(error.errno or 0)}") from None
    if not content.strip():
        raise _Unusable("empty", f"{name} is empty")
    for start, what in _NO_TEXT.items():
        if content.startswith(start):
            raise _Unusable("unreadable", f"{name} is {what}: hand in the file itself")
    if re.match(rb"\s*<(!doctype|html|\?xml)", content[:200], re.IGNORECASE):
        raise _Unusable("unreadable", f"{name} is a web page: download the file itself again")
    utf_16 = " but in UTF-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in content[:2] else ""
    try:
        text = content.decode("utf-8-sig")
        zero = text.find("\0")
        if zero < 0:
            return re.sub(r"\r\n?", "\n", text)
    except UnicodeDecodeError as error:
        zero = error.start
    words = f"{name} is not text in UTF-8{utf_16} (byte {zero:,}): save it as UTF-8"
    raise _Unusable("unreadable", words) from None


def _kernel(text: str, wanted: tuple[str, ...], file: str) -> str:
    """The text, unless it is that of another exercise."""
    if not any(re.search(rf"\b{name}\b", text) for name in wanted):
        for other in all_ids():
            for name in exercise(other).kernels:
                if re.search(rf"__global__[^;{{}}]*\b{name}\s*\(", text):
                    words = f"{file} holds the kernel {name}, which is that of the exercise {other}"
                    raise _Unusable("unreadable", f"{words}: hand in this exercise's")
    if re.match(r'\s*\{\s*"(cells|metadata|nbformat)"', text):
        raise _Unusable("unreadable", f"{file} is a notebook, not a kernel: hand in the .cu file")
    return text


def _cells(
    text: str, wanted: tuple[str, ...], file: str, exercise_id: str
) -> tuple[dict[str, str], dict[str, Diagnosis]]:
    """The cells by grade_id, and what is wrong with others. Of copies of a cell the last counts, as in nbgrader."""
    try:
        notebook = json.loads(text)
    except (ValueError, RecursionError) as error:
        words = f"bad JSON ({str(error)[:200]})"
        if text.lstrip().startswith("{") and not text.rstrip().endswith("}"):
            words = f"bad JSON, it ends in the middle (line {text.rstrip().count(chr(10)) + 1}); hand in the whole file"
        raise _Unusable("unreadable", f"{file} is not a notebook: {words}") from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if isinstance(notebook, dict) and "worksheets" in notebook:
        raise _Unusable("unreadable", f"{file} is a notebook of an old format: open and save it in JupyterLab")
    if not isinstance(cells, list):
        raise _Unusable("unreadable", f"{file} is not a notebook: it has no list of cells")
    if not cells:
        raise _Unusable("empty", f"{file} has no cells: take a fresh copy of the exercise")
    found: dict[str, str] = {}
    checks: set[str] = set()
    for cell in cells:
        name = _path(cell, "metadata", "nbgrader", "grade_id")
        source = _path(cell, "source")
        if isinstance(source, list) and all(isinstance(line, str) for line in source):
            source = "".join(source)
        if _path(cell, "cell_type") != "code" or not isinstance(source, str):
            continue
        if name == "grade":
            checks |= set(re.findall(r"""\bcheck\(\s*["']([^"'\n]+)["']""", source))
        if isinstance(name, str) and name in wanted:
            found[name] = source
    if exercise_id not in checks and (others := [other for other in all_ids() if other in checks]):
        raise _Unusable(
            "unreadable", f"{file} is the notebook of another exercise, {others[0]}: hand in this exercise's"
        )
    problems = {}
    for name in wanted:
        if name not in found:
            words = "it was deleted or lost its tag; take it from a fresh copy of the exercise"
            problems[name] = Diagnosis(f"the cell {name!r} is not in {file}", words, kind=OF_A_FILE)
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


def exercises_in(path: Path) -> list[tuple[Path, str]]:
    """(folder, exercise id) of what a path means: the exercises/ folder, one chapter in it, or one file of an exercise.

    Raises ValueError where there is none.
    """
    if path.is_dir():
        chapters = [path] if any(_exercises_of(path)) else sorted(child for child in path.iterdir() if child.is_dir())
        found = [(chapter, exercise_id) for chapter in chapters for exercise_id in _exercises_of(chapter)]
    else:
        found = [
            (path.parent, exercise_id)
            for exercise_id in all_ids()
            if exercise_id.split("/")[1] in _released_names([path])
        ]
    if not found:
        raise ValueError(f"{path} is no exercise: give a folder such as exercises/{EXERCISE_IDS[2].split('/')[0]}")
    return found


def _exercises_of(folder: Path) -> list[str]:
    """The exercises that have a file in this folder."""
    names = _released_names(folder.iterdir())
    return [exercise_id for exercise_id in all_ids() if exercise_id.split("/")[1] in names]


def _released_names(files: Iterable[Path]) -> set[str]:
    """What the files would be of, "online_softmax (1).cu" of online_softmax."""
    released = (Path(as_released(path.name)) for path in files)
    return {name.stem for name in released if name.suffix in (".cu", ".ipynb")}
