"""`python -m course_utils record LAUNCH`: one block of a launch, step by step, as a page to look at."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable
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
from course_utils.widgets.player import player
from course_utils.widgets.player_page import page

HOPPER_KEYS, HOPPER_DIM = 128, 64  # of the launches of chapter 07's ladder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("launch", metavar="KERNEL", help='a launch of course_utils/launches, such as "transpose_tiled"')
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
    try:
        if options.html and not options.html.parent.is_dir():
            raise FileNotFoundError(f"--html {options.html}: there is no folder {options.html.parent}")
        if options.html and options.html.is_dir():
            raise FileNotFoundError(f"--html {options.html}: is a folder, takes the name of a file")
        recording = record(find_launch(options.launch), block=options.block, launch=options.number, limit=options.limit)
        print(summary(recording))
        if options.html:
            text = page(player(*recording.packed()))
            options.html.write_text(text, encoding="utf-8")
            print(f"written: {options.html}, {len(text) / 2**20:.1f} MiB")
    except (CompileError, KernelError, LaunchError, OSError, ValueError) as error:
        print(f"record: {error}", file=sys.stderr)
        return 1
    return 0


def find_launch(name: str) -> Callable[[], object]:
    """The launch of this name. If there is none, raises ValueError with the names most like it."""
    launches = launches_by_name()
    if name not in launches:
        stem = name.rpartition("/")[2].removesuffix(".cu")
        near = [one for one in launches if stem in one] or [one for one, file in _files().items() if stem in file]
        near = near or difflib.get_close_matches(stem, launches, 8, 0.4) or list(launches)
        more = f" and {len(near) - 12} more" if len(near) > 12 else ""
        raise ValueError(
            f"KERNEL: got {name!r}, takes a launch's name, such as {', '.join(map(repr, near[:12]))}{more}"
        )
    return launches[name]


def launches_by_name() -> dict[str, Callable[[], object]]:
    """The launches of the chapters, the broken kernels and the ladder of chapter 07, by name."""
    found: dict[str, Callable[[], object]] = {}
    for name, launch in (course_launches() | hard_launches()).items():
        found[name] = launch.run
    for name in BROKEN:
        found[f"broken {name}"] = partial(_run_broken, name)
    for step in hopper.LADDER:
        found[f"hopper {step.file.rpartition('/')[2].removesuffix('.cu')}"] = partial(_run_hopper, step)
    return found


def _files() -> dict[str, str]:
    """The kernel file of each launch of the chapters, by its name."""
    return {name: launch.source for name, launch in (course_launches() | hard_launches()).items()}


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
