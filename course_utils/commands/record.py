"""`python -m course_utils record LAUNCH`: one block of a launch, step by step, as a page to look at."""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from course_utils.emulator import Recording, record
from course_utils.emulator.raw_recording import MOST_ROWS
from course_utils.emulator.recorder import MOST_ACCESSES
from course_utils.launches import hopper
from course_utils.launches.broken import BROKEN
from course_utils.launches.chapters import course_launches, hard_launches
from course_utils.toolchain.errors import CompileError, KernelError, LaunchError
from course_utils.toolchain.source import read_kernel
from course_utils.widgets.player import player
from course_utils.widgets.player_page import page

HOPPER_KEYS, HOPPER_DIM = 128, 64  # of the launches of chapter 07's ladder
LONGEST = 100  # characters of what a launch shows
COMMAND = ".venv/bin/python -m course_utils record"


@dataclass(frozen=True)
class NamedLaunch:
    """A launch of the course. run: makes it. kernel: its file, for `read_kernel`; "" for a broken kernel, which is a
    file with a change. words: what it shows; "" if the header of the kernel's file says it."""

    run: Callable[[], object]
    kernel: str = ""
    words: str = ""

    @property
    def shows(self) -> str:
        """What it shows, in a line: the first sentence, or what of it fits."""
        sentence = re.split(r"(?<=\.) ", self.words or _header(self.kernel))[0]
        return textwrap.shorten(sentence, LONGEST, placeholder=" …")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "launch", metavar="KERNEL", nargs="?", help='a launch of the course, such as "transpose_tiled"; --list has all'
    )
    parser.add_argument("--list", action="store_true", help="list the launches, with what each shows")
    parser.add_argument(
        "--block", type=_block, default=(0, 0, 0), metavar="X,Y,Z", help="which block of the grid; default 0,0,0"
    )
    parser.add_argument("--launch", dest="number", type=int, metavar="N", help="of several launches this one, from 0")
    parser.add_argument(
        "--limit",
        type=int,
        default=MOST_ACCESSES,
        metavar="N",
        help=f"accesses of threads, at most; default {MOST_ACCESSES:,}, and there is room for {MOST_ROWS:,}",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page that shows it, from disk and offline")


def run(options: argparse.Namespace) -> int:
    """Carry out `record` and return the exit status: 0, or 1 where nothing could be recorded or written."""
    if options.list:
        print(listing())
        return 0
    try:
        if options.launch is None:
            raise ValueError(f"KERNEL: missing, takes a launch's name; {COMMAND} --list has them")
        if options.html and not options.html.parent.is_dir():
            raise FileNotFoundError(f"--html {options.html}: there is no folder {options.html.parent}")
        if options.html and options.html.is_dir():
            raise FileNotFoundError(f"--html {options.html}: is a folder, takes the name of a file")
        launch = find_launch(options.launch).run
        recording = record(launch, block=options.block, launch=options.number, limit=options.limit)
        print(summary(recording))
        if options.html:
            text = page(player(*recording.packed()))
            options.html.write_text(text, encoding="utf-8")
            print(f"written: {options.html}, {len(text) / 2**20:.1f} MiB; open it in a browser")
        else:
            again = f"{COMMAND} {shlex.quote(options.launch)} --html FILE"
            print(f"To step through it: {again}, then open FILE in a browser.")
    except (CompileError, KernelError, LaunchError, OSError, ValueError) as error:
        print(f"record: {error}", file=sys.stderr)
        return 1
    return 0


def listing() -> str:
    """The names that the command takes, each with what its launch shows."""
    launches = launches_by_name()
    width = max(map(len, launches))
    return "\n".join(f"{name:{width}}  {launch.shows}" for name, launch in launches.items())


def find_launch(name: str) -> NamedLaunch:
    """The launch of this name. If there is none, raises ValueError with the names most like it."""
    launches = launches_by_name()
    if name not in launches:
        stem = name.rpartition("/")[2].removesuffix(".cu")
        near = [one for one in launches if stem in one] or [one for one in launches if stem in launches[one].kernel]
        near = near or difflib.get_close_matches(stem, launches, 8, 0.4) or list(launches)
        more = f" and {len(near) - 12} more" if len(near) > 12 else ""
        raise ValueError(
            f"KERNEL: got {name!r}, takes a launch's name, such as {', '.join(map(repr, near[:12]))}{more}"
        )
    return launches[name]


def launches_by_name() -> dict[str, NamedLaunch]:
    """The launches of the chapters, the broken kernels and the ladder of chapter 07, by name."""
    found = {
        name: NamedLaunch(launch.run, kernel=launch.source)
        for name, launch in (course_launches() | hard_launches()).items()
    }
    for name, broken in BROKEN.items():
        found[f"broken {name}"] = NamedLaunch(partial(_run_broken, name), words=broken.symptom)
    for step in hopper.LADDER:
        name = f"hopper {step.file.rpartition('/')[2].removesuffix('.cu')}"
        found[name] = NamedLaunch(partial(_run_hopper, step), kernel=step.file)
    return found


def _header(kernel: str) -> str:
    """What the first paragraph of a kernel's header says, behind the file's name."""
    paragraph = re.match(r"(?://(?: .*)?\n)*?(?=//\s*\n|[^/])", f"{read_kernel(kernel)}")[0]
    return " ".join(paragraph.replace("//", " ").split()).partition(" — ")[2]


def _run_broken(name: str) -> None:
    BROKEN[name].launch().run()


def _run_hopper(step: hopper.Step) -> None:
    draw = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 1, HOPPER_KEYS, HOPPER_DIM, generator=draw).half() for _ in range(3))
    hopper.launch(step, query, key, value)


def summary(recording: Recording) -> str:
    """A recording in a few lines: how long it is, what it touches, what the sanitizer found."""
    lines = [f"{recording!r}"[1:-1]]
    for array in recording.arrays:
        lines.append(f"  {array.name}: {array.space}, {array.dtype} {list(array.shape)}")
    for finding in recording.findings:
        steps = [f"{step:,}" for step in (finding.step, finding.other_step) if step >= 0]
        at = f", step{'s' if len(steps) > 1 else ''} {' and '.join(steps)}" if steps else ""
        lines.append(f"  {finding.tool}: {finding.message}, line {finding.line}{at}")
    if recording.failure:
        lines.append(f"  stopped: {recording.failure}")
    return "\n".join(lines)


def _block(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not 1 <= len(parts) <= 3 or not all(part.strip().isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"takes one to three numbers such as 1,0,0, got {text!r}")
    return tuple(map(int, parts))
