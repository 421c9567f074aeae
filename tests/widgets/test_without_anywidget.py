"""Where anywidget is not installed, every widget shows its still picture and says why. One process tries them all."""

import subprocess
import sys

WITHOUT_ANYWIDGET = """
import sys
sys.modules["anywidget"] = None
import torch
from course_utils import widgets
x = torch.randn(8, 4)
for widget in (
    widgets.score_heatmap(x, x),
    widgets.tile_stepper(x, x, x, block_rows=4, block_cols=4),
    widgets.warp_fragments(),
    widgets.mask_explorer(),
    widgets.planner(),
    widgets.dsa_explorer(),
):
    bundle, _ = widget._repr_mimebundle_()
    assert sorted(bundle) == ["image/png", "text/plain"], bundle.keys()
    assert "anywidget is not installed here" in bundle["text/plain"], bundle["text/plain"]
    if hasattr(widget, "static_figure"):
        assert widget.static_figure(0).axes
    print(type(widget).__name__)
"""


def test_the_still_picture_says_why():
    run = subprocess.run([sys.executable, "-c", WITHOUT_ANYWIDGET], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.split()) == 6
