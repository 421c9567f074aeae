"""A widget without a mouse: every control that the keyboard must come to, and whether its keys change what is said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Locator

# What a reader of the screen gets: words, descriptions of pictures, states of buttons and folds; and what Python is
# asked for.
_SAID = """(root) => [
    root.innerText,
    ...[...root.querySelectorAll("canvas")].map((one) => one.getAttribute("aria-label")),
    ...[...root.querySelectorAll("[aria-pressed]")].map((one) => one.getAttribute("aria-pressed")),
    ...[...root.querySelectorAll("details")].map((one) => one.open),
    JSON.stringify(window.model?.get("asked") ?? null),
].join("\\n")"""
# All that the keyboard must come to: of radio buttons the one that is chosen.
_STOPS = """[...root.querySelectorAll("input, select, button, summary, [tabindex]")]
    .filter((one) => !one.disabled && one.getClientRects().length && (one.type !== "radio" || one.checked))"""
# Where the keyboard is in the widget: [what it is, its number among the stops, whether it is marked and in the window].
_FOCUSED = f"""(root) => {{
    const one = document.activeElement, {{ outlineStyle, outlineWidth }} = getComputedStyle(one);
    if (one === root || !root.contains(one)) return null;
    const {{ top, bottom }} = one.getBoundingClientRect();
    const seen = outlineStyle !== "none" && parseFloat(outlineWidth) >= 1 && bottom > 0 && top < innerHeight;
    return [one.localName === "input" ? one.type : one.localName, {_STOPS}.indexOf(one), seen];
}}"""
_KEYS = {
    "range": ("ArrowRight", "ArrowLeft"),
    "radio": ("ArrowDown", "ArrowUp"),
    "select": ("ArrowDown", "ArrowUp"),
    "checkbox": ("Space",),
    "number": ("ArrowUp", "Enter"),
    "canvas": ("ArrowRight", "Space"),
    "button": ("Enter",),
    "summary": ("Enter",),
    "div": (),  # takes the focus so that it can be scrolled
}


def every_stop(root: Locator) -> Iterator[str]:
    """Goes through a widget by Tab, from its beginning; at each stop, what has the focus. Fails where a control is left
    out, or where one that has the focus is not marked."""
    keyboard = root.page.keyboard
    root.evaluate("(root) => { root.tabIndex = -1; root.focus(); }")
    keyboard.press("Tab")
    reached: set[int] = set()
    while at := root.evaluate(_FOCUSED):
        kind, number, seen = at
        assert seen, f"control {number}, a {kind}, has the focus and is not marked, or not in the window"
        assert number not in reached, "the keyboard goes around in the widget"
        reached.add(number)
        yield kind
        keyboard.press("Tab")
    assert reached == set(range(root.evaluate(f"(root) => {_STOPS}.length"))), "not every control is reached"


def answers(root: Locator, kind: str) -> bool:
    """Whether one of the keys of the control that has the focus changes what is said. kind: of `every_stop`."""
    before = root.evaluate(_SAID)
    for key in _KEYS[kind]:
        root.page.keyboard.press(key)
        if root.evaluate(_SAID) != before:
            return True
    return not _KEYS[kind]


def assert_all_controls_answer(root: Locator) -> None:
    """Every control of a widget is reached, marked and changes words; its status, which is read out, among them."""
    status = root.locator(".ak-status").first
    assert status.get_attribute("aria-live") == "polite"
    said = {status.inner_text()}
    for number, kind in enumerate(every_stop(root)):
        assert answers(root, kind), f"control {number}, a {kind}, changes no words"
        said.add(status.inner_text())
    assert len(said) > 2
