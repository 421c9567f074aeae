"""A wheel of the course is all that a kernel's run needs: no clone, no notebook, no file outside of the package."""

import os
import shutil
import subprocess
import sys
import tarfile
import textwrap
import venv
import zipfile
from pathlib import Path

import pytest

from course_utils.course import FILES, FOLDERS

ROOT = Path(__file__).resolve().parents[1]
BUILT_FROM = ("course_utils", *FOLDERS, "tests/grading/submissions")
MOST_BYTES = 15 << 20
BUILD = "from setuptools import build_meta; build_meta.{}({!r})"
PROGRAM = """
import numpy as np
import torch
import course_utils
from course_utils.__main__ import main
from course_utils.cuda import RawModule, read_kernel
from course_utils.emulator import sanitize
assert {inside!r} in course_utils.__file__, course_utils.__file__
kernel = RawModule(code=read_kernel("00_start_here/vector_add.cu")).get_function("vector_add")
a, b, short = torch.rand(100), torch.rand(100), torch.zeros(90)
with sanitize() as report:
    kernel((1,), (128,), (a, b, short, np.int32(100)))
assert [finding.tool for finding in report.findings] == ["memcheck"] and torch.equal(short, (a + b)[:90])
assert main(["record", "vector_add", "--html", "page.html"]) == 0
"""


def run(*command: str, folder: Path, **more: str) -> str:
    """What a command printed that was run in a folder. Fails with all of it if the command did."""
    done = subprocess.run(command, cwd=folder, env={**os.environ, **more}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that is built from the sdist of this tree, by the setuptools that is here."""
    folder = tmp_path_factory.mktemp("wheel")
    tree, unused = folder / "tree", shutil.ignore_patterns("__pycache__")
    for name in BUILT_FROM:
        shutil.copytree(ROOT / name, tree / name, ignore=unused)
    for name in (*FILES, "setup.py", "pyproject.toml", "MANIFEST.in"):
        shutil.copy2(ROOT / name, tree)
    run(sys.executable, "-c", BUILD.format("build_sdist", str(folder)), folder=tree)
    (sdist,) = folder.glob("*.tar.gz")
    assert sdist.stat().st_size <= MOST_BYTES
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (tree,) = (folder / "unpacked").iterdir()
    run(sys.executable, "-c", BUILD.format("build_wheel", str(folder)), folder=tree)
    (wheel,) = folder.glob("*.whl")
    return wheel


def run_kernels(python: str, folder: Path, inside: str, **environment: str) -> None:
    """A kernel sanitized, another recorded to a page, both in this folder; `inside`: part of the package's path."""
    run(python, "-c", textwrap.dedent(PROGRAM).format(inside=inside), folder=folder, **environment)
    assert "vector_add" in (folder / "page.html").read_text(encoding="utf-8")


def test_a_wheel_is_small_and_runs_a_kernel(wheel, tmp_path):
    """Beside the packages of this environment, since an empty one takes minutes and the network."""
    assert wheel.stat().st_size <= MOST_BYTES
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    run_kernels(sys.executable, tmp_path, str(tmp_path / "site"), PYTHONPATH=str(tmp_path / "site"))


@pytest.mark.exhaustive(
    "installs 1.8 GB from the network; `make test` has the wheel beside the packages that are there"
)
def test_a_wheel_brings_all_that_it_needs_into_an_empty_environment(wheel, tmp_path):
    venv.create(tmp_path / "empty", with_pip=True)
    python = str(tmp_path / "empty" / "bin" / "python")
    run(python, "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), str(wheel), folder=tmp_path)
    run_kernels(python, tmp_path, str(tmp_path / "empty"), PYTHONPATH="")
    run(python, "-m", "course_utils", "start", "own", folder=tmp_path, PYTHONPATH="")
    kernel = tmp_path / "own" / "kernels" / "00_start_here" / "vector_add.cu"
    kernel.write_text(kernel.read_text(encoding="utf-8").replace("a[i] + b[i]", "a[i] - b[i]"), encoding="utf-8")
    said = "from course_utils.cuda import read_kernel; print(read_kernel('00_start_here/vector_add.cu'))"
    assert "a[i] - b[i]" in run(python, "-c", said, folder=tmp_path / "own" / "notebooks", PYTHONPATH="")
    assert "a[i] + b[i]" in run(python, "-c", said, folder=tmp_path, PYTHONPATH="")
