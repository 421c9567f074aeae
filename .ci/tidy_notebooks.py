"""Part of `make format`: puts the bars with links into the chapters, folds the code of cells that only draw or import,
and leaves only the still picture of a widget, and of a plot that as a small PNG.

A stored widget view points to a model in a kernel that is gone: JupyterLab would show an error in place of the picture.
SVG would be there twice, and JupyterLab shows none where it does not trust the notebook.
"""

import base64
import copy
import sys
from pathlib import Path

import nbformat

from course_utils.course import CHAPTERS
from course_utils.plots.look import small_png
from course_utils.reading.folded import with_folds
from course_utils.site.navigation import with_navigation

NOT_SAVED = ("application/vnd.jupyter.widget-view+json", "image/svg+xml")
SLUGS = {chapter.slug for chapter in CHAPTERS}


def tidy(notebook: nbformat.NotebookNode, slug: str) -> nbformat.NotebookNode:
    """A notebook as it is to be saved. slug: its name; the bars are for chapters only."""
    tidied = copy.deepcopy(notebook)
    for cell in tidied.cells:
        for output in cell.get("outputs", ()):
            for kind in NOT_SAVED:
                output.get("data", {}).pop(kind, None)
                output.get("metadata", {}).pop(kind, None)
            if png := output.get("data", {}).get("image/png"):
                output.data["image/png"] = _small(png)
    return with_navigation(with_folds(tidied), slug) if slug in SLUGS else tidied


def _small(png: str) -> str:
    """As a notebook has it, in base64. One that is small already stays as it is written."""
    before = base64.b64decode(png)
    after = small_png(before)
    return png if after == before else base64.b64encode(after).decode()


def main(paths: list[str]) -> None:
    """Rewrites those notebooks that are not tidy."""
    for path in paths:
        notebook = nbformat.read(path, as_version=4)
        tidied = tidy(notebook, Path(path).stem)
        if tidied != notebook:
            nbformat.write(tidied, path)


if __name__ == "__main__":
    main(sys.argv[1:])
