"""Which cells of a chapter are folded: code that few readers read or edit. What the cell shows stays visible."""

from __future__ import annotations

import copy
import re

import nbformat

TAG = "hide-input"  # what the site's builder knows; JupyterLab has `source_hidden`
SHORT = 3  # lines: a call and what it needs are read as quickly as they are unfolded
_IMPORTS = re.compile(r"(import|from) ")
_GUESS = "with widgets.guess("
_DRAWS = re.compile(r"\bplt\.(subplots|figure)\(|\bax\.\w+\(|\bshow\.table\(")


def is_folded(source: str) -> bool:
    """Whether a cell of code is folded: a block of imports, a picture drawn by hand, rows put together for a table; and
    what is held back by a guess, however short, since its code gives the answer away. What helps to guess stands above
    `with widgets.guess(`: then the cell is shown."""
    if source.startswith(_GUESS):
        return True
    lines = [line for line in source.splitlines() if line.strip()]
    if source.startswith("%%") or len(lines) <= SHORT:
        return False
    return bool(_IMPORTS.match(source) or _DRAWS.search(source))


def with_folds(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A chapter's notebook whose cells are folded where `is_folded` says so, and nowhere else."""
    folded = copy.deepcopy(notebook)
    for cell in folded.cells:
        if cell.cell_type != "code":
            continue
        tags = [tag for tag in cell.metadata.pop("tags", []) if tag != TAG]
        in_lab = cell.metadata.pop("jupyter", {})
        in_lab.pop("source_hidden", None)
        if is_folded(cell.source):
            tags.append(TAG)
            in_lab["source_hidden"] = True
        for name, value in (("tags", tags), ("jupyter", in_lab)):
            if value:
                cell.metadata[name] = value
    return folded
