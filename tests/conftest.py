"""What every test may ask for: the devices of this machine, its compilers, and a browser."""

import functools
import gc
import importlib.util
import os
import random
import shutil
import signal

import pytest
from _pytest.runner import runtestprotocol

from course_utils.doctor import find_chromium
from tests.helpers import browsing, screenshots

# PyTorch takes seconds to import: the processes that only hand out tests, or drive a browser, do without.

gc.disable()  # until all tests are collected: what is imported for them stays, and to look costs an eighth of the time

COMPILERS = [
    *[name for name in ("g++", "clang++") if shutil.which(name)],
    *(["zig"] if importlib.util.find_spec("ziglang") else []),
]
DRAWS = random.Random()  # begins anew with each test
CHROMIUM_FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking")


@functools.cache
def why_no_gpu() -> str:
    """Why tests marked `gpu` cannot run here; empty if they can."""
    import torch

    if not torch.cuda.is_available():
        return "no NVIDIA GPU that PyTorch can use"
    return "" if importlib.util.find_spec("cupy") else "CuPy is not installed"


def why_no_browser() -> str:
    """Why tests marked `browser` cannot run here; empty if they can."""
    if importlib.util.find_spec("playwright") is None:
        return "Playwright is not installed"
    return "" if find_chromium() else "no Chromium on this machine (apt-get install chromium-headless-shell)"


def pytest_addoption(parser):
    parser.addoption("--exhaustive", action="store_true", help="also run what is marked exhaustive: make test-all")
    running = "a JupyterLab that runs already, and its folder, for the tests in tests/browser (tests/container)"
    parser.addoption("--lab", nargs=2, metavar=("ADDRESS", "FOLDER"), help=running)


def pytest_configure(config):
    screenshots.wanted = config.getoption("--exhaustive")


def is_exhaustive(marks, where):
    """Whether one of the marks leaves a test to `make test-all`; each of those must say why."""
    found = [mark for mark in marks if mark.name == "exhaustive"]
    for mark in found[:1]:
        if len(mark.args) != 1 or not isinstance(mark.args[0], str) or not mark.args[0].strip():
            raise pytest.UsageError(f"{where}: exhaustive takes one reason, in words")
    return bool(found)


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc):
    """Thousands of tests run in `make test-all` only, or on a GPU. Those of a function that has others are not even
    made, unless somebody asks for a test by its name; one that is skipped says why a function's GPU tests are missing.
    """
    yield
    config, definition, calls = metafunc.config, metafunc.definition, metafunc._calls
    if config.getoption("--exhaustive") or any("::" in place for place in config.args):
        return
    of_all = list(definition.iter_markers())
    calls[:] = [one for one in calls if not is_exhaustive([*one.marks, *of_all], definition.nodeid)] or calls[:1]
    on_gpu = [id(one) for one in calls if any(mark.name == "gpu" for mark in (*one.marks, *of_all))]
    if len(on_gpu) > 1 and why_no_gpu():
        calls[:] = [one for one in calls if id(one) not in on_gpu[1:]]


def pytest_collection_modifyitems(config, items):
    """Leaves what is exhaustive to `make test-all`."""
    left_out = {item for item in items if is_exhaustive(item.iter_markers(), item.nodeid)}
    if left_out and not config.getoption("--exhaustive"):
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish():
    """What collecting has made stays to the end: the collector of garbage need not walk through it again and again,
    nor, since memory is no concern here, come as often as in a program that runs for days."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """CI promises every package: there, a file whose packages are missing must not pass as a skip."""
    report = yield
    if report.skipped and os.environ.get("CI") == "true":
        report.outcome, report.longrepr = "failed", f"{collector.nodeid}: {report.longrepr[2]}"
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    """A worker tells of a test that passed in one message, not in five: they took more time than most of the tests."""
    config = item.config
    if not hasattr(config, "workerinput") or config.getoption("durations") is not None:
        return None
    for report in runtestprotocol(item, nextitem=nextitem, log=False):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


def pytest_runtest_setup(item):
    DRAWS.seed(0)
    if item.get_closest_marker("gpu") and (reason := why_no_gpu()):
        pytest.skip(reason)
    if item.get_closest_marker("browser") and (reason := why_no_browser()):
        # CI promises a browser: there, a missing one must not pass as a skip.
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    """A test whose page asks another server for something fails: the installed course works without network."""
    try:
        return (yield)
    finally:
        refused, browsing.REFUSED[:] = browsing.REFUSED.copy(), []
        assert not refused, f"asked of other servers: {refused}"


@pytest.fixture(scope="session", autouse=True)
def interrupts_arrive():
    """Tests interrupt themselves and others. A shell starts what is to run in the background with SIGINT ignored, and
    so would be all that it starts."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def nobodys_progress(tmp_path_factory):
    """No test may touch the progress of who runs it, nor draw the questions with their seed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        patch.delenv("ATTENTION_KERNELS_SEED", raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def the_same_inputs_each_time():
    """What `checks` and the grader draw afresh for a user is drawn the same for a test: it passes or fails for good.
    With fresh inputs one run in twenty met a row whose error is 3.2 times torch's, where 3 are allowed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random, "SystemRandom", lambda: DRAWS)
        yield


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """The emulator's torch.device, and the GPU's where there is one."""
    import torch

    return torch.device(request.param)


@pytest.fixture
def thinned(request, device):
    """thinned(cases, n, first=0): every n-th of the cases, from the first-th on, on the emulator; all of them on a GPU,
    where they cost next to nothing, and in `make test-all`."""
    if device.type == "cuda" or request.config.getoption("--exhaustive"):
        return lambda cases, n, first=0: cases
    return lambda cases, n, first=0: cases[first::n]


def use_compiler(name, monkeypatch):
    """Chooses a compiler as a user chooses it, for one test."""
    from course_utils.emulator.compiler import find_compiler

    monkeypatch.setenv("COURSE_EMULATOR_CXX", name)
    find_compiler.cache_clear()
    yield name
    find_compiler.cache_clear()


SECOND = pytest.mark.exhaustive(
    "a compiler that this machine does not take by itself; what the compilers do differently is tested with "
    "`each_compiler`"
)


@pytest.fixture(params=[*COMPILERS[:1], *(pytest.param(name, marks=SECOND) for name in COMPILERS[1:])])
def compiler(request, monkeypatch):
    """This machine's default compiler; with --exhaustive each one in turn."""
    yield from use_compiler(request.param, monkeypatch)


@pytest.fixture(params=COMPILERS)
def each_compiler(request, monkeypatch):
    """Each compiler in turn: for a test of what they do differently, the flags and the headers' own cases."""
    yield from use_compiler(request.param, monkeypatch)


@pytest.fixture(name="without_nvrtc")
def _without_nvrtc():
    """What NVRTC refuses is left to the emulator."""
    from tests.helpers.without_nvrtc import without_nvrtc

    with without_nvrtc():
        yield


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium, driven by Playwright, for tests marked `browser`."""
    from playwright.sync_api import sync_playwright

    with browsing.refusing_proxy() as proxy, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=find_chromium(),
            args=[*CHROMIUM_FLAGS, f"--proxy-server={proxy}"],
            ignore_default_args=["--hide-scrollbars"],  # a reader sees them, and they take room
        )
        yield chromium
        chromium.close()


@pytest.fixture
def leaves_no_shell():
    """An `ipywidgets.Output` that is given something to show makes IPython's shell, by which others would think that
    they are in Jupyter."""
    from IPython.core.interactiveshell import InteractiveShell

    before = InteractiveShell.initialized()
    yield
    if not before:
        InteractiveShell.clear_instance()
