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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from course_utils.classroom.by_hand import choose, hand_in_code, read_by_hand
from course_utils.classroom.class_folder import ClassFolder, ClassroomError, Student, parse_time, read_class
from course_utils.classroom.gradebook import NOT_DUE, NOT_GRADED, UNKNOWN, Row, write_tables
from course_utils.classroom.results_store import (
    GRADER_FAILED,
    Key,
    Record,
    ResultsStore,
    exercise_seed,
    grader_version,
)
from course_utils.grading.catalog import all_ids
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
    """What a run did. rows: those of grades.csv; graded: by this run; unchanged: those whose grade still holds.

    why: how many were graded for which reason.
    """

    rows: tuple[Row, ...]
    graded: int
    unchanged: int
    remarks: tuple[str, ...]
    tables: tuple[Path, ...]
    why: Mapping[str, int] = field(default_factory=dict)

    @property
    def failures(self) -> list[Row]:
        return [row for row in self.rows if row.status == GRADER_FAILED]

    def __str__(self) -> str:
        lines = [f"{self.graded} graded now{in_words(self.why)}, {self.unchanged} graded before and unchanged"]
        statuses = sorted({row.status for row in self.rows} - {"graded", GRADER_FAILED, NOT_GRADED, NOT_DUE})
        for status in statuses:
            lines += _listed(status, [row for row in self.rows if row.status == status])
        lines += _listed("late", [row for row in self.rows if row.is_late])
        unknown = [row for row in self.rows if row.late_seconds == UNKNOWN]
        if unknown:
            lines.append(f"time of hand-in unknown: {len(unknown)}: late or not is open, see late_seconds")
        lines += _listed(NOT_GRADED, [row for row in self.rows if row.status == NOT_GRADED])
        older = [row for row in self.rows if row.record and row.record.key.grader != grader_version(row.exercise)]
        if older:
            words = "graded before an update of the course that changed the grader: grade all, to renew them"
            lines.append(f"note: {len(older)} {words}")
        still_open = {row.exercise: row.due for row in self.rows if row.is_open and row.due is not None}
        for exercise_id, due in still_open.items():
            lines.append(f"not due yet, so in no total: {exercise_id} (until {due:%Y-%m-%d %H:%M} UTC)")
        by_hand = sum(row.by_hand is not None for row in self.rows)
        lines += [f"points given by hand: {by_hand}, see points_by_hand"] if by_hand else []
        warned = [(row, row.warning()) for row in self.rows]
        lines += [f"look again: {row.student.id}, {row.exercise}: {words}" for row, words in warned if words]
        equal: dict[tuple[str, str], list[str]] = {}
        for row in self.rows:
            if row.points_by_grader:  # the exercise as it was handed out has none
                equal.setdefault((row.exercise, row.hand_in), []).append(row.student.id)
        lines += [f"the same hand-in: {one}: {', '.join(who)}" for (one, _), who in equal.items() if len(who) > 1]
        noted = [row for row in self.rows if row.record and row.record.result and row.record.result.notes]
        lines += [f"note: {row.student.id}: {note}" for row in noted for note in row.record.result.notes]
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
    students: Sequence[str] | None = None,
    new_seed: bool = False,
    progress: bool = False,
    grade: GradeFunction | None = None,
    now: datetime | None = None,
) -> Summary:
    """Grades what is not graded yet and writes the tables of grades, see gradebook.py.

    workers: processes on this machine (its cores; one with device "cuda", since speed is measured there), or
    `scheduler`, the address of a Dask scheduler whose workers have the same version of the course. isolation:
    "bubblewrap", or "limits" for a machine without it, see grading.sandbox. exercises: ids, instead of all that are
    released. students: ids; only their hand-ins are graded, and again even if nothing has changed. new_seed: other
    inputs; all is graded again, so not with `exercises` or `students`. grade: for tests. now: what counts as due.

    Raises ClassroomError for what keeps it from grading, and `Interrupted` after Ctrl-C.
    """
    _check_options(workers, scheduler, isolation)
    classroom, store = read_class(folder), ResultsStore(folder)
    wanted = classroom.released if exercises is None else tuple(exercises)
    everybody = [student.id for student in classroom.students]
    _check_selection(classroom, wanted, students, new_seed)
    now = now or datetime.now(UTC)
    with store.lock():
        seed = store.seed(new=new_seed)
        handed_in = _handed_in(classroom, everybody, {*classroom.released, *wanted})
        todo, unchanged, why = [], 0, Counter[str]()
        for student in everybody if students is None else [one for one in everybody if one in students]:
            for exercise_id in wanted:
                (digest, missing), due = handed_in[student, exercise_id], classroom.due.get(exercise_id)
                if missing and due is not None and now <= due:
                    continue
                record = store.read(student, exercise_id)
                key = Key(digest, grader_version(exercise_id), seed, device)
                reason = "asked for" if students is not None else _why(store, student, exercise_id, record, key)
                if reason:
                    todo.append((student, exercise_id))
                    why[reason] += 1
                else:
                    unchanged += 1
        if todo:
            workers = workers or (1 if device == "cuda" else len(os.sched_getaffinity(0)))
            run = _Run(classroom, store, seed, device, isolation, grade or grade_in_child, now)
            if progress and why.keys() - {NEW}:
                print(f"to grade: {len(todo)}{in_words(why)}")
            try:
                run.all(todo, min(workers, len(todo)), scheduler, progress)
            except Interrupted as stopped:
                same = "The same command without --new-seed" if new_seed else "The same command"
                raise Interrupted(f"{stopped}. {same} goes on; the tables were not written again") from None
        rows = _rows(classroom, seed, handed_in, now)
        tables = write_tables(classroom.path, rows, classroom.delimiter)
    remarks = list(classroom.remarks)
    known = {student.id for student in classroom.students}
    given = [one for lines in read_by_hand(classroom).values() for one in lines]
    remarks += [f"{one.where}: there is no student {one.student!r}" for one in given if one.student not in known]
    bad_times = {f"{row.student.id}/{row.exercise.split('/')[0]}": 0 for row in rows if row.submitted_at == UNKNOWN}
    remarks += [f"the time in submitted/{place}/timestamp.txt cannot be read" for place in bad_times]
    return Summary(tuple(rows), len(todo), unchanged, tuple(remarks), tables, dict(why))


