"""The self-check of a notebook: in words, as a table, and as a widget that checks again."""

import dataclasses
import json
import os
import shutil
from types import SimpleNamespace

import pytest
import torch

from course_utils import progress
from course_utils.cuda import RawModule
from course_utils.emulator import record
from course_utils.grading.comparison import Comparison, Figure
from course_utils.grading.exercise import Diagnosis
from course_utils.grading.release import EXERCISES
from course_utils.grading.replay import Replay
from course_utils.grading.result import NOT_MEASURED, RIGHT, UNANSWERED, WRONG, PartResult, Result
from course_utils.widgets import grade_panel

ID = "02_flash_attention_minimal/online_softmax"
COMPARISON = Comparison("Online softmax", "reads", (Figure("bytes loaded", 20, 10, 8),), 0, "Read each score once.")


def graded(earned, diagnosis="P is <never> written"):
    lost = PartResult("values", "Values", 10 - earned, 0, WRONG, diagnosis=Diagnosis(diagnosis, "at (0, 0)"))
    right = PartResult("peaks", "Peaks", earned, earned, RIGHT)
    return Result(ID, "Online softmax", "", 7, "cpu", "ok", (right, *((lost,) if earned < 10 else ())))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The exercise as a learner has it; the progress goes to a folder of the test."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for suffix in (".cu", ".ipynb"):
        shutil.copy(EXERCISES / f"{ID}{suffix}", tmp_path)
    return tmp_path


@pytest.fixture
def grades(monkeypatch):
    """What the grader is to say, one after the other."""
    coming = []
    monkeypatch.setattr(grade_panel, "grade_submission", lambda submission, *, device: coming.pop(0))
    monkeypatch.setattr(grade_panel, "compare_with_solution", lambda submission: COMPARISON)
    return coming


@pytest.fixture
def jupyter(monkeypatch):
    """A notebook around `check`: `.shown` is what its output area holds, one entry per change; `.ran` its cells."""
    notebook = SimpleNamespace(shown=[], ran=[""])
    monkeypatch.setattr(grade_panel, "get_ipython", lambda: SimpleNamespace(user_ns={"In": notebook.ran}))

    def display(shown, **_):
        notebook.shown.append(shown)
        return SimpleNamespace(update=notebook.shown.append)

    monkeypatch.setattr(grade_panel, "display", display)
    return notebook


def test_outside_jupyter_the_grade_is_printed(folder, grades, capsys):
    grades.append(graded(4))
    grade_panel.check(ID, folder)
    out = capsys.readouterr().out
    assert out.startswith(str(graded(4))) and "Checked online_softmax.cu (saved at " in out
    assert [standing.last for standing in progress.overview().exercises] == [graded(4)]


def test_the_panel_takes_the_place_of_the_words(folder, grades, jupyter):
    grades.append(graded(4))
    grade_panel.check(ID, folder)
    words, shown, below = jupyter.shown
    assert below is shown.below
    assert words["text/plain"].startswith("Checking online_softmax.cu (saved at ")
    assert shown.title == "Online softmax" and not shown.busy
    assert shown.status.startswith("4 of 10 points. To begin with: P is <never> written.\nChecked online_softmax.cu")
    assert "&lt;never&gt;" in shown.page
    bundle, _ = shown._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert bundle["text/html"] == shown.page and bundle["text/plain"].startswith(str(graded(4)))


def test_a_right_kernel_with_open_questions_is_not_called_wrong(folder, grades, jupyter):
    todo = Diagnosis("not answered yet", "answers['bytes'] takes a number")
    questions = [PartResult(name.lower(), name, 2, 0, UNANSWERED, diagnosis=todo) for name in ("Bytes", "Passes")]
    bonus = PartResult("speed", "Speed", 1, 0, NOT_MEASURED, bonus=True)
    grades.append(dataclasses.replace(graded(10), parts=(*graded(10).parts, *questions, bonus)))
    grade_panel.check(ID, folder)
    words = "10 of 14 points. Nothing is wrong. Not answered yet: Bytes, Passes.\n"
    assert jupyter.shown[1].status.startswith(words)


def test_a_wrong_kernel_is_named_before_open_questions(folder, grades, jupyter):
    todo = Diagnosis("not answered yet", "answers['bytes'] takes a number")
    questions = [PartResult(name, name, 9, 0, UNANSWERED, diagnosis=todo) for name in ("bytes", "passes")]
    grades.append(dataclasses.replace(graded(4), parts=(*graded(4).parts, *questions)))
    grade_panel.check(ID, folder)
    assert jupyter.shown[1].status.startswith("4 of 28 points. To begin with: P is <never> written.\n")


def test_an_exercise_without_a_kernel_has_answers_to_check(folder, grades, jupyter):
    grades += [graded(4), graded(4)]
    for exercise_id, subject, words in (
        (ID, "my kernel", "Change them, save"),
        ("08_choosing/measure_and_decide", "my answers", "Change it, save"),
    ):
        grade_panel.check(exercise_id, folder)
        shown = jupyter.shown[-2]
        assert shown.subject == subject and words in shown.status


