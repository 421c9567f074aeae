"""Submissions that break, cheat or attack: each loses its own points only, with a reason, and harms nothing else."""

import json
import os
import shutil
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import pytest

from course_utils.grading import children, grader, runner
from course_utils.grading.catalog import exercise
from course_utils.grading.result import RIGHT
from course_utils.grading.sandbox.parent import Limits, isolation_available, run_child
from course_utils.grading.submission import read_submission
from tests.helpers.processes import processes_with, wait_for

REPO = Path(__file__).resolve().parents[2]
EXERCISE = "02_flash_attention_minimal/online_softmax"
KERNEL, NOTEBOOK = "online_softmax.cu", "online_softmax.ipynb"
SOLUTION = REPO / "solutions" / "02_flash_attention_minimal"
RUNNER = Path(__file__).with_name("hostile") / "short_runner.py"
LIMITS = Limits(seconds=30, memory=3 << 30, processes=40, output_bytes=4 << 20)
PARTS = tuple(part.name for part in exercise(EXERCISE).parts)
QUESTIONS = tuple(question.name for question in exercise(EXERCISE).questions)
BODY = "const long long row = blockIdx.x;"


@dataclass(frozen=True)
class Attack:
    """A submission: the solution but for this. kernel: (old text, new text). cell: instead of the answers' cell.

    {marker}, {other}, {repo} are filled in. lost: part -> pattern of the diagnosis's name; every other part is right.
    needs_limits: whether only the sandbox's limits stop it; the others are stopped by the runner itself.
    """

    name: str
    lost: dict[str, str]
    kernel: tuple[str, str] = ("", "")
    cell: str = ""
    needs_limits: bool = False


def kernel_lost(pattern: str) -> dict[str, str]:
    return dict.fromkeys(PARTS, pattern)


def answers_lost(pattern: str) -> dict[str, str]:
    return dict.fromkeys(QUESTIONS, pattern)


RAISE = "the cell * fails"
RULE = "online_softmax.cu, line *: "
PATCH = """
import numpy, torch, sys
import course_utils.checks, course_utils.grading.diagnosis, course_utils.grading.grader
numpy.allclose = torch.allclose = torch.equal = torch.isclose = lambda *a, **k: True
course_utils.grading.diagnosis.diagnose = lambda *a, **k: [None] * 99
course_utils.grading.grader._answer = course_utils.checks.error_report = lambda *a, **k: None
answers = dict.fromkeys(("new_l", "shuffles", "traffic_ratio"), float("nan"))
"""
READ_AND_DELETE = """
import gc, importlib, os, shutil
seen = []
solution = {repo!r} + "/solutions/02_flash_attention_minimal/online_softmax.cu"
for place in (solution, {marker!r}, {other!r} + "/online_softmax.cu"):
    try:
        seen.append(open(place).read())
    except OSError:
        pass
    try:
        place != solution and open(place, "w").write("destroyed")
    except OSError:
        pass
shutil.rmtree({other!r}, ignore_errors=True)
try:
    seen.append(importlib.import_module("course_utils.grading.tasks.online_softmax").EXERCISE)
except (ImportError, OSError):
    pass
seen += [one for one in gc.get_objects() if type(one).__name__ == "Question"]
answers = dict(new_l=1000 + len(seen), shuffles=10, traffic_ratio=4 / 3)
"""
FORK_BOMB = """
import os, time
try:
    while True:
        os.fork()
except OSError:
    pass
time.sleep(60)
"""

ATTACKS = (
    Attack(
        "endless loops",
        {"lengths": "the kernel does not end*"} | answers_lost(RAISE),
        (BODY, BODY + " if (L > 4000) while (true) {}"),
        "while True: pass",
    ),
    Attack(
        "segmentation faults",
        {"lengths": "memory that belongs to no argument is written*"} | answers_lost(RAISE),
        (BODY, BODY + " if (L > 4000) *(volatile int*)8 = 1;"),
        "import ctypes; ctypes.string_at(0)",
    ),
    Attack(
        "code that runs when the library is loaded, os._exit",
        kernel_lost(RULE + "__attribute__*") | answers_lost(RAISE),
        ("struct Partial", "__attribute__((constructor)) void start() {}\nstruct Partial"),
        "import os; os._exit(0)",
    ),
    Attack(
        "a file of the host as a header, sys.exit",
        kernel_lost(RULE + "#include </etc/passwd>*") | answers_lost(RAISE),
        ("struct Partial", "#include </etc/passwd>\nstruct Partial"),
        "import sys; sys.exit(0)",
    ),
    Attack(
        "system(), 10 GB",
        kernel_lost(RULE + "no GPU has system(*") | answers_lost(RAISE),
        (BODY, BODY + ' system("ls");'),
        "x = bytearray(10 << 30)\nanswers = dict(new_l=1)",
    ),
    Attack(
        "100 MB of output",
        answers_lost(RAISE),
        cell="for _ in range(1000): print('x' * 100_000)",
        needs_limits=True,
    ),
    Attack(
        "fork(), thousands of processes",
        kernel_lost(RULE + "no GPU has fork(*") | answers_lost(RAISE),
        (BODY, BODY + " while (true) fork();"),
        FORK_BOMB,
        needs_limits=True,
    ),
    Attack("a cell that kills what runs it", answers_lost(RAISE), cell="import os; os.kill(os.getppid(), 9)"),
    Attack(
        "patched comparisons",
        dict.fromkeys(("thread", "late", "warp", "rows", "large", "hidden", "reads"), "P is wrong")
        | answers_lost("the answer is not a number"),
        ("/ known.l", "/ (known.l + (L % 128 == 0 && row == 0))"),
        PATCH,
    ),
)


