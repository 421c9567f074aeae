"""The exercises are the solutions minus the marked regions, they compile, and they fail cleanly."""

import difflib
import re
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import pytest

from course_utils.cuda import RawModule
from course_utils.grading.catalog import EXERCISE_IDS, exercise
from course_utils.grading.exercise import MOST, dots
from course_utils.grading.release import (
    EXERCISES,
    SOLUTIONS,
    SUFFIXES,
    MarkError,
    make_exercises,
    release,
    strip_cuda,
    strip_notebook,
    strip_python,
)
from course_utils.toolchain import nvrtc
from course_utils.toolchain.source import compile_options, find_kernels, read_kernel, required_architecture

KERNEL = """// scale.cu
extern "C" __global__ void scale(float* x, int n) {
    int i = threadIdx.x;
    // BEGIN SOLUTION
    if (i < n) {
        x[i] *= 2.0f;
    }
    // END SOLUTION
    if (n > 1) {
  // BEGIN SOLUTION
  // END SOLUTION
    }
}
"""
SKELETON = """// scale.cu
extern "C" __global__ void scale(float* x, int n) {
    int i = threadIdx.x;
    // YOUR CODE HERE
    if (n > 1) {
  // YOUR CODE HERE
    }
}
"""
ANSWERS = 'answers = {"bytes": ...}\n### BEGIN SOLUTION\nanswers = {"bytes": 512}\n### END SOLUTION'


def notebook(*cells):
    made = nbformat.v4.new_notebook(cells=list(cells))
    for index, cell in enumerate(made.cells):
        cell.id = f"cell-{index}"
    return made


def code(source, **metadata):
    return nbformat.v4.new_code_cell(source, metadata=metadata)


def markdown(source, **metadata):
    return nbformat.v4.new_markdown_cell(source, metadata=metadata)


# ---- the generator


def test_a_region_becomes_one_line_with_its_indentation():
    assert strip_cuda(KERNEL) == SKELETON
    assert strip_cuda(SKELETON) == SKELETON
    assert strip_python(ANSWERS) == 'answers = {"bytes": ...}\n# YOUR CODE HERE'


def test_a_notebook_loses_regions_explanations_and_outputs():
    ran = code(ANSWERS, nbgrader={"grade_id": "answers"})
    ran.outputs, ran.execution_count = [nbformat.v4.new_output("stream", text="512")], 3
    whole = notebook(markdown("# Title"), ran, markdown("It is 512", tags=["solution"]), code("1 + 1"))
    stripped = strip_notebook(whole)
    assert [cell.source for cell in stripped.cells] == ["# Title", strip_python(ANSWERS), "1 + 1"]
    assert stripped.cells[1].metadata == {"nbgrader": {"grade_id": "answers"}}
    assert stripped.cells[1].outputs == [] and stripped.cells[1].execution_count is None
    assert "512" not in nbformat.writes(stripped)
    assert whole.cells[1].execution_count == 3 and len(whole.cells) == 4  # the solution is as it was


@pytest.mark.parametrize(
    "text, message",
    [
        ("a\n// BEGIN SOLUTION\nb", "scale.cu, line 2: .* without '// END SOLUTION' after it"),
        ("a\nb\n // END SOLUTION", "scale.cu, line 3: .* without '// BEGIN SOLUTION' before it"),
        ("// BEGIN SOLUTION\n// BEGIN SOLUTION\n// END SOLUTION", "line 2: .* within the region that begins in line 1"),
        ("x(); // BEGIN SOLUTION\n// END SOLUTION", "line 1: got .* alone on its line"),
        ("//BEGIN SOLUTION\n// END SOLUTION", "line 1: got '//BEGIN SOLUTION'; takes"),
        ("### BEGIN SOLUTION\n### END SOLUTION", "line 1: got '### BEGIN SOLUTION'; takes"),
    ],
)
def test_a_wrong_mark_is_named_with_file_and_line(text, message):
    with pytest.raises(MarkError, match=message):
        strip_cuda(text, "scale.cu")


def test_a_wrong_mark_in_a_notebook_is_named_with_its_cell():
    with pytest.raises(MarkError, match="a.ipynb, cell 1, line 2: '### END SOLUTION' without"):
        strip_notebook(notebook(markdown("a"), code("1\n### END SOLUTION")), "a.ipynb")
    with pytest.raises(MarkError, match="cell 0, line 1: .* no mark belongs here"):
        strip_notebook(notebook(markdown("### BEGIN SOLUTION")))


