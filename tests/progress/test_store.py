"""What is kept about exercises, questions, chapters and the learner, and files and folders that are no good."""

import json
import os
import sqlite3

import pytest

from course_utils import progress
from course_utils.grading.result import Result
from course_utils.progress import ProgressError, overview, progress_file, store

CHAPTER = "01_attention_basics"
QUESTION = f"{CHAPTER}/kept_pairs"


def test_best_last_and_number_of_attempts_of_exercises_are_kept(graded):
    assert overview() == progress.Overview() and not progress_file().exists()
    for seed, earned in enumerate((4, 7, 7, 2)):
        progress.record_exercise(graded(earned, seed=seed))
    progress.record_exercise(graded(10, exercise="00_start_here/conflict_free_tile"))
    first, second = overview().exercises
    assert (first.exercise, first.attempts) == ("00_start_here/conflict_free_tile", 1)
    assert (second.attempts, second.best, second.last) == (4, graded(7, seed=1), graded(2, seed=3))
    assert second.best_at <= second.last_at and second.last_at.tzinfo is not None


def test_a_bonus_does_not_replace_a_full_result(graded):
    progress.record_exercise(graded(10))
    progress.record_exercise(graded(9, bonus=2))
    (standing,) = overview().exercises
    assert standing.best == graded(10) and standing.last == graded(9, bonus=2)
    progress.record_exercise(graded(10, bonus=2))
    assert overview().exercises[0].best == graded(10, bonus=2)


def test_answers_to_questions_are_kept_with_the_first_right_one(monkeypatch):
    days = iter(f"2026-01-0{day}T00:00:00+00:00" for day in range(1, 5))
    monkeypatch.setattr(store, "_now", lambda: next(days))
    progress.record_answer(QUESTION, False, {"typed": "1 024"}, 7)
    (kept,) = overview().questions
    assert (kept.right_at, kept.last_right, kept.last_answer, kept.seed) == (None, False, {"typed": "1 024"}, 7)
    progress.record_answer(QUESTION, True, [1, 2], 7)
    progress.record_answer(QUESTION, True, [1, 2], 7)
    progress.record_answer(QUESTION, False, None, 8)
    (kept,) = overview().questions
    assert (kept.question, kept.attempts, kept.last_right, kept.last_answer, kept.seed) == (QUESTION, 4, False, None, 8)
    assert (kept.right_at.day, kept.last_at.day) == (2, 4)


@pytest.mark.parametrize("answer", [{1, 2}, float("nan"), b"bytes"])
def test_an_answer_that_json_cannot_hold_is_named(answer):
    with pytest.raises(ValueError, match="answer: got .* takes what JSON can hold"):
        progress.record_answer(QUESTION, True, answer, 0)
    assert not progress_file().exists()


def test_chapters_that_were_run_to_their_end_are_kept(monkeypatch):
    days = iter(("2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00"))
    monkeypatch.setattr(store, "_now", lambda: next(days))
    for _ in range(2):
        progress.record_finished(CHAPTER)
    (kept,) = overview().chapters
    assert (kept.slug, kept.times, kept.first_at.day, kept.last_at.day) == (CHAPTER, 2, 1, 2)


def test_a_chapter_that_does_not_exist_is_named():
    with pytest.raises(LookupError, match="slug: got '99_nothing', takes one of 00_start_here"):
        progress.record_finished("99_nothing")


def test_the_seed_is_drawn_once_and_kept(monkeypatch):
    draws = iter((0, 5))
    monkeypatch.setattr(store.secrets, "randbelow", lambda most: next(draws))
    assert [progress.learner_seed(), progress.learner_seed(), overview().seed] == [0, 0, 0]
    progress.reset()
    assert progress.learner_seed() == 5


def test_the_seed_of_the_environment_wins(monkeypatch):
    kept = progress.learner_seed()
    monkeypatch.setenv("ATTENTION_KERNELS_SEED", "1234567")
    assert progress.learner_seed() == 1234567
    monkeypatch.setenv("ATTENTION_KERNELS_SEED", "")
    assert progress.learner_seed() == kept == overview().seed
    for bad in ("-1", "x", "²"):
        monkeypatch.setenv("ATTENTION_KERNELS_SEED", bad)
        with pytest.raises(ValueError, match=f"ATTENTION_KERNELS_SEED: got '{bad}', takes a whole number from 0"):
            progress.learner_seed()


