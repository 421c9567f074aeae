"""The sandbox ends whatever runs in it, keeps what it says, and lets it touch nothing."""

import hashlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from course_utils.grading.sandbox import parent as sandbox
from course_utils.grading.sandbox.child import END, FRAME, Later, descendants
from course_utils.grading.sandbox.parent import Limits, Message, isolation_available, run_child
from course_utils.toolchain.cache import cache_folder
from tests.helpers.processes import processes_with, wait_for

REPO = Path(__file__).resolve().parents[2]
HEAD = """
import contextlib, ctypes, json, os, signal, subprocess, sys, time
from course_utils.grading.sandbox.child import read_job, send
JOB, RESULTS = map(int, sys.argv[1:])

def tell(**what):
    send(RESULTS, what)

def attempt(do):
    try:
        return repr(do())
    except OSError as error:
        return type(error).__name__
"""

# For a process that only starts a child: the emulator's package without its modules, which load PyTorch for seconds.
WITHOUT_TORCH = f"""
import sys, types
emulator = sys.modules["course_utils.emulator"] = types.ModuleType("course_utils.emulator")
emulator.__path__ = [{str(REPO / "course_utils" / "emulator")!r}]
"""


WALLS = "bubblewrap", "limits"
IN_NAMESPACES = pytest.mark.parametrize("isolation", ["bubblewrap"], indirect=True)
OTHER_WALLS = pytest.mark.exhaustive("the same behind the other walls, which `make test` has with a test of the kind")


def behind(walls: str):
    """For a test of what both isolations do in one way: the other one in `make test-all` only."""
    both = [pytest.param(one, marks=() if one == walls else OTHER_WALLS) for one in WALLS]
    return pytest.mark.parametrize("isolation", both, indirect=True)


def in_turn(names: str, cases: list[tuple]):
    """For a test with cases: one isolation and the other in turn, and in `make test-all` each case in both."""
    both = [
        pytest.param(walls, *case, marks=() if WALLS[n % 2] == walls else OTHER_WALLS)
        for n, case in enumerate(cases)
        for walls in WALLS
    ]
    return pytest.mark.parametrize(f"isolation, {names}", both, indirect=["isolation"])


@pytest.fixture(params=WALLS)
def isolation(request) -> str:
    if request.param == "bubblewrap" and not isolation_available()[0]:
        pytest.skip(f"bubblewrap does not run here: {isolation_available()[1]}")
    return request.param


@pytest.fixture
def child(tmp_path, isolation):
    """Runs this code in a child; afterwards no process of it may be left."""

    def run(code: str, job: bytes = b"", **limits: float) -> sandbox.Ended:
        file = tmp_path / "student.py"
        file.write_text(HEAD + textwrap.dedent(code))
        return run_child(job, module=str(file), isolation=isolation, limits=Limits(**{"seconds": 20, **limits}))

    yield run
    if isolation == "limits":  # what was being forked when its group was ended takes a moment
        wait_for(lambda: not processes_with(str(tmp_path)), seconds=5)
    assert processes_with(str(tmp_path)) == []


# ---- what goes in and comes back


def test_a_job_goes_in_and_its_results_come_back(child):
    job = os.urandom(3 << 20)
    ended = child(
        """
        job = read_job(JOB)
        send(RESULTS, {"bytes": len(job)}, job[::-1])
        send(RESULTS, {"text": "∑"})
        print("said"); print("warned", file=sys.stderr)
        tell(fails=attempt(lambda: os.pwrite(JOB, b"x", 0)))
        """,
        job,
    )
    assert (ended.reason, ended.status, ended.detail) == ("finished", 0, "")
    assert ended.messages[:2] == [Message({"bytes": len(job)}, job[::-1]), Message({"text": "∑"})]
    assert ended.messages[2].header["fails"] == "PermissionError"
    assert (ended.stdout, ended.stderr) == ("said\n", "warned\n")


@behind("bubblewrap")
def test_the_runner_is_found_by_its_name(isolation):
    ended = run_child(b"", module="course_utils.toolchain.errors", isolation=isolation)
    assert (ended.reason, ended.messages) == ("finished", [])


