"""One JupyterLab for all tests, one page of it, and one kernel for the cells that tests bring."""

import shutil
from pathlib import Path

import pytest

from tests.helpers.forked_kernels import GRADE_HERE
from tests.helpers.jupyterlab import (
    ROOT,
    Lab,
    NotebookPage,
    RunningLab,
    new_page,
    open_file,
    show_cells,
    tidy,
    wait_until_in_front,
)


@pytest.fixture(scope="session")
def lab(request, tmp_path_factory):
    """JupyterLab over a copy of what the chapters link to, so that running one changes nothing in the repository.

    With --lab: the one that runs at that address.
    """
    if running := request.config.getoption("--lab"):
        address, folder = running
        yield RunningLab(address, Path(folder))
        return
    folder = tmp_path_factory.mktemp("lab")
    for name in ("notebooks", "docs", "kernels", "exercises"):
        ignored = shutil.ignore_patterns(".ipynb_checkpoints", "kernel-ipc-*")  # sockets of kernels at work there
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    server = Lab(folder, forks=not request.config.getoption("--exhaustive"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def only_page(lab, browser):
    page = new_page(browser, lab)
    yield page
    page.close(run_before_unload=False)


@pytest.fixture
def lab_page(only_page):
    """JupyterLab's page; what a test opens in it is closed afterwards."""
    yield only_page
    tidy(only_page)


@pytest.fixture
def open_page(lab_page):
    """open_page("folder/file") -> the page, with this file of JupyterLab's folder in front."""

    def open_path(path: str):
        open_file(lab_page, path)
        return lab_page

    return open_path


@pytest.fixture
def without_sandbox(request):
    """A cell after which its kernel grades by itself: in `make test` one grade of a test comes from a sandbox."""
    return "" if request.config.getoption("--exhaustive") else GRADE_HERE


@pytest.fixture
def follow():
    """follow(link, "folder/file"): clicks a link in a page and waits for the file that it is to open."""

    def click(link, path: str) -> None:
        link.click()
        wait_until_in_front(link.page, path)

    return click


@pytest.fixture
def open_notebook(open_page):
    """open_notebook("notebooks/NN_slug.ipynb") -> NotebookPage, after running all cells in a kernel of its own."""
    return lambda path: NotebookPage(open_page(path))


@pytest.fixture
def run_cells(lab_page):
    """run_cells(["cell", ...]) -> NotebookPage, after running them; the kernel knows what earlier tests ran in it."""

    def run(cells: list[str]) -> NotebookPage:
        show_cells(lab_page, cells)
        return NotebookPage(lab_page)

    return run
