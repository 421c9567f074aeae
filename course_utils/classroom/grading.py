"""Grades a class with Dask: one task for each student and exercise, on this machine's cores or on many machines.

A task carries the submission's content, so workers need no shared files, only this package. The process that starts
the run is the only one that writes: a grade is stored as soon as it arrives, and a later run takes up what is left.
All students get the same inputs, which follow from the class's seed; so the tables do not depend on who graded what.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from course_utils.classroom.class_folder import ClassFolder, ClassroomError, read_class
from course_utils.classroom.gradebook import NOT_GRADED, UNKNOWN, Row, write_tables
from course_utils.classroom.results_store import (
    GRADER_FAILED,
    Key,
    Record,
    ResultsStore,
    exercise_seed,
    grader_version,
)
from course_utils.grading.catalog import EXERCISE_IDS
from course_utils.grading.result import Result
from course_utils.grading.submission import Submission

if TYPE_CHECKING:
    from distributed import Client, Future

DEATHS = 3  # of workers, all while they grade the same submission: then it is given up
SECONDS_TO_CONNECT = 20
# Ctrl-C reaches all processes of the terminal: only the one that started the run is to answer it.
IGNORE_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"

GradeFunction = Callable[[Submission, int, str, str], str]
"""(submission, seed, device, isolation) -> the Result as JSON. Workers must be able to import it."""


class Interrupted(ClassroomError):
    """The teacher stopped the run; what was finished is stored."""


class UnfitWorker(Exception):
    """A worker that must not grade: another version of the course, or no isolation."""


@dataclass(frozen=True)
class Summary:
    """What a run did. rows: those of grades.csv; graded: by this run; kept: had a grade already, the same content."""

    rows: tuple[Row, ...]
    graded: int
    kept: int
    remarks: tuple[str, ...]
    tables: tuple[Path, Path]

    @property
    def failures(self) -> list[Row]:
        return [row for row in self.rows if row.status == GRADER_FAILED]

    def __str__(self) -> str:
        lines = [f"{self.graded} graded now, {self.kept} graded before and unchanged"]
        statuses = sorted({row.status for row in self.rows} - {"graded", GRADER_FAILED, NOT_GRADED})
        for status in statuses:
            lines += _listed(status, [row for row in self.rows if row.status == status])
        lines += _listed("late", [row for row in self.rows if row.is_late])
        unknown = [row for row in self.rows if row.late_seconds == UNKNOWN]
        if unknown:
            lines.append(f"time of hand-in unknown: {len(unknown)}: late or not is open, see late_seconds")
        lines += _listed(NOT_GRADED, [row for row in self.rows if row.status == NOT_GRADED])
        lines += [f"{GRADER_FAILED}: {row.student.id} ({row.exercise}): {row.diagnosis}" for row in self.failures]
        lines += [f"note: {remark}" for remark in self.remarks]
        return "\n".join([*lines, *(f"wrote {table}" for table in self.tables)])


def grade_class(
    folder: str | os.PathLike[str],
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    device: str = "cpu",
    isolation: str = "bubblewrap",
    exercises: Sequence[str] | None = None,
    new_seed: bool = False,
    progress: bool = False,
    grade: GradeFunction | None = None,
) -> Summary:
    """Grades what is not graded yet and writes grades.csv and grades_by_student.csv.

    workers: processes on this machine (its cores; one with device "cuda", since speed is measured there), or
    `scheduler`, the address of a Dask scheduler whose workers have the same version of the course. isolation:
    "bubblewrap", or "limits" for a machine without it, see grading.sandbox. exercises: ids, instead of all that are
    released. new_seed: other inputs; all is graded again. grade: for tests.

    Raises ClassroomError for what keeps it from grading, and `Interrupted` after Ctrl-C.
    """
    if isolation not in ("bubblewrap", "limits"):
        raise ValueError(f"isolation takes 'bubblewrap' or 'limits', got {isolation!r}")
    if workers is not None and workers < 1:
        raise ValueError(f"workers takes a number from 1, got {workers}")
    if scheduler is not None and not re.fullmatch(r"\w+://\S+:\d+", scheduler):
        raise ValueError(f"scheduler takes an address like tcp://HOST:8786, got {scheduler!r}")
    if scheduler is None and isolation == "bubblewrap":
        _refuse_without_bubblewrap("this machine")
    classroom, store = read_class(folder), ResultsStore(folder)
    wanted = classroom.released if exercises is None else tuple(exercises)
    if not wanted:
        raise ClassroomError(f"nothing to grade in {folder}: no hand-in of a chapter, and no assignments.csv")
    with store.lock():
        seed = store.seed(new=new_seed)
        todo, kept = [], 0
        for student in classroom.students:
            for exercise_id in wanted:
                key = _key(classroom.hand_in(student.id, exercise_id), seed, device)
                if _finished(store.read(student.id, exercise_id), key):
                    kept += 1
                else:
                    todo.append((student.id, exercise_id))
        if todo:
            workers = workers or (1 if device == "cuda" else len(os.sched_getaffinity(0)))
            run = _Run(classroom, store, seed, device, isolation, grade or grade_in_child)
            try:
                run.all(todo, min(workers, len(todo)), scheduler, progress)
            except Interrupted as stopped:
                same = "The same command without --new-seed" if new_seed else "The same command"
                raise Interrupted(f"{stopped}. {same} goes on; the tables were not written again") from None
        rows = _rows(classroom, store, seed, device, wanted)
        tables = write_tables(classroom.path, rows)
    remarks = list(classroom.remarks)
    bad_times = {f"{row.student.id}/{row.exercise.split('/')[0]}": 0 for row in rows if row.submitted_at == UNKNOWN}
    remarks += [f"the time in submitted/{place}/timestamp.txt cannot be read" for place in bad_times]
    return Summary(tuple(rows), len(todo), kept, tuple(remarks), tables)


def record_of(
    folder: str | os.PathLike[str], student: str, exercise_id: str, *, isolation: str = "bubblewrap"
) -> Record:
    """The stored grade of what is handed in now; if there is none, grades it in this process and stores it.

    Raises ClassroomError if another run is at work in the folder, or without bubblewrap.
    """
    classroom, store = read_class(folder), ResultsStore(folder)
    submission = classroom.hand_in(student, exercise_id)
    stored = store.read(student, exercise_id)
    if _finished(stored, _key(submission, store.seed(), stored.key.device if stored else "cpu")):
        return stored
    with store.lock():
        if isolation == "bubblewrap":
            _refuse_without_bubblewrap("this machine")
        key = _key(submission, store.seed(), "cpu")
        try:
            text = grade_in_child(submission, exercise_seed(key.seed, exercise_id), key.device, isolation)
            record = _record(student, submission, key, Result.from_json(text))
        except Exception as error:  # a grader's bug must not stop the others
            record = _failure(student, submission, key, error)
        store.write(record)
    return record


def grade_in_child(submission: Submission, seed: int, device: str, isolation: str) -> str:
    """Grades one submission with the student's code in a child process; returns the Result as JSON."""
    from course_utils.grading.grader import grade_submission

    return grade_submission(submission, seed=seed, device=device, isolation=isolation).to_json()


