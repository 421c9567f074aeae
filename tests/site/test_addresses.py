"""The state of a widget in the address of its page, in a real browser: a link shows the same, Back goes back."""

import base64

import pytest
import torch

pytest.importorskip("docutils", reason="the site's packages are not installed (pip install course-kernels[site])")

from playwright.sync_api import expect

from course_utils.chapters.hopper.race import figures
from course_utils.site import widgets as on_pages
from course_utils.widgets import (
    cache_explorer,
    dsa_explorer,
    mask_explorer,
    paint_a_mask,
    planner,
    race_past_cudnn,
)
from course_utils.widgets.explorer import packed_bits
from course_utils.widgets.player import player
from tests.helpers.page_of_the_site import served_page
from tests.helpers.recorded import swap

pytestmark = pytest.mark.browser

# In the order of the page; of the mask explorer there are two.
WIDGETS = (mask_explorer, planner, cache_explorer, dsa_explorer, lambda: race_past_cudnn(figures()), paint_a_mask)
NAMES = ("mask-explorer", "planner", "cache-explorer", "dsa-explorer", "race", "paint")
SHOWN = """() => [...document.querySelectorAll(".ak-widget")].map((one) => [
    one.querySelector(".ak-status").textContent,
    [...one.querySelectorAll("input, select")].map((input) => input.type === "radio" ? input.checked : input.value),
])"""

