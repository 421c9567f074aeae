"""Carries out the Dockerfile's steps without Docker, and checks what they made.

    python -m tests.container build FOLDER [--architecture arm64]    the steps, in a new Debian in FOLDER
    python -m tests.container check FOLDER [--architecture arm64]    its command: JupyterLab, kernels, work that is kept

pip is given the settings of this machine: PIP_... and the files that they name. Where PyTorch's index cannot be
reached, PIP_RETRIES=0 spares the wait, and PIP_FIND_LINKS may name a folder with PyTorch's CPU build. Exit status 1:
not as it should be.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.container.debian import RELEASE, Debian, own_architecture, why_not
from tests.container.dockerfile import Step, command, environment, left_out, read_steps
from tests.container.lab import Lab

ROOT = Path(__file__).resolve().parents[2]
VOLUME = "my-course"  # compose.yaml binds it to /my-course
CHAPTER = "notebooks/00_start_here.ipynb"
IN_THE_BROWSER = ("test_chapters.py", "test_findings.py", "test_progress.py")
# An attention kernel, and one that races; what is printed must be the same on this machine. torch.rand gives the same
# numbers on every processor, which torch.randn does not.
KERNELS = """
import hashlib
import torch
from course_utils.emulator import sanitize
from course_utils.launches.broken import BROKEN
from course_utils.operators import flash_attention_minimal
torch.manual_seed(0)
with sanitize() as report:
    out = flash_attention_minimal(*torch.rand(3, 1, 2, 65, 64), is_causal=True)
print(report, hashlib.sha256(out.numpy().tobytes()).hexdigest())
with sanitize() as report:
    BROKEN["missing_sync_in_reduction"].launch().run()
print(report)
"""
ANSWER = """
from course_utils.progress import record_answer
from course_utils.questions.catalog import question_ids
record_answer(question_ids("00_start_here")[0], True, 1, 0)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.container", description=__doc__.split("\n\n")[0])
    parser.add_argument("what", choices=("build", "check"))
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument(
        "--architecture", choices=("amd64", "arm64"), help="another one than this machine's: arm64 only"
    )
    options = parser.parse_args(arguments)
    if why := why_not():
        parser.error(why)
    folder = options.folder.resolve()
    if folder.is_relative_to(ROOT) and not folder.is_relative_to(ROOT / "build"):
        parser.error("FOLDER: takes one outside of the clone, or in its build/, which no image holds")
    steps = read_steps((ROOT / "Dockerfile").read_text(encoding="utf-8"))
    debian = Debian(folder, options.architecture or own_architecture())
    if debian.emulated and debian.architecture != "arm64":
        parser.error("--architecture: arm64 is the only one that qemu stands in for here")
    return build(debian, steps) if options.what == "build" else check(debian, steps)


def build(debian: Debian, steps: list[Step]) -> int:
    """The Dockerfile's steps in a new Debian. Returns the exit status; raises CalledProcessError for a step."""
    settings = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    read_only = [value for value in settings.values() if os.path.isabs(value) and os.path.exists(value)]
    for place, (instruction, argument) in enumerate(steps):
        with _timed(f"{instruction} {argument}"):
            if instruction == "FROM":
                print(f"in its place: Debian {RELEASE}, {debian.architecture}", flush=True)
                debian.make()
            elif instruction == "COPY":
                _copy(debian, *argument.split())
            elif instruction == "RUN":
                debian.run(["/bin/sh", "-c", argument], {**settings, **environment(steps[:place])}, read_only)
    subprocess.run(["du", "-shx", debian.root], check=True)
    return 0


def check(debian: Debian, steps: list[Step]) -> int:
    """Starts the command twice: its page, a kernel, and that work is kept. Returns the exit status."""
    volume = debian.home / VOLUME
    shutil.rmtree(volume, ignore_errors=True)
    volume.mkdir()
    volumes, variables = {f"/{VOLUME}": volume}, environment(steps)
    _expose_page(debian)
    seconds = 600 if debian.emulated else 60
    right = []

    def python(code: str) -> str:
        log = debian.home / "python.log"
        with log.open("wb") as output:
            debian.start(["python", "-c", code], variables, volumes=volumes, output=output).wait()
        return log.read_text(encoding="utf-8", errors="replace")

    with _timed("the first start"):
        lab = Lab(debian, command(steps), variables, volumes, seconds)
    try:
        print(lab.said.splitlines()[0])
        right.append(_say("the port is exposed", Step("EXPOSE", str(lab.port)) in steps))
        with _timed("kernels, sanitized"):
            there = python(KERNELS)
        here = subprocess.run([sys.executable, "-c", KERNELS], cwd=ROOT, capture_output=True, text=True, check=True)
        same = bool(here.stdout) and there.endswith(here.stdout)  # before it, PyTorch may say what it misses under qemu
        right.append(_say("findings and outputs are those of this machine", same, there))
        if not debian.emulated:
            with _timed("the browser"):
                tests = [str(ROOT / "tests/browser" / name) for name in IN_THE_BROWSER]
                pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:nbval", *tests]
                done = subprocess.run([*pytest, "--lab", lab.address, str(volume)], cwd=ROOT, check=False)
            right.append(_say("the browser's tests passed", done.returncode == 0))
        python(ANSWER)
        progress = python("from course_utils.progress.store import export; print(export())")
        changed = lab.notebook(CHAPTER)
        changed["cells"][-1]["source"] += "\n# a line of the learner's"
        lab.save(CHAPTER, changed)
        right.append(_say("it stops in time", lab.stop()))
        with _timed("the second start"):
            lab = Lab(debian, command(steps), variables, volumes, seconds)
        right.append(_say("it says what it kept", f"since you changed them: {CHAPTER}" in lab.said, lab.said[:500]))
        right.append(_say("the notebook is kept", lab.notebook(CHAPTER) == changed))
        again = python("from course_utils.progress.store import export; print(export())")
        right.append(_say("the progress is kept", "00_start_here" in again and again == progress, again))
    finally:
        lab.stop()
    return int(not all(right))


def _copy(debian: Debian, source: str, target: str) -> None:
    ignored = left_out((ROOT / ".dockerignore").read_text(encoding="utf-8"), ROOT)
    shutil.copytree(ROOT / source, debian.root / target.lstrip("/"), ignore=ignored)


def _expose_page(debian: Debian) -> None:
    """A setting of JupyterLab's in the Debian, without which no test can drive its page."""
    settings = debian.root / "usr/local/etc/jupyter/jupyter_lab_config.py"
    settings.parent.mkdir(exist_ok=True)
    settings.write_text("c.LabApp.expose_app_in_browser = True\n", encoding="utf-8")


def _say(what: str, right: bool, found: str = "") -> bool:
    print(f"{what}: {'yes' if right else f'NO {found}'}", flush=True)
    return right


@contextmanager
def _timed(what: str) -> Iterator[None]:
    start = time.monotonic()
    print(what, flush=True)
    yield
    print(f"  {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
