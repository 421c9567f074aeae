"""The text below a guess does not answer it: the answer stands in what the guess holds back, or is folded."""

import json
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

from course_utils.course import CHAPTERS
from tests.helpers.all_of import all_of
from tests.helpers.notebooks import read_notebook

ROOT = Path(__file__).resolve().parents[2]
GUESS = re.compile(r'data-guess="([^"]*)"')
FOLDED = re.compile(r"(?s)<details>\s*<summary>(.*?)</summary>.*?</details>")
HIDDEN = re.compile(r"\]\([^)]*\)|<[^>]+>")  # addresses and tags
SIZES = {
    **dict.fromkeys(("nothing", "none", "zero"), 0),
    **{word: n for n, word in enumerate("one two three four five six seven eight nine ten eleven twelve".split(), 1)},
    **{"half": 1 / 2, "a third": 1 / 3, "a quarter": 1 / 4, "two thirds": 2 / 3, "three quarters": 3 / 4},
    **{"twice": 2, "double": 2, "doubles": 2, "treble": 3, "trebles": 3},
}
FIGURE = re.compile(
    r"(?<![\w.,])(?:(?P<part>\d+|one) (?:in|of) (?P<whole>\d+)|(?P<digits>\d[\d,]*(?:\.\d+)?)"
    rf"|(?P<word>{'|'.join(sorted(SIZES, key=len, reverse=True))}))(?![\w.,]*\d)(?!\w)",
    re.IGNORECASE,
)
RANGE = re.compile(r"(?<![\w.,])(\d+\.\d+) ?(?:to|and|–|-) ?(\d+\.\d+)")
OFF = 0.05  # of a figure that is rounded in words
WORDS_TO_UNIT = 2  # that may stand between a figure and its unit


def spoiler(asked: dict, text: str) -> str:
    """What in the next text answers the guess, "" if nothing does. asked: as a stored guess has it.

    A word of the options answers it if no other option stands beside it; "yes" and "no" do where they are the whole
    answer. A number does if it is bold, has decimals as the value has, or stands before the unit.
    """
    text = HIDDEN.sub(" ", FOLDED.sub(r"\1", text))
    value = asked["value"]
    if value is None:
        return ""
    if isinstance(value, str):
        options = [str(option) for option in asked["form"]["options"]]
        found = {option: match[0] for option in options if (match := _option(option).search(text))}
        return found[value] if list(found) == [value] else ""
    return next((said for said, close in _figures(asked, text) if close), "")


def _option(option: str) -> re.Pattern:
    if option in ("yes", "no"):
        return re.compile(rf"(?:^|[.:!?*]\s*){option.capitalize()}\b(?=[,.:;!*])")
    word = re.escape(option.removesuffix("'s"))
    return re.compile(rf"(?<!\w){word}(?!\w)", re.IGNORECASE)


def _figures(asked: dict, text: str) -> Iterator[tuple[str, bool]]:
    """Each figure of the text, and whether it answers the question."""
    value, unit = asked["value"], asked["unit"]
    bold = [match.span() for match in re.finditer(r"\*\*[^*]+\*\*", text)]
    for match in RANGE.finditer(text):
        yield match[0], float(match[1]) <= value <= float(match[2])
    for match in FIGURE.finditer(text):
        is_bold = any(start < match.start() < end for start, end in bold)
        if match["part"]:
            part = 1 if match["part"].lower() == "one" else int(match["part"])
            share = 100 * part / max(int(match["whole"]), 1)
            yield match[0], unit == "%" and abs(share - value) <= 0.5 + OFF * value
            continue
        digits = match["digits"] or ""
        number = float(digits.replace(",", "")) if digits else SIZES[match["word"].lower()]
        if 0 < number < 1 and unit == "%":
            number *= 100
            near = OFF * value
        else:
            near = 10.0 ** -len(digits.partition(".")[2]) if "." in digits else OFF * abs(value)
        says_so = is_bold or "." in digits or _before_unit(text[match.end() :], unit, match["word"] or "")
        yield match[0], says_so and abs(number - value) <= near


