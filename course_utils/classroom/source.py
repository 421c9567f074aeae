"""Writes source/NN_slug/ of a class, from which nbgrader releases: the exercises that are assigned."""

from __future__ import annotations

import ast
import shutil

import nbformat
from nbformat.notebooknode import NotebookNode

from course_utils.classroom.class_folder import ClassFolder, writing
from course_utils.grading import release
from course_utils.grading.catalog import EXERCISE_IDS, exercise, own_folder
from course_utils.grading.exercise import Exercise

GRADE_CELL = "grade"


def has_source(exercise_id: str) -> bool:
    """Whether there is a solution to release this exercise from."""
    return exercise_id not in EXERCISE_IDS or (release.SOLUTIONS / f"{exercise_id}.ipynb").exists()


def write_source(classroom: ClassFolder, chapter: str) -> None:
    """Writes the assigned exercises of a chapter, without solutions, into source/, in place of what is there.

    Raises ValueError, before anything is written, for marks or a graded cell that are not as they must be, and
    ClassroomError.
    """
    texts: dict[str, bytes] = {}
    for exercise_id in filter(has_source, classroom.assigned(chapter)):
        texts |= _as_released(exercise(exercise_id))
    source = classroom.path / "source"
    with writing(source / chapter):
        if source.is_symlink():  # as the course before 1.0 made it
            source.unlink()
        shutil.rmtree(source / chapter, ignore_errors=True)
        (source / chapter).mkdir(parents=True)
        for name, text in texts.items():
            (source / chapter / name).write_bytes(text)


def _as_released(task: Exercise) -> dict[str, bytes]:
    """The files of an exercise without its solution, by name. Raises ValueError, see `write_source`."""
    is_own = task.id not in EXERCISE_IDS
    paths = [(own_folder() if is_own else release.SOLUTIONS) / f"{task.id}{suffix}" for suffix in release.SUFFIXES]
    texts = {path.name: release.release(path, f"{task.id}{path.suffix}") for path in paths if path.exists()}
    if is_own:
        if release.CUDA.stub.encode() not in texts.get(f"{task.name}.cu", b""):
            raise ValueError(f"{paths[0]}: takes a kernel with {release.CUDA.begin!r}, else it is handed out whole")
        texts.setdefault(f"{task.name}.ipynb", nbformat.writes(notebook(task)).encode())
    for cell in nbformat.reads(texts[f"{task.name}.ipynb"].decode(), as_version=4).cells:
        settings = cell.metadata.get("nbgrader", {})
        if settings.get("grade") and (settings.grade_id != GRADE_CELL or settings.points != task.points):
            got = f"got a graded cell {settings.grade_id!r} with {settings.points} points"
            takes = f"takes one named {GRADE_CELL!r} with {task.points}: tests in notebooks are not run"
            raise ValueError(f"{task.id}: {got}; {takes}")
    return texts


def notebook(task: Exercise) -> NotebookNode:
    """A notebook for a teacher's own exercise that has none: the docstring of its module, what earns points, a cell for
    answers if there are questions, and the self-check.
    """
    v4 = nbformat.v4
    text = ast.get_docstring(ast.parse((own_folder() / f"{task.id}.py").read_bytes())) or ""
    table = [
        "| part | points |",
        "|---|---|",
        *(f"| {one.title} | {one.points} |" for one in (*task.parts, *task.questions)),
    ]
    file = f"Write your kernel into `{task.name}.cu`, beside this notebook, and hand in both."
    cells = [v4.new_markdown_cell("\n\n".join([f"# {task.title}", text, file, "\n".join(table)]), id="text")]
    flags = {"schema_version": 3, "grade": False, "solution": False, "locked": False, "task": False}
    if task.questions:
        answers = "answers = {\n" + "".join(f'    "{one.name}": ...,\n' for one in task.questions) + "}"
        metadata = {"nbgrader": {**flags, "solution": True, "grade_id": "answers"}}
        cells.append(v4.new_code_cell(answers, id="answers", metadata=metadata))
    check = "## Check\n\nThis cell runs where your teacher has handed out how the exercise is graded, too."
    cells.append(v4.new_markdown_cell(check, id="check"))
    metadata = {"nbgrader": {**flags, "grade": True, "locked": True, "grade_id": GRADE_CELL, "points": task.points}}
    source = f'from course_utils.widgets import check\n\ncheck("{task.id}")'
    cells.append(v4.new_code_cell(source, id=GRADE_CELL, metadata=metadata))
    kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return v4.new_notebook(cells=cells, metadata={"kernelspec": kernelspec})
