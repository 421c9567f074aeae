"""Runs one module in a child process: with bubblewrap one that can harm nobody, without it one with limits.

    child.py         what the child does first; the frames of its results
    landlock.py      fewer files, for a process that runs already
    seccomp.py       fewer system calls: no sockets, nothing that processes share but files
    unprivileged.py  another user than root

With "bubblewrap" the child sees a file system of its own: the system's programs, Python, this package and the kernels,
all read-only; one temporary folder of limited size; no network; no other processes. With "limits" it is a process of
its user, which may read and write what that user may; time, memory, processes, output and the size of a file are
limited. In both, seccomp bars it from sockets and from what processes share, and it is never root.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import select
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from course_utils.course import ROOT, SOURCE
from course_utils.grading.catalog import own_folder
from course_utils.grading.sandbox import landlock
from course_utils.grading.sandbox.child import ASKS, END, FRAME, MORE, descendants, give_up_new_privileges
from course_utils.grading.sandbox.unprivileged import child_user, command_as
from course_utils.toolchain.cache import cache_folder

PACKAGE = Path(__file__).resolve().parents[2]
CHILD = Path(__file__).resolve().with_name("child.py")
PYTHON = os.path.abspath(sys.executable)  # without `..`, which leads nowhere in the child, and not behind venv's link
WATCH_SECONDS = 0.05
TAIL_BYTES = 16 << 10  # of stdout and stderr, for the one who looks into a failure
LARGEST_HEADER = 1 << 20
LARGEST_RESULTS = 512 << 20  # all headers and blobs together
MOST_RESULTS = 10_000
MOST_ASKS = 4  # for more: the runner needs three
INSIDE = "/tmp"  # the one writable folder of a child in bubblewrap
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom"))
OPEN_IN_PROC = ("/proc/sys", "/proc/pressure")  # below them some files may be written by everybody
ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime")
HIDDEN = ("solutions", "exercises", "tests")  # of the course's files
PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "CXX", "COURSE_EMULATOR_CXX", "COURSE_KERNELS", "LD_LIBRARY_PATH")
PASSED_ON_WITH_GPU = ("CUDA_", "NVIDIA_", "CUPY_")  # every variable that starts so
# A quarter of the time that PyTorch takes to start: shapes without values, for compilers. Then those who need them.
LATER = {"torch._meta_registrations": ("torch._dynamo", "torch._inductor")}
INSTALL = "install it (`apt install bubblewrap`, `dnf install bubblewrap`; version 0.8 or newer)"


@dataclass(frozen=True)
class Limits:
    """seconds: wall-clock time. memory: bytes, all processes together. file_bytes: one file, in bubblewrap all files
    together, too. output_bytes: stdout and stderr together.
    """

    seconds: float = 180.0
    memory: int = 4 << 30
    processes: int = 64
    file_bytes: int = 256 << 20
    output_bytes: int = 8 << 20


@dataclass(frozen=True)
class Message:
    """One result of the child. Everything in it may be made up: the student's code runs in that process."""

    header: dict[str, Any]
    blob: bytes = b""


@dataclass(frozen=True)
class Ended:
    """How the child ended.

    reason: "finished" (its module ran to the end), "time limit", "memory limit", "process limit", "output limit",
    "file limit" or "died". status: exit status, 128 + n after signal n. messages: what it sent before.
    stdout, stderr: the last 16 KiB of each. detail: the reason in a student's words; empty where it finished.
    """

    reason: str
    status: int
    messages: list[Message]
    stdout: str = ""
    stderr: str = ""
    detail: str = ""


