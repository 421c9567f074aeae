"""Compiles every kernel of other people's files by NVRTC and by the emulator, and shows where the two disagree.

    python -m tests.corpus FOLDER [FOLDER ...] [-I FOLDER] [-D NAME=VALUE] [--seconds 120] [--only TEXT] [--json FILE]

Of each .cu file (and .cuh file with kernels) the host's part is left out (`course_utils.cuda.device_part`); of a
template, the instances that the file launches are compiled. Exit status 1: NVRTC takes a kernel that the emulator
refuses, or the other way round, and no sentence of the course says why. Nothing is copied into the repository.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from course_utils.tables import aligned
from tests.corpus.compiled import NO_ANSWER, Outcome, outcomes_within

HEADER_FOLDERS = ("Common", "common", "include", "inc")  # folders with headers, in that of a file or above it


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command, prints its tables, and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.corpus", description=__doc__.split("\n\n")[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("-I", dest="include", action="append", default=[], type=Path, help="a folder with headers")
    parser.add_argument("-D", dest="define", action="append", default=[], help="a macro, as for the compilers")
    parser.add_argument("--seconds", type=float, default=120, help="how long a file may take (120)")
    parser.add_argument("--only", default="", help="only files whose path holds this text")
    parser.add_argument("--json", type=Path, help="a file for all outcomes")
    options = parser.parse_args(arguments)
    missing = [str(folder) for folder in options.folders if not folder.is_dir()]
    if missing:
        parser.error(f"no such folder: {', '.join(missing)}")
    files = [(folder, path) for folder in options.folders for path in _files(folder) if options.only in str(path)]
    defined = tuple(f"-D{text}" for text in options.define)
    found: list[Outcome] = []
    for folder, path in tqdm(files, unit="file", disable=None):
        searched = [
            path.resolve().parent,
            *_folders_beside(path, folder),
            *(each.resolve() for each in options.include),
        ]
        name = str(path.relative_to(folder))
        found += outcomes_within(options.seconds, path, name, searched, defined)
        if options.json:
            options.json.write_text(json.dumps([dataclasses.asdict(one) for one in found], indent=1), encoding="utf-8")
    print(report(found, len(files)))
    return int(any(one.disagrees for one in found))


def _files(folder: Path) -> list[Path]:
    headers = (
        path for path in folder.rglob("*.cuh") if "__global__" in path.read_text(encoding="utf-8", errors="replace")
    )
    return sorted([*folder.rglob("*.cu"), *headers])


def _folders_beside(path: Path, top: Path) -> list[Path]:
    """Where a file's headers may lie: Common, include and the like, in its own folder and in those above."""
    above = [folder for folder in path.resolve().parents if folder.is_relative_to(top.resolve())]
    return [folder / name for folder in above for name in HEADER_FOLDERS if (folder / name).is_dir()]


def report(found: Sequence[Outcome], files: int) -> str:
    """The tables, as text."""
    unanswered = [one for one in found if one.kernel == NO_ANSWER]
    kernels = [one for one in found if one.kernel != NO_ANSWER]
    sections = [
        f"{files} files ({len({one.file for one in found})} with kernels), {len(kernels)} kernels: "
        f"NVRTC takes {sum(not o.nvrtc for o in kernels)}, the emulator {sum(not o.emulator for o in kernels)}"
    ]
    tables = {
        "Files without an answer": [(one.emulator, one) for one in unanswered],
        "NVRTC takes, the emulator refuses in a host compiler's words": [
            (o.emulator, o) for o in kernels if not o.nvrtc and o.emulator and not o.ours
        ],
        "NVRTC takes, the emulator refuses with a sentence of its own": [
            (o.emulator, o) for o in kernels if not o.nvrtc and o.emulator and o.ours
        ],
        "The emulator takes, NVRTC refuses": [(o.nvrtc, o) for o in kernels if o.nvrtc and not o.emulator],
        "Both refuse; NVRTC's words": [(o.nvrtc, o) for o in kernels if o.nvrtc and o.emulator],
    }
    for title, rows in tables.items():
        if rows:
            counts = Counter(message for message, _ in rows)
            example = {message: f"{one.file}: {one.kernel}" for message, one in reversed(rows)}
            lines = [(str(count), message[:140], example[message]) for message, count in counts.most_common()]
            sections.append(f"{title}: {len(rows)}\n\n" + aligned([("kernels", "message", "first in"), *lines]))
    return "\n\n".join(sections)


if __name__ == "__main__":
    sys.exit(main())
