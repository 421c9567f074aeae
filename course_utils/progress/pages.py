"""A learner's progress as HTML and as plain text: the card of one chapter, and the card of the whole course.

The HTML has no styles of its own: the page around it brings them, widgets.css in the widget.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape

from course_utils.progress.achievements import Achievement
from course_utils.progress.links import href
from course_utils.progress.state import (
    QUESTIONS_HEADING,
    ChapterState,
    Step,
    counted,
    exercise_notebook,
    notebook,
)
from course_utils.progress.store import Overview, Standing
from course_utils.questions import catalog
from course_utils.tables import aligned

NOT_YET, NONE = "not yet", "none"
COLUMNS = 80  # of plain text
DONE = "Every chapter, question and exercise is done."


def day(date: datetime) -> str:
    """A date in the learner's time zone: "2026-11-22"."""
    return date.astimezone().strftime("%Y-%m-%d")


# ---- one chapter


def chapter_title(state: ChapterState) -> str:
    """ "Chapter 02 · FlashAttention, minimal"."""
    return f"Chapter {state.chapter.number} · {state.chapter.title}"


def chapter_summary(state: ChapterState, new: Sequence[Achievement]) -> str:
    """The chapter's state in a few sentences, which a screen reader reads aloud."""
    done = [f"Run to its end: {_run(state)}."]
    if state.questions:
        done.append(f"{state.questions_right} of {counted(len(state.questions), 'question')} right.")
    if state.exercises:
        done.append(f"{state.exercises_done} of {counted(len(state.exercises), 'exercise')} done.")
    if new:
        done.append(f"New: {', '.join(one.name for one in new)}.")
    return " ".join(done)


def chapter_page(state: ChapterState, new: Sequence[Achievement], steps: Sequence[Step]) -> str:
    """What comes next, a chapter's questions and exercises, and the achievements that are new."""
    rows = [_row("Run to its end", _run(state))]
    if state.questions:
        rows.append(_row("Questions right", _bar("questions right", state.questions_right, len(state.questions))))
        if state.open_questions:
            titles = "".join(f"<li>{escape(catalog.title(one))}</li>" for one in state.open_questions)
            section = _link(QUESTIONS_HEADING, notebook(state.chapter.slug), QUESTIONS_HEADING)
            rows.append(_row("Open questions", f"<ul>{titles}</ul>Above, in the section {section}."))
    for one, standing in state.exercises.items():
        link = _link(one.split("/")[1], exercise_notebook(one))
        rows.append(_row(f"Exercise {link}", _exercise_bar(one, standing)))
    table = f'<table class="ak-course ak-chapter"><tbody>{"".join(rows)}</tbody></table>'
    reached = [f"<strong>{escape(one.name)}</strong>: {escape(one.description)}" for one in new]
    return _steps(steps) + table + _list("New achievements", reached)


def chapter_text(
    state: ChapterState, new: Sequence[Achievement], steps: Sequence[Step], details: Sequence[str] = ()
) -> str:
    """The chapter's page as plain text. details: more lines, after the exercises."""
    lines = [chapter_title(state), chapter_summary(state, new), "", *_next_lines(steps)]
    lines += _block("Open questions", (f"{catalog.title(one)} ({one})" for one in state.open_questions))
    lines += _block("Exercises", (f"{one}: {points(standing)}" for one, standing in state.exercises.items()))
    lines += details
    lines += _block("New achievements", (f"{one.name}: {one.description}" for one in new))
    return "\n".join(lines)


def guesses_in_words(overview: Overview) -> str:
    """How many figures were guessed, and how many within a factor of two at the first guess; "" without guesses."""
    if not overview.guesses:
        return ""
    return f"Guesses: {len(overview.guesses)}, within a factor of two: {sum(one.close for one in overview.guesses)}."


def points(standing: Standing | None) -> str:
    """The points of an exercise's best attempt: "12 of 20 points"."""
    return f"{standing.best.earned} of {standing.best.points} points" if standing else "not graded yet"


# ---- the whole course

COURSE_TITLE = "The course so far"


def course_summary(states: Sequence[ChapterState], reached: Sequence[Achievement]) -> str:
    """The course's state in two sentences, which a screen reader reads aloud."""
    run, of_chapters, right, of_questions, done, of_exercises = _totals(states)
    return (
        f"{run} of {counted(of_chapters, 'chapter')} run to the end, {right} of {counted(of_questions, 'question')} "
        f"right, {done} of {counted(of_exercises, 'exercise')} done. "
        f"{sum(one.reached for one in reached)} of {counted(len(reached), 'achievement')}."
    )


