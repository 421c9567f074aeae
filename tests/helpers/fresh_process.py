"""A process in which nothing of the course has been imported, in a tenth of a second."""

import multiprocessing
import os
import sys
import tempfile
import traceback

FORKS = multiprocessing.get_context("forkserver")


def run_without_the_course(program: str) -> str:
    """Runs a program in a process that has PyTorch, but no module of the course; returns what it printed.

    Such processes are forks of one that imports PyTorch once, which takes 3 s. A fork of this one would not do: it
    has the course's operators, and torch crashes when overloads that were taken back are registered anew.
    Raises AssertionError with the traceback if the program failed.
    """
    FORKS.set_forkserver_preload(["torch"])
    with tempfile.NamedTemporaryFile("r") as printed:
        child = FORKS.Process(target=_run, args=(program, printed.name, dict(os.environ)))
        child.start()
        child.join()
        said = printed.read()
    assert child.exitcode == 0, said
    return said


def _run(program: str, printed: str, environment: dict[str, str]) -> None:
    status = 1
    os.environ.clear()
    os.environ.update(environment)
    with open(printed, "w") as sys.stdout:
        sys.stderr = sys.stdout
        try:
            exec(program, {})
            status = 0
        except BaseException:
            traceback.print_exc()
    os._exit(status)
