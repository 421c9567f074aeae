"""Once the course is installed, it works without network: its commands, its compilers, its pages, JupyterLab."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import browsing

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = """
import os
import socket
import numpy as np
import torch
from course_utils.__main__ import main
from course_utils.cuda import RawModule, read_kernel
assert [name for _, name in socket.if_nameindex()] == ["lo"]
assert main(["start", "own"]) == 0
os.chdir("own/notebooks")
a, b, c = torch.rand(100), torch.rand(100), torch.empty(100)
kernel = RawModule(code=read_kernel("00_start_here/vector_add.cu")).get_function("vector_add")
kernel((1,), (128,), (a, b, c, np.int32(100)))
assert torch.equal(c, a + b)
assert main(["record", "vector_add", "--html", "page.html"]) == 0
"""


@pytest.fixture(scope="module")
def without_network():
    """What a command begins with that is to have no network but this machine's own."""
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap, which takes the network away, is not installed")
    command = ["bwrap", "--dev-bind", "/", "/", "--unshare-net"]
    said = subprocess.run([*command, "true"], capture_output=True, text=True)
    if said.returncode:
        pytest.skip(f"no network of one's own on this machine: {said.stderr.strip()}")
    return command


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_page_that_asks_another_server_is_seen(browser, scheme):
    page = browser.new_page()
    page.set_content(f"<img src='{scheme}://elsewhere.example/picture.png'>")
    page.wait_for_function("document.images[0].complete")
    page.close()
    asked, browsing.REFUSED[:] = browsing.REFUSED.copy(), []
    assert len(asked) == 1 and "elsewhere.example" in asked[0]


@pytest.mark.exhaustive("compiles the whole emulator; in make test nothing of the course has an address to ask")
def test_a_copy_of_the_course_a_first_kernel_and_a_page_need_no_network(without_network, compiler, tmp_path):
    """With each compiler and nothing compiled before."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    command = [*without_network, sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "vector_add" in (tmp_path / "own" / "notebooks" / "page.html").read_text(encoding="utf-8")


@pytest.mark.exhaustive("starts another JupyterLab; in make test no page asks another server for anything")
@pytest.mark.browser
def test_jupyterlab_its_kernels_and_widgets_need_no_network(without_network):
    tests = "tests/browser/test_chapters.py::test_the_cells_of_a_chapter_that_show_widgets_run_and_the_widgets_answer"
    command = [*without_network, sys.executable, "-m", "pytest", "-q", "-p", "no:nbval", tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "1 passed" in done.stdout, f"{done.stdout}\n{done.stderr}"
