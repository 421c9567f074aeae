"""A puzzle in a real JupyterLab: run as it is given, then solved, in both themes."""

import pytest
from playwright.sync_api import expect

from course_utils.puzzles.puzzle import find_puzzle
from tests.helpers.contrast import LOWEST_CONTRAST
from tests.helpers.jupyterlab import FRONT, set_theme

pytestmark = pytest.mark.browser

PUZZLE = "00_start_here/guard"


@pytest.mark.parametrize(
    "theme",
    [
        "JupyterLab Light",
        pytest.param("JupyterLab Dark", marks=pytest.mark.exhaustive("the second theme: the light one in make test")),
    ],
)
def test_a_puzzle_says_what_is_wrong_and_opens_its_hint_and_solution(run_cells, without_sandbox, theme):
    puzzle = find_puzzle(PUZZLE)
    given, solved = (f"%%puzzle {PUZZLE}\n{text}" for text in (puzzle.given, puzzle.solved))
    notebook = run_cells(["%load_ext course_utils.puzzles", given, without_sandbox, solved])
    notebook.assert_every_cell_ran()
    page = notebook.page
    set_theme(page, theme)
    try:
        given, solved = page.locator(f"{FRONT} .ak-puzzle").all()
        assert "Not yet: an array is read or written past its end." in given.inner_text()
        assert "Right." in solved.inner_text()
        hint, solution = given.locator("summary").all()
        assert not given.get_by_text("if (i < n)").is_visible()
        hint.click()
        assert given.get_by_text(puzzle.hint).is_visible()
        solution.focus()
        page.keyboard.press("Enter")
        assert "if (i < n)" in given.inner_text()
        notebook.screenshot(f"puzzle-{theme.split()[1].lower()}")
        for shown in (given, solved):
            assert shown.evaluate(LOWEST_CONTRAST) >= 4.5
            assert shown.evaluate("(node) => node.scrollWidth <= node.clientWidth + 1")
    finally:
        set_theme(page)


def test_a_wrong_kernel_and_a_right_one_can_be_watched(run_cells, without_sandbox):
    puzzle = find_puzzle(PUZZLE)
    texts = (puzzle.given, puzzle.solved, puzzle.given.replace("}", ""))
    cells = [f"%%puzzle {PUZZLE}\n{text}" for text in texts]
    notebook = run_cells([without_sandbox, "%load_ext course_utils.puzzles", *cells])
    notebook.assert_every_cell_ran()
    page = notebook.page
    assert page.locator(f"{FRONT} .cm-lineNumbers").count() >= 3, "messages name lines"
    buttons = page.get_by_role("button", name="Watch it run")
    expect(buttons).to_have_count(2)  # the last kernel does not compile
    for number, words in enumerate(("It opens at a finding: out of bounds: reads a[", "Its numbers are right.")):
        buttons.nth(number).click()
        expect(page.locator("[data-widget=watch-it-run] .ak-status").nth(number)).to_contain_text(words, timeout=30_000)
        player = page.locator("[data-widget=player]").nth(number)
        player.scroll_into_view_if_needed()
        expect(player).to_be_visible()
        notebook.screenshot(f"watch-it-run-{number}")
