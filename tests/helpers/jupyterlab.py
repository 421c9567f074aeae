"""A real JupyterLab, and notebooks in it as a learner would open them."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import nbformat

from tests.helpers import screenshots

ROOT = Path(__file__).resolve().parents[2]
SERVER_SECONDS = 60
SIZE = {"width": 1300, "height": 1000}
FRONT = ".lm-DockPanel-widget:not(.lm-mod-hidden)"  # what lies in front; other notebooks may be open behind it
# The one notebook for cells of tests: its kernel imports the course once. It lies where links of the chapters lead.
SCRATCH = "notebooks/scratch.ipynb"

OPEN_DOCUMENT = "async (path) => { await jupyterapp.commands.execute('docmanager:open', { path }); }"
# What lies in front of the page is this file.
IN_FRONT = "(path) => window.jupyterapp?.shell.currentWidget?.context?.path === path"
# Runs all cells of the notebook in front and returns its content afterwards. Waiting for an "idle" indicator instead
# would race with the kernel's start.
RUN_ALL_CELLS = """async () => {
    const panel = jupyterapp.shell.currentWidget;
    await panel.context.ready;
    await panel.sessionContext.ready;
    await panel.sessionContext.session.kernel.info;
    const start = performance.now();
    await jupyterapp.commands.execute("notebook:run-all-cells");
    return { seconds: (performance.now() - start) / 1000, cells: panel.content.model.toJSON().cells };
}"""
# JupyterLab builds the cells that are far from the view only when they come near it.
SCROLL_TO_CELL = """async (index) => {
    await jupyterapp.shell.currentWidget.content.scrollToItem(index, "center");
}"""

SHOW_CELLS = """async (notebook) => {
    const panel = jupyterapp.shell.currentWidget;
    await panel.context.ready;
    panel.context.model.fromJSON(notebook);
}"""
# Closes all but these files without asking whether to save, and ends their kernels.
CLOSE_OTHERS = """async (kept) => {
    for (const one of [...jupyterapp.shell.widgets("main")].filter((one) => !kept.includes(one.context?.path))) {
        await one.sessionContext?.shutdown();
        one.dispose();
    }
}"""


def wait_until(page, condition: str, arg: object = None, milliseconds: int = 60_000) -> None:
    """Returns once the JavaScript function `condition` says yes to `arg`, or raises Playwright's TimeoutError."""
    page.wait_for_function(condition, arg=arg, timeout=milliseconds, polling=50)  # by default it is every frame


def set_theme(page, name: str = "JupyterLab Light") -> None:
    """Returns once JupyterLab has this theme, style sheet and all."""
    page.evaluate("(theme) => jupyterapp.commands.execute('apputils:change-theme', { theme })", name)
    wait_until(page, "(theme) => document.body.dataset.jpThemeName === theme", name)
    page.wait_for_timeout(500)  # the theme's style sheet


def wait_until_in_front(page, path: str) -> None:
    """Returns once the page shows this file, by whatever way it was opened."""
    wait_until(page, IN_FRONT, path)


class NotebookPage:
    """A notebook that was opened in JupyterLab and run from top to bottom. `seconds`: how long the cells took."""

    def __init__(self, page) -> None:
        self.page = page
        result = page.evaluate(RUN_ALL_CELLS)
        self.seconds: float = result["seconds"]
        self.cells: list[dict] = result["cells"]

    def assert_every_cell_ran(self) -> None:
        """Every code cell has a count and no error among its outputs."""
        ran = 0
        for index, cell in enumerate(self.cells):
            if cell["cell_type"] != "code" or not "".join(cell["source"]).strip():
                continue
            for output in cell["outputs"]:
                trace = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(output.get("traceback", ())))
                assert output["output_type"] != "error", f"cell {index} failed:\n{trace}"
            assert cell["execution_count"], f"cell {index} did not run"
            ran += 1
        assert ran, "the notebook has no code cell"

    def widgets(self):
        """The course's widgets, in order: scrolls to each cell that shows one and yields its root element."""
        for index, cell in enumerate(self.cells):
            shown = [output.get("data", {}) for output in cell.get("outputs", ())]
            if any("application/vnd.jupyter.widget-view+json" in data for data in shown):
                yield from self.widgets_of(index)

    def widgets_of(self, index: int):
        """The course's widgets that the cell `index` shows: scrolls to each and yields its root element."""
        self.page.evaluate(SCROLL_TO_CELL, index)
        drawn = self.page.locator(f"{FRONT} .jp-Notebook-cell").nth(index).locator(".ak-widget")
        if drawn.count() == 0:  # a progress bar, or a widget that is not drawn yet
            self.page.wait_for_timeout(1000)
        for number in range(drawn.count()):
            drawn.nth(number).scroll_into_view_if_needed()
            yield drawn.nth(number)

    def screenshot(self, name: str, element=None) -> None:
        """Saves what the learner sees, or this part of it."""
        screenshots.save(element or self.page, name)