@behind("bubblewrap")
def test_several_children_at_once(child, tmp_path, isolation):
    file = tmp_path / "echo.py"
    file.write_text(HEAD + "send(RESULTS, {}, read_job(JOB))")
    jobs = [str(i).encode() for i in range(6)]
    with ThreadPoolExecutor(3) as pool:
        ended = list(pool.map(lambda job: run_child(job, module=str(file), isolation=isolation), jobs))
    assert [one.messages[0].blob for one in ended] == jobs


ANOTHER_FRAME = pytest.mark.exhaustive(
    "`make test` has, for each thing that is said of results, one that it is said of"
)


@pytest.mark.parametrize(
    ("frames", "detail"),
    [
        (b"no frame of ours at all", "more results than it may"),
        pytest.param(FRAME.pack(2 << 20, 0), "more results than it may", marks=ANOTHER_FRAME),
        pytest.param(FRAME.pack(2, 1 << 40) + b"{}", "more results than it may", marks=ANOTHER_FRAME),
        pytest.param(FRAME.pack(4, 0) + b"[12]", "cannot be read", marks=ANOTHER_FRAME),
        pytest.param(FRAME.pack(4, 0) + b"\xff\xfe{}", "cannot be read", marks=ANOTHER_FRAME),
        (FRAME.pack(100_000, 0) + b"[" * 100_000, "cannot be read"),
        (FRAME.pack(9, 8) + b'{"a": 12}1234', "before it was done"),
        (FRAME.pack(2, len(END)) + b"{}" + END, "before it was done"),  # a forged end, then a bad exit
    ],
)
def test_malformed_results(tmp_path, frames, detail):
    file = tmp_path / "student.py"
    write = f"os.write(RESULTS, {frames!r})" if len(frames) < 1000 else "os.write(RESULTS, FRAME)"
    define = "" if len(frames) < 1000 else f"FRAME = {frames[:12]!r} + b'[' * 100_000\n"
    file.write_text(f"{HEAD}{define}tell(first=1)\n{write}\nos._exit(4)")
    ended = run_child(b"", module=str(file))
    assert (ended.reason, ended.messages) == ("died", [Message({"first": 1})])
    assert detail in ended.detail


def test_results_may_come_in_any_pieces():
    parser = sandbox._Parser()
    stream = FRAME.pack(8, 3) + b'{"a": 1}' + b"xyz" + FRAME.pack(2, 0) + b"{}" + FRAME.pack(2, len(END)) + b"{}" + END
    for at in range(len(stream)):
        assert not parser.finished
        parser.feed(stream[at : at + 1])
    assert parser.messages == [Message({"a": 1}, b"xyz"), Message({})]
    assert parser.finished


def test_there_is_a_limit_to_the_number_and_size_of_results(monkeypatch):
    monkeypatch.setattr(sandbox, "MOST_RESULTS", 3)
    frame = FRAME.pack(2, 0) + b"{}"
    with pytest.raises(sandbox._Malformed):
        sandbox._Parser().feed(4 * frame)
    monkeypatch.setattr(sandbox, "LARGEST_RESULTS", 2 * len(frame))
    with pytest.raises(sandbox._Malformed):
        sandbox._Parser().feed(3 * frame)