def course_page(states: Sequence[ChapterState], reached: Sequence[Achievement], steps: Sequence[Step]) -> str:
    """What comes next, every chapter with its questions and exercises, and every achievement."""
    rows = []
    for state in states:
        title = f"{state.chapter.number} · {state.chapter.title}"
        bars = (
            _bar(f"chapter {state.chapter.number}, questions right", state.questions_right, len(state.questions)),
            _bar(f"chapter {state.chapter.number}, exercises done", state.exercises_done, len(state.exercises)),
        )
        rows.append(_row(_link(title, notebook(state.chapter.slug)), _run(state), *bars))
    head = "".join(f'<th scope="col">{name}</th>' for name in ("Chapter", "Run to its end", "Questions", "Exercises"))
    table = f'<table class="ak-course"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    return _steps(steps) + table + _achievements(reached)


def course_text(
    states: Sequence[ChapterState],
    reached: Sequence[Achievement],
    steps: Sequence[Step],
    details: Sequence[str] = (),
) -> str:
    """The course's page as plain text. details: more lines, after the table of the chapters."""
    table = [("chapter", "run to its end", "questions", "exercises")]
    for state in states:
        right = _share(state.questions_right, len(state.questions))
        done = _share(state.exercises_done, len(state.exercises))
        table.append((f"{state.chapter.number} · {state.chapter.title}", _run(state), right, done))
    lines = [*_next_lines(steps), "", aligned(table), ""]
    lines += [textwrap.fill(course_summary(states, reached), COLUMNS), *details]
    lines += _block("Achievements", (f"{one.name} ({day(one.when)}): {one.description}" for one in reached if one.when))
    open_ones = (f"{one.name} ({one.progress}): {one.description}" for one in reached if not one.reached)
    lines += _block("To be reached", open_ones)
    return "\n".join(lines)


def _totals(states: Sequence[ChapterState]) -> tuple[int, ...]:
    return (
        sum(state.finished is not None for state in states),
        len(states),
        sum(state.questions_right for state in states),
        sum(len(state.questions) for state in states),
        sum(state.exercises_done for state in states),
        sum(len(state.exercises) for state in states),
    )


# ---- pieces


def _run(state: ChapterState) -> str:
    return day(state.finished.first_at) if state.finished else NOT_YET


def _share(done: int, of: int) -> str:
    return f"{done} of {of}" if of else NONE


def _block(heading: str, lines: Iterable[str]) -> list[str]:
    """A heading and its lines, long ones wrapped; nothing if there are no lines."""
    wrapped = textwrap.TextWrapper(
        COLUMNS, initial_indent="  ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    found = [wrapped.fill(line) for line in lines]
    return ["", f"{heading}:", *found] if found else []


def _next_lines(steps: Sequence[Step]) -> list[str]:
    return _block("Next", (f"{step.words}: {step.path}" for step in steps))[1:] or [DONE]


def _row(heading: str, *cells: str) -> str:
    return f'<tr><th scope="row">{heading}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def _bar(label: str, done: int, of: int, words: str = "") -> str:
    """A bar, and its meaning in words."""
    if not of:
        return NONE
    bar = f'<progress max="{of}" value="{min(done, of)}" aria-label="{escape(label)}"></progress>'
    return f'{bar} <span class="ak-number">{words or _share(done, of)}</span>'


def _exercise_bar(exercise_id: str, standing: Standing | None) -> str:
    if standing is None:
        return points(None)
    return _bar(f"points of {exercise_id}", standing.best.earned, standing.best.points, points(standing))


def _link(words: str, path: str, heading: str = "") -> str:
    target = href(path, heading)
    return f'<a href="{escape(target)}">{escape(words)}</a>' if target else escape(words)


def _list(heading: str, items: Sequence[str]) -> str:
    return f"<h3>{heading}</h3><ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>" if items else ""


def _steps(steps: Sequence[Step]) -> str:
    if not steps:
        return f"<p>{DONE}</p>"
    return _list("Next", [f"{escape(step.words)}: {_link(step.path, step.path, step.heading)}" for step in steps])


def _achievements(reached: Sequence[Achievement]) -> str:
    rows = []
    for one in sorted(reached, key=lambda one: not one.reached):
        said = f"✓ {day(one.when)}" if one.when else _bar(one.name, one.done, one.of) if one.of else NOT_YET
        rows.append(_row(escape(one.name), escape(one.description), said))
    head = "".join(f'<th scope="col">{name}</th>' for name in ("Achievement", "What for", "Reached"))
    table = f'<table class="ak-course ak-achievements"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody>'
    return f"<h3>Achievements</h3>{table}</table>"
