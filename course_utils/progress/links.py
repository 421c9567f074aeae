"""Links from the running notebook to the course's other notebooks."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path


def href(path: str, heading: str = "") -> str:
    """A link to a notebook, relative to the working folder, which in Jupyter is the notebook's own; "" if the file does
    not exist, as in an installation without the notebooks.

    path: relative to the course's folder, which is the working folder or one above it. heading: of a section, with or
    without its number ("Questions").
    """
    here = Path.cwd()
    file = next((file for folder in (here, *here.parents) if (file := folder / path).is_file()), None)
    if file is None:
        return ""
    relative = Path(os.path.relpath(file, here)).as_posix()
    return f"{relative}#{anchor}" if heading and (anchor := _anchor(file, heading)) else relative


def _anchor(file: Path, heading: str) -> str:
    """The section's anchor as JupyterLab makes it from its heading; "" if there is no such section, or if the notebook
    cannot be read, such as one that is being saved."""
    try:
        cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError):
        return ""
    for cell in cells:
        if cell["cell_type"] != "markdown":
            continue
        found = re.search(rf"^#+ ((?:[\d.]+ )?{re.escape(heading)})\s*$", "".join(cell["source"]), re.MULTILINE)
        if found:
            return found[1].replace(" ", "-")
    return ""
