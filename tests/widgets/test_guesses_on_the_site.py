"""A stored guess on a page without a kernel: folded without scripts, the widget's own box with them."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from course_utils.plots.look import png_and_size
from course_utils.site import guesses as site_guesses
from course_utils.site import widgets
from course_utils.widgets import guesses

ASKED = guesses._Asked("How many <sectors>?", "sectors", {"kind": "number"}, 37, "37 sectors")
SHOWN = [{"text/plain": "load of K: 32\n"}, {"image/png": png_and_size(Figure((0.1, 0.1)))[0]}]
SITE = "http://site.test/"
STATIC = Path(site_guesses.__file__).with_name("static")
STORED = guesses._bundle(ASKED, SHOWN)["text/html"]


@pytest.fixture
def page(browser):
    opened = browser.new_page(viewport={"width": 390, "height": 800})
    errors = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    files = dict(widgets.files()) | {"guesses.js": (STATIC / "guesses.js").read_text(encoding="utf-8")}
    body = "".join(f"<style>{files[name]}</style>" for name in widgets.STYLES) + STORED * 2
    page = f"<!doctype html><meta charset='utf-8'>{body}<script type='module' src='/guesses.js'></script>"
    opened.route(
        "**/*.js",
        lambda route: route.fulfill(body=files[route.request.url.removeprefix(SITE)], content_type="text/javascript"),
    )
    opened.route(f"{SITE}page", lambda route: route.fulfill(body=page, content_type="text/html"))
    opened.goto(f"{SITE}page")
    yield opened
    opened.close()
    assert not errors


@pytest.mark.browser
def test_a_stored_guess_becomes_the_widgets_box(page):
    first, second = page.locator(".ak-widget").all()
    assert page.locator("details").count() == 0
    assert "How many <sectors>?" in first.inner_text() and "37" not in first.inner_text()
    first.locator("input").focus()
    page.keyboard.type("80")
    page.keyboard.press("Enter")
    assert first.locator(".ak-status").inner_text() == (
        "You guessed 80 sectors. It is 37 sectors: your guess is 2.2 times too high."
    )
    assert first.locator(".ak-guess-scale").is_visible() and first.get_by_text("load of K: 32").is_visible()
    assert not second.get_by_text("load of K: 32").is_visible()
    second.locator(".ak-skip").click()
    assert second.locator(".ak-status").inner_text() == "It is 37 sectors."
    assert second.get_by_text("load of K: 32").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_held_pictures_get_the_cells_descriptions_in_order():
    assert site_guesses.held_pictures(STORED * 2) == 2
    page = site_guesses.described(STORED * 2, ['a "first" one'])
    assert page.index('alt="a &quot;first&quot; one"') < page.index('alt=""')
