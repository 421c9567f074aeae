"""Every chapter in a real JupyterLab: all cells run, in time, and every widget answers to mouse and keyboard."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.browser

CHAPTERS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("0*.ipynb"))
WIDGETS = {  # that a chapter shows before its questions
    "00_start_here": ["progress-card"],
    "01_attention_basics": ["score-heatmap"],
    "02_flash_attention_minimal": ["tile-stepper"],
    "03_flash_attention_v2": ["fragments"],
    "04_sparse_patterns": ["mask-explorer"],
    "05_deepseek_sparse": ["dsa-explorer"],
    "08_choosing": ["planner"],
}
AT_THE_END = ["questions", "progress-card"]
SECONDS = 60  # without a GPU, on two cores

# All that a widget draws, apart from its words.
PICTURE = """(root) => [
    ...[...root.querySelectorAll("canvas")].map((canvas) => canvas.toDataURL()),
    ...[...root.querySelectorAll("svg")].map((svg) => svg.outerHTML),
].join()"""
CHANGED = "([root, selector, before]) => root.querySelector(selector).textContent !== before"


def picture(widget):
    drawn = widget.evaluate(PICTURE)
    assert drawn, "the widget draws nothing"
    return drawn


def drive(widget, action):
    """Does one thing to a widget and asserts that its words and its picture changed."""
    words, before = widget.locator(".ak-status").text_content(), picture(widget)
    action()
    handle = widget.element_handle()
    widget.page.wait_for_function(CHANGED, arg=[handle, ".ak-status", words], timeout=5000)
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


def press_every_button(widget):
    """Each form of the questions is sent in as it is, and says what it misses; a card is made anew."""
    for button in widget.locator(".ak-check, .ak-refresh").all():
        form = button.locator("xpath=ancestor::fieldset | ancestor::*[@data-widget='progress-card']").last
        before = form.locator(".ak-status").first.text_content()
        button.click()
        handle = form.element_handle()
        widget.page.wait_for_function(CHANGED, arg=[handle, ".ak-status", before], timeout=5000)


@pytest.mark.parametrize("notebook", CHAPTERS, ids=lambda path: path.stem)
def test_chapter_runs_and_its_widgets_answer(notebook, open_notebook):
    chapter = open_notebook(f"notebooks/{notebook.name}")
    chapter.assert_every_cell_ran()
    chapter.screenshot(notebook.stem)
    names = []
    for widget in chapter.widgets():
        names.append(widget.get_attribute("data-widget"))
        if names[-1] in AT_THE_END:
            press_every_button(widget)
        else:
            drive_by_keyboard(widget)
            drive_by_mouse(widget)
        chapter.screenshot(f"{notebook.stem}-{names[-1]}", widget)
    assert names == WIDGETS[notebook.stem] + AT_THE_END
    assert chapter.seconds <= SECONDS, f"{notebook.name} took {chapter.seconds:.0f} s"


def test_every_chapter_with_a_widget_is_there():
    assert {path.stem for path in CHAPTERS} == set(WIDGETS)


# ---- the harness itself: it must see what is wrong


def test_a_failing_cell_is_seen(write_notebook, open_notebook):
    page = open_notebook(write_notebook("failing.ipynb", ["1 + 1", "raise ValueError('on purpose')", "2 + 2"]))
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


def test_a_widget_that_does_not_answer_is_seen(write_notebook, open_notebook):
    from playwright.sync_api import TimeoutError as NothingHappened

    page = open_notebook(write_notebook("dead.ipynb", [DEAD_WIDGET]))
    page.assert_every_cell_ran()
    (widget,) = page.widgets()
    with pytest.raises(NothingHappened):
        drive(widget, widget.locator(".ak-next").click)


def test_no_pop_up_asks_about_news(write_notebook, open_notebook):
    page = open_notebook(write_notebook("quiet.ipynb", ["1"])).page
    page.wait_for_timeout(1500)
    assert page.locator(".jp-toast, .Toastify__toast, .jp-Dialog").count() == 0