@dataclass
class _Run:
    """The tasks of one run, from a hand-in to its stored record."""

    classroom: ClassFolder
    store: ResultsStore
    seed: int
    device: str
    isolation: str
    grade: GradeFunction

    def all(self, todo: list[tuple[str, str]], workers: int, scheduler: str | None, progress: bool) -> None:
        """Grades and stores them. Only as many are under way as there are workers: the others stay on the disk."""
        from distributed import as_completed

        finished = 0
        try:
            with (
                _cluster(workers, scheduler) as client,
                tqdm(total=len(todo), unit="submission", disable=not progress) as bar,
            ):
                waiting = iter(todo)
                under_way: dict[Future, tuple[str, Submission, Key]] = {}
                results = as_completed(loop=client.loop)
                self._start(client, islice(waiting, _threads(client)), under_way, results)
                for future in results:
                    self.store.write(_arrived(future, *under_way.pop(future)))
                    finished += 1
                    bar.update()
                    self._start(client, islice(waiting, max(0, _threads(client) - len(under_way))), under_way, results)
        except KeyboardInterrupt:
            raise Interrupted(f"stopped: {finished} of {len(todo)} graded and kept") from None

    def _start(self, client: Client, todo: Iterator[tuple[str, str]], under_way: dict, results: object) -> None:
        for student, exercise_id in todo:
            submission = self.classroom.hand_in(student, exercise_id)
            key = _key(submission, self.seed, self.device)
            future = client.submit(
                _graded,
                self.grade,
                key.grader,
                submission,
                exercise_seed(self.seed, exercise_id),
                self.device,
                self.isolation,
                key=f"grade-{uuid.uuid4().hex}",
                pure=False,
            )
            under_way[future] = student, submission, key
            results.add(future)


def _graded(grade: GradeFunction, version: str, submission: Submission, seed: int, device: str, isolation: str) -> str:
    """The task, on a worker."""
    if grader_version() != version:
        words = f"the worker on {socket.gethostname()} has version {grader_version()} of the course, this run {version}"
        raise UnfitWorker(f"{words}: install the same on all")
    if isolation == "bubblewrap":
        try:
            _refuse_without_bubblewrap(f"the worker on {socket.gethostname()}")
        except ClassroomError as error:
            raise UnfitWorker(str(error)) from None
    return grade(submission, seed, device, isolation)


