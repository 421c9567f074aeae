"""`make outputs`: runs chapters and saves what a reader on GitHub should see: listings, pictures, findings, records.

Cells that show a kernel or a picture get the tag `keep_output`. Of all other saved outputs nothing changes: they may be
of a GPU.
"""

import re
import sys
from pathlib import Path

import nbformat

from course_utils.emulator.pages import FRAME
from course_utils.site import widgets
from course_utils.site.execute import execute

ROOT = Path(__file__).resolve().parents[1]
WORTH_KEEPING = re.compile(rf"{re.escape(FRAME)}|data-guess=|\b20\d\d-\d\d-\d\d\b")  # the date is of a record
LISTING = re.compile(r"^show\.(source|passage|difference|mistake)\(", re.MULTILINE)


def is_seen(outputs: list[nbformat.NotebookNode]) -> bool:
    """Whether a cell's outputs have a picture, a page in the course's frame, what a guess holds back, or a record."""
    shown = [output.get("data", {}) for output in outputs]
    texts = [output.get("text", "") for output in outputs]
    texts += [data.get(kind, "") for data in shown for kind in ("text/html", "text/plain")]
    return any("image/png" in data for data in shown) or any(WORTH_KEEPING.search(text) for text in texts)


def with_outputs(notebook: nbformat.NotebookNode, run: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook with the outputs of `run`, the same notebook after a run, in the cells that show what is seen."""
    for cell, ran in zip(notebook.cells, run.cells, strict=True):
        if cell.cell_type != "code":
            continue
        tags = cell.metadata.get("tags", [])
        shows = LISTING.search(cell.source) or "alt" in cell.metadata
        if shows and "keep_output" not in tags:
            cell.metadata["tags"] = tags = ["keep_output", *tags]
        if "keep_output" in tags and is_seen(ran.outputs):
            cell.outputs = ran.outputs
            cell.execution_count = cell.execution_count or ran.execution_count  # nbval wants one beside an output
            for output in cell.outputs:
                output.get("data", {}).pop(widgets.STATE, None)  # GitHub runs no widget
                if "execution_count" in output:
                    output["execution_count"] = cell.execution_count
    return notebook


def main(paths: list[Path]) -> None:
    """Runs what is not in the site's cache, and rewrites the notebooks."""
    for path, run in execute(ROOT, paths, ROOT / "build" / "site-run").items():
        nbformat.write(with_outputs(nbformat.read(path, as_version=4), run), path)


if __name__ == "__main__":
    main([Path(path).resolve() for path in sys.argv[1:]])
