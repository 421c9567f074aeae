"""The bars of the chapters in a real JupyterLab: where their links lead when a learner clicks them."""

import pytest

from course_utils.course import CHAPTERS
from course_utils.site import navigation
from tests.helpers import screenshots
from tests.helpers.jupyterlab import FRONT, open_file, shortened, tidy

pytestmark = pytest.mark.browser

CHAPTER, FOLLOWING = CHAPTERS[2:4]


@pytest.fixture(scope="module")
def short_chapter(lab, only_page):
    """The first and the last cells of a chapter, with the bars as `make format` writes them: JupyterLab takes long to
    draw all that lies between. It stays open from test to test."""
    with shortened(lab, CHAPTER.slug, lambda cells: cells[:4] + cells[-4:]) as name:
        yield name
    tidy(only_page)


@pytest.fixture
def chapter_page(short_chapter, only_page):
    open_file(only_page, short_chapter)
    yield only_page
    tidy(only_page, short_chapter)


@pytest.fixture
def short_glossary(lab):
    """Keeps the glossary's beginning and one entry for a while: JupyterLab takes long to set a hundred of them."""
    path = lab.folder / "docs" / "glossary.md"
    whole = path.read_text(encoding="utf-8")
    head, *entries = whole.split("\n### ")
    (warp,) = (entry for entry in entries if entry.startswith("warp\n"))
    path.write_text(f"{head}\n### {warp}", encoding="utf-8")
    yield "docs/glossary.md"
    path.write_text(whole, encoding="utf-8")


def link(page, text):
    return page.locator(FRONT).get_by_role("link", name=text, exact=True).first


def up_to_the_first_kernel(cells):
    (last,) = (n for n, cell in enumerate(cells) if "## 2 A first kernel" in cell.source)
    return cells[: last + 2]


def test_the_glossary_opens_as_a_page_to_read_and_leads_back_to_a_section(lab, chapter_page, short_glossary, follow):
    link(chapter_page, "Glossary").wait_for()
    screenshots.save(chapter_page, "navigation-top")
    follow(link(chapter_page, "Glossary"), short_glossary)
    preview = chapter_page.locator(f"{FRONT} .jp-MarkdownViewer")
    preview.get_by_role("heading", name="Glossary").wait_for()
    screenshots.save(chapter_page, "navigation-glossary")
    heading = preview.locator("[id='warp'], [data-jupyter-id='warp']")
    entry = heading.locator("xpath=following-sibling::p[1]")
    entry.scroll_into_view_if_needed()
    with shortened(lab, CHAPTERS[0].slug, up_to_the_first_kernel):
        follow(entry.get_by_role("link"), "notebooks/00_start_here.ipynb")
        chapter_page.locator(FRONT).get_by_role("heading", name="2 A first kernel").wait_for()


def test_the_notation_opens_as_a_page_to_read(chapter_page, follow):
    follow(link(chapter_page, "Notation"), "docs/notation.md")
    chapter_page.locator(f"{FRONT} .jp-MarkdownViewer").get_by_role("heading", name="Notation").wait_for()
    screenshots.save(chapter_page, "navigation-notation")


def test_the_next_chapter_opens(lab, chapter_page, follow):
    with shortened(lab, FOLLOWING.slug, lambda cells: cells[:4]) as path:
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
    screenshots.save(chapter_page, "navigation-bottom")
    follow(exercise_link, f"exercises/{exercise_id}.ipynb")


def test_the_file_browser_tells_the_notebooks_apart(only_page):
    only_page.evaluate("""async () => {
        await jupyterapp.commands.execute("filebrowser:activate");
        await jupyterapp.commands.execute("filebrowser:go-to-path", { path: "notebooks" });
    }""")
    names = only_page.locator(".jp-DirListing-itemText")
    names.filter(has_text=CHAPTERS[-1].slug).wait_for()
    shown = names.evaluate_all("""(all) => all.map((one) => {
        const share = Math.min(1, one.clientWidth / one.scrollWidth);
        return one.innerText.slice(0, Math.floor(share * one.innerText.length) - (share < 1 ? 2 : 0));  // less the dots
    })""")
    screenshots.save(only_page, "file-browser")
    assert len(shown) >= len(CHAPTERS) and len(set(shown)) == len(shown), shown