def test_export_holds_everything_and_reset_forgets_it(graded):
    progress.record_exercise(graded(4))
    progress.record_answer(QUESTION, False, {"typed": "Ü"}, 3)
    progress.record_answer(f"{CHAPTER}/other", True, 1.5, 3)
    progress.record_finished(CHAPTER)
    progress.record_guess("How many?", 80, 37)
    progress.record_guess("How many?", 40, 37)
    exported = json.loads(progress.export())
    assert list(exported) == ["version", "seed", "exercises", "questions", "chapters", "guesses"]
    assert exported["version"] == 3 and exported["seed"] is None
    assert Result.from_json(json.dumps(exported["exercises"][0]["best"])) == graded(4)
    first, second = exported["questions"]
    assert (first["right_at"], first["last_answer"], first["attempts"]) == (None, {"typed": "Ü"}, 1)
    assert second["right_at"] == second["last_at"] and second["last_answer"] == 1.5
    assert (exported["chapters"][0]["chapter"], exported["chapters"][0]["times"]) == (CHAPTER, 1)
    (guessed,) = exported["guesses"]
    assert [guessed[name] for name in ("asked", "times", "first", "value", "last")] == ["How many?", 2, 80, 37, 40]
    assert progress.reset() == progress.Forgotten(exercises=1, questions=2, chapters=1, guesses=1)
    assert overview() == progress.Overview()
    assert progress.reset() == progress.Forgotten()
    progress.learner_seed()
    progress.reset()
    assert overview().seed is None


def test_the_file_is_below_the_data_home(tmp_path, monkeypatch):
    assert progress_file() == tmp_path / "data" / "attention-kernels" / "progress.db"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert progress_file() == tmp_path / ".local" / "share" / "attention-kernels" / "progress.db"


def test_each_update_waits_for_the_disk():
    with store._store(write=True) as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (3,)  # EXTRA
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)


# ---- files of other editions

VERSION_1 = """
CREATE TABLE exercise (
    id TEXT PRIMARY KEY, attempts INTEGER NOT NULL, best TEXT NOT NULL, best_earned INTEGER NOT NULL,
    best_at TEXT NOT NULL, last TEXT NOT NULL, last_at TEXT NOT NULL
);
PRAGMA user_version = 1;
"""


@pytest.fixture
def version_1(graded):
    """A file as the first edition wrote it, with one exercise; returns that edition's result."""
    progress_file().parent.mkdir(parents=True)
    result = graded(7, seed=3)
    with sqlite3.connect(progress_file()) as connection:
        connection.executescript(VERSION_1)
        date = "2026-02-03T04:05:06+00:00"
        values = (result.exercise, 4, result.to_json(), 7, date, result.to_json(), date)
        connection.execute("INSERT INTO exercise VALUES (?, ?, ?, ?, ?, ?, ?)", values)
    return result


def user_version():
    with sqlite3.connect(progress_file()) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0]


def test_a_file_of_the_first_edition_is_read_as_it_is(version_1):
    kept = overview()
    assert [(one.attempts, one.best) for one in kept.exercises] == [(4, version_1)]
    assert kept.questions == kept.chapters == kept.guesses == () and kept.seed is None
    assert user_version() == 1  # reading changes nothing


@pytest.mark.parametrize(
    "update",
    [
        lambda: progress.record_answer(QUESTION, True, 1, 0),
        lambda: progress.record_finished(CHAPTER),
        lambda: progress.record_guess("How many?", 80, 37),
        progress.learner_seed,
    ],
)
def test_the_first_update_brings_a_file_of_the_first_edition_to_this_one(version_1, update):
    update()
    kept = overview()
    assert [(one.attempts, one.best, one.best_at.month) for one in kept.exercises] == [(4, version_1, 2)]
    assert len(kept.questions) + len(kept.chapters) + len(kept.guesses) + (kept.seed is not None) == 1
    assert user_version() == 3


