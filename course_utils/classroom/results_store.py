"""What a class keeps between runs: results/STUDENT/NN_slug/name.json, the seed in run.json, and the lock.

A file is complete or not there at all: it is written under another name, flushed to the disk, and renamed. So a run
that was killed loses at most what was being graded.
"""

from __future__ import annotations

import ast
import fcntl
import hashlib
import json
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from course_utils import __version__
from course_utils.classroom.class_folder import ClassroomError, writing
from course_utils.grading.catalog import own_folder, own_ids
from course_utils.grading.result import Result

GRADER_FAILED = "grader failed"
_ROOT = Path(__file__).resolve().parents[1]
_SOURCES = {".cpp", ".h", ".hpp", ".cuh", ".S"}
_NO_GRADE = ("course_utils.plots", "course_utils.grading.catalog")  # pictures, and the list of exercises


@dataclass(frozen=True)
class Key:
    """What a grade depends on. If all of it is equal, the stored grade stands.

    digest: of the submission (`Submission.digest`). grader: `grader_version` of the exercise. seed: the class's, see
    `exercise_seed`.
    """

    digest: str
    grader: str
    seed: int
    device: str


@dataclass(frozen=True)
class Record:
    """One stored grade. status: "graded", "missing", "empty", "unreadable", "partly ..." or "grader failed".

    result: None only if the grader failed; `message` says how. A failure is tried again by the next run.
    seen, submitted_at: when this content was first graded, and the time of its hand-in then; in ISO 8601, or "".
    """

    student: str
    exercise: str
    status: str
    key: Key
    result: Result | None = None
    message: str = ""
    seen: str = ""
    submitted_at: str = ""


class ResultsStore:
    """The results of a class in its folder. Only one process may write, see `lock`."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def path(self, student: str, exercise_id: str) -> Path:
        return self.folder / "results" / student / f"{exercise_id}.json"

    def read(self, student: str, exercise_id: str) -> Record | None:
        """The stored grade; None if there is none, or if the file is damaged: then it is graded again."""
        try:
            fields = json.loads(self.path(student, exercise_id).read_text(encoding="utf-8"))
            result = fields.pop("result")
            fields["key"] = Key(**fields["key"])
            return Record(**fields, result=result and Result.from_json(json.dumps(result)))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def write(self, record: Record) -> None:
        """Stores one grade; it replaces an older one."""
        fields = asdict(record) | {"result": record.result and json.loads(record.result.to_json())}
        text = json.dumps(fields, indent=1, ensure_ascii=False) + "\n"
        write_atomically(self.path(record.student, record.exercise), text)

    def seed(self, *, new: bool = False) -> int:
        """The seed of the class, drawn at first use. All inputs follow from it, see `exercise_seed`."""
        path = self.folder / "run.json"
        if new or not path.exists():
            write_atomically(path, json.dumps({"seed": secrets.randbits(53)}) + "\n")
        try:
            seed = json.loads(path.read_text(encoding="utf-8"))["seed"]
            if type(seed) is not int or seed < 0:
                raise ValueError(f"the seed is {seed!r}")
            return seed
        except (OSError, ValueError, KeyError, TypeError) as error:
            hint = "mend it, or draw another seed with --new-seed (all are graded again)"
            raise ClassroomError(f"{path} does not hold the class's seed ({error}): {hint}") from None

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps other runs out of this folder. Raises ClassroomError if one is at work; ends with the process."""
        path = self.folder / "run.lock"
        with writing(path):
            file = path.open("a+", encoding="utf-8")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                who = file.read(200).strip() or "unknown"
                raise ClassroomError(f"another run ({who}) is grading {self.folder}: wait for it, or stop it") from None
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
            file.flush()
            try:
                yield
            finally:
                file.truncate(0)


def write_atomically(path: Path, text: str) -> None:
    """Writes a file so that a reader, or a crash, finds either the old or the new text. Raises ClassroomError."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        number, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            # Half a surrogate pair, from a student's notebook, becomes the \uXXXX that JSON reads.
            with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise


def exercise_seed(seed: int, exercise_id: str) -> int:
    """The seed of one exercise's inputs, below 2³¹: the same for all students of a class."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{exercise_id}".encode()).digest()[:4]) >> 1


def grader_version(exercise_id: str) -> str:
    """The version of the course with a hash of what a grade of this exercise depends on: another may give other grades.

    That is the grader, the exercise's own module, all that these import, and the emulator's sources. A new exercise,
    another exercise's module, a picture or a chapter does not count.
    """
    own = (own_folder() / f"{exercise_id}.py").read_bytes() if exercise_id in own_ids() else None
    return _version(exercise_id, own)


@cache
def _version(exercise_id: str, own: bytes | None) -> str:
    """own: the module of a teacher's own exercise, which may change while this process runs."""
    first = (f"course_utils.grading.tasks.{exercise_id.split('/')[1]}",) if own is None else _imports(own)
    paths = {_modules()[name] for name in _needed(*first)} | {p for p in _ROOT.rglob("*") if p.suffix in _SOURCES}
    content = hashlib.sha256(own or b"")
    for path in sorted(paths):
        content.update(f"{path.relative_to(_ROOT)}\0".encode() + _file_hash(path))
    return f"{__version__}+{content.hexdigest()[:12]}"


def _needed(*first: str) -> set[str]:
    """Modules that grader, runner and `first` import, at their top or in a function."""
    found: set[str] = set()
    todo = ["course_utils.grading.grader", "course_utils.grading.runner", *first]
    while todo:
        name = todo.pop()
        if name not in found and not name.startswith(_NO_GRADE):
            found.add(name)
            todo += _imports(_modules()[name].read_bytes())
    return found


@cache
def _modules() -> dict[str, Path]:
    """The course's modules by name."""
    names = {path: path.relative_to(_ROOT.parent).with_suffix("").parts for path in _ROOT.rglob("*.py")}
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts): path for path, parts in names.items()}


@cache
def _imports(source: bytes) -> tuple[str, ...]:
    """The course's modules that a module with this source imports, with the packages around these."""
    wanted: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            wanted += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            wanted += [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    found = set()
    for dotted in wanted:
        while dotted:
            found |= {dotted} & _modules().keys()
            dotted = dotted.rpartition(".")[0]
    return tuple(sorted(found))


@cache
def _file_hash(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()
