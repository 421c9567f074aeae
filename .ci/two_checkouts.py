"""How a command of this folder compares two checkouts: in processes of their own, and with one command line."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
Row = dict[str, str | float]


def measure(script: str, checkout: Path) -> dict[str, float]:
    """What `script --here` measures in a process that imports `checkout`, by the names of its rows."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(
        [sys.executable, script, "--here"],
        cwd=checkout,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def run(
    description: str | None,
    measure_here: Callable[[], dict[str, float]],
    compare: Callable[[Path], list[Row]],
    line: str,
    machine: Callable[[], Row],
) -> None:
    """The command. `compare` gives the rows, which `line` formats; `machine` says what they were measured on."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, nargs="?", help="another checkout of the course")
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="write the rows there, with device, versions and date"
    )
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        print(json.dumps(measure_here()))
        return
    if arguments.before is None or not (arguments.before / "course_utils").is_dir():
        parser.error(f"before: {arguments.before} is no checkout of the course; it takes a folder with course_utils/")
    rows = compare(arguments.before.resolve())
    for row in rows:
        print(line.format(**row))
    if arguments.record:
        kept = {**machine(), "date": time.strftime("%Y-%m-%d"), "rows": rows}
        arguments.record.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