FORKS = f"import sys; sys.path.append({str(ROOT)!r})\nfrom tests.helpers import forked_kernels\n"
FORKS += "forked_kernels.serve_forks(c)\n"


class Lab:
    """A JupyterLab server over a folder of its own, with nobody's settings but the course's.

    forks: its kernels have PyTorch from the start (tests/helpers/forked_kernels.py). data: where progress is kept.
    """

    def __init__(self, folder: Path, forks: bool = False) -> None:
        self.folder = folder
        self.data = folder / ".jupyter" / "xdg_data_home"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        own = ("JUPYTER_CONFIG_DIR", "IPYTHONDIR", "XDG_DATA_HOME")
        private = {name: str(folder / ".jupyter" / name.lower()) for name in own}
        if forks:
            settings = Path(private["JUPYTER_CONFIG_DIR"]) / "jupyter_server_config.py"
            settings.parent.mkdir(parents=True)
            settings.write_text(FORKS)
        environment = {
            **os.environ,
            **private,
            "JUPYTER_CONFIG_PATH": str(ROOT / "course_utils" / "jupyter"),
            "JUPYTERLAB_WORKSPACES_DIR": str(folder / ".jupyter" / "workspaces"),
        }
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1"]
        command += [f"--port={port}", "--ServerApp.port_retries=0", "--IdentityProvider.token="]
        command += [f"--ServerApp.root_dir={folder}", "--LabApp.expose_app_in_browser=True"]
        self.log = folder / "jupyter.log"
        with self.log.open("wb") as log:
            self.server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + SERVER_SECONDS
        while time.monotonic() < deadline and self.server.poll() is None:
            try:
                urllib.request.urlopen(f"{self.address}/api/status", timeout=5).close()
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        self.stop()
        raise RuntimeError(f"JupyterLab did not start:\n{self.log.read_text(errors='replace')[-4000:]}")

    def stop(self) -> None:
        """Ends the server and its kernels."""
        self.server.terminate()
        try:
            self.server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.server.kill()
            self.server.wait()


@dataclass(frozen=True)
class RunningLab:
    """A JupyterLab that somebody else has started, as the Dockerfile does. address: as it was printed, with a token."""

    address: str
    folder: Path

    @property
    def data(self) -> Path:
        """Where progress is kept."""
        return self.folder / ".data"


def new_page(browser, lab: Lab | RunningLab):
    """A page that shows JupyterLab, with nothing open but the scratch notebook."""
    page = browser.new_page(viewport=SIZE)
    page.set_default_timeout(60_000)
    nbformat.write(_notebook([]), lab.folder / SCRATCH)
    token = urlsplit(lab.address).query
    page.goto(urljoin(lab.address, f"/lab/tree/{SCRATCH}?reset&{token}"))
    wait_until_in_front(page, SCRATCH)
    return page


def open_file(page, path: str) -> None:
    """Opens a file below JupyterLab's folder, as a double click on it would."""
    page.evaluate(OPEN_DOCUMENT, path)
    wait_until_in_front(page, path)


def show_cells(page, cells: Sequence[str]) -> None:
    """Puts these code cells in the place of what the scratch notebook holds, in front of all else."""
    open_file(page, SCRATCH)
    page.evaluate(SHOW_CELLS, _notebook(cells))


def tidy(page, *kept: str) -> None:
    """The page as `new_page` gave it, but for the cells of the scratch notebook and what its kernel has imported.

    kept: files that stay open, too.
    """
    page.evaluate(CLOSE_OTHERS, [SCRATCH, *kept])
    page.set_viewport_size(SIZE)


@contextmanager
def shortened(lab: Lab, slug: str, some_of: Callable[[list], list]) -> Iterator[str]:
    """Keeps `some_of` the cells of a chapter for a while -> its path in JupyterLab."""
    path = lab.folder / "notebooks" / f"{slug}.ipynb"
    whole = path.read_bytes()
    notebook = nbformat.read(path, as_version=4)
    notebook.cells = some_of(notebook.cells)
    nbformat.write(notebook, path)
    try:
        yield f"notebooks/{path.name}"
    finally:
        path.write_bytes(whole)


def _notebook(cells: Sequence[str]) -> nbformat.NotebookNode:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    # As a kernel writes it: cells put into a notebook whose kernel already runs would be plain text without it.
    notebook.metadata.language_info = {"name": "python", "codemirror_mode": {"name": "ipython", "version": 3}}
    return notebook
