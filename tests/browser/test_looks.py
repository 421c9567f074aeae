"""Colours in JupyterLab: CUDA in its editor, and what cells show, in the light and in the dark theme."""

import pytest

from course_utils.plots.look import GROUND, ON_DARK
from tests.helpers.jupyterlab import FRONT, SCREENSHOTS, wait_until

pytestmark = pytest.mark.browser
THEME = "async (theme) => { await jupyterapp.commands.execute('apputils:change-theme', { theme }); }"
# A keyword of CUDA has a colour of its own beside that of the text.
COLOURED = f"""() => [...document.querySelectorAll("{FRONT} .cm-line span")].some((token) =>
    /^(const|int|extern|float|void)$/.test(token.textContent)
    && getComputedStyle(token).color !== getComputedStyle(token.closest(".cm-content")).color)"""


@pytest.fixture(params=["light", "dark"])
def theme(request, lab_page):
    lab_page.evaluate(THEME, f"JupyterLab {request.param.title()}")
    wait_until(
        lab_page, "(light) => document.body.dataset.jpThemeLight === light", str(request.param == "light").lower()
    )
    yield request.param
    lab_page.evaluate(THEME, "JupyterLab Light")


@pytest.mark.parametrize("path", ["kernels/01_attention_basics/scores.cu", "kernels/include/tensor_core.cuh"])
def test_the_editor_colours_cuda(path, open_page):
    page = open_page(path)
    wait_until(page, COLOURED)
    page.screenshot(path=SCREENSHOTS / f"editor-{path.rpartition('.')[2]}.png")


def test_a_puzzle_is_coloured_as_cuda_and_the_cell_beside_it_as_python(run_cells):
    kernel = "%%puzzle 01_attention_basics/dot_product\n// a comment\nint one = 1;"
    page = run_cells(["# a comment", "import torch"]).page
    cells = "(source) => jupyterapp.shell.currentWidget.content.model.cells.get(0).sharedModel.setSource(source)"
    page.evaluate(cells, kernel)
    kinds = "() => [...jupyterapp.shell.currentWidget.content.model.cells].map((cell) => cell.mimeType)"
    wait_until(page, f"() => ({kinds})()[0] === 'text/x-cuda'")
    assert page.evaluate(kinds)[1] == "text/x-ipython"
    wait_until(
        page,
        f"""() => [...document.querySelectorAll("{FRONT} .cm-line span")].some(
        (token) => token.textContent === "// a comment")""",
    )


def test_a_picture_follows_the_theme(theme, run_cells):
    notebook = run_cells(["from course_utils import plots\nplots.launch_grid(1000, 128);"])
    picture = notebook.page.locator(f"{FRONT} .jp-RenderedSVG img")
    picture.scroll_into_view_if_needed()
    notebook.screenshot(f"picture-{theme}", picture)
    corner = notebook.page.evaluate(
        """async (image) => {
            const canvas = new OffscreenCanvas(image.width, image.height);
            canvas.getContext("2d").drawImage(image, 0, 0);
            return [...canvas.getContext("2d").getImageData(2, 2, 1, 1).data.slice(0, 3)];
        }""",
        picture.element_handle(),
    )
    ground = GROUND if theme == "light" else ON_DARK[GROUND]
    assert corner == [int(ground[i : i + 2], 16) for i in (1, 3, 5)]
