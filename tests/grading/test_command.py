"""`python -m course_utils grade` and `exercises`, as a learner calls them."""

import json

import pytest

from course_utils import __main__, progress
from course_utils.commands import grade as command
from course_utils.grading import comparison, release
from course_utils.grading.catalog import EXERCISE_IDS
from course_utils.grading.examples import examples_of
from course_utils.grading.exercise import Diagnosis
from course_utils.grading.release import EXERCISES
from course_utils.grading.result import RIGHT, WRONG, PartResult, Result

IDS = [exercise_id for exercise_id in EXERCISE_IDS if exercise_id.startswith("02_")]
CHAPTER = EXERCISES / "02_flash_attention_minimal"


def graded(exercise, earned):
    lost = Diagnosis("O is not rescaled", "off by 0.3 at (0, 0)", "chapter 02, section 2")
    parts = (
        PartResult("values", "Values", earned, earned, RIGHT),
        *([PartResult("peaks", "Peaks", 10 - earned, 0, WRONG, diagnosis=lost)] if earned < 10 else []),
    )
    return Result(exercise, f"Title of {exercise}", "", 7, "cpu", "ok", parts)


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture
def calls(monkeypatch):
    """Grades nothing: each exercise gets 4 of 10 points. The calls of the grader, in order."""
    made = []

    def grade(folder, exercise_id, **options):
        made.append((folder, exercise_id, options))
        return graded(exercise_id, 4)

    monkeypatch.setattr(command, "grade", grade)
    return made


def test_one_exercise_is_printed_and_kept(calls, capsys):
    assert __main__.main(["grade", str(CHAPTER / "mini_flash.cu"), "--seed", "7"]) == 0
    out = capsys.readouterr().out
    for words in (
        "4 of 10 points",
        "4/4  Values",
        "0/6  Peaks",
        "O is not rescaled",
        "(0, 0)",
        "chapter 02, section 2",
    ):
        assert words in out
    assert calls == [(CHAPTER, IDS[1], {"seed": 7, "device": "cpu", "isolation": "auto"})]
    (kept,) = progress.overview().exercises
    assert (kept.exercise, kept.attempts, kept.best.earned) == (IDS[1], 1, 4)


def test_a_chapter_and_the_whole_course(calls, capsys):
    assert __main__.main(["grade", str(CHAPTER), str(CHAPTER / "mini_flash.ipynb")]) == 0
    assert [call[1] for call in calls] == IDS  # each once
    captured = capsys.readouterr()
    assert f"{4 * len(IDS)} of {10 * len(IDS)} points in all" in captured.out and "grading" in captured.err
    calls.clear()
    assert __main__.main(["grade", str(EXERCISES)]) == 0
    assert [call[1] for call in calls] == list(EXERCISE_IDS)


def test_a_copy_elsewhere(calls, tmp_path):
    (tmp_path / "split_kv.cu").touch()
    assert __main__.main(["grade", str(tmp_path), "--isolation", "limits", "--device", "cuda"]) == 0
    options = {"seed": None, "device": "cuda", "isolation": "limits"}
    assert calls == [(tmp_path, "03_flash_attention_v2/split_kv", options)]


@pytest.mark.parametrize("isolation", ["auto", "limits"])
def test_a_machine_without_bubblewrap_is_warned_of(calls, tmp_path, monkeypatch, capsys, isolation):
    """Who asks for limits knows."""
    monkeypatch.setattr(command, "isolation_available", lambda: (False, "there is no program bwrap"))
    (tmp_path / "split_kv.cu").touch()
    assert __main__.main(["grade", str(tmp_path), "--isolation", isolation]) == 0
    warned = "warning: a submission runs with limits only, and can read and write what you can: there is no program"
    assert (warned in capsys.readouterr().err) == (isolation == "auto")


@pytest.mark.parametrize("whole_folder", [True, False])
def test_a_copy_under_a_browsers_name(calls, tmp_path, whole_folder):
    file = tmp_path / "split_kv (1).cu"
    file.touch()
    assert __main__.main(["grade", str(tmp_path if whole_folder else file)]) == 0
    assert [call[:2] for call in calls] == [(tmp_path, "03_flash_attention_v2/split_kv")]


