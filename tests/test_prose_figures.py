"""No figure of the text is typed by hand: each is computed here anew and compared with what the text says.

A Markdown cell's metadata say where its figures come from, as in

    "figures": {"16.8 MB": "costs.score_matrix_bytes(1, 1, 2048, 2048, 4) / 1e6"}

The key is the figure as it stands in the text, with enough words around it to be found; its first number is compared.
The source is one of

- an expression over `costs`, `measured`, `row` (the one row of a recording with these values), `rows`, `nvrtc`, `math`;
- `cell ID`, or `cell ID: words`: it stands in the saved output of that cell, in a line with these words, which an
  output of more than ten lines needs;
- `source: ...`: quoted from a paper or manual that the notebook links, named by a word of its link or title;
- `given: ...`: no result, but a size that we chose or a fact of the hardware.
"""

import math
import re
from pathlib import Path

import nbformat
import pytest

from course_utils import costs, measured
from course_utils.course import chapter_notebooks
from course_utils.toolchain import nvrtc
from tests.helpers.notebooks import read_notebook

CHAPTERS = chapter_notebooks(Path(__file__).resolve().parent.parent)
NUMBER = r"\d[\d,]*(?:\.\d+)?"
UNITS = r"%|×(?! ?\d)|times\b|[µmn]s\b|seconds\b|[KMGT]i?B\b|[KMGTP]?FLOPs?\b"
WORDS = dict(zip("three four five six seven eight nine ten eleven twelve".split(), range(3, 13), strict=True))
# A number with decimals, one with a unit, or one with thousands. Sections, versions and equations are no figures.
FIGURE = re.compile(
    r"(?<![\w.,§/])(?<!\w-)(?<!section )(?<!sections )(?<!equation )(?<!CUDA )(?<!torch )(?<!chapter )(?<!capability )"
    rf"(?:\d[\d,]*\.\d+(?:[eE]-?\d+)?|{NUMBER}(?=[ \u00a0]?(?:{UNITS}))|\d{{1,3}}(?:,\d{{3}})+)(?![\w.]*\d)"
    rf"|\b(?:{'|'.join(WORDS)})(?= times\b)"
)


def figures(text: str) -> list[re.Match[str]]:
    """The figures in a text. A power of two with thousands is a size that we chose, such as 16,384 tokens."""
    found = FIGURE.finditer(text)
    return [match for match in found if not _power_of_two(match[0]) or re.match(UNITS, text[match.end() :].lstrip())]


def _power_of_two(number: str) -> bool:
    digits = number.replace(",", "")
    return "," in number and digits.isdigit() and int(digits).bit_count() == 1


def prose(markdown: str) -> str:
    """The text without code, formulas, addresses and HTML tags."""
    text = re.sub(r"```.*?```|`[^`\n]*`|\$\$.*?\$\$|\$[^$\n]+\$", " ", markdown, flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)|<[^>]+>", " ", text)
    return re.sub(r"\bdoi [\d./]+|\b\d{4}\.\d{5}\b", " ", text)  # of papers


def row(recording: str, **values):
    """The one row of a recording in which these columns have these values."""
    (only,) = rows(recording, **values)
    return only


def rows(recording: str, **values):
    """All such rows."""
    found = measured.load(recording).select(**values)
    if not found:
        raise LookupError(f"no row of {recording} has {values}")
    return found


NAMES = {"costs": costs, "measured": measured, "nvrtc": nvrtc, "math": math, "row": row, "rows": rows}


def as_shown(value: float, shown: str) -> bool:
    """Whether `value` rounds to the number `shown`: to its decimals, or to its last digit before trailing zeros, of
    which two digits must stay; with fewer it may be off by 5 %."""
    if shown in WORDS:
        return round(value) == WORDS[shown]
    shown = shown.replace(",", "")
    number, decimals = float(shown), len(shown.partition(".")[2])
    if decimals or "." in shown:
        return math.isclose(round(value, decimals), number, abs_tol=1e-9)
    zeros = len(shown) - len(shown.rstrip("0")) if number else 0
    if any(round(value, -places) == number for places in range(min(zeros, max(0, len(shown) - 2)) + 1)):
        return True
    return zeros > 0 and abs(value - number) <= 0.05 * abs(number)


def problems(notebook) -> list[str]:
    """Every figure of a notebook's text without a source, and every source that does not give what stands there."""
    found = []
    text_of = {cell.get("id"): _output_text(cell) for cell in notebook.cells if cell.cell_type == "code"}
    everything = "\n".join(cell.source for cell in notebook.cells)
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type != "markdown":
            continue
        sources = cell.metadata.get("figures", {})
        left = prose(cell.source)
        for shown, source in sources.items():
            place = re.compile(rf"(?<![\d.,]){re.escape(shown)}(?!\d)")
            if not place.search(left):
                found.append(f"cell {index}: {shown!r} has a source, but does not stand in the text")
                continue
            left = place.sub(" ", left)
            found += [f"cell {index}: {shown!r}: {why}" for why in _wrong(shown, source, text_of, everything)]
        found += [
            f"cell {index}: {match[0]!r} has no source: …{left[max(0, match.start() - 30) : match.end() + 20]!r}"
            for match in figures(left)
        ]
    return found


