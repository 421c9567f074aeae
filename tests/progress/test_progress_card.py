"""The cards: printed, as a page, and as a widget that reads again and exports."""

import json
import re
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

from course_utils import course, progress
from course_utils.course import CHAPTERS
from course_utils.grading.catalog import EXERCISE_IDS, exercise_ids
from course_utils.progress import state, store
from course_utils.progress.links import href
from course_utils.widgets import progress_card as card

ROOT = Path(__file__).resolve().parents[2]
SLUG = "02_flash_attention_minimal"


@pytest.fixture(autouse=True)
def in_notebooks(monkeypatch, two_questions):
    """Where Jupyter runs a chapter."""
    monkeypatch.chdir(ROOT / "notebooks")


@pytest.fixture
def jupyter(monkeypatch):
    """A notebook around the cards: what its output areas hold."""
    shown = []
    monkeypatch.setattr(card, "get_ipython", SimpleNamespace)
    monkeypatch.setattr(card, "display", lambda one, **_: shown.append(one))
    return shown


@pytest.mark.usefixtures("after_the_split")
def test_finishing_keeps_the_chapter_and_prints_its_card(capsys, graded):
    progress.record_answer(f"{SLUG}/first", True, 1, 0)
    progress.record_exercise(graded(4))
    card.finish_chapter(SLUG)
    out = capsys.readouterr().out
    for words in (
        "Chapter 02 · FlashAttention, minimal",
        f"1 of 2 questions right. 0 of {len(exercise_ids(SLUG))} exercises done. New: First chapter.",
        f"Open questions:\n  Title of {SLUG}/second",
        f"  {SLUG}/mini_flash: 4 of 10 points",
        f"  {SLUG}/online_softmax: not graded yet",
        "  Run chapter 02, FlashAttention, backward:\n    notebooks/02_flash_attention_backward.ipynb",
    ):
        assert words in out
    assert [(one.slug, one.times) for one in progress.overview().chapters] == [(SLUG, 1)]


def test_a_chapter_that_does_not_exist_is_named():
    with pytest.raises(LookupError, match="slug: got '02', takes one of 00_start_here"):
        card.finish_chapter("02")
    assert not progress.progress_file().exists()


def test_an_achievement_is_new_once(jupyter, graded, monkeypatch):
    days = (f"2026-01-{day:02}T00:00:00+00:00" for day in range(1, 20))
    monkeypatch.setattr(store, "_now", lambda: next(days))
    card.finish_chapter(SLUG)
    progress.record_exercise(graded(10, exercise=f"{SLUG}/mend_the_race"))
    jupyter[-1]._handle_custom_msg({"asked": "refresh"}, [])
    assert "New: First chapter, First kernel, Race hunter." in jupyter[-1].status
    card.finish_chapter(SLUG)  # they were reached since the chapter was last run
    assert "New: First kernel, Race hunter." in jupyter[-1].status
    card.finish_chapter("03_flash_attention_v2")
    assert "New" not in jupyter[-1].status and "New achievements" not in jupyter[-1].page


def test_the_widget_reads_again_what_others_kept(jupyter):
    card.finish_chapter(SLUG)
    panel = jupyter[-1]
    assert "0 of 2 questions right" in panel.status
    code = f"from course_utils import progress; progress.record_answer('{SLUG}/first', True, 1, 0)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    panel._handle_custom_msg({"asked": "refresh"}, [])
    assert "1 of 2 questions right" in panel.status and "Read again at " in panel.status
    assert '<progress max="2" value="1" aria-label="questions right">' in panel.page
    bundle, _ = panel._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert panel.page in bundle["text/html"] and "1 of 2 questions right" in bundle["text/plain"]


def test_the_widget_exports_everything(jupyter, monkeypatch):
    card.show_progress()
    sent = []
    monkeypatch.setattr(jupyter[-1], "send", sent.append)
    progress.record_answer(f"{SLUG}/first", True, 1, 0)
    jupyter[-1]._handle_custom_msg({"asked": "export"}, [])
    assert sent == [{"file": "attention-kernels-progress.json", "content": progress.export()}]
    assert json.loads(sent[0]["content"])["questions"][0]["question"] == f"{SLUG}/first"
    assert "python -m course_utils progress --json FILE" in jupyter[-1].status


@pytest.mark.usefixtures("after_the_split")
def test_the_card_of_the_course_shows_every_chapter_and_achievement(jupyter, graded):
    card.finish_chapter(SLUG)
    card.show_progress()
    page = jupyter[-1].page
    chapters = len(CHAPTERS)
    assert jupyter[-1].status == (
        f"1 of {chapters} chapters run to the end, 0 of {2 * chapters} questions right, "
        f"0 of {len(EXERCISE_IDS)} exercises done. 1 of 15 achievements."
    )
    assert page.count('<th scope="row">') == chapters + 15 and page.count("✓ ") == 1
    assert page.startswith("<h3>Next</h3>")
    assert page.index("First chapter") < page.index("Counted before measured")


