"""Each widget without a mouse: Tab comes to every control, the one in use is seen, and words say what it did; words in
canvases and around them can be read in both themes."""

import pytest

from course_utils.site.look import CONTRAST, LOOK
from tests.helpers.canvas_texts import pale_canvas_texts, watched_canvases
from tests.helpers.example_widgets import EXAMPLES

pytestmark = pytest.mark.browser

# What a reader of the screen gets: words, descriptions of pictures, states of buttons; and what Python is asked for.
SAID = """() => [
    document.querySelector(".ak-widget").innerText,
    ...[...document.querySelectorAll("canvas")].map((one) => one.getAttribute("aria-label")),
    ...[...document.querySelectorAll("[aria-pressed]")].map((one) => one.getAttribute("aria-pressed")),
    JSON.stringify(model.get("asked") ?? null),
].join("\\n")"""
# Where the keyboard is, as [what it is, its number among what takes the focus, whether a line around it is seen].
FOCUSED = """() => {
    const one = document.activeElement, { outlineStyle, outlineWidth } = getComputedStyle(one);
    if (one === document.body) return null;
    const { top, bottom } = one.getBoundingClientRect();
    const seen = outlineStyle !== "none" && parseFloat(outlineWidth) >= 1 && bottom > 0 && top < innerHeight;
    const kind = one.type === "range" || one.type === "radio" || one.type === "checkbox" ? one.type : one.localName;
    return [kind, STOPS.indexOf(one), seen];
}"""
# All that the keyboard must come to: of radio buttons the one that is chosen.
STOPS = """[...document.querySelectorAll("input, select, button, summary, [tabindex]")]
    .filter((one) => !one.disabled && one.getClientRects().length && (one.type !== "radio" || one.checked))"""
KEYS = {"range": ("ArrowRight", "ArrowLeft"), "radio": ("ArrowDown", "ArrowUp"), "select": ("ArrowDown", "ArrowUp"),
        "checkbox": ("Space",), "button": ("Enter",), "summary": ("Enter",), "div": ()}  # fmt: skip
SAMPLE = ("launch-grid", "dsa-explorer", "tile-stepper")
OTHERS = pytest.mark.exhaustive("in make test three widgets, which have every kind of control but a choice and a fold")
NAMES = [name if name in SAMPLE else pytest.param(name, marks=OTHERS) for name in EXAMPLES]


def opened(open_widget, name, **options):
    """A widget in the middle of its steps, so that it can go either way."""
    page = open_widget(EXAMPLES[name](), **options)
    page.evaluate("() => model.set('step', Math.floor(document.querySelector('.ak-step').max / 2))")
    return page


def every_stop(page):
    """Goes through the widget by Tab; at each stop its kind. Fails where a control is left out or cannot be seen."""
    page.evaluate("() => { window.scrollTo(0, 0); document.activeElement.blur(); }")
    reached = set()
    while True:
        page.keyboard.press("Tab")
        if not (at := page.evaluate(FOCUSED.replace("STOPS", STOPS))):
            break
        kind, number, seen = at
        assert seen, f"the {kind} that has the focus is not marked, or not in the window"
        reached.add(number)
        yield kind
        assert len(reached) < 100
    assert reached == set(range(page.evaluate(f"{STOPS}.length")))


def answers(page, kind):
    """Whether one of the keys of a control changes what is said."""
    before = page.evaluate(SAID)
    for key in KEYS[kind]:
        page.keyboard.press(key)
        if page.evaluate(SAID) != before:
            return True
    return not KEYS[kind]


@pytest.mark.parametrize("name", NAMES)
def test_the_keyboard_comes_to_every_control_and_each_says_what_it_did(open_widget, name):
    page = opened(open_widget, name)
    status = page.locator(".ak-status").first
    assert status.get_attribute("aria-live") == "polite"
    said = {status.inner_text()}
    for number, kind in enumerate(every_stop(page)):
        assert answers(page, kind), f"control {number}, a {kind}, changes no words"
        said.add(status.inner_text())
    assert len(said) > 2


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", NAMES)
def test_every_word_can_be_read_whatever_the_controls_say(open_widget, name, theme):
    page = opened(open_widget, name, theme=theme)
    with watched_canvases(page):
        for kind in every_stop(page):
            answers(page, kind)
            assert pale_canvas_texts(page, CONTRAST) == [] == page.evaluate(LOOK, CONTRAST)["pale"]
