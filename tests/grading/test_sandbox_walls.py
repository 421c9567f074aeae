"""Nothing outside its own folder is open to a submission in bubblewrap, and it is never root, whoever grades.

Nothing here writes anywhere outside: the child asks the kernel what it may do (access), and opens for writing, without
a write, only what is no setting of the machine.
"""

import contextlib
import ctypes
import errno
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from course_utils.grading.sandbox import parent as sandbox
from course_utils.grading.sandbox import seccomp, unprivileged
from course_utils.grading.sandbox.parent import isolation_available

REPO = Path(__file__).resolve().parents[2]
ORDINARY = 65533  # a user of no name, not the one that root's children become

CHILD = """
import json, os, sys, time
from course_utils.grading.sandbox.child import read_job, send

def listed(folder):
    try:
        return list(os.scandir(folder))
    except OSError:
        return []

def below(folder, depth):
    yield folder
    for entry in listed(folder) if depth else ():
        own = folder == "/proc" and (entry.name.isdigit() or entry.name in ("self", "thread-self"))
        if not own and not entry.is_symlink():
            yield from below(entry.path, depth - 1) if entry.is_dir(follow_symlinks=False) else [entry.path]

def opens(path):
    try:
        folder = os.path.isdir(path)
        os.close(os.open(path, os.O_WRONLY | (os.O_TMPFILE if folder else os.O_NONBLOCK | os.O_NOCTTY)))
    except OSError:
        return False
    return True

options = {line.split()[4]: line.split()[5].split(",") for line in open("/proc/self/mountinfo")}
mounts = list(options)
places = {*json.loads(read_job(int(sys.argv[1]))), *mounts, *below("/proc", 8), *below("/sys", 4), *below("/dev", 3)}
own = os.environ["TMPDIR"]
writable = [p for p in places if not (p + "/").startswith(own + "/") and os.access(p, os.W_OK, follow_symlinks=False)]
# Only those that are no settings are tried.
kept = [path for path in writable if path.startswith(("/proc", "/sys")) or opens(path)]
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
read_write = sorted(mount for mount in mounts if "ro" not in options[mount])
send(int(sys.argv[2]), {"writable": sorted(kept), "looked at": len(places), "status": status, "mounts": read_write})
time.sleep(0.3)
"""

REACH = """
import ctypes, json, os, socket, sys
from course_utils.grading.sandbox.child import read_job, send

def attempt(do):
    try:
        return repr(do())
    except OSError as error:
        return type(error).__name__

def connect(kind, name):
    with socket.socket(socket.AF_UNIX, kind) as one:
        one.connect(name)

def call(number, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) for a in arguments))
    return result if result >= 0 else os.strerror(ctypes.get_errno())

path, abstract, key, shmget, add_key = json.loads(read_job(int(sys.argv[1])))
told = {"path": attempt(lambda: connect(socket.SOCK_STREAM, path))}
told["abstract"] = attempt(lambda: connect(socket.SOCK_STREAM, chr(0) + abstract))
told["datagram"] = attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("127.0.0.1", 9)))
told["virtual machine's host"] = attempt(lambda: socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM))
told["made"], told["found"] = call(shmget, key + 1, 4096, 0o1666), call(shmget, key, 0, 0)
kind, name = ctypes.create_string_buffer(b"user"), ctypes.create_string_buffer(b"attention")
told["key"] = call(add_key, ctypes.addressof(kind), ctypes.addressof(name), ctypes.addressof(name), 9, -4)
pair = socket.socketpair()
told["pair"] = attempt(lambda: pair[0].send(b"x"))
told["namespaces"] = {name: os.readlink("/proc/self/ns/" + name) for name in ("ipc", "net")}
send(int(sys.argv[2]), told)
"""

GRADER = f"""
import json, os, sys, types
emulator = sys.modules["course_utils.emulator"] = types.ModuleType("course_utils.emulator")
emulator.__path__ = [{str(REPO / "course_utils" / "emulator")!r}]  # without its modules, which load PyTorch
sys.path.insert(0, {str(REPO)!r})
from course_utils.grading.sandbox import parent
from course_utils.grading.sandbox.child import descendants
parent._shared_builds = lambda: []
users, look = set(), parent._Watch._look

def look_at_users(watch):
    for process in descendants(watch._process.pid):
        try:
            if sys.argv[1] in open(f"/proc/{{process}}/cmdline").read():
                users.update(open(f"/proc/{{process}}/status").read().split("Uid:")[1].split()[:4])
        except OSError:
            pass
    return look(watch)

parent._Watch._look = look_at_users
ended = parent.run_child(sys.stdin.buffer.read(), module=sys.argv[1], isolation=sys.argv[2])
print(json.dumps({{"reason": ended.reason, "stderr": ended.stderr, "users outside": sorted(map(int, users)),
                  **(ended.messages[0].header if ended.messages else {{}})}}))
"""


