"""One letter, one meaning: every letter of a formula stands in docs/notation.md, and what stands there is used."""

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from course_utils.course import CHAPTERS, notebooks_of
from tests.helpers.all_of import all_of
from tests.helpers.notebooks import read_notebook

ROOT = Path(__file__).resolve().parent.parent
SHEET = (ROOT / "docs" / "notation.md").read_text(encoding="utf-8")
NOTEBOOKS = {  # by number: a chapter may have two
    chapter.number: [ROOT / "notebooks" / f"{one.slug}.ipynb" for one in notebooks_of(chapter.number)]
    for chapter in CHAPTERS
}
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
FORMULA = re.compile(r"\$\$.*?\$\$|\$[^$]+?\$", re.DOTALL)
LETTERS_BY_NAME = {"Delta": "Δ", "Theta": "Θ", "ell": "ℓ"}


def letters(formula: str) -> set[str]:
    """The letters of a formula, without subscripts, words and the names of functions."""
    text = re.sub(r"\\(?:text|mathrm|begin|end)\{[^}]*\}", " ", formula)
    text = re.sub(r"\\mathcal\s*\{?L\}?", " ℒ ", text)
    for name, letter in LETTERS_BY_NAME.items():
        text = re.sub(rf"\\{name}(?![a-zA-Z])", f" {letter} ", text)
    text = re.sub(r"\\[a-zA-Z]+", " ", text)
    text = re.sub(r"_(?:\{[^{}]*\}|\w)", " ", text)
    text = re.sub(r"\b[a-z]{3,}\b", " ", text)  # new, old, factor
    return set(re.findall(r"[^\W\d_]", text))


def formulas(markdown: str) -> list[str]:
    return FORMULA.findall(CODE.sub("", markdown))


def rows(heading: str) -> Iterator[list[str]]:
    """The cells of each line of the table below a heading of the sheet."""
    lines = SHEET.split(f"## {heading}\n")[1].split("\n## ")[0].splitlines()
    table = [line for line in lines if line.startswith("|")]
    for line in table[2:]:
        yield [cell.strip() for cell in line.strip("|").split("|")]


def named(cell: str) -> list[str]:
    """The letters that a line of the sheet is about, in its first cell."""
    return [letter for formula in formulas(cell) for letter in sorted(letters(formula))]


MAIN = [(letter, cells) for cells in rows("Letters") for letter in named(cells[0])]
BORROWED = [(letter, cells) for cells in rows("The same letter with a second meaning") for letter in named(cells[0])]
OF_ONE_PLACE = [(letter, cells) for cells in rows("Letters of one place") for letter in named(cells[0])]
SECOND = BORROWED + OF_ONE_PLACE


@functools.cache
def markdown_of(number: str) -> list[str]:
    cells = [cell for path in NOTEBOOKS[number] for cell in read_notebook(path).cells]
    return [cell.source for cell in cells if cell.cell_type == "markdown"]


def unexplained(markdown: list[str], number: str) -> list[str]:
    """The letters of a chapter's formulas that the sheet does not explain for that chapter, each with its formula."""
    known = {letter for letter, _ in MAIN} | {letter for letter, cells in SECOND if cells[1] == number}
    used = ((letter, formula) for text in markdown for formula in formulas(text) for letter in letters(formula))
    return sorted({f"{letter} in {formula}" for letter, formula in used if letter not in known})


def uses(letter: str, number: str) -> bool:
    """Whether a letter stands in a chapter's text, in a formula or as a name in code."""
    text = "\n".join(markdown_of(number))
    in_formulas = any(letter in letters(formula) for formula in formulas(text))
    return in_formulas or bool(re.search(rf"\b{letter}\b", " ".join(CODE.findall(text))))


@pytest.mark.parametrize("number", NOTEBOOKS)
def test_every_letter_of_a_formula_stands_in_the_sheet(number):
    assert unexplained(markdown_of(number), number) == []


