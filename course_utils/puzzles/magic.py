"""The cell magic %%puzzle: what stands below its line is a kernel, and is graded."""

from __future__ import annotations

import os

from IPython.display import HTML, display

from course_utils.puzzles.attempt import attempt, page
from course_utils.puzzles.puzzle import find_puzzle

PROVE = "COURSE_PROVES_PUZZLES"  # set where notebooks run as tests: then each puzzle's solution must be right, too


def puzzle(line: str, cell: str) -> None:
    """%%puzzle NN_slug/name: grades the kernel below and says what is right, or what is wrong and where."""
    chosen = find_puzzle(line.strip())
    result = attempt(chosen, cell)
    display(HTML(page(chosen, result)))
    if os.environ.get(PROVE):
        solved = attempt(chosen, chosen.solved)
        assert solved.full, f"the solution of {chosen.task.id} is graded as wrong:\n{solved}"
