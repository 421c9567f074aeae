"""A guess in a real JupyterLab, by keyboard: what the cell shows is hidden before it and shown after."""

import pytest

from tests.helpers.contrast import LOWEST_CONTRAST
from tests.helpers.jupyterlab import FRONT, set_theme

pytestmark = pytest.mark.browser

CELL = """
from course_utils import progress, show, widgets
with widgets.guess("How many sectors do both loads touch together?", unit="sectors") as held:
    print("load of Q: 1")
    show.table([{"load": "K", "sectors": 32}])
    held.value = 33
"""
KEPT = "print([(one.asked, one.first, one.value) for one in progress.overview().guesses])"


@pytest.mark.parametrize(
    "theme",
    [
        "JupyterLab Light",
        pytest.param("JupyterLab Dark", marks=pytest.mark.exhaustive("the second theme: the light one in make test")),
    ],
)
def test_a_guess_by_keyboard_shows_what_was_hidden(run_cells, theme):
    notebook = run_cells([CELL])
    notebook.assert_every_cell_ran()
    (box,) = notebook.widgets_of(0)
    page = notebook.page
    set_theme(page, theme)
    try:
        shown = page.locator(f"{FRONT} .jp-OutputArea")
        assert "load of Q" not in shown.inner_text() and "33" not in shown.inner_text()
        notebook.screenshot(f"guess-asked-{theme.split()[1].lower()}", box)
        box.locator("input").focus()
        page.keyboard.type("100")  # digits are shortcuts of JupyterLab's command mode
        page.keyboard.press("Enter")
        box.get_by_text("load of Q: 1").wait_for()
        assert box.locator(".ak-status").inner_text() == (
            "You guessed 100 sectors. It is 33 sectors: your guess is 3 times too high."
        )
        assert box.locator("td").all_inner_texts() == ["K", "32"]
        notebook.screenshot(f"guess-compared-{theme.split()[1].lower()}", box)
        assert box.evaluate(LOWEST_CONTRAST) >= 4.5
        assert box.evaluate("(node) => node.scrollWidth <= node.clientWidth + 1")
    finally:
        set_theme(page)
    kept = run_cells([KEPT]).cells[0]["outputs"][0]["text"]
    assert "('How many sectors do both loads touch together?', 100, 33)" in "".join(kept)
