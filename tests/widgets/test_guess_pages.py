"""The box of a guess in a real browser: how a guess is read and compared, what is hidden when, and how it looks."""

import pytest

from course_utils.widgets import guesses
from tests.helpers.contrast import LOWEST_CONTRAST

pytestmark = pytest.mark.browser

READ = "(cases) => import(scriptUrl).then((m) => cases.map(([text, unit]) => m.readGuess(text, unit).value ?? null))"
FAR = "(cases) => import(scriptUrl).then((m) => cases.map((one) => m.howFar(...one)))"
SCALES = "(cases) => import(scriptUrl).then((m) => cases.map((one) => m.scaleOf(...one)))"


def panel(value=37, unit="sectors", form=None, shown=({"text/plain": "load of K: 32"},)):
    words = "" if value is None else f"{value} {unit}".strip()
    form = form or {"kind": "number"}
    return guesses.Panel(guesses._Asked("How many sectors together?", unit, form, value, words), shown)


def status(page):
    return page.locator(".ak-status").inner_text()


@pytest.fixture
def type_guess(open_widget):
    """type_guess(text, ...) -> the page after this guess was typed and sent by Enter."""

    def enter(text, *arguments, **options):
        page = open_widget(panel(*arguments, **options))
        page.fill("input[type=text]", text)
        page.keyboard.press("Enter")
        return page

    return enter


# ---- pure functions


def test_how_a_typed_guess_is_read(open_widget):
    cases = {
        ("37", "sectors"): 37,
        (" ~ 1e6", ""): 1e6,
        ("1,024", ""): 1024,
        ("131_072 tokens", "tokens"): 131072,
        ("1 024.5", ""): 1024.5,
        ("2^17", "tokens"): 131072,
        ("2**3", ""): 8,
        ("-2.5", ""): -2.5,
        (".5", ""): 0.5,
        ("34 GB", "GB"): 34,
        ("34 gb", "GB"): 34,
        ("15%", "% hidden"): 15,
        ("3x", "times as slow"): 3,
        ("3 ×", "times"): 3,
        ("3 times", "times as slow"): 3,
        ("34 MB", "GB"): None,
        ("3x", "GB"): None,
        ("5 apples", ""): None,
        ("1,5", ""): None,
        ("1.2.3", ""): None,
        ("many", ""): None,
        ("", ""): None,
        ("9e999", ""): None,
    }
    got = open_widget(panel()).evaluate(READ, list(cases))
    assert dict(zip(cases, got, strict=True)) == cases


def test_how_far_a_guess_is_off(open_widget):
    cases = {
        (37, 37): "right",
        (33.05, 33): "right",
        (80, 37): "2.2 times too high",
        (1, 37): "37 times too low",
        (36, 37): "3 % too low",
        (50, 37): "35 % too high",
        (74, 37): "2 times too high",
        (0, 37, "GB"): "37 GB too low",
        (5, 60, "% hidden"): "55 points too low",
        (5, -5): "10 too high",
        (3, 0): "3 too high",
        (1e6, 1): "1,000,000 times too high",
        ("K", "K"): "right",
        ("Q", "K"): "another one",
    }
    got = open_widget(panel()).evaluate(FAR, list(cases))
    assert dict(zip(cases, got, strict=True)) == cases


def test_one_scale_holds_both_and_is_logarithmic_where_they_are_far_apart(open_widget):
    cases = [(80, 37, ""), (1, 37, ""), (-5, 10, ""), (0, 0, ""), (95, 83, "%"), (1e9, 1e-3, ""), (3, "K", "")]
    near, far, negative, nothing, percent, wide, none = open_widget(panel()).evaluate(SCALES, cases)
    assert [tick["text"] for tick in near["ticks"]] == ["0", "20", "40", "60", "80"] and not near["log"]
    assert (near["guess"], near["value"]) == (1, pytest.approx(37 / 80))
    assert [tick["text"] for tick in far["ticks"]] == ["1", "2", "5", "10", "20", "50"] and far["log"]
    assert (far["guess"], far["value"]) == (0, pytest.approx(0.923, abs=1e-3))
    assert [tick["text"] for tick in negative["ticks"]] == ["-5", "0", "5", "10"]
    assert nothing["guess"] == nothing["value"] == 0
    assert percent["ticks"][-1] == {"at": 1, "text": "100"} and percent["value"] == 0.83
    assert [tick["text"] for tick in wide["ticks"]] == ["0.001", "0.1", "10", "1,000", "100,000"] + [
        "10,000,000",
        "1,000,000,000",
    ]
    assert (wide["value"], wide["guess"]) == (0, 1)
    assert none is None


# ---- the box