@behind("limits")
def test_a_child_asks_for_more_and_is_watched_meanwhile(child, isolation, tmp_path):
    file = tmp_path / "asks.py"
    file.write_text(
        HEAD.replace("map(int, sys.argv[1:])", "map(int, sys.argv[1:3])")
        + "from course_utils.grading.sandbox.child import ask\n"
        "tell(first=1)\nsend(RESULTS, {}, ask(RESULTS, *map(int, sys.argv[3:])) or b'nothing')"
    )
    large = os.urandom(1 << 20)
    for more in (large, None):
        asked = []

        def give(messages, asked=asked, more=more):
            asked.append(messages)
            return more

        ended = run_child(b"", module=str(file), isolation=isolation, more=give)
        assert ended.messages[-1] == Message({}, more or b"nothing") and ended.reason == "finished"
        assert [message.header for message in asked[0]] == [{"first": 1}, {"kind": "more"}] and len(asked) == 1
    words = "ask(RESULTS, *map(int, sys.argv[3:]))"
    file.write_text(file.read_text().replace(f"send(RESULTS, {{}}, {words}", f"os.fork()\nos.fork()\n{words}#"))

    def slow(messages):
        deadline = time.monotonic() + 30
        while processes_with(str(file)) and time.monotonic() < deadline:
            time.sleep(0.02)
        left.extend(processes_with(str(file)))

    left: list[int] = []
    ended = run_child(b"", module=str(file), isolation=isolation, limits=Limits(processes=3), more=slow)
    assert left == [], "it is ended at once, not when the parent has time again"
    assert (ended.reason, ended.detail) == ("process limit", "it started more than 3 processes")
    with pytest.raises(ZeroDivisionError):
        run_child(b"", module=str(file), isolation=isolation, more=lambda _: 1 / 0)


@behind("limits")
def test_a_cell_may_make_a_generator(child):
    """What it needs of PyTorch is loaded where a cell can reach it: a library that it imports may make one, too. What
    only compilers need is not."""
    ended = child(
        """
        from course_utils.grading import job, runner
        for cell in ("import torch as t; getattr(t, 'Gener' + 'ator')()", "torch.Generator()"):
            _, errors = runner._run_cells(job.Job(exercise="", cells=(("pattern", cell),), questions=()))
            tell(errors=errors, left_out=type(sys.modules["torch._meta_registrations"]).__name__)
        """
    )
    assert [message.header for message in ended.messages] == 2 * [{"errors": {}, "left_out": "Later"}], ended.stderr


@pytest.mark.parametrize("use", [lambda: sys.modules["colorsys"].rgb_to_hsv, lambda: import_module("wave")])
def test_a_module_that_is_left_out_is_loaded_where_it_is_asked_for_and_for_those_that_need_it(monkeypatch, use):
    for name in ("colorsys", "wave"):  # as others would find them
        import_module(name)
        monkeypatch.delitem(sys.modules, name)
    Later("colorsys", ["wave"])
    assert type(sys.modules["colorsys"]) is Later
    use()
    assert type(sys.modules["colorsys"]) is ModuleType
    assert not [one for one in sys.meta_path if type(one).__module__ == Later.__module__]


@pytest.mark.exhaustive("six seconds of PyTorch's imports: the two tests above leave them out, and load a small module")
@behind("limits")
def test_what_pytorch_needs_for_compilers_only_is_loaded_where_it_is_used(child):
    """A quarter of a child's start. A cell may do with PyTorch what it may do elsewhere."""
    name = "torch._meta_registrations"
    ended = child(
        f"""
        import torch
        from course_utils.grading import job, runner
        cell = "drawn = torch.randn(2, generator=torch.Generator()).requires_grad_(); drawn.sum().backward()"
        names, errors = runner._run_cells(job.Job(exercise="", cells=(("answers", cell),), questions=()))
        tell(drawn=names["drawn"].grad.tolist(), errors=errors, left_out=type(sys.modules[{name!r}]).__name__)
        tell(meta=list((torch.empty(3, 4, device="meta") @ torch.empty(4, 5, device="meta")).shape))
        compiled = torch.compile(lambda x: torch.softmax(x @ x.T, -1) + 1, backend="eager")
        tell(compiled=round(compiled(torch.ones(3, 3)).sum().item()), loaded=type(sys.modules[{name!r}]).__name__)
        """,
        seconds=120,
    )
    told = {key: value for message in ended.messages for key, value in message.header.items()}
    expected = {"drawn": [1, 1], "errors": {}, "left_out": "Later", "meta": [3, 5], "compiled": 12, "loaded": "module"}
    assert told == expected, ended.stderr


# ---- how it may end


