"""Copies of chapters and exercises from November 2026, and the progress of then, work with this version of the course.

names.txt: every name of the course that the chapters and exercises of then use. custom_mask.json: the notebook of an
exercise. progress.sql: a learner's progress, with every chapter, question and exercise. These files never change.
"""

import importlib
import json
import shutil
import sqlite3
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from course_utils import progress
from course_utils.grading import grader
from course_utils.progress.state import chapter_states
from tests.helpers.forked_child import run_fork

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EXERCISE = "04_sparse_patterns/custom_mask"


def looked_up(name):
    """What a dotted name stands for: modules are imported as they come."""
    parts = name.split(".")
    found = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], 1):
        found = getattr(found, part) if hasattr(found, part) else importlib.import_module(".".join(parts[: i + 1]))
    return found


def test_every_name_that_handed_out_notebooks_use_is_there():
    missing = []
    for name in (HERE / "names.txt").read_text(encoding="utf-8").split():
        try:
            looked_up(name)
        except (ImportError, AttributeError) as error:
            missing.append(f"{name}: {error}")
    assert not missing, "\n".join(missing)


@pytest.fixture
def data_home(tmp_path, monkeypatch):
    """The folder below which this test's progress is kept."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def test_a_handed_out_exercise_runs_and_is_checked(tmp_path, monkeypatch, capsys, data_home):
    """The notebook of then with its former import, and a right kernel; the pattern and the answers are still open."""
    monkeypatch.setattr(grader, "run_child", run_fork)  # the sandbox has tests of its own
    shutil.copy(HERE / "custom_mask.json", tmp_path / "custom_mask.ipynb")
    shutil.copy(ROOT / "solutions" / f"{EXERCISE}.cu", tmp_path)
    monkeypatch.chdir(tmp_path)
    cells = json.loads((tmp_path / "custom_mask.ipynb").read_text(encoding="utf-8"))["cells"]
    names = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    plt.close("all")
    assert "course_utils.attention_maps" in str(cells) and "16 points" in capsys.readouterr().out
    (standing,) = progress.overview().exercises
    assert (standing.exercise, standing.last.status) == (EXERCISE, "ok")
    assert 0 < standing.last.earned < standing.last.points


def test_progress_of_then_counts_in_full(data_home):
    progress.progress_file().parent.mkdir(parents=True)
    with sqlite3.connect(progress.progress_file()) as store:
        store.executescript((HERE / "progress.sql").read_text(encoding="utf-8"))
    kept = progress.overview()
    assert (len(kept.chapters), len(kept.questions), len(kept.exercises)) == (7, 71, 9)
    states = chapter_states(kept)
    # A second notebook was finished with the first; chapters have come since.
    assert [state.chapter.slug for state in states if not state.finished] == ["06_serving", "07_hopper"]
    assert sum(state.questions_right for state in states) == 71
    assert sum(state.exercises_done for state in states) == 9
