"""A plugin for nbval (`-p tests.helpers.keep_outputs`): the site shows the notebooks as this run has left them.

Each notebook runs as a learner's who has not begun, and whoever runs it keeps their own progress. One whose cells have
all passed goes, with its outputs, where the site's build looks first (`course_utils.site.execute`).
"""

from __future__ import annotations

import copy
import os
import tempfile
from collections import Counter

import pytest
from nbval.plugin import IPyNbCell

from course_utils.site.execute import keep, learner_of_the_site, runs
from tests.helpers import small_site

UNSEEN = "COURSE_PICTURES_UNSEEN"  # plots.look has it, too, and takes seconds to import
CACHE, HOMES, PASSED = pytest.StashKey(), pytest.StashKey(), pytest.StashKey()


def pytest_addoption(parser):
    parser.addoption("--small-site", action="store_true", help="keep what the tests of the site show: make test")


def pytest_configure(config):
    """Opens the cache before there are workers, which then only add to it."""
    config.stash[CACHE] = runs(config.rootpath, config.rootpath / "build" / "site-run")
    config.stash[HOMES], config.stash[PASSED] = {}, Counter()


def pytest_unconfigure(config):
    for home in config.stash[HOMES].values():
        home.cleanup()


def is_seen(item):
    """Whether the site shows the notebook of this cell as it is run here."""
    return not item.config.getoption("--small-site") or item.path.stem in small_site.CHAPTERS


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    """A notebook's kernel starts before its first cell: with an empty home, and with the history that JupyterLab keeps.

    Without it a semicolon at a cell's end would not hide the cell's value.
    """
    starts = isinstance(item, IPyNbCell) and item.parent.kernel is None
    if starts:
        home = item.config.stash[HOMES][item.parent] = tempfile.TemporaryDirectory()
        os.environ.update(learner_of_the_site(home.name))
        os.environ[UNSEEN] = "" if is_seen(item) else "1"
    result = yield
    if starts:
        kernel = item.parent.kernel
        kernel.execute_cell_input = lambda code, allow_stdin=None: kernel.kc.execute(
            code, store_history=True, allow_stdin=allow_stdin, stop_on_error=False
        )
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    result = yield
    if isinstance(item, IPyNbCell) and is_seen(item):
        config, notebook = item.config, item.parent.nb
        item.cell.outputs = copy.deepcopy(item.test_outputs)
        item.cell.execution_count = item.cell_num + 1
        config.stash[PASSED][item.parent] += 1
        if config.stash[PASSED][item.parent] == sum(cell.cell_type == "code" for cell in notebook.cells):
            keep(config.rootpath, item.path, notebook, config.stash[HOMES][item.parent].name, config.stash[CACHE])
    return result
