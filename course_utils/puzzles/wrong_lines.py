"""The known mistakes of a puzzle, as the grader takes them: the kernel with wrong lines in its hole runs on a case's
inputs, and a learner's kernel that writes the same has made that mistake."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from course_utils.cuda import KernelError, KernelSource, RawModule
from course_utils.emulator import configure, sanitize
from course_utils.grading.exercise import Case, Mistake
from course_utils.grading.job import LAUNCH_SECONDS, as_run
from course_utils.grading.runner import arguments, copies
from course_utils.puzzles.puzzle import Puzzle, find_puzzle


def known_mistakes(puzzle: Puzzle) -> tuple[Mistake, ...]:
    """The puzzle's mistakes, one for each way to make one, in their order."""
    ways = [one.said for one in puzzle.mistakes for _ in one.lines]
    return tuple(Mistake(said, functools.partial(_written, puzzle.task.id, n)) for n, said in enumerate(ways))


def _written(puzzle_id: str, number: int, case: Case) -> Mapping[str, Tensor] | None:
    """What the kernel with the wrong lines of that number writes; None where it does not end, or leaves an array."""
    (launch,), run = case.launches, as_run(0, case)
    tensors = copies(run)
    kernel = _module(puzzle_id, launch.options).get_function(f"{launch.kernel}_{number}")
    try:
        with configure(time_limit=LAUNCH_SECONDS, threads=1), sanitize() as report:
            kernel(launch.grid, launch.block, arguments(launch, tensors), shared_mem=launch.shared_mem)
    except KernelError:
        return None
    if any(finding.tool == "memcheck" for finding in report.findings):
        return None
    return {name: tensors[name] for name in run.outputs}


@functools.cache
def _module(puzzle_id: str, options: tuple[str, ...]) -> RawModule:
    """A kernel for each wrong lines of a puzzle, by its name and their number, compiled together."""
    puzzle = find_puzzle(puzzle_id)
    (name,) = puzzle.task.kernels
    head, _, rest = puzzle.given.partition('extern "C"')
    texts = [puzzle.filled(lines) for one in puzzle.mistakes for lines in one.lines]
    kernels = [text[len(head) :].replace(f" {name}(", f" {name}_{n}(", 1) for n, text in enumerate(texts)]
    source = head + "\n".join(kernels)
    return RawModule(code=KernelSource(source, Path(puzzle.file), f"{puzzle.task.name}.cu"), options=options)
