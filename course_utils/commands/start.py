"""`python -m course_utils start FOLDER`: the course's notebooks in a folder of the learner's own."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import sys
from pathlib import Path

from course_utils import __version__
from course_utils.course import FILES, FOLDERS, SOURCE, STARTED

NAMED = 5  # files of the learner's that the command names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="new, or one of an earlier start")
    parser.add_argument(
        "--lab",
        nargs=argparse.REMAINDER,
        metavar="OPTION",
        help="then open JupyterLab on the first chapter, with these options of its own",
    )


def run(options: argparse.Namespace) -> int:
    """Carry out `start`. Returns 0, or 1 where the folder cannot be written; with --lab it becomes JupyterLab."""
    try:
        written, kept = start(options.folder)
    except (OSError, ValueError) as error:
        print(f"start: {error}", file=sys.stderr)
        return 1
    print(f"{written} files of the course copied to {options.folder}")
    if kept:
        more = f" and {len(kept) - NAMED} more" if len(kept) > NAMED else ""
        print(f"kept as they are, since you changed them: {', '.join(kept[:NAMED])}{more}")
        print("To get the course's version of such a file, rename yours and start again.")
    if options.lab is None:
        print(f"To open it: python -m course_utils start {shlex.quote(str(options.folder))} --lab")
        return 0
    return _open_lab(options.folder.resolve(), options.lab)


def start(folder: Path, source: Path = SOURCE) -> tuple[int, list[str]]:
    """Copies the course's files from `source`; returns how many it wrote, and the learner's files that differ.

    A file is replaced only if it is as an earlier start wrote it. Raises ValueError for the folder of a clone.
    """
    if (folder / "course_utils" / "course.py").is_file():
        raise ValueError(f"FOLDER: got {folder}, a clone of the course, takes another folder")
    note = folder / STARTED
    copied = json.loads(note.read_text(encoding="utf-8"))["files"] if note.is_file() else {}
    written, kept = 0, []
    for path in course_files(source):
        name = path.relative_to(source).as_posix()
        target, content = folder / name, path.read_bytes()
        there = _digest(target.read_bytes()) if target.exists() else None
        if there not in (None, _digest(content), copied.get(name)):
            kept.append(name)
            continue
        copied[name] = _digest(content)
        if there != copied[name]:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            written += 1
    note.write_text(json.dumps({"version": __version__, "files": copied}), encoding="utf-8")
    return written, kept


def course_files(source: Path) -> list[Path]:
    """What a learner gets of the course's files in `source`."""
    inside = [path for name in FOLDERS for path in sorted((source / name).rglob("*")) if path.is_file()]
    return [*inside, *(source / name for name in FILES)]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _open_lab(folder: Path, options: list[str]) -> int:
    """Becomes JupyterLab, as `make lab` starts it."""
    settings = Path(__file__).resolve().parents[1] / "jupyter"
    environment = {**os.environ, "JUPYTER_CONFIG_PATH": str(settings)}
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={folder}"]
    command += ["--allow-root"] if os.geteuid() == 0 else []
    os.chdir(folder)
    sys.stdout.flush()  # what is printed into a pipe, as Docker has it, would be lost with this program
    os.execve(sys.executable, [*command, *options, "notebooks/00_start_here.ipynb"], environment)
