"""The game of the missing barrier on a page of its own: its address shows the same again, its score stays."""

import pytest

pytest.importorskip("docutils", reason="the site's packages are not installed (pip install course-kernels[site])")

from playwright.sync_api import expect

from course_utils.chapters.missing_barrier import LEVELS, packed
from course_utils.site import widgets as on_pages
from course_utils.widgets import find_the_missing_barrier
from tests.helpers.browsing import FITS
from tests.helpers.page_of_the_site import served_page

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A page as the site has it, with the first level and the third."""
    game = find_the_missing_barrier([packed(LEVELS[0]), packed(LEVELS[2])])
    with served_page(tmp_path_factory.mktemp("barrier"), on_pages.alive(game._state(), "")) as page:
        yield page


def test_a_link_shows_level_step_and_line_again_and_the_score_stays(address, browser):
    context = browser.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(address)
    page.get_by_role("button", name="level 2").click()
    expect(page.locator(".ak-source")).to_contain_text("of_warp")
    page.locator(".ak-line").nth(21).click()  # line 22
    page.get_by_role("button", name="Missing after it").click()
    page.get_by_role("button", name="step 225").first.click()
    page.wait_for_url("**#barrier=level:1,step:225,line:22")
    assert page.evaluate(FITS)
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    expect(page.locator(".ak-barrier-now > .ak-status")).to_contain_text("Step 225 of 369")
    expect(page.locator(".ak-barrier-line")).to_contain_text("Line 22")
    assert "Solved: 1 of 2. Tries: 1. Steps: 1." in page.locator(".ak-barrier-score").inner_text()
    context.close()
