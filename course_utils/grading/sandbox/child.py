"""What the sandbox's child process runs first, and how it talks with its parent.

`python child.py SETTINGS JOB RESULTS` (two file numbers) sets limits on itself and then runs the module that SETTINGS
names. It imports little: the module brings what it needs.

A result is a frame: `<IQ` (lengths of what follows), a JSON object, bytes. The parent never unpickles anything.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import runpy
import signal
import struct
import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

FRAME = struct.Struct("<IQ")
END = b"end of the child's results"  # what the blob of the last frame holds
ASKS = {"kind": "more"}  # the header by which a child asks for more
MORE = b"+"  # the word that there is some
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38


def read_job(file: int) -> bytes:
    """The bytes that the parent handed over."""
    size, pieces, at = os.fstat(file).st_size, [], 0
    while at < size:
        pieces.append(os.pread(file, 1 << 24, at))
        at += len(pieces[-1])
    return b"".join(pieces)


def send(file: int, header: dict[str, Any], blob: bytes = b"") -> None:
    """Sends one result to the parent."""
    text = json.dumps(header).encode()
    for piece in (FRAME.pack(len(text), len(blob)) + text, blob):
        view = memoryview(piece)
        while view:
            view = view[os.write(file, view) :]


def ask(results: int, content: int, word: int) -> bytes | None:
    """What the parent has for a child that is done with its job; None: nothing. A few times at most."""
    send(results, ASKS)
    return read_job(content) if os.read(word, 1) == MORE else None


def apply_limits(limits: Any, *, gpu: bool = False) -> None:
    """Limits of the kernel on this process and on each that it starts. `limits`: see `sandbox.Limits`.

    They hold per process; the parent watches over what all processes take together.
    """
    seconds = int(limits.seconds) * (os.cpu_count() or 1) + 1
    wanted = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NOFILE: 1024,
        resource.RLIMIT_CPU: seconds,  # for a parent that is held up itself
    }
    if not gpu:  # CUDA maps far more than it uses
        # Not RLIMIT_AS: the emulator reserves addresses that it does not use.
        wanted[resource.RLIMIT_DATA] = limits.memory
    for name, value in wanted.items():
        hard = resource.getrlimit(name)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (value, value))


def descendants(process: int) -> list[int]:
    """The processes that this one has started, and those that they have started."""
    found, at = [], [process]
    while at:
        children = _children(at.pop())
        found += children
        at += children
    return found


def _children(process: int) -> list[int]:
    if not os.path.exists("/proc/thread-self/children"):  # a kernel built without
        return [child for child in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent(child) == process]
    children: list[int] = []
    with contextlib.suppress(OSError, ValueError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/children", "rb") as file:
                children += map(int, file.read().split())
    return children


def _parent(process: int) -> int:
    """0: it is gone."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def give_up_new_privileges() -> None:
    """No program that this process starts gets rights that it has not. seccomp and Landlock ask for that."""
    from ctypes import CDLL

    CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def end_with_the_grader() -> None:
    """The kernel ends this process when its parent ends."""
    from ctypes import CDLL

    CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Later(ModuleType):
    """Stands in for a module that others import and mostly do not use: it is imported where something of it is asked
    for, or when one of `users` is imported, which need it without asking.
    """

    def __init__(self, name: str, users: Iterable[str]) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)
        self._finder = _Users(self, frozenset(users))
        sys.modules[name] = self
        sys.meta_path.insert(0, self._finder)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.load(), name)

    def load(self) -> ModuleType:
        """The module itself."""
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
            del sys.modules[self.__name__]
        return importlib.import_module(self.__name__)


class _Users:
    """A finder that finds nothing, and sees who is imported."""

    def __init__(self, later: Later, users: frozenset[str]) -> None:
        self._later, self._users = later, users

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Called for each module that is imported."""
        if name in self._users:
            self._later.load()


def main() -> None:
    settings = SimpleNamespace(**json.loads(sys.argv[1]))
    job, results = sys.argv[2:]
    for file in (job, results, *settings.more):
        os.set_inheritable(int(file), False)
    if not settings.walled:
        end_with_the_grader()
        give_up_new_privileges()
    sys.path += [path for path in settings.paths if path not in sys.path]
    if not settings.gpu:  # its driver needs sockets
        from course_utils.grading.sandbox import seccomp

        seccomp.restrict()
    apply_limits(SimpleNamespace(**settings.limits), gpu=settings.gpu)
    for name, users in settings.later.items():
        Later(name, users)
    gc.disable()  # until the module turns it on: what it imports stays, and to look at that takes a sixth of the time
    sys.argv = [settings.module, job, results, *map(str, settings.more)]
    if settings.module.endswith(".py"):
        runpy.run_path(settings.module, run_name="__main__")
    else:
        runpy.run_module(settings.module, run_name="__main__", alter_sys=True)
    sys.stdout.flush()
    sys.stderr.flush()
    send(int(results), {}, END)
    os._exit(0)  # nothing that the module has left behind runs after this


if __name__ == "__main__":
    main()
