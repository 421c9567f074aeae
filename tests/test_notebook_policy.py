"""What a notebook must be before nbval's verdict means anything, and before it reads well on GitHub.

nbval passes a cell without an execution count unseen, and compares outputs only of cells tagged `nbval-check-output`.
So each such cell must have both, and `keep_output` so that stripping the notebook leaves them in place. Pictures are
kept with `keep_output` alone: nbval cannot compare them.
"""

import functools
import importlib
import re
from pathlib import Path

import nbformat
import pytest

from course_utils import course
from course_utils.course import chapter_notebooks
from course_utils.reading.folded import is_folded, with_folds
from course_utils.site.navigation import cheat_sheet, is_navigation
from tests.helpers.notebooks import read_notebook

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
CHAPTERS = chapter_notebooks(NOTEBOOKS.parent)
PAGES = sorted((ROOT / "docs").rglob("*.md"))
WITHOUT_KERNELS = {"08_choosing"}  # it compares the kernels of the others
LONGEST_CELL = 25  # lines of code that a reader takes in at once
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
MOST_PICTURE = 150_000  # characters of one picture: a notebook is read over the network, and its history is kept
GUESS_COLUMNS = 105  # that a page of 1440 pixels shows beside its two columns of links
HELD_PICTURE = re.compile(r'src="data:image/png;base64,([^"]*)"')  # that a guess holds back
LISTING = re.compile(r"^show\.(source|passage|difference|mistake)\(", re.MULTILINE)
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
        found += unseen(index, cell)
        if cell.outputs and "keep_output" not in tags:
            found.append(f"cell {index} was saved with an output that is not kept: run make format")
        if cell.outputs and cell.execution_count is None:
            found.append(f"cell {index} was saved with an output, but without an execution count: nbval fails")
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


def unseen(index: int, cell) -> list[str]:
    """What a reader on GitHub would miss of a cell, or wait for."""
    found = []
    shown = [output.get("data", {}) for output in cell.outputs]
    pictures = [data["image/png"] for data in shown if "image/png" in data]
    pictures += [one for data in shown for one in HELD_PICTURE.findall("".join(data.get("text/html", "")))]
    if LISTING.search(cell.source) and not any("text/html" in output.get("data", {}) for output in cell.outputs):
        found.append(f"cell {index} shows a kernel, but was saved without it: run make outputs")
    if "alt" in cell.metadata and not pictures:
        found.append(f"cell {index} shows a picture, but was saved without it: run make outputs")
    alts = cell.metadata.get("alt", [])
    alts = [alts] if isinstance(alts, str) else alts
    described = sum(bool(alt.strip()) for alt in alts)
    if len(pictures) > described:
        found.append(f"cell {index} shows {len(pictures)} pictures, and its metadata has alt for {described}")
    if any("image/svg+xml" in output.get("data", {}) for output in cell.outputs):
        found.append(f"cell {index} was saved with SVG beside its PNG: run make format")
    if any(len(picture) > MOST_PICTURE for picture in pictures):
        found.append(f"cell {index} has a picture of more than {MOST_PICTURE:,} characters")
    return found


def dead_links(markdown: str, folder: Path, own_headings: set[str]) -> list[str]:
    """Targets of relative links and pictures that are not there; an anchor must be a heading of its file."""
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
            dead += [link] if anchor not in headings_in(path.resolve()) else []
        elif anchor and file.endswith(".md"):
            dead += [link] if anchor not in anchors(path.read_text(encoding="utf-8")) else []
    return dead


@functools.cache
def headings_in(path: Path) -> set[str]:
    """Anchors of the headings in a notebook's file, to which many pages link."""
    return headings(read_notebook(path))


def headings(notebook) -> set[str]:
    """Anchors of a notebook's headings."""
    return anchors("\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown"))


def anchors(markdown: str) -> set[str]:
    """Anchors as JupyterLab makes them: the heading without marks of code, its spaces turned into hyphens."""
    text = re.sub(r"```.*?```", "", markdown, flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {title.strip().replace("`", "").replace(" ", "-") for title in titles}


def listed_and_there(notebook) -> tuple[list[str], list[str]]:
    """What the line "**Contents**" of a chapter links to, and the anchors of its sections, both in order."""
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown" and not is_navigation(cell)]
    text = re.sub(r"```.*?```", "", "\n".join(texts), flags=re.DOTALL)
    _, _, after = text.partition("**Contents**")
    contents = after.split("\n\n")[0]
    sections = re.findall(r"^## (.*)$", text, re.MULTILINE)
    return re.findall(r"\]\(#([^)\s]+)\)", contents), [title.strip().replace(" ", "-") for title in sections]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_the_lines_of_a_guess_in_sight_are_not_cut_on_the_right(path):
    for cell in read_notebook(path).cells:
        if cell.cell_type == "code" and "widgets.guess(" in cell.source and not is_folded(cell.source):
            assert max(map(len, cell.source.splitlines())) <= GUESS_COLUMNS, cell.source


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_chapter_keeps_the_policy(path):
    notebook = read_notebook(path)
    nbformat.validate(notebook)
    assert problems(notebook, path.parent) == []


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_code_that_only_imports_or_draws_is_folded_and_no_other(path):
    notebook = read_notebook(path)
    assert notebook == with_folds(notebook), "run make format"


@pytest.mark.parametrize(
    ("source", "folds"),
    [
        ("import a\nimport b\nfrom c import d\nimport e", True),
        ("import a", False),
        ("figure, ax = plt.subplots()\nax.plot(x)\nax.set(xlabel='x')\nax.legend();", True),
        ("plots.roofline(points);", False),
        ("lines = []\nfor x in rows:\n    lines.append({'a': x})\nshow.table(lines)", True),
        ("a = 1\nb = 2\nc = kernel(a, b)\nprint(c)", False),
        ("with widgets.guess('How many?') as held:\n    held.value = 2", True),
        ("a = 1\nwith widgets.guess('How many?') as held:\n    held.value = a", False),
        ("%%puzzle 00/x\nimport\nax.plot(\n1\n2\n", False),
    ],
)
def test_what_is_folded(source, folds):
    assert is_folded(source) == folds
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source, metadata={"tags": ["keep_output"]})])
    (cell,) = with_folds(notebook).cells
    assert cell.metadata.tags == ["keep_output", *["hide-input"] * folds]
    assert cell.metadata.get("jupyter", {}).get("source_hidden", False) == folds
    assert with_folds(with_folds(notebook)) == with_folds(notebook)


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_the_contents_of_a_chapter_list_all_its_sections_in_order(path):
    listed, there = listed_and_there(read_notebook(path))
    assert listed == there


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_links_of_a_page_lead_somewhere(path):
    text = path.read_text(encoding="utf-8")
    assert dead_links(text, path.parent, anchors(text)) == []