def test_each_letter_has_one_line_for_the_course():
    lines: dict[str, set[tuple[str, ...]]] = {}
    for letter, cells in MAIN:
        lines.setdefault(letter, set()).add(tuple(cells))
    subscripted = {"B"}  # B_r and B_c are sizes of tiles, wherever they stand
    assert {letter for letter, of_letter in lines.items() if len(of_letter) > 1} == subscripted


def test_a_borrowed_letter_has_a_lender():
    assert [cells for _, cells in BORROWED if not cells[3] or "ours" in cells[3]] == []


@all_of("meaning", sorted({(letter, cells[1]) for letter, cells in SECOND}))
def test_a_second_meaning_is_really_used_in_its_chapter(meaning):
    letter, number = meaning
    assert uses(letter, number)


@all_of("cells", [cells for cells in rows("Letters") if named(cells[0])])
def test_a_letter_is_used_in_the_chapter_that_introduces_it(cells):
    assert any(uses(letter, cells[3]) for letter in named(cells[0]))


@all_of("path", sorted((ROOT / "kernels").glob("0*/*.cu")))
def test_the_letters_in_a_kernels_shapes_stand_in_the_sheet(path):
    header = re.match(r"(?://.*\n)*", path.read_text(encoding="utf-8"))[0]
    shapes = " ".join(re.findall(r"\[([\w, ]+)\]", header))
    known = {letter for letter, _ in MAIN} | set(
        re.findall(r"`(\w+)`", "".join(c[0] for c in rows("Names in kernels")))
    )
    assert {letter for letter in re.findall(r"\b[A-Z]\b", shapes)} <= known


DECLARED = re.compile(
    r"\b(?:int|float|unsigned|bool|scalar_t|float[24]|u?int[24]|long long|auto|double|half|class|typename)"
    r"[\s&*(]+(?:const\s+)?([A-Za-z]\b(?:\s*(?:=[^,;()]*|\[[^\]]*\])*\s*,\s*[A-Za-z]\b)*)"
)
CODE_ROWS = [*rows("Names in kernels"), *rows("Letters that count in kernels")]
OF_CODE = {name for cells in CODE_ROWS for name in re.findall(r"`(\w)`", " ".join(cells))}


def declared(code: str) -> set[str]:
    """The variables and parameters of one letter."""
    found = DECLARED.findall(re.sub(r"//.*", "", code))
    return {
        letter for names in found for letter in re.findall(r"(?<![\w.])[A-Za-z](?!\w)", re.sub("=[^,]*", "", names))
    }


@all_of("path", sorted((ROOT / "kernels").rglob("*.cu*")))
def test_a_letter_that_a_kernel_declares_stands_in_the_sheet(path):
    """A second meaning holds in its own chapter only; a header is for several."""
    number = path.relative_to(ROOT / "kernels").parts[0][:2]
    second = {letter for letter, cells in SECOND if number in (cells[1], "in")}
    assert declared(path.read_text(encoding="utf-8")) - {letter for letter, _ in MAIN} - second - OF_CODE == set()


TRANSPOSED = {"St", "Pt", "dPt", "dSt"}


def wrong_side(code: str) -> list[str]:
    """Tiles of scores or their gradients whose name does not say on which side the queries are: K Qᵀ and V dOᵀ have
    keys for rows and a t in their names, Q Kᵀ and dO Vᵀ have none; a function has tiles of one kind only."""
    found = []
    for function in re.sub(r"//.*", "", code).split("\n}\n"):
        for tile, left in re.findall(r"\bmultiply_transposed\((\w+), (?:\w+\.)?(\w+)", function):
            if (left in ("K", "V")) != (tile in TRANSPOSED):
                found.append(f"{tile} is a product with {left} on the left")
        words = set(re.findall(r"(?<![\w.])d?[SP]t?(?!\w)", function))
        if words & TRANSPOSED:
            found += [f"{word} beside {min(words & TRANSPOSED)}" for word in sorted(words - TRANSPOSED)]
    return found


