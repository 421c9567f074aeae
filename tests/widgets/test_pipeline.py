"""The pipeline viewer of chapter 07: its still picture, and in the browser its words, its lanes and its two sliders."""

import math

import pytest
from matplotlib.figure import Figure

from course_utils.chapters.hopper.blocks import blocks
from course_utils.widgets import pipeline
from course_utils.widgets.pipeline import KINDS, WINDOW
from tests.helpers.redraw import OTHER_PICTURES, assert_redrawn_within_a_frame, canvases


def cycles_in(spans, begin, end, kinds):
    """By going through every cycle."""
    return sum(any(b <= cycle < e and kind in kinds for b, e, kind in spans) for cycle in range(begin, end))


def percent(share):
    """As JavaScript rounds it: a half goes up."""
    return f"{math.floor(100 * share + 0.5)} %"


def words(block, begin):
    """What the status says of a block."""
    lanes = block["lanes"]
    products = [span for lane in lanes if lane["name"].startswith("products") for span in lane["spans"]]
    workers = [lane["spans"] for lane in lanes if lane["name"].startswith("warpgroup")]
    waiting = sum(cycles_in(spans, begin, begin + WINDOW, {"waits"}) for spans in workers) / len(workers)
    under_way = cycles_in(products, begin, begin + WINDOW, {"S", "PV"})
    return (
        f"Step {block['number']} {block['title']}: {block['cycles']:,} cycles from tile to tile, "
        f"{percent(block['share'])} of what the tensor cores could do. "
        f"Of the time shown, some product is under way in {percent(under_way / WINDOW)}; "
        f"a computing warpgroup waits in {percent(waiting / WINDOW)}. "
        f"(The clocks that were noted made the kernel take {block['slower']:.2f} times as long.)"
    )


def test_every_kind_of_a_recorded_span_has_a_colour_and_words():
    kinds = {span[2] for block in blocks() for lane in block["lanes"] for span in lane["spans"]}
    assert kinds == set(KINDS)


@pytest.mark.parametrize("number", ["3", *(pytest.param(n, marks=OTHER_PICTURES) for n in "124567")])
def test_a_step_has_a_small_still_picture(number):
    widget = pipeline(blocks(), number=number)
    block = widget.meta["blocks"][widget.step]
    assert block["number"] == number
    figure = widget.static_figure()
    (axes,) = figure.axes
    assert isinstance(figure, Figure) and [text.get_text() for text in axes.get_yticklabels()] == [
        lane["name"] for lane in block["lanes"]
    ]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [words for _, words in KINDS.values()]
    assert axes.get_xlim() == (8000, 8000 + WINDOW) and f"{block['cycles']:,} cycles" in axes.get_title(loc="left")
    bundle, _ = widget._repr_mimebundle_()
    assert bundle["image/png"].startswith(b"\x89PNG") and len(bundle["image/png"]) <= 60_000
    assert "Still picture" in bundle["text/plain"]


def test_a_step_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="number: got '8', takes 1, 2, 3, 4, 5, 6, 7"):
        pipeline(blocks(), number="8")


# ---- in the browser: what is common to all widgets is in test_widget_pages.py


@pytest.mark.browser
def test_words_and_label_of_each_step_are_those_of_its_block(open_widget):
    found = blocks()
    page = open_widget(pipeline(found))
    for step, block in enumerate(found):
        page.evaluate("(step) => model.set('step', step)", step)
        said = page.locator(".ak-status").inner_text()
        assert said == words(block, 8000)
        label = page.locator("canvas").get_attribute("aria-label")
        assert label == f"Lanes over time: copies, products, and what each warpgroup does. {said}"


@pytest.mark.browser
def test_time_is_moved_by_the_keyboard_and_each_move_is_drawn_and_said(open_widget):
    found = blocks()
    page = open_widget(pipeline(found, number="5"))
    time = page.get_by_role("slider", name="from cycle")
    before = canvases(page)
    time.focus()
    page.keyboard.press("ArrowRight")
    assert canvases(page) != before and page.locator(".ak-status").inner_text() == words(found[4], 8250)
    page.keyboard.press("End")
    last = int(time.input_value())
    assert last > 20_000 and page.locator(".ak-status").inner_text() == words(found[4], last)
    page.keyboard.press("Home")
    assert page.locator(".ak-status").inner_text() == words(found[4], 0)


@pytest.mark.browser
def test_time_is_redrawn_within_a_frame(open_widget):
    page = open_widget(pipeline(blocks(64), number="7"))
    move = """(n) => { const input = document.querySelectorAll("input[type=range]")[1];
        input.value = 500 * n; input.dispatchEvent(new Event("input")); }"""
    assert_redrawn_within_a_frame(page, move, "a move in time")
