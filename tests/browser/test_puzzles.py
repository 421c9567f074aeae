"""A puzzle in a real JupyterLab: run as it is given, then solved, in both themes."""

import pytest

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
def test_a_puzzle_says_what_is_wrong_and_opens_its_hint_and_solution(run_cells, theme):
    puzzle = find_puzzle(PUZZLE)
    cells = [
        "%load_ext course_utils.puzzles",
        *(f"%%puzzle {PUZZLE}\n{text}" for text in (puzzle.given, puzzle.solved)),
    ]
    notebook = run_cells(cells)
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