def _check_options(workers: int | None, scheduler: str | None, isolation: str) -> None:
    """Raises ValueError for an option that `grade_class` does not take, ClassroomError if bubblewrap does not run."""
    if isolation not in ("bubblewrap", "limits"):
        raise ValueError(f"isolation takes 'bubblewrap' or 'limits', got {isolation!r}")
    if workers is not None and workers < 1:
        raise ValueError(f"workers takes a number from 1, got {workers}")
    if scheduler is not None and not re.fullmatch(r"\w+://\S+:\d+", scheduler):
        raise ValueError(f"scheduler takes an address like tcp://HOST:8786, got {scheduler!r}")
    if scheduler is None and isolation == "bubblewrap":
        _refuse_without_bubblewrap("this machine")


def _check_selection(
    classroom: ClassFolder, exercises: Sequence[str], students: Sequence[str] | None, new_seed: bool
) -> None:
    """Raises ClassroomError if there is nothing to grade, no such student, or a new seed would empty other grades."""
    if not exercises:
        raise ClassroomError(f"nothing to grade in {classroom.path}: no hand-in of a chapter, and no assignments.csv")
    others = [exercise_id for exercise_id in classroom.released if exercise_id not in exercises]
    if new_seed and others:
        raise ClassroomError(
            f"a new seed draws the inputs of all exercises, and the grades of {', '.join(others)} would be gone: "
            "leave out --new-seed, or grade all"
        )
    everybody = [student.id for student in classroom.students]
    if unknown := sorted({*(students or ())} - {*everybody}):
        known = ", ".join(everybody[:20]) + ", …" * (len(everybody) > 20)
        raise ClassroomError(f"there is no student {', '.join(unknown)} in {classroom.path}; there are: {known}")
    if new_seed and students is not None:
        raise ClassroomError("a new seed draws the inputs of all students: leave out --new-seed, or --student")


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
    now: datetime

    def all(self, todo: list[tuple[str, str]], workers: int, scheduler: str | None, progress: bool) -> None:
        """Grades and stores the hand-ins. Only as many run as there are workers: the others stay on the disk."""
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
                    record = _arrived(future, *under_way.pop(future))
                    before = self.store.read(record.student, record.exercise)
                    self.store.write(_dated(record, before, self.classroom, self.now))
                    finished += 1
                    bar.update()
                    self._start(client, islice(waiting, max(0, _threads(client) - len(under_way))), under_way, results)
        except KeyboardInterrupt:
            raise Interrupted(f"stopped: {finished} of {len(todo)} graded and kept") from None

    def _start(self, client: Client, todo: Iterator[tuple[str, str]], under_way: dict, results: object) -> None:
        for student, exercise_id in todo:
            submission = self.classroom.hand_in(student, exercise_id)
            key = Key(submission.digest, grader_version(exercise_id), self.seed, self.device)
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
    """A task, as a worker runs it."""
    where = f"the worker on {socket.gethostname()}"
    if submission.exercise not in all_ids():
        raise UnfitWorker(f"{where} has no exercise {submission.exercise}: copy own_exercises/ there")
    mine = grader_version(submission.exercise)
    if mine != version:
        raise UnfitWorker(f"{where} has version {mine} of the course, this run {version}: install the same on all")
    if isolation == "bubblewrap":
        try:
            _refuse_without_bubblewrap(where)
        except ClassroomError as error:
            raise UnfitWorker(str(error)) from None
    return grade(submission, seed, device, isolation)