OTHER_USER = pytest.mark.exhaustive("the same grader behind the other walls: `make test` has each with one of the two")


def pairs(*in_make_test: tuple[str, str]):
    """For a test in either isolation with either user: these pairs, the others in `make test-all` only."""
    both = itertools.product(("bubblewrap", "limits"), ("root", "an ordinary user"))
    return pytest.mark.parametrize(
        "isolation, graders_user",
        [pytest.param(*pair, marks=() if pair in in_make_test else OTHER_USER) for pair in both],
        indirect=True,
    )


@pytest.fixture
def graders_user(request) -> int | None:
    """The user whom the grader is started as; None: as the tests."""
    if request.param == "root":
        if os.geteuid() != 0:
            pytest.skip("the tests do not run as root")
        return None
    return ORDINARY if os.geteuid() == 0 else None


@pytest.fixture
def isolation(request) -> str:
    if request.param == "bubblewrap" and not isolation_available()[0]:
        pytest.skip(f"bubblewrap does not run here: {isolation_available()[1]}")
    return request.param


@pytest.fixture
def told(isolation, graders_user, tmp_path) -> dict:
    """What a child says of itself and of what it can write."""
    outside = [str(path) for pattern in ("*", "*/*") for path in Path("/").glob(pattern)]
    outside += map(str, (REPO, REPO / "course_utils" / "checks.py", sys.prefix, Path.home(), tmp_path))
    links = "/dev/std", "/dev/fd"  # to the child's own files
    job = json.dumps([path for path in outside if not path.startswith(("/proc/", "/sys/", *links))])
    return said_by(CHILD, job, isolation, graders_user, tmp_path)


def said_by(code: str, job: str, isolation: str, graders_user: int | None, tmp_path: Path) -> dict:
    """What the child of a grader of this user sends, when it runs this code."""
    file = tmp_path / "student.py"
    file.write_text(code)
    home = tmp_path / "home"
    home.mkdir()
    command = [sys.executable, "-B", "-c", GRADER, str(file), isolation]
    if graders_user is not None:
        os.chown(home, graders_user, graders_user)
        reachable = [*map(str, sandbox._read_only_folders()), str(REPO), str(file)]
        command = unprivileged.command_as(graders_user, reachable, command)
        home = Path("/tmp")
    environment = {**os.environ, "HOME": str(home), "TMPDIR": "/tmp"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120, input=job)
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "isolation": isolation}


def test_where_bubblewrap_runs_at_all_the_sandbox_takes_it():
    """Or the tests of that isolation would be skipped, and none would fail."""
    plain = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"]
    if not shutil.which("bwrap") or subprocess.run(plain, capture_output=True, check=False).returncode:
        pytest.skip("bubblewrap is not installed, or may not make namespaces here")
    assert isolation_available() == (True, "")


@pairs(("bubblewrap", "an ordinary user"), ("limits", "root"))
def test_nothing_outside_its_folder_is_writable_in_bubblewrap_and_it_is_nobody(told, graders_user):
    assert told["reason"] == "finished", told["stderr"]
    assert told["looked at"] > 1000
    devices = {*sandbox.DEVICES, "/dev/tty", "/dev/ptmx", "/dev/pts", "/dev/pts/ptmx"}
    if told["isolation"] == "bubblewrap":  # whatever the rights of the files behind a mount are
        assert set(told["writable"]) <= devices
        assert set(told["mounts"]) <= {*devices, sandbox.INSIDE, "/proc"}
    expected = unprivileged.NOBODY if graders_user is None and os.geteuid() == 0 else graders_user or os.geteuid()
    status = {name: words.split() for name, words in told["status"].items()}
    users = told["users outside"] if told["isolation"] == "bubblewrap" else sorted(set(map(int, status["Uid"])))
    assert users == [expected] and expected != 0
    assert not int(status["CapPrm"][0], 16) and not int(status["CapEff"][0], 16) and status["NoNewPrivs"] == ["1"]
    if os.geteuid() == 0:
        assert status["Groups"] == []


