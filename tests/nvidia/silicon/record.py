"""Runs the small kernels on the GPU, in a child that may crash or hang without taking the others with it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

from course_utils.measured import Row
from course_utils.toolchain.errors import CompileError
from tests.nvidia.silicon import maps
from tests.nvidia.silicon.case import module, results_of
from tests.nvidia.silicon.cases import cases

SECONDS = 20  # for one launch
SECONDS_TO_START = 150  # for a child: importing torch, compiling all modules


def measure() -> list[Row]:
    """A row for each kernel, with the hash of its results, the results themselves for rounded sums, or the error; and a
    row for each tensor map."""
    left, rows = list(range(len(cases()))), maps.measure()
    while left:
        done = _in_a_child(left)
        rows += done
        left = left[len(done) :]
    return rows


def _in_a_child(indices: list[int]) -> list[Row]:
    """Rows of the first cases, at least of one: to the end, or to the one that failed."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_run, args=(indices, theirs), daemon=True)
    child.start()
    theirs.close()
    rows: list[Row] = []
    why = ""
    try:
        while len(rows) < len(indices) and not why:
            if not ours.poll(SECONDS if rows else SECONDS_TO_START):
                why = f"hangs: stopped after {SECONDS} s"
            else:
                row, fatal = ours.recv()
                rows.append(row)
                if fatal:
                    break
    except EOFError:
        why = "the process ended"
    if why:
        case = cases()[indices[len(rows)]]
        rows.append({"group": case.group, "name": case.name, "error": why})
    child.kill()
    child.join()
    return rows


def _run(indices: Sequence[int], to: Connection) -> None:
    chosen = [cases()[index] for index in indices]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(_compile, dict.fromkeys(case.code for case in chosen)))
    for case in chosen:
        row: Row = {"group": case.group, "name": case.name}
        fatal = False
        try:
            row |= results_of(case, case.run("cuda"))
        except CompileError as error:
            row["error"] = str(error)[:400]
        except Exception as error:  # CuPy's, torch's: after most of them CUDA is of no use in this process
            row["error"], fatal = f"{type(error).__name__}: {error}"[:400], True
        to.send((row, fatal))


def _compile(code: str) -> None:
    try:
        module(code).compile("cuda")
    except CompileError:
        pass  # said again at the launch
