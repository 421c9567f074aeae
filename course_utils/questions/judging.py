"""Judges an answer and says why it is right or wrong. An answer is data that JSON can hold:

Choice, TradeOff  the index of the chosen option; None if none is
TrueFalse         True or False; None
Votes             the indices of the marked statements
Number            the typed text
Aggregate         the typed texts of the parts and, last, of the total
Grid              a list of typed texts for each row
"""

from __future__ import annotations

from collections.abc import Sequence

from course_utils.questions.numbers import UnreadableNumber, agrees, how_far_off, read_number, write_number
from course_utils.questions.question import (
    RIGHT,
    UNANSWERED,
    WRONG,
    Aggregate,
    Choice,
    Figure,
    Grid,
    Item,
    Mistake,
    Number,
    Question,
    TradeOff,
    TrueFalse,
    Verdict,
    Votes,
)

NEAR_A_MISTAKE = 0.01  # a typed figure is rounded, also a wrong one
_SILENT = Item(UNANSWERED, "")


def judge(question: Question, answer: object) -> Verdict:
    """The verdict on `answer`, with an item for each part of the question: option, statement, True and False, figure.

    The verdict gives nothing away: an item that was not answered has no remark. Raises ValueError for an answer that
    does not have the form of the question's kind.
    """
    match question:
        case Choice() | TradeOff():
            return _one_of(question, answer)
        case TrueFalse():
            return _true_or_false(question, answer)
        case Votes():
            return _votes(question, answer)
        case Number():
            return _summed_up(question, [_figure(question.figure, _text(answer))])
        case Aggregate():
            return _aggregate(question, answer)
        case Grid():
            texts = _texts_of_grid(question, answer)
            return _summed_up(question, [_figure(*pair) for pair in zip(figures(question), texts, strict=True)])


def right_answer(question: Question) -> object:
    """The answer that is judged right, in the form in which it would be given."""
    match question:
        case Choice() | TradeOff():
            return [option.right for option in question.options].index(True)
        case TrueFalse():
            return question.holds
        case Votes():
            return [index for index, statement in enumerate(question.statements) if statement.right]
        case Number():
            return _written(question.figure)
        case Aggregate():
            return [_written(figure) for figure in figures(question)]
        case Grid():
            return [[_written(figure) for figure in row] for row in question.cells]


def explained(question: Question) -> tuple[Item, ...]:
    """The answer with every explanation: one item for each part, RIGHT where an option or a statement is."""
    match question:
        case Choice() | TradeOff():
            return tuple(Item(RIGHT if option.right else WRONG, option.why) for option in question.options)
        case Votes():
            return tuple(Item(RIGHT if one.right else WRONG, one.why) for one in question.statements)
        case TrueFalse():
            return tuple(
                Item(RIGHT, question.why) if value == question.holds else Item(WRONG, "") for value in (True, False)
            )
    return tuple(Item(RIGHT, f"{shown(figure)}. {figure.why}") for figure in figures(question))


def figures(question: Number | Aggregate | Grid) -> tuple[Figure, ...]:
    """The figures to type in order, the total of an aggregate last."""
    match question:
        case Number():
            return (question.figure,)
        case Aggregate():
            return (*(figure for _, figure in question.parts), _total(question))
        case Grid():
            return tuple(figure for row in question.cells for figure in row)


def shown(figure: Figure) -> str:
    """The right number with its unit: "4 sectors", "1 sector", "1.5 ms"."""
    written, unit = _written(figure), figure.unit
    if written == "1" and len(unit) > 2 and unit.endswith("s"):
        unit = unit.removesuffix("s")
    return f"{written} {unit}".strip()


def _written(figure: Figure) -> str:
    return write_number(figure.value, figure.tolerance)


def _total(question: Aggregate) -> Figure:
    """The sum of the parts. Its tolerance is the sum of the parts' tolerances."""
    parts = [figure for _, figure in question.parts]
    value = sum(figure.value for figure in parts)
    most = sum(figure.tolerance * abs(figure.value) for figure in parts)
    terms = " + ".join(_written(figure) for figure in parts)
    return Figure(value, parts[0].unit, f"It is the sum of the parts: {terms}.", most / abs(value) if value else 0.0)


# ---- one option


def _one_of(question: Choice | TradeOff, answer: object) -> Verdict:
    count = len(question.options)
    if answer is None:
        return Verdict(UNANSWERED, "Nothing is chosen yet.", (_SILENT,) * count)
    chosen = _index(answer, count)
    option = question.options[chosen]
    items = [_SILENT] * count
    items[chosen] = Item(RIGHT if option.right else WRONG, option.why)
    return _verdict(question, items[chosen].status, "", items)


def _true_or_false(question: TrueFalse, answer: object) -> Verdict:
    if answer is None:
        return Verdict(UNANSWERED, "Nothing is chosen yet.", (_SILENT, _SILENT))
    if not isinstance(answer, bool):
        raise ValueError(f"answer: got {answer!r}, takes True or False")
    item = Item(RIGHT if answer == question.holds else WRONG, question.why)
    said = f"The statement {'holds' if question.holds else 'does not hold'}."
    return _verdict(question, item.status, said, [item, _SILENT] if answer else [_SILENT, item])


# ---- several statements