@pairs(("bubblewrap", "root"), ("limits", "an ordinary user"))
def test_no_socket_and_no_shared_memory_of_others_is_reachable(isolation, graders_user, tmp_path):
    """The socket that has a file's name is open to everybody."""
    if not seccomp.known():
        pytest.skip("no list of system calls for this processor")
    libc = ctypes.CDLL(None, use_errno=True)
    key = 0x41740000 | os.getpid() & 0xFFF0
    segment = libc.shmget(key, 4096, 0o1666)
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    try:
        with contextlib.ExitStack() as stack:
            names = str(folder / "socket"), f"\0grading-{os.getpid()}"
            for name in names:
                server = stack.enter_context(socket.socket(socket.AF_UNIX))
                server.bind(name)
                server.listen()
            os.chmod(names[0], 0o777)
            numbers = seccomp._REFUSED[os.uname().machine][1]
            job = [names[0], names[1][1:], key, numbers["shmget"], numbers["add_key"]]
            said = said_by(REACH, json.dumps(job), isolation, graders_user, tmp_path)
    finally:
        shutil.rmtree(folder)
        libc.shmctl(segment, 0, None)
    assert said["reason"] == "finished", said["stderr"]
    for what in ("path", "abstract", "datagram", "virtual machine's host"):
        assert said[what] == "PermissionError", what
    for what in ("made", "found", "key"):
        assert said[what] == os.strerror(errno.EPERM), what
    assert said["pair"] == "1"
    if isolation == "bubblewrap":
        for name, inside in said["namespaces"].items():
            assert inside != os.readlink(f"/proc/self/ns/{name}")


def test_the_numbers_of_the_system_calls_are_the_kernels():
    """As far as the kernel's headers lie here."""
    headers = {
        "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
        "aarch64": ("/usr/include/asm-generic/unistd.h",),
    }
    looked_at = 0
    for processor, places in headers.items():
        for text in (Path(place).read_text() for place in places if os.path.exists(place)):
            there_are = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", text)}
            for name, number in seccomp._REFUSED[processor][1].items():
                assert there_are.get(name, number) == number, (processor, name)
                looked_at += name in there_are
    if not looked_at:
        pytest.skip("the kernel's headers are not installed")


# ---- becoming another user


@pytest.mark.parametrize(
    ("uid_map", "user"),
    [
        ("0 0 4294967295\n", unprivileged.NOBODY),
        ("0 1000 1\n1 100000 65536\n", unprivileged.NOBODY),
        ("0 1000 1\n", None),  # root of a container, an ordinary user outside, and the only one there is
    ],
)
def test_who_root_becomes(monkeypatch, uid_map, user):
    monkeypatch.setattr(unprivileged.os, "geteuid", lambda: 0)
    monkeypatch.setattr(unprivileged.Path, "read_text", lambda self: uid_map)
    assert unprivileged.child_user() == user


def test_root_that_can_be_nobody_else_is_told(monkeypatch):
    monkeypatch.setattr(unprivileged.os, "geteuid", lambda: 0)
    monkeypatch.setattr(unprivileged.Path, "read_text", lambda self: "0 0 1\n")
    with pytest.raises(RuntimeError, match="grade as an ordinary user"):
        unprivileged.child_user()


def test_an_ordinary_user_stays_who_he_is(monkeypatch):
    monkeypatch.setattr(unprivileged.os, "geteuid", lambda: 1000)
    assert unprivileged.child_user() is None


def test_a_file_that_others_may_not_read_is_named(tmp_path):
    (tmp_path / "kernels").mkdir(mode=0o700)
    with pytest.raises(RuntimeError, match=r"may not read .*kernels: `chmod -R go\+rX .*kernels`"):
        unprivileged.command_as(unprivileged.NOBODY, [str(tmp_path / "kernels")], ["true"])


def test_of_a_closed_folder_only_what_is_needed_is_shown(tmp_path):
    closed, inside = tmp_path / "closed", tmp_path / "closed" / "closed too"
    (inside / "python" / "lib").mkdir(parents=True)
    (tmp_path / "open").mkdir()
    closed.chmod(0o700)
    inside.chmod(0o700)
    tmp_path.chmod(0o755)
    paths = [inside / "python" / "lib", inside / "python", tmp_path / "open"]
    above = [path for path in tmp_path.parents if not path.stat().st_mode & 1]
    topmost = str(above[-1] if above else closed)
    shown = unprivileged._shown(list(map(str, paths)))
    assert str(inside / "python") in shown[topmost] and str(inside / "python" / "lib") not in shown[topmost]
    assert not above or str(tmp_path / "open") in shown[topmost]


def test_each_row_of_the_page_about_the_sandbox_names_a_test_that_there_is():
    page = (REPO / "docs" / "sandbox.md").read_text(encoding="utf-8")
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    rows = [line.split("|")[-2] for line in page.splitlines() if line.startswith("| ") and "---" not in line][1:]
    assert len(rows) >= 15
    for row in rows:
        names = re.findall(r"`(test_\w+)`", row)
        assert names or row.strip() == "the same", row
        assert all(f"def {name}(" in tests for name in names), row