@pytest.fixture
def solutions(tmp_path):
    folder = tmp_path / "solutions" / "00_start_here"
    folder.mkdir(parents=True)
    (folder / "scale.cu").write_text(KERNEL, encoding="utf-8")
    nbformat.write(notebook(markdown("# Scale"), code(ANSWERS)), folder / "scale.ipynb")
    (folder / "notes.txt").write_text("for the teacher alone", encoding="utf-8")
    return tmp_path / "solutions"


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_exercises_are_made_once_and_always_the_same(solutions, tmp_path):
    exercises = tmp_path / "exercises"
    changed = make_exercises(solutions, exercises)
    assert changed == [exercises / "00_start_here" / "scale.cu", exercises / "00_start_here" / "scale.ipynb"]
    made = contents(exercises)
    assert set(made) == {"00_start_here/scale.cu", "00_start_here/scale.ipynb"}
    assert made["00_start_here/scale.cu"].decode() == SKELETON
    assert make_exercises(solutions, exercises) == [] and contents(exercises) == made


def test_what_has_no_solution_any_more_goes_and_what_was_edited_comes_back(solutions, tmp_path):
    exercises = tmp_path / "exercises"
    make_exercises(solutions, exercises)
    made = contents(exercises)
    stale = exercises / "00_start_here" / "old.cu"
    for path in (stale, exercises / "00_start_here" / "scale.cu", exercises / "README.md"):
        path.write_text("other", encoding="utf-8")
    assert make_exercises(solutions, exercises) == [stale, exercises / "00_start_here" / "scale.cu"]
    assert contents(exercises) == {**made, "README.md": b"other"}


def test_nothing_is_written_if_a_mark_is_wrong(solutions, tmp_path):
    make_exercises(solutions, tmp_path / "exercises")
    made = contents(tmp_path / "exercises")
    (solutions / "00_start_here" / "scale.cu").write_text("new text", encoding="utf-8")
    (solutions / "00_start_here" / "wrong.cu").write_text("// END SOLUTION", encoding="utf-8")
    with pytest.raises(MarkError, match=r"solutions/00_start_here/wrong\.cu, line 1"):
        make_exercises(solutions, tmp_path / "exercises")
    assert contents(tmp_path / "exercises") == made
    with pytest.raises(FileNotFoundError, match="solutions: got"):
        make_exercises(tmp_path / "nowhere", tmp_path / "exercises")


# ---- the course's own exercises

ALL_FILES = sorted(path.relative_to(SOLUTIONS).as_posix() for path in SOLUTIONS.glob("*/*") if path.is_file())
FILES = [name for name in ALL_FILES if name.endswith(SUFFIXES)]
KERNELS = [name for name in FILES if name.endswith(".cu")]
NOTEBOOKS = [name for name in FILES if name.endswith(".ipynb")]


def cell_sources(path: Path) -> list[str]:
    return [cell.source for cell in nbformat.read(path, as_version=4).cells]


def lines_of(path: Path) -> list[str]:
    return (path.read_text(encoding="utf-8") if path.suffix == ".cu" else "\n".join(cell_sources(path))).splitlines()


def secrets(path: Path) -> list[str]:
    """What the student is to find: the text of each region and of each explaining cell."""
    if path.suffix == ".cu":
        return re.findall(r"// BEGIN SOLUTION\n(.*?)\n\s*// END SOLUTION", path.read_text(encoding="utf-8"), re.DOTALL)
    cells = nbformat.read(path, as_version=4).cells
    found = [cell.source for cell in cells if "solution" in cell.metadata.get("tags", ())]
    for cell in cells:
        found += re.findall(r"### BEGIN SOLUTION\n(.*?)\n\s*### END SOLUTION", cell.source, re.DOTALL)
    return found


