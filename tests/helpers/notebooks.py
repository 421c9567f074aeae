"""The course's notebooks, read once in each process: to read one takes as long as what most tests do with it."""

import functools
from pathlib import Path

import nbformat


@functools.cache
def read_notebook(path: Path) -> nbformat.NotebookNode:
    """As nbformat reads it. All tests share it: one that changes something copies it first."""
    return nbformat.read(path, as_version=4)
