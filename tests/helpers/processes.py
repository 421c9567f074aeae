"""Processes of this machine, to see that a test has left none behind."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil


def processes_with(word: str) -> list[int]:
    """Those with this word in their command line, but for what a sibling of this process started: another worker."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if word.encode() in Path(f"/proc/{name}/cmdline").read_bytes() and not _of_a_sibling(int(name)):
                found.append(int(name))
    return found


def _of_a_sibling(pid: int) -> bool:
    me, above = os.getpid(), os.getppid()
    while pid not in (0, 1, me):
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if parent == above > 1:
            return True
        pid = parent
    return False


def descendants(pid: int | None = None) -> set[int]:
    """What a process (this one) has started, and what that has; but for what ends while they are counted."""
    return {process.pid for process in psutil.Process(pid).children(recursive=True)}


def workers(pid: int | None = None) -> set[int]:
    """The processes that run kernels for a process (this one): the children of its launcher."""
    found = set()
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if any(word.endswith("/launcher.py") for word in child.cmdline()):
                found |= {worker.pid for worker in child.children()}
    return found


@contextlib.contextmanager
def once_it_runs(act: Callable[[set[int]], None]) -> Iterator[None]:
    """Calls `act` with the workers of the launch inside the `with` as soon as it has any, from another thread."""

    def wait() -> None:
        wait_for(workers)
        act(workers())

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def interrupt() -> None:
    """As the notebook's button does it, for this process."""
    os.kill(os.getpid(), signal.SIGINT)


def is_running(pid: int) -> bool:
    """False for a zombie, too: in a container nobody may ask for the end of an orphan."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def wait_for(what: Callable[[], object], seconds: float = 60) -> bool:
    """Whether it becomes true in that time: a busy machine takes its time to start Python."""
    deadline = time.monotonic() + seconds
    while not what() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(what())