def test_the_result_is_hidden_until_a_guess_is_typed(open_widget):
    page = open_widget(panel())
    assert not page.get_by_text("load of K: 32").is_visible() and "37" not in page.locator("body").inner_text()
    assert status(page) == "The result is hidden until you compare or skip."
    page.keyboard.press("Tab")
    page.keyboard.type("80")
    page.keyboard.press("Enter")
    assert page.get_by_text("load of K: 32").is_visible()
    assert status(page) == "You guessed 80 sectors. It is 37 sectors: your guess is 2.2 times too high."
    assert page.locator(".ak-guess-name").all_inner_texts() == ["your guess: 80 sectors", "found: 37 sectors"]
    assert page.evaluate("[model.get('guess'), model.get('stage'), sent]") == [80, "compared", [{"guessed": 80}]]


def test_who_guesses_again_is_compared_again(type_guess):
    page = type_guess("80")
    page.fill("input[type=text]", "37")
    page.click(".ak-compare")
    assert status(page).endswith("your guess is right.") and page.evaluate("sent.length") == 2


def test_skipping_shows_the_value_alone_and_hides_it_again(open_widget):
    page = open_widget(panel())
    page.focus(".ak-skip")
    page.keyboard.press("Enter")
    assert status(page) == "It is 37 sectors." and page.get_by_text("load of K: 32").is_visible()
    assert not page.locator(".ak-guess-scale").is_visible() and page.evaluate("sent.length") == 0
    assert page.locator(".ak-skip").evaluate("(node) => node === document.activeElement && node.textContent") == (
        "Hide again"
    )
    page.keyboard.press("Enter")
    assert not page.get_by_text("load of K: 32").is_visible()


def test_a_guess_that_cannot_be_read_is_said_and_hides_on(type_guess):
    page = type_guess("many")
    assert status(page) == "“many” cannot be read as a number. Type a number such as 40, 1.5e6 or 2^20."
    field = page.locator("input[type=text]")
    assert field.get_attribute("aria-invalid") == "true" and field.evaluate("(f) => f === document.activeElement")
    assert not page.get_by_text("load of K: 32").is_visible() and page.evaluate("sent.length") == 0


def test_an_earlier_guess_is_put_in_and_compared_by_enter(open_widget):
    earlier = panel()
    earlier.guess = 20
    page = open_widget(earlier)
    assert status(page).startswith("You guessed 20 sectors before.")
    assert not page.get_by_text("load of K: 32").is_visible()
    page.focus("input[type=text]")
    page.keyboard.press("Enter")
    assert status(page).endswith("It is 37 sectors: your guess is 1.9 times too low.")


def test_a_slider_is_moved_and_compared_by_keyboard(open_widget):
    page = open_widget(panel(60, "%", {"kind": "slider", "low": 0, "high": 100}))
    page.focus("input[type=range]")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert page.locator(".ak-number").inner_text() == "1 %"
    page.keyboard.press("Enter")
    assert status(page) == "You guessed 1 %. It is 60 %: your guess is 59 points too low."


def test_a_choice_is_made_by_keyboard(open_widget):
    page = open_widget(panel("K", "", {"kind": "choice", "options": ["Q", "K", "V"]}))
    page.click(".ak-compare")
    assert status(page) == "There is no guess yet: choose one."
    page.keyboard.press("Space")
    page.keyboard.press("Enter")
    assert status(page) == "You guessed Q. It is K."
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert status(page) == "You guessed K. It is K: your guess is right."


def test_where_no_figure_was_found_the_guess_shows_what_was_held(type_guess):
    page = type_guess("80", None)
    assert status(page) == "You guessed 80 sectors. No such figure was found here."
    assert page.get_by_text("load of K: 32").is_visible() and not page.locator(".ak-guess-scale").is_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_is_legible_and_fits_a_narrow_page(open_widget, theme):
    wide = {"text/html": f"<table><tr>{'<td>1234567890</td>' * 12}</tr></table>"}
    page = open_widget(panel(37, "sectors of all accesses together", shown=[wide]), width=360, theme=theme)
    page.fill("input[type=text]", "36")
    page.keyboard.press("Enter")
    page.evaluate("document.body.style.color = getComputedStyle(document.body).getPropertyValue('--jp-ui-font-color1')")
    assert page.locator(".ak-widget").evaluate(LOWEST_CONTRAST) >= 4.5
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    left, right = page.locator(".ak-widget").evaluate(
        "(w) => [w.getBoundingClientRect().left, w.getBoundingClientRect().right]"
    )
    for name in page.locator(".ak-guess-name").all():
        box = name.bounding_box()
        assert left <= box["x"] and box["x"] + box["width"] <= right


def test_a_box_that_is_taken_away_listens_no_more(open_widget):
    page = open_widget(panel())
    page.evaluate("cleanup()")
    assert page.evaluate("model.listeners.length") == 0
