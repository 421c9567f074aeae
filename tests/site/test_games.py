"""The games on the site: each stands on its page, its chapter and the front page lead there, and it is small."""

import html
import re
import shutil

import nbformat
import pytest

pytest.importorskip("docutils", reason="the site's packages are not installed (pip install course-kernels[site])")

from course_utils.chapters import missing_barrier
from course_utils.site import games, pages, widgets
from course_utils.site.build import ROOT

MOST_BYTES = 1_000_000  # of a page's own text and its script: far below the 6 MB that a page may have


def test_each_game_stands_on_its_page_and_its_chapter_leads_there(tmp_path, monkeypatch):
    monkeypatch.setattr(missing_barrier, "LEVELS", missing_barrier.LEVELS[:1])  # each is recorded for the page
    root = tmp_path / "course"
    chapters = {}
    for name in ("README.md", *(game.file for game in games.GAMES)):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, root / name)
    for slug in ("02_flash_attention_minimal", "04_sparse_patterns", "06_serving", "07_hopper"):
        cells = [nbformat.v4.new_markdown_cell(text) for text in ("# A chapter", "Its first words.")]
        chapters[root / "notebooks" / f"{slug}.ipynb"] = nbformat.v4.new_notebook(cells=cells)
    sources = pages.write_sources(root, chapters, tmp_path / "build")
    scripts = dict(widgets.files())
    for game in games.GAMES:
        page = (sources.pages / game.file).read_text(encoding="utf-8")
        (script,) = re.findall(r'data-widget-script="([\w.]+)"', page)
        assert games.MARK not in page and f'alt="{html.escape(game.alt)}"' in page
        assert len(page) + len(scripts[f"widgets/{script}"]) < MOST_BYTES
        chapter = nbformat.read(sources.pages / "notebooks" / f"{game.chapter}.ipynb", as_version=4)
        link = game.file.removesuffix(".md") + ".html"
        assert f"](../{link})" in chapter.cells[1].source and "Its first words." in chapter.cells[2].source
        assert f"]({link})" in (sources.pages / "index.md").read_text(encoding="utf-8")
    other = nbformat.read(sources.pages / "notebooks" / "06_serving.ipynb", as_version=4)
    assert len(other.cells) == 2  # no game belongs to it
    index = (sources.pages / "index.md").read_text(encoding="utf-8")
    assert ":caption: Games\n\ndocs/games/find_the_missing_barrier\n" in index
    assert sources.missing_alt == []


def test_the_words_of_a_game_say_where_it_stands():
    for game in games.GAMES:
        text = (ROOT / game.file).read_text(encoding="utf-8")
        assert text.count(games.MARK) == 1 and f"notebooks/{game.chapter}.ipynb" in text
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "games").glob("*.md")} == {
        game.file for game in games.GAMES
    }
