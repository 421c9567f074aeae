"""`ask`: the questions of a chapter in a notebook, judged by Python as they are answered.

In Jupyter it is a widget; the browser gets the questions first, and the remarks on an answer once there is one.
Where no widget runs, a page shows the questions with their answers folded away; outside Jupyter they are printed.
"""

from __future__ import annotations

from datetime import datetime

import anywidget
import traitlets
from IPython import get_ipython
from IPython.display import display

from course_utils import progress
from course_utils.course import chapter
from course_utils.questions.catalog import question_ids
from course_utils.questions.judging import judge
from course_utils.questions.pages import seed_line, to_html, to_text
from course_utils.questions.question import RIGHT, UNANSWERED
from course_utils.questions.sheet import Asked, draw, form, remarks, shown_answer
from course_utils.widgets.frame import HERE, esm

SEED_WITHOUT_PROGRESS = 0


def ask(slug: str, *names: str, seed: int | None = None) -> None:
    """Asks the questions of the chapter `slug`, or only the named ones, and stores the answers.

    seed: of the figures; None takes the learner's own. Raises LookupError for an unknown chapter or question.
    """
    ids = tuple(f"{chapter(slug).home}/{name}" for name in names) or question_ids(slug)
    note = ""
    if seed is None:
        try:
            seed = progress.learner_seed()
        except progress.ProgressError as error:
            seed, note = SEED_WITHOUT_PROGRESS, f"Your own seed is not known: {error}."
    questions = draw(ids, seed)
    if not questions:
        raise LookupError(f"slug: got {slug!r}, which has no questions yet")
    if get_ipython() is None:
        print(to_text(questions, seed))
    else:
        display(Panel(questions, seed, note))


def _pages(questions: tuple[Asked, ...], seed: int) -> dict[str, str]:
    """The questions where no widget runs, by media type."""
    return {"text/html": to_html(questions, seed), "text/plain": to_text(questions, seed)}


def _earlier(questions: tuple[Asked, ...]) -> tuple[dict[str, dict], str]:
    """For each question answered before: when it was first right, and whether the last answer was wrong. And a note."""
    try:
        answered = {one.question: one for one in progress.overview().questions}
    except progress.ProgressError as error:
        return {}, f"What you answered before is not known: {error}."
    known = [answered[asked.id] for asked in questions if asked.id in answered]
    return {
        one.question: {"right_at": _day(one.right_at) if one.right_at else "", "tried": not one.last_right}
        for one in known
    }, ""


def _day(moment: datetime) -> str:
    local = moment.astimezone()
    return f"{local.day} {local:%B %Y}"


class Panel(anywidget.AnyWidget):
    """The widget. The browser sends {id, action, answer}, action "check" or "show"; `replies` holds the last reply
    to each question, with the `turn` of the message that it replies to.
    """

    _esm = esm("questions.js")
    _css = (HERE / "widgets.css").read_text(encoding="utf-8")
    sheet = traitlets.Dict().tag(sync=True)  # the questions; never changes
    answers = traitlets.Dict().tag(sync=True)  # what was typed so far, by question, also unchecked
    replies = traitlets.Dict().tag(sync=True)

    def __init__(self, questions: tuple[Asked, ...], seed: int, note: str = "") -> None:
        earlier, unknown = _earlier(questions)
        notes = [line for line in (seed_line(seed), note, unknown) if line]
        super().__init__(
            sheet={
                "notes": notes,
                "questions": [form(asked) | {"earlier": earlier.get(asked.id, {})} for asked in questions],
            }
        )
        self._questions, self._seed = questions, seed
        self._by_id = {asked.id: asked for asked in questions}
        self.on_msg(lambda _widget, message, _buffers: self._answer(message))

    def _answer(self, message: object) -> None:
        """Judge or show one answer, keep it, and reply. What is no such message gets no reply."""
        match message:
            case {"id": str(name), "action": "check" | "show" as action, "answer": answer, "turn": int(turn)}:
                asked = self._by_id.get(name)
            case _:
                return
        if asked is None:
            return
        try:
            reply = self._shown(asked) if action == "show" else self._judged(asked, answer)
        except ValueError as error:  # an answer of another form: of a page that is older than the question
            reply = {"status": UNANSWERED, "summary": f"The answer cannot be read: {error}", "items": []}
        reply |= {"turn": turn, "answer": answer, "shown": action == "show"}
        self.replies = {**self.replies, asked.id: reply}

    def _judged(self, asked: Asked, answer: object) -> dict:
        verdict = judge(asked.question, answer)
        note = "" if verdict.status == UNANSWERED else self._keep(asked, verdict.status == RIGHT, answer)
        summary = " ".join(filter(None, (verdict.summary, note)))
        return {"status": verdict.status, "summary": summary, "items": remarks(asked.question, verdict)}

    def _shown(self, asked: Asked) -> dict:
        note = self._keep(asked, False, {"shown": True})
        summary = " ".join(filter(None, ("The answer is shown. This counts as not answered right.", note)))
        return {"status": UNANSWERED, "summary": summary, "items": shown_answer(asked.question)}

    def _keep(self, asked: Asked, right: bool, answer: object) -> str:
        """Record the answer; what to say if it could not be kept."""
        try:
            progress.record_answer(asked.id, right, answer, self._seed)
        except progress.ProgressError as error:
            return f"Not kept: {error}."
        return ""

    def _repr_mimebundle_(self, **_: object) -> tuple[dict, dict]:
        live, metadata = super()._repr_mimebundle_()
        return {**live, **_pages(self._questions, self._seed)}, metadata