@in_turn(
    "code, status, detail",
    [
        ("os._exit(3)", 3, "before it was done (exit status 3)"),
        ("os._exit(0)", 0, "before it was done (exit status 0)"),
        ("sys.exit()", 0, "before it was done"),
        ("raise ValueError('no')", 1, "before it was done (exit status 1)"),
        ("ctypes.string_at(0)", 128 + signal.SIGSEGV, "it crashed (SIGSEGV)"),
        ("os.abort()", 128 + signal.SIGABRT, "it crashed (SIGABRT)"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL, "it crashed (SIGKILL)"),
    ],
)
def test_deaths(child, code, status, detail):
    ended = child(f"tell(first=1)\n{code}\ntell(second=2)")
    assert (ended.reason, ended.status, ended.messages) == ("died", status, [Message({"first": 1})])
    assert detail in ended.detail


@behind("bubblewrap")
def test_time_limit(child):
    started = time.monotonic()
    ended = child("tell(first=1)\nwhile True: pass", seconds=2)  # to begin takes a tenth, and longer on a busy machine
    assert time.monotonic() - started < 10
    assert (ended.reason, ended.detail) == ("time limit", "it did not end within 2 s")
    assert ended.messages == [Message({"first": 1})]


@behind("limits")
def test_one_process_cannot_have_more_memory_than_the_limit(child):
    ended = child("tell(first=1)\nx = bytearray(10 << 30)\ntell(got=len(x))", memory=300 << 20)
    assert (ended.reason, ended.messages) == ("died", [Message({"first": 1})])
    assert "MemoryError" in ended.stderr


IN_SEVERAL = "for i in range(6): os.fork() or (bytearray(os.urandom(1 << 20) * 40), time.sleep(60))\ntime.sleep(60)"
SHARED = "import mmap\nm = mmap.mmap(-1, 300 << 20)\nwhile m.write(bytes([1]) * (1 << 20)): pass"


@in_turn("what", [("in several processes",), ("shared",)])
def test_memory_limit(child, what):
    ended = child(SHARED if what == "shared" else IN_SEVERAL, memory=150 << 20)
    assert (ended.reason, ended.detail) == ("memory limit", "it took more than 150 MiB of memory")


@behind("bubblewrap")
def test_process_limit(child):
    ended = child("for i in range(40): os.fork() or time.sleep(60)\ntime.sleep(60)", processes=12)
    assert (ended.reason, ended.detail) == ("process limit", "it started more than 12 processes")


FORK_BOMB = "with contextlib.suppress(OSError):\n    while True: os.fork()\nwhile True: time.sleep(1)"


@behind("limits")
def test_a_fork_bomb_ends(child):
    assert child(FORK_BOMB, processes=12).reason == "process limit"


@pytest.mark.exhaustive("hundreds of processes, with the limits of a real grading: test_a_fork_bomb_ends has a dozen")
def test_a_fork_bomb_ends_at_the_usual_limits(child):
    assert child(FORK_BOMB).reason == "process limit"


def test_the_usual_limits_are_set():
    """A limit left out would let a submission take the machine down."""
    usual = Limits()
    assert 0 < usual.seconds <= 600 and 0 < usual.processes <= 1024
    assert 0 < usual.memory <= 16 << 30 and 0 < usual.output_bytes <= 64 << 20 and 0 < usual.file_bytes <= 1 << 30


@behind("limits")
def test_output_limit_and_the_tail_of_the_output(child):
    ended = child("while True: print('x' * 1000, file=sys.stderr)", output_bytes=1 << 20)
    assert (ended.reason, ended.detail) == ("output limit", "it printed more than 1 MiB")
    assert len(ended.stderr) <= 16 << 10
    ended = child("print('a' * 100_000 + 'the end')")
    assert ended.reason == "finished"
    assert ended.stdout.endswith("athe end\n") and len(ended.stdout) == 16 << 10


@in_turn("handler", [("SIG_IGN",), ("SIG_DFL",)])  # as in Python, and as in native code
def test_one_file_cannot_be_larger_than_the_limit(child, handler):
    ended = child(
        f"""
        signal.signal(signal.SIGXFSZ, signal.{handler})
        def fill():
            with open(os.path.join(os.environ["TMPDIR"], "large"), "wb", buffering=0) as file:
                for _ in range(8): file.write(bytes(1 << 20))
        tell(got=attempt(fill))
        """,
        file_bytes=2 << 20,
    )
    if handler == "SIG_IGN":
        assert ended.messages == [Message({"got": "OSError"})]
    else:
        assert (ended.reason, ended.detail) == ("file limit", "it wrote more than 2 MiB to a file")


