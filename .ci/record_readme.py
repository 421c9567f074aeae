"""Records the moving picture at the top of the README: a first puzzle in JupyterLab, then the tile stepper.

Run it from the repository's root after the pages it shows have changed: `.venv/bin/python .ci/record_readme.py`.
What it shows is a real run: the cells are executed, and the pictures are taken from the browser.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from course_utils.doctor import find_chromium  # noqa: E402
from course_utils.puzzles.puzzle import find_puzzle  # noqa: E402
from tests.helpers.jupyterlab import FRONT, Lab, NotebookPage, new_page, show_cells  # noqa: E402

PICTURE = ROOT / "docs" / "first_minutes.gif"
PUZZLE = "00_start_here/guard"
WINDOW = {"width": 900, "height": 660}
COLOURS = 64  # of each frame: a screenshot has few, and the file stays small
STEPPER = """import torch
from course_utils import widgets
widgets.tile_stepper(*torch.randn(3, 48, 16, generator=torch.Generator().manual_seed(1)), is_causal=True)"""

Frame = tuple[Image.Image, int]  # and for how many ms it stands


def main() -> None:
    """Records, and says how large the file is."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        (Path(folder) / "notebooks").mkdir()
        lab = Lab(Path(folder))
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        try:
            page = new_page(browser, lab)
            frames = [*_puzzle(page), *_stepper(page)]
        finally:
            browser.close()
            lab.stop()
    pictures = [picture.quantize(COLOURS, dither=Image.Dither.NONE) for picture, _ in frames]
    times = [milliseconds for _, milliseconds in frames]
    pictures[0].save(PICTURE, save_all=True, append_images=pictures[1:], duration=times, loop=0, optimize=True)
    print(f"{PICTURE.relative_to(ROOT)}: {len(frames)} pictures, {PICTURE.stat().st_size / 1e3:.0f} KB")


def _puzzle(page: Page) -> list[Frame]:
    """The kernel without its guard, what is said of it, the guard typed in, and what is said then."""
    given = find_puzzle(PUZZLE).given
    show_cells(page, ["%load_ext course_utils.puzzles", f"%%puzzle {PUZZLE}\n{given}"])
    page.set_viewport_size(WINDOW)
    page.evaluate("() => { jupyterapp.shell.collapseLeft(); jupyterapp.shell.collapseRight(); }")
    page.evaluate("() => jupyterapp.commands.execute('application:toggle-mode')")
    _only_the_cells(page)
    frames = [(_shot(page), 1500)]
    _run(page)
    frames.append((_shot(page), 3500))
    _place_cursor(page, "c[i] =")
    for typed in ("if ", "(i ", "< n", ") "):
        page.keyboard.insert_text(typed)
        page.wait_for_timeout(80)
        frames.append((_shot(page), 220))
    _run(page)
    frames.append((_shot(page), 3500))
    return frames


def _stepper(page: Page) -> list[Frame]:
    """The tile stepper, from tile to tile."""
    show_cells(page, [STEPPER])
    _only_the_cells(page)
    _run(page)
    page.locator(f"{FRONT} .ak-widget").scroll_into_view_if_needed()
    page.locator(f"{FRONT} .ak-step").press("Home")  # it opens where the maximum rises
    frames = []
    for _ in range(9):
        frames.append((_shot(page), 900))
        page.locator(f"{FRONT} .ak-next").click()
        page.wait_for_timeout(250)
    return frames


def _only_the_cells(page: Page) -> None:
    """The notebook alone in the window: no toolbars, no side bars."""
    page.add_style_tag(
        content=".jp-NotebookPanel-toolbar, #jp-top-panel, #jp-menu-panel, .jp-SideBar, #jp-bottom-panel, "
        ".jp-Toolbar.jp-cell-toolbar, .lm-TabBar { display: none !important } "
        ".jp-Notebook-cell:first-child:not(:only-child) { display: none !important }"
    )


def _run(page: Page) -> None:
    NotebookPage(page).assert_every_cell_ran()
    page.wait_for_timeout(600)  # until what they show is drawn


def _place_cursor(page: Page, before: str) -> None:
    """Clicks into the editor in front of this text."""
    line = page.locator(f"{FRONT} .cm-line", has_text=before).first
    line.click()
    page.keyboard.press("Home")


def _shot(page: Page) -> Image.Image:
    there = page.locator(f"{FRONT} .jp-Notebook-cell").last.bounding_box()
    panel = page.locator(f"{FRONT} .jp-WindowedPanel-outer").first.bounding_box()  # around it all is grey
    assert there is not None and panel is not None
    right, bottom = panel["x"] + panel["width"], panel["y"] + panel["height"]
    clip = {"x": there["x"], "y": 60, "width": right - there["x"], "height": bottom - 60}
    return Image.open(io.BytesIO(page.screenshot(clip=clip))).convert("RGB")


if __name__ == "__main__":
    main()
