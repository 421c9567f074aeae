"""What a notebook must be before nbval's verdict means anything, and before it reads well on GitHub.

nbval passes a cell without an execution count unseen, and compares outputs only of cells tagged `nbval-check-output`.
So each such cell must have both, and `keep_output` so that stripping the notebook leaves them in place. Pictures are
kept with `keep_output` alone: nbval cannot compare them.
"""

import re
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
CHAPTERS = sorted(NOTEBOOKS.glob("*.ipynb"))
LONGEST_CELL = 25  # lines of code that a reader takes in at once
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
HIDING_TAGS = {"nbval-skip", "nbval-ignore-output", "nbval-raises-exception", "raises-exception"}


def problems(notebook, folder: Path) -> list[str]:
    """Everything wrong with a notebook that lies in `folder`, one sentence each."""
    found = []
    if "widgets" in notebook.metadata:
        found.append("metadata.widgets breaks GitHub's rendering: run make format")
    checked = 0
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            dead = dead_links(cell.source, folder, headings(notebook))
            found += [f"cell {index} links to {link}, which does not exist" for link in dead]
        if cell.cell_type != "code":
            continue
        tags = set(cell.metadata.get("tags", ()))
        if hiding := tags & HIDING_TAGS:
            found.append(f"cell {index} hides from nbval by {', '.join(sorted(hiding))}")
        if len(cell.source.splitlines()) > LONGEST_CELL:
            found.append(f"cell {index} has {len(cell.source.splitlines())} lines; at most {LONGEST_CELL}")
        if any(output.output_type == "error" for output in cell.outputs):
            found.append(f"cell {index} was saved with an error")
        if any(WIDGET_VIEW in output.get("data", {}) for output in cell.outputs):
            found.append(f"cell {index} was saved with a widget whose kernel is gone: run make format")
        if cell.outputs and "keep_output" not in tags:
            found.append(f"cell {index} was saved with an output that is not kept: run make format")
        if "nbval-check-output" in tags:
            checked += 1
            if "keep_output" not in tags:
                found.append(f"cell {index} is checked, but is not tagged keep_output")
            if not cell.outputs:
                found.append(f"cell {index} is checked, but was saved without an output")
            if cell.execution_count is None:
                found.append(f"cell {index} is checked, but has no execution count: nbval passes it unseen")
            if unstable := re.search(r"\b0x[0-9a-f]{6,}|/(?:tmp|home|root|work)/", str(cell.outputs)):
                found.append(f"cell {index} is checked, but its output depends on the machine: {unstable[0]}")
    if not checked:
        found.append("no cell is tagged nbval-check-output: nothing is really checked")
    return found


def dead_links(markdown: str, folder: Path, own_headings: set[str]) -> list[str]:
    """Targets of relative links and pictures that are not there; an anchor must be a heading of its notebook."""
    dead = []
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", markdown, flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)[^)]*\)|<img[^>]*src=\"([^\"]+)\"", prose):
        link = "".join(target)
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        path = folder / file
        if file and not path.exists():
            dead.append(link)
        elif anchor and not file:
            dead += [link] if anchor not in own_headings else []
        elif anchor and file.endswith(".ipynb"):
            dead += [link] if anchor not in headings(nbformat.read(path, as_version=4)) else []
    return dead


def headings(notebook) -> set[str]:
    """Anchors as JupyterLab makes them: the heading with its spaces turned into hyphens."""
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    return {title.strip().replace(" ", "-") for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_chapter_keeps_the_policy(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert problems(notebook, path.parent) == []


@pytest.mark.parametrize("path, following", list(zip(CHAPTERS, CHAPTERS[1:], strict=False)), ids=lambda path: path.stem)
def test_chapter_links_to_the_next(path, following):
    notebook = nbformat.read(path, as_version=4)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert f"]({following.name}" in text


def test_there_are_chapters():
    stems = {path.stem for path in CHAPTERS}
    assert stems >= {"00_start_here", "01_attention_basics", "02_flash_attention_minimal"}


# ---- the policy itself: each rule is seen to bite


def checked_cell(source="print(4)", tags=("nbval-check-output", "keep_output"), count=1, text="4\n"):
    cell = nbformat.v4.new_code_cell(source, execution_count=count)
    cell.metadata.tags = list(tags)
    cell.outputs = [nbformat.v4.new_output("stream", text=text)] if text else []
    return cell


def notebook_of(*cells):
    return nbformat.v4.new_notebook(cells=list(cells))


def test_a_good_notebook_has_no_problems(tmp_path):
    assert problems(notebook_of(checked_cell()), tmp_path) == []


@pytest.mark.parametrize(
    "cell, words",
    [
        (checked_cell(text=""), "without an output"),
        (checked_cell(count=None), "no execution count"),
        (checked_cell(tags=["nbval-check-output"]), "not tagged keep_output"),
        (checked_cell(tags=[]), "not kept"),
        (checked_cell(tags=["nbval-skip"]), "hides"),
        (checked_cell(text="<object at 0x7f12ab34cd56>\n"), "depends on the machine"),
        (checked_cell(source="x = 1\n" * 26), "26 lines"),
        (checked_cell(tags=["keep_output"]), "nothing is really checked"),
        (nbformat.v4.new_markdown_cell("see [here](not_there.ipynb)"), "not_there.ipynb"),
        (nbformat.v4.new_markdown_cell('<img src="nothing.png" alt="">'), "nothing.png"),
    ],
)
def test_each_rule_bites(cell, words, tmp_path):
    assert any(words in problem for problem in problems(notebook_of(cell), tmp_path))


def test_a_saved_error_is_found(tmp_path):
    cell = checked_cell()
    cell.outputs = [nbformat.v4.new_output("error", ename="ValueError", evalue="", traceback=[])]
    assert "cell 0 was saved with an error" in problems(notebook_of(cell), tmp_path)


def test_a_stored_widget_view_is_found(tmp_path):
    cell = checked_cell()
    cell.outputs = [nbformat.v4.new_output("display_data", data={WIDGET_VIEW: {"model_id": "x"}})]
    assert any("kernel is gone" in problem for problem in problems(notebook_of(cell), tmp_path))


def test_widget_state_is_found(tmp_path):
    notebook = notebook_of(checked_cell())
    notebook.metadata.widgets = {}
    assert any("metadata.widgets" in problem for problem in problems(notebook, tmp_path))


def test_links_inside_a_notebook_must_be_headings(tmp_path):
    nbformat.write(notebook_of(nbformat.v4.new_markdown_cell("# The first part")), tmp_path / "a.ipynb")
    good = "[x](a.ipynb#The-first-part) [y](https://example.org) `[z](code)` [own](#Own)"
    assert dead_links(good, tmp_path, {"Own"}) == []
    assert dead_links("[x](a.ipynb#nowhere) [y](#Own)", tmp_path, set()) == ["a.ipynb#nowhere", "#Own"]
