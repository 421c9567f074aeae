"""Makes `exercises/` from `solutions/`: the same files without what the student is to find.

A region between two marks becomes one line with the indentation of the first mark; a Markdown cell tagged "solution"
goes. Nothing else differs, and the same solutions always give the same bytes.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import NamedTuple

import nbformat

from course_utils.course import ROOT
from course_utils.grading.catalog import SOLUTIONS

EXERCISES = ROOT / "exercises"
SOLUTION_TAG = "solution"
SUFFIXES = (".cu", ".ipynb")


class Marks(NamedTuple):
    """The lines around what the student is to find, and the line that takes its place."""

    begin: str
    end: str
    stub: str


CUDA = Marks("// BEGIN SOLUTION", "// END SOLUTION", "// YOUR CODE HERE")
PYTHON = Marks("### BEGIN SOLUTION", "### END SOLUTION", "# YOUR CODE HERE")
_LIKE_A_MARK = re.compile(r"\b(BEGIN|END)[ _-]*SOLUTION", re.IGNORECASE)


class MarkError(ValueError):
    """A mark that has no partner, stands within another region, or is not written as it must be."""


def strip_cuda(text: str, where: str = "kernel.cu") -> str:
    """A `.cu` file without its solution. MarkError names `where` and the line."""
    return _strip(text, CUDA, where)


def solution_lines(text: str, where: str = "kernel.cu") -> list[tuple[int, int]]:
    """The two marks of each solution region of a `.cu` file, as lines counted from 0. MarkError names `where`."""
    return _regions(text, CUDA, where)


def strip_python(text: str, where: str = "cell") -> str:
    """A notebook's code cell without its solution. MarkError names `where` and the line."""
    return _strip(text, PYTHON, where)


def strip_notebook(notebook: nbformat.NotebookNode, where: str = "notebook") -> nbformat.NotebookNode:
    """A notebook without solutions and outputs. MarkError names `where`, the cell and its line."""
    stripped = copy.deepcopy(notebook)
    stripped.cells = [cell for cell in stripped.cells if not _explains(cell)]
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type != "code" and not _explains(cell):
            _regions(cell.source, None, f"{where}, cell {index}")
    for index, cell in enumerate(stripped.cells):
        if cell.cell_type == "code":
            cell.source = strip_python(cell.source, f"{where}, cell {index}")
            cell.outputs, cell.execution_count = [], None
    return stripped


def _explains(cell: nbformat.NotebookNode) -> bool:
    return SOLUTION_TAG in cell.metadata.get("tags", ())


def _strip(text: str, marks: Marks, where: str) -> str:
    lines = text.split("\n")
    for begin, end in reversed(_regions(text, marks, where)):
        indent = lines[begin][: -len(lines[begin].lstrip())]
        lines[begin : end + 1] = [indent + marks.stub]
    return "\n".join(lines)


def _regions(text: str, marks: Marks | None, where: str) -> list[tuple[int, int]]:
    """The lines (from 0) of the two marks of each region. `marks`: None where there must be none."""
    regions: list[tuple[int, int]] = []
    begin: int | None = None
    for at, line in enumerate(text.split("\n")):
        place, mark = f"{where}, line {at + 1}", line.strip()
        if not _LIKE_A_MARK.search(line):
            continue
        if marks is None or mark not in (marks.begin, marks.end):
            takes = f"takes {marks.begin!r} or {marks.end!r}, alone on its line" if marks else "no mark belongs here"
            raise MarkError(f"{place}: got {mark!r}; {takes}")
        if mark == marks.begin:
            if begin is not None:
                raise MarkError(f"{place}: {mark!r} stands within the region that begins in line {begin + 1}")
            begin = at
        else:
            if begin is None:
                raise MarkError(f"{place}: {mark!r} without {marks.begin!r} before it")
            regions.append((begin, at))
            begin = None
    if marks and begin is not None:
        raise MarkError(f"{where}, line {begin + 1}: {marks.begin!r} without {marks.end!r} after it")
    return regions


def release(path: Path, where: str = "") -> bytes:
    """What the student gets in the place of the solution's file `path` (.cu or .ipynb)."""
    where = where or path.name
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".cu":
        return strip_cuda(text, where).encode()
    notebook = strip_notebook(nbformat.reads(text, as_version=4), where)
    return (nbformat.writes(notebook).rstrip("\n") + "\n").encode()


def make_exercises(solutions: Path = SOLUTIONS, exercises: Path = EXERCISES) -> list[Path]:
    """Write `exercises/NN_slug/` from `solutions/NN_slug/`, replacing what is there; returns the files that changed.

    Kernels and notebooks without a solution any more go. Nothing is written if a mark is wrong (MarkError).
    """
    if not solutions.is_dir():
        raise FileNotFoundError(f"solutions: got {solutions}, takes a folder that exists")
    made: dict[Path, bytes] = {}
    for path in _files(solutions):
        relative = path.relative_to(solutions)
        made[exercises / relative] = release(path, f"{solutions.name}/{relative.as_posix()}")
    changed = [path for path in _files(exercises) if path not in made]
    for path in changed:
        path.unlink()
    for path, content in made.items():
        if path.is_file() and path.read_bytes() == content:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        changed.append(path)
    return sorted(changed)


def _files(folder: Path) -> list[Path]:
    return sorted(path for suffix in SUFFIXES for path in folder.glob(f"[0-9][0-9]_*/*{suffix}"))
