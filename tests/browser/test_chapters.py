"""Chapters in a real JupyterLab: all cells run, in time, and every widget answers to mouse and keyboard."""

import re

import pytest

from course_utils.course import chapter_notebooks
from tests.helpers.chapter_widgets import IN_A_VERDICT, WIDGETS, WITHOUT_STEPS
from tests.helpers.jupyterlab import ROOT, NotebookPage, shortened, show_cells, wait_until
from tests.helpers.redraw import CANVASES

pytestmark = pytest.mark.browser

CHAPTERS = chapter_notebooks(ROOT)
SHORT = "00_start_here"
AT_THE_END = ["questions", "progress-card"]
SHOWS = {  # each of them in a cell of its own
    "launch-grid": "widgets.launch_grid()",
    "load-sectors": "widgets.load_sectors()",
    "bank-turns": "widgets.bank_turns()",
    "score-heatmap": "widgets.score_heatmap(*torch.randn(2, 6, 8))",
    "two-pieces": "widgets.two_pieces([1, 3, 2, 5, 4, 2])",
    "tile-stepper": "widgets.tile_stepper(*torch.randn(3, 24, 8), block_rows=8, block_cols=8)",
    "fragments": "widgets.warp_fragments()",
    "bank-places": "widgets.bank_places()",
    "mask-explorer": "widgets.mask_explorer()",
    "dsa-explorer": "widgets.dsa_explorer()",
    "cache-explorer": "widgets.cache_explorer()",
    "pipeline": "from course_utils.chapters.hopper.blocks import blocks\n\nwidgets.pipeline(blocks())",
    "planner": "widgets.planner()",
    "player": """from course_utils.launches.chapters import course_launches

widgets.play(course_launches()["two_ways"].run)""",
}
WITHOUT_STILLS = """import torch
from course_utils import widgets
from course_utils.widgets import frame
still = frame.Frame._repr_mimebundle_
del frame.Frame._repr_mimebundle_"""
SHOWS_A_WIDGET = re.compile(r"^(import|from) |\bwidgets\.", re.MULTILINE)
SECONDS = 60  # without a GPU, on two cores with nothing else to do: make test-all

# All that a widget draws, apart from its words.
PICTURE = f"""(root) => [
    ({CANVASES})(root),
    ...[...root.querySelectorAll("svg")].map((svg) => svg.outerHTML),
].join("")"""
CHANGED = "([root, selector, before]) => root.querySelector(selector).textContent !== before"


def picture(widget):
    drawn = widget.evaluate(PICTURE)
    assert drawn, "the widget draws nothing"
    return drawn


def drive(widget, action, milliseconds=30_000):
    """Does one thing to a widget and asserts that its words and its picture changed, within this time."""
    words, before = widget.locator(".ak-status").text_content(), picture(widget)
    action()
    handle = widget.element_handle()
    wait_until(widget.page, CHANGED, [handle, ".ak-status", words], milliseconds)
    assert picture(widget) != before, "the words changed, but the picture did not"


def drive_by_keyboard(widget):
    slider = widget.locator("input.ak-step")
    slider.focus()
    page = widget.page
    page.keyboard.press("Home")
    low = int(slider.get_attribute("min") or 0)
    assert int(slider.input_value()) == low
    drive(widget, lambda: page.keyboard.press("ArrowRight"))
    assert int(slider.input_value()) == low + 1, "JupyterLab took the arrow key"
    drive(widget, lambda: page.keyboard.press("ArrowLeft"))
    drive(widget, lambda: page.keyboard.press("End"))
    drive(widget, lambda: page.keyboard.press("Home"))


def drive_by_mouse(widget):
    drive(widget, widget.locator(".ak-next").click)
    drive(widget, widget.locator(".ak-prev").click)
    page, box = widget.page, widget.locator("input.ak-step").bounding_box()
    middle = box["y"] + box["height"] / 2

    def drag_to_the_middle():
        page.mouse.move(box["x"] + 8, middle)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] / 2, middle, steps=4)
        page.mouse.up()

    drive(widget, drag_to_the_middle)


def press_buttons(widget, most):
    """Forms of the questions are sent in as they are, and say what they miss; a card is made anew."""
    for button in widget.locator(".ak-check, .ak-refresh").all()[:most]:
        form = button.locator("xpath=ancestor::fieldset | ancestor::*[@data-widget='progress-card']").last
        before = form.locator(".ak-status").first.text_content()
        button.click()
        handle = form.element_handle()
        wait_until(widget.page, CHANGED, [handle, ".ak-status", before])


def skip_the_guess(widget):
    """What is held back is hidden before the click and shown after it, if there is more than the figure."""
    held = widget.locator(".ak-held")
    assert not held.is_visible()
    widget.locator(".ak-skip").click()
    wait_until(widget.page, CHANGED, [widget.element_handle(), ".ak-skip", "Skip"])
    assert held.is_visible() or not held.inner_html()


