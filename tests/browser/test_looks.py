"""Colours in JupyterLab: CUDA in its editor, and what cells show, in the light and in the dark theme."""

import pytest

from course_utils.plots.look import GROUND, ON_DARK
from course_utils.puzzles.puzzle import find_puzzle
from tests.helpers import screenshots
from tests.helpers.contrast import LEAST_LEGIBLE
from tests.helpers.jupyterlab import FRONT, set_theme, wait_until

pytestmark = pytest.mark.browser
PUZZLE = "00_start_here/guard"
# A keyword of CUDA has a colour of its own beside that of the text.
COLOURED = f"""() => [...document.querySelectorAll("{FRONT} .cm-line span")].some((token) =>
    /^(const|int|extern|float|void)$/.test(token.textContent)
    && getComputedStyle(token).color !== getComputedStyle(token.closest(".cm-content")).color)"""
CORNER = """async (image) => {
    const canvas = new OffscreenCanvas(image.width, image.height);
    canvas.getContext("2d").drawImage(image, 0, 0);
    return [...canvas.getContext("2d").getImageData(2, 2, 1, 1).data.slice(0, 3)];
}"""


@pytest.fixture
def each_theme(lab_page):
    """for theme in each_theme: the page has it; one run of the cells serves both."""

    def themes():
        for theme in ("light", "dark"):
            set_theme(lab_page, f"JupyterLab {theme.title()}")
            yield theme

    yield themes()
    set_theme(lab_page)


@pytest.mark.parametrize("path", ["kernels/01_attention_basics/scores.cu", "kernels/include/tensor_core.cuh"])
def test_the_editor_colours_cuda(path, open_page):
    page = open_page(path)
    wait_until(page, COLOURED)
    screenshots.save(page, f"editor-{path.rpartition('.')[2]}")


def test_a_puzzle_is_coloured_as_cuda_and_the_cell_beside_it_as_python(run_cells):
    kernel = "%%puzzle 01_attention_basics/dot_product\n// a comment\nint one = 1;"
    page = run_cells(["# a comment", "import torch"]).page
    cells = "(source) => jupyterapp.shell.currentWidget.content.model.cells.get(0).sharedModel.setSource(source)"
    page.evaluate(cells, kernel)
    kinds = "() => [...jupyterapp.shell.currentWidget.content.model.cells].map((cell) => cell.mimeType)"
    wait_until(page, f"() => ({kinds})().join() === 'text/x-cuda,text/x-ipython'")  # the kernel says what it speaks
    wait_until(
        page,
        f"""() => [...document.querySelectorAll("{FRONT} .cm-line span")].some(
        (token) => token.textContent === "// a comment")""",
    )


def test_a_kernel_in_a_string_is_coloured_as_cuda_and_other_strings_are_not(run_cells):
    page = run_cells(['kernel = r"""__global__ void f() { /* a comment */ }"""\nwords = """/* words */"""']).page
    tokens = f"""() => [...document.querySelectorAll("{FRONT} .cm-line span")].map((one) => one.textContent)"""
    wait_until(page, f"() => ({tokens})().includes('/* a comment */')")
    assert "/* words */" not in page.evaluate(tokens)


def test_a_picture_follows_the_theme(each_theme, run_cells):
    notebook = run_cells(["from course_utils import plots\nplots.grid_to_thread();"])
    picture = notebook.page.locator(f"{FRONT} .jp-RenderedSVG img")
    picture.scroll_into_view_if_needed()
    for theme in each_theme:
        notebook.screenshot(f"picture-{theme}", picture)
        corner = notebook.page.evaluate(CORNER, picture.element_handle())
        ground = GROUND if theme == "light" else ON_DARK[GROUND]
        assert corner == [int(ground[i : i + 2], 16) for i in (1, 3, 5)]


SHOWN = [
    "from course_utils import show\nfrom course_utils.launches.broken import BROKEN",
    'show.passage("01_attention_basics/scores.cu", "// scores.cu")',
    'show.mistake(BROKEN["half_accumulation"])',
    "with show.expected_error():\n    raise ValueError('a message')",
    "from course_utils.emulator import profile, sanitize\nlaunch = BROKEN['half_accumulation'].launch()",
    "with sanitize() as report:\n    BROKEN['index_past_the_end'].launch().run()\nreport",
    "with sanitize() as report:\n    launch.run()\nreport",
    "with profile() as counters:\n    launch.run()\ncounters",
    "counters.listing()",
    "%load_ext course_utils.puzzles",
    f"%%puzzle {PUZZLE}\n{find_puzzle(PUZZLE).given}",
    'show.table([{"a": 1.5, "b": "words"}], "a caption")',
]


def test_what_cells_show_can_be_read_in_both_themes(each_theme, run_cells, without_sandbox):
    notebook = run_cells([f"{without_sandbox}\n{SHOWN[0]}", *SHOWN[1:]])
    notebook.assert_every_cell_ran()
    for theme in each_theme:
        for index in range(1, len(SHOWN)):
            cell = notebook.page.locator(f"{FRONT} .jp-Notebook-cell").nth(index)
            cell.scroll_into_view_if_needed()
            notebook.screenshot(f"shown-{index}-{theme}", cell)
            for output in cell.locator(".jp-RenderedHTMLCommon").all():
                contrast, text, colour = output.evaluate(LEAST_LEGIBLE)
                assert contrast >= 4.5, f"{text!r} in {colour}"


def test_a_caption_leads_to_its_file(run_cells, follow):
    notebook = run_cells(['show.source("01_attention_basics/scores.cu")'])
    follow(notebook.page.locator(f"{FRONT} .jp-RenderedHTMLCommon a"), "kernels/01_attention_basics/scores.cu")
