"""A learner's progress in one SQLite file outside the repository.

The file is `$XDG_DATA_HOME/attention-kernels/progress.db`, by default below `~/.local/share`. Each update is one
transaction, on disk before the function returns: a killed process or several at once lose nothing. It uses a rollback
journal and not SQLite's WAL, which needs memory shared between processes and so fails on home folders on a network.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from course_utils import course
from course_utils.grading.result import Result

BUSY_SECONDS = 20.0  # how long one process waits for the others' updates
SEEDS = 1_000_000  # a seed has at most six digits: short enough to read out and to type
SEED_VARIABLE = "ATTENTION_KERNELS_SEED"

# What each version of the file added to the one before; all dates are ISO 8601 in UTC.
_VERSIONS = (
    (
        """
        CREATE TABLE exercise (
            id TEXT PRIMARY KEY,
            attempts INTEGER NOT NULL,
            best TEXT NOT NULL,      -- a Result as JSON
            best_earned INTEGER NOT NULL,
            best_at TEXT NOT NULL,
            last TEXT NOT NULL,
            last_at TEXT NOT NULL
        )
        """,
    ),
    (
        """
        CREATE TABLE question (
            id TEXT PRIMARY KEY,
            attempts INTEGER NOT NULL,
            right_at TEXT,           -- of the first right answer; NULL before it
            last_right INTEGER NOT NULL,
            last_answer TEXT NOT NULL,  -- JSON
            seed INTEGER NOT NULL,   -- that the question was drawn with the last time
            last_at TEXT NOT NULL
        )
        """,
        """
        CREATE TABLE chapter (
            slug TEXT PRIMARY KEY,
            times INTEGER NOT NULL,
            first_at TEXT NOT NULL,
            last_at TEXT NOT NULL
        )
        """,
        "CREATE TABLE learner (one INTEGER PRIMARY KEY CHECK (one = 1), seed INTEGER NOT NULL)",
    ),
    (
        """
        CREATE TABLE guess (
            asked TEXT PRIMARY KEY,  -- the question
            times INTEGER NOT NULL,
            first TEXT NOT NULL,     -- JSON: the only guess that was made before the figure was seen
            value TEXT NOT NULL,     -- JSON: what the first guess was compared with
            last TEXT NOT NULL,      -- JSON
            last_at TEXT NOT NULL
        )
        """,
    ),
)
SCHEMA_VERSION = len(_VERSIONS)

_RECORD_EXERCISE = """
INSERT INTO exercise VALUES (:id, 1, :result, :earned, :now, :result, :now)
ON CONFLICT (id) DO UPDATE SET
    attempts = attempts + 1,
    best = CASE WHEN :better THEN excluded.best ELSE best END,
    best_at = CASE WHEN :better THEN excluded.best_at ELSE best_at END,
    best_earned = CASE WHEN :better THEN excluded.best_earned ELSE best_earned END,
    last = excluded.last,
    last_at = excluded.last_at
"""
_RECORD_ANSWER = """
INSERT INTO question VALUES (:id, 1, CASE WHEN :right THEN :now END, :right, :answer, :seed, :now)
ON CONFLICT (id) DO UPDATE SET
    attempts = attempts + 1,
    right_at = coalesce(right_at, excluded.right_at),
    last_right = excluded.last_right,
    last_answer = excluded.last_answer,
    seed = excluded.seed,
    last_at = excluded.last_at
"""
_RECORD_FINISHED = """
INSERT INTO chapter VALUES (:slug, 1, :now, :now)
ON CONFLICT (slug) DO UPDATE SET times = times + 1, last_at = excluded.last_at
"""
_RECORD_GUESS = """
INSERT INTO guess VALUES (:asked, 1, :guess, :value, :guess, :now)
ON CONFLICT (asked) DO UPDATE SET times = times + 1, last = excluded.last, last_at = excluded.last_at
"""


class ProgressError(RuntimeError):
    """The progress file cannot be read or written; the message says which and what to do."""


@dataclass(frozen=True)
class Standing:
    """The record of one exercise: number of attempts, the best and the last result, and when (UTC)."""

    exercise: str
    attempts: int
    best: Result
    best_at: datetime
    last: Result
    last_at: datetime


@dataclass(frozen=True)
class Answered:
    """The record of one question: number of answers, the date of the first right one (UTC; None: not right yet), and
    the last answer: whether it was right, the answer itself (JSON data), and the seed of the question's figures."""

    question: str
    attempts: int
    right_at: datetime | None
    last_right: bool
    last_answer: object
    seed: int
    last_at: datetime


@dataclass(frozen=True)
class Finished:
    """How often a chapter was run to its end, and when first and last (UTC)."""

    slug: str
    times: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True)
