"""The data by which a page without Python judges answers: js/judging.js takes it, and says what `judging` says."""

from __future__ import annotations

import json
from collections.abc import Sequence

from course_utils.questions.judging import figures, shown
from course_utils.questions.question import (
    Aggregate,
    Choice,
    Figure,
    Grid,
    Number,
    Question,
    TradeOff,
    TrueFalse,
    Votes,
)
from course_utils.questions.sheet import Asked, form, shown_answer


def key(asked: Question) -> dict:
    """The right answers, tolerances, named mistakes and explanations of a question, as data for JSON."""
    told = {"kind": asked.kind, "read_again": asked.read_again, "answer": shown_answer(asked)}
    match asked:
        case Choice() | TradeOff():
            return told | {"options": [{"right": one.right, "why": one.why} for one in asked.options]}
        case Votes():
            return told | {"options": [{"right": one.right, "why": one.why} for one in asked.statements]}
        case TrueFalse():
            return told | {"holds": asked.holds, "why": asked.why}
        case Number() | Aggregate() | Grid():
            return told | {"figures": [_figure(one) for one in figures(asked)]}


def _figure(figure: Figure) -> dict:
    return {
        "value": figure.value,
        "unit": figure.unit,
        "tolerance": figure.tolerance,
        "right": f"{shown(figure)}. {figure.why}",
        "mistakes": [{"value": one.value, "why": one.why} for one in figure.mistakes],
    }


def to_script(questions: Sequence[Asked], note: str) -> str:
    """An invisible HTML element with the questions' forms and keys, for a script of the page. note: shown above the
    questions."""
    data = {
        "notes": [note],
        "questions": [form(asked) | {"earlier": {}} for asked in questions],
        "keys": {asked.id: key(asked.question) for asked in questions},
    }
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    return f'<script type="application/json" class="ak-questions-data">{text}</script>'
