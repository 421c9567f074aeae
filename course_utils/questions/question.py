"""The kinds of questions. The chapters' questions are functions in `sources/` that return one of these kinds.

A source function gets a random generator (`random.Random`), draws its sizes from it, computes the right answer with
`course_utils.costs`, and returns the question. So two learners see different figures, and the same learner the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Literal

RIGHT, WRONG, UNANSWERED = "right", "wrong", "open"  # open: not answered, or not readable as a number


@dataclass(frozen=True)
class Option:
    """One thing to choose, or one statement to judge.

    text: what is chosen. Text of questions is plain, with `code` between backticks.
    why: why it is wrong, or why it is right; shown once it was chosen.
    right: whether it is to be chosen.
    figures: of a `TradeOff`, what stands in its columns, as shown ("16.8 MB").
    """

    text: str
    why: str
    right: bool = False
    figures: tuple[str, ...] = ()


def shuffled(draw: Random, *options: Option) -> tuple[Option, ...]:
    """The options in an order that `draw` chooses."""
    return tuple(draw.sample(options, len(options)))


@dataclass(frozen=True)
class Choice:
    """Exactly one option is right. kind "concept": what is so; "scenario": what to do, or what happened, in a case."""

    prompt: str
    options: tuple[Option, ...]
    read_again: str
    kind: Literal["concept", "scenario"] = "concept"


@dataclass(frozen=True)
class TrueFalse:
    """`statement` holds or not; `why` is shown with either answer."""

    statement: str
    holds: bool
    why: str
    read_again: str
    kind: Literal["true-false"] = "true-false"


@dataclass(frozen=True)
class Votes:
    """Several statements, each of which holds or does not: mark all that hold. Not all and not none do."""

    prompt: str
    statements: tuple[Option, ...]
    read_again: str
    kind: Literal["votes"] = "votes"


@dataclass(frozen=True)
class TradeOff:
    """Options with figures side by side, such as time, memory and error; exactly one is best under the prompt's terms.

    columns: the headings of the options' `figures`, with units.
    """

    prompt: str
    columns: tuple[str, ...]
    options: tuple[Option, ...]
    read_again: str
    kind: Literal["trade-off"] = "trade-off"


@dataclass(frozen=True)
class Mistake:
    """A wrong figure that a known mistake leads to, and a name for the mistake."""

    value: float
    why: str


@dataclass(frozen=True)
class Figure:
    """A number to type.

    value: computed, in `unit`. unit: "MB", "sectors", "" for a bare number.
    tolerance: relative; 0 asks for the exact number.
    why: how it is computed, with the drawn sizes; shown with the right number only, since it gives it away.
    mistakes: wrong figures with a name; none may lie within the tolerance of `value`.
    """

    value: float
    unit: str
    why: str
    tolerance: float = 0.0
    mistakes: tuple[Mistake, ...] = ()


@dataclass(frozen=True)
class Number:
    """One figure."""

    prompt: str
    figure: Figure
    read_again: str
    kind: Literal["number"] = "number"


@dataclass(frozen=True)
class Aggregate:
    """The costs of several parts, and their sum: a figure for each part, in one unit, and one for the total.

    parts: (label, figure) each; the total is computed from them and accepts sums of accepted parts.
    """

    prompt: str
    parts: tuple[tuple[str, Figure], ...]
    read_again: str
    total_label: str = "total"
    kind: Literal["aggregate"] = "aggregate"


@dataclass(frozen=True)
class Grid:
    """A table to fill in: cells, tiles, bytes for given sizes. `cells[row][column]`."""

    prompt: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[Figure, ...], ...]
    read_again: str
    kind: Literal["grid"] = "grid"


Question = Choice | TrueFalse | Votes | TradeOff | Number | Aggregate | Grid
Source = Callable[[Random], Question]  # its name is the question's name, its docstring a title of a few words


@dataclass(frozen=True)
class Item:
    """The remark on one part of a question: an option, a statement, a figure. UNANSWERED: it was not answered."""

    status: str
    said: str


@dataclass(frozen=True)
class Verdict:
    """The verdict on an answer. status: RIGHT only if everything is right; UNANSWERED if something is missing."""

    status: str
    summary: str
    items: tuple[Item, ...]
