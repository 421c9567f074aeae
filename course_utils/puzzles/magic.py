"""The cell magic %%puzzle: grades the kernel below its line."""

from __future__ import annotations

import difflib
import os

from IPython.core.error import UsageError
from IPython.display import HTML, display

from course_utils.grading.result import Result
from course_utils.puzzles.attempt import attempt, page, run_of
from course_utils.puzzles.puzzle import Puzzle, find_puzzle, puzzle_ids

PROVE = "COURSE_PROVES_PUZZLES"  # set by make test-gpu: then each puzzle's solution must be right there, too


def puzzle(line: str, cell: str) -> None:
    """%%puzzle NN_slug/name: grades the kernel below and says what is right, or what is wrong and where.

    Raises UsageError, which a notebook shows without a traceback, for a name that no puzzle has and for a cell without
    a kernel.
    """
    chosen = _chosen(line.strip())
    if not cell.strip():
        raise UsageError(f"Below %%puzzle {chosen.task.id} stands the kernel. As it was given:\n\n{chosen.given}")
    result = attempt(chosen, cell)
    display(HTML(page(chosen, result)))
    if any(part.ran for part in result.parts):
        _offer_the_run(chosen, cell, result)
    if os.environ.get(PROVE):
        solved = attempt(chosen, chosen.solved)
        assert solved.full, f"the solution of {chosen.task.id} is graded as wrong:\n{solved}"


def _offer_the_run(puzzle: Puzzle, kernel: str, result: Result) -> None:
    from course_utils.widgets import own_run  # a second's import, while the verdict is read

    display(own_run.WatchIt(lambda: run_of(puzzle, kernel, result)))


def with_a_body(lines: list[str]) -> list[str]:
    """A cell's lines, with an empty line after a lone %%puzzle: IPython calls no cell magic without a body, and its
    error says only that it is empty."""
    return [lines[0].rstrip("\n") + "\n", "\n"] if len(lines) == 1 and lines[0].startswith("%%puzzle") else lines


def _chosen(name: str) -> Puzzle:
    ids = puzzle_ids()
    if name in ids:
        return find_puzzle(name)
    if not name:
        raise UsageError(f"%%puzzle takes the name of a puzzle, such as {ids[0]}.")
    near = difflib.get_close_matches(name, ids, n=1, cutoff=0) + [one for one in ids if one.split("/")[1] == name]
    raise UsageError(f"%%puzzle takes the name of a puzzle; there is no {name}. The nearest is {near[-1]}.")
