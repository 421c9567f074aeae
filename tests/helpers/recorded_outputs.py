"""A plugin for nbval (`-p tests.helpers.recorded_outputs`): no saved output is older than the record that it shows.

GitHub and JupyterLab show a chapter's saved outputs, and many show a record of `course_utils/measured`. Where this run
shows one, the saved output must have the same dates and figures, or the notebook's test fails. Pictures are not
compared: the date stands below them, and their figures in a table. Live figures, as a GPU gives, are no record's.
"""

from __future__ import annotations

import functools
import html
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from nbformat import NotebookNode
from nbval.plugin import IPyNbCell

RECORDS = Path(__file__).resolve().parents[2] / "course_utils" / "measured"
DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b")
FIGURE = re.compile(r"\d{4}-\d\d-\d\d|\d[\d,]*(?:\.\d+)?")
TAG = re.compile(r"<[^>]*>")


@functools.cache
def record_dates() -> frozenset[str]:
    """The dates of all records. Read as JSON: `course_utils.measured` would import PyTorch."""
    return frozenset(json.loads(path.read_text(encoding="utf-8"))["date"] for path in RECORDS.glob("*.json"))


def texts(outputs: Sequence[NotebookNode]) -> Iterator[str]:
    """What each output of a cell says, without the marks of HTML; all that is printed is one output."""
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    pages = (output.get("data", {}).get("text/html", "") for output in outputs)
    plain = (output.get("data", {}).get("text/plain", "") for output in outputs)
    for text in (printed, *pages, *plain):
        yield html.unescape(TAG.sub(" ", text))


def recorded_figures(outputs: Sequence[NotebookNode]) -> list[str]:
    """All figures and dates of the outputs that show a record, in order."""
    shown = (text for text in texts(outputs) if set(DATE.findall(text)) & record_dates())
    return [figure for text in shown for figure in FIGURE.findall(text)]


def older(saved: Sequence[NotebookNode], run: Sequence[NotebookNode]) -> str:
    """How a cell's saved outputs show a record otherwise than its run does, in a sentence; "" if they do not."""
    now = recorded_figures(run)
    if not saved or not now:
        return ""
    dated = (text for text in texts(saved) if DATE.search(text))
    before = [figure for text in dated for figure in FIGURE.findall(text)]
    if before == now:
        return ""
    at = next((n for n, (one, other) in enumerate(zip(before, now, strict=False)) if one != other), len(before))
    was, is_now = (figures[at] if at < len(figures) else "nothing" for figures in (before, now))
    return f"The saved output of this cell shows {was} where its record says {is_now}: run `make outputs`."


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item):
    """Looks at the saved outputs before other plugins put those of the run in their place."""
    result = yield
    if isinstance(item, IPyNbCell) and (said := older(item.cell.get("outputs", []), item.test_outputs or [])):
        pytest.fail(f"{said}\n{item.cell.source}", pytrace=False)
    return result
