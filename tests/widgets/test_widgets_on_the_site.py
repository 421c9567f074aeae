"""A widget on a page without a kernel: its script and its state stand behind its still picture."""

import base64
import json
import re

import nbformat
import pytest
import torch

pytest.importorskip("docutils", reason="the site's packages are not installed (pip install course-kernels[site])")

from course_utils.site import pages, widgets
from course_utils.widgets import score_heatmap
from course_utils.widgets.frame import esm


def test_a_widget_of_a_cell_keeps_its_picture_and_gets_script_and_state(tmp_path):
    widget = score_heatmap(torch.eye(2), torch.eye(2), tokens=["</script>", "b"])
    bundle, metadata = widget._repr_mimebundle_()
    bundle["image/png"] = base64.b64encode(bundle["image/png"]).decode()  # as a notebook has it
    cell = nbformat.v4.new_code_cell(id="7", metadata={"alt": "Two words"})
    cell.outputs = [nbformat.v4.new_output("display_data", data=bundle, metadata=metadata)]
    (shown,), missing = pages.outputs(cell, tmp_path / "notebooks" / "x.ipynb", tmp_path, tmp_path / "extra")
    page = shown.data["text/html"]
    assert missing == [] and list(shown.data) == ["text/html"]
    assert 'data-widget-script="score_heatmap.js"' in page and 'alt="Two words"' in page
    (state,) = re.findall(r'<script type="application/json">(.*?)</script>', page)
    assert json.loads(state)["meta"] == widget.meta and json.loads(state)["step"] == widget.step


def test_scripts_are_those_of_jupyterlab_without_their_comments():
    written = dict(widgets.files())
    lines = [line for line in esm("player.js").splitlines() if not line.lstrip().startswith("//")]
    assert written["widgets/player.js"].splitlines() == lines and "// " in written["widgets/player.js"]  # behind code
