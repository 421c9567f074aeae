"""What the site's pages hold: links, anchors, pictures with alt text, widgets as pictures, nothing to set up."""

import base64
import io

import nbformat
import pytest
from PIL import Image

pytest.importorskip("docutils", reason="the site's packages are not installed (pip install course-kernels[site])")

from course_utils.site import pages

WIDGET = "application/vnd.jupyter.widget-view+json"


def png(width=4, height=3):
    stored = io.BytesIO()
    Image.new("RGB", (width, height)).save(stored, format="png")
    return base64.b64encode(stored.getvalue()).decode()


def cell_of(*outputs, **metadata):
    cell = nbformat.v4.new_code_cell("draw()", id="7", execution_count=1)
    cell.metadata.update(metadata)
    cell.outputs = [nbformat.v4.new_output("display_data", data=data) for data in outputs]
    return cell


@pytest.fixture
def root(tmp_path):
    """A course of one chapter, one kernel and one exercise."""
    files = {
        "README.md": "# The course\n\n[First](notebooks/00_start_here.ipynb), [tasks](exercises)\n",
        "kernels/00_start_here/add.cu": "__global__ void add(float* a) { a[0] += 1; }\n",
        "kernels/00_start_here/broken/sub.diff": (
            "# sub.cu — add.cu broken on purpose\n"
            "--- a/kernels/00_start_here/add.cu\n+++ b/kernels/00_start_here/add.cu\n@@ -1 +1 @@\n"
            "-__global__ void add(float* a) { a[0] += 1; }\n+__global__ void add(float* a) { a[0] -= 1; }\n"
        ),
        "exercises/00_start_here/task.cu": "// YOUR CODE HERE\n",
        "docs/cheat_sheets/00_start_here.md": "# Sheet\n",
        "docs/glossary.md": "# Glossary\n\n## Two words\n\nSee [the chapter](../notebooks/00_start_here.ipynb).\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for name in ("notebooks/00_start_here.ipynb", "exercises/00_start_here/task.ipynb"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        title = nbformat.v4.new_markdown_cell("# Title")
        nbformat.write(nbformat.v4.new_notebook(cells=[title]), tmp_path / name)
    return tmp_path


@pytest.mark.parametrize(
    "link, there",
    [
        ("01_x.ipynb#Two-words", "01_x.html#Two-words"),
        ("../kernels/00_start_here/add.cu", "../kernels/00_start_here/add.cu.html"),
        ("../kernels/00_start_here/broken/sub.diff", "../kernels/00_start_here/broken/sub.cu.html"),
        ("../kernels/00_start_here/broken/sub.cu", "../kernels/00_start_here/broken/sub.cu.html"),
        ("../kernels/00_start_here", "../kernels/00_start_here/index.html"),
        ("../exercises/", "../exercises/index.html"),
        ("../docs/glossary.md#two-words", "../docs/glossary.html#two-words"),
        ("../README.md", "../index.html"),
        ("#Own-heading", "#Own-heading"),
        ("https://example.org/a.ipynb", "https://example.org/a.ipynb"),
    ],
)
def test_a_link_of_the_repository_becomes_one_of_the_site(root, link, there):
    assert pages.site_link(link, root / "notebooks" / "00_start_here.ipynb", root) == there


def test_code_keeps_its_links_and_hashes(root):
    text = "`[x](a.ipynb)`\n\n```\n# not a heading\n[x](a.ipynb)\n```"
    assert pages.markdown(text, root / "notebooks" / "a.ipynb", root, pages._jupyterlab) == text


def test_a_link_behind_code_of_two_lines_is_found(root):
    text = pages.markdown("`cd\nfolder` and `up`, [x](a.ipynb), `down`", root / "notebooks" / "b.ipynb", root)
    assert text == "`cd\nfolder` and `up`, [x](a.html), `down`"


def test_headings_get_jupyterlabs_anchors(root):
    text = pages.markdown("## 5 Which addresses?\n", root / "notebooks" / "a.ipynb", root, pages._jupyterlab)
    assert '<span id="5-Which-addresses?"></span>\n\n## 5 Which addresses?' in text


def test_headings_of_guides_get_githubs_anchors_and_jupyterlabs(root):
    text = pages.markdown("## In a `cell` of 2\n", root / "docs" / "a.md", root, pages._github, pages._jupyterlab)
    assert '<span id="In-a-cell-of-2"></span>' in text


def show(root, cell):
    return pages.outputs(cell, root / "notebooks" / "00_start_here.ipynb", root, root / "extra")


def test_a_picture_becomes_a_file_with_its_alt_text_and_size(root):
    (output,), missing = show(root, cell_of({"image/png": png(4, 3)}, alt='Bars: "a" < "b"'))
    page = output.data["text/html"]
    assert 'alt="Bars: &quot;a&quot; &lt; &quot;b&quot;" width="4" height="3"' in page
    assert 'src="../pictures/00_start_here-7-1.png"' in page
    assert (root / "extra" / "pictures" / "00_start_here-7-1.png").exists()
    assert missing == []


@pytest.mark.parametrize("alt", [None, "", " ", "one only", ["one", ""]])
def test_each_picture_of_a_cell_needs_its_own_alt_text(root, alt):
    cell = cell_of({"image/png": png()}, {"image/png": png()}, **({} if alt is None else {"alt": alt}))
    _, missing = show(root, cell)
    assert len(missing) == 1 and missing[0].startswith("2 pictures, alt text for")


def test_a_list_gives_each_picture_its_own(root):
    shown, missing = show(root, cell_of({"image/png": png()}, {"image/png": png()}, alt=["first", "second"]))
    assert missing == []
    assert ['alt="first"' in shown[0].data["text/html"], 'alt="second"' in shown[1].data["text/html"]] == [True, True]


def test_a_widget_is_its_still_picture_or_its_html_and_a_progress_bar_is_gone(root):
    view = {WIDGET: {"model_id": "1"}}
    picture, questions, bar = {"image/png": png()}, {"text/html": "<p>Q</p>"}, {"text/plain": "100%"}
    shown, _ = show(root, cell_of({**view, **picture}, {**view, **questions}, {**view, **bar}, alt="A grid"))
    assert [list(output.data) for output in shown] == [["text/html"], ["text/html"]]
    assert "A grid" in shown[0].data["text/html"] and shown[1].data["text/html"] == "<p>Q</p>"


def test_links_in_html_outputs_lead_to_pages(root):
    (output,), _ = show(root, cell_of({"text/html": '<a class="next" href="01_x.ipynb#A">next</a>'}))
    assert output.data["text/html"] == '<a class="next" href="01_x.html#A">next</a>'


def test_sources_hold_every_kind_of_page_and_nothing_to_set_up(root):
    path = root / "notebooks" / "00_start_here.ipynb"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Start"), cell_of()])
    notebook.cells.append(cell_of(tags=["keep_output", "hide-input"]))
    for tag in ("navigation", "badges", "colab-setup"):
        hidden = nbformat.v4.new_markdown_cell(f"hidden {tag}")
        hidden.metadata.tags = [tag]
        notebook.cells.append(hidden)
    sources = pages.write_sources(root, {path: notebook}, root / "build", {"00_start_here": "BADGES"})
    written = {file.relative_to(sources.pages).as_posix() for file in sources.pages.rglob("*") if file.is_file()}
    assert written >= {
        "index.md",
        "notebooks/00_start_here.ipynb",
        "exercises/00_start_here/task.ipynb",
        "exercises/00_start_here/task.cu.md",
        "exercises/index.md",
        "kernels/00_start_here/add.cu.md",
        "kernels/00_start_here/broken/sub.cu.md",
        "kernels/00_start_here/broken/index.md",
        "kernels/00_start_here/index.md",
        "kernels/index.md",
        "docs/glossary.md",
        "docs/cheat_sheets/00_start_here.md",
        "docs/cheat_sheets/index.md",
    }
    chapter = (sources.pages / "notebooks" / "00_start_here.ipynb").read_text()
    assert "hidden" not in chapter and "BADGES" in chapter
    codes = [cell for cell in nbformat.reads(chapter, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.metadata for cell in codes] == [{}, {"tags": ["hide-input"]}]
    folder = (sources.pages / "kernels" / "00_start_here" / "broken" / "index.md").read_text()
    assert "[sub.diff](sub.cu.html)" in folder
    broken = (sources.pages / "kernels" / "00_start_here" / "broken" / "sub.cu.md").read_text()
    diff, whole = broken.split("The whole kernel:")
    assert "````diff\n# sub.cu — add.cu broken on purpose\n--- a/" in diff
    assert "````cuda\n__global__ void add(float* a) { a[0] -= 1; }\n````" in whole
    start = (sources.pages / "index.md").read_text()
    assert "[First](notebooks/00_start_here.html), [tasks](exercises/index.html)" in start
    assert start.index("notebooks/00_start_here\n") < start.index("exercises/00_start_here/task\n")
