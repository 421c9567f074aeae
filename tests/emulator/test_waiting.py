"""A long launch says how far it is, where somebody waits for it, and only there."""

import io
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from course_utils.cuda import KernelError, RawModule
from course_utils.emulator import configure, sanitize, waiting

SOME_END = """extern "C" __global__ void k(volatile int* out, int n) {
    while (blockIdx.x >= n) out[0] = 1;
}"""


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def shown(monkeypatch):
    """What is written in the place of one another while launches run, from their first moment on."""
    texts = []
    monkeypatch.setattr(waiting, "FROM_SECONDS", 0.0)
    monkeypatch.setattr(waiting, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(waiting, "_line", lambda: texts.append)
    return texts


def launch(blocks_that_end, time_limit):
    kernel = RawModule(code=SOME_END).get_function("k")
    with configure(time_limit=time_limit, threads=1), pytest.raises(KernelError) as caught:
        kernel((8,), (32,), (torch.zeros(1, dtype=torch.int32), np.int32(blocks_that_end)))
    return str(caught.value)


@pytest.mark.parametrize("watched", [False, True])
def test_it_says_how_many_blocks_are_done_and_goes_with_the_launch(watched, shown):
    RawModule(code=SOME_END).compile()
    if watched:
        with sanitize():
            message = launch(3, 1.0)
    else:
        message = launch(3, 1.0)
    assert "(3 of 8 blocks done; " in message
    *texts, last = shown
    assert texts and all(text.startswith("k: ") and "/8 [" in text for text in texts) and last == ""
    assert "38%" in texts[-1] and "3/8 [" in texts[-1]


def test_a_short_launch_shows_nothing(shown, monkeypatch):
    monkeypatch.setattr(waiting, "FROM_SECONDS", 3.0)
    launch(3, 0.3)
    assert shown == []


def line_for(monkeypatch, *, stderr=None, allow_stdin=None, environment=()):
    """The line where stderr is this, and a notebook's cell came with this word on whether somebody may be asked."""
    for name in ("CI", "PYTEST_CURRENT_TEST"):
        monkeypatch.delenv(name, raising=False)
    for name in environment:
        monkeypatch.setenv(name, "true")
    monkeypatch.setattr(sys, "stderr", stderr or io.StringIO())
    shell = (
        None if allow_stdin is None else SimpleNamespace(get_parent=lambda: {"content": {"allow_stdin": allow_stdin}})
    )
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    return waiting._line()


def test_in_a_terminal_it_is_a_line_that_is_cleared(monkeypatch):
    terminal = Terminal()
    line = line_for(monkeypatch, stderr=terminal)
    line("k: 3/8")
    line("")
    assert terminal.getvalue() == "\rk: 3/8\x1b[K\r\x1b[K"


def test_in_a_notebook_it_is_an_output_that_is_emptied(monkeypatch):
    shown = []
    handle = SimpleNamespace(update=lambda page: shown.append(page.data))
    monkeypatch.setattr("IPython.display.display", lambda page, display_id: handle)
    line = line_for(monkeypatch, allow_stdin=True)
    line("k<1>: 3/8")
    line("")
    assert shown == ["<pre>k&lt;1&gt;: 3/8</pre>", ""]


@pytest.mark.parametrize(
    "where",
    [
        pytest.param({}, id="a file or a pipe"),
        pytest.param({"allow_stdin": False}, id="nbval, nbclient"),
        pytest.param({"stderr": Terminal(), "environment": ["CI"]}, id="CI"),
        pytest.param({"allow_stdin": True, "environment": ["PYTEST_CURRENT_TEST"]}, id="pytest"),
    ],
)
def test_where_nobody_waits_nothing_is_written(where, monkeypatch, capsys):
    def fail(*_, **__):
        raise AssertionError("it displays")

    monkeypatch.setattr("IPython.display.display", fail)
    line_for(monkeypatch, **where)("k: 3/8")
    assert capsys.readouterr() == ("", "") and where.get("stderr", io.StringIO()).getvalue() == ""
