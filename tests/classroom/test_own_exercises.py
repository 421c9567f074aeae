"""A teacher's own exercise, by the example that docs/teaching.md tells to begin with: from 30 lines to a grade."""

from pathlib import Path

import nbformat
import pytest

from course_utils.classroom.class_folder import ClassFolder
from course_utils.classroom.results_store import grader_version
from course_utils.classroom.source import notebook, write_source
from course_utils.grading import catalog
from course_utils.grading.catalog import EXERCISE_IDS, all_ids, exercise
from course_utils.grading.comparison import compare_with_solution
from course_utils.grading.grader import grade_submission
from course_utils.grading.release import ROOT, strip_cuda
from course_utils.grading.submission import Submission, read_submission
from tests.helpers.runner_here import grade_here

EXAMPLE = ROOT / "docs" / "own_exercises" / "01_attention_basics"
KERNEL = (EXAMPLE / "scale_rows.cu").read_text()


def test_the_example_has_30_lines_and_grades_right_and_wrong_kernels(
    own_exercise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sum(path.read_text().count("\n") for path in EXAMPLE.iterdir()) <= 30
    assert own_exercise in all_ids() and own_exercise not in EXERCISE_IDS
    without_bound = KERNEL.replace("if (i < rows * columns) ", "")
    other_scale = KERNEL.replace("s[i / columns]", "s[0]")
    earned = {}
    for name, kernel in {
        "solution": KERNEL,
        "skeleton": strip_cuda(KERNEL),
        "without bound": without_bound,
        "other scale": other_scale,
    }.items():
        result = grade_submission(Submission(own_exercise, kernel, statuses={"scale_rows.cu": "ok"}), seed=3)
        earned[name] = [part.earned for part in result.parts]
        grade_here(monkeypatch)  # only the first from a sandbox, which imports PyTorch anew
    assert earned == {"solution": [3, 2], "skeleton": [0, 0], "without bound": [3, 0], "other scale": [0, 0]}


def test_its_notebook_is_made_and_nothing_of_the_solution_is_in_it(own_exercise: str) -> None:
    made = notebook(exercise(own_exercise))
    nbformat.validate(made)
    text = nbformat.writes(made)
    assert "Multiply each row of x by its own scale" in text and "| Any number of elements | 2 |" in text
    assert "s[i / columns]" not in text
    exec(made.cells[-1].source.splitlines()[0])  # what its check is imported from is there


def test_mistakes_in_an_exercise_are_said_in_a_sentence(own_exercise: str, tmp_path: Path) -> None:
    classroom = ClassFolder(tmp_path, (), {own_exercise: None}, (), ())
    folder = catalog.own_folder() / "01_attention_basics"
    (folder / "scale_rows.cu").write_text(KERNEL.replace("SOLUTION", "ANSWER"))
    with pytest.raises(ValueError, match=r"scale_rows.cu: takes a kernel with '// BEGIN SOLUTION', else it is handed"):
        write_source(classroom, "01_attention_basics")
    for name, text, words in (
        ("no_id", "EXERCISE = 3", "no_id.py cannot be used|object has no attribute 'id'"),
        ("no_python", "EXERCISE = (", "no_python.py cannot be used: SyntaxError"),
        ("other_id", (EXAMPLE / "scale_rows.py").read_text(), "has the id '01_attention_basics/scale_rows', its place"),
    ):
        (folder / f"{name}.py").write_text(text)
        with pytest.raises(ValueError, match=words):
            exercise(f"01_attention_basics/{name}")
    (folder / "mini_flash.py").write_text("")
    with pytest.raises(ValueError, match="mini_flash.py has the name of the exercise 02_flash_attention_minimal/mini_"):
        all_ids()


def test_a_right_kernel_stands_beside_nothing(own_exercise: str) -> None:
    assert compare_with_solution(Submission(own_exercise, KERNEL)) is None


def test_a_change_of_it_is_a_change_of_its_grader_alone(own_exercise: str) -> None:
    before = grader_version(own_exercise), grader_version(EXERCISE_IDS[0])
    path = catalog.own_folder() / f"{own_exercise}.py"
    path.write_text(path.read_text() + "# another comment\n")
    assert grader_version(own_exercise) != before[0] and grader_version(EXERCISE_IDS[0]) == before[1]


def test_a_change_of_it_counts_in_a_process_that_runs_on(own_exercise: str) -> None:
    """Such as a Dask worker, which says that it has the new version."""
    path, points = catalog.own_folder() / f"{own_exercise}.py", exercise(own_exercise).points
    path.write_text(path.read_text().replace('Part("whole", 3', 'Part("whole", 4'))
    assert exercise(own_exercise).points == points + 1


def test_an_update_of_the_course_meets_neither_a_class_nor_its_own_exercises() -> None:
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert {"/own_exercises/", "/classroom/"} <= set(ignored)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COURSE_OWN_EXERCISES", raising=False)
        assert catalog.own_folder() == ROOT / "own_exercises"


def test_a_learner_grades_it_from_its_folder(own_exercise: str, tmp_path: Path) -> None:
    (tmp_path / "scale_rows (1).cu").write_text(KERNEL)
    assert read_submission(tmp_path, own_exercise).notes == ("scale_rows (1).cu was taken as scale_rows.cu",)


def test_every_module_of_tasks_is_listed() -> None:
    modules = {path.stem for path in Path(catalog.__file__).with_name("tasks").glob("[!_]*.py")}
    assert modules == {one.split("/")[1] for one in EXERCISE_IDS}
