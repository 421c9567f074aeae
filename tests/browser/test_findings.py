"""A finding's button in JupyterLab: Python records the block when it is pressed, and the player opens below."""

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

CELLS = [
    "from course_utils import widgets\nfrom course_utils.launches.broken import BROKEN",
    'widgets.findings(lambda: BROKEN["missing_sync_in_reduction"].launch().run())',
]


def test_a_press_records_and_opens_the_player_below(run_cells):
    notebook = run_cells(CELLS)
    notebook.assert_every_cell_ran()
    (report,) = notebook.widgets()
    page, status = notebook.page, report.locator(":scope > .ak-status")
    button = report.get_by_role("button", name="racecheck, line 23").first
    button.focus()
    page.keyboard.press("Enter")
    player = page.locator(".ak-widget[data-widget=player]")
    expect(player.locator(":scope > .ak-status")).to_contain_text("Hazard")
    expect(status).to_contain_text("The player shows line 23, step")
    assert button.inner_text() == "Show" and button.evaluate("(one) => one === document.activeElement")
    notebook.screenshot("findings-played", player)
