"""The learner's progress: the best and the last result, and nothing lost by kills, crowds and broken folders."""

import json
import multiprocessing
import os
import signal
import sqlite3
import time

import pytest

from course_utils.grading import progress
from course_utils.grading.exercise import Diagnosis
from course_utils.grading.progress import ProgressError, overview, progress_file, record
from course_utils.grading.result import RIGHT, WRONG, PartResult, Result


def graded(earned, *, exercise="02_flash_attention_minimal/mini_flash", seed=0):
    """A result of ten points, `earned` of them."""
    lost = PartResult("mask", "Causal", 10 - earned, 0, WRONG, diagnosis=Diagnosis("the mask is off by one", "at 0, 1"))
    parts = (PartResult("values", "Values", earned, earned, RIGHT), *((lost,) if earned < 10 else ()))
    return Result(exercise, "Mini", "d1ge57", seed, "cpu", "ok", parts)


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def test_best_last_and_number_of_attempts_are_kept():
    assert overview() == [] and not progress_file().exists()
    for seed, earned in enumerate((4, 7, 7, 2)):
        record(graded(earned, seed=seed))
    record(graded(10, exercise="00_start_here/conflict_free_tile"))
    first, second = overview()
    assert (first.exercise, first.attempts) == ("00_start_here/conflict_free_tile", 1)
    assert (second.attempts, second.best, second.last) == (4, graded(7, seed=1), graded(2, seed=3))
    assert second.best_at <= second.last_at and second.last_at.tzinfo is not None


def test_export_and_reset():
    record(graded(4))
    exported = json.loads(progress.export())
    (entry,) = exported["exercises"]
    assert exported["version"] == 1 and entry["attempts"] == 1
    assert Result.from_json(json.dumps(entry["best"])) == graded(4)
    assert progress.reset() == 1
    assert overview() == [] and json.loads(progress.export())["exercises"] == []


def test_the_file_is_below_the_data_home(tmp_path, monkeypatch):
    assert progress_file() == tmp_path / "data" / "attention-kernels" / "progress.db"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert progress_file() == tmp_path / ".local" / "share" / "attention-kernels" / "progress.db"


# ---- several processes and kills


def keep_recording(exercise, count, acknowledged):
    for seed in range(count):
        record(graded(seed % 11, exercise=exercise, seed=seed))
        with acknowledged.get_lock():
            acknowledged.value += 1


def test_nothing_acknowledged_is_lost_when_several_write_and_one_is_killed():
    # forkserver: a fork of this process, which has torch's threads, could hang
    context = multiprocessing.get_context("forkserver")
    own = [context.Value("i", 0) for _ in range(5)]
    shared = "02_flash_attention_minimal/mini_flash"
    writers = [context.Process(target=keep_recording, args=(shared, 100, counter)) for counter in own[:4]]
    victim = context.Process(target=keep_recording, args=("05_deepseek_sparse/topk_gather", 10_000, own[4]))
    for process in (*writers, victim):
        process.start()
    while own[4].value < 20 and victim.is_alive():
        time.sleep(0.01)
    os.kill(victim.pid, signal.SIGKILL)
    for process in (*writers, victim):
        process.join()
    assert [process.exitcode for process in writers] == [0] * 4
    done = {standing.exercise: standing for standing in overview()}
    assert done[shared].attempts == sum(counter.value for counter in own[:4]) == 400
    assert done[shared].best.earned == 10
    # the update in which the kill fell may be there, without having been acknowledged
    assert own[4].value >= 20
    assert done["05_deepseek_sparse/topk_gather"].attempts - own[4].value in (0, 1)


# ---- folders that are no good


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "data").write_text("a file where the folder should be", encoding="utf-8")
    with pytest.raises(ProgressError, match=r"progress\.db: (Not a directory|File exists)"):
        record(graded(1))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_named():
    record(graded(1))
    progress_file().parent.chmod(0o500)
    progress_file().chmod(0o400)
    with pytest.raises(ProgressError, match=r"progress\.db: .*read-?only"):
        record(graded(2))
    assert overview()[0].best.earned == 1


def test_an_empty_file_is_a_new_one():
    progress_file().parent.mkdir(parents=True)
    progress_file().touch()
    assert overview() == []
    record(graded(3))
    assert overview()[0].attempts == 1


def test_a_file_that_is_no_database_is_named():
    progress_file().parent.mkdir(parents=True)
    progress_file().write_text("certainly not SQLite" * 100, encoding="utf-8")
    for call in (lambda: record(graded(1)), overview, progress.reset):
        with pytest.raises(ProgressError, match="not a database; move that file away"):
            call()


def test_a_file_of_a_newer_course_is_left_alone():
    record(graded(1))
    with sqlite3.connect(progress_file()) as store:
        store.execute("PRAGMA user_version = 99")
    with pytest.raises(ProgressError, match="newer edition"):
        record(graded(2))


def test_a_result_of_another_edition_is_named():
    record(graded(1))
    with sqlite3.connect(progress_file()) as store:
        store.execute("UPDATE exercise SET last = '{}'")
    with pytest.raises(ProgressError, match="cannot read"):
        overview()