@pytest.fixture
def submission(tmp_path):
    """A folder with the solution, as a student would hand it in; beside it another's, and a marker."""
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
        for file in (KERNEL, NOTEBOOK):
            shutil.copy(SOLUTION / file, tmp_path / name / file)
    (tmp_path / "marker").write_text("unread")
    yield tmp_path / "mine"
    assert (tmp_path / "marker").read_text() == "unread"
    assert (tmp_path / "other" / KERNEL).read_bytes() == (SOLUTION / KERNEL).read_bytes()
    assert sorted(os.listdir(tmp_path / "other")) == [KERNEL, NOTEBOOK]


@pytest.fixture(scope="module", autouse=True)
def nothing_is_harmed():
    """The host's files are there afterwards, what the attacks aim at unchanged, and no process is left."""
    aims = [SOLUTION / KERNEL, SOLUTION / NOTEBOOK, REPO / "course_utils" / "grading" / "sandbox" / "child.py"]
    folders = [REPO / name for name in ("solutions", "course_utils/grading", "tests/grading/hostile", "kernels")]
    files = [file for folder in folders for file in folder.rglob("*.*") if "__pycache__" not in file.parts]
    before = [file.read_bytes() for file in aims]
    yield
    assert [file.read_bytes() for file in aims] == before
    assert [file for file in files if not file.exists()] == []
    assert nothing_is_left()


def nothing_is_left() -> bool:
    """Whether no runner is there, at once or soon: what another worker ends is for a moment nobody's child."""
    return wait_for(lambda: not processes_with(str(RUNNER)), seconds=2)


def grade(folder: Path, isolation: str = "auto"):
    return grader.grade_submission(read_submission(folder, EXERCISE), seed=1, limits=LIMITS, isolation=isolation)


@pytest.fixture(autouse=True)
def short_runner(monkeypatch):
    monkeypatch.setattr(children, "run_child", partial(run_child, module=str(RUNNER)))


def edit_notebook(folder: Path, change) -> None:
    notebook = json.loads((folder / NOTEBOOK).read_text())
    change(notebook["cells"])
    (folder / NOTEBOOK).write_text(json.dumps(notebook))


def grade_id(cell) -> str:
    return cell["metadata"].get("nbgrader", {}).get("grade_id", "")


def lost(result) -> dict[str, str]:
    return {part.name: part.diagnosis.name for part in result.parts if part.status != RIGHT}


def check(result, expected: dict[str, str]) -> None:
    """Exactly these parts are lost, for these reasons."""
    found = lost(result)
    assert found.keys() == expected.keys(), str(result)
    for part, pattern in expected.items():
        assert fnmatchcase(found[part], pattern), f"{part}: {found[part]!r} is not {pattern!r}\n{result}"


def attack_with(submission: Path, attack: Attack) -> None:
    old, new = attack.kernel
    code = (submission / KERNEL).read_text()
    assert old in code
    (submission / KERNEL).write_text(code.replace(old, new, 1))
    if attack.cell:
        places = {"marker": submission.parent / "marker", "other": submission.parent / "other", "repo": REPO}
        cell = attack.cell
        for name, place in places.items():
            cell = cell.replace(f"{{{name}!r}}", repr(str(place)))

        def change(cells) -> None:
            next(c for c in cells if grade_id(c) == "answers")["source"] = cell

        edit_notebook(submission, change)


STOPPED_BY_THE_RUNNER = [attack for attack in ATTACKS if not attack.needs_limits]


@pytest.mark.parametrize("attack", STOPPED_BY_THE_RUNNER, ids=lambda attack: attack.name)
def test_attack(submission, attack, quick_child, monkeypatch):
    """What the runner stops by itself, without the seconds that a sandbox takes to start."""
    endless = "while True" in attack.cell
    monkeypatch.setattr(runner, "LAUNCH_SECONDS", 0.5 if endless else 1.0)
    monkeypatch.setattr(runner, "PYTHON_SECONDS", 0.5 if endless else 2.0)
    attack_with(submission, attack)
    check(grade(submission), attack.lost)


IN_A_FORK = pytest.mark.exhaustive("the sandbox around what the runner stops by itself: test_attack does without it")
BY_A_LIMIT = pytest.mark.exhaustive(
    "a limit that ends the child in its cells: `make test` has each limit in test_sandbox.py, and what is lost with a "
    "child in test_grader.py"
)


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(attack, id=attack.name, marks=BY_A_LIMIT if attack.needs_limits else IN_A_FORK)
        for attack in ATTACKS
    ],
)
def test_attack_in_the_sandbox(submission, attack):
    attack_with(submission, attack)
    check(grade(submission), attack.lost)
    assert nothing_is_left()


