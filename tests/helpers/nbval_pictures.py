"""A plugin for nbval (`-p tests.helpers.nbval_pictures`): no picture is compared, whatever its form.

A run has a figure as PNG and as SVG, a saved notebook as PNG alone (course_utils/plots/look.py). nbval leaves out PNG.
"""

from __future__ import annotations

from nbval.plugin import IPyNbFile


def pytest_collectstart(collector):
    if isinstance(collector, IPyNbFile):
        collector.skip_compare += ("image/svg+xml",)
