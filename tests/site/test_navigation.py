"""The bars with links above and below each chapter: what they say, that the notebooks have them, and the tool."""

import base64
import importlib.util
import io
import re
from pathlib import Path

import nbformat
import pytest
from PIL import Image

from course_utils.course import CHAPTERS
from course_utils.grading.catalog import EXERCISE_IDS, exercise, exercises_of_notebook
from course_utils.site import navigation

ROOT = Path(__file__).resolve().parents[2]
SLUGS = [chapter.slug for chapter in CHAPTERS]
WAY = [chapter for chapter in CHAPTERS if chapter.slug != "00_memory_and_tools"]  # which stands beside it
FIRST, LAST = SLUGS[0], SLUGS[-1]


@pytest.fixture(scope="module")
def tool():
    """.ci/tidy_notebooks.py as a module."""
    spec = importlib.util.spec_from_file_location("tidy_notebooks", ROOT / ".ci" / "tidy_notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def links(markdown: str) -> list[str]:
    return re.findall(r"\]\(([^)]+)\)", markdown)


def chapter_notebook():
    cells = [
        nbformat.v4.new_markdown_cell("# A chapter", id="0"),
        nbformat.v4.new_code_cell("widgets.finish_chapter()", id="1"),
    ]
    return nbformat.v4.new_notebook(cells=cells)


# ---- what the bars say


def test_the_first_chapter_has_none_before_it_and_the_last_none_after_it():
    assert navigation.neighbours(FIRST) == (None, WAY[1])
    assert navigation.neighbours(LAST) == (WAY[-2], None)
    assert "←" not in navigation.top(FIRST) and "→" not in navigation.top(LAST)
    assert "Back" not in navigation.bottom(FIRST) and "**Next**" not in navigation.bottom(LAST)
    assert "end of the course" in navigation.bottom(LAST)


@pytest.mark.parametrize("chapter, before, after", list(zip(WAY[1:-1], WAY, WAY[2:], strict=False)))
def test_a_chapter_links_to_those_before_and_after_it(chapter, before, after):
    for bar in navigation.top(chapter.slug), navigation.bottom(chapter.slug):
        assert {f"{before.slug}.ipynb", f"{after.slug}.ipynb"} <= set(links(bar))


def test_the_way_leads_past_the_chapter_on_memory_and_has_it_beside_it():
    """From Start here a learner goes on to chapter 01, whose path to a flash kernel is counted without this chapter."""
    assert navigation.neighbours("00_memory_and_tools") == (CHAPTERS[0], CHAPTERS[2])
    assert "**Next** [01 Attention basics]" in navigation.bottom(FIRST)
    for bar in navigation.top(FIRST), navigation.bottom(FIRST):
        assert bar.index("](01_attention_basics.ipynb)") < bar.index("](00_memory_and_tools.ipynb)")
    assert not [one.slug for one in CHAPTERS[1:] if navigation.side_chapter(one.slug)]


@pytest.mark.parametrize("slug", SLUGS)
def test_the_bar_above_leads_to_contents_cheat_sheet_glossary_and_notation(slug):
    expected = {navigation.CONTENTS, navigation.cheat_sheet(slug), navigation.GLOSSARY, navigation.NOTATION}
    assert expected <= set(links(navigation.top(slug)))
    assert "\n" not in navigation.top(slug)


def test_the_idea_of_the_next_chapter_is_said():
    for chapter, following in zip(WAY, WAY[1:], strict=False):
        assert following.idea in navigation.bottom(chapter.slug)


def leads_to(exercise_id):
    """The slug of the notebook that an exercise belongs to."""
    return next(slug for slug in SLUGS if exercise_id in exercises_of_notebook(slug))


def test_every_exercise_is_linked_from_its_chapter_and_only_there():
    linked = [link for slug in SLUGS for link in links(navigation.bottom(slug)) if link.startswith("../exercises/")]
    assert sorted(linked) == sorted(f"../exercises/{one}.ipynb" for one in EXERCISE_IDS)
    assert all(exercise(one).title in navigation.bottom(leads_to(one)) for one in EXERCISE_IDS)


@pytest.mark.parametrize("exercise_id", EXERCISE_IDS)
def test_every_exercise_links_back_to_its_chapter(exercise_id):
    first = nbformat.read(ROOT / "exercises" / f"{exercise_id}.ipynb", as_version=4).cells[0].source
    assert f"../../notebooks/{leads_to(exercise_id)}.ipynb" in links(first)


def test_the_list_of_chapters_is_complete_and_in_order():
    file, _, anchor = navigation.CONTENTS.partition("#")
    notebook = nbformat.read(ROOT / "notebooks" / file, as_version=4)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    section = text.split(f"\n## {anchor.replace('-', ' ')}\n")[1].split("\n## ")[0]
    (table,) = re.findall(r"(?m)^\| chapter .*(?:\n\|.*)+", section)
    assert [link.removesuffix(".ipynb") for link in links(table)] == SLUGS[1:], "00 itself needs no link"
    assert all(chapter.title in table and chapter.idea in table for chapter in CHAPTERS)


def test_an_unknown_chapter_is_refused():
    with pytest.raises(LookupError, match="09_nowhere"):
        navigation.top("09_nowhere")


# ---- the notebooks, and the tool that writes the bars


@pytest.mark.parametrize("slug", SLUGS)
def test_the_notebook_has_its_bars(slug):
    notebook = nbformat.read(ROOT / "notebooks" / f"{slug}.ipynb", as_version=4)
    first, *middle, last = notebook.cells
    run = "run make format"
    assert (first.id, first.source) == (navigation.TOP, navigation.top(slug)), run
    assert (last.id, last.source) == (navigation.BOTTOM, navigation.bottom(slug)), run
    assert not [cell.id for cell in middle if navigation.is_navigation(cell)], run
    code = [cell.source for cell in middle if cell.cell_type == "code"]
    assert middle[-1].source == code[-1] and "widgets.finish_chapter(" in code[-1], "finish_chapter is last"


def test_the_tool_puts_the_bars_at_both_ends(tool, tmp_path):
    path = tmp_path / f"{SLUGS[1]}.ipynb"
    nbformat.write(chapter_notebook(), path)
    tool.main([str(path)])
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert [cell.id for cell in notebook.cells] == [navigation.TOP, "0", "1", navigation.BOTTOM]
    assert notebook.cells[0].metadata.tags == [navigation.TAG] == notebook.cells[-1].metadata.tags


def test_the_tool_changes_nothing_the_second_time(tool, tmp_path):
    path = tmp_path / f"{SLUGS[1]}.ipynb"
    nbformat.write(chapter_notebook(), path)
    tool.main([str(path)])
    once, when = path.read_bytes(), path.stat().st_mtime_ns
    tool.main([str(path)])
    assert path.read_bytes() == once and path.stat().st_mtime_ns == when


def test_the_tool_replaces_bars_that_are_out_of_date_or_out_of_place(tool):
    slug = SLUGS[1]
    right = tool.tidy(chapter_notebook(), slug)
    stale = tool.tidy(chapter_notebook(), slug)
    stale.cells[0].source = "[Contents](elsewhere.ipynb)"
    stale.cells.append(nbformat.v4.new_markdown_cell("a bar of last year", id="9", metadata={"tags": ["navigation"]}))
    stale.cells.insert(2, stale.cells.pop(-2))
    assert tool.tidy(stale, slug) == right


def test_the_tool_leaves_other_notebooks_without_bars_and_all_without_widget_views_and_svg(tool):
    notebook = chapter_notebook()
    data = {**dict.fromkeys(tool.NOT_SAVED, "x"), "text/plain": "a picture"}
    notebook.cells[1].outputs = [nbformat.v4.new_output("display_data", data=data)]
    tidied = tool.tidy(notebook, "an_exercise")
    assert [cell.id for cell in tidied.cells] == ["0", "1"]
    assert dict(tidied.cells[1].outputs[0].data) == {"text/plain": "a picture"}
    assert {*tool.NOT_SAVED} <= notebook.cells[1].outputs[0].data.keys(), "the notebook that was given stays as it was"


def test_the_tool_saves_a_picture_with_a_palette_and_one_that_has_it_as_it_is(tool):
    file = io.BytesIO()
    Image.radial_gradient("L").convert("RGB").save(file, format="png")
    notebook = chapter_notebook()
    data = {"image/png": base64.encodebytes(file.getvalue()).decode()}
    notebook.cells[1].outputs = [nbformat.v4.new_output("display_data", data=data)]
    tidied = tool.tidy(notebook, "an_exercise")
    assert Image.open(io.BytesIO(base64.b64decode(tidied.cells[1].outputs[0].data["image/png"]))).mode == "P"
    assert tool.tidy(tidied, "an_exercise") == tidied


def test_make_lab_serves_the_whole_course():
    # Given a file, Jupyter would take the file's folder as its root, and links to ../docs/ would lead nowhere.
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"jupyter lab .*--ServerApp\.root_dir=\$\(CURDIR\) notebooks/", makefile)
