"""The learner's progress in a notebook: the card at the end of a chapter, and the card of the whole course.

In Jupyter it is a widget that reads the store again and exports it. Outside Jupyter it is printed.
"""

from __future__ import annotations

from datetime import datetime
from html import escape

import anywidget
import traitlets
from IPython import get_ipython
from IPython.display import display

from course_utils.course import chapter
from course_utils.progress import pages, store
from course_utils.progress.achievements import achievements
from course_utils.progress.state import chapter_state, chapter_states, next_steps
from course_utils.progress.store import Overview, ProgressError
from course_utils.widgets.frame import HERE, esm

EXPORTED = "attention-kernels-progress.json"
_COMMAND = ".venv/bin/python -m course_utils progress --json FILE"


class Card:
    """A chapter's card, or the course's if `slug` is "": `title`, `summary`, `page` (HTML) and `text`.

    before: the progress before this run of the chapter; later achievements are new.
    """

    def __init__(self, slug: str, before: Overview = Overview()) -> None:  # noqa: B008  (frozen)
        self.slug, self._known = slug, _known(before)
        self.title = pages.chapter_title(chapter_state(slug, Overview())) if slug else pages.COURSE_TITLE
        self.summary = self.page = self.text = ""
        self.read()

    def read(self) -> None:
        """Reads the progress. If it cannot be read, `summary` says why, and the rest stays."""
        try:
            overview = store.overview()
        except ProgressError as error:
            self.summary = f"Nothing to show: {error}"
            self.text = f"{self.title}\n{self.summary}"
            return
        reached, states = achievements(overview), chapter_states(overview)
        steps, guesses = next_steps(states, self.slug), pages.guesses_in_words(overview)
        if self.slug:
            state = chapter_state(self.slug, overview)
            new = [one for one in reached if one.reached and one.name not in self._known]
            self.summary = pages.chapter_summary(state, new)
            self.page = pages.chapter_page(state, new, steps)
            self.text = pages.chapter_text(state, new, steps, [guesses])
        else:
            self.summary = pages.course_summary(states, reached)
            self.page = pages.course_page(states, reached, steps)
            self.text = pages.course_text(states, reached, steps, [guesses])
        self.summary = f"{self.summary} {guesses}".strip()

    @property
    def html(self) -> str:
        """For a viewer that runs no widget."""
        return f"<p><strong>{escape(self.title)}</strong><br>{escape(self.summary)}</p>{self.page}"


def _known(before: Overview) -> frozenset[str]:
    """The achievements on a chapter's last card."""
    if not before.chapters:
        return frozenset()
    shown_at = max(one.last_at for one in before.chapters)
    return frozenset(one.name for one in achievements(before) if one.when and one.when <= shown_at)


class Panel(anywidget.AnyWidget):
    """The widget: buttons, the state in words, and the card as HTML."""

    _esm = esm("progress_card.js")
    _css = (HERE / "widgets.css").read_text(encoding="utf-8")
    title = traitlets.Unicode().tag(sync=True)
    status = traitlets.Unicode().tag(sync=True)
    page = traitlets.Unicode().tag(sync=True)

    def __init__(self, card: Card, note: str = "") -> None:
        super().__init__(title=card.title)
        self._card = card
        self._show(note)
        self.on_msg(self._asked)

    def _show(self, note: str) -> None:
        self.status, self.page = "\n".join(filter(None, (self._card.summary, note))), self._card.page

    def _asked(self, _: object, message: object, __: object) -> None:
        match message:
            case {"asked": "refresh"}:
                self._card.read()
                self._show(f"Read again at {datetime.now():%H:%M:%S}.")
            case {"asked": "export"}:
                self._export()

    def _export(self) -> None:
        try:
            self.send({"file": EXPORTED, "content": store.export()})
        except ProgressError as error:
            self._show(f"Not exported: {error}")
        else:
            self._show(f"Everything that is kept is in your downloads, {EXPORTED}. The same: {_COMMAND}")

    def _repr_mimebundle_(self, **_: object) -> tuple[dict, dict]:
        live, metadata = super()._repr_mimebundle_()
        return {**live, "text/html": self._card.html, "text/plain": self._card.text}, metadata


def finish_chapter(slug: str) -> None:
    """Keep that this chapter was run to its end, and show its card: the last cell of a chapter.

    Raises LookupError for a chapter that does not exist. A store that cannot be written is said, and raises nothing:
    the chapter does not depend on it.
    """
    before, note = Overview(), ""
    chapter(slug)
    try:
        before = store.overview()
        store.record_finished(slug)
    except ProgressError as error:
        note = f"Not kept: {error}"
    _show(Card(slug, before), note)


def show_progress() -> None:
    """Show how far the learner is in the whole course. A store that cannot be read is said."""
    _show(Card(""), "")


def _show(card: Card, note: str) -> None:
    if get_ipython() is None:
        print("\n".join(filter(None, (card.text, note))))
    else:
        display(Panel(card, note))
