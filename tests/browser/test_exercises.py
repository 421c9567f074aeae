"""The self-check of an exercise in a real JupyterLab: the skeleton's grade, then the solution's, by keyboard."""

import shutil

import pytest

from course_utils.grading.catalog import exercise
from course_utils.grading.release import SOLUTIONS
from tests.helpers.jupyterlab import wait_until

pytestmark = pytest.mark.browser

ID = "02_flash_attention_minimal/online_softmax"
FINISHED = """(root) => root.getAttribute("aria-busy") === "false" && !root.querySelector(".ak-old")
    && root.querySelector(".ak-status").textContent.includes("points")"""


def test_the_self_check_grades_the_skeleton_and_then_the_solution(lab, open_notebook):
    task = exercise(ID)
    notebook = open_notebook(f"exercises/{ID}.ipynb")
    notebook.assert_every_cell_ran()
    (panel,) = notebook.widgets()
    page, status = panel.page, panel.locator(".ak-status")
    assert status.text_content().startswith(f"0 of {task.points} points. To begin with: ")
    assert panel.locator("tr.ak-wrong").count() == len(task.parts)
    assert panel.locator("tr.ak-open").count() == len(task.questions)
    notebook.screenshot("exercise-skeleton", panel)

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
