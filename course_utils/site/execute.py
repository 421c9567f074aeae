"""The chapters with their outputs for the site: from the last run of `make test`, or from a run made here."""

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
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from jupyter_cache.cache.main import JupyterCacheBase
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from tqdm import tqdm

from course_utils.site import places
from course_utils.site.puzzles import as_given

KERNELS = 2  # at once: the chapters wait for a compiler as often as for a core
CELL_SECONDS = 300
SEED = "0"  # of the questions: the site shows everyone the same
WHAT_OUTPUTS_DEPEND_ON = ("course_utils/**/*", "kernels/**/*")
VARIABLES = ("COURSE_", "CUDA_", "CXX", "TORCH_")  # beginnings of names of variables that change an output
NOT_RUN_BY_CHAPTERS = {"site", "__pycache__"}


class SiteError(RuntimeError):
    """The site cannot be built; the message says where and why."""


def execute(root: Path, notebooks: Sequence[Path], cache_folder: Path) -> dict[Path, NotebookNode]:
    """The notebooks below `root`, their puzzles as they are given, each with the outputs of a run from top to bottom.

    Notebooks in the cache (`runs`) of `cache_folder` are taken from there, the others are run and added. Raises
    SiteError with the notebook, the cell and its error.
    """
    cache = runs(root, cache_folder)
    found = {path: _with_outputs(path, cache) for path in notebooks}
    to_run = sorted(
        (path for path in notebooks if found[path] is None),
        key=lambda path: path.stat().st_size,
        reverse=True,  # the longest first: no kernel is left alone
    )
    with ThreadPoolExecutor(KERNELS) as pool, tqdm(total=len(to_run), desc="running chapters", unit="chapter") as bar:
        running = {pool.submit(_run, path): path for path in to_run}
        try:
            for run in as_completed(running):
                path = running[run]
                keep(root, path, *run.result(), cache)
                found[path] = _with_outputs(path, cache)
                bar.set_postfix_str(path.stem)
                bar.update()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return found


def runs(root: Path, cache_folder: Path) -> JupyterCacheBase:
    """The cache of the notebooks that were run with the present course in `root`; older caches in `cache_folder` are
    deleted.

    jupyter-cache knows a run by the notebook's code alone, so the cache's folder has a digest of everything else that
    outputs depend on in its name: the package, the kernels, what is installed and the machine's GPUs.
    """
    folder = cache_folder / _digest(root)
    for old in set(cache_folder.glob("*")) - {folder}:
        shutil.rmtree(old, ignore_errors=True)
    cache = get_cache(folder)
    cache.db  # noqa: B018 — made here, so that no two processes make it at once
    return cache


def learner_of_the_site(home: str) -> dict[str, str]:
    """The environment in which a chapter runs for the site: nobody's progress, and the questions of one seed."""
    return {"XDG_DATA_HOME": home, "ATTENTION_KERNELS_SEED": SEED}


def keep(root: Path, path: Path, notebook: NotebookNode, home: str, cache: JupyterCacheBase) -> None:
    """Puts the notebook that was run as `path`, with `learner_of_the_site(home)`, into `cache`, without this machine's
    paths (`places.private`)."""
    _neutralise(notebook, {**places.private(root), home: "~/.local/share"})
    # An empty cell has no count, which jupyter-cache would take for a cell that has not run.
    cache.cache_notebook_bundle(CacheBundleIn(_code_of(notebook), str(path)), check_validity=False, overwrite=True)


def _code_of(notebook: NotebookNode) -> NotebookNode:
    """The code cells without their metadata, by which jupyter-cache knows a run: a new alt text needs no new run."""
    cells = [nbformat.from_dict({**cell, "metadata": {}}) for cell in notebook.cells if cell.cell_type == "code"]
    return nbformat.v4.new_notebook(cells=cells)


def _with_outputs(path: Path, cache: JupyterCacheBase) -> NotebookNode | None:
    """The notebook as it is now, with the outputs of its run in the cache; None if there is none."""
    notebook = as_given(nbformat.read(path, as_version=4))
    try:
        _, run = cache.merge_match_into_notebook(_code_of(notebook))
    except KeyError:
        return None
    cells = (cell for cell in notebook.cells if cell.cell_type == "code")
    for cell, same in zip(cells, run.cells, strict=True):
        cell.outputs, cell.execution_count = same.outputs, same.execution_count
    return notebook


def _dependencies(root: Path) -> Iterable[Path]:
    for pattern in WHAT_OUTPUTS_DEPEND_ON:
        for path in sorted(root.glob(pattern)):
            if path.is_file() and not NOT_RUN_BY_CHAPTERS & set(path.relative_to(root).parts):
                yield path


def _digest(root: Path) -> str:
    """A digest of all that a chapter's outputs depend on except the chapter: it changes if one of them does."""
    digest = hashlib.sha256(Path(__file__).read_bytes() + Path(places.__file__).read_bytes())
    digest.update(repr(_machine()).encode())
    for path in _dependencies(root):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


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


def _run(path: Path) -> tuple[NotebookNode, str]:
    """Runs the notebook `path`; returns it with its outputs, and the folder of its learner's progress."""
    notebook = as_given(nbformat.read(path, as_version=4))
    with tempfile.TemporaryDirectory() as home:
        client = NotebookClient(
            notebook,
            timeout=CELL_SECONDS,
            kernel_name="python3",
            resources={"metadata": {"path": str(path.parent)}},
            store_widget_state=False,
            extra_arguments=["--log-level=ERROR"],  # not a warning per kernel between the lines of the bar
        )
        try:
            client.execute(env={**os.environ, **learner_of_the_site(home)})
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            raise SiteError(_failure(path, notebook, error)) from error
    return notebook, home


def _neutralise(notebook: NotebookNode, private: Mapping[str, str]) -> None:
    """Replaces paths of this machine in all texts of the cells' outputs."""
    for output in (output for cell in notebook.cells for output in cell.get("outputs", ())):
        if "text" in output:
            output.text = places.neutral(output.text, private)
        if "traceback" in output:
            output.traceback = [places.neutral(line, private) for line in output.traceback]
        for kind, content in output.get("data", {}).items():
            if kind.startswith("text/"):
                output.data[kind] = places.neutral(content, private)


def _failure(path: Path, notebook: NotebookNode, error: Exception) -> str:
    """Which cell of a notebook failed, and how: the last cell that was started."""
    started = [
        (number, cell)
        for number, cell in enumerate(notebook.cells)
        if cell.cell_type == "code" and "iopub.status.busy" in cell.metadata.get("execution", {})
    ]
    number, cell = started[-1] if started else (0, notebook.cells[0])
    trace = [line for output in cell.get("outputs", ()) for line in output.get("traceback", ())]
    said = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(trace)) or str(error)
    return f"{path.name}, cell {number} (id {cell.get('id')}) failed:\n\n{cell.source}\n\n{said}"