def run_child(
    job: bytes,
    *,
    module: str = "course_utils.grading.runner",
    limits: Limits | None = None,
    isolation: str = "auto",
    gpu: bool = False,
    more: Callable[[list[Message]], bytes | None] | None = None,
) -> Ended:
    """Runs `module` (or the .py file of that path) as `__main__` in a child, with sys.argv[1:] = JOB, RESULTS.

    These are file numbers for `read_job` and `send`. isolation: "bubblewrap", "limits", or "auto": the first where it
    runs. more: gives the bytes for a child that asks for more (two more file numbers in its sys.argv, for `ask`), from
    what it has sent so far; it is watched meanwhile. When this returns, or raises, no process of the child is left;
    with "limits" one that has left its process group, and lost its parent, may be.
    Raises ValueError for an unknown isolation, RuntimeError where bubblewrap is wanted and does not run.
    """
    limits = limits or Limits()
    walled = _is_walled(isolation)
    with contextlib.ExitStack() as stack:
        later = _More(more, stack)
        process, reading, told = _start(job, module, limits, walled, gpu, later, stack)
        end = functools.partial(_end_namespace, process, told) if walled else functools.partial(_end_group, process)
        try:
            watch = _Watch(process, reading, limits, later.give, end)
            watch.run()
        finally:
            end()
            for pipe in (process.stdout, process.stderr):
                pipe.close()
        return watch.ended()


def _is_walled(isolation: str) -> bool:
    """Whether it means bubblewrap. Raises as `run_child`."""
    if isolation not in ("auto", "bubblewrap", "limits"):
        raise ValueError(f'isolation takes "auto", "bubblewrap" or "limits", got {isolation!r}')
    if isolation == "limits":
        return False
    runs, why_not = isolation_available()
    if isolation == "bubblewrap" and not runs:
        raise RuntimeError(f"bubblewrap does not run here: {why_not}")
    return runs


class _More:
    """What a child that asks for more is given: bytes in a file of both, and a word in a pipe that they are there."""

    def __init__(self, source: Callable[[list[Message]], bytes | None] | None, stack: contextlib.ExitStack) -> None:
        self._source = source
        self._content = os.memfd_create("more")
        self.hearing, self._word = os.pipe()
        for file in (self._content, self._word):
            stack.callback(os.close, file)
        self.files_of_child = [] if source is None else [self._content, self.hearing]

    def give(self, messages: list[Message]) -> None:
        """Answers a child that has sent these."""
        given = None if self._source is None else self._source(messages)
        os.ftruncate(self._content, 0)
        os.lseek(self._content, 0, os.SEEK_SET)
        with os.fdopen(os.dup(self._content), "wb") as writer:
            writer.write(given or b"")
        with contextlib.suppress(BrokenPipeError):
            os.write(self._word, b"-" if given is None else MORE)


def _start(
    job: bytes, module: str, limits: Limits, walled: bool, gpu: bool, later: _More, stack: contextlib.ExitStack
) -> tuple[subprocess.Popen[bytes], int, int]:
    """Starts the child. Gives it, and where its results and bwrap's word can be read; `stack` closes what it needs."""
    settings = {
        "module": module,
        "limits": asdict(limits),
        "gpu": gpu,
        "walled": walled,
        "later": LATER,
        "paths": [str(PACKAGE.parent), *_user_site()],
        "more": later.files_of_child,
    }
    folder = Path(INSIDE) if walled else stack.enter_context(_private_folder())
    own_module = [module] if module.endswith(".py") else []
    needed = [*map(str, _read_only_folders()), *own_module]
    shared = []
    for file in _shared_builds():
        there = folder / "cache" / file.relative_to(cache_folder().parent)
        if walled:
            shared += ["--ro-bind", str(file), str(there)]
            needed.append(str(file))
        else:
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, there)  # a link would let the child write to the original
    job_file = stack.enter_context(_file_with(job))
    reading, writing = os.pipe()
    told, telling = os.pipe()  # by bwrap
    for file in (reading, told):
        stack.callback(os.close, file)
    with os.fdopen(writing, "wb", buffering=0), os.fdopen(telling, "wb", buffering=0), os.fdopen(later.hearing, "rb"):
        command = [PYTHON, "-I", "-B", str(CHILD), json.dumps(settings), str(job_file), str(writing)]
        if walled:
            files = (*shared, *(part for name in own_module for part in ("--ro-bind", name, name)))
            command = [*_bubblewrap(limits.file_bytes, gpu, files), "--info-fd", str(telling), "--", *command]
        process = subprocess.Popen(
            _not_as_root(command, needed, None if walled else folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(job_file, writing, telling, *later.files_of_child),
            start_new_session=True,
            cwd="/" if walled else folder,
            env=_environment(folder, gpu),
        )
    return process, reading, told


# ---- what the child can see


@functools.cache
def isolation_available() -> tuple[bool, str]:
    """Whether bubblewrap runs here, and if not, why. It is tried."""
    if sys.platform != "linux" or shutil.which("bwrap") is None:
        return False, f"there is no program bwrap; {INSTALL}"
    command = [*_bubblewrap(1 << 20, False, ()), "--", PYTHON, "-I", "-S", "-c", "pass"]
    try:
        command = _not_as_root(command, map(str, _read_only_folders()), None)
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=False, env=_environment(Path(INSIDE), False)
        )
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        return False, str(error)
    if done.returncode == 0:
        return True, ""
    said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    if "Unknown option" in said[0]:
        return False, f"it is too old ({said[0]}); {INSTALL}"
    return False, f"{said[0]}. The system must allow unprivileged user namespaces (containers often do not)"


