"""No paragraph of a chapter is more than a reader can hold at once.

A paragraph ends at an empty line; each item of a list is one. Tables are none, nor are lists of contents, headings and
blocks of code. A piece of code, a formula or a link is one word and no number. Any other digits are a number, as in
FlashAttention-2, unless they stand behind a letter, as in bf16. "16,384" and "1.98" are one number each.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from course_utils.course import chapter_notebooks
from tests.helpers.notebooks import read_notebook

ROOT = Path(__file__).resolve().parents[2]
MOST_WORDS = 90
MOST_NUMBERS = 9
BLOCK_OF_CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
ONE_WORD = re.compile(r"`[^`\n]*`|\$\$.*?\$\$|\$[^$\n]+\$|!?\[[^\]]*\]\([^)]*\)", re.DOTALL)
END = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)")
NUMBER = re.compile(r"(?<![A-Za-z\d.,])\d[\d.,]*")


def paragraphs(markdown: str) -> Iterator[str]:
    """The paragraphs of a cell, each piece of code, formula and link in it replaced by one word."""
    text = ONE_WORD.sub("word", BLOCK_OF_CODE.sub("\n\n", markdown))
    for paragraph in END.split(re.sub(r"<[^>]+>|^#+ .*$", " ", text, flags=re.MULTILINE)):
        if not paragraph.lstrip().startswith(("|", "**Contents**")):
            yield re.sub(r"^\s*(?:[-*]|\d+\.)\s", "", paragraph)


def too_much(notebook: nbformat.NotebookNode) -> list[str]:
    """The paragraphs with too many words or numbers, each by its cell, its counts and its first words."""
    counted = [
        (cell.id, len(text.split()), len(NUMBER.findall(text)), " ".join(text.split())[:50])
        for cell in notebook.cells
        if cell.cell_type == "markdown"
        for text in paragraphs(cell.source)
    ]
    return [
        f"cell {cell}: {words} words, {numbers} numbers: {text}"
        for cell, words, numbers, text in counted
        if words > MOST_WORDS or numbers > MOST_NUMBERS
    ]


@pytest.mark.parametrize("path", chapter_notebooks(ROOT), ids=lambda path: path.stem)
def test_no_paragraph_is_too_long_or_has_too_many_numbers(path):
    assert too_much(read_notebook(path)) == []


def test_words_and_numbers_are_counted_by_paragraph():
    def counted(text):
        return too_much(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text, id="one")]))

    numbers = "1, 2.5, 16,384, 4 to 5, 6, 7, 8 and FlashAttention-2"  # nine
    assert counted(numbers) == []
    assert counted(f"{numbers}, 10.") == [f"cell one: 12 words, 10 numbers: {numbers[:50]}"]
    assert counted(f"{numbers}, `10`, bf16, $10$, [10](10.ipynb) <b>x</b>") == []
    assert counted(f"{numbers}\n- 10\n\n1. 11\n2. {numbers}") == []
    assert counted("word " * 90) == [] and len(counted("word " * 91)) == 1
    assert counted(f"```\n{'word ' * 91}\n```\n\n|{'1 |' * 10}\n\n**Contents** {'1 ' * 10}\n\n## {'1 ' * 10}") == []