def test_the_button_checks_again(folder, grades, jupyter):
    grades += [graded(4), graded(10)]
    grade_panel.check(ID, folder)
    shown, states = jupyter.shown[1], []
    shown.observe(lambda change: states.append(change["new"]), ["busy", "status"])
    shown.set_state({"asked": 1})
    assert states[0] is True and states[1].startswith("Checking ") and states[-1] is False
    assert shown.status.startswith("10 of 10 points. Everything is right.")
    assert shown.page == graded(10).to_html() + COMPARISON.to_html()
    (kept,) = progress.overview().exercises
    assert (kept.attempts, kept.best) == (2, graded(10))


def test_a_failing_grader_does_not_hang_the_button(folder, grades, jupyter):
    grades.append(graded(4))
    grade_panel.check(ID, folder)
    shown = jupyter.shown[1]
    shown.set_state({"asked": 1})  # nothing more to say: an IndexError in the place of a grade
    assert shown.status.startswith("The check did not run: IndexError") and not shown.busy


def test_a_wrong_kernel_is_played_below_the_panel(folder, grades, jupyter, leaves_no_shell, monkeypatch):
    grades += [graded(4), graded(10)]
    grade_panel.check(ID, folder)
    shown = jupyter.shown[1]
    assert shown.can_play
    asked, given = [], [None, Replay("Values", "a case", recording_of_a_loop(), None, 0, 8, 1, got=2.0, expected=1 / 3)]
    monkeypatch.setattr(grade_panel, "replay", lambda *them: asked.append(them) or given.pop(0))
    shown.set_state({"played": 1})
    assert shown.status == "Your kernel cannot be launched here: the verdict says why."
    assert shown.below.outputs == () and asked[0][1] == graded(4) and asked[0][0].exercise == ID
    shown.set_state({"played": 2})
    assert shown.status.startswith("Below: your kernel, part “Values”, case “a case”, block (0, 0, 0).")
    assert shown.status.endswith("number of out is written last: 2 in the place of 0.33333.") and not shown.busy
    (output,) = shown.below.outputs
    assert output["data"]["text/plain"].startswith("Player")
    whole = recording_of_a_loop()
    nothing = {name: values[:0] for name, values in whole.columns.items()}
    crashed = dataclasses.replace(whole, columns=nothing, failure="out ends before that")
    given.append(Replay("Values", "a case", crashed))
    shown.set_state({"played": 3})
    assert shown.status.endswith("of twice() had not touched memory when the launch failed: out ends before that")
    given.append(Replay("Values", "a case", whole))
    shown.set_state({"played": 4})
    assert len(shown.below.outputs) == 1

    def too_long(*_):
        raise ValueError("the recording is longer than 4 accesses: does a loop in line 3 end?")

    monkeypatch.setattr(grade_panel, "replay", too_long)
    shown.set_state({"played": 5})
    assert shown.status.startswith("Nothing to play, since the run is too long: the recording is longer than 4 ")
    assert shown.below.outputs == (), "the player of an earlier kernel stays"
    monkeypatch.setattr(grade_panel, "replay", lambda *them: 1 / 0)
    shown.set_state({"played": 6})
    assert shown.status.startswith("Your kernel was not recorded: ZeroDivisionError") and not shown.busy
    shown.set_state({"asked": 1})
    assert shown.can_play and shown.below.outputs == ()


def recording_of_a_loop():
    source = 'extern "C" __global__ void twice(float* out) { out[threadIdx.x] = 1; out[threadIdx.x] *= 2; }'
    out = torch.zeros(4)
    return record(lambda: RawModule(code=source).get_function("twice")((1,), (4,), (out,)))


def test_a_cell_that_was_run_but_not_saved_is_named(folder, grades, jupyter):
    cells = json.loads((folder / "online_softmax.ipynb").read_text(encoding="utf-8"))["cells"]
    saved = next("".join(cell["source"]) for cell in cells if cell["id"] == "answers")
    for ran, stale in (
        ([saved], False),
        ([saved, saved.replace("...", "1")], True),
        ([saved.replace("...", "1")], True),
    ):
        jupyter.ran[1:] = ran
        grades.append(graded(4))
        grade_panel.check(ID, folder)
        assert ("The cell 'answers' was run with other text than is saved" in jupyter.shown[-2].status) == stale


def test_files_that_are_missing_and_a_store_that_fails_are_said(folder, grades, jupyter):
    os.remove(folder / "online_softmax.cu")
    (folder / "data").write_text("a file where the folder should be", encoding="utf-8")
    grades.append(graded(0, "online_softmax.cu is missing"))
    grade_panel.check(ID, folder)
    status = jupyter.shown[1].status
    assert "Checked online_softmax.cu (missing) and online_softmax.ipynb (saved at " in status
    assert "Not kept: your progress cannot be kept in" in status


def test_an_unknown_exercise_is_named():
    with pytest.raises(LookupError, match="there is no exercise '99_nothing/at_all'"):
        grade_panel.check("99_nothing/at_all")
