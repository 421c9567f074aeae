"""Puzzles as the site shows them: with their hole, and with the message that the kernel as given gets."""

from __future__ import annotations

import re

from nbformat import NotebookNode

_FIRST_LINE = re.compile(r"%%puzzle +(\S+)\n")


def as_given(notebook: NotebookNode) -> NotebookNode:
    """The notebook with each puzzle's cell as a learner gets it. The builder of the site may have solved some."""
    for cell in notebook.cells:
        puzzle = _FIRST_LINE.match(cell.source) if cell.cell_type == "code" else None
        if puzzle:
            cell.source = puzzle[0] + _given(puzzle[1])
    return notebook


def _given(puzzle_id: str) -> str:
    from course_utils.puzzles.puzzle import find_puzzle  # brings PyTorch, which most notebooks do without

    return find_puzzle(puzzle_id).given.rstrip("\n")
