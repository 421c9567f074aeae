"""A plugin for pytest (`-p tests.helpers.forked_workers --workers N`): the tests, collected once, are run by N forks.

Workers of pytest-xdist collect each for itself, which takes 15 s of CPU for all tests: most of it imports, the same in
each. Here one process imports and collects. Its forks take the tests in order, a few at a time, so that those with one
fixture stay together, and it prints what they report. PyTorch must run no threads before: OMP_NUM_THREADS is 1.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import selectors
import signal
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

MOST_AT_A_TIME = 16  # tests of one file: the last that a worker takes should not keep the others waiting
SIZE = struct.Struct("<I")
Message = tuple[str, Any]


def pytest_addoption(parser):
    parser.addoption("--workers", type=int, default=1, help="run the tests in so many forks of this process")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    if session.config.getoption("workers") < 2 or session.testsfailed or session.config.option.collectonly:
        return None  # as pytest does it by itself
    session.config.get_terminal_writer().flush()
    session.config.pluginmanager.getplugin("terminalreporter").showfspath = False  # tests of several files are at work
    queue = _queue_of(session.items)
    workers = [_Worker(session, number, queue) for number in range(session.config.getoption("workers"))]
    os.close(queue)
    try:
        _report(session, workers)
    finally:
        for worker in workers:
            worker.end()
    return True


def _queue_of(items: Sequence[pytest.Item]) -> int:
    """A pipe that holds the indexes of the first and after the last test of each piece of work, and then ends. Whoever
    reads so many bytes gets one piece whole."""
    taking, giving = os.pipe()
    first = 0
    for last in range(1, len(items) + 1):
        full = last - first == MOST_AT_A_TIME
        if full or last == len(items) or items[last].path != items[first].path:
            os.write(giving, SIZE.pack(first) + SIZE.pack(last))
            first = last
    os.close(giving)
    return taking


def _taken_from(queue: int) -> Iterator[int]:
    """Indexes of tests, until nothing is left."""
    while piece := os.read(queue, 2 * SIZE.size):
        (first,), (last,) = SIZE.iter_unpack(piece)
        yield from range(first, last)


class _Worker:
    """A fork of this process. at: the test that it began last. finished: whether it has said that it is done."""

    def __init__(self, session: pytest.Session, number: int, queue: int) -> None:
        self.at, self.finished = "no test", False
        self.reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _work(session, number, queue, writing)
        os.close(writing)

    def messages(self) -> Iterator[Message]:
        """What has come since; the end of the pipe is the worker's."""
        size = os.read(self.reading, SIZE.size)
        if not size:
            yield "over", None
            return
        left, content = SIZE.unpack(size)[0], b""
        while len(content) < left:
            content += os.read(self.reading, left - len(content))
        yield pickle.loads(content)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.reading)


def _report(session: pytest.Session, workers: Sequence[_Worker]) -> None:
    """Passes on what the workers say until all are done."""
    hook = session.config.hook
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.reading, selectors.EVENT_READ, worker)
        while selector.get_map():
            for key, _ in selector.select():
                worker = key.data
                for kind, what in worker.messages():
                    if kind == "over":
                        selector.unregister(worker.reading)
                        if not worker.finished:
                            raise session.Interrupted(f"a worker ended in {worker.at}")
                    elif kind == "report":
                        report = hook.pytest_report_from_serializable(config=session.config, data=what)
                        hook.pytest_runtest_logreport(report=report)
                    elif kind == "warning":
                        hook.pytest_warning_recorded.call_historic(kwargs=what)
                    elif kind == "finished":
                        worker.finished = True
                    else:
                        worker.at = what[0]
                        getattr(hook, kind)(nodeid=what[0], location=what[1])
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)


def _work(session: pytest.Session, number: int, queue: int, writing: int) -> None:
    """Runs tests from the queue in this fork, and ends it."""
    status = 1
    try:
        atexit._clear()  # what is to be done at the first process's end
        _begin(session.config, number)
        tell = _Tell(session.config, writing)
        session.config.pluginmanager.register(tell)
        indexes = _taken_from(queue)
        at = next(indexes, None)
        while at is not None:
            after = next(indexes, None)
            following = None if after is None else session.items[after]
            session.config.hook.pytest_runtest_protocol(item=session.items[at], nextitem=following)
            at = after
        atexit._run_exitfuncs()
        tell("finished", None)
        status = 0
    finally:
        os._exit(status)


def _begin(config: pytest.Config, number: int) -> None:
    """Parts with what two processes must not share: the terminal, the files for output, the folder for tests' files."""
    config.pluginmanager.unregister(config.pluginmanager.getplugin("terminalreporter"))
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    folders = config._tmp_path_factory
    folders._basetemp = folders.mktemp(f"worker{number}-", numbered=False)


class _Tell:
    """What a worker passes on: whatever pytest would print of it."""

    def __init__(self, config: pytest.Config, writing: int) -> None:
        self._config, self._writing = config, writing

    def __call__(self, kind: str, what: Any) -> None:
        content = pickle.dumps((kind, what))
        with open(self._writing, "wb", closefd=False) as pipe:
            pipe.write(SIZE.pack(len(content)) + content)

    def pytest_runtest_logstart(self, nodeid, location):
        self("pytest_runtest_logstart", (nodeid, location))

    def pytest_runtest_logfinish(self, nodeid, location):
        self("pytest_runtest_logfinish", (nodeid, location))

    def pytest_runtest_logreport(self, report):
        self("report", self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_warning_recorded(self, warning_message, when, nodeid, location):
        self("warning", dict(warning_message=warning_message, when=when, nodeid=nodeid, location=location))