class Guessed:
    """The record of one guess: the question, how often it was guessed, the first guess with the true value (None: there
    was none), the last guess, and when (UTC). Numbers, or options in words."""

    asked: str
    times: int
    first: float | str
    value: float | str | None
    last: float | str
    last_at: datetime

    @property
    def close(self) -> bool:
        """Whether the first guess was within a factor of two, or the right option."""
        if not all(isinstance(one, (int, float)) for one in (self.first, self.value)):
            return self.first == self.value
        low, high = sorted((abs(self.first), abs(self.value)))
        return self.first * self.value >= 0 and high <= 2 * low


@dataclass(frozen=True)
class Overview:
    """The whole progress, each part in order of ids. seed: the learner's; None before it was drawn."""

    exercises: tuple[Standing, ...] = ()
    questions: tuple[Answered, ...] = ()
    chapters: tuple[Finished, ...] = ()
    seed: int | None = None
    guesses: tuple[Guessed, ...] = ()


@dataclass(frozen=True)
class Forgotten:
    """How many exercises, questions, chapters and guesses `reset` forgot."""

    exercises: int = 0
    questions: int = 0
    chapters: int = 0
    guesses: int = 0


def progress_file() -> Path:
    """The path of the progress file."""
    home = os.environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(home):  # as the XDG specification asks
        home = os.path.expanduser("~/.local/share")
    return Path(home) / "attention-kernels" / "progress.db"


def record_exercise(result: Result) -> None:
    """Add one attempt. When it returns, the result is on disk. Raises ProgressError."""
    values = {"id": result.exercise, "result": result.to_json(), "earned": result.earned, "now": _now()}
    with _store(write=True) as store:
        row = store.execute("SELECT best FROM exercise WHERE id = :id", values).fetchone()
        # The same points again keep the first date.
        better = row is None or _rank(result) > _rank(_result(row[0]))
        store.execute(_RECORD_EXERCISE, {**values, "better": better})


def record_answer(question_id: str, right: bool, answer: object, seed: int) -> None:
    """Adds one answer to the question `<chapter's slug>/<name>`. When it returns, the answer is on disk.

    answer: JSON data. seed: of the question's figures. Raises ProgressError, and ValueError for an answer that JSON
    cannot hold.
    """
    try:
        text = json.dumps(answer, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"answer: got {answer!r}, takes what JSON can hold ({error})") from error
    values = {"id": question_id, "right": bool(right), "answer": text, "seed": int(seed), "now": _now()}
    with _store(write=True) as store:
        store.execute(_RECORD_ANSWER, values)


def record_finished(slug: str) -> None:
    """Add that a chapter was run to its end. Raises ProgressError, and LookupError for an unknown chapter."""
    values = {"slug": course.chapter(slug).slug, "now": _now()}
    with _store(write=True) as store:
        store.execute(_RECORD_FINISHED, values)


def record_guess(asked: str, guess: float | str, value: float | str | None) -> None:
    """Adds one guess at the answer to the question `asked`, and the true value. Raises ProgressError."""
    texts = {"guess": json.dumps(guess), "value": json.dumps(value)}
    with _store(write=True) as store:
        store.execute(_RECORD_GUESS, {"asked": asked, **texts, "now": _now()})


def learner_seed() -> int:
    """The seed of this learner's questions: drawn once and stored; ATTENTION_KERNELS_SEED overrides it.

    Raises ProgressError, and ValueError if the environment variable is not a non-negative integer.
    """
    if given := os.environ.get(SEED_VARIABLE):
        if not (given.isascii() and given.isdigit()):
            raise ValueError(f"{SEED_VARIABLE}: got {given!r}, takes a whole number from 0")
        return int(given)
    if (seed := overview().seed) is not None:
        return seed
    with _store(write=True) as store:
        # Another process may have drawn one by now: then that one stays.
        store.execute("INSERT OR IGNORE INTO learner VALUES (1, ?)", (secrets.randbelow(SEEDS),))
        return _seed(store)


def overview() -> Overview:
    """The whole progress at one moment. Raises ProgressError."""
    if not _exists():
        return Overview()
    with _store() as store:
        version = _version(store)
        # Version 0: made by a process that was killed before its first update.
        exercises = store.execute("SELECT * FROM exercise ORDER BY id").fetchall() if version >= 1 else ()
        questions = store.execute("SELECT * FROM question ORDER BY id").fetchall() if version >= 2 else ()
        chapters = store.execute("SELECT * FROM chapter ORDER BY slug").fetchall() if version >= 2 else ()
        seed = _seed(store) if version >= 2 else None
        guesses = store.execute("SELECT * FROM guess ORDER BY asked").fetchall() if version >= 3 else ()
    return Overview(
        tuple(
            Standing(id, attempts, _result(best), _date(best_at), _result(last), _date(last_at))
            for id, attempts, best, _, best_at, last, last_at in exercises
        ),
        tuple(
            Answered(id, attempts, right_at and _date(right_at), bool(right), _answer(answer), seed, _date(last_at))
            for id, attempts, right_at, right, answer, seed, last_at in questions
        ),
        tuple(Finished(slug, times, _date(first_at), _date(last_at)) for slug, times, first_at, last_at in chapters),
        seed,
        tuple(
            Guessed(asked, times, _answer(first), _answer(value), _answer(last), _date(last_at))
            for asked, times, first, value, last, last_at in guesses
        ),
    )


