"""How a widget is drawn: whether that changed, which of its still pictures make test draws, and how long it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

OTHER_PICTURES = pytest.mark.exhaustive("a still picture takes half a second: make test draws one of each kind")
# A number for each canvas that another picture does not have: a PNG takes ten times as long.
CANVASES = """(root) => [...root.querySelectorAll("canvas")].map((canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let sum = canvas.width;
    for (const pixel of new Uint32Array(data.buffer)) sum = Math.imul(sum ^ pixel, 16777619);
    return sum;
}).join()"""
FRAME_MS = 16  # of a screen with 60 pictures a second
CHANGES = 20
_CHANGE = f"""(change) => {{
    const apply = eval(change);
    for (let n = 0; n < {CHANGES}; n++) {{
        apply(n);
        for (const canvas of document.querySelectorAll("canvas")) canvas.getContext("2d").getImageData(0, 0, 1, 1);
    }}
}}"""


def canvases(page: Page) -> str:
    """What the canvases of a page show, to compare with another time: a text that says nothing else."""
    return page.evaluate(f"({CANVASES})(document)")


def assert_redrawn_within_a_frame(page: Page, change: str, what: str) -> None:
    """`change`: a JavaScript function of n, 0 to 19, that changes what the page shows; `what`: names it in a failure.

    Canvases are read back, so that the time covers the drawing itself and not only the calls that order it. What counts
    is the processor's time of the page's own thread, the best of up to twelve means: other work on the machine must not
    count, and what it still costs comes and goes.
    """
    browser = page.context.new_cdp_session(page)
    browser.send("Performance.enable", {"timeDomain": "threadTicks"})

    def thread_ms() -> float:
        metrics = browser.send("Performance.getMetrics")["metrics"]
        return 1000 * next(metric["value"] for metric in metrics if metric["name"] == "ThreadTime")

    best = float("inf")
    for _ in range(12):
        start = thread_ms()
        page.evaluate(_CHANGE, change)
        best = min(best, (thread_ms() - start) / CHANGES)
        if best <= FRAME_MS:
            break
        page.wait_for_timeout(300)
    browser.detach()
    assert best <= FRAME_MS, f"{what}: {best:.1f} ms a change"
