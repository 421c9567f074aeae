"""The JavaScript half, in a bare page of a real browser: by mouse and keyboard, in both themes, and how fast."""

import re

import pytest
import torch

from course_utils.chapters.hopper.blocks import blocks
from course_utils.chapters.hopper.race import figures
from course_utils.chapters.missing_barrier import LEVELS, packed
from course_utils.widgets import (
    bank_places,
    bank_turns,
    cache_explorer,
    dsa_explorer,
    example_scores,
    find_the_missing_barrier,
    launch_grid,
    load_sectors,
    mask_explorer,
    paint_a_mask,
    pipeline,
    planner,
    race_past_cudnn,
    two_pieces,
    warp_fragments,
)
from course_utils.widgets.heatmap import scores_and_weights
from tests.helpers.example_widgets import EXAMPLES, SCORES, TOKENS, heatmap, random, stepper
from tests.helpers.redraw import CANVASES, assert_redrawn_within_a_frame, canvases

pytestmark = pytest.mark.browser


LARGEST = {  # the player's is in test_player.py
    "launch-grid": lambda: launch_grid(1024, 64),
    "load-sectors": lambda: load_sectors(32, 16),
    "bank-turns": bank_turns,
    "score-heatmap": lambda: heatmap(64, 64),
    "tile-stepper": lambda: stepper(128, 128, block_rows=32, block_cols=32),
    "two-pieces": lambda: two_pieces(2 * SCORES),
    "fragments": lambda: warp_fragments(head_dim=128),
    "bank-places": lambda: bank_places(width=128),
    "mask-explorer": lambda: mask_explorer(length=1024, tile=16),
    "dsa-explorer": lambda: dsa_explorer(*example_scores(256), top_k=128),
    "cache-explorer": lambda: cache_explorer(2),
    "pipeline": lambda: pipeline(blocks(64)),
    "planner": planner,
    "race": lambda: race_past_cudnn(figures()),
    "paint": paint_a_mask,
    "barrier": lambda: find_the_missing_barrier([packed(LEVELS[2])]),
}


def status(page):
    return page.locator(".ak-status").inner_text()


@pytest.mark.parametrize("name", EXAMPLES)
def test_keys_and_buttons_move_one_step_and_stop_at_the_ends_and_closing_leaves_no_listener(open_widget, name):
    page = open_widget(EXAMPLES[name]())
    the_keyboard_reaches_and_moves_everything(page)
    assert page.locator(".ak-widget").get_attribute("data-widget") == name
    last = int(page.locator(".ak-step").get_attribute("max"))
    page.evaluate("model.set('step', 1)")
    before = (status(page), canvases(page))
    page.click(".ak-next")
    assert page.evaluate("model.get('step')") == 2
    assert status(page) != before[0] and canvases(page) != before[1]
    page.click(".ak-prev")
    assert (status(page), canvases(page)) == before
    for button, end in ((".ak-prev", 0), (".ak-next", last)):
        page.evaluate("(end) => model.set('step', end)", end)
        page.dispatch_event(button, "click")  # whether or not it says that it does nothing there
        assert page.evaluate("model.get('step')") == end
    assert page.evaluate("window.saves") > 0
    page.evaluate("window.cleanup()")
    assert page.evaluate("model.listeners.length") == 0


def the_keyboard_reaches_and_moves_everything(page):
    page.focus(".ak-step")
    start = page.evaluate("model.get('step')")
    before = canvases(page)
    page.keyboard.press("ArrowRight")
    assert page.evaluate("model.get('step')") == start + 1
    assert canvases(page) != before
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("model.get('step')") == start
    page.focus(".ak-next")
    page.keyboard.press("Enter")
    assert page.evaluate("model.get('step')") == start + 1
    page.keyboard.press("Tab")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"  # a visible focus
    controls = page.locator("input, button").evaluate_all(
        """(all) => all.map((one) => [
            one.dataset.lmSuppressShortcuts, one.tagName === "BUTTON" ? one.textContent : one.labels[0]?.textContent,
        ])"""
    )
    assert all(kept == "true" and named for kept, named in controls), controls
    assert page.locator(".ak-status").get_attribute("aria-live") == "polite"


@pytest.mark.parametrize("name", LARGEST)
def test_a_step_is_redrawn_within_a_frame(open_widget, name):
    page = open_widget(LARGEST[name]())
    last = int(page.locator(".ak-step").get_attribute("max"))
    to_a_step = f"(n) => model.set('step', n % 2 ? n % {last + 1} : {last} - n % {last + 1})"
    assert_redrawn_within_a_frame(page, to_a_step, "a step")


NARROWEST = 390  # a phone
WIDER = pytest.mark.exhaustive("make test has the narrowest page, where things meet first")