def _not_as_root(command: list[str], needed: Iterable[str], folder: Path | None) -> list[str]:
    """The command, for a grader that is root by way of another user, who gets this folder. Raises RuntimeError."""
    user = child_user()
    if user is None:
        return command
    if folder is not None:
        for place in (folder, *folder.rglob("*")):
            os.chown(place, user, user)
    return command_as(user, [*needed, command[0]], command)


def _bubblewrap(file_bytes: int, gpu: bool, files: tuple[str, ...]) -> list[str]:
    """The command line up to the program: namespaces and mounts. `files`: more arguments, for single files."""
    command = [shutil.which("bwrap") or "bwrap", "--unshare-user", "--unshare-all", "--disable-userns"]
    command += ["--die-with-parent", "--new-session"]
    command += ["--cap-drop", "ALL", "--hostname", "sandbox", "--size", str(file_bytes), "--tmpfs", INSIDE]
    for name in SYSTEM:
        if os.path.islink(name):
            command += ["--symlink", os.readlink(name), name]
        elif os.path.isdir(name):
            command += ["--ro-bind", name, name]
    for name in ETC:
        command += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    mounted = [Path("/usr")]
    for place in _read_only_folders():
        if not any(place.is_relative_to(there) for there in mounted):
            command += ["--ro-bind", str(place), str(place)]
            mounted.append(place)
    for place in _hidden():
        if any(place.is_relative_to(there) for there in mounted):
            command += ["--perms", "0555", "--size", "4096", "--tmpfs", str(place)]
    command += [*files, "--proc", "/proc", "--dev", "/dev"]
    for name in OPEN_IN_PROC:
        command += ["--ro-bind-try", name, name]
    if gpu:
        devices = [*Path("/dev").glob("nvidia*"), Path("/dev/dxg")]
        for device in devices:
            command += ["--dev-bind-try", str(device), str(device)]
        command += ["--ro-bind", "/sys", "/sys"]
    # What is mounted is a tmpfs without a limit: /dev, with /dev/shm, and the root.
    command += ["--remount-ro", "/dev", "--remount-ro", "/"]
    return [*command, "--chdir", INSIDE]


def _read_only_folders() -> list[Path]:
    """Python, this package, the kernels and the C++ compiler, each under its own name and under that of its target."""
    from course_utils.emulator.compiler import find_compiler
    from course_utils.toolchain.errors import CompileError
    from course_utils.toolchain.source import KERNELS

    folders = [Path(sys.prefix), Path(sys.base_prefix), Path(os.path.realpath(sys.executable)).parent.parent]
    folders += [PACKAGE, KERNELS, *map(Path, _user_site())]
    with contextlib.suppress(CompileError):
        prefix = Path(os.path.realpath(shutil.which(find_compiler().command[0]) or "/usr")).parent.parent
        if not Path.home().is_relative_to(prefix) and not PACKAGE.is_relative_to(prefix):
            folders.append(prefix)
    both = [Path(way) for folder in folders for way in (os.path.abspath(folder), os.path.realpath(folder))]
    return [folder for folder in dict.fromkeys(both) if folder.is_dir()]