@IN_NAMESPACES
def test_all_files_together_cannot_be_larger_than_the_limit(child, isolation):
    ended = child(
        """
        def fill():
            for i in range(8):
                with open(os.path.join(os.environ["TMPDIR"], str(i)), "wb") as file:
                    file.write(os.urandom(1 << 20))
        tell(got=attempt(fill))
        """,
        file_bytes=4 << 20,
    )
    assert (ended.reason, ended.messages) == ("finished", [Message({"got": "OSError"})])  # the file system is full


# ---- what it leaves


@IN_NAMESPACES
def test_processes_that_get_away_are_ended(child, tmp_path, isolation):
    ended = child(
        f"""
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                for file in (1, 2, RESULTS): os.close(file)
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                words = ["python", "-c", "import time; time.sleep(100)", {str(tmp_path)!r}]
                os.execv(sys.executable, words)
            os._exit(0)
        os.wait()
        tell(first=1)
        """
    )
    assert (ended.reason, ended.messages) == ("finished", [Message({"first": 1})])


@pytest.mark.parametrize("isolation", ["limits"], indirect=True)
def test_without_namespaces_the_process_group_is_ended_and_what_left_it_with_a_parent(child, isolation):
    ended = child("os.fork()\nos.fork() or os.setsid()\ntime.sleep(100)", seconds=1)
    assert ended.reason == "time limit"


def test_an_interrupt_ends_the_child(child, monkeypatch):
    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(sandbox._Watch, "_look", interrupt)
    with pytest.raises(KeyboardInterrupt):
        child("os.fork()\ntime.sleep(100)")


def test_a_namespace_ends_though_bubblewrap_was_ended_before_it_was_ready():
    """Its first process then waits for a word of bubblewrap, and the kernel does not tell it yet."""
    told, telling = os.pipe()
    words = f"sleep 100 & echo '\"child-pid\": '$! >&{telling}; wait"
    process = subprocess.Popen(["bash", "-c", words], pass_fds=[telling])
    os.close(telling)
    first = int(os.read(told, 4096).split()[1])
    assert sandbox._state(first) not in "ZX"
    again, telling = os.pipe()
    os.write(telling, f'"child-pid": {first}'.encode())
    sandbox._end_namespace(process, again)
    assert sandbox._state(first) in "ZX"
    for file in (told, telling, again):
        os.close(file)


def test_a_namespace_ends_though_bubblewrap_has_not_said_which_its_first_process_is():
    told, telling = os.pipe()
    process = subprocess.Popen(["bash", "-c", "sleep 100 & wait"], pass_fds=[telling])
    os.close(telling)
    assert wait_for(lambda: descendants(process.pid))
    (first,) = descendants(process.pid)
    sandbox._end_namespace(process, told)
    assert sandbox._state(first) in "ZX"
    os.close(told)


def test_the_child_ends_with_a_killed_grader(tmp_path, isolation):
    """In a namespace, with all that it has started."""
    file, ready = tmp_path / "student.py", tmp_path / "ready"
    fork = "os.fork()" if isolation == "bubblewrap" else ""
    file.write_text(f"{HEAD}{fork}\nprint('ready', flush=True)\ntime.sleep(100)")
    grader = (
        f"{WITHOUT_TORCH}from course_utils.grading.sandbox import parent as sandbox\n"
        "sandbox._shared_builds = lambda: []\n"
        "take = sandbox._Watch._read\n"
        f"def read(*a):\n    open({str(ready)!r}, 'w').close()\n    return take(*a)\n"
        "sandbox._Watch._read = read\n"
        f"sandbox.run_child(b'', module={str(file)!r}, isolation={isolation!r})"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}  # nobody is left to remove the child's folder
    process = subprocess.Popen([sys.executable, "-c", grader], cwd=REPO, env=environment)
    assert wait_for(ready.exists)
    assert len(processes_with(str(file))) > 1  # the grader is one
    process.kill()
    process.wait()
    assert wait_for(lambda: not processes_with(str(file)))


