"""Badges that open a chapter without installing anything, and the cell that sets the course up on Colab and Kaggle.

They name the repository, because these services fetch and run what lies there. The course does not know its own
address: run `make badges REPOSITORY=owner/name` before publishing it, and again after moving it.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course_utils.course import chapter_notebooks

BRANCH = "main"
BADGES, SETUP = "badges", "colab-setup"  # tags of the two cells
FIRST, LAST = "<!-- badges: written by make badges -->", "<!-- end of badges -->"
START = "00_start_here"


def check_repository(repository: str) -> str:
    """Returns `repository`. Raises ValueError unless it is a GitHub repository's "owner/name"."""
    if not re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,38})/[A-Za-z0-9._-]{1,100}", repository):
        raise ValueError(f"repository: got {repository!r}, takes owner/name of a GitHub repository")
    return repository


def markdown(repository: str, slug: str) -> str:
    """The badges of one chapter, as Markdown."""
    check_repository(repository)
    notebook = f"notebooks/{slug}.ipynb"
    places = (
        (
            "Open in Colab",
            "https://colab.research.google.com/assets/colab-badge.svg",
            f"https://colab.research.google.com/github/{repository}/blob/{BRANCH}/{notebook}",
        ),
        (
            "Open in Kaggle",
            "https://kaggle.com/static/images/open-in-kaggle.svg",
            f"https://kaggle.com/kernels/welcome?src=https://github.com/{repository}/blob/{BRANCH}/{notebook}",
        ),
        (
            "Open in Binder",
            "https://mybinder.org/badge_logo.svg",
            f"https://mybinder.org/v2/gh/{repository}/{BRANCH}?urlpath=lab/tree/{notebook}",
        ),
        (
            "Open in GitHub Codespaces",
            "https://github.com/codespaces/badge.svg",
            f"https://codespaces.new/{repository}?quickstart=1",
        ),
    )
    return "\n".join(f"[![{says}]({picture})]({leads_to})" for says, picture, leads_to in places)


def setup_cell(repository: str, slug: str) -> str:
    """The code that fetches the course on Colab or Kaggle and sets it up for a chapter, and does nothing elsewhere."""
    check_repository(repository)
    return f"""# Colab and Kaggle only: fetches the course and installs what they lack, beside their own PyTorch.
import os
import runpy
import subprocess
from pathlib import Path

# Kaggle's machines are made from Colab's, and have Colab's variable, too.
kaggle, colab = os.environ.get("KAGGLE_KERNEL_RUN_TYPE"), os.environ.get("COLAB_RELEASE_TAG")
if kaggle or colab:
    address = "https://github.com/{repository}"
    folder = Path("/kaggle/working" if kaggle else "/content", Path(address).name)
    if not folder.is_dir() and subprocess.run(["git", "clone", "--depth=1", address, folder]).returncode:
        raise RuntimeError("The course was not fetched. On Kaggle, switch Internet on in the settings first.")
    runpy.run_path(str(folder / ".ci" / "colab_setup.py"))["main"]("{slug}")"""


def put_into_notebook(notebook: NotebookNode, repository: str, slug: str) -> None:
    """Adds both cells after the title, or replaces the present ones."""
    cells = [cell for cell in notebook.cells if not {BADGES, SETUP} & set(cell.metadata.get("tags", ()))]
    title = next((n for n, cell in enumerate(cells) if re.match(r"# ", cell.source)), -1)
    badges = nbformat.v4.new_markdown_cell(markdown(repository, slug), id="badges", metadata={"tags": [BADGES]})
    setup = nbformat.v4.new_code_cell(setup_cell(repository, slug), id="colab-setup", metadata={"tags": [SETUP]})
    notebook.cells = [*cells[: title + 1], badges, setup, *cells[title + 1 :]]


def put_into_readme(text: str, repository: str) -> str:
    """`text` with the badges of the first chapter below its title, in place of older ones."""
    text = re.sub(rf"{re.escape(FIRST)}.*?{re.escape(LAST)}\n\n", "", text, flags=re.DOTALL)
    title, _, rest = text.partition("\n\n")
    return f"{title}\n\n{FIRST}\n{markdown(repository, START)}\n{LAST}\n\n{rest}"


def main(repository: str, root: Path) -> int:
    """The command: writes badges and set-up cells into every chapter of `root`, and badges into its README."""
    for path in chapter_notebooks(root):
        notebook = nbformat.read(path, as_version=4)
        put_into_notebook(notebook, repository, path.stem)
        nbformat.write(notebook, path)
    readme = root / "README.md"
    readme.write_text(put_into_readme(readme.read_text(encoding="utf-8"), repository), encoding="utf-8")
    return 0