def _votes(question: Votes, answer: object) -> Verdict:
    statements = question.statements
    marked = {_index(one, len(statements)) for one in _list(answer)}
    if not marked:
        return Verdict(UNANSWERED, "Nothing is marked yet; at least one statement holds.", (_SILENT,) * len(statements))
    holding = {index for index, one in enumerate(statements) if one.right}
    if marked == holding:
        said = f"You marked exactly the {_count(len(holding), 'statement')} that {_verb(len(holding), 'hold')}."
        # For a statement that does not hold, "right" says that it was rightly left out.
        return _verdict(question, RIGHT, said, [Item(RIGHT, one.why) for one in statements])
    found, wrong, missing = len(marked & holding), len(marked - holding), len(holding - marked)
    said = f"{found} of the {_count(len(holding), 'statement')} that {_verb(len(holding), 'hold')} {_be(found)} marked"
    said += f", {missing} {_be(missing)} still missing." if missing else "."
    if wrong:
        said += f" {wrong} that you marked {_verb(wrong, 'do')} not hold."
    items = [
        _SILENT if index not in marked else Item(RIGHT, "") if one.right else Item(WRONG, one.why)
        for index, one in enumerate(statements)
    ]
    return _verdict(question, WRONG, said, items)


# ---- typed figures


def _figure(figure: Figure, text: str) -> Item:
    """The verdict on one typed figure."""
    if not text.strip():
        return _SILENT
    try:
        number = read_number(text, figure.unit)
    except UnreadableNumber as error:
        return Item(UNANSWERED, str(error))
    if agrees(number, figure.value, figure.tolerance):
        return Item(RIGHT, f"{shown(figure)}. {figure.why}")
    named = [one for one in figure.mistakes if _is_near(number, one, figure)]
    if named:
        return Item(WRONG, min(named, key=lambda one: abs(one.value - number)).why)
    return Item(WRONG, how_far_off(number, figure.value, figure.unit))


def _is_near(number: float, mistake: Mistake, figure: Figure) -> bool:
    """Whether `number` is the figure of this mistake, and not nearer to the right one."""
    most = max(figure.tolerance, NEAR_A_MISTAKE) * abs(mistake.value)
    return abs(number - mistake.value) <= min(most, abs(mistake.value - figure.value) / 2)


def _aggregate(question: Aggregate, answer: object) -> Verdict:
    texts = [_text(one) for one in _list(answer, len(question.parts) + 1)]
    items = [_figure(*pair) for pair in zip(figures(question), texts, strict=True)]
    if items[-1].status == WRONG and any(one.status == WRONG for one in items[:-1]):
        parts = _read_all(question, texts[:-1])
        total = read_number(texts[-1], question.parts[0][1].unit)
        if parts and agrees(total, sum(parts), NEAR_A_MISTAKE / 2):
            said = "It is the sum of the parts that you typed: it will be right when they are."
            items[-1] = Item(WRONG, said)
    return _summed_up(question, items)


def _read_all(question: Aggregate, texts: Sequence[str]) -> list[float]:
    """The typed parts as numbers; None if one of them cannot be read."""
    try:
        return [read_number(text, figure.unit) for (_, figure), text in zip(question.parts, texts, strict=True)]
    except UnreadableNumber:
        return []


def _summed_up(question: Question, items: list[Item]) -> Verdict:
    """The verdict on typed figures: UNANSWERED if one is missing."""
    count = {status: sum(item.status == status for item in items) for status in (RIGHT, WRONG, UNANSWERED)}
    unreadable = sum(item.status == UNANSWERED and bool(item.said) for item in items)
    if not count[UNANSWERED]:
        several = f"{count[RIGHT]} of {len(items)} figures {_be(count[RIGHT])} right." if len(items) > 1 else ""
        return _verdict(question, WRONG if count[WRONG] else RIGHT, several if count[WRONG] else "", items)
    if len(items) == 1:
        summary = "The figure cannot be read." if unreadable else "Nothing is typed yet."
    else:
        parts = [f"{count[UNANSWERED] - unreadable} of {len(items)} figures missing"] * (count[UNANSWERED] > unreadable)
        parts += [f"{unreadable} that cannot be read"] * (unreadable > 0)
        parts += [f"{count[RIGHT]} right"] * (count[RIGHT] > 0) + [f"{count[WRONG]} not right"] * (count[WRONG] > 0)
        summary = f"Not complete: {', '.join(parts)}."
    return Verdict(UNANSWERED, summary, tuple(items))


# ---- words, and the form of answers


def _verdict(question: Question, status: str, said: str, items: Sequence[Item]) -> Verdict:
    words = ["Right." if status == RIGHT else "Not right.", said]
    if status == WRONG:
        words.append(f"Read again: “{question.read_again}”.")
    return Verdict(status, " ".join(filter(None, words)), tuple(items))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _verb(number: int, verb: str) -> str:
    return verb if number != 1 else f"{verb}es" if verb.endswith("o") else f"{verb}s"


def _be(number: int) -> str:
    return "is" if number == 1 else "are"


def _index(value: object, count: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < count:
        raise ValueError(f"answer: got {value!r}, takes an index from 0 to {count - 1}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"answer: got {value!r}, takes the typed text")
    return value


def _list(value: object, length: int | None = None) -> list:
    if not isinstance(value, list) or length not in (None, len(value)):
        raise ValueError(f"answer: got {value!r}, takes a list{f' of {length}' if length is not None else ''}")
    return value


def _texts_of_grid(question: Grid, answer: object) -> list[str]:
    rows = _list(answer, len(question.rows))
    return [_text(text) for row in rows for text in _list(row, len(question.columns))]