def _readable() -> list[str]:
    """What Landlock leaves open for reading."""
    paths = [*SYSTEM, *(f"/etc/{name}" for name in ETC), "/proc", "/sys", *map(str, _read_only_folders())]
    for place in _hidden():
        paths = list(_without(paths, place.resolve()))
    return paths


def _hidden() -> list[Path]:
    """The folders with right answers. In an installed wheel they lie within the package."""
    places = [root / name for root in dict.fromkeys((SOURCE, ROOT)) for name in HIDDEN] + [own_folder()]
    return [place for place in places if place.is_dir()]


def hide(folder: Path | None) -> None:
    """Takes this folder from the calling process, for good, with all but what a child needs: files, and the memory of
    other processes. Without Landlock: nothing. For a child that runs already.
    """
    own = Path(tempfile.gettempdir()).resolve()
    if PACKAGE.is_relative_to(own):  # a clone in /tmp
        own = Path(tempfile.mkdtemp())
        tempfile.tempdir = os.environ["TMPDIR"] = os.environ["HOME"] = str(own)
    give_up_new_privileges()
    devices = [*DEVICES, *map(str, Path("/dev").glob("nvidia*"))]
    readable = _readable() if folder is None else _without(_readable(), folder.resolve())
    landlock.restrict(readable, [str(own), *devices])


def _without(paths: Iterable[str], hidden: Path) -> Iterator[str]:
    """The paths; for a folder above the hidden one what lies in it, and so on."""
    for path in paths:
        real = Path(path).resolve()
        if hidden.is_relative_to(real):
            yield from _without((entry.path for entry in os.scandir(real) if real != hidden), hidden)
        elif not real.is_relative_to(hidden):
            yield path


def _user_site() -> list[str]:
    """Where `pip install --user` puts packages, if this Python looks there (the child's option -I would not)."""
    folder = site.getusersitepackages()
    return [folder] if site.ENABLE_USER_SITE and os.path.isdir(folder) else []


