"""The site of this checkout: links, pictures, paths, and in a real browser its pages on a desk and on a phone."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

pytest.importorskip("docutils", reason="the site's packages are not installed (pip install course-kernels[site])")

import axe_playwright_python
from playwright.sync_api import expect

from course_utils.course import chapter_notebooks
from course_utils.puzzles.puzzle import find_puzzle, puzzle_ids
from course_utils.questions.catalog import question, question_ids
from course_utils.questions.judging import right_answer
from course_utils.questions.question import Choice
from course_utils.site.build import ROOT, build
from course_utils.site.check import page_files
from course_utils.site.execute import SEED
from course_utils.toolchain.source import read_kernel
from tests.helpers import screenshots
from tests.helpers.browsing import served, wait_until_complete
from tests.helpers.by_keyboard import assert_all_controls_answer
from tests.helpers.chapter_widgets import WIDGETS, WITHOUT_STEPS
from tests.helpers.look import CONTRAST, LOOK, SET_THEME, SETTLED, faults
from tests.helpers.small_site import small_site

# Building runs every chapter that nbval has not just run (tests/helpers/keep_outputs.py).
pytestmark = pytest.mark.timeout(900)

CHAPTERS = chapter_notebooks(ROOT)
DESK, PHONE = {"width": 1300, "height": 1000}, {"width": 390, "height": 844}
FIRST, *OTHERS = [path.stem for path in CHAPTERS]
# One page of each kind.
LOOKED_AT = [
    f"notebooks/{FIRST}.html",
    "index.html",
    "search.html",
    "CHANGELOG.html",
    "CONTRIBUTING.html",
    "docs/glossary.html",
    "docs/games/paint_a_mask.html",
    "docs/cheat_sheets/index.html",
    "docs/cheat_sheets/02_flash_attention_minimal.html",
    "exercises/index.html",
    "exercises/02_flash_attention_minimal/mini_flash.html",
    "exercises/02_flash_attention_minimal/mini_flash.cu.html",
    "kernels/index.html",
    "kernels/02_flash_attention_minimal/forward.cu.html",
]
# Of the others `make test-all` says whether something on them is cut or too pale.
LEGIBLE = [f"notebooks/{FIRST}.html", "kernels/02_flash_attention_minimal/forward.cu.html"]
ON_A_DESK = [
    *LOOKED_AT,
    *(
        pytest.param(name, marks=pytest.mark.exhaustive("all chapters and guides: one page of each kind in make test"))
        for name in (
            *(f"notebooks/{slug}.html" for slug in OTHERS),
            "docs/games/race_past_cudnn.html",
            "docs/notation.html",
            "docs/teaching.html",
        )
    ),
]
IN_TEST_ALL = pytest.mark.exhaustive(f"all chapters' pages: in make test that of {FIRST}")
EACH_CHAPTER = [FIRST, *(pytest.param(slug, marks=IN_TEST_ALL) for slug in OTHERS)]
AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
# What axe finds, but for its view of contrast, which takes three quarters of its time; or that alone.
RUN_AXE = """async (contrast) => {
    const only = { type: "rule", values: ["color-contrast"] }, rules = { "color-contrast": { enabled: false } };
    const run = await axe.run(document, { resultTypes: ["violations"], ...(contrast ? { runOnly: only } : { rules }) });
    return run.violations.filter((violation) => ["serious", "critical"].includes(violation.impact))
        .flatMap((violation) => violation.nodes.map((node) => `${violation.id}: ${node.html.slice(0, 200)}`));
}"""
# Of the words that a block of code shows in one colour, one keeps its own element: axe looks at each element for long.
ONE_OF_EACH_COLOUR = """() => {
    const seen = new Set();
    document.querySelectorAll("pre").forEach((code, number) => {
        for (const word of [...code.querySelectorAll("span")]) {
            const colour = [number, word.className, word.parentElement.className].join();
            if (seen.has(colour)) word.replaceWith(...word.childNodes);
            seen.add(colour);
        }
        code.normalize();
    });
}"""
# The theme lets the keyboard reach the blocks of code that scroll 0.3 s after they have their size: on a busy machine
# that can take seconds. Where the theme never does, axe says so.
BLOCKS_REACHABLE = """async () => {
    const missed = (block) => block.tabIndex < 0
        && (block.scrollWidth > block.clientWidth || block.scrollHeight > block.clientHeight);
    for (let wait = 0; wait < 200 && [...document.querySelectorAll("pre")].some(missed); wait++)
        await new Promise((done) => setTimeout(done, 50));
}"""
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


@pytest.fixture(scope="session")
def site(request, tmp_path_factory):
    """The site of this checkout in `make test-all`; in `make test` one page of each kind."""
    if request.config.getoption("--exhaustive"):
        return build(ROOT, ROOT / "build")
    return small_site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="session")
def address(site):
    with served(site.folder) as address:
        yield address


@pytest.fixture(scope="module")
def page(browser):
    """One page for all tests."""
    page = browser.new_page(viewport=PHONE)
    page.set_default_timeout(60_000)
    page.add_init_script("sessionStorage.clear()")  # the theme keeps how far a page before has scrolled its side bar
    yield page
    page.close()


@pytest.fixture(scope="module")
def phone(browser, address):
    """A chapter on a phone, for tests that leave it as they found it."""
    page = browser.new_page(viewport=PHONE)
    load(page, address, f"notebooks/{FIRST}.html", PHONE)
    yield page
    page.close()


def load(page, address, name, size):
    """Opens a page of the site at this size, and waits until everything is on it."""
    page.goto("about:blank")  # nothing is laid out anew at the next size
    page.set_viewport_size(size)
    page.goto(f"{address}/{name}")
    wait_until_complete(page)


def names(site):
    return [path.relative_to(site.folder).as_posix() for path in page_files(site.folder)]


def save(page, name, device):
    screenshots.save(page, f"site-{name.removesuffix('.html').replace('/', '-')}-{device}")


def test_links_lead_somewhere_pictures_say_what_they_show_no_page_names_this_machine(site):
    assert site.wrong == ()


@pytest.mark.browser
@pytest.mark.parametrize(
    "all_pages",
    [
        pytest.param(False, id="two"),
        pytest.param(
            True,
            id="all",
            marks=pytest.mark.exhaustive("all pages: in make test a chapter and a kernel"),
        ),
    ],
)
def test_nothing_is_cut_too_wide_or_too_pale_on_a_desk_and_on_a_phone(all_pages, site, address, browser):
    page = browser.new_page()
    wrong = {}
    for name in names(site) if all_pages else LEGIBLE:
        if found := {what: things for what, things in faults(page, f"{address}/{name}").items() if things}:
            wrong[name] = found
    page.close()
    assert wrong == {}


@pytest.mark.browser
@pytest.mark.parametrize(("width", "height"), [(1440, 900), (390, 844)])
def test_the_first_screen_says_what_the_course_is_where_it_starts_and_runs_a_kernel(width, height, address, page):
    load(page, address, "index.html", {"width": width, "height": height})
    lead = re.split(r"\n\n", (ROOT / "README.md").read_text(encoding="utf-8"))[1].replace("\n", " ")
    kernel = page.locator("[data-front] canvas")
    kernel.wait_for()
    start = page.get_by_role("link", name="Start", exact=True)
    for part in (page.get_by_text(lead), start, page.locator("[data-front] .ak-source"), kernel):
        box = part.bounding_box()
        assert 0 <= box["y"] and box["y"] + box["height"] <= height, part
    start.click()
    page.wait_for_url(f"{address}/notebooks/{FIRST}.html")


@pytest.mark.browser
def test_a_formula_without_room_for_its_spoken_text_is_seen_by_its_bars(address, page):
    """The rule that the site had gave nearly every formula a scrollbar."""
    load(page, address, f"notebooks/{FIRST}.html", DESK)
    assert page.evaluate(LOOK, CONTRAST)["bars"] == []
    rule = "mjx-container { overflow: auto hidden !important }"
    page.add_style_tag(content=f"{rule} article mjx-container mjx-assistive-mml {{ width: auto !important }}")
    assert len(page.evaluate(LOOK, CONTRAST)["bars"]) >= 10


@pytest.mark.browser
@pytest.mark.parametrize("slug", EACH_CHAPTER)
def test_the_puzzles_of_a_page_are_unsolved_with_their_message_and_the_solution_is_folded(slug, address, page):
    load(page, address, f"notebooks/{slug}.html", DESK)
    puzzles = [find_puzzle(puzzle_id) for puzzle_id in puzzle_ids(slug)]
    cells = page.locator("div.cell:has(.ak-puzzle)")
    assert cells.count() == len(puzzles)
    for cell, puzzle in zip(cells.all(), puzzles, strict=True):
        code, verdict = cell.locator(".cell_input pre").text_content(), cell.locator(".ak-puzzle")
        assert code.strip() == f"%%puzzle {puzzle.task.id}\n{puzzle.given}".strip()
        assert verdict.inner_text().startswith("Not yet: ")
        hint, solution = verdict.locator("details").all()
        assert not hint.locator("p").is_visible() and not solution.locator("pre").is_visible()


@pytest.mark.browser
@pytest.mark.parametrize("name", ON_A_DESK)
def test_a_page_of_each_kind_fits_is_accessible_and_sets_its_formulas_without_another_server(name, address, page):
    load(page, address, name, DESK)
    save(page, name, "desk")
    assert page.evaluate(STICKING_OUT) == []
    assert page.locator(".math").count() == page.locator(".math mjx-container").count()
    assert page.locator("mjx-merror").count() == 0
    assert page.evaluate(LOOK, CONTRAST)["pale"] == []
    page.evaluate(BLOCKS_REACHABLE)
    page.evaluate(AXE)
    assert page.evaluate(RUN_AXE, False) == []
    page.set_viewport_size(PHONE)
    wait_until_complete(page)
    save(page, name, "phone")
    assert page.evaluate(STICKING_OUT) == []


@pytest.mark.browser
@pytest.mark.exhaustive("axe's own view of contrast takes seconds a page: in make test look.js asks for more contrast")
@pytest.mark.parametrize("name", ON_A_DESK)
def test_axe_finds_no_pale_word_on_a_page_of_each_kind(name, address, page):
    load(page, address, name, DESK)
    page.evaluate(ONE_OF_EACH_COLOUR)
    page.evaluate(AXE)
    assert page.evaluate(RUN_AXE, True) == []


def test_each_kind_of_page_is_among_those_that_are_looked_at(site):
    def kind(name):
        top, *rest = name.split("/")
        return top, name.rpartition("/")[2] == "index.html", name.endswith((".cu.html", ".cuh.html")) if rest else top

    looked_at = {kind(name) for name in LOOKED_AT}
    assert {kind(name) for name in names(site)} - looked_at == set()


@pytest.mark.browser
def test_the_switch_turns_the_theme_of_the_page_and_of_its_widgets(address, page):
    load(page, address, "index.html", DESK)
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    for theme in ("dark", "light"):
        page.locator(".theme-switch-button").click()
        page.locator(f".theme-change-button[data-mode={theme}]").click()
        expect(page.locator("body")).to_have_attribute("data-jp-theme-light", str(theme == "light").lower())
        now = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (now == light) == (theme == "light")


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_link_under_the_pointer_can_be_read(theme, address, page):
    load(page, address, "search.html", DESK)
    page.evaluate("(theme) => { document.documentElement.dataset.theme = theme; }", theme)
    link = page.locator("nav.bd-links a").nth(1)
    before = link.evaluate("(link) => getComputedStyle(link).color")
    link.hover()
    page.wait_for_function(
        "([link, before]) => getComputedStyle(link).color !== before", arg=[link.element_handle(), before]
    )
    wait_until_complete(page)  # the colour fades into the next one
    assert page.evaluate(LOOK, CONTRAST)["pale"] == []


# Beside its heading, on a card, the formula gets so small that the table would fit with it.
TABLE = """async () => {
    document.querySelector("article").innerHTML = `<table><thead><tr><th>n</th><th>what the paper says</th></tr></thead>
        <tbody><tr><td>1</td><td><span class="math">\\\\(${"x + ".repeat(12)} x\\\\)</span></td></tr></tbody></table>`;
    await MathJax.typesetPromise();
}"""


@pytest.mark.browser
def test_a_table_with_formulas_is_fitted_to_the_same_again_and_again(address, page):
    load(page, address, "docs/notation.html", PHONE)
    page.evaluate(TABLE)
    fit = """async () => {
        fitSoon();
        for (let frame = 0; frame < 3; frame++) await new Promise(requestAnimationFrame);
        return document.querySelector("article table").classList.contains("course-cards");
    }"""
    assert [page.evaluate(fit) for _ in range(3)] == [True] * 3
    assert page.evaluate("document.querySelector('article mjx-container').style.zoom < 1")


@pytest.mark.browser
def test_folded_code_opens_and_closes(phone):
    folded = phone.locator("article details.hide").first
    code = folded.locator("pre").first
    for shown in (True, False):
        assert code.is_visible() != shown
        folded.locator("summary").click()
        expect(code).to_be_visible(visible=shown)


@pytest.mark.browser
def test_a_shrunk_picture_is_enlarged_and_made_to_fit_again(phone):
    for button in phone.locator(".course-enlarge:visible").all():
        button.scroll_into_view_if_needed()
        image = button.locator("xpath=preceding-sibling::div[1]").locator("img").first
        narrow, own = image.bounding_box()["width"], int(image.get_attribute("width"))
        if own > PHONE["width"]:  # not the first panel of several, which fits as it is
            break
    assert narrow < PHONE["width"] < own
    for width in (own, narrow):
        button.click()
        assert round(image.bounding_box()["width"]) == round(width)


@pytest.mark.browser
def test_what_is_copied_from_a_block_of_code_is_its_text(address, page):
    load(page, address, "kernels/02_flash_attention_minimal/forward.cu.html", PHONE)
    select = "(node) => (getSelection().selectAllChildren(node), getSelection().toString())"
    copied = page.locator("article pre").first.evaluate(select)
    assert copied.rstrip("\n") == read_kernel("02_flash_attention_minimal/forward.cu").rstrip("\n")


# ---- questions


def give(form, answer):
    """Chooses, marks or types an answer in the form of a question: parts by number, or texts."""
    inputs = form.locator("input")
    parts = [answer] if isinstance(answer, (int, str)) else answer
    for index, part in enumerate(parts):
        if isinstance(part, str):
            inputs.nth(index).fill(part)
        else:
            inputs.nth(part).check()
    form.locator(".ak-check").click()


def in_the_form(answer):
    """A right answer as numbers of inputs, or as the texts of all of them."""
    if isinstance(answer, bool):
        return 0 if answer else 1
    flat = answer if isinstance(answer, list) else [answer]
    return [text for row in flat for text in (row if isinstance(row, list) else [row])]


@pytest.mark.browser
@pytest.mark.parametrize("slug", EACH_CHAPTER)
def test_the_questions_of_a_page_are_answered_on_it(slug, address, browser):
    page = browser.new_page(viewport=PHONE)
    page.goto(f"{address}/notebooks/{slug}.html")
    forms = page.locator("fieldset.ak-question")
    forms.last.wait_for()
    names = forms.evaluate_all("(all) => all.map((one) => one.dataset.id)")
    assert sorted(names) == sorted(question_ids(slug))
    for number, name in enumerate(names):
        form, status = forms.nth(number), forms.nth(number).locator(".ak-status")
        assert form.locator(".ak-why:visible, .ak-reveal:visible").count() == 0, "an answer is shown before it is given"
        form.locator(".ak-check").click()
        expect(status).not_to_have_text("")
        assert status.inner_text()[0] not in "✓✗", name
        give(form, in_the_form(right_answer(question(name, int(SEED)))))
        expect(status).to_contain_text("✓ Right.")
    page.evaluate(SET_THEME, "dark")
    assert {kind: things for kind, things in page.evaluate(LOOK, CONTRAST).items() if things} == {}
    page.close()


@pytest.mark.browser
def test_a_wrong_answer_is_explained_and_the_right_one_shown_on_demand(address, page):
    load(page, address, f"notebooks/{FIRST}.html", DESK)
    name = next(one for one in question_ids(FIRST) if isinstance(question(one, int(SEED)), Choice))
    asked = question(name, int(SEED))
    wrong = next(number for number, option in enumerate(asked.options) if not option.right)
    form = page.locator(f'fieldset.ak-question[data-id="{name}"]')
    give(form, [wrong])
    expect(form.locator(".ak-status")).to_contain_text(f"✗ Not right. Read again: “{asked.read_again}”.")
    plain = asked.options[wrong].why.replace("`", "")
    assert form.locator(".ak-why").nth(wrong).inner_text() == plain
    form.locator(".ak-reveal").click()
    expect(form.locator('.ak-mark[data-status="right"]')).to_have_text("✓ the right one")


@pytest.mark.browser
def test_without_scripts_answers_are_folded_below_the_questions_and_widgets_are_pictures(address, browser):
    page = browser.new_page(java_script_enabled=False)
    page.goto(f"{address}/notebooks/{FIRST}.html")
    questions = page.locator("div.ak-question")
    assert questions.count() == len(question_ids(FIRST)) == page.locator("div.ak-question > details").count()
    assert page.locator("[data-widget-script] img").first.is_visible()
    page.close()


# ---- widgets


WIDGET = re.compile(r'data-widget-script="([\w.]+)">.*?<script type="application/json">(.*?)</script>', re.DOTALL)
MOST_BYTES = 300_000  # that the widgets of a page add to it, with their scripts; chapter 07 has five of one kind
PLAYER = "player.js"  # which shows scenes: each is a recording of at most 300,000 bytes, written in base64
MOST_OF_A_SCENE, MOST_OF_THE_PLAYER = 400_000, 150_000


def test_every_widget_of_the_chapters_is_alive_on_its_page_and_small(site):
    for path in sorted((site.folder / "notebooks").glob("*.html")):
        found = WIDGET.findall(path.read_text(encoding="utf-8"))
        scripts = [site.folder / "_static" / "widgets" / name for name, _ in found]
        drawn = [re.search(r'"data-widget": "([\w-]+)"', script.read_text(encoding="utf-8"))[1] for script in scripts]
        assert [name for name in drawn if name != WITHOUT_STEPS] == WIDGETS[path.stem], path.stem
        assert all(len(state) <= MOST_OF_A_SCENE for name, state in found if name == PLAYER), path.stem
        added = sum(len(state) for name, state in found if name != PLAYER)
        added += sum(script.stat().st_size for script in set(scripts) if script.name != PLAYER)
        assert added <= MOST_BYTES, path.stem
    assert (site.folder / "_static" / "widgets" / PLAYER).stat().st_size <= MOST_OF_THE_PLAYER


@pytest.mark.browser
def test_a_widget_of_a_page_is_driven_by_mouse_and_keyboard_and_follows_the_theme(phone):
    grid = phone.locator('[data-widget="launch-grid"]')
    status, slider, canvas = grid.locator(".ak-status"), grid.locator(".ak-step"), grid.locator("canvas")
    before = status.inner_text()
    grid.locator(".ak-next").click()
    expect(status).not_to_have_text(before)
    slider.focus()
    for key in ("Home", "ArrowRight"):
        before = status.inner_text()
        phone.keyboard.press(key)
        expect(status).not_to_have_text(before)
    drawn = "(canvas) => canvas.toDataURL()"
    light = canvas.evaluate(drawn)
    for theme in ("dark", "light"):
        phone.evaluate(SET_THEME, theme)
        assert (canvas.evaluate(drawn) == light) == (theme == "light")


# Moves a widget to the middle of its steps, so that it can go either way.
MIDDLE = "(step) => { step.value = step.max / 2; step.dispatchEvent(new Event('input')); }"


@pytest.mark.browser
@pytest.mark.parametrize("slug", EACH_CHAPTER)
def test_every_widget_of_a_chapter_moves_on_its_page_by_keyboard_alone(slug, address, page):
    load(page, address, f"notebooks/{slug}.html", DESK)
    widgets = page.locator(f"[data-widget-script] .ak-widget:not([data-widget={WITHOUT_STEPS}])")
    assert widgets.count() == len(WIDGETS[slug])
    for number in range(widgets.count()):
        root = widgets.nth(number)
        root.locator(".ak-step").evaluate(MIDDLE)
        assert_all_controls_answer(root)


@pytest.mark.browser
def test_the_planner_of_a_page_has_the_controls_that_work_there(address, page):
    load(page, address, "notebooks/08_choosing.html", DESK)
    planner = page.locator('[data-widget="planner"]').first
    assert planner.locator("select").count() == 0 and planner.get_by_text("Other settings need Python").count() == 1
    planner.locator(".ak-next").click()
    expect(planner.locator(".ak-status")).to_contain_text("32,768 tokens")


# ---- weight and motion


MOST_FRONT, MOST = 3_000_000, 6_000_000  # bytes, before they are compressed on their way
OTHER_CHAPTERS = [pytest.param(slug, MOST, marks=IN_TEST_ALL) for slug in OTHERS]


@pytest.mark.browser
@pytest.mark.parametrize(("slug", "most"), [("", MOST_FRONT), (FIRST, MOST), *OTHER_CHAPTERS])
def test_the_front_page_and_a_chapter_load_no_more_than_they_may(slug, most, site, address, browser):
    name = f"notebooks/{slug}.html" if slug else "index.html"
    page = browser.new_page()
    load(page, address, name, DESK)
    page.evaluate(SETTLED)
    entries = "() => performance.getEntriesByType('resource').map((one) => new URL(one.name).pathname.slice(1))"
    loaded = {name, *(unquote(path) for path in page.evaluate(entries))}
    page.close()
    assert len(loaded) > 20
    sizes = {path: (site.folder / path).stat().st_size for path in loaded}
    assert sum(sizes.values()) <= most, sorted(sizes.items(), key=lambda file: -file[1])[:5]


@pytest.mark.browser
def test_each_icon_is_drawn(address, page):
    load(page, address, "index.html", DESK)
    drawn = page.locator("svg.svg-inline--fa")
    assert drawn.count() > 5 and page.locator("i.fa-solid").count() == 0
    # Of an icon that it lacks the theme's script draws a question mark, which moves.
    assert drawn.locator("path").count() == drawn.count() and drawn.locator("animate").count() == 0


@pytest.mark.browser
def test_for_who_asks_for_less_motion_the_recording_stands_still_until_it_is_played(address, browser):
    page = browser.new_page(reduced_motion="reduce")
    page.goto(f"{address}/index.html")
    button, recording = (
        page.locator(".course-enlarge", has_text="the recording"),
        page.locator("img[alt^='A learner runs']"),
    )
    expect(button).to_have_text("Play the recording")
    assert recording.get_attribute("src").startswith("data:image/png")
    button.press("Enter")
    expect(button).to_have_text("Stop the recording")
    assert recording.get_attribute("src").endswith(".gif")
    assert page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"
    page.close()
    page = browser.new_page()
    page.goto(f"{address}/index.html")
    assert page.locator("img[src$='.gif']").count() == 1 and page.get_by_text("Play the recording").count() == 0
    page.close()


# ---- the tests themselves: what they look for is seen


@pytest.mark.browser
def test_a_page_that_sticks_out_is_seen(browser):
    page = browser.new_page(viewport=PHONE)
    page.set_content('<div style="overflow-x: auto"><p style="width: 900px">in a box</p></div>')
    assert page.evaluate(STICKING_OUT) == []
    page.set_content('<p style="width: 900px">wide</p>')
    assert page.evaluate(STICKING_OUT)
    page.close()


@pytest.mark.browser
def test_axe_sees_a_picture_without_alt_text(browser):
    page = browser.new_page()
    page.set_content('<html lang="en"><title>t</title><main><img src="data:,"></main></html>')
    page.evaluate(AXE)
    assert any(line.startswith("image-alt") for line in page.evaluate(RUN_AXE, False))
    page.close()


@pytest.mark.browser
def test_axe_sees_a_pale_word_of_code(browser):
    page = browser.new_page()
    words = '<span class="k">if</span> <span class="n">a</span>\n' * 3
    page.set_content(
        f'<html lang="en"><title>t</title><main><pre><style>.k {{ color: #ddd }}</style>{words}</pre></main>'
    )
    page.evaluate(ONE_OF_EACH_COLOUR)
    assert page.locator("pre span").count() == 2
    page.evaluate(AXE)
    assert any(line.startswith("color-contrast") and 'class="k"' in line for line in page.evaluate(RUN_AXE, True))
    page.close()