TOP_OF_PAINT = "document.querySelector('[data-widget=paint]').getBoundingClientRect().top"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A page with each widget that keeps its state in the address, as the site has it, and an anchor."""
    boxes = "".join(on_pages.alive(make()._state(), "") for make in (*WIDGETS, mask_explorer))
    body = f'<a href="#below">down</a>{boxes}<p id="below">below</p>'
    with served_page(tmp_path_factory.mktemp("addresses"), body) as page:
        yield page


@pytest.fixture
def page(browser):
    page = browser.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    page.close()
    assert errors == []


def opened(page, address):
    """The page at this address, drawn; what its widgets show."""
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_function("!document.querySelector('[data-widget-script] script')")
    page.wait_for_function(f"document.querySelectorAll('.ak-status').length === {len(WIDGETS) + 1}")
    return page.evaluate(SHOWN)


def widget(page, name, number=0):
    return page.locator(f'[data-widget="{name}"]').nth(number)


def press(page, name, control, key, number=0):
    widget(page, name, number).locator(control).focus()
    page.keyboard.press(key)


def change_each(page):
    """Changes something of each widget, and waits until the address says so."""
    mask = widget(page, "mask-explorer")
    mask.locator(".ak-pattern").select_option("strided")
    press(page, "mask-explorer", ".ak-stride", "ArrowRight")
    press(page, "mask-explorer", ".ak-length", "ArrowLeft")
    widget(page, "planner").locator(".ak-next").click()
    cache = widget(page, "cache-explorer")
    cache.locator(".ak-next").click()
    cache.locator("input[type=radio]").nth(1).check()
    press(page, "cache-explorer", ".ak-context", "ArrowLeft")
    press(page, "dsa-explorer", ".ak-k", "ArrowRight")
    widget(page, "dsa-explorer").locator(".ak-stage").first.click()
    race = widget(page, "race")
    race.locator(".ak-race-copies").select_option("producer")
    race.locator(".ak-race-go").click()
    paint = widget(page, "paint")
    paint.locator(".ak-paint-level").select_option("1")
    paint.locator("canvas").focus()
    page.keyboard.press(" ")
    widget(page, "mask-explorer", 1).locator(".ak-pattern").select_option("bigbird")
    for name in (*NAMES, "mask-explorer-2"):
        page.wait_for_function(f"location.hash.includes('{name}=')")


def test_a_link_shows_what_it_was_copied_from_and_keeps_no_score(address, page, browser):
    start = opened(page, address)
    assert page.evaluate("location.hash") == ""
    change_each(page)
    shown, link = page.evaluate(SHOWN), page.evaluate("location.href")
    assert all(now != before for now, before in zip(shown, start, strict=True)), "a widget has not changed"
    assert "stride:17" in link and "grid:." in link and len(link) < 2000
    assert "Tries: 1." in widget(page, "race").locator(".ak-race-score").inner_text()
    context = browser.new_context()  # somebody else's
    other = context.new_page()
    again = opened(other, link)
    race = NAMES.index("race")
    assert again[race][0].startswith("Measured: ") and shown[race][0].startswith(again[race][0].split(" You")[0])
    assert [one for n, one in enumerate(again) if n != race] == [one for n, one in enumerate(shown) if n != race]
    assert "Tries: 0." in widget(other, "race").locator(".ak-race-score").inner_text()
    context.close()


def test_back_and_forward_go_from_state_to_state_and_an_anchor_changes_none(address, page):
    opened(page, address)
    status = widget(page, "planner").locator(".ak-status")
    first = status.inner_text()
    widget(page, "planner").locator(".ak-next").click()
    page.wait_for_function("location.hash.includes('planner=')")
    second = status.inner_text()
    widget(page, "mask-explorer").locator(".ak-pattern").select_option("tree")
    page.wait_for_function("location.hash.includes('mask-explorer=')")
    page.go_back()
    expect(widget(page, "mask-explorer").locator(".ak-pattern")).to_have_value("sliding_window")
    expect(status).to_have_text(second)
    page.go_back()
    expect(status).to_have_text(first)
    assert page.evaluate("location.hash") == ""
    page.wait_for_timeout(500)  # to go back is no change, of which the address would say something later
    page.go_forward()
    expect(status).to_have_text(second)
    page.click("a")
    page.wait_for_function("location.hash === '#below'")
    widget(page, "dsa-explorer").locator(".ak-prev").click()
    page.wait_for_function("location.hash.includes('dsa-explorer=') && location.hash.includes('planner=')")
    page.go_back()
    page.wait_for_function("location.hash === '#below'")
    expect(status).to_have_text(second)
    page.go_back()
    page.go_back()
    expect(status).to_have_text(first)


def test_a_link_leads_to_its_widget(address, page):
    opened(page, f"{address}#paint=row:3")
    page.wait_for_function(f"Math.abs({TOP_OF_PAINT}) < 100")
    assert "Row 3 draws on" in widget(page, "paint").locator(".ak-status").inner_text()


GROW = """() => {
    document.body.style.overflowAnchor = "none"; // else Chromium would follow by itself, as it does on most pages
    document.body.insertAdjacentHTML("afterbegin", '<div style="height: 3000px"></div>');
}"""


def test_a_link_still_leads_to_its_widget_when_the_page_grows_but_the_reader_goes_first(address, page):
    opened(page, f"{address}#paint=row:3")
    page.wait_for_function(f"Math.abs({TOP_OF_PAINT}) < 100")
    page.evaluate(GROW)
    page.wait_for_function(f"Math.abs({TOP_OF_PAINT}) < 100")
    page.mouse.wheel(0, -200)
    page.wait_for_function(f"{TOP_OF_PAINT} > 100")
    page.evaluate(GROW)
    page.wait_for_timeout(300)
    assert page.evaluate(TOP_OF_PAINT) > 3000


def test_a_mask_of_somebody_else_counts_when_it_has_been_changed(address, page):
    grid = torch.zeros(64, 64, dtype=torch.bool)
    grid[5], grid[:, 5] = True, True
    text = base64.urlsafe_b64encode(packed_bits(grid)).decode().rstrip("=")
    opened(page, f"{address}#paint=level:2,layers:2,grid:.{text}")
    score = widget(page, "paint").locator(".ak-paint-score")
    expect(score).to_have_text("✓ Done. Your best: none yet.")
    widget(page, "paint").locator("canvas").focus()
    page.keyboard.press(" ")
    expect(score).to_contain_text(f"Your best: {100 * (127 + 4) / 4096:.2f} % of the pairs.")


def test_slides_are_one_step_of_the_history(address, page):
    opened(page, address)
    before = page.evaluate("history.length")
    widget(page, "mask-explorer").locator(".ak-length").focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    page.wait_for_function("location.hash.includes('length:')")
    assert page.evaluate("history.length") == before + 1


WRONG = [
    "#below",
    "#mask-explorer=kind:none,length:-1,tile:7,layers:999,query:x&planner=length:3&cache-explorer=page_size:9,step:1e9",
    "#dsa-explorer=k:0,stage:9,query:-1&race=kernel:1.7.9,problem:99&paint=level:9,cell:3,grid:.abc,row:64",
    "#planner=&race&=x&paint=%E0%A4%A",
]


def test_what_an_address_says_wrongly_changes_nothing(address, page):
    right = opened(page, address)
    for wrong in WRONG:
        assert opened(page, address + wrong) == right, wrong


def test_two_players_on_a_page_each_keep_their_own_step_and_cell(tmp_path, page):
    boxes = 2 * on_pages.alive(player(*swap())._state(), "")
    with served_page(tmp_path, boxes) as address:

        def steps(hash_):
            page.goto("about:blank")
            page.goto(f"{address}{hash_}")
            page.wait_for_function("document.querySelectorAll('.ak-grid').length === 2")
            page.wait_for_timeout(50)  # the address is read when a widget has been drawn once
            return page.evaluate("[...document.querySelectorAll('.ak-step')].map((one) => one.value)")

        assert steps("") == ["0", "0"]
        for n, key in enumerate(("Home", "End")):
            page.locator(".ak-grid").nth(n).focus()
            page.keyboard.press("ArrowRight")
            press(page, "player", ".ak-step", key, n)
            page.wait_for_function(f"location.hash.includes('player{'-2' if n else ''}=')")
        link = page.evaluate("location.hash")
        assert link == "#player=step:0,warp:0,cell:in%2B0&player-2=step:10,warp:1,cell:in%2B0"
        assert steps(link) == ["0", "10"]
        assert steps(link := "#player=step:7,warp:0,cell:") == ["7", "0"]
        press(page, "player", ".ak-next", "Enter", 1)
        page.wait_for_function("(old) => location.hash !== old", arg=link)
        assert page.evaluate("location.hash") == f"{link}&player-2=step:1,warp:1,cell:"