def export() -> str:
    """The whole progress as JSON. Raises ProgressError."""
    found = overview()
    exercises = [
        {
            "exercise": standing.exercise,
            "attempts": standing.attempts,
            "best_at": standing.best_at.isoformat(),
            "best": json.loads(standing.best.to_json()),
            "last_at": standing.last_at.isoformat(),
            "last": json.loads(standing.last.to_json()),
        }
        for standing in found.exercises
    ]
    questions = [
        {
            "question": answered.question,
            "attempts": answered.attempts,
            "right_at": answered.right_at and answered.right_at.isoformat(),
            "last_right": answered.last_right,
            "last_answer": answered.last_answer,
            "seed": answered.seed,
            "last_at": answered.last_at.isoformat(),
        }
        for answered in found.questions
    ]
    chapters = [
        {
            "chapter": finished.slug,
            "times": finished.times,
            "first_at": finished.first_at.isoformat(),
            "last_at": finished.last_at.isoformat(),
        }
        for finished in found.chapters
    ]
    guesses = [
        {
            "asked": guessed.asked,
            "times": guessed.times,
            "first": guessed.first,
            "value": guessed.value,
            "last": guessed.last,
            "last_at": guessed.last_at.isoformat(),
        }
        for guessed in found.guesses
    ]
    everything = {
        "version": SCHEMA_VERSION,
        "seed": found.seed,
        "exercises": exercises,
        "questions": questions,
        "chapters": chapters,
        "guesses": guesses,
    }
    return json.dumps(everything, indent=1, ensure_ascii=False) + "\n"


def reset() -> Forgotten:
    """Forget everything, the learner's seed too; returns how much was forgotten. Raises ProgressError."""
    if not _exists():
        return Forgotten()
    with _store(write=True) as store:
        store.execute("DELETE FROM learner")
        tables = ("exercise", "question", "chapter", "guess")
        return Forgotten(*(store.execute(f"DELETE FROM {table}").rowcount for table in tables))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _exists() -> bool:
    try:
        return progress_file().exists()
    except OSError as error:
        raise ProgressError(f"your progress cannot be read from {progress_file()}: {error.strerror}") from error


@contextmanager
def _store(*, write: bool = False) -> Iterator[sqlite3.Connection]:
    """One transaction on the store, which is created if it does not exist. Any error becomes a ProgressError."""
    path = progress_file()
    try:
        if write:
            path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)) as store:
            store.execute("PRAGMA synchronous = EXTRA")  # also the removal of the journal is on disk
            # A transaction that began by reading could not wait for its turn to write.
            store.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                if write:
                    _migrate(store)
                yield store
                store.execute("COMMIT")
            finally:
                if store.in_transaction:
                    store.execute("ROLLBACK")
    except sqlite3.DatabaseError as error:
        hint = "" if isinstance(error, sqlite3.OperationalError) else "; move that file away to begin anew"
        raise ProgressError(f"your progress cannot be kept in {path}: {error}{hint}") from error
    except OSError as error:
        raise ProgressError(f"your progress cannot be kept in {path}: {error.strerror or error}") from error
    except OverflowError as error:  # a seed beyond SQLite's integers
        raise ProgressError(f"your progress cannot be kept in {path}: {error}") from error


def _migrate(store: sqlite3.Connection) -> None:
    """Bring the tables to this edition's version, within the transaction: all of it or nothing."""
    version = _version(store)
    if version == SCHEMA_VERSION:
        return
    for statements in _VERSIONS[version:]:
        for statement in statements:
            store.execute(statement)
    store.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _version(store: sqlite3.Connection) -> int:
    """The version of the store's tables; 0 without tables."""
    version = store.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise ProgressError(
            f"{progress_file()} was written by a newer edition of the course (version {version}): update this one"
        )
    return version


def _seed(store: sqlite3.Connection) -> int | None:
    row = store.execute("SELECT seed FROM learner").fetchone()
    if row and not isinstance(row[0], int):  # SQLite keeps a text in a column of integers
        raise ProgressError(f"{progress_file()} holds a seed that cannot be read ({row[0]!r}); move it away")
    return row and row[0]


def _rank(result: Result) -> tuple[bool, int]:
    """Orders results: a bonus does not make up for a wrong part."""
    return result.full, result.earned


def _date(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, TypeError, OverflowError) as error:
        raise ProgressError(f"{progress_file()} holds a date that cannot be read ({text!r}); move it away") from error


def _result(text: str) -> Result:
    try:
        return Result.from_json(text)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProgressError(f"{progress_file()} holds a result that this edition cannot read; move it away") from error


def _answer(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, TypeError) as error:
        raise ProgressError(f"{progress_file()} holds an answer that cannot be read; move it away") from error
