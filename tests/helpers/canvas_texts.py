"""How legible the words are that a page writes into its canvases, which no checker of pages sees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

# From now on each text that is written into a canvas of the page is noted in `canvasTexts`: its contrast (WCAG 2) with
# most of what lies below it, the text, and its ink. A line that crosses a word is not most of it: the median counts.
_WATCH = """() => {
    const plain = CanvasRenderingContext2D.prototype.fillText;
    const one = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const light = (...layers) => {
        for (const [style, alpha] of [["white", 1], [getComputedStyle(document.body).backgroundColor, 1], ...layers]) {
            one.globalAlpha = alpha;
            one.fillStyle = style;
            one.fillRect(0, 0, 1, 1);
        }
        const rgb = one.getImageData(0, 0, 1, 1).data.slice(0, 3);
        return rgb.reduce((sum, v, k) => sum + linear(v / 255) * [0.2126, 0.7152, 0.0722][k], 0);
    };
    const below = (pen, text, x, y) => {
        const size = pen.measureText(text), turn = pen.getTransform();
        const xs = [x - size.actualBoundingBoxLeft, x + size.actualBoundingBoxRight];
        const ys = [y - size.actualBoundingBoxAscent, y + size.actualBoundingBoxDescent];
        const corners = xs.flatMap((at) => ys.map((down) => turn.transformPoint(new DOMPoint(at, down))));
        const ends = (all) => [Math.floor(Math.min(...all)), Math.ceil(Math.max(...all))];
        const [left, right] = ends(corners.map((one) => one.x)), [top, bottom] = ends(corners.map((one) => one.y));
        return pen.getImageData(left, top, Math.max(right - left, 1), Math.max(bottom - top, 1)).data;
    };
    const contrast = (pen, text, x, y) => {
        const counts = new Map(), pixels = below(pen, text, x, y);
        for (let n = 0; n < pixels.length; n += 4) {
            const colour = `rgb(${pixels[n]} ${pixels[n + 1]} ${pixels[n + 2]} / ${pixels[n + 3] / 255})`;
            counts.set(colour, (counts.get(colour) ?? 0) + 1);
        }
        const all = [...counts].map(([colour, count]) => {
            const [ground, ink] = [light([colour, 1]), light([colour, 1], [pen.fillStyle, pen.globalAlpha])];
            return [(Math.max(ground, ink) + 0.05) / (Math.min(ground, ink) + 0.05), count];
        }).sort((a, b) => a[0] - b[0]);
        let left = pixels.length / 8; // half of the pixels
        return all.find(([, count]) => (left -= count) <= 0)[0];
    };
    window.canvasTexts = [];
    CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
        const ink = `${this.fillStyle} × ${this.globalAlpha}`;
        if (text.trim()) canvasTexts.push([contrast(this, text, x, y), text, ink]);
        return plain.apply(this, arguments);
    };
    return () => (CanvasRenderingContext2D.prototype.fillText = plain);
}"""


@contextmanager
def watched_canvases(page: Page) -> Iterator[None]:
    """While it lasts, `pale_canvas_texts` knows what is written into the canvases of the page."""
    undo = page.evaluate_handle(_WATCH)
    yield
    undo.evaluate("(undo) => undo()")


def pale_canvas_texts(page: Page, lowest: float) -> list[str]:
    """The texts written since the last call, once each, whose contrast is below `lowest`; the page is watched."""
    call = "() => canvasTexts.splice(0)"
    found = {(round(contrast, 2), text, ink) for contrast, text, ink in page.evaluate(call)}
    return sorted(f"{contrast} “{text}” in {ink}" for contrast, text, ink in found if contrast < lowest - 0.005)
