"""What the emulator runs here, in instructions, over what it runs in another checkout: what a change costs, or gains.

    git worktree add ../before COMMIT
    python .ci/emulator_times.py ../before [--record .ci/emulator_times.json]

Kernels of chapters 00 to 05, each in a plain launch, under sanitize() and under profile(), with each checkout's own
kernels. valgrind counts what a worker process runs of the kernel and the emulator's runtime, line by line: the counts
are the same in each run to a few in ten thousand, however busy the machine is. They are no times: what the memory and
the system take is not in them, nor libc, Python's side of a launch and compilation. It takes about ten minutes.
"""

from __future__ import annotations

import contextlib
import platform
import shutil
import sys
import tempfile
from pathlib import Path

from two_checkouts import HERE, Row, measure, run

LAUNCHES = (
    "transpose_tiled",
    "matmul_registers",
    "scores, L=128",
    "softmax, L=128",
    "forward, L=256",
    "backward_dk_dv, L=128",
    "v2 step4_double_buffer, d=64, L=200",
    "v2 forward, d=64, L=200, causal",
    "sparse csr_gather, L=200",
    "deepseek sparse_mla, small",
    "deepseek lightning_indexer, H=20",
)
# Ends the name of a file from which the worker's own code comes: the runtime's and its headers', and the kernel's.
OWN = (".cu", ".cuh", "/kernels.cpp")


def own_instructions(counts: str) -> int:
    """The instructions of the emulator and its kernel in the text of a file that cachegrind wrote."""
    total, own = 0, False
    for line in counts.splitlines():
        if line.startswith("fl="):
            own = line.endswith(OWN) or "course_utils/emulator/" in line
        elif own and line[:1].isdigit():
            total += int(line.split()[1])
    return total


def measure_here() -> dict[str, float]:
    """Millions of instructions of each launch and mode, in the checkout that this process imports."""
    from course_utils.emulator import configure, profile, sanitize
    from course_utils.launches.chapters import course_launches

    found = {}
    modes = {"plain": contextlib.nullcontext, "profile": profile, "sanitize": sanitize}
    launches = course_launches()
    with tempfile.TemporaryDirectory() as folder, configure(time_limit=600, threads=1):
        # The emulator starts its launcher, whose forks are the workers, by what Python says its own program is.
        wrapper, written = Path(folder, "python"), Path(folder, "counts")
        written.mkdir()
        count = f"valgrind -q --tool=cachegrind --cache-sim=no --cachegrind-out-file={written}/%p"
        wrapper.write_text(f'#!/bin/sh\nexec {count} "{sys.executable}" "$@" 2> /dev/null\n', encoding="utf-8")
        wrapper.chmod(0o755)
        sys.executable = str(wrapper)
        for name in filter(launches.__contains__, LAUNCHES):
            for mode, watched in modes.items():
                with watched():
                    launches[name].run()
                (counts,) = written.iterdir()
                found[f"{name}, {mode}"] = own_instructions(counts.read_text(encoding="utf-8")) / 1e6
                counts.unlink()
    return found


def compare(before: Path) -> list[Row]:
    """A row for each launch and mode that both have: millions of instructions before and here, and their ratio."""
    old, new = measure(__file__, before), measure(__file__, HERE)
    return [
        {"name": name, "before": old[name], "here": new[name], "ratio": new[name] / old[name]}
        for name in old
        if name in new
    ]


def machine() -> Row:
    """What the rows were measured on."""
    from course_utils.emulator.compiler import find_compiler

    return {"machine": f"{platform.machine()}, {find_compiler().kind}", "unit": "millions of instructions"}


if __name__ == "__main__":
    if shutil.which("valgrind") is None:
        sys.exit("emulator_times.py counts with valgrind, which is not on PATH: apt-get install valgrind")
    line = "{name:46s} {before:9.1f} M  {here:9.1f} M  {ratio:.3f}"
    run(__doc__, measure_here, compare, line, machine)
