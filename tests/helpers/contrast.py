"""How legible text is on a page."""

from __future__ import annotations

# The text of an element that is told least from what lies below it, translucent grounds and texts laid over each other:
# [its contrast as of WCAG 2, the text, its colour].
LEAST_LEGIBLE = """(root) => {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const drawn = new Map();  // by colours: hundreds of words lie on the same ground
    const over = (...colours) => {
        const key = colours.join();
        if (!drawn.has(key)) {
            for (const colour of ["white", ...colours]) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
            drawn.set(key, [...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3)]);
        }
        return drawn.get(key);
    };
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const luminance = (rgb) => rgb.reduce((sum, v, k) => sum + linear(v / 255) * [0.2126, 0.7152, 0.0722][k], 0);
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    let least = [Infinity, "", ""];
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        if (!walker.currentNode.textContent.trim() || element.closest("style, script")) continue;
        const grounds = [];
        for (let at = element; at; at = at.parentElement) grounds.unshift(getComputedStyle(at).backgroundColor);
        const [a, b] = [luminance(over(...grounds)), luminance(over(...grounds, getComputedStyle(element).color))];
        const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (contrast < least[0]) least = [contrast, walker.currentNode.textContent, getComputedStyle(element).color];
    }
    return least;
}"""
LOWEST_CONTRAST = f"(root) => ({LEAST_LEGIBLE})(root)[0]"


def luminance(colour: str) -> float:
    """Relative luminance as WCAG defines it, of "#rrggbb"."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Contrast as WCAG defines it, of two "#rrggbb": from 1 to 21."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)