def _environment(folder: Path, gpu: bool) -> dict[str, str]:
    """A small environment, whose writable places are all below `folder`."""
    passed_on = PASSED_ON_WITH_GPU if gpu else ()
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in PASSED_ON or (passed_on and name.startswith(passed_on))
    }
    return environment | {
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "USER": "student",
        "LOGNAME": "student",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def _shared_builds() -> list[Path]:
    """The emulator's runtime and headers, built here once: the child cannot keep what it builds."""
    from course_utils.emulator.compiler import find_compiler, shared_builds
    from course_utils.toolchain.errors import CompileError

    try:
        return shared_builds(find_compiler())
    except CompileError:
        return []  # there is no compiler: the child will say so itself


@contextlib.contextmanager
def _private_folder() -> Iterator[Path]:
    folder = tempfile.mkdtemp(prefix="grading-")
    try:
        yield Path(folder)
    finally:
        with contextlib.suppress(RecursionError):
            shutil.rmtree(folder, ignore_errors=True)
        for command in (["rm", "-rf"], ["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
            if os.path.exists(folder):  # folders without rights, or in folders, deeper than Python goes
                subprocess.run([*command, folder], capture_output=True, check=False)


@contextlib.contextmanager
def _file_with(content: bytes) -> Iterator[int]:
    """A file in memory that nobody can change."""
    import fcntl

    file = os.memfd_create("job", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with os.fdopen(os.dup(file), "wb") as writer:
            writer.write(content)
        fcntl.fcntl(
            file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        )
        yield file
    finally:
        os.close(file)


# ---- watching it


class _Malformed(Exception):
    """The child's results are no frames of ours."""


@dataclass
class _Parser:
    """Takes the child's results apart as they come."""

    messages: list[Message] = field(default_factory=list)
    finished: bool = False
    _waiting: bytearray = field(default_factory=bytearray)
    _taken: int = 0

    def feed(self, piece: bytes) -> None:
        """Raises _Malformed."""
        self._waiting += piece
        while len(self._waiting) >= FRAME.size:
            header_bytes, blob_bytes = FRAME.unpack_from(self._waiting)
            end = FRAME.size + header_bytes + blob_bytes
            too_much = header_bytes > LARGEST_HEADER or self._taken + end > LARGEST_RESULTS
            if too_much or len(self.messages) >= MOST_RESULTS:
                raise _Malformed("it sent more results than it may")
            if len(self._waiting) < end:
                return
            header = bytes(self._waiting[FRAME.size : FRAME.size + header_bytes])
            blob = bytes(self._waiting[FRAME.size + header_bytes : end])
            del self._waiting[:end]
            self._taken += end
            try:
                content = json.loads(header)
            except (ValueError, RecursionError):
                content = None
            if not isinstance(content, dict):
                raise _Malformed("it sent results that cannot be read")
            if blob == END and not content:
                self.finished = True
            else:
                self.messages.append(Message(content, blob))


class _Watch:
    """Reads what a child says and ends it where it goes too far."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        results: int,
        limits: Limits,
        more: Callable[[list[Message]], None],
        stop: Callable[[], None],
    ) -> None:
        """more: called where the child asks for more, MOST_ASKS times at most. stop: ends the child."""
        assert process.stdout is not None and process.stderr is not None
        self._process, self._limits = process, limits
        self._more, self._stop = more, stop
        self._asked = 0
        self._started = time.monotonic()
        self._results, self._stdout, self._stderr = results, process.stdout.fileno(), process.stderr.fileno()
        self._tails = {self._stdout: bytearray(), self._stderr: bytearray()}
        self._said = self._open = 0
        self._parser = _Parser()
        self._reason, self._detail = "", ""

    def run(self) -> None:
        """Returns when the child has ended, or must be."""
        poll = select.poll()
        for file in (self._results, self._stdout, self._stderr):
            poll.register(file, select.POLLIN)
            self._open += 1
        next_look = self._started + WATCH_SECONDS
        while not self._reason:
            wait = max(0.0, next_look - time.monotonic())
            if self._open:
                self._read_all(poll, wait)
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(wait)
                    break
            if self._asked < min(MOST_ASKS, sum(message.header == ASKS for message in self._parser.messages)):
                self._asked += 1
                self._give_more()
            if time.monotonic() >= next_look:
                if self._process.poll() is not None:
                    break
                self._look()
                next_look = time.monotonic() + WATCH_SECONDS
        while self._open and not self._reason and self._read_all(poll, 0.0):
            pass  # what it said last

    def _give_more(self) -> None:
        """Takes its time; a thread looks after the child meanwhile, whose own time stands still."""
        began, given = time.monotonic(), threading.Event()
        watching = threading.Thread(target=self._look_until, args=(given,), daemon=True)
        watching.start()
        try:
            self._more(list(self._parser.messages))
        finally:
            given.set()
            watching.join()
        self._started += time.monotonic() - began

    def _look_until(self, given: threading.Event) -> None:
        while not given.wait(WATCH_SECONDS) and self._process.poll() is None:
            self._look()
            if self._reason:
                return self._stop()
        return None

    def _read_all(self, poll: select.poll, seconds: float) -> bool:
        """Waits so long for something to read, and reads it. Whether there was any."""
        ready = poll.poll(seconds * 1000)
        for file, _ in ready:
            if not self._read(file):
                poll.unregister(file)
                self._open -= 1
        return bool(ready)

    def _read(self, file: int) -> bool:
        """Whether there may be more to come."""
        piece = os.read(file, 1 << 20)
        if file == self._results:
            try:
                self._parser.feed(piece)
            except _Malformed as error:
                self._end("died", str(error))
            return bool(piece)
        self._said += len(piece)
        self._tails[file] += piece
        del self._tails[file][:-TAIL_BYTES]
        if self._said > self._limits.output_bytes:
            self._end("output limit", f"it printed more than {_size(self._limits.output_bytes)}")
        return bool(piece)

    def _look(self) -> None:
        limits, now = self._limits, time.monotonic()
        if now - self._started > limits.seconds:
            return self._end("time limit", f"it did not end within {limits.seconds:g} s")
        processes = [self._process.pid, *descendants(self._process.pid)]
        if len(processes) > limits.processes:
            return self._end("process limit", f"it started more than {limits.processes} processes")
        if sum(map(_memory, processes)) > limits.memory:
            return self._end("memory limit", f"it took more than {_size(limits.memory)} of memory")
        return None

    def _end(self, reason: str, detail: str) -> None:
        self._reason, self._detail = reason, detail

    def ended(self) -> Ended:
        """After the process is gone."""
        status = self._process.returncode
        status = status if status >= 0 else 128 - status
        reason, detail = self._reason, self._detail
        if not reason and self._parser.finished and status == 0:
            reason = "finished"
        elif not reason and status == 128 + signal.SIGXFSZ:
            reason, detail = "file limit", f"it wrote more than {_size(self._limits.file_bytes)} to a file"
        elif not reason:
            reason, detail = "died", _how_it_died(status)
        out, err = (bytes(tail).decode(errors="replace") for tail in self._tails.values())
        return Ended(reason, status, self._parser.messages, out, err, detail)


def _how_it_died(status: int) -> str:
    if status in (0, 1):
        return f"it ended before it was done (exit status {status})"
    with contextlib.suppress(ValueError):
        return f"it crashed ({signal.Signals(status - 128).name})"
    return f"it ended before it was done (exit status {status})"


def _memory(process: int) -> int:
    """Bytes that are this process's own, in RAM."""
    try:
        with open(f"/proc/{process}/status", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith((b"RssAnon:", b"RssShmem:")))


def _size(count: int) -> str:
    unit = next((u for u in (30, 20, 10) if count >= 1 << u), 0)
    return f"{count / (1 << unit):g} {({30: 'GiB', 20: 'MiB', 10: 'KiB', 0: 'bytes'})[unit]}"


# ---- ending it


def _end_namespace(bwrap: subprocess.Popen[bytes], told: int) -> None:
    """Ends bwrap and the first process of its namespace, which takes all others with it, and waits until they are gone.

    `told`: where bwrap says which process that is, unless it is ended in the moment between its start and those words:
    then that process would wait for bwrap, for ever. So bwrap is stopped first, and /proc says what it has started.
    """
    with contextlib.suppress(ProcessLookupError):
        bwrap.send_signal(signal.SIGSTOP)
    while bwrap.poll() is None and _state(bwrap.pid) != "T":
        time.sleep(0.0005)
    started = descendants(bwrap.pid) if bwrap.poll() is None else []
    bwrap.kill()
    bwrap.wait()  # the first process is told by the kernel (--die-with-parent), once it has asked for that
    for one in started:
        _kill(one)
    said = re.search(rb'"child-pid": (\d+)', os.read(told, 4096))
    if said:  # bwrap ended before this function was called: by another's hand
        _kill(int(said[1]))
        started.append(int(said[1]))
    while any(_state(one) not in "ZX" for one in started):
        time.sleep(0.0005)


def _state(process: int) -> str:
    """As in /proc: Z for one that has ended, with its namespace; X: there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[0].decode()
    except OSError:
        return "X"


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends the child with its process group, and what else has come from it as far as its parents live."""
    others = descendants(process.pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for one in others:
        _kill(one)
    process.wait()
    while any(_state(one) not in "ZX" for one in others):
        time.sleep(0.0005)


def _kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process, signal.SIGKILL)