def test_a_file_of_the_second_edition_is_read_as_it_is_and_takes_guesses(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(store, "_VERSIONS", store._VERSIONS[:2])
        patch.setattr(store, "SCHEMA_VERSION", 2)
        progress.record_finished(CHAPTER)
    assert (overview().guesses, user_version()) == ((), 2)
    progress.record_guess("Which?", "K", None)
    kept = overview()
    assert [(one.first, one.value) for one in kept.guesses] == [("K", None)] and kept.chapters[0].times == 1


def test_an_update_of_the_tables_that_fails_leaves_the_file_as_it_was(version_1, monkeypatch):
    first, *others = store._VERSIONS
    with monkeypatch.context() as patch:
        patch.setattr(store, "_VERSIONS", (first, *others, ("CREATE TABLE exercise (id TEXT)",)))
        with pytest.raises(ProgressError, match="already exists"):
            progress.record_finished(CHAPTER)
    assert user_version() == 1 and overview().exercises[0].best == version_1
    progress.record_finished(CHAPTER)
    assert overview().chapters[0].times == 1


def test_a_file_of_a_newer_course_is_left_alone(graded):
    progress.record_exercise(graded(1))
    with sqlite3.connect(progress_file()) as connection:
        connection.execute("PRAGMA user_version = 4")  # the next edition's
    before = progress_file().read_bytes()
    for call in (lambda: progress.record_exercise(graded(2)), overview, progress.reset, progress.learner_seed):
        with pytest.raises(ProgressError, match="newer edition"):
            call()
    assert progress_file().read_bytes() == before


@pytest.mark.parametrize(
    "damage, message",
    [
        ("UPDATE exercise SET last = '{}'", "a result that this edition cannot read"),
        ("UPDATE question SET last_answer = '{'", "an answer that cannot be read"),
        ("UPDATE exercise SET best = '[]'", "a result that this edition cannot read"),
        ("UPDATE chapter SET first_at = 'yesterday'", "a date that cannot be read"),
        ("INSERT INTO guess VALUES ('?', 1, '1', '{', '1', '2026-02-03')", "an answer that cannot be read"),
        ("INSERT INTO learner VALUES (1, 'seven')", "a seed that cannot be read"),
    ],
)
def test_what_cannot_be_read_is_named(graded, damage, message):
    progress.record_exercise(graded(1))
    progress.record_answer(QUESTION, True, 1, 0)
    progress.record_finished(CHAPTER)
    with sqlite3.connect(progress_file()) as connection:
        connection.execute(damage)
    with pytest.raises(ProgressError, match=f"progress.db holds {message}"):
        overview()


# ---- folders and files that are no good


def test_a_folder_that_cannot_be_made_is_named(tmp_path, graded):
    (tmp_path / "data").write_text("a file where the folder should be", encoding="utf-8")
    with pytest.raises(ProgressError, match=r"progress\.db: (Not a directory|File exists)"):
        progress.record_exercise(graded(1))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_named(graded):
    progress.record_exercise(graded(1))
    seed = progress.learner_seed()
    progress_file().parent.chmod(0o500)
    progress_file().chmod(0o400)
    with pytest.raises(ProgressError, match=r"progress\.db: .*read-?only"):
        progress.record_answer(QUESTION, True, 1, 0)
    assert overview().exercises[0].best.earned == 1 and progress.learner_seed() == seed


def test_an_empty_file_is_a_new_one(graded):
    progress_file().parent.mkdir(parents=True)
    progress_file().touch()
    assert overview() == progress.Overview()
    progress.record_exercise(graded(3))
    assert overview().exercises[0].attempts == 1


def test_a_file_that_is_no_database_is_named(graded):
    progress_file().parent.mkdir(parents=True)
    progress_file().write_text("certainly not SQLite" * 100, encoding="utf-8")
    calls = (
        lambda: progress.record_exercise(graded(1)),
        lambda: progress.record_answer(QUESTION, True, 1, 0),
        lambda: progress.record_finished(CHAPTER),
        progress.learner_seed,
        progress.export,
        progress.reset,
        overview,
    )
    for call in calls:
        with pytest.raises(ProgressError, match="not a database; move that file away"):
            call()
    assert progress_file().read_text(encoding="utf-8").startswith("certainly not SQLite")
