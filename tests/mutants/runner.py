"""Plants a mistake in a copy of the tree and runs a test there. The tree itself is never written to."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.table import Mutant, plant

KILLED, SURVIVED, BROKEN = "killed", "SURVIVED", "broken"
NBVAL = ["--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=120"]
TEST_SECONDS, WHOLE_SECONDS = 900, 3600
STAMP = ".venv/.installed"  # of the Makefile
A_PART_FAILED = r"make\[\d+\]: \*\*\* "
# Looks for the text that each row changes, and so would fail on every planted row without seeing the mistake.
SEES_EVERY_ROW = "tests/mutants/test_mutants.py::test_a_mistake_can_be_planted"
LEFT_BY_RUNS = shutil.ignore_patterns("build", ".ipynb_checkpoints", "kernel-ipc-*", "*.pyc.*")
OF_ANOTHER_PYTEST = ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT")


@dataclass(frozen=True)
class Verdict:
    """What became of a row. `reason` says why a row is broken, or what failed in the whole of `make test`."""

    mutant: Mutant
    outcome: str
    seconds: float
    reason: str = ""


@dataclass(frozen=True)
class _Run:
    status: int
    output: str

    def count(self, what: str) -> int:
        """How many tests passed or failed, from pytest's last line."""
        summary = self.output.strip().rpartition("\n")[2]
        found = re.search(rf"(\d+) {what}", summary)
        return int(found[1]) if found else 0

    def why(self) -> str:
        """The last lines, for people."""
        return f"exit status {self.status}:\n    " + "\n    ".join(self.output.strip().splitlines()[-8:])


def listed_files(root: Path) -> list[str]:
    """What git knows in the tree, with what it does not ignore, as the files are now."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.split("\0")
    return sorted({name for name in names if (root / name).is_file()})


class Runner:
    """Runs rows on copies of `root`, below `folder`, which the caller removes. Several threads may share it."""

    def __init__(self, root: Path, files: Iterable[str], folder: Path) -> None:
        self._folder = folder
        self._unchanged = folder / "unchanged"
        self._passes: dict[str, str] = {}  # test -> why it does not pass on the unchanged tree; empty if it does
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[str]] = set()
        self._stopped = False
        for name in files:
            (self._unchanged / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, self._unchanged / name, follow_symlinks=False)
        # `make` finds what is installed; imports find the copy first, since PYTHONPATH names it.
        (self._unchanged / ".venv").symlink_to(sys.prefix)

    def judge(self, mutant: Mutant, *, whole: bool = False) -> Verdict:
        """Whether the row's test sees the mistake; with `whole`, whether `make test` does."""
        start = time.monotonic()

        def verdict(outcome: str, reason: str = "") -> Verdict:
            return Verdict(mutant, outcome, time.monotonic() - start, reason)

        try:
            text = plant(mutant, (self._unchanged / mutant.file).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            return verdict(BROKEN, str(error))
        if not whole and (why := self._why_not_unchanged(mutant.test)):
            return verdict(BROKEN, f"without the mistake, {mutant.test} does not pass: {why}")
        tree = self._folder / mutant.name
        shutil.copytree(self._unchanged, tree, symlinks=True, ignore=LEFT_BY_RUNS)
        try:
            _replace(tree / mutant.file, text)
            if whole:
                run = self._run(["make", "-o", STAMP, "test"], tree, WHOLE_SECONDS, until=A_PART_FAILED)
                if run.status == 0:
                    return verdict(SURVIVED)
                failed = _failed_parts(run.output)
                return verdict(KILLED, failed) if failed else verdict(BROKEN, f"`make test` ended with {run.why()}")
            run = self._run(_command(mutant.test), tree, TEST_SECONDS)
        finally:
            shutil.rmtree(tree, ignore_errors=True)
        if run.status == 0:
            return verdict(SURVIVED)
        if run.status == 1 and run.count("failed"):
            return verdict(KILLED)
        return verdict(BROKEN, f"no test failed, but {mutant.test} ended with {run.why()}")

    def prove_unchanged(self, tests: Iterable[str]) -> None:
        """Runs the tests on the unchanged tree, all at once; `judge` runs alone what does not pass here."""
        tests = [test for test in tests if not test.endswith(".ipynb")]
        if not tests:
            return
        run = self._run([*_pytest("-v", "-p", "no:nbval"), *tests], self._unchanged, WHOLE_SECONDS)
        ended = re.findall(r"^(tests/.*) (PASSED|FAILED|ERROR)\b", run.output, flags=re.MULTILINE)
        for test in tests:
            mine = {outcome for name, outcome in ended if name == test or name.startswith(f"{test}[")}
            if mine == {"PASSED"}:
                self._passes[test] = ""

    def stop(self) -> None:
        """Ends every run, also those that have yet to start."""
        with self._lock:
            self._stopped = True
            running = list(self._processes)
        for process in running:
            _end(process)

    def _why_not_unchanged(self, test: str) -> str:
        with self._lock:
            lock = self._locks.setdefault(test, threading.Lock())
        with lock:
            if test not in self._passes:
                run = self._run(_command(test), self._unchanged, TEST_SECONDS)
                self._passes[test] = "" if run.status == 0 and run.count("passed") else run.why()
        return self._passes[test]

    def _run(self, command: list[str], tree: Path, seconds: float, *, until: str = "") -> _Run:
        """`until`: the run may end with the first line that begins so, and each pytest in it with its first failure."""
        environment = {name: value for name, value in os.environ.items() if name not in OF_ANOTHER_PYTEST}
        environment |= {
            "PYTHONPATH": str(tree),
            "XDG_DATA_HOME": str(tree / "build" / "test-data"),  # nobody's progress
            "OMP_NUM_THREADS": "1",
        }
        environment |= {"PYTEST_ADDOPTS": f"-x --deselect {SEES_EVERY_ROW}"} if until else {}
        with self._lock:
            if self._stopped:
                raise KeyboardInterrupt
            process = subprocess.Popen(
                command,
                cwd=tree,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C is ours to pass on
            )
            self._processes.add(process)
        lines: list[str] = []
        start = time.monotonic()
        late = threading.Timer(seconds, _end, [process])
        late.start()
        try:
            for line in process.stdout or ():
                lines.append(line)
                if until and re.match(until, line):
                    _end(process)
            status = process.wait()
        finally:
            late.cancel()
            with self._lock:
                self._processes.discard(process)
        if time.monotonic() - start >= seconds:
            return _Run(-1, f"stopped after {seconds} s")
        return _Run(status, "".join(lines))


def _replace(file: Path, text: str) -> None:
    """Writes a file and forgets its bytecode: Python takes it for that of any file as long, of the same second."""
    file.write_text(text, encoding="utf-8")
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
        compiled.unlink()


def _pytest(*options: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]


def _command(test: str) -> list[str]:
    # The plugin nbval alone takes seconds to import.
    return [*_pytest("-x", "-q", *(NBVAL if test.endswith(".ipynb") else ["-p", "no:nbval"])), test]


def _end(process: subprocess.Popen[str]) -> None:
    """Ends a run: first as Ctrl-C does, so that tests end what they started."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
            return


def _failed_parts(output: str) -> str:
    """The tests that failed, and what make said of it; empty if it said nothing."""
    lines = output.splitlines()
    failed = [line for line in lines if re.match(r"FAILED |ERROR ", line)]
    parts = [line for line in lines if re.match(A_PART_FAILED, line)]
    return "\n    ".join([*failed[:4], *parts[:1]]) if parts else ""
