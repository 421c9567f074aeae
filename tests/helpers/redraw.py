"""How a widget is drawn: whether that changed, which of its still pictures make test draws, and how long it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

OTHER_PICTURES = pytest.mark.exhaustive("a still picture takes half a second: make test draws one of each kind")
CANVASES = """(root) => [...root.querySelectorAll("canvas")].map((canvas) => canvas.toDataURL()).join()"""
FRAME_MS = 16  # of a screen with 60 pictures a second
_MEDIANS = """async ([change, frame]) => {
    const apply = eval(change), medians = [];
    for (let round = 0; round < 12; round++) {
        if (round > 0) await new Promise((resume) => setTimeout(resume, 300));
        const times = [];
        for (let n = 0; n < 20; n++) {
            const start = performance.now();
            apply(n);
            for (const canvas of document.querySelectorAll("canvas")) canvas.getContext("2d").getImageData(0, 0, 1, 1);
            times.push(performance.now() - start);
        }
        medians.push(times.sort((a, b) => a - b)[10]);
        if (medians[round] <= frame) break;
    }
    return Math.min(...medians);
}"""


def canvases(page: Page) -> str:
    """What the canvases of a page show, to compare with another time: a text that says nothing else."""
    return page.evaluate(f"({CANVASES})(document)")


def assert_redrawn_within_a_frame(page: Page, change: str, what: str) -> None:
    """`change`: a JavaScript function of n, 0 to 19, that changes what the page shows; `what`: names it in a failure.

    Canvases are read back, so that the time covers the drawing itself and not only the calls that order it. The best
    of up to twelve medians, some seconds in all, counts: other work on the machine must not, and it comes and goes.
    """
    median = page.evaluate(_MEDIANS, [change, FRAME_MS])
    assert median <= FRAME_MS, f"{what}: {median:.1f} ms a change"