def _arrived(future: Future, student: str, submission: Submission, key: Key) -> Record:
    """The record of a finished task. Raises ClassroomError where the fault is not the submission's."""
    error = future.exception()
    if error is None:
        status = "graded" if submission.status == "ok" else submission.status
        return Record(student, submission.exercise, status, key, Result.from_json(future.result()))
    if isinstance(error, CancelledError):
        raise ClassroomError("the scheduler was lost. What is graded is kept; the same command goes on")
    if isinstance(error, UnfitWorker):
        raise ClassroomError(str(error))
    return _failure(student, submission, key, error)


def _dated(record: Record, before: Record | None, classroom: ClassFolder, now: datetime) -> Record:
    """The record with the time at which this content was first graded, and the time of the hand-in then."""
    if before is not None and before.key.digest == record.key.digest and before.seen:
        return replace(record, seen=before.seen, submitted_at=before.submitted_at)
    try:
        time = classroom.submitted_at(record.student, record.exercise.split("/")[0])
    except ValueError:
        time = None
    return replace(record, seen=now.isoformat(), submitted_at=time.isoformat() if time is not None else "")


def _failure(student: str, submission: Submission, key: Key, error: BaseException) -> Record:
    from distributed import KilledWorker

    words = f"the grader stopped: {type(error).__name__}: {error}"
    if isinstance(error, KilledWorker):
        words = "the grader's process died each time it graded this"
    return Record(student, submission.exercise, GRADER_FAILED, key, message=f"{words}; grade it by hand")


NEW, CHANGED, FAILED, DAMAGED = "new", "handed in again", "the grader had failed", "the stored grade was damaged"
OTHER_SEED, OTHER_DEVICE = "another seed", "graded on another device before"


def _why(store: ResultsStore, student: str, exercise_id: str, record: Record | None, key: Key) -> str:
    """Why a hand-in is graded, in the teacher's words; "" if its stored grade stands."""
    if record is None:
        return DAMAGED if store.path(student, exercise_id).exists() else NEW
    if record.status == GRADER_FAILED:
        return FAILED
    if record.key.digest != key.digest:
        return CHANGED
    if record.key.seed != key.seed:
        return OTHER_SEED
    if record.key.device != key.device:
        return OTHER_DEVICE
    return "" if record.key.grader == key.grader else f"the grader of {exercise_id} changed in an update of the course"


def in_words(why: Mapping[str, int]) -> str:
    """ " (12 new, 3 handed in again)"."""
    return f" ({', '.join(f'{number} {reason}' for reason, number in why.items())})" if why else ""


def _handed_in(
    classroom: ClassFolder, students: Iterable[str], exercises: Iterable[str]
) -> dict[tuple[str, str], tuple[str, bool]]:
    """Digest of each hand-in, and whether nothing was handed in. The hand-ins themselves stay on the disk."""
    found = {}
    for student, exercise_id in product(students, exercises):
        submission = classroom.hand_in(student, exercise_id)
        found[student, exercise_id] = submission.digest, submission.status == "missing"
    return found


def rows_of(classroom: ClassFolder, students: Iterable[str], exercises: Iterable[str]) -> list[Row]:
    """What the tables say now of these students' hand-ins for these exercises, from the stored grades."""
    handed_in = _handed_in(classroom, students, exercises)
    return _rows(classroom, ResultsStore(classroom.path).seed(), handed_in, datetime.now(UTC))


def _rows(
    classroom: ClassFolder, seed: int, handed_in: Mapping[tuple[str, str], tuple[str, bool]], now: datetime
) -> list[Row]:
    """A row for each hand-in, by student and in the order of the course."""
    rows = []
    store, by_hand = ResultsStore(classroom.path), read_by_hand(classroom)
    for student in classroom.students:
        for exercise_id in all_ids():
            if (student.id, exercise_id) not in handed_in:
                continue
            digest, missing = handed_in[student.id, exercise_id]
            record = store.read(student.id, exercise_id)
            # It may have been handed in again, or the seed drawn anew, since it was graded.
            if record is not None and (record.key.digest, record.key.seed) != (digest, seed):
                record = None
            given = choose(by_hand.get((student.id, exercise_id), ()), hand_in_code(digest))
            due = classroom.due.get(exercise_id)
            time = _time(classroom, student, exercise_id, record)
            is_open, rule = due is not None and now <= due, classroom.late.get(exercise_id)
            rows.append(Row(student, exercise_id, record, time, due, is_open, not missing, rule, *given))
    return rows


def _time(classroom: ClassFolder, student: Student, exercise_id: str, record: Record | None) -> datetime | str | None:
    """When it was handed in; None without a time, UNKNOWN for one that cannot be read."""
    chapter = exercise_id.split("/")[0]
    try:
        time = classroom.submitted_at(student.id, chapter)
    except ValueError:
        return UNKNOWN
    if record is not None and record.submitted_at and time is not None and classroom.several_due(chapter):
        # The chapter was handed in again, for another of its exercises: this one is as it was.
        time = min(time, parse_time(record.submitted_at))
    return time


def _listed(status: str, rows: Sequence[Row]) -> list[str]:
    """One line: how many exercises have this status, and whose."""
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