def _wrong(shown: str, source: str, text_of: dict[str, str], everything: str) -> list[str]:
    literal = re.search(rf"{NUMBER}|\b(?:{'|'.join(WORDS)})\b", shown)
    if literal is None:
        return ["holds no number"]
    kind, _, rest = source.partition(" ")
    if kind == "given:":
        return [] if rest else ["'given:' says nothing"]
    if kind == "source:":
        return [] if rest and any(word in everything for word in [rest, *rest.split()]) else ["its source is not named"]
    if kind == "cell":
        where, _, words = rest.partition(": ")
        if where not in text_of:
            return [f"there is no cell {where}"]
        if not words and text_of[where].count("\n") > 10:
            return [f"cell {where} shows many lines: say in which by its words, as in 'cell {where}: words'"]
        lines = [line for line in text_of[where].splitlines() if all(word in line.split() for word in words.split())]
        standing = [number for line in lines for number in re.findall(NUMBER, line)]
        near = any(as_shown(float(number.replace(",", "")), literal[0]) for number in standing)
        return [] if near else [f"does not stand in such a line of the output of cell {where}"]
    try:
        value = float(eval(source, dict(NAMES)))
    except Exception as error:
        return [f"its source fails: {type(error).__name__}: {error}"]
    return [] if as_shown(value, literal[0]) else [f"its source gives {value:.6g}"]


def _output_text(cell) -> str:
    """The saved text of a cell's outputs."""
    texts = [output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return "\n".join("".join(text) for text in texts)


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_every_figure_in_the_text_comes_from_somewhere(path):
    assert problems(read_notebook(path)) == []


# ---- the rule itself


def notebook_of(text, figures=None, output="S is 16.8 MB\n"):
    cell = nbformat.v4.new_markdown_cell(text)
    cell.metadata.figures = figures or {}
    code, table = (nbformat.v4.new_code_cell("print()", id=name) for name in "79")
    code.outputs = [nbformat.v4.new_output("stream", text=output)]
    lines = "".join(f"{length} S {16.8 if length == 2048 else length} MB\n" for length in range(2040, 2052))
    table.outputs = [nbformat.v4.new_output("stream", text=lines)]
    return nbformat.v4.new_notebook(cells=[cell, code, table])


@pytest.mark.parametrize(
    "text, figures",
    [
        ("It takes 16.8 MB.", {"16.8 MB": "costs.score_matrix_bytes(1, 1, 2048, 2048, 4) / 1e6"}),
        ("It takes 16.8 MB.", {"16.8 MB": "cell 7"}),
        ("It takes 16.8 MB.", {"16.8 MB": "cell 9: 2048 S"}),
        ("It is 17 times as long.", {"17 times": "costs.mla_pair_flops() / costs.indexer_pair_flops()"}),
        ("About 280,000 operations on 16,384 tokens in tiles of 64 × 64", {"280,000": "costs.mla_pair_flops()"}),
        ("They reached 230 TFLOP/s ([paper](https://arxiv.org/abs/2307.08691))", {"230 TFLOP/s": "source: 2307.08691"}),
        ("It is seventeen or eight times as long.", {"eight times": "64 / 8"}),
        ("About 60 times less", {"60 times": "62.4"}),
        ("See section 3.1, §2.2, `1.5 MB`, $1.5$, CUDA 13.0, chapter 01 and sm_90 with 32 threads.", {}),
    ],
)
def test_figures_with_a_source_pass(text, figures):
    assert problems(notebook_of(text, figures)) == []


@pytest.mark.parametrize(
    "text, figures, words",
    [
        ("It takes 16.8 MB.", {}, "has no source"),
        ("It saves 75 %.", {}, "has no source"),
        ("13 times faster", {}, "has no source"),
        ("278,528 operations", {}, "has no source"),
        ("It costs -5 % or eight times as much.", {}, "'5' has no source"),
        ("It costs -5 % or eight times as much.", {}, "'eight' has no source"),
        ("It costs 17 % and 7 %.", {"7 %": "7"}, "'17' has no source"),
        ("10 times faster", {"10 times": "14.9"}, "gives 14.9"),
        ("It takes 16.9 MB.", {"16.9 MB": "costs.score_matrix_bytes(1, 1, 2048, 2048, 4) / 1e6"}, "gives 16.77"),
        ("It takes 15 MB.", {"15 MB": "cell 7"}, "does not stand in such a line of the output"),
        ("It takes 16.8 MB.", {"16.8 MB": "cell 7: P is"}, "does not stand in such a line of the output"),
        ("It takes 16.8 MB.", {"16.8 MB": "cell 9"}, "say in which by its words"),
        ("It takes 15 MB.", {"15 MB": "cell 8"}, "no cell 8"),
        ("It takes 15 MB.", {"15 MB": "costs.nothing()"}, "fails"),
        ("It takes 15 MB.", {"15 MB": "source: 1234.56789"}, "not named"),
        ("It takes 15 MB.", {"15 MB": "given: fifteen", "16 MB": "cell 7"}, "does not stand in the text"),
    ],
)
def test_the_rule_bites(text, figures, words):
    assert any(words in problem for problem in problems(notebook_of(text, figures)))