@in_turn("how", [("Python",), ("rm",)])
def test_its_folder_is_removed_whatever_is_in_it(child, monkeypatch, how):
    def too_deep(*arguments, **options):
        raise RecursionError

    if how == "rm":  # as after a thousand folders in folders, which takes seconds
        monkeypatch.setattr(sandbox.shutil, "rmtree", too_deep)
    ended = child(
        """
        tell(folder=os.environ["TMPDIR"])
        os.chdir(os.environ["TMPDIR"])
        os.makedirs("closed/inside")
        os.symlink("/", "link")
        os.chmod("closed", 0)
        """
    )
    assert ended.reason == "finished"
    folder = ended.messages[0].header["folder"]
    assert folder == "/tmp" or not os.path.exists(folder)


# ---- what it can reach


def test_the_environment_is_small(child, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "x")
    ended = child("tell(names=sorted(os.environ), home=os.environ['HOME'], inside=os.environ['TMPDIR'])")
    header = ended.messages[0].header
    assert not any("SECRET" in name for name in header["names"])
    assert len(header["names"]) < 20
    assert header["home"] == header["inside"] != str(Path.home())


def test_what_all_kernels_share_is_handed_over_but_not_the_cache(child):
    builds = sandbox._shared_builds()
    before = [hashlib.sha256(file.read_bytes()).hexdigest() for file in builds]
    names = [str(file.relative_to(cache_folder())) for file in builds]
    ended = child(
        f"""
        folder = os.path.join(os.environ["XDG_CACHE_HOME"], "attention-kernels")
        there = [os.path.join(place, file) for place, _, files in os.walk(folder) for file in files]
        tell(there=[os.path.relpath(file, folder) for file in there])
        for file in there:
            attempt(lambda: open(file, "wb").write(b"poison"))
        tell(new=[attempt(lambda: open(os.path.join(folder, name) + "2", "w").write("x")) for name in {names}])
        """
    )
    assert sorted(ended.messages[0].header["there"]) == sorted(names)
    assert ended.messages[1].header["new"][0] == "1"
    assert [hashlib.sha256(file.read_bytes()).hexdigest() for file in builds] == before
    assert not any(file.with_name(file.name + "2").exists() for file in builds)


@IN_NAMESPACES
def test_the_hosts_files_cannot_be_read(child, isolation, tmp_path):
    (tmp_path / "marker").write_text("secret")
    hidden = [tmp_path / "marker", REPO / "README.md", REPO / "pyproject.toml", REPO / "solutions", REPO / "tests"]
    hidden += map(Path, ("/etc/passwd", "/etc/shadow", "/var/log", "/proc/1/root/home", f"/proc/{os.getpid()}/environ"))
    code = f"tell(**{{name: attempt(lambda: os.open(name, os.O_RDONLY)) for name in {list(map(str, hidden))!r}}})"
    told = child(code).messages[0].header
    assert set(told.values()) <= {"FileNotFoundError", "PermissionError"}, told


@IN_NAMESPACES
def test_the_hosts_files_cannot_be_written(child, isolation):
    """Places of ours; the machine's own are asked for in test_sandbox_walls.py, where nothing is written."""
    places = [REPO, REPO / "course_utils", REPO / "kernels", sys.prefix, Path.home(), "/var/tmp", "/dev/shm"]
    code = f"""
        def write(place):
            with open(os.path.join(place, "planted"), "w") as file: file.write("x")
        def change():
            with open({str(REPO / "course_utils" / "checks.py")!r}, "a") as file: file.write("x")
        tell(**{{place: attempt(lambda: write(place)) for place in {list(map(str, places))!r}}})
        tell(change=attempt(change), remove=attempt(lambda: os.remove({str(REPO / "course_utils" / "checks.py")!r})))
    """
    ended = child(code)
    assert len(ended.messages) == 2
    # Of a clone in /tmp the child sees what it needs, in a /tmp of its own, where it may write.
    own = {str(place) for place in places if Path(place).is_relative_to(sandbox.INSIDE)}
    for message in ended.messages:
        ends = {end for place, end in message.header.items() if place not in own}
        assert ends <= {"OSError", "PermissionError", "FileNotFoundError"}, message
    assert not any((Path(place) / "planted").exists() for place in places)