def test_there_are_files_for_each_exercise_and_no_others():
    tasks = [exercise(exercise_id) for exercise_id in EXERCISE_IDS]
    expected = {f"{task.id}.ipynb" for task in tasks} | {f"{task.id}.cu" for task in tasks if task.kernels}
    assert set(FILES) == expected
    with_hooks = {name.removesuffix("_mistakes.cuh") for name in ALL_FILES if name.endswith("_mistakes.cuh")}
    pairs = {f"{one}_mistakes{suffix}" for one in with_hooks for suffix in (".cuh", ".toml")}
    assert with_hooks <= set(EXERCISE_IDS) and set(ALL_FILES) - set(FILES) == pairs
    assert {path.relative_to(EXERCISES).as_posix() for path in EXERCISES.glob("*/*") if path.is_file()} == expected


@pytest.mark.parametrize("name", FILES)
def test_the_exercise_is_what_its_solution_gives(name):
    assert (EXERCISES / name).read_bytes() == release(SOLUTIONS / name), "run make exercises"


@pytest.mark.parametrize("name", FILES)
def test_a_skeleton_is_its_solution_minus_the_regions(name):
    """By difflib, which knows nothing of marks: only a stub is new, and only regions and explanations are gone."""
    solution, skeleton = lines_of(SOLUTIONS / name), lines_of(EXERCISES / name)
    changes = [line for line in difflib.ndiff(solution, skeleton) if line[0] in "+-"]
    new = [line[2:].strip() for line in changes if line[0] == "+"]
    assert set(new) <= {"// YOUR CODE HERE", "# YOUR CODE HERE"}
    hidden = {line for text in secrets(SOLUTIONS / name) for line in text.splitlines()}
    gone = {line[2:] for line in changes if line[0] == "-"}
    marks = {line for line in solution if line.strip().endswith((" BEGIN SOLUTION", " END SOLUTION"))}
    assert gone <= hidden | marks


def test_no_text_of_a_solution_stands_in_the_exercises():
    everything = {path: "\n".join(lines_of(path)) for path in EXERCISES.glob("*/*") if path.is_file()}
    assert everything
    for name in FILES:
        given = set(lines_of(EXERCISES / name))
        own = [everything[path] for path in (EXERCISES / name).parent.glob(f"{Path(name).stem}.*")]
        for secret in secrets(SOLUTIONS / name):
            assert secret.strip(), f"{name}: an empty region"
            leaks = [path.name for path, text in everything.items() if len(secret) > 30 and secret in text]
            assert leaks == [], f"{name}: {secret}"
            for line in secret.splitlines():
                if len(line.strip()) >= 20 and not any(line.strip() in other for other in given):
                    assert not any(line.strip() in text for text in own), f"{name}: {line.strip()}"


@pytest.mark.parametrize("folder", [SOLUTIONS, EXERCISES], ids=lambda folder: folder.name)
@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_compiles_for_the_graders_architecture(name, folder):
    code = read_kernel(folder / name)
    needed = required_architecture(code)
    for options in compile_options(code):
        assert nvrtc.compile_kernel(code, str(needed) if needed.exact else "sm_80", options).resources


@pytest.mark.exhaustive("every architecture: test_every_kernel_compiles_for_the_graders_architecture has one")
@pytest.mark.parametrize("folder", [SOLUTIONS, EXERCISES], ids=lambda folder: folder.name)
@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_compiles_for_each_architecture(name, folder):
    code = read_kernel(folder / name)
    for options in compile_options(code):
        for arch in nvrtc.architectures(code):
            assert nvrtc.compile_kernel(code, arch, options).resources


@pytest.mark.parametrize("folder", [SOLUTIONS, EXERCISES], ids=lambda folder: folder.name)
@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_compiles_on_the_emulator(name, folder):
    code = read_kernel(folder / name)
    names = find_kernels(code)
    assert set(exercise(name.removesuffix(".cu")).kernels) <= set(names)
    module = RawModule(code=code, options=compile_options(code)[0])
    for kernel in exercise(name.removesuffix(".cu")).kernels:
        assert module.get_function(kernel)


