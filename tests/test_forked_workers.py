"""Tests that forks of one process run are reported as if one process had run them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MANY = """
import os, time
import pytest

RAN = os.environ["RAN"]

def note(line):
    with open(RAN, "a") as file:
        print(line, file=file)

@pytest.fixture(scope="module")
def process():
    note("begun")
    while open(RAN).read().count("begun") < 2:  # the other worker is at its first, too
        time.sleep(0.01)
    yield os.getpid()
    note("over")

@pytest.mark.parametrize("n", range(30))
def test_one(n, process, tmp_path):
    (tmp_path / "mine").write_text(f"{n}")
    assert process == os.getpid()
    note(f"{n} in {process}, {tmp_path.parent}")
"""
ALL_KINDS = """
import warnings
import pytest

def test_right(): pass
def test_wrong(): print("said before"); assert 1 == 2
def test_left_out(): pytest.skip("for a reason")
def test_warns(): warnings.warn("of something")
"""


@pytest.fixture
def run(tmp_path):
    """run({file: text}) -> what pytest prints where two workers run these tests, its status, and the lines of RAN."""

    def run_tests(files):
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        (tmp_path / "ran").touch()
        command = [sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"), f"--rootdir={tmp_path}"]
        command += ["-p", "no:cacheprovider", "-p", "no:nbval", "-p", "no:hypothesispytest", "--confcutdir=."]
        command += ["-p", "tests.helpers.forked_workers", "--workers=2", *(str(tmp_path / name) for name in files)]
        environment = {**os.environ, "RAN": str(tmp_path / "ran"), "PYTEST_DEBUG_TEMPROOT": str(tmp_path)}
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
        return done.stdout, done.returncode, (tmp_path / "ran").read_text().splitlines()

    return run_tests


def test_each_test_runs_once_and_is_reported_whatever_comes_of_it(run):
    said, status, ran = run({"test_many.py": MANY, "test_kinds.py": ALL_KINDS})
    assert "1 failed, 32 passed, 1 skipped, 1 warning" in said and status == 1, said
    assert "said before" in said and "for a reason" in said and "UserWarning: of something" in said
    tests = [found.groups() for line in ran if (found := re.fullmatch(r"(\d+) in (\d+), (.*)", line))]
    assert sorted(int(n) for n, _, _ in tests) == [*range(30)]
    workers = {(process, folder) for _, process, folder in tests}
    assert len(workers) == len({process for process, _ in workers}) == len({folder for _, folder in workers}) == 2
    assert ran.count("over") == 2, "a fixture of a module ends in each worker that has it"


def test_a_worker_that_dies_is_no_success_and_its_test_is_named(run):
    said, status, _ = run({"test_many.py": MANY, "test_dies.py": "def test_dies(): __import__('os')._exit(0)"})
    assert "a worker ended in test_dies.py::test_dies" in said and status == 2, said