def test_results_as_json(calls, tmp_path, capsys):
    assert __main__.main(["grade", str(CHAPTER), "--json", str(tmp_path / "out.json")]) == 0
    capsys.readouterr()
    assert __main__.main(["grade", str(CHAPTER), "--json", "-"]) == 0
    printed = capsys.readouterr().out
    assert printed == (tmp_path / "out.json").read_text(encoding="utf-8")
    assert [Result.from_json(json.dumps(entry)) for entry in json.loads(printed)] == [graded(i, 4) for i in IDS]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nowhere"], "nowhere is no exercise"),
        (["README.md"], "README.md is no exercise"),
        (["docs"], "docs is no exercise"),
        ([], "takes the path of an exercise"),
        (["exercises", "--examples", "tests"], "takes the path of an exercise"),
        (["exercises", "--markdown", "x.md"], "--markdown, --record, --kept and --jobs belong to --examples"),
        (["--examples", "tests", "--jobs", "0"], "--jobs: got 0"),
        (["exercises", "--seed", "-1"], "--seed: got -1"),
        (["--examples", "docs"], "docs: got nothing"),
        (["--examples", "tests", "--record"], "--record keeps what a GPU says"),
    ],
)
def test_bad_arguments_are_named(calls, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(release.ROOT)
    assert __main__.main(["grade", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert calls == []


def test_the_grade_is_shown_even_if_it_cannot_be_kept(calls, tmp_path, capsys):
    (tmp_path / "data").write_text("a file where the folder should be", encoding="utf-8")
    assert __main__.main(["grade", str(CHAPTER / "mini_flash.cu")]) == 0
    captured = capsys.readouterr()
    assert "4 of 10 points" in captured.out
    assert "Not kept: your progress cannot be kept in" in captured.err


def test_examples_are_compared_and_written_as_a_page(monkeypatch, tmp_path, capsys):
    folder = release.ROOT / "tests" / "grading" / "submissions"
    monkeypatch.setattr(command, "grade_submission", lambda submission, **_: graded(submission.exercise, 4))
    page = tmp_path / "page.md"
    file = folder / f"{IDS[0]}.toml"
    assert __main__.main(["grade", "--examples", str(file), "--markdown", str(page)]) == 1
    out = capsys.readouterr().out
    assert "the solution" in out and "lost peaks: O is not rescaled" in out
    assert f"## Title of {IDS[0]}" in page.read_text(encoding="utf-8")


def test_grading_examples_goes_on_from_what_a_stopped_run_has_kept(monkeypatch, tmp_path, capsys):
    asked = []

    def grade(submission, **_):
        asked.append(submission.digest)
        if len(asked) == 4:
            raise KeyboardInterrupt
        return graded(submission.exercise, 4)

    monkeypatch.setattr(command, "grade_submission", grade)
    kept, file = tmp_path / "kept.jsonl", release.ROOT / "tests" / "grading" / "submissions" / f"{IDS[0]}.toml"
    arguments = ["grade", "--examples", str(file), "--jobs", "1", "--kept", str(kept)]
    with pytest.raises(KeyboardInterrupt):
        __main__.main(arguments)
    with kept.open("a") as lines:
        lines.write('{"exercise": "cut o')
    assert __main__.main(arguments) == 1
    known = len(examples_of(IDS[0], file.parents[1]))
    assert len(set(asked)) == known and len(asked) <= known + 2, "that at which it was stopped, and what ran beside it"
    assert f"of {known} as expected" in capsys.readouterr().out
    asked_before = len(asked)
    assert __main__.main([*arguments, "--seed", "1"]) == 1
    assert len(asked) == asked_before + known, "another seed is another grade"


# ---- exercises


def test_exercises_says_what_changed(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(release, "ROOT", tmp_path)
    (tmp_path / "a.cu").touch()
    monkeypatch.setattr(release, "make_exercises", lambda: [tmp_path / "a.cu", tmp_path / "b.cu"])
    monkeypatch.setattr(comparison, "RECORD", tmp_path / "counted.json")
    monkeypatch.setattr(comparison, "count_solutions", lambda solutions: "{}")  # test_comparison.py counts them
    changed = "written a.cu\nremoved b.cu\n2 files changed in exercises/\n"
    for counted in ("written counted.json\n", ""):
        assert __main__.main(["exercises"]) == 0
        assert capsys.readouterr().out == changed + counted


def test_exercises_names_a_wrong_mark(monkeypatch, capsys):
    def wrong():
        raise release.MarkError("solutions/a.cu, line 3: '// END SOLUTION' without '// BEGIN SOLUTION' before it")

    monkeypatch.setattr(release, "make_exercises", wrong)
    assert __main__.main(["exercises"]) == 1
    assert "exercises: solutions/a.cu, line 3" in capsys.readouterr().err
