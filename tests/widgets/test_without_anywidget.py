"""Where anywidget is not installed, every widget shows its still picture and says why."""

import importlib
import sys

import pytest
import torch

import course_utils
from course_utils.chapters.hopper.blocks import blocks
from course_utils.widgets import frame

NAME = "course_utils.widgets"


@pytest.fixture
def widgets(monkeypatch):
    """The widgets as they are where anywidget is not installed: imported once more. What others hold stays theirs."""
    for name in [name for name in sys.modules if name == NAME or name.startswith(f"{NAME}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.setattr(course_utils, "widgets", None)
    return importlib.import_module(NAME)


def test_the_still_picture_says_why(widgets, monkeypatch):
    again = sys.modules[f"{NAME}.frame"]
    assert again is not frame and again.anywidget is None
    # How a figure becomes a small picture is the same with anywidget, and tested there.
    monkeypatch.setattr(again.look, "png_and_size", lambda figure, _: (b"a picture" if figure.axes else b"", {}))
    x = torch.randn(8, 4)
    for widget in (
        widgets.launch_grid(),
        widgets.load_sectors(),
        widgets.bank_turns(),
        widgets.score_heatmap(x, x),
        widgets.tile_stepper(x, x, x, block_rows=4, block_cols=4),
        widgets.warp_fragments(),
        widgets.bank_places(),
        widgets.mask_explorer(),
        widgets.planner(),
        widgets.dsa_explorer(),
        widgets.cache_explorer(),
        widgets.pipeline(blocks()),
    ):
        bundle, _ = widget._repr_mimebundle_()
        assert bundle["image/png"] == b"a picture" and bundle.keys() == {"image/png", "text/plain"}
        assert "anywidget is not installed here" in bundle["text/plain"]


def test_others_have_their_widgets_again():
    assert course_utils.widgets.frame is frame is sys.modules[f"{NAME}.frame"]
    assert frame.anywidget is not None
