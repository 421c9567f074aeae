"""Nothing that was acknowledged is lost: several processes at once, kill -9 in the middle, readers beside them."""

import multiprocessing
import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from course_utils import progress
from course_utils.course import CHAPTERS
from course_utils.grading.catalog import EXERCISE_IDS
from course_utils.grading.result import RIGHT, PartResult, Result
from course_utils.progress import overview

WORKERS = 4
MEMORY = Path("/dev/shm")


@pytest.fixture
def context():
    """Starts processes that are no forks of this one, which has torch's threads and could hang."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # imported once for all of them
    return context


@pytest.fixture
def data_home(data_home, monkeypatch):
    """In memory where there is such a folder: a killed process loses nothing there that it keeps on a disk, and nobody
    waits for the disk. That updates wait for it is test_each_update_waits_for_the_disk.
    """
    if not os.access(MEMORY, os.W_OK):
        yield data_home
        return
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        monkeypatch.setenv("XDG_DATA_HOME", folder)
        yield Path(folder)


def update(number):
    """The update of that number: an answer to a question of its own, or one more for what all processes share."""
    if number % 2:
        progress.record_answer(f"crash/{number}", number % 4 == 1, {"number": number}, number)
    elif number % 4:
        exercise = EXERCISE_IDS[number % len(EXERCISE_IDS)]
        part = PartResult("values", "Values", number, number, RIGHT)
        progress.record_exercise(Result(exercise, "Title", "", number, "cpu", "ok", (part,)))
    else:
        progress.record_finished(CHAPTERS[number % len(CHAPTERS)].slug)


def keep_updating(data_home, numbers, acknowledged, until_killed=False):
    """Makes the updates, and writes the number of each into a file, on disk, once it was acknowledged. until_killed:
    stays after the last one, since on a busy machine the kill can come late."""
    os.environ["XDG_DATA_HOME"] = data_home  # the server of forks may have been started with another one
    file = os.open(acknowledged, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in numbers:
        update(number)
        os.write(file, f"{number}\n".encode())
        os.fsync(file)
    if until_killed:
        signal.pause()


def numbers_in(acknowledged: Path) -> list[int]:
    return [int(line) for line in acknowledged.read_text().splitlines()] if acknowledged.exists() else []


def attempts_in(kept) -> int:
    return sum(one.attempts for one in (*kept.exercises, *kept.questions)) + sum(one.times for one in kept.chapters)


def read_until(ended: threading.Event) -> int:
    """Reads beside the writers, which neither fails nor goes back in time; returns how often."""
    seen = reads = 0
    while not ended.is_set():
        now = attempts_in(overview())
        assert now >= seen
        seen, reads = now, reads + 1
        time.sleep(0.1)
    return reads


MORE = pytest.mark.exhaustive("two and a half times as many updates, and more kills")


@pytest.mark.parametrize(("updates", "kills"), [(400, 3), pytest.param(1000, 5, marks=MORE)])
def test_nothing_acknowledged_is_lost_when_four_write_and_one_is_killed(
    context, data_home, tmp_path, capsys, updates, kills
):
    share = updates // WORKERS
    shares = [list(range(updates))[worker * share :][:share] for worker in range(WORKERS)]
    files = [tmp_path / f"acknowledged-{worker}" for worker in range(WORKERS)]

    def start(worker, numbers, until_killed=False):
        arguments = str(data_home), numbers, str(files[worker]), until_killed
        process = context.Process(target=keep_updating, args=arguments)
        process.start()
        return process

    begun = time.perf_counter()
    with ThreadPoolExecutor(1) as pool:
        ended = threading.Event()
        reads = pool.submit(read_until, ended)
        try:
            others = [start(worker, shares[worker]) for worker in range(1, WORKERS)]
            draw = random.Random(8)
            for kill in range(1, kills + 1):
                victim = start(0, shares[0][len(numbers_in(files[0])) :], until_killed=True)
                while len(numbers_in(files[0])) < kill * share // (kills + 1) and victim.is_alive():
                    time.sleep(0.005)
                time.sleep(draw.uniform(0, 0.01))
                victim.kill()
                victim.join()
                assert victim.exitcode == -signal.SIGKILL
            last = start(0, shares[0][len(numbers_in(files[0])) :])  # takes over the rest of the share
            for process in (*others, last):
                process.join()
        finally:
            ended.set()
    seconds = time.perf_counter() - begun
    with capsys.disabled():
        print(
            f" {updates} updates, {WORKERS} processes, {kills} kills, {reads.result()} reads: {seconds:.1f} s", end=""
        )

    assert [process.exitcode for process in (*others, last)] == [0] * WORKERS
    acknowledged = [number for file in files for number in numbers_in(file)]
    assert sorted(acknowledged) == list(range(updates))  # each once

    kept = overview()
    # The update in which a kill fell may be there without having been acknowledged; then it is made twice.
    assert 0 <= attempts_in(kept) - updates <= kills
    answers = {one.question: one for one in kept.questions}
    assert len(answers) == updates // 2
    for number in range(1, updates, 2):
        answer = answers[f"crash/{number}"]
        assert answer.last_answer == {"number": number} and answer.seed == number
        assert answer.last_right == (answer.right_at is not None) == (number % 4 == 1)
    graded = Counter(EXERCISE_IDS[number % len(EXERCISE_IDS)] for number in range(2, updates, 4))
    best = {exercise: 0 for exercise in graded}
    for number in range(2, updates, 4):
        best[EXERCISE_IDS[number % len(EXERCISE_IDS)]] = number
    assert {one.exercise: one.best.earned for one in kept.exercises} == best
    assert all(0 <= one.attempts - graded[one.exercise] <= kills for one in kept.exercises)
    finished = Counter(CHAPTERS[number % len(CHAPTERS)].slug for number in range(0, updates, 4))
    assert all(0 <= one.times - finished[one.slug] <= kills for one in kept.chapters)
    assert {one.slug for one in kept.chapters} == set(finished)


def draw_seeds(data_homes, barrier, seeds):
    for home in data_homes:
        os.environ["XDG_DATA_HOME"] = home
        barrier.wait()
        seeds.put((home, progress.learner_seed()))


def test_processes_that_start_at_once_agree_on_the_seed(context, data_home):
    homes = [str(data_home / str(attempt)) for attempt in range(5)]
    barrier, seeds = context.Barrier(4), context.SimpleQueue()
    processes = [context.Process(target=draw_seeds, args=(homes, barrier, seeds)) for _ in range(4)]
    for process in processes:
        process.start()
    drawn = {seeds.get() for _ in range(len(processes) * len(homes))}
    for process in processes:
        process.join()
    assert sorted(home for home, _ in drawn) == homes


@pytest.mark.exhaustive("two kernels of Jupyter, which take seconds to start: four processes write at once above")
def test_two_notebooks_at_once_lose_nothing(data_home):
    def run(name):
        cells = [
            "from course_utils import progress",
            f"for n in range(40): progress.record_answer(f'{name}/{{n % 20}}', True, n, 0)",
            "progress.record_finished('01_attention_basics')",
        ]
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        NotebookClient(notebook, kernel_name="python3", timeout=120).execute()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, ("here", "there")))
    kept = overview()
    assert [one.attempts for one in kept.questions] == [2] * 40
    assert kept.chapters[0].times == 2