def test_guesses_are_counted_in_one_line(jupyter, capsys, monkeypatch):
    card.finish_chapter(SLUG)
    assert "Guesses" not in jupyter[-1].status
    for question, guess in (("How many?", 80), ("How much?", 30), ("Which?", "K")):
        progress.record_guess(question, guess, 37)
    progress.record_guess("How many?", 37, 37)  # now it is no guess any more
    said = "Guesses: 3, within a factor of two: 1."
    for show in (lambda: card.finish_chapter(SLUG), card.show_progress):
        show()
        assert jupyter[-1].status.endswith(said) and said in jupyter[-1]._card.text
    monkeypatch.setattr(card, "get_ipython", lambda: None)
    card.show_progress()
    assert said in capsys.readouterr().out


def test_titles_are_escaped(jupyter, monkeypatch):
    card.finish_chapter(SLUG)
    assert "Title of 02_flash_attention_minimal/first &lt;&amp;&gt;" in jupyter[-1].page
    spoilt = tuple(replace(one, title="<script>") for one in CHAPTERS)
    monkeypatch.setattr(course, "CHAPTERS", spoilt)
    monkeypatch.setattr(state, "CHAPTERS", spoilt)
    card.finish_chapter(SLUG)
    card.show_progress()
    for panel in jupyter[-2:]:
        html = panel._card.html
        assert "&lt;script&gt;" in html and "<script" not in html


def test_every_bar_says_its_value_in_words_too(jupyter):
    progress.record_answer(f"{SLUG}/first", True, 1, 0)
    card.show_progress()
    for most, value, after in re.findall(
        r'<progress max="(\d+)" value="(\d+)" aria-label="[^"]+">(.{60})', jupyter[-1].page
    ):
        assert f"{value} of {most}" in after


def test_links_lead_to_notebooks_and_headings_that_exist(jupyter):
    for one in ("00_start_here", SLUG, "05_deepseek_sparse"):
        card.finish_chapter(one)
    card.show_progress()
    found = {link for panel in jupyter for link in re.findall(r'href="([^"]+)"', panel.page)}
    assert f"../exercises/{SLUG}/mini_flash.ipynb" in found
    sections = [link.split("#") for link in found if "#" in link]
    assert len(sections) >= 3
    for link in found:
        assert (ROOT / "notebooks" / link.split("#")[0]).resolve().is_file(), link
    for file, anchor in sections:
        cells = nbformat.read(ROOT / "notebooks" / file, as_version=4).cells
        headings = [line for cell in cells if cell.cell_type == "markdown" for line in cell.source.splitlines()]
        assert any(line.startswith("## ") and line[3:].strip().replace(" ", "-") == anchor for line in headings)


def test_a_link_is_left_out_where_the_notebook_is_not(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert href("notebooks/00_start_here.ipynb", "Questions") == ""
    (tmp_path / "notebooks").mkdir()
    shutil.copy(ROOT / "notebooks" / "00_start_here.ipynb", tmp_path / "notebooks")  # a copy leads to copies
    assert href("notebooks/00_start_here.ipynb") == "notebooks/00_start_here.ipynb"


def test_a_notebook_that_is_being_saved_takes_no_card_away(jupyter, monkeypatch, tmp_path):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / f"{SLUG}.ipynb").write_text('{"cells": [', encoding="utf-8")
    monkeypatch.chdir(tmp_path / "notebooks")
    card.finish_chapter(SLUG)
    assert f'href="{SLUG}.ipynb"' in jupyter[-1].page


def test_a_store_that_fails_is_said_and_ends_no_chapter(jupyter, data_home):
    card.finish_chapter(SLUG)
    with sqlite3.connect(progress.progress_file()) as connection:
        connection.execute("PRAGMA user_version = 99")
    for message in ({"asked": "refresh"}, {"asked": "export"}):
        jupyter[0]._handle_custom_msg(message, [])
        assert "newer edition" in jupyter[0].status and "<table" in jupyter[0].page
    card.finish_chapter(SLUG)
    card.show_progress()
    assert "Not kept: " in jupyter[1].status and "Nothing to show: " in jupyter[2].status


@pytest.mark.parametrize("message", [None, [], "refresh", {}, {"asked": "delete"}, {"asked": ["refresh"]}])
def test_a_message_of_another_form_is_left_alone(jupyter, message):
    card.show_progress()
    before = jupyter[-1].get_state()
    jupyter[-1]._handle_custom_msg(message, [])
    assert jupyter[-1].get_state() == before


def test_importing_the_package_brings_no_card():
    code = "import sys; from course_utils import progress; sys.exit('IPython' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        progress.other  # noqa: B018
