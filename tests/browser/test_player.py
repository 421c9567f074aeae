"""The player in JupyterLab, on a wide and on a narrow page: soon there, as wide as its cell, stepped by keyboard."""

import pytest

from tests.helpers.jupyterlab import FRONT, NotebookPage, show_cells, tidy, wait_until
from tests.helpers.redraw import assert_redrawn_within_a_frame

pytestmark = pytest.mark.browser

CELLS = [
    "from course_utils import widgets\nfrom course_utils.launches.chapters import course_launches",
    """widgets.play(course_launches()["transpose_tiled"].run)""",
]
HEIGHT = 1000
PICTURE_SECONDS = 2  # from when JupyterLab has the cell's output until the player has drawn its memory
# Keeps in window.pictured when an output came and when the player's memory was drawn, in milliseconds.
WATCH = """(front) => {
    window.pictured = {};
    const seen = (name, selector) => {
        const there = document.querySelector(`${front} ${selector}`);
        if (there) requestAnimationFrame(() => { window.pictured[name] ??= performance.now(); });
        return there;
    };
    const watch = new MutationObserver(() => {
        seen("output", ".jp-OutputArea-output");
        if (seen("memory", "[data-widget=player] .ak-grid")) watch.disconnect();
    });
    watch.observe(document.body, { childList: true, subtree: true });
}"""
# What of the player stands out of its box at a side: names, if any; what scrolls or hides by itself is its own box.
STANDS_OUT = """(root) => {
    const { left, right } = root.getBoundingClientRect();
    const boxed = (node) => {
        for (let at = node.parentElement; at !== root; at = at.parentElement) {
            if (getComputedStyle(at).overflowX !== "visible") return true;
        }
        return false;
    };
    const out = [...root.querySelectorAll("*")].filter((node) => {
        const box = node.getBoundingClientRect();
        return box.width > 0 && (box.left < left - 1 || box.right > right + 1) && !boxed(node);
    });
    const wide = root.scrollWidth > root.clientWidth ? ["the player itself"] : [];
    return [...wide, ...out.map((node) => `${node.tagName} ${node.className}`)];
}"""
# The height of the source where no line turns at its edge.
WITHOUT_LINE_IN_FRONT = """(root) => {
    const line = root.querySelector(".ak-line-now");
    line.classList.remove("ak-line-now");
    const { height } = root.querySelector(".ak-source").getBoundingClientRect();
    line.classList.add("ak-line-now");
    return height;
}"""
STEP = """(n) => {
    const slider = document.querySelector("[data-widget=player] .ak-step");
    slider.value = (37 * n) % slider.max;
    slider.dispatchEvent(new Event("input"));
}"""


@pytest.fixture(scope="module")
def played(only_page):
    """The player in a notebook of the wide page, run once, and what WATCH saw."""
    only_page.set_viewport_size({"width": 1440, "height": HEIGHT})
    show_cells(only_page, CELLS)
    only_page.evaluate(WATCH, FRONT)
    notebook = NotebookPage(only_page)
    notebook.assert_every_cell_ran()
    (player,) = notebook.widgets_of(1)
    yield notebook, player
    only_page.evaluate("jupyterapp.shell.expandLeft()")
    tidy(only_page)


def test_the_first_picture_is_there_soon(played):
    notebook, _ = played
    wait_until(notebook.page, "() => window.pictured.memory")
    seen = notebook.page.evaluate("window.pictured")
    assert seen["memory"] - seen["output"] <= 1000 * PICTURE_SECONDS


@pytest.mark.parametrize("width", [1440, 390])
def test_the_player_fits_its_cell_and_steps_within_a_frame(played, width):
    notebook, player = played
    page = notebook.page
    page.set_viewport_size({"width": width, "height": HEIGHT})
    page.evaluate("jupyterapp.shell.collapseLeft()")  # the list of files leaves a narrow page no room
    wait_until(page, "(width) => document.querySelector('[data-widget=player]').clientWidth <= width", width)
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert player.bounding_box()["width"] >= width / 2
    assert player.evaluate(STANDS_OUT) == []
    slider = player.locator("input.ak-step")
    slider.focus()
    page.keyboard.press("Home")
    for key, said in (("ArrowRight", "Step 1 of"), ("ArrowRight", "Step 2 of"), ("ArrowLeft", "Step 1 of")):
        page.keyboard.press(key)
        player.locator(".ak-status", has_text=said).wait_for()
    page.keyboard.press("b")
    player.locator(".ak-status", has_text="barrier opens").wait_for()
    page.keyboard.press("End")  # a long line
    player.locator(".ak-status", has_text="Step 160 of 160").wait_for()
    line, source = (player.locator(one).bounding_box() for one in (".ak-line-now > .ak-line-text", ".ak-source"))
    assert line["x"] + line["width"] <= source["x"] + source["width"], "the line in front is cut"
    of_one_row = player.evaluate(WITHOUT_LINE_IN_FRONT)
    assert source["height"] == pytest.approx(of_one_row), "what is below the source moves with the step"
    assert_redrawn_within_a_frame(page, STEP, f"a step, {width} px wide")
    notebook.screenshot(f"player-{width}", player)
