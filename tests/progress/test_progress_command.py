"""`python -m course_utils progress`, as a learner calls it."""

import json

import pytest

from course_utils import __main__, progress
from course_utils.grading.catalog import EXERCISE_IDS

SLUG = "02_flash_attention_minimal"


@pytest.fixture(autouse=True)
def catalogue(two_questions):
    return two_questions


@pytest.mark.usefixtures("after_the_split")
def test_it_says_what_was_reached_and_what_comes_next(capsys, graded):
    assert __main__.main(["progress"]) == 0
    assert "Run chapter 00, Start here: notebooks/00_start_here.ipynb" in capsys.readouterr().out
    progress.record_exercise(graded(10, exercise=EXERCISE_IDS[0]))
    progress.record_exercise(graded(4, exercise=EXERCISE_IDS[1]))
    progress.record_answer("00_start_here/first", True, 1, 0)
    progress.record_finished("00_start_here")
    assert __main__.main(["progress"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "Next:",
        "  Answer the 1 open question of chapter 00: notebooks/00_start_here.ipynb",
        "  Run chapter 01, Attention basics: notebooks/01_attention_basics.ipynb",
        "",
    ]
    assert lines[4].split("  ")[0] == "chapter"
    assert lines[5].startswith("00 · Start here") and lines[5].split()[-4:] == "1 of 2 none".split()
    assert lines[6].startswith("00 · Memory and tools") and lines[6].split()[-6:] == "0 of 2 1 of 1".split()
    start = next(n for n, line in enumerate(lines) if line.startswith("exercise "))
    rows = lines[start + 1 : start + 1 + len(EXERCISE_IDS)]
    assert [row.split()[0] for row in rows] == list(EXERCISE_IDS)
    assert "10 of 10" in rows[0] and rows[0].endswith("done")
    assert "4 of 10" in rows[1] and rows[1].endswith("read again: chapter 02, section 2")
    assert f"  {EXERCISE_IDS[1]}: the mask is off by one" in lines
    assert any(line.startswith("  First kernel (20") for line in lines)
    assert "  Race hunter (0 of 1): " in "\n".join(lines)


def test_everything_done_is_said(capsys, graded, catalogue):
    for exercise in EXERCISE_IDS:
        progress.record_exercise(graded(10, exercise=exercise))
    for question in catalogue:
        progress.record_answer(question, True, 1, 0)
    for slug in dict.fromkeys(question.split("/")[0] for question in catalogue):
        progress.record_finished(slug)
    assert __main__.main(["progress"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Every chapter, question and exercise is done.\n\nchapter ") and "To be reached" not in out
    assert "15 of 15 achievements" in out


@pytest.mark.parametrize("given", ["02", "2", SLUG])
def test_one_chapter(capsys, graded, given):
    progress.record_exercise(graded(4))
    assert __main__.main(["progress", "--chapter", given]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Chapter 02 · FlashAttention, minimal\nRun to its end: not yet. 0 of 2 questions right.")
    assert f"  {SLUG}/mini_flash: 4 of 10 points" in out
    assert f"What the last attempts lost points for:\n  {SLUG}/mini_flash: the mask is off by one" in out
    assert not progress.overview().chapters  # looking at a chapter does not finish it


def test_a_chapter_that_does_not_exist_is_named(capsys):
    assert __main__.main(["progress", "--chapter", "99"]) == 2
    assert "progress: --chapter: got '99', takes one of 00_start_here" in capsys.readouterr().err


def test_it_is_exported_and_forgotten(tmp_path, capsys, graded):
    progress.record_exercise(graded(4))
    progress.record_finished(SLUG)
    assert __main__.main(["progress", "--json", str(tmp_path / "all.json"), "--reset"]) == 0
    assert capsys.readouterr().err == "1 exercise, 0 questions, 1 chapter and 0 guesses forgotten\n"
    assert json.loads((tmp_path / "all.json").read_text(encoding="utf-8"))["exercises"][0]["attempts"] == 1
    assert __main__.main(["progress", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["exercises"] == []


def test_nothing_is_forgotten_if_the_export_fails(tmp_path, capsys, graded):
    progress.record_exercise(graded(4))
    assert __main__.main(["progress", "--json", str(tmp_path), "--reset"]) == 1
    assert "progress: " in capsys.readouterr().err
    assert len(progress.overview().exercises) == 1


def test_a_store_that_cannot_be_read_is_an_error(capsys):
    progress.progress_file().parent.mkdir(parents=True)
    progress.progress_file().write_text("certainly not SQLite" * 100, encoding="utf-8")
    assert __main__.main(["progress"]) == 1
    assert "progress: your progress cannot be kept in" in capsys.readouterr().err


def test_the_store_itself_is_not_overwritten_by_the_export(capsys):
    progress.record_finished(SLUG)
    assert __main__.main(["progress", "--json", str(progress.progress_file())]) == 1
    assert "takes another file" in capsys.readouterr().err
    assert [one.slug for one in progress.overview().chapters] == [SLUG]
