"""The layout of a question: the text of each part, and the remarks beside a part after an answer.

A sheet is plain data for JSON. A question's sheet does not give its answer away. `remarks` and `shown_answer` do; they
are used only after an answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from course_utils.questions.catalog import question, title
from course_utils.questions.judging import explained, figures
from course_utils.questions.question import (
    RIGHT,
    UNANSWERED,
    WRONG,
    Aggregate,
    Choice,
    Grid,
    Number,
    Question,
    TradeOff,
    TrueFalse,
    Verdict,
    Votes,
)

KIND_IN_WORDS = {
    "concept": "choose one",
    "scenario": "a case: choose one",
    "true-false": "true or false?",
    "votes": "mark all that hold",
    "trade-off": "weigh up, and choose one",
    "number": "type the number",
    "aggregate": "add up",
    "grid": "fill in the table",
}
_SIGNS = {RIGHT: "✓", WRONG: "✗", UNANSWERED: "?"}


@dataclass(frozen=True)
class Asked:
    """One question as it is asked: its id, its number on the page from 1, its title, and the drawn question."""

    id: str
    number: int
    title: str
    question: Question


def draw(question_ids: tuple[str, ...], seed: int) -> tuple[Asked, ...]:
    """The questions of these ids with the sizes that `seed` draws. Raises LookupError for an unknown id."""
    return tuple(Asked(one, number, title(one), question(one, seed)) for number, one in enumerate(question_ids, 1))


def prompt(asked: Question) -> str:
    """The prompt, or the statement to judge."""
    return asked.statement if isinstance(asked, TrueFalse) else asked.prompt


def labels(asked: Question) -> tuple[str, ...]:
    """The label of each part: option, statement, or name of the figure."""
    match asked:
        case Choice() | TradeOff():
            return tuple(option.text for option in asked.options)
        case Votes():
            return tuple(statement.text for statement in asked.statements)
        case TrueFalse():
            return ("True", "False")
        case Number():
            return ("Answer",)
        case Aggregate():
            return (*(label for label, _ in asked.parts), asked.total_label)
        case Grid():
            return tuple(f"{row}, {column}" for row in asked.rows for column in asked.columns)


def form(asked: Asked) -> dict:
    """What the browser needs to draw the question, without its answer."""
    one = asked.question
    sheet = {
        "id": asked.id,
        "number": asked.number,
        "title": asked.title,
        "kind": one.kind,
        "kind_in_words": KIND_IN_WORDS[one.kind],
        "prompt": prompt(one),
        "labels": labels(one),
    }
    if isinstance(one, TradeOff):
        sheet |= {"columns": one.columns, "figures": [option.figures for option in one.options]}
    if isinstance(one, (Number, Aggregate, Grid)):
        sheet["units"] = [figure.unit for figure in figures(one)]
    if isinstance(one, Grid):
        sheet |= {"rows": one.rows, "columns": one.columns}
    return sheet


def remarks(asked: Question, verdict: Verdict) -> list[dict]:
    """The remark beside each part after the verdict: its status, a sign, a word or two, and the explanation."""
    said = zip(verdict.items, _words(asked, verdict), strict=True)
    return [
        {"status": item.status, "sign": _SIGNS[item.status] if words else "", "words": words, "said": item.said}
        for item, words in said
    ]


def _words(asked: Question, verdict: Verdict) -> list[str]:
    """The words beside the sign of each part; empty where there is nothing to say."""
    words = {RIGHT: "right", WRONG: "not right", UNANSWERED: ""}
    if isinstance(asked, (Number, Aggregate, Grid)):
        return [words[item.status] or ("not readable" if item.said else "") for item in verdict.items]
    if not isinstance(asked, Votes):
        return [words[item.status] for item in verdict.items]
    holds = ["holds" if statement.right else "does not hold" for statement in asked.statements]
    if verdict.status == RIGHT:
        return [word if word == "holds" else "rightly left out" for word in holds]
    return ["" if item.status == UNANSWERED else word for item, word in zip(verdict.items, holds, strict=True)]


def shown_answer(asked: Question) -> list[dict]:
    """The answer and every explanation, written beside the parts as `remarks` are."""
    if isinstance(asked, Votes):
        words = {RIGHT: "holds", WRONG: "does not hold"}
    elif isinstance(asked, (Number, Aggregate, Grid)):
        words = {RIGHT: ""}  # the explanation begins with the figure
    else:
        words = {RIGHT: "the right one", WRONG: "not right"}
    return [
        {"status": item.status, "sign": _SIGNS[item.status], "words": words[item.status], "said": item.said}
        for item in explained(asked)
    ]