NATIVE = """#ifdef __SSE2__  // which NVIDIA's compiler does not know
extern "C" int open(const char*, int, ...);
extern "C" long read(int, void*, unsigned long);
extern "C" int unlink(const char*);
extern "C" int kill(int, int);
static void attack(float* P) {
    char seen[8];
    if (read(open(MARKER, 0), seen, 6) == 6 || unlink(MARKER) == 0) return;
    kill(-1, 9);
}
#else
__device__ void attack(float* P) {}
#endif
struct Partial"""


@pytest.mark.skipif(not isolation_available()[0], reason="without namespaces a submission has its user's rights")
def test_native_code_that_passes_the_rules_and_a_cell_that_reads_and_deletes(submission):
    """The rules are a courtesy, the wall is the sandbox: the solutions, the marker and other submissions are out of
    reach, and kill() hits the child only.
    """
    attack_with(submission, Attack("reading and deleting", {}, cell=READ_AND_DELETE))
    attack = NATIVE.replace("MARKER", json.dumps(str(submission.parent / "marker")))
    code = (submission / KERNEL).read_text().replace("struct Partial", attack, 1)
    (submission / KERNEL).write_text(code.replace(BODY, BODY + " if (threadIdx.x == 0 && L == 1) attack(P);", 1))
    result = grade(submission)
    check(result, {"lengths": "the kernel took its process down*", "new_l": "the figure is wrong"})
    figure = next(part.diagnosis.detail for part in result.parts if part.name == "new_l")
    assert figure == "answered 1000", "1000, and 1 more for each file, or question with its right answer, that it found"
    assert nothing_is_left()


# ---- files that are not what they should be


def _links(folder: Path, file: str, target: Path) -> None:
    (folder / file).unlink()
    (folder / file).symlink_to(target)


def _without(folder: Path, unwanted: str) -> None:
    def change(cells) -> None:
        cells[:] = [cell for cell in cells if grade_id(cell) != unwanted]

    edit_notebook(folder, change)


def _edited_test_cell(folder: Path) -> None:
    def change(cells) -> None:
        next(cell for cell in cells if grade_id(cell) == "grade")["source"] = "print('full marks')"

    edit_notebook(folder, change)
    (folder / KERNEL).unlink()


def _renamed(folder: Path) -> None:
    code = (folder / KERNEL).read_text()
    (folder / KERNEL).write_text(code.replace("online_softmax(const", "my_softmax(const"))
    (folder / NOTEBOOK).write_text('{"cells": [')


def _wrong_name_and_a_link(folder: Path) -> None:
    code = (folder / KERNEL).read_text()
    (folder / KERNEL).write_text(code.replace("online_softmax(const", "my_softmax(const"))
    _links(folder, NOTEBOOK, SOLUTION / NOTEBOOK)


def _empty_and_bad_json(folder: Path) -> None:
    (folder / KERNEL).write_text(" ")
    (folder / NOTEBOOK).write_text('{"cells": [')


def _link_and_missing(folder: Path) -> None:
    _links(folder, KERNEL, SOLUTION / KERNEL)
    (folder / NOTEBOOK).unlink()


def _folder_and_deleted_cell(folder: Path) -> None:
    (folder / KERNEL).unlink()
    (folder / KERNEL).mkdir()
    _without(folder, "answers")


FILES = {
    "a wrong kernel name, a link to a notebook": (
        _wrong_name_and_a_link,
        kernel_lost(f"{KERNEL} must define online_softmax()") | answers_lost(f"{NOTEBOOK} is a symbolic link*"),
    ),
    "an empty kernel, bad JSON": (
        _empty_and_bad_json,
        kernel_lost(f"{KERNEL} is empty") | answers_lost(f"{NOTEBOOK} is not a notebook: bad JSON*"),
    ),
    "a link to the solution, no notebook": (
        _link_and_missing,
        kernel_lost(f"{KERNEL} is a symbolic link*") | answers_lost(f"{NOTEBOOK} is missing"),
    ),
    "a folder for a kernel, a deleted cell": (
        _folder_and_deleted_cell,
        kernel_lost(f"{KERNEL} is not a file") | answers_lost(f"the cell 'answers' is not in {NOTEBOOK}"),
    ),
    "no kernel, an edited test cell": (_edited_test_cell, kernel_lost(f"{KERNEL} is missing")),
}


@pytest.mark.parametrize(("change", "expected"), FILES.values(), ids=FILES)
def test_files(submission, change, expected, quick_child):
    """Nothing in them attacks what runs it, so they need no sandbox."""
    change(submission)
    check(grade(submission), expected)


@pytest.mark.exhaustive("a right one, as in test_a_solution_gets_full_marks_in_the_sandbox; the attacks stand above")
@pytest.mark.parametrize("isolation", ["auto", "limits"])
def test_after_all_that_a_right_submission_gets_full_marks(submission, isolation):
    """Its test cell is deleted: nobody needs it."""
    _without(submission, "grade")
    check(grade(submission, isolation), {})