@IN_NAMESPACES
def test_there_is_no_network_and_nobody_else(child, isolation):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"""
            import socket
            tell(connect=attempt(lambda: socket.create_connection(("127.0.0.1", {port}), 1)))
            tell(kill=attempt(lambda: os.kill({os.getpid()}, 0)))
            tell(memory=attempt(lambda: open("/proc/{os.getpid()}/mem")))
            libc = ctypes.CDLL(None, use_errno=True)
            tell(mount=libc.mount(b"none", os.environ["TMPDIR"].encode(), b"tmpfs", 0, None))
            tell(interfaces=[line.split(":")[0].strip() for line in open("/proc/self/net/dev")][2:])
            tell(namespace=libc.unshare(0x10000000))
            tell(processes=[int(name) for name in os.listdir("/proc") if name.isdigit()], me=os.getpid())
        """
        told = {}
        for message in child(code).messages:
            told |= message.header
    assert told["connect"] in ("ConnectionRefusedError", "PermissionError")
    assert told["kill"] in ("ProcessLookupError", "PermissionError")
    assert told["memory"] in ("FileNotFoundError", "PermissionError")
    assert told["mount"] == -1
    assert (told["interfaces"], told["namespace"]) == (["lo"], -1)
    assert len(told["processes"]) <= 2


# ---- asking for it


def test_right_answers_in_an_installed_package_are_out_of_reach(monkeypatch, tmp_path):
    package = tmp_path / "site-packages" / "course_utils"
    solutions = package / "_course" / "solutions"
    solutions.mkdir(parents=True)
    (package / "cuda.py").touch()
    monkeypatch.setattr(sandbox, "PACKAGE", package)
    monkeypatch.setattr(sandbox, "SOURCE", solutions.parent)
    command = sandbox._bubblewrap(1 << 20, False, ())
    assert command[command.index(str(solutions)) - 1] == "--tmpfs" and str(package) in command
    readable = [Path(path) for path in sandbox._readable()]
    assert package / "cuda.py" in readable
    assert not [path for path in readable if solutions.is_relative_to(path)]


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"isolation takes .* got 'docker'"):
        run_child(b"", isolation="docker")


def test_without_bubblewrap(monkeypatch, tmp_path):
    isolation_available.cache_clear()
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
    try:
        runs, why_not = isolation_available()
        assert not runs and "apt install bubblewrap" in why_not
        with pytest.raises(RuntimeError, match="there is no program bwrap"):
            run_child(b"", isolation="bubblewrap")
        file = tmp_path / "student.py"
        file.write_text(HEAD + "tell(folder=os.getcwd())")
        assert run_child(b"", module=str(file)).messages[0].header["folder"] != "/tmp"
    finally:
        monkeypatch.undo()
        isolation_available.cache_clear()


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("bwrap: Unknown option --disable-userns", "too old"),
        ("bwrap: No permissions to create new namespace", "user namespaces"),
    ],
)
def test_why_bubblewrap_does_not_run(monkeypatch, tmp_path, said, words):
    program = tmp_path / "bwrap"
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    isolation_available.cache_clear()
    try:
        assert not isolation_available()[0]
        assert words in isolation_available()[1]
    finally:
        isolation_available.cache_clear()


def test_python_may_be_called_by_a_way_round(tmp_path):
    """As a teacher does, in the class folder: ../.venv/bin/python."""
    way = Path(sys.executable).parent / ".." / "bin" / Path(sys.executable).name
    words = "from course_utils.grading.sandbox.parent import isolation_available\nprint(isolation_available()[0])"
    said = subprocess.run(
        [way, "-c", WITHOUT_TORCH + words], capture_output=True, text=True, check=True, cwd=tmp_path
    ).stdout
    assert said.strip() == str(isolation_available()[0])
