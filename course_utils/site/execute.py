"""Runs the chapters for the site, so that every cell has its output, and keeps what came out for the next build."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.metadata import distributions
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from tqdm import tqdm

from course_utils.site import places

KERNELS = 2  # at once: the chapters wait for a compiler as often as for a core
CELL_SECONDS = 300
SEED = "0"  # of the questions: the site shows everyone the same
WHAT_OUTPUTS_DEPEND_ON = ("course_utils/**/*", "kernels/**/*")
VARIABLES = ("COURSE_", "CUDA_", "CXX", "TORCH_", "OMP_")  # beginnings of names of variables that change an output
NOT_RUN_BY_CHAPTERS = {"site", "__pycache__"}


class SiteError(RuntimeError):
    """The site cannot be built; the message says where and why."""


def execute(root: Path, notebooks: Sequence[Path], kept: Path) -> dict[Path, NotebookNode]:
    """The notebooks below `root`, each with the outputs of a run from top to bottom.

    A run is kept in the folder `kept` and used again as long as the notebook's code, the package, the kernels, what is
    installed and the machine's GPUs are the same. Nobody's progress is touched, and outputs name no path of this
    machine (`places.private`). Raises SiteError with the notebook, the cell and its error.
    """
    kept.mkdir(parents=True, exist_ok=True)
    base = _digest(root)
    runs_at = {path: kept / f"{path.stem}-{_key(path, base)}.ipynb" for path in notebooks}
    for old in set(kept.glob("*.ipynb")) - set(runs_at.values()):
        old.unlink()
    to_run = [path for path in notebooks if not runs_at[path].exists()]
    private = places.private(root)
    to_run.sort(key=lambda path: path.stat().st_size, reverse=True)  # the longest first: no kernel is left alone
    with ThreadPoolExecutor(KERNELS) as pool, tqdm(total=len(to_run), desc="running chapters", unit="chapter") as bar:
        runs = {pool.submit(_run, path, runs_at[path], private): path for path in to_run}
        try:
            for run in as_completed(runs):
                run.result()
                bar.set_postfix_str(runs[run].stem)
                bar.update()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {path: _with_outputs(path, place) for path, place in runs_at.items()}


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


def _digest(root: Path) -> bytes:
    """Of all that a chapter's outputs depend on, but for the chapter: it changes when one of them does."""
    digest = hashlib.sha256(Path(__file__).read_bytes() + Path(places.__file__).read_bytes())
    digest.update(repr(_machine()).encode())
    for path in _dependencies(root):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.digest()


def _machine() -> tuple[str, ...]:
    """Python, its packages, the GPUs and the variables that the chapters look at."""
    packages = sorted({f"{one.metadata['Name']} {one.version}" for one in distributions()})
    lists = shutil.which("nvidia-smi")
    gpus = subprocess.run([lists, "-L"], capture_output=True, text=True).stdout if lists else ""
    return (
        sys.version,
        *packages,
        gpus,
        *(f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith(VARIABLES)),
    )


def _key(path: Path, base: bytes) -> str:
    """Of the code that is run: a text, an alt text or a saved output may change without another run."""
    code = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    return hashlib.sha256(base + "\0".join(code).encode()).hexdigest()[:16]


def _run(path: Path, place: Path, private: Mapping[str, str]) -> None:
    """Runs the notebook `path` and keeps it as `place`, without the paths in `private`."""
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
        _neutralise(notebook, {**private, home: "~/.local/share"})
    partial = place.with_suffix(".partial")
    nbformat.write(notebook, partial)
    partial.rename(place)


def _neutralise(notebook: NotebookNode, private: Mapping[str, str]) -> None:
    """Replaces paths of this machine in all texts that the cells have shown."""
    for output in (output for cell in notebook.cells for output in cell.get("outputs", ())):
        if "text" in output:
            output.text = places.neutral(output.text, private)
        if "traceback" in output:
            output.traceback = [places.neutral(line, private) for line in output.traceback]
        for kind, content in output.get("data", {}).items():
            if kind.startswith("text/"):
                output.data[kind] = places.neutral(content, private)


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