def _before_unit(rest: str, unit: str, word: str) -> bool:
    """Whether a figure that `rest` follows has the unit; "twice" and "nothing" have it in themselves."""
    name = re.sub(r"^of [\d,]+ ", "", unit).partition(" ")[0].rstrip("s")  # "of 20 runs" counts runs
    if word.lower() in ("twice", "double", "doubles", "treble", "trebles", "half"):
        return name in ("time", "%")
    if word.lower() in ("nothing", "none"):
        return rest.startswith((".", ",", ":"))
    following = re.match(rf"\s*(?:[\w-]+\s+){{0,{WORDS_TO_UNIT}}}", rest)
    return bool(name) and name in rest[: following.end() + len(name)]


def guesses() -> Iterator[tuple[str, list[str], str]]:
    """Each guess of the notebooks: where it is, what is stored of it, and the next text up to its next heading."""
    for chapter in CHAPTERS:
        cells = read_notebook(ROOT / "notebooks" / f"{chapter.slug}.ipynb").cells
        for n, cell in enumerate(cells):
            if cell.cell_type != "code" or "widgets.guess(" not in cell.source:
                continue
            pages = "".join(output.get("data", {}).get("text/html", "") for output in cell.outputs)
            text = next((one.source for one in cells[n + 1 :] if one.cell_type == "markdown"), "")
            yield f"{chapter.slug}, cell {n}", GUESS.findall(pages), re.split(r"(?m)^#+ ", text)[0]


@all_of("guess", list(guesses()))
def test_the_text_below_a_guess_does_not_answer_it(guess):
    where, stored, text = guess
    assert len(stored) == 1, f"{where}: was saved without its guess: run make outputs"
    asked = json.loads(unescape(stored[0]))
    said = spoiler(asked, text)
    assert not said, f'{where}: "{asked["question"]}" is answered by "{said}" below; fold it ("After your guess")'


def number(value, unit):
    return {"value": value, "unit": unit, "form": {"kind": "number"}}


def choice(value, *options):
    return {"value": value, "unit": "", "form": {"kind": "choice", "options": options}}


TOOLS = "memcheck", "racecheck", "initcheck", "synccheck"


@all_of(
    "case",
    [
        (number(0, "findings"), "**Nothing.** A sanitizer knows no formula."),
        (number(0, "findings"), "Nothing: a sanitizer knows no formula."),
        (number(21, "tiles"), "The kernel visits 21 tiles now."),
        (number(21, "tiles"), "Now **21** are visited."),
        (number(2, "graphs"), "There are two graphs."),
        (number(0.427, "times as fast"), "It has 0.43 times the speed of plain PyTorch."),
        (number(1.16, "times as fast"), "Far from twice: 1.13 to 1.25."),
        (number(2.04, "times as long"), "In turns it takes twice as long."),
        (number(12.4, "times as long"), "Stride 32 takes about 12 times as long."),
        (number(12.5, "%"), "Less than 1 in 8 is possible."),
        (number(51.2, "%"), "About half of the pairs are kept."),
        (number(34.359, "GB"), "$S$ takes 34.4 GB."),
        (number(65536, "tokens"), "At 65,536 tokens dense ends."),
        (choice("racecheck", *TOOLS), "**racecheck** names it."),
        (choice("racecheck", *TOOLS), "It is `racecheck` that names it."),
        (choice("SDPA's", "SDPA's", "ours"), "SDPA wins: its host path is short."),
        (choice("no", "yes", "no"), "No: the fastest step has few warps."),
        (choice("right", "right", "wrong"), "<details><summary>The scores are right</summary>Why.</details>"),
    ],
)
def test_a_planted_answer_is_found(case):
    assert spoiler(*case)


@all_of(
    "case",
    [
        (number(0, "findings"), "Nothing here depends on the machine."),
        (number(21, "tiles"), "Chapter 21 has more. <details><summary>Why</summary>21 tiles hold a pair.</details>"),
        (number(4.58, "times"), "The datasheet promises 4.8 TB/s."),
        (number(8.41, "%"), "Positions with the same remainder modulo 8 see one another."),
        (number(1, "times as many"), "[One link](https://a.b/1) of 3 words; one kernel reads once."),
        (choice("racecheck", *TOOLS), "`memcheck` and `racecheck` look at other things."),
        (choice("wrong", "right", "wrong"), "So it may be wrong on one machine and right on the other."),
        (choice("no", "yes", "no"), "No kernel has both, and no block waits."),
        (number(None, "ns"), "It takes 338 ns."),
    ],
)
def test_what_only_looks_like_an_answer_is_left(case):
    assert not spoiler(*case)