def test_the_notebooks_are_the_chapters_of_the_course():
    assert [path.stem for path in CHAPTERS] == [chapter.slug for chapter in course.CHAPTERS]


@pytest.mark.parametrize("chapter", course.CHAPTERS, ids=lambda chapter: chapter.slug)
def test_a_chapter_has_kernels_a_cheat_sheet_and_questions(chapter):
    kernels = list((ROOT / "kernels" / chapter.home).glob("*.cu"))
    assert bool(kernels) == (chapter.slug not in WITHOUT_KERNELS)
    assert (NOTEBOOKS / cheat_sheet(chapter.slug)).is_file()
    assert importlib.import_module(f"course_utils.questions.sources.{chapter.name}").QUESTIONS


# ---- the policy itself: each rule is seen to bite


def checked_cell(source="print(4)", tags=("nbval-check-output", "keep_output"), count=1, text="4\n"):
    cell = nbformat.v4.new_code_cell(source, execution_count=count)
    cell.metadata.tags = list(tags)
    cell.outputs = [nbformat.v4.new_output("stream", text=text)] if text else []
    return cell


def picture_cell(data, alt="a picture"):
    cell = nbformat.v4.new_code_cell("plot()", metadata={"tags": ["keep_output"], "alt": alt})
    cell.outputs = [nbformat.v4.new_output("display_data", data=data)]
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
        (checked_cell(source="show.passage('a.cu', 'x')"), "shows a kernel, but was saved without it"),
        (picture_cell({}), "shows a picture, but was saved without it"),
        (picture_cell({"image/png": "x"}, alt=" "), "has alt for 0"),
        (picture_cell({"image/png": "x"}, alt=[]), "has alt for 0"),
        (picture_cell({"image/png": "x", "image/svg+xml": "<svg/>"}), "SVG beside its PNG"),
        (picture_cell({"image/png": "x" * (MOST_PICTURE + 1)}), "a picture of more than"),
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


def test_links_to_a_page_must_be_headings(tmp_path):
    (tmp_path / "a.md").write_text("# Words\n\n### bank conflict\n\n```\n# no heading\n```\n### `ldmatrix`\n")
    assert dead_links("[x](a.md#bank-conflict) [y](a.md) [z](a.md#ldmatrix)", tmp_path, set()) == []
    assert dead_links("[x](a.md#bank) [y](a.md#no-heading)", tmp_path, set()) == ["a.md#bank", "a.md#no-heading"]


@pytest.mark.parametrize(
    "contents, complete",
    [
        ("[1 One](#1-One) ·\n[Two](#Two)", True),
        ("[1 One](#1-One)", False),
        ("[Two](#Two) · [1 One](#1-One)", False),
        ("[1 One](#1-One) · [Two](#Two) · [3](#3-Gone)", False),
    ],
)
def test_contents_that_are_not_complete_or_in_order_are_found(contents, complete):
    bar = nbformat.v4.new_markdown_cell("## Two", metadata={"tags": ["navigation"]})
    first = nbformat.v4.new_markdown_cell(f"# A chapter\n\n**Contents**\n{contents}\n\n[3](#3)")
    rest = nbformat.v4.new_markdown_cell("## 1 One\n### 1.1 Part\n```\n## no section\n```\n## Two")
    listed, there = listed_and_there(notebook_of(bar, first, rest))
    assert (listed == there) is complete


def test_links_inside_a_notebook_must_be_headings(tmp_path):
    nbformat.write(notebook_of(nbformat.v4.new_markdown_cell("# The first part")), tmp_path / "a.ipynb")
    good = "[x](a.ipynb#The-first-part) [y](https://example.org) `[z](code)` [own](#Own)"
    assert dead_links(good, tmp_path, {"Own"}) == []
    assert dead_links("[x](a.ipynb#nowhere) [y](#Own)", tmp_path, set()) == ["a.ipynb#nowhere", "#Own"]


def test_a_learners_own_copy_beside_a_chapter_is_no_chapter(tmp_path):
    (tmp_path / "notebooks").mkdir()
    for name in ("01_attention_basics.ipynb", "01_attention_basics.my-work-2026-11-22-173000.ipynb"):
        (tmp_path / "notebooks" / name).touch()
    assert [path.name for path in chapter_notebooks(tmp_path)] == ["01_attention_basics.ipynb"]
