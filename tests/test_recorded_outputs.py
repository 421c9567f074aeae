"""A saved output that is older than its record fails the notebook's test, and `make outputs` renews it."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import nbformat

from tests.helpers.recorded_outputs import record_dates

ROOT = Path(__file__).resolve().parent.parent
SHOWN = f"1.13 ms, 85 %\nNVIDIA H200, {max(record_dates())}, torch 2.11.0, CUDA 13.0\n"
LIVE = "1.13 ms\nNVIDIA H200, 2001-01-01, torch 2.11.0, CUDA 13.0\n"


def printed(text):
    """What a cell that prints this has as its output."""
    return nbformat.v4.new_output("stream", name="stdout", text=text)


def cell(prints, saved):
    """A cell that prints a text, with another one saved."""
    return nbformat.v4.new_code_cell(f"print({prints!r}, end='')", execution_count=1, outputs=[printed(saved)])


def write(path, cells):
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)


def test_a_notebook_fails_where_it_has_saved_another_date_or_figure_of_a_record(tmp_path):
    older_date, other_figure = SHOWN.replace(max(record_dates()), "2026-01-01"), SHOWN.replace("1.13", "1.12")
    unsaved = nbformat.v4.new_code_cell(f"print({SHOWN!r})")
    as_they_are = [cell(SHOWN, SHOWN), cell(LIVE, LIVE.replace("1.13", "1.12")), cell("took 3 s", "took 2 s"), unsaved]
    write(tmp_path / "a.ipynb", [*as_they_are, cell(SHOWN, older_date), cell(SHOWN, other_figure)])
    plugin = "-p", "tests.helpers.recorded_outputs", "--nbval-lax", "--nbval-current-env"
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", tmp_path, "-c", "/dev/null", *plugin, tmp_path]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    assert "2 failed, 4 passed" in said and "a.ipynb::Cell 3" not in said, said
    date = f"shows 2026-01-01 where its record says {max(record_dates())}: run `make outputs`."
    assert date in said and "shows 1.12 where its record says 1.13: run `make outputs`." in said, said


def test_what_shows_a_record_is_renewed():
    spec = importlib.util.spec_from_file_location("save_outputs", ROOT / ".ci" / "save_outputs.py")
    spec.loader.exec_module(save_outputs := importlib.util.module_from_spec(spec))
    before = [cell(SHOWN, SHOWN.replace("1.13", "1.12")), cell(LIVE, LIVE), cell("took 3 s", "took 2 s")]
    for one in before:
        one.metadata["tags"] = ["keep_output"]
    run = [cell(text, text) for text in (SHOWN, LIVE, "took 3 s")]
    renewed = save_outputs.with_outputs(*(nbformat.v4.new_notebook(cells=cells) for cells in (before, run)))
    assert [one.outputs[0].text for one in renewed.cells] == [SHOWN, LIVE, "took 2 s"]
