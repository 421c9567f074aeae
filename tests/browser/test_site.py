"""The built site in a real browser: on a desk and on a phone, and by axe-core's rules of accessibility."""

import functools
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import axe_playwright_python
import pytest

from course_utils.site.build import ROOT, build

# Building runs every chapter whose last run is not kept in build/site-run.
pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

CHAPTERS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SCREENSHOTS = ROOT / "build" / "screenshots"
DESK, PHONE = {"width": 1300, "height": 1000}, {"width": 390, "height": 844}
AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
RUN_AXE = """async () => (await axe.run(document, { resultTypes: ["violations"] })).violations
    .filter((violation) => ["serious", "critical"].includes(violation.impact))
    .flatMap((violation) => violation.nodes.map((node) => `${violation.id}: ${node.html.slice(0, 200)}`))"""
# Elements that stick out of the page and out of every box that scrolls.
STICKING_OUT = """() => {
    const width = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth <= width) return [];
    const scrolls = (box) => box && box !== document.body &&
        (/auto|scroll|hidden/.test(getComputedStyle(box).overflowX) || scrolls(box.parentElement));
    return [...document.querySelectorAll("body *")]
        .filter((part) => part.getBoundingClientRect().right > width + 1 && !scrolls(part.parentElement))
        .map((part) => part.outerHTML.slice(0, 120));
}"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="session")
def site():
    """The site of this checkout, built once."""
    return build(ROOT, ROOT / "build")


@pytest.fixture(scope="session")
def address(site):
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site.folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def open_page(address, browser):
    """open_page("name.html", size) -> the page after its formulas are set. Nothing outside the site is loaded."""
    opened = []

    def open_at(name, size):
        page = browser.new_page(viewport=size)
        opened.append(page)
        page.set_default_timeout(60_000)
        page.route(lambda url: not url.startswith(address), lambda route: route.abort())
        page.goto(f"{address}/{name}")
        page.evaluate("() => window.MathJax?.startup?.promise")
        return page

    yield open_at
    for page in opened:
        page.close()


def test_links_lead_somewhere_and_pictures_say_what_they_show(site):
    assert site.wrong == ()


@pytest.mark.parametrize("notebook", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_is_accessible(notebook, open_page):
    page = open_page(f"notebooks/{notebook.stem}.html", DESK)
    page.evaluate(AXE)
    assert page.evaluate(RUN_AXE) == []


@pytest.mark.parametrize("notebook", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapters_formulas_are_set_without_another_server(notebook, open_page):
    page = open_page(f"notebooks/{notebook.stem}.html", PHONE)
    assert page.locator(".math").count() == page.locator(".math mjx-container").count()
    assert page.locator("mjx-merror").count() == 0


def test_every_page_fits_a_desk_and_a_phone(site, address, open_page):
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page, too_wide = open_page("index.html", DESK), {}
    names = (path.relative_to(site.folder).as_posix() for path in sorted(site.folder.rglob("*.html")))
    for name in (name for name in names if not name.startswith("_static/")):
        page.set_viewport_size(DESK)
        page.goto(f"{address}/{name}")
        page.evaluate("() => window.MathJax?.startup?.promise")
        for device, size in (("desk", DESK), ("phone", PHONE)):
            page.set_viewport_size(size)
            if parts := page.evaluate(STICKING_OUT):
                too_wide[f"{name} ({device})"] = parts
            page.screenshot(path=SCREENSHOTS / f"site-{name.removesuffix('.html').replace('/', '-')}-{device}.png")
    assert too_wide == {}


# ---- the tests themselves: what they look for is seen


def test_a_page_that_sticks_out_is_seen(browser):
    page = browser.new_page(viewport=PHONE)
    page.set_content('<div style="overflow-x: auto"><p style="width: 900px">in a box</p></div>')
    assert page.evaluate(STICKING_OUT) == []
    page.set_content('<p style="width: 900px">wide</p>')
    assert page.evaluate(STICKING_OUT)
    page.close()


def test_axe_sees_a_picture_without_alt_text(browser):
    page = browser.new_page()
    page.set_content('<html lang="en"><title>t</title><main><img src="data:,"></main></html>')
    page.evaluate(AXE)
    assert any(line.startswith("image-alt") for line in page.evaluate(RUN_AXE))
    page.close()
