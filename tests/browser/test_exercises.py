"""The self-check of an exercise in a real JupyterLab: the skeleton's grade, then the solution's, by keyboard."""

import shutil
from pathlib import Path

import nbformat
import pytest

from course_utils.grading.catalog import exercise
from course_utils.grading.examples import examples_of
from course_utils.grading.release import SOLUTIONS
from tests.helpers.jupyterlab import wait_until

pytestmark = pytest.mark.browser

SUBMISSIONS = Path(__file__).parents[1] / "grading" / "submissions"
ID = "02_flash_attention_minimal/online_softmax"
FINISHED = """(root) => root.getAttribute("aria-busy") === "false" && !root.querySelector(".ak-old")
    && root.querySelector(".ak-status").textContent.includes("points")"""


def test_the_self_check_grades_the_skeleton_plays_a_wrong_kernel_and_grades_the_solution(
    lab, open_notebook, without_sandbox
):
    task = exercise(ID)
    path = lab.folder / "exercises" / f"{ID}.ipynb"
    skeleton = nbformat.read(path, as_version=4)
    skeleton.cells.append(nbformat.v4.new_code_cell(without_sandbox))
    nbformat.write(skeleton, path)
    notebook = open_notebook(f"exercises/{ID}.ipynb")
    notebook.assert_every_cell_ran()
    (panel,) = notebook.widgets()
    page, status = panel.page, panel.locator(".ak-status")
    assert status.text_content().startswith(f"0 of {task.points} points. To begin with: ")
    assert panel.locator("tr.ak-wrong").count() == len(task.parts)
    assert panel.locator("tr.ak-open").count() == len(task.questions)
    notebook.screenshot("exercise-skeleton", panel)

    wrong = next(one for one in examples_of(ID, SUBMISSIONS) if one.name == "LSE in base 2")
    kernel = lab.folder / "exercises" / f"{ID}.cu"
    kernel.write_text(wrong.submission().kernel)
    panel.locator("button.ak-check").click()
    wait_until(page, "(root) => root.getAttribute('aria-busy') === 'true'", panel.element_handle())
    wait_until(page, FINISHED, panel.element_handle())
    panel.locator("button.ak-play-mine").focus()
    page.keyboard.press("Enter")
    player = page.locator(".ak-widget[data-widget=player]")
    one = "() => document.querySelectorAll('.ak-widget[data-widget=player]').length === 1"
    wait_until(page, one)  # JupyterLab may show an output twice for a moment
    player.wait_for()
    assert "LSE" in player.locator(".ak-status").inner_text()
    assert "where a wrong number of LSE is written last" in status.text_content()
    notebook.screenshot("exercise-played", player)

    for suffix in (".cu", ".ipynb"):
        shutil.copy(SOLUTIONS / f"{ID}{suffix}", (lab.folder / "exercises" / ID).parent)
    button = panel.locator("button.ak-check")
    button.focus()
    page.keyboard.press("Enter")
    wait_until(page, "(root) => root.getAttribute('aria-busy') === 'true'", panel.element_handle())
    wait_until(page, FINISHED, panel.element_handle())
    assert status.text_content().startswith(f"{task.points} of {task.points} points. Everything is right.")
    assert panel.locator("tr.ak-wrong").count() == 0
    assert button.evaluate("(node) => node === document.activeElement")
    # The notebook in the page is still the skeleton's: the learner is told that something there is not saved.
    assert "save the notebook" in status.text_content()
    notebook.screenshot("exercise-solution", panel)
