"""What a learner has done so far, kept in one SQLite file outside the repository.

The file is `$XDG_DATA_HOME/attention-kernels/progress.db`, by default below `~/.local/share`. Each update is one
transaction, on disk before `record` returns: a killed process or several at once lose nothing. It uses a rollback
journal and not SQLite's WAL, which needs memory shared between processes and so fails on home folders on a network.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from course_utils.grading.result import Result

SCHEMA_VERSION = 1
BUSY_SECONDS = 20.0  # how long one process waits for the others' updates

_SCHEMA = """
CREATE TABLE exercise (
    id TEXT PRIMARY KEY,
    attempts INTEGER NOT NULL,
    best TEXT NOT NULL,      -- a Result as JSON
    best_earned INTEGER NOT NULL,
    best_at TEXT NOT NULL,   -- ISO 8601, UTC
    last TEXT NOT NULL,
    last_at TEXT NOT NULL
)
"""
# The same points again keep the first date.
_BETTER = "excluded.best_earned > best_earned"
_RECORD = f"""
INSERT INTO exercise VALUES (:id, 1, :result, :earned, :now, :result, :now)
ON CONFLICT (id) DO UPDATE SET
    attempts = attempts + 1,
    best = CASE WHEN {_BETTER} THEN excluded.best ELSE best END,
    best_at = CASE WHEN {_BETTER} THEN excluded.best_at ELSE best_at END,
    best_earned = max(best_earned, excluded.best_earned),
    last = excluded.last,
    last_at = excluded.last_at
"""


class ProgressError(RuntimeError):
    """The file with the progress cannot be read or written; the message says which and what to do."""


@dataclass(frozen=True)
class Standing:
    """What is kept about one exercise: number of attempts, the best and the last result, and when (UTC)."""

    exercise: str
    attempts: int
    best: Result
    best_at: datetime
    last: Result
    last_at: datetime


def progress_file() -> Path:
    """Where the progress is kept."""
    home = os.environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(home):  # as the XDG specification asks
        home = os.path.expanduser("~/.local/share")
    return Path(home) / "attention-kernels" / "progress.db"


def record(result: Result) -> None:
    """Add one attempt. When it returns, the result is on disk. Raises ProgressError."""
    values = {
        "id": result.exercise,
        "result": result.to_json(),
        "earned": result.earned,
        "now": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    with _store(write=True) as store:
        store.execute(_RECORD, values)


def overview() -> list[Standing]:
    """One entry for each exercise that was graded at least once, in order of ids. Raises ProgressError."""
    if not _exists():
        return []
    with _store() as store:
        if not _version(store):  # made by a process that was killed before its first update
            return []
        rows = store.execute("SELECT id, attempts, best, best_at, last, last_at FROM exercise ORDER BY id").fetchall()
    return [
        Standing(id, attempts, _result(best), _date(best_at), _result(last), _date(last_at))
        for id, attempts, best, best_at, last, last_at in rows
    ]


def export() -> str:
    """Everything that is kept, as JSON. Raises ProgressError."""
    exercises = [
        {
            "exercise": standing.exercise,
            "attempts": standing.attempts,
            "best_at": standing.best_at.isoformat(),
            "best": json.loads(standing.best.to_json()),
            "last_at": standing.last_at.isoformat(),
            "last": json.loads(standing.last.to_json()),
        }
        for standing in overview()
    ]
    return json.dumps({"version": SCHEMA_VERSION, "exercises": exercises}, indent=1, ensure_ascii=False) + "\n"


def reset() -> int:
    """Forget everything; returns how many exercises were forgotten. Raises ProgressError."""
    if not _exists():
        return 0
    with _store(write=True) as store:
        return store.execute("DELETE FROM exercise").rowcount


def _exists() -> bool:
    try:
        return progress_file().exists()
    except OSError as error:
        raise ProgressError(f"your progress cannot be read from {progress_file()}: {error.strerror}") from error


@contextmanager
def _store(*, write: bool = False) -> Iterator[sqlite3.Connection]:
    """One transaction on the store, made where it does not exist. Whatever goes wrong becomes a ProgressError."""
    path = progress_file()
    try:
        if write:
            path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)) as store:
            store.execute("PRAGMA synchronous = EXTRA")  # also the removal of the journal is on disk
            # A transaction that began by reading could not wait for its turn to write.
            store.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                if write and not _version(store):
                    store.execute(_SCHEMA)
                    store.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
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


def _version(store: sqlite3.Connection) -> int:
    """Of the store's tables; 0 where there are none yet."""
    version = store.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise ProgressError(
            f"{progress_file()} was written by a newer edition of the course (version {version}): update this one"
        )
    return version


def _date(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except (ValueError, TypeError) as error:
        raise ProgressError(f"{progress_file()} holds a date that cannot be read ({text!r}); move it away") from error


def _result(text: str) -> Result:
    try:
        return Result.from_json(text)
    except (ValueError, KeyError, TypeError) as error:
        raise ProgressError(f"{progress_file()} holds a result that this edition cannot read; move it away") from error
