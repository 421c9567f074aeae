"""What a reader cannot see on the site, or stumbles on: what is cut or scrolls sideways, formulas with a scrollbar,
text too pale, errors of scripts.

Each page is laid out as on a desk and as on a phone, in the light theme and the dark one, with what is folded opened.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.helpers.browsing import wait_until_complete

if TYPE_CHECKING:
    from playwright.sync_api import Page

WIDTHS = {"desk": 1440, "phone": 390}  # pixels of the window
HEIGHT = 900
THEMES = ("light", "dark")
CONTRAST = 4.5  # WCAG 2, level AA
# Wider than the window; cut, or to be scrolled sideways; a scrollbar of a formula; below `CONTRAST`; said by the
# browser's console.
FAULTS = ("page", "code", "tables", "pictures", "formulas", "bars", "text", "pale", "errors")

LOOK = (Path(__file__).parent / "look.js").read_text(encoding="utf-8")
_ARRIVED = """
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    await Promise.all(document.getAnimations().map((one) => one.finished.catch(() => null)));"""
# As the theme's own switch does it. A colour that fades into the next one is looked at when it has arrived.
SET_THEME = (
    f"async (theme) => {{ Object.assign(document.documentElement.dataset, {{ theme, mode: theme }}); {_ARRIVED} }}"
)
# Pictures are there, and what is folded is open and has faded in.
SETTLED = f"""async () => {{
    for (const picture of document.images) picture.loading = "eager";
    await Promise.all([...document.images].map((picture) => picture.decode().catch(() => null)));
    for (const folded of document.querySelectorAll("details:not([open])")) folded.open = true; {_ARRIVED}
}}"""


def faults(page: Page, address: str) -> dict[str, list[str]]:
    """What is wrong with the page at this address: "<kind>, <device>" → the things, in words; all kinds are there."""
    said: list[str] = []
    on_console = lambda message: said.append(message.text) if message.type == "error" else None  # noqa: E731
    on_error = lambda error: said.append(str(error))  # noqa: E731
    page.on("console", on_console)
    page.on("pageerror", on_error)
    found: dict[str, list[str]] = {}
    page.goto("about:blank")  # nothing is laid out anew at the next width
    for device, width in WIDTHS.items():
        page.set_viewport_size({"width": width, "height": HEIGHT})
        if device == next(iter(WIDTHS)):
            page.goto(address)
            wait_until_complete(page)
        page.wait_for_function("(width) => innerWidth === width", arg=width)  # a busy machine resizes it late
        page.evaluate(SETTLED)
        pale = []
        for theme in THEMES:
            page.evaluate(SET_THEME, theme)
            seen = page.evaluate(LOOK, CONTRAST)
            pale += [f"{theme}: {one}" for one in seen.pop("pale")]
        found |= {f"{kind}, {device}": things for kind, things in seen.items()}
        found |= {f"pale, {device}": pale, f"errors, {device}": said.copy()}
        said.clear()
    page.remove_listener("console", on_console)
    page.remove_listener("pageerror", on_error)
    return {f"{kind}, {device}": found[f"{kind}, {device}"] for device in WIDTHS for kind in FAULTS}
