"""How many questions, exercises and puzzles the course has, where a page says so, and how many questions a chapter
asks, where its notebook says so."""

import re
from pathlib import Path

from course_utils.course import CHAPTERS, Chapter
from course_utils.grading.catalog import EXERCISE_IDS
from course_utils.puzzles.puzzle import puzzle_ids
from course_utils.questions.catalog import question_ids
from tests.helpers.all_of import all_of
from tests.helpers.notebooks import read_notebook

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
WORDS = "one two three four five six seven eight nine ten eleven twelve".split()
COUNTS = {
    "questions": sum(len(question_ids(chapter.slug)) for chapter in CHAPTERS),
    "exercises": len(EXERCISE_IDS),
    "puzzles": len(puzzle_ids()),
}


def wrong_counts(text: str) -> list[str]:
    """The counts in a text that are not the course's."""
    stated = re.finditer(rf"\b(\d+) ({'|'.join(COUNTS)})\b", text)
    return [match[0] for match in stated if int(match[1]) != COUNTS[match[2]]]


@all_of("page", PAGES)
def test_a_page_states_the_counts_as_they_are(page):
    assert wrong_counts(page.read_text(encoding="utf-8")) == []


def test_a_count_that_is_out_of_date_is_seen():
    right = ", ".join(f"{count} {what}" for what, count in COUNTS.items())
    assert wrong_counts(right) == []
    assert wrong_counts(f"{right}, and {COUNTS['questions'] + 1} questions") == [f"{COUNTS['questions'] + 1} questions"]


def counts_in_words(text: str) -> list[int]:
    """The numbers of questions that a text begins a paragraph with, as "Eight questions"."""
    stated = re.finditer(rf"^({'|'.join(WORDS)}) questions?\b", text, re.IGNORECASE | re.MULTILINE)
    return [WORDS.index(match[1].lower()) + 1 for match in stated]


@all_of("chapter", CHAPTERS)
def test_a_notebook_states_how_many_questions_it_asks(chapter: Chapter):
    notebook = read_notebook(ROOT / "notebooks" / f"{chapter.slug}.ipynb")
    told = [count for cell in notebook.cells if cell.cell_type == "markdown" for count in counts_in_words(cell.source)]
    assert told in ([], [len(question_ids(chapter.slug))])


def test_a_count_in_words_is_read():
    assert counts_in_words("## 13 Questions\n\nNine questions with figures.\nOne question; no two questions.") == [9, 1]