@pytest.mark.parametrize(
    "path",
    [path for path in sorted((ROOT / "kernels").rglob("*.cu*")) if "backward" in path.stem or "gradient" in path.stem],
    ids=lambda path: f"{path.parent.name}-{path.stem}",
)
def test_a_transposed_tile_is_called_so(path):
    assert wrong_side(path.read_text(encoding="utf-8")) == []


# ---- the rule itself


def test_a_tile_with_the_name_of_its_transpose_is_seen():
    assert wrong_side("multiply_transposed(S, keys.K[d], at(Q));") == ["S is a product with K on the left"]
    assert wrong_side("multiply_transposed(dPt, tile.dO, tile.V);") == ["dPt is a product with dO on the left"]
    assert wrong_side("float P[4], St[4];") == ["P beside St"]
    assert wrong_side("multiply_transposed(St, tile.K, tile.Q);\n}\nmultiply_transposed(S, q, at(K));") == []


def test_declared_letters_are_found():
    assert declared("int a = 2, b; float (&c)[3]; // int q\nauto* f; for (int n = 0, m[2];;) x") == set("abcfnm")


@pytest.mark.parametrize(
    "formula, expected",
    [
        (r"$O = \mathrm{softmax}(QK^\top / \sqrt d)\,V$", set("OQKdV")),
        (r"$e^{m_{old} - m}$", set("em")),
        (r"$B_c = \lceil M/4d \rceil$", set("BMd")),
        (r"$\Delta = \mathrm{rowsum}(dO \circ O)$", set("ΔdO")),
        (r"$\mathcal L^I$", set("ℒI")),
        (r"$m_i^{new} = \ell_i$", set("mℓ")),
        (r"$\text{scale} \cdot x$", set("x")),
    ],
)
def test_letters_are_found_without_subscripts_and_words(formula, expected):
    assert letters(formula) == expected


def test_an_unknown_letter_is_named_with_its_formula():
    assert unexplained(["Take $Z = 2$, and `Z` again."], "00") == ["Z in $Z = 2$"]


def test_a_second_meaning_holds_in_its_own_chapter_only():
    assert unexplained([r"$\Theta(L)$"], "02") == []
    assert unexplained([r"$\Theta(L)$"], "03") == [r"Θ in $\Theta(L)$"]


# ---- units

UNITS = ("docs/**/*.md", "*.md", "course_utils/**/*.py", "kernels/**/*.cu*", "exercises/**/*.cu", "solutions/**/*.cu")


def wrong_units(text: str) -> list[str]:
    """KB says neither 1000 nor 1024 bytes; and what is shifted by 10, 20 or 30 bits is KiB, MiB or GiB."""
    shifted = re.compile(r"(?:<<|\*\*) ?(?:10|20|30)\b")
    lines = (line for line in text.splitlines() if re.search(r"\b[KMG]B\b", line))
    return [line for line in lines if re.search(r"\bKB\b", line) or shifted.search(line)]


def test_units_are_those_that_the_sheet_names():
    found = {}
    for path in (path for pattern in UNITS for path in ROOT.glob(pattern)):
        if path != ROOT / "docs" / "notation.md" and (lines := wrong_units(path.read_text(encoding="utf-8"))):
            found[path.relative_to(ROOT).as_posix()] = lines
    for path in (path for paths in NOTEBOOKS.values() for path in paths):
        cells = read_notebook(path).cells
        said = [str(output.get("text", "")) for cell in cells for output in cell.get("outputs", ())]
        if lines := wrong_units("\n".join([*(cell.source for cell in cells), *said])):
            found[path.name] = lines
    assert found == {}


def test_a_wrong_unit_is_seen():
    assert wrong_units("48 KB of tiles") and wrong_units("f'{n / 2**20} MB'") and wrong_units("MB = n >> 1, 1 << 20")
    assert wrong_units("48 KiB\n3 MB\n5 MiB = 5 << 20") == []