def _arrived(future: Future, student: str, submission: Submission, key: Key) -> Record:
    """What became of a task. Raises ClassroomError where the fault is not the submission's."""
    error = future.exception()
    if error is None:
        return _record(student, submission, key, Result.from_json(future.result()))
    if isinstance(error, CancelledError):
        raise ClassroomError("the scheduler was lost. What is graded is kept; the same command goes on")
    if isinstance(error, UnfitWorker):
        raise ClassroomError(str(error))
    return _failure(student, submission, key, error)


def _record(student: str, submission: Submission, key: Key, result: Result) -> Record:
    status = "graded" if submission.status == "ok" else submission.status
    return Record(student, submission.exercise, status, key, result)


def _failure(student: str, submission: Submission, key: Key, error: BaseException) -> Record:
    from distributed import KilledWorker

    words = f"the grader stopped: {type(error).__name__}: {error}"
    if isinstance(error, KilledWorker):
        words = "the grader's process died each time it graded this"
    return Record(student, submission.exercise, GRADER_FAILED, key, message=f"{words}; grade it by hand")


def _key(submission: Submission, seed: int, device: str) -> Key:
    return Key(submission.digest, grader_version(), seed, device)


def _finished(record: Record | None, key: Key) -> bool:
    return record is not None and record.key == key and record.status != GRADER_FAILED


def _rows(classroom: ClassFolder, store: ResultsStore, seed: int, device: str, wanted: Sequence[str]) -> list[Row]:
    """A row for each student and exercise that is released or was asked for."""
    rows = []
    shown = [exercise_id for exercise_id in EXERCISE_IDS if exercise_id in {*classroom.released, *wanted}]
    for student in classroom.students:
        for exercise_id in shown:
            chapter = exercise_id.split("/")[0]
            record = store.read(student.id, exercise_id)
            # Others may have been handed in again since they were graded.
            if exercise_id not in wanted and record is not None:
                submission = classroom.hand_in(student.id, exercise_id)
                if record.key != _key(submission, seed, record.key.device):
                    record = None
            try:
                time = classroom.submitted_at(student.id, chapter)
            except ValueError:
                time = UNKNOWN
            rows.append(Row(student, exercise_id, record, time, classroom.due.get(chapter)))
    return rows


def _listed(status: str, rows: Sequence[Row]) -> list[str]:
    """One line: how many, and who with what."""
    names: dict[str, list[str]] = {}
    for row in rows:
        names.setdefault(row.student.id, []).append(row.exercise.split("/")[1])
    who = ", ".join(f"{student} ({', '.join(mine)})" for student, mine in names.items())
    return [f"{status}: {len(rows)}: {who}"] if rows else []


@lru_cache
def _refuse_without_bubblewrap(where: str) -> None:
    from course_utils.grading.sandbox.parent import isolation_available

    works, why = isolation_available()
    if not works:
        raise ClassroomError(
            f"{where} cannot run bubblewrap ({why}). Install it (apt-get install bubblewrap), or grade with "
            "--isolation limits, which does not keep a submission from reading files or using the network"
        )


def _threads(client: Client) -> int:
    """Tasks that can run now; one while all workers are away, so that the run goes on when they are back."""
    return max(1, sum(client.nthreads().values()))


@contextmanager
def _cluster(workers: int, scheduler: str | None) -> Iterator[Client]:
    """A client of the scheduler, or of a cluster of our own with one thread per process."""
    import dask
    from distributed import Client, LocalCluster

    if scheduler is not None:
        with _connect(scheduler) as client:
            yield client
        return
    # A child of a daemonic process could not have children, and no worker may be paused for its memory: the
    # sandbox limits what a submission takes.
    settings = {
        "distributed.scheduler.allowed-failures": DEATHS - 1,
        "distributed.worker.daemon": False,
        "distributed.worker.preload": [IGNORE_CTRL_C],
    }
    with (
        dask.config.set(settings),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            memory_limit=0,
            # No dashboard, but Dask opens its port all the same: any that is free.
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def _connect(scheduler: str) -> Client:
    from distributed import Client

    client = None
    try:
        client = Client(scheduler, timeout=SECONDS_TO_CONNECT, set_as_default=False)
        client.wait_for_workers(1, timeout=SECONDS_TO_CONNECT)
        return client
    except (OSError, ValueError) as error:  # TimeoutError is an OSError
        if client is not None:
            with suppress(OSError):
                client.close()
        raise ClassroomError(f"no worker through the scheduler {scheduler}: {error}") from None
