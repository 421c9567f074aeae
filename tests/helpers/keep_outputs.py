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


def pytest_configure(config):
    """Before there are workers: they only add to the cache."""
    config.stash[CACHE] = runs(config.rootpath, config.rootpath / "build" / "site-run")


def pytest_unconfigure(config):
    for home in config.stash.get(HOMES, {}).values():
        home.cleanup()


CACHE, HOMES, PASSED = pytest.StashKey(), pytest.StashKey(), pytest.StashKey()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """A notebook's kernel starts with its first cell: with an empty home."""
    if isinstance(item, IPyNbCell) and item.parent.kernel is None:
        homes = item.config.stash.setdefault(HOMES, {})
        homes[item.parent] = tempfile.TemporaryDirectory()
        os.environ.update(learner_of_the_site(homes[item.parent].name))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    result = yield
    if isinstance(item, IPyNbCell):
        notebook, passed = item.parent.nb, item.config.stash.setdefault(PASSED, Counter())
        item.cell.outputs = copy.deepcopy(item.test_outputs)
        item.cell.execution_count = item.cell_num + 1
        passed[item.parent] += 1
        if passed[item.parent] == sum(cell.cell_type == "code" for cell in notebook.cells):
            config = item.config
            keep(config.rootpath, item.path, notebook, config.stash[HOMES][item.parent].name, config.stash[CACHE])
    return result
