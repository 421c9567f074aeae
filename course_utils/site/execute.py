"""Runs the chapters for the site, so that every cell has its output, and keeps what came out for the next build."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from tqdm import tqdm

KERNELS = 2  # at once: the chapters wait for a compiler as often as for a core
CELL_SECONDS = 300
SEED = "0"  # of the questions: the site shows everyone the same
WHAT_OUTPUTS_DEPEND_ON = ("course_utils/**/*", "kernels/**/*", "constraints.txt", "pyproject.toml")
NOT_RUN_BY_CHAPTERS = {"site", "__pycache__"}


class SiteError(RuntimeError):
    """The site cannot be built; the message says where and why."""


def execute(root: Path, notebooks: Sequence[Path], kept: Path) -> dict[Path, NotebookNode]:
    """The notebooks below `root`, each with the outputs of a run from top to bottom.

    A run is kept in the folder `kept` and used again as long as the notebook's cells, the package and the kernels are
    the same. Nobody's progress is touched. Raises SiteError with the notebook, the cell and its error.
    """
    kept.mkdir(parents=True, exist_ok=True)
    base = _digest(_dependencies(root))
    places = {path: kept / f"{path.stem}-{_key(path, base)}.ipynb" for path in notebooks}
    for old in set(kept.glob("*.ipynb")) - set(places.values()):
        old.unlink()
    to_run = [path for path in notebooks if not places[path].exists()]
    to_run.sort(key=lambda path: path.stat().st_size, reverse=True)  # the longest first: no kernel is left alone
    with ThreadPoolExecutor(KERNELS) as pool, tqdm(total=len(to_run), desc="running chapters", unit="chapter") as bar:
        runs = {pool.submit(_run, path, places[path]): path for path in to_run}
        try:
            for run in as_completed(runs):
                run.result()
                bar.set_postfix_str(runs[run].stem)
                bar.update()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {path: _with_outputs(path, place) for path, place in places.items()}


def _with_outputs(path: Path, place: Path) -> NotebookNode:
    """The notebook as it is now, with the outputs of the run that is kept in `place`."""
    notebook, run = (nbformat.read(file, as_version=4) for file in (path, place))
    cells, ran = ([cell for cell in one.cells if cell.cell_type == "code"] for one in (notebook, run))
    for cell, same in zip(cells, ran, strict=True):
        cell.outputs, cell.execution_count = same.outputs, same.execution_count
    return notebook


def _dependencies(root: Path) -> Iterable[Path]:
    for pattern in WHAT_OUTPUTS_DEPEND_ON:
        for path in sorted(root.glob(pattern)):
            if path.is_file() and not NOT_RUN_BY_CHAPTERS & set(path.relative_to(root).parts):
                yield path


def _digest(paths: Iterable[Path]) -> bytes:
    digest = hashlib.sha256(sys.version.encode())
    for path in paths:
        digest.update(str(path).encode() + path.read_bytes())
    return digest.digest()


def _key(path: Path, base: bytes) -> str:
    """Of the code that is run: a text, an alt text or a saved output may change without another run."""
    code = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    return hashlib.sha256(base + "\0".join(code).encode()).hexdigest()[:16]


def _run(path: Path, place: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "XDG_DATA_HOME": home, "ATTENTION_KERNELS_SEED": SEED}
        client = NotebookClient(
            notebook,
            timeout=CELL_SECONDS,
            kernel_name="python3",
            resources={"metadata": {"path": str(path.parent)}},
            store_widget_state=False,
            extra_arguments=["--log-level=ERROR"],  # not a warning per kernel between the lines of the bar
        )
        try:
            client.execute(env=environment)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            raise SiteError(_failure(path, notebook, error)) from error
    partial = place.with_suffix(".partial")
    nbformat.write(notebook, partial)
    partial.rename(place)


def _failure(path: Path, notebook: NotebookNode, error: Exception) -> str:
    """Which cell of a notebook failed, and how: the last one that was started."""
    started = [
        (number, cell)
        for number, cell in enumerate(notebook.cells)
        if cell.cell_type == "code" and "iopub.status.busy" in cell.metadata.get("execution", {})
    ]
    number, cell = started[-1] if started else (0, notebook.cells[0])
    trace = [line for output in cell.get("outputs", ()) for line in output.get("traceback", ())]
    said = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(trace)) or str(error)
    return f"{path.name}, cell {number} (id {cell.get('id')}) failed:\n\n{cell.source}\n\n{said}"
