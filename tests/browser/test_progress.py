"""The cards of the learner's progress in a real JupyterLab: by mouse and keyboard, in both themes."""

import json

import pytest

from course_utils import progress
from course_utils.course import CHAPTERS
from course_utils.grading.result import RIGHT, WRONG, PartResult, Result
from course_utils.questions.catalog import question_ids
from tests.helpers.contrast import LOWEST_CONTRAST
from tests.helpers.jupyterlab import SCRATCH, set_theme, wait_until, wait_until_in_front

pytestmark = pytest.mark.browser

SLUG = "02_flash_attention_minimal"
SAYS = "([root, words]) => root.querySelector('.ak-status').textContent.includes(words)"
# Cells of tables whose text sticks out of them, or that stick out of the card.
CLIPPED = """(root) => [...root.querySelectorAll("th, td, .ak-progress-page")]
    .filter((node) => node.scrollWidth > node.clientWidth + 1).map((node) => node.textContent.slice(0, 40))"""


def record_exercise(name, earned, of):
    parts = [PartResult("one", "One", earned, earned, RIGHT)]
    parts += [PartResult("two", "Two", of - earned, 0, WRONG)] if earned < of else []
    progress.record_exercise(Result(f"{SLUG}/{name}", "Title", "", 0, "cpu", "ok", tuple(parts)))


@pytest.fixture
def notebook(lab, run_cells, monkeypatch):
    """Both cards, for a learner who has begun; what a test records, another process than the notebook's does."""
    monkeypatch.setenv("XDG_DATA_HOME", str(lab.data))
    progress.reset()
    record_exercise("online_softmax", 12, 12)
    record_exercise("mini_flash", 13, 20)
    cells = ["from course_utils import widgets", f'widgets.finish_chapter("{SLUG}")', "widgets.show_progress()"]
    notebook = run_cells(cells)
    notebook.assert_every_cell_ran()
    yield notebook
    progress.reset()


def test_an_answer_of_another_process_appears_by_mouse_and_keyboard(notebook):
    page = notebook.page
    chapter, course = notebook.widgets()
    status = chapter.locator(".ak-status")
    assert status.get_attribute("aria-live") == "polite"
    ids = question_ids(SLUG)
    of = chapter.locator("progress").first.get_attribute("max")

    progress.record_answer(ids[0], True, 1, 0)
    chapter.locator("button.ak-refresh").click()
    wait_until(page, SAYS, [chapter.element_handle(), f"1 of {of} questions right"])

    progress.record_answer(ids[1], True, 1, 0)
    refresh = chapter.locator("button.ak-refresh")
    refresh.focus()
    page.keyboard.press("Enter")
    wait_until(page, SAYS, [chapter.element_handle(), f"2 of {of} questions right"])
    assert refresh.evaluate("(node) => node === document.activeElement")
    assert refresh.evaluate("(node) => getComputedStyle(node).outlineStyle") == "solid"
    page.keyboard.press("Tab")
    assert chapter.locator("button.ak-export").evaluate("(node) => node === document.activeElement")

    with page.expect_download() as download:
        page.keyboard.press("Enter")
    assert download.value.suggested_filename == "attention-kernels-progress.json"
    exported = json.loads(download.value.path().read_text(encoding="utf-8"))
    assert [one["attempts"] for one in exported["questions"]] == [1, 1]
    assert {one["exercise"] for one in exported["exercises"]} == {f"{SLUG}/online_softmax", f"{SLUG}/mini_flash"}
    wait_until(page, SAYS, [chapter.element_handle(), "python -m course_utils progress --json FILE"])

    course.scroll_into_view_if_needed()
    course.locator("button.ak-refresh").click()
    wait_until(page, SAYS, [course.element_handle(), f" of {len(CHAPTERS)} chapters run to the end, 2 of "])


def test_links_open_in_jupyterlab_as_tabs(notebook):
    page = notebook.page
    chapter, _ = notebook.widgets()
    following = "notebooks/02_flash_attention_backward.ipynb"
    chapter.get_by_role("link", name=following).focus()
    page.keyboard.press("Enter")
    wait_until_in_front(page, following)
    open_ones = "() => [...jupyterapp.shell.widgets('main')].map((one) => one.context?.path)"
    assert SCRATCH in page.evaluate(open_ones)  # the page was not left


@pytest.mark.parametrize(
    "theme",
    [
        "JupyterLab Light",
        pytest.param("JupyterLab Dark", marks=pytest.mark.exhaustive("the second theme: the light one in make test")),
    ],
)
def test_the_cards_are_legible_in_both_themes(notebook, theme):
    page = notebook.page
    page.set_viewport_size({"width": 1300, "height": 1600})  # the whole course on one picture
    set_theme(page, theme)
    try:
        for name, card in zip(("chapter", "course"), notebook.widgets(), strict=True):
            notebook.screenshot(f"progress-{name}-{theme.split()[1].lower()}", card)
            assert card.evaluate(LOWEST_CONTRAST) >= 4.5
            assert card.evaluate(CLIPPED) == []
    finally:
        set_theme(page)
