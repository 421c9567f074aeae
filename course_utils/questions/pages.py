"""Questions where no widget runs: as HTML with the answers folded away, and as plain text.

The HTML also holds what a script needs to show the form in its place; the site has that script.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from course_utils.questions.key import to_script
from course_utils.questions.question import Grid, Number, Question, TradeOff, TrueFalse
from course_utils.questions.sheet import Asked, form, labels, prompt, shown_answer


def seed_line(seed: int) -> str:
    """The line that says where the figures come from."""
    return f"The figures are drawn with seed {seed}: other learners have other seeds, and see other figures."


def marked(text: str) -> str:
    """`text` as HTML: escaped, with what stands between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text)).replace("\n", "<br>")


def to_html(questions: Sequence[Asked], seed: int) -> str:
    """All questions, each with its answer below it in a <details>."""
    parts = "\n".join(_one_html(asked) for asked in questions)
    script = to_script(questions, seed_line(seed))
    return f'<div class="ak-questions-page"><p>{seed_line(seed)}</p>\n{parts}\n{script}</div>'


def to_text(questions: Sequence[Asked], seed: int) -> str:
    """All questions, then all answers."""
    asked = [_one_text(one) for one in questions]
    answers = [f"{one.number}. {_answer_text(one.question)}" for one in questions]
    return "\n\n".join([seed_line(seed), *asked, "Answers", *answers])


def _one_html(asked: Asked) -> str:
    one, sheet = asked.question, form(asked)
    if isinstance(one, TrueFalse):
        body = ""  # the heading asks "true or false?"
    elif isinstance(one, TradeOff):
        rows = [[option.text, *option.figures] for option in one.options]
        body = _table("options", ["option", *one.columns], rows)
    elif isinstance(one, Grid):
        blank = [["…" + f" {figure.unit}".rstrip() for figure in row] for row in one.cells]
        rows = [[name, *cells] for name, cells in zip(one.rows, blank, strict=True)]
        body = _table("to fill in", ["", *one.columns], rows)
    elif isinstance(one, Number):
        body = f"<p>Answer: … {html.escape(one.figure.unit)}</p>"
    elif "units" in sheet:
        named = zip(labels(one), sheet["units"], strict=True)
        body = _list(f"{marked(name)}: … {html.escape(unit)}" for name, unit in named)
    else:
        body = _list(marked(label) for label in labels(one))
    return (
        f'<div class="ak-question" data-kind="{one.kind}" data-id="{html.escape(asked.id)}">'
        f"<h3>{asked.number}. {marked(asked.title)} <small>({sheet['kind_in_words']})</small></h3>"
        f"<p>{marked(prompt(one))}</p>{body}"
        f"<details><summary>Answer to question {asked.number}</summary>{_answer_html(one)}</details></div>"
    )


def _answer_html(asked: Question) -> str:
    return _list(
        f"{marked(name)} <strong>{words}</strong> {marked(said)}" if words else f"{marked(name)} {marked(said)}"
        for name, words, said in _answers(asked)
    )


def _answers(asked: Question) -> list[tuple[str, str, str]]:
    """Name, word and explanation of each part that has a remark; the word of a figure is empty."""
    parts = zip(labels(asked), shown_answer(asked), strict=True)
    return [
        (
            name if name.endswith((".", "?", "!")) else f"{name}:",
            one["words"] and f"{one['sign']} {one['words']}.",
            one["said"],
        )
        for name, one in parts
        if one["said"]
    ]


def _list(items: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>"


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f'<th scope="col">{marked(cell)}</th>' if cell else "<td></td>" for cell in head)
    lines = [
        f'<tr><th scope="row">{marked(row[0])}</th>{"".join(f"<td>{marked(cell)}</td>" for cell in row[1:])}</tr>'
        for row in rows
    ]
    return f"<table><caption>{caption}</caption><thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _one_text(asked: Asked) -> str:
    one, sheet = asked.question, form(asked)
    lines = [f"{asked.number}. {asked.title} ({sheet['kind_in_words']})", prompt(one)]
    if isinstance(one, TradeOff):
        for option in one.options:
            figures = zip(one.columns, option.figures, strict=True)
            lines.append(f"  - {option.text} ({', '.join(f'{column}: {value}' for column, value in figures)})")
    elif "units" in sheet:
        named = zip(labels(one), sheet["units"], strict=True)
        lines += [f"  - {name}: … {unit}".rstrip() for name, unit in named]
    else:
        lines += [f"  - {label}" for label in labels(one)]
    return "\n".join(lines)


def _answer_text(asked: Question) -> str:
    return "\n".join(" ".join(filter(None, parts)) for parts in _answers(asked))