SELF_CHECK = {"schema_version": 3, "grade": True, "solution": False, "locked": True, "task": False, "grade_id": "grade"}
ANSWER_CELL = {"schema_version": 3, "grade": False, "solution": True, "locked": False, "task": False}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_keeps_to_the_contract(name):
    path = SOLUTIONS / name
    task = exercise(name.removesuffix(".ipynb"))
    whole = nbformat.read(path, as_version=4)
    nbformat.validate(whole)
    assert (whole.nbformat, whole.nbformat_minor) >= (4, 5)
    assert whole.metadata.kernelspec.name == "python3"
    assert re.match(r"# Exercise \d\d\.\d · \S", whole.cells[0].source)
    marks = f"**Difficulty** {dots(task.difficulty)} · **Importance** {dots(task.importance)} · **Time** "
    assert marks in whole.cells[0].source, marks
    first = "\n".join(cell.source for cell in whole.cells[:2]).replace("*", "")
    assert re.search(r"\d+ minutes\b", first)
    assert re.search(rf"\b{task.points} points\b|Points:? {task.points}\b", first), f"{task.points} points"
    for cell in whole.cells:
        assert len(cell.source.splitlines()) <= 25 or cell.cell_type == "markdown"
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None, "clear the outputs"
    text = "\n".join(cell.source for cell in whole.cells if cell.cell_type == "markdown")
    assert re.findall(r"<summary>(Hint \d)</summary>", text) == ["Hint 1", "Hint 2", "Hint 3"]
    assert text.count("<details>") == text.count("</details>")

    tags = {cell.metadata.nbgrader.grade_id: cell for cell in whole.cells if "nbgrader" in cell.metadata}
    check = tags.pop("grade")
    assert check.metadata.nbgrader == {**SELF_CHECK, "points": task.points}
    lines = [line for line in check.source.splitlines() if line.strip() and not line.startswith("#")]
    assert lines == ["from course_utils.widgets import check", f'check("{task.id}")']
    assert set(tags) == set(task.cells)
    assert all(cell.metadata.nbgrader == {**ANSWER_CELL, "grade_id": name} for name, cell in tags.items())
    last = whole.cells[-1]
    assert last.cell_type == "markdown" and "solution" in last.metadata.get("tags", ()), "no explanation at the end"


def test_difficulty_and_importance_are_marks_and_the_readme_lists_them():
    readme = (SOLUTIONS.parent / "README.md").read_text(encoding="utf-8")
    for task in map(exercise, EXERCISE_IDS):
        assert 1 <= task.difficulty <= MOST and 1 <= task.importance <= MOST, task.id
        (row,) = re.findall(rf"^\|.*\(exercises/{task.id}\.ipynb\).*$", readme, re.MULTILINE)
        assert row.endswith(f" | {dots(task.difficulty)} | {dots(task.importance)} |"), task.id


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_table_of_points_agrees_with_the_grader(name):
    """A row per part and question, somewhere in the notebook: its title, and its points."""
    task = exercise(name.removesuffix(".ipynb"))
    text = "\n".join(cell_sources(EXERCISES / name))
    table = {}
    for row in re.findall(r"^\|(.+)\|\s*$", text, re.MULTILINE):
        first, *_, last = (cell.strip().replace("`", "").replace("*", "") for cell in row.split("|"))
        if points := re.match(r"\+?(\d+)\b", last):
            table[first] = int(points[1])
    for part in (*task.parts, *task.questions):
        assert table.get(part.title.replace("`", "").replace("*", "")) == part.points, f"{part.title}: {part.points}"


GRADED = pytest.mark.exhaustive(
    "the cells of a solution: `make test` runs them as a submission's, and an exercise's here"
)


@pytest.mark.parametrize("folder", [pytest.param(SOLUTIONS, marks=GRADED), EXERCISES], ids=lambda folder: folder.name)
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_cell_runs(name, folder, monkeypatch, capsys):
    """All but the self-check: nothing is to stop a learner on the way to it."""
    monkeypatch.chdir((folder / name).parent)
    monkeypatch.setattr(plt, "show", lambda: None)
    names = {"__name__": "__main__", "display": lambda *_, **__: None}
    for index, cell in enumerate(nbformat.read(folder / name, as_version=4).cells):
        if cell.cell_type == "code" and cell.metadata.get("nbgrader", {}).get("grade_id") != "grade":
            exec(compile(cell.source, f"{name}, cell {index}", "exec"), names)
    plt.close("all")


def test_ids_of_cells_are_unique():
    for name in NOTEBOOKS:
        ids = [cell.id for cell in nbformat.read(SOLUTIONS / name, as_version=4).cells]
        assert len(ids) == len(set(ids)), name
