"""A widget without a mouse: every control that the keyboard must come to, and whether its keys change what is said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

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
# All that the keyboard must come to, and does not: of radio buttons the one that is chosen.
_LEFT_OUT = """(root, reached) => [...root.querySelectorAll("input, select, button, summary, [tabindex]")]
    .filter((one) => !one.disabled && (one.tabIndex >= 0 || one.matches("input, select, button, summary")))
    .filter((one) => one.getClientRects().length && one.checkVisibility())
    .filter((one) => one.type !== "radio" || one.checked)
    .filter((one) => !reached.includes(one.stop)).map((one) => one.outerHTML)"""
# Where the keyboard is in the widget. Each element gets a number of its own, whatever is drawn before it.
_FOCUSED = """(root) => {
    const one = document.activeElement, { outlineStyle, outlineWidth } = getComputedStyle(one);
    if (one === root || !root.contains(one)) return null;
    const { top, bottom } = one.getBoundingClientRect();
    window.stops = (window.stops ?? 0) + 1;
    one.stop ??= window.stops;
    return {
        kind: one.localName === "input" ? one.type : one.localName,
        number: one.stop,
        words: `${one.className} “${(one.ariaLabel ?? one.labels?.[0]?.innerText ?? one.innerText).slice(0, 40)}”`,
        isSeen: outlineStyle !== "none" && parseFloat(outlineWidth) >= 1 && bottom > 0 && top < innerHeight,
        isIdle: one.ariaDisabled === "true" || one.ariaPressed === "true",
    };
}"""
_CONNECTED = """(root) => [...root.querySelectorAll("*")].filter((one) => one.stop).map((one) => one.stop)"""
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
    "pre": (),
}
# What these set says itself, and matters at a later step.
_LATER = ("follow the step",)
# Where nothing follows a widget, Tab sometimes leads from its end to its beginning.
_ENTER = """(root) => {
    if (root.nextSibling?.id !== "way-out") root.insertAdjacentHTML("afterend", '<button id="way-out">out</button>');
    root.tabIndex = -1;
    root.focus();
}"""
_PLAYS = "() => document.activeElement.innerText === 'Pause'"
_MOST_STOPS = 500
_ROUNDS = 3


class Stop(NamedTuple):
    """A control that has the focus. is_idle: it says itself that it does nothing now, or is chosen."""

    kind: str
    number: int
    words: str
    is_idle: bool

    def __str__(self) -> str:
        return f"control {self.number}, a {self.kind}, {self.words}"


def every_stop(root: Locator) -> Iterator[Stop]:
    """Goes through a widget by Tab, from its beginning; at each stop, what has the focus. Fails where one that has the
    focus is not marked, or where the way leads back."""
    keyboard = root.page.keyboard
    root.evaluate(_ENTER)
    keyboard.press("Tab")
    reached: set[int] = set()
    while at := root.evaluate(_FOCUSED):
        stop = Stop(at["kind"], at["number"], at["words"], at["isIdle"])
        assert at["isSeen"], f"{stop} has the focus and is not marked, or not in the window"
        is_new = stop.number not in reached and len(reached) < _MOST_STOPS
        assert is_new, f"the keyboard goes around in the widget: {stop}"
        reached.add(stop.number)
        yield stop
        keyboard.press("Tab")


def answers(root: Locator, kind: str) -> bool:
    """Whether one of the keys of the control that has the focus changes what is said. kind: of a `Stop`."""
    before = root.evaluate(_SAID)
    for key in _KEYS[kind]:
        root.page.keyboard.press(key)
        if root.evaluate(_SAID) != before:
            if root.evaluate(_PLAYS):
                root.page.keyboard.press(key)  # else what comes next would depend on the time
            return True
    return not _KEYS[kind]


def _assert_every_control_is_reached(root: Locator) -> None:
    reached = {stop.number for stop in every_stop(root)}
    left_out = root.evaluate(_LEFT_OUT, list(reached))
    assert not left_out, f"the keyboard does not come to {left_out}"


def assert_all_controls_answer(root: Locator) -> None:
    """Every control of a widget is reached and marked; its keys keep the focus and change words, in one state of the
    widget at least: what one control sets may matter only after another's deed. The status, which is read out, changes
    among the words."""
    status = root.locator(".ak-status").first
    assert status.get_attribute("aria-live") == "polite"
    _assert_every_control_is_reached(root)
    said = {status.inner_text()}
    silent: dict[int, Stop] = {}
    spoken: set[int] = set()
    for _ in range(_ROUNDS):
        for stop in every_stop(root):
            if answers(root, stop.kind):
                spoken.add(stop.number)
            elif not (stop.is_idle or any(words in stop.words for words in _LATER)):
                silent[stop.number] = stop
            assert root.evaluate(_FOCUSED), f"the keys of {stop} lose the focus"
            said.add(status.inner_text())
        # A list that was drawn anew has other elements now: of the former ones nothing more can be asked.
        there = set(root.evaluate(_CONNECTED))
        silent = {number: stop for number, stop in silent.items() if number in there - spoken}
        if not silent:
            break
    assert not silent, "no words change by " + "; ".join(map(str, silent.values()))
    _assert_every_control_is_reached(root)
    assert len(said) > 2