def drive_all(chapter, slug, most_buttons=None):
    """Drives every widget of a chapter and answers its guesses; asserts that those widgets are there.

    most_buttons: so many of the questions are sent in.
    """
    names = []
    for widget in chapter.widgets():
        if widget.get_attribute("data-widget") == "guess":
            skip_the_guess(widget)
            continue
        if widget.get_attribute("data-widget") in (WITHOUT_STEPS, IN_A_VERDICT):
            continue
        names.append(widget.get_attribute("data-widget"))
        if names[-1] in AT_THE_END:
            press_buttons(widget, most_buttons)
        else:
            drive_by_keyboard(widget)
            drive_by_mouse(widget)
        chapter.screenshot(f"{slug}-{names[-1]}", widget)
    assert names == WIDGETS[slug] + AT_THE_END


@pytest.mark.exhaustive(
    f"all chapters: in make test the cells of {SHORT} that show widgets run, test_a_widget_answers drives others, and "
    "nbval runs each chapter"
)
@pytest.mark.parametrize("slug", WIDGETS)
def test_chapter_runs_and_its_widgets_answer(slug, open_notebook):
    chapter = open_notebook(f"notebooks/{slug}.ipynb")
    chapter.assert_every_cell_ran()
    chapter.screenshot(slug)
    drive_all(chapter, slug)
    assert chapter.seconds <= SECONDS, f"{slug} took {chapter.seconds:.0f} s"


def that_show_widgets(cells):
    """Of a chapter's cells the imports and those that show a widget."""
    return [cell for cell in cells if cell.cell_type == "code" and SHOWS_A_WIDGET.search(cell.source)]


def test_the_cells_of_a_chapter_that_show_widgets_run_and_the_widgets_answer(lab, open_notebook):
    with shortened(lab, SHORT, that_show_widgets) as path:
        chapter = open_notebook(path)
        chapter.assert_every_cell_ran()
        chapter.screenshot(SHORT)
        drive_all(chapter, SHORT, most_buttons=2)  # test_questions.py has each kind of question


def test_every_chapter_with_a_widget_is_there():
    assert {path.stem for path in CHAPTERS} == set(WIDGETS)


# They get tensors and a packed recording, and ask Python while they are used; that of SHORT is made in the browser.
IN_MAKE_TEST = ("score-heatmap", "planner", "player")


@pytest.fixture(scope="module")
def all_widgets(request, only_page):
    """A notebook that shows every widget, run once: without the still pictures, which tests/widgets draws. With the
    places of their cells."""
    names = list(SHOWS) if request.config.getoption("--exhaustive") else IN_MAKE_TEST
    cells = [SHOWS[name] for name in names]
    show_cells(only_page, [WITHOUT_STILLS, *cells, "frame.Frame._repr_mimebundle_ = still"])
    return NotebookPage(only_page), {name: place for place, name in enumerate(names, 1)}


OTHERS = pytest.mark.exhaustive(
    "in make test tests/widgets drives each widget in a bare page, and JupyterLab one of each way to get its numbers"
)


@pytest.mark.parametrize("name", [name if name in IN_MAKE_TEST else pytest.param(name, marks=OTHERS) for name in SHOWS])
def test_a_widget_answers(name, all_widgets):
    notebook, places = all_widgets
    notebook.assert_every_cell_ran()
    (widget,) = notebook.widgets_of(places[name])
    assert widget.get_attribute("data-widget") == name
    widget.locator("input.ak-step").focus()
    widget.page.keyboard.press("Home")
    drive(widget, lambda: widget.page.keyboard.press("ArrowRight"))
    drive(widget, widget.locator(".ak-prev").click)
    notebook.screenshot(f"widget-{name}", widget)


def test_every_widget_of_a_chapter_is_among_those_that_answer():
    assert {name for names in WIDGETS.values() for name in names} <= set(SHOWS)


# ---- the harness itself: it must see what is wrong


def test_a_failing_cell_is_seen(run_cells):
    page = run_cells(["1 + 1", "raise ValueError('on purpose')", "2 + 2"])
    with pytest.raises(AssertionError, match="(?s)cell 1 failed.*on purpose"):
        page.assert_every_cell_ran()


DEAD_WIDGET = '''
import anywidget
class Dead(anywidget.AnyWidget):
    _esm = """export default { render({ el }) { el.innerHTML = `<div class="ak-widget" data-widget="dead">
        <svg width="9" height="9"></svg><input class="ak-step" type="range" max="5">
        <button class="ak-next">next</button><div class="ak-status">step 0</div></div>`; } }"""
Dead()
'''


def test_a_widget_that_does_not_answer_is_seen(run_cells):
    from playwright.sync_api import TimeoutError as NothingHappened

    page = run_cells([DEAD_WIDGET])
    page.assert_every_cell_ran()
    (widget,) = page.widgets()
    with pytest.raises(NothingHappened):
        drive(widget, widget.locator(".ak-next").click, milliseconds=1000)


def test_no_pop_up_asks_about_news(run_cells):
    page = run_cells(["1"]).page
    page.wait_for_timeout(1500)  # it would stay until it is answered
    assert page.locator(".jp-toast, .Toastify__toast, .jp-Dialog").count() == 0