@pytest.mark.parametrize("width", [NARROWEST, *(pytest.param(width, marks=WIDER) for width in (700, 900, 1100))])
@pytest.mark.parametrize("name", EXAMPLES)
def test_nothing_overlaps_or_is_cut_off(open_widget, name, width):
    page = open_widget(EXAMPLES[name](), width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for canvas in page.locator("canvas").all():
        shape = "(c) => [c.clientWidth / c.clientHeight, c.width / c.height]"
        shown, own = canvas.evaluate(shape)
        assert shown == pytest.approx(own, rel=0.02), "the picture is squeezed"
    boxes = page.locator("canvas, input, button, .ak-status, .ak-number, .ak-bar, .ak-note, legend").evaluate_all(
        "(all) => all.map((e) => { const b = e.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; })"
    )
    for n, (left, top, right, bottom) in enumerate(boxes):
        assert 0 <= left and right <= width
        for other in boxes[:n]:
            apart = (
                left >= other[2] - 0.5 or other[0] >= right - 0.5 or top >= other[3] - 0.5 or other[1] >= bottom - 0.5
            )
            assert apart, (boxes[n], other)


@pytest.mark.parametrize("name", EXAMPLES)
def test_ink_follows_the_theme(open_widget, name):
    """In a dark page from the start, and when the page turns light while it is open."""
    page = open_widget(EXAMPLES[name](), theme="dark")
    before = canvases(page)
    page.evaluate("document.body.style.setProperty('--jp-ui-font-color1', 'black')")
    page.wait_for_function(
        f"(old) => ({CANVASES})(document) !== old",
        arg=before,
        polling=20,  # by default it reads the canvases in every frame
    )


@pytest.mark.parametrize(("key", "scale"), [("", 0.25), ("Home", 0.25 / 8), ("End", 0.25 * 8)])
def test_the_status_of_the_heat_map_is_right(open_widget, key, scale):
    """With the mask, and without it at the ends of the scale: as Python computes it."""
    page = open_widget(heatmap(12, 12, is_causal=not key, tokens=TOKENS, row=7))
    if key:
        page.focus(".ak-scale")
        page.keyboard.press(key)
    _, weights = scores_and_weights(random(12, 16, 0), random(12, 16, 1), scale=scale, is_causal=not key)
    row = weights[7]
    best, entropy = int(row.argmax()), -float(torch.xlogy(row, row).sum())
    said = status(page)
    assert f"Query 7 “{TOKENS[7]}” attends most to key {best} “{TOKENS[best]}”, with weight {row[best]:.3f}" in said
    assert f"Entropy {entropy:.2f} nats" in said
    assert key or "It sees 8 of 12 keys. Entropy" in said


def test_mask_scale_and_scores_change_the_heat_map(open_widget):
    page = open_widget(heatmap(12, 12))
    for act in (
        lambda: page.check(".ak-causal"),
        lambda: page.check("input[value=scores]"),
        lambda: (page.focus(".ak-scale"), page.keyboard.press("ArrowRight")),
        lambda: page.locator("canvas").click(position={"x": 100, "y": 60}),
    ):
        before = canvases(page)
        act()
        assert canvases(page) != before
    assert page.evaluate("model.get('step')") == 0  # the row that was clicked


def test_a_row_that_sees_no_key_is_said_to(open_widget):
    page = open_widget(heatmap(9, 5, is_causal=True))
    page.evaluate("model.set('step', 0)")
    assert "sees no key" in status(page)


def test_the_tile_stepper_tells_what_each_step_does(open_widget):
    widget = stepper(is_causal=True)
    page = open_widget(widget)
    requested = []
    for n, step in enumerate(widget.steps):
        page.evaluate("(n) => model.set('step', n)", n)
        text = status(page)
        assert f"Step {n + 1} of {len(widget.steps)}." in text
        assert ("skips" in text) == step.skipped
        assert ("finished" in text) == (step.kind == "write")
        risen = int((step.rescale < 1).sum())
        if step.kind == "tile" and step.j > 0 and risen:
            assert f"rises in {risen} of 16 rows" in text
        shown = page.get_by_text(re.compile("Global bytes requested so far")).first.inner_text()
        requested.append(int(shown.split(": ")[1].replace(",", "")))
    assert requested[-1] == sum(step.read_bytes + step.written_bytes for step in widget.steps)
    assert requested == sorted(requested)


def test_play_runs_to_the_next_steps_and_pauses(open_widget):
    page = open_widget(stepper(is_causal=True))
    page.click(".ak-play")
    page.wait_for_function("model.get('step') >= 2")
    page.click(".ak-play")
    stopped = page.evaluate("model.get('step')")
    page.wait_for_timeout(1200)
    assert page.evaluate("model.get('step')") == stopped


def test_who_asks_for_less_motion_gets_no_play_and_what_plays_stops(open_widget):
    page = open_widget(stepper(is_causal=True))
    page.click(".ak-play")
    page.wait_for_function("model.get('step') >= 1")
    page.emulate_media(reduced_motion="reduce")
    try:
        page.locator(".ak-play").wait_for(state="hidden")
        stopped = page.evaluate("model.get('step')")
        page.wait_for_timeout(1200)
        assert page.evaluate("model.get('step')") == stopped
        page.click(".ak-next")
        assert page.evaluate("model.get('step')") == stopped + 1
    finally:
        page.emulate_media(reduced_motion="no-preference")
    page.locator(".ak-play", has_text="Play").wait_for()


@pytest.mark.parametrize("width", [900, 280])
def test_a_click_on_a_tile_goes_to_its_step_also_where_the_picture_got_smaller(open_widget, width):
    widget = stepper()
    page = open_widget(widget, width=width)
    canvas = page.locator("canvas").first
    smaller = canvas.evaluate("(c) => c.clientWidth / parseFloat(c.style.width)")
    assert (smaller < 0.95) == (width < 300)
    canvas.click(position={"x": (74 + 50 * 2.5) * smaller, "y": (104 + 50 * 1.5) * smaller})
    step = widget.steps[page.evaluate("model.get('step')")]
    assert (step.i, step.j) == (1, 2)
