"""The findings of a launch on a page without Python: a button opens the player at its moment, in the same page."""

import nbformat
import pytest

pytest.importorskip("docutils", reason="the site's packages are not installed (pip install course-kernels[site])")

from playwright.sync_api import expect

from course_utils.site import pages
from course_utils.widgets import findings
from tests.helpers.browsing import FITS
from tests.helpers.page_of_the_site import served_page
from tests.helpers.racing import racing

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def report():
    return findings(racing, keep=True)


@pytest.fixture(scope="module")
def address(report, tmp_path_factory):
    """A page as the site makes it of a cell's output."""
    folder = tmp_path_factory.mktemp("findings")
    bundle, _ = report._repr_mimebundle_()
    cell = nbformat.v4.new_code_cell(id="7", outputs=[nbformat.v4.new_output("display_data", data=bundle)])
    (shown,), missing = pages.outputs(cell, folder / "notebooks" / "x.ipynb", folder, folder / "extra")
    assert missing == [] and report.report._repr_html_() in shown.data["text/html"]  # without scripts that stays
    with served_page(folder, shown.data["text/html"]) as page:
        yield page


def test_a_button_opens_the_player_at_its_finding_with_both_parties(report, address, browser):
    found = report.report.findings
    race = next(n for n, one in enumerate(found) if (one.tool, one.space) == ("racecheck", "shared"))
    other = next(n for n, one in enumerate(found) if one.block == (0, 0, 0))
    page, errors = browser.new_page(viewport={"width": 390, "height": 844}), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(address)
    player, status = page.locator('[data-widget="player"]'), page.locator('[data-widget="findings"] > .ak-status')
    button = page.get_by_role("button", name=f"Show finding {race + 1}: racecheck, line 7")
    expect(page.get_by_role("button", name="Show finding")).to_have_count(len(found))
    assert player.count() == 0 and not status.is_visible()
    button.focus()
    page.keyboard.press("Enter")
    expect(player.locator(":scope > .ak-status")).to_contain_text("Hazard")
    assert "block (1, 0, 0)" in player.inner_text()
    expect(status).to_contain_text("The player shows line 7, step")
    assert player.locator(".ak-line-now .ak-line-number").inner_text().split()[-1] == "7"
    assert player.locator(".ak-line-other .ak-line-number").inner_text() == "5"
    assert player.get_by_role("button", name="other party: line 5").first.is_visible()
    assert not player.get_by_text("hazard in shared memory").first.is_visible()  # the report above says it
    assert button.evaluate("(one) => one === document.activeElement") and button.inner_text() == "Show"
    assert player.evaluate("(one) => one.getBoundingClientRect().top") < 844 / 2  # it has come into view
    assert page.evaluate(FITS)
    page.get_by_role("button", name=f"Show finding {other + 1}:").click()
    expect(player.locator(".ak-player-title")).to_contain_text("block (0, 0, 0)")
    assert player.count() == 1 and "#" not in page.url
    page.close()
    assert errors == []
