"""Runs kernels of all chapters here and on aarch64 under qemu, and prints what is equal.

    python -m tests.aarch64 [--compiler g++|zig] [--only TEXT]

Outputs, findings and counters must be equal to the last bit, recordings in all columns. Exit status 1: one is not.
What no launch here shows and differs all the same is in the package's docstring, with the reasons.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from unittest import mock

from course_utils.emulator import configure, module
from course_utils.emulator.compiler import find_compiler
from course_utils.tables import aligned
from tests.aarch64.machine import COMPILERS, on_aarch64, why_not
from tests.aarch64.outcomes import ASPECTS, launches, outcomes


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command, prints its table, and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.aarch64", description=__doc__.split("\n\n")[0])
    parser.add_argument("--compiler", choices=COMPILERS, default="g++")
    parser.add_argument("--only", default="", help="launches whose name holds this text")
    options = parser.parse_args(arguments)
    compiler = COMPILERS[options.compiler]()
    if why := why_not() or ("" if compiler else f"there is no {options.compiler} for aarch64"):
        parser.error(why)
    here = find_compiler(options.compiler)
    rows, differ = [("launch", *ASPECTS, "seconds")], 0
    with configure(threads=1, time_limit=600):
        for name, launch in launches().items():
            if options.only not in name:
                continue
            start = time.monotonic()
            with mock.patch.object(module, "find_compiler", lambda command: here):
                on_x86 = outcomes(name, launch)
            with on_aarch64(compiler):
                on_arm = outcomes(name, launch)
            words = ["" if a not in on_x86 else "equal" if on_x86[a] == on_arm[a] else "NOT EQUAL" for a in ASPECTS]
            differ += "NOT EQUAL" in words
            rows.append((name, *words, f"{time.monotonic() - start:.0f}"))
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    print(aligned(rows))
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
