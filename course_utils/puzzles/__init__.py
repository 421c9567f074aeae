"""Small kernels with a hole of a few lines, which a learner fills in a cell of a chapter and which are graded there.

`%load_ext course_utils.puzzles` in a notebook brings the cell magic `%%puzzle NN_slug/name`.

    puzzle.py        what a puzzle is, and its texts: as it is given, solved, and the lines between
    cases.py         what the cases and mistakes of several puzzles share
    wrong_lines.py   runs the kernel with wrong lines, which gives a mistake its name
    attempt.py       grades a cell's text, and the page that says how it went
    magic.py         the cell magic
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def load_ipython_extension(shell: InteractiveShell) -> None:
    """What `%load_ext course_utils.puzzles` calls."""
    from course_utils.puzzles.magic import puzzle, with_a_body

    shell.register_magic_function(puzzle, "cell")
    shell.input_transformers_cleanup.append(with_a_body)
