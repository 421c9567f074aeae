"""The bars of the chapters in a real JupyterLab: where their links lead when a learner clicks them."""

from contextlib import contextmanager

import nbformat
import pytest

from course_utils.course import CHAPTERS
from course_utils.site import navigation
from tests.helpers.jupyterlab import FRONT, SCREENSHOTS, open_file, tidy

pytestmark = pytest.mark.browser

CHAPTER, FOLLOWING = CHAPTERS[2:4]


@pytest.fixture(scope="module")
def short_chapter(lab, only_page):
    """The first and the last cells of a chapter, with the bars as `make format` writes them: JupyterLab takes long to
    draw all that lies between. It stays open from test to test."""
    with shortened(lab, CHAPTER, lambda cells: cells[:4] + cells[-4:]) as name:
        yield name
    tidy(only_page)


@pytest.fixture
def chapter_page(short_chapter, only_page):
    open_file(only_page, short_chapter)
    yield only_page
    tidy(only_page, short_chapter)


@contextmanager
def shortened(lab, chapter, some_of):
    """Keeps some cells of a chapter for a while -> its path in JupyterLab."""
    path = lab.folder / "notebooks" / f"{chapter.slug}.ipynb"
    whole = path.read_bytes()
    notebook = navigation.with_navigation(nbformat.read(path, as_version=4), chapter.slug)
    notebook.cells = some_of(notebook.cells)
    nbformat.write(notebook, path)
    try:
        yield f"notebooks/{path.name}"
    finally:
        path.write_bytes(whole)


def link(page, text):
    return page.locator(FRONT).get_by_role("link", name=text, exact=True).first


def up_to_the_first_kernel(cells):
    (last,) = (n for n, cell in enumerate(cells) if "## 2 A first kernel" in cell.source)
    return cells[: last + 2]


def test_the_glossary_opens_as_a_page_to_read_and_leads_back_to_a_section(lab, chapter_page, follow):
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    link(chapter_page, "Glossary").wait_for()
    chapter_page.screenshot(path=SCREENSHOTS / "navigation-top.png")
    follow(link(chapter_page, "Glossary"), "docs/glossary.md")
    preview = chapter_page.locator(f"{FRONT} .jp-MarkdownViewer")
    preview.get_by_role("heading", name="Glossary").wait_for()
    chapter_page.screenshot(path=SCREENSHOTS / "navigation-glossary.png")
    heading = preview.locator("[id='warp'], [data-jupyter-id='warp']")
    entry = heading.locator("xpath=following-sibling::p[1]")
    entry.scroll_into_view_if_needed()
    with shortened(lab, CHAPTERS[0], up_to_the_first_kernel):
        follow(entry.get_by_role("link"), "notebooks/00_start_here.ipynb")
        chapter_page.locator(FRONT).get_by_role("heading", name="2 A first kernel").wait_for()


def test_the_notation_opens_as_a_page_to_read(chapter_page, follow):
    follow(link(chapter_page, "Notation"), "docs/notation.md")
    chapter_page.locator(f"{FRONT} .jp-MarkdownViewer").get_by_role("heading", name="Notation").wait_for()
    chapter_page.screenshot(path=SCREENSHOTS / "navigation-notation.png")


def test_the_next_chapter_opens(lab, chapter_page, follow):
    with shortened(lab, FOLLOWING, lambda cells: cells[:4]) as path:
        follow(link(chapter_page, f"{FOLLOWING.number} {FOLLOWING.title} →"), path)
        chapter_page.locator(FRONT).get_by_role("heading", level=1).first.wait_for()


def test_contents_leads_to_the_first_chapter(chapter_page, follow):
    follow(link(chapter_page, "Contents"), "notebooks/00_start_here.ipynb")


@pytest.mark.exhaustive(
    "JupyterLab draws the cells above the section when it is idle, which may take minutes; in make test "
    "tests/site/test_navigation.py holds the section's name against the heading"
)
def test_contents_leads_to_the_list_of_chapters(chapter_page, follow):
    follow(link(chapter_page, "Contents"), "notebooks/00_start_here.ipynb")
    title = navigation.CONTENTS.partition("#")[2].replace("-", " ")
    chapter_page.locator(FRONT).get_by_role("heading", name=title).wait_for(timeout=200_000)


def test_the_bar_below_leads_to_an_exercise(chapter_page, follow):
    chapter_page.evaluate("""async () => {
        const cells = jupyterapp.shell.currentWidget.content;
        await cells.scrollToItem(cells.widgets.length - 1, "end");
    }""")
    exercise_id = navigation.exercises_of_notebook(CHAPTER.slug)[0]
    exercise_link = chapter_page.locator(f"{FRONT} a[href*='{exercise_id}']").first
    exercise_link.scroll_into_view_if_needed()
    chapter_page.screenshot(path=SCREENSHOTS / "navigation-bottom.png")
    follow(exercise_link, f"exercises/{exercise_id}.ipynb")
