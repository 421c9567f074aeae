"""`guess`: holds back what a cell shows until the reader has guessed its figure, or skipped the guess.

    with widgets.guess("How many sectors do the three accesses touch together?", unit="sectors") as held:
        print(...)  # printed text, tables and pictures are held back
        held.value = 37

In Jupyter the question is a widget, and all that follows happens in the browser; Python only keeps the guess. Where no
widget runs (GitHub, the stored notebook) the answer is folded; the site makes the same box of that page. Outside
Jupyter the block runs as if nothing stood around it. A guess never waits: all cells run through.

The question stands in the box and not in the text above. A cell that begins with the block is folded; code that helps
to guess, and a long measurement, stand above it. The plain text of the answer is what `nbval-check-output` compares, so
such a block shows no picture; `alt` in the cell's metadata describes pictures that are held back. The question is the
name of the guess in the learner's progress.

Opened again, the box has the earlier guess in it, and still hides the result: who comes back recalls more by comparing
once more than by reading it, and one press of Enter is enough.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

import anywidget
import traitlets
from IPython import get_ipython
from IPython.core.displaypub import DisplayPublisher
from IPython.display import display

from course_utils import progress
from course_utils.plots import look
from course_utils.tables import figure
from course_utils.widgets.frame import HERE, esm

Value = float | str | None
_UNSET = object()


class Held:
    """The value that the guess is compared with: the block sets `value`, a number or one of the options. None: there is
    no such figure on this machine."""

    value: Value = _UNSET


@dataclass(frozen=True)
class _Asked:
    """A question as the browser and the stored page get it. form: {"kind": "number"}, or "slider" with `low` and
    `high`, or "choice" with `options`; words: the value with its unit, "" if there is none."""

    question: str
    unit: str
    form: dict
    value: Value
    words: str

    @property
    def found(self) -> str:
        """The answer where no widget runs: "Found: 37 sectors."."""
        return f"Found: {self.words}." if self.words else "No such figure was found here."


@contextlib.contextmanager
def guess(
    question: str,
    unit: str = "",
    *,
    low: float | None = None,
    high: float | None = None,
    options: Sequence[float | str] = (),
) -> Iterator[Held]:
    """Holds back what the block shows until `question` is answered by a guess, which is compared with `held.value`.

    unit: stands behind the figures ("GB", "times as slow"). The guess is typed; low, high: it is chosen by a slider
    between these; options: it is one of these. A live widget in the block becomes a still picture. Raises ValueError if
    the block sets no `held.value`, or one that is no finite number and no option; what the block raises comes
    through, after what it had shown.
    """
    form = _form(low, high, tuple(options))
    held, shell = Held(), get_ipython()
    if shell is None:
        print(question)
        yield held
        print(_asked(question, unit, form, held).found)
        return
    shown: list[dict] = []
    try:
        with _capture(shell, shown):
            yield held
        asked = _asked(question, unit, form, held)
    except BaseException:
        for bundle in shown:
            if bundle.keys() == {"text/plain"}:
                print(bundle["text/plain"], end="")
            else:
                display(bundle, raw=True)
        raise
    display(Panel(asked, shown))


def _form(low: float | None, high: float | None, options: tuple) -> dict:
    """How a guess is given. Raises ValueError for a slider without an end, and for one with options."""
    if (low is None) != (high is None) or (low is not None and (options or low >= high)):
        raise ValueError(f"low, high, options: got {low}, {high}, {options}; takes both ends of a slider, or options")
    if options:
        return {"kind": "choice", "options": [_plain(option) for option in options]}
    return {"kind": "number"} if low is None else {"kind": "slider", "low": low, "high": high}


def _asked(question: str, unit: str, form: dict, held: Held) -> _Asked:
    """The question with what the block has set. Raises ValueError if that is no figure and no option."""
    value = _value(held, form)
    words = "" if value is None else value if isinstance(value, str) else f"{figure(value)} {unit}".strip()
    return _Asked(question, unit, form, value, words)


def _value(held: Held, form: dict) -> Value:
    """The block's value, as JSON holds it."""
    value = held.value
    if value is _UNSET:
        raise ValueError("held.value: not set; the block sets what the guess is compared with, or None")
    value = _plain(value)
    if value is None or value in form.get("options", ()):
        return value
    if form["kind"] == "choice":
        raise ValueError(f"held.value: got {value!r}, takes one of {form['options']}")
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"held.value: got {value!r}, takes a finite number")
    return float(f"{value:.6g}") if isinstance(value, float) else value  # the same on every machine


def _plain(value: object) -> object:
    """A number of NumPy or torch as a Python number."""
    return value.item() if hasattr(value, "item") else value


# ---- what a block shows


class _Publisher(DisplayPublisher):
    """Collects displayed data in a list instead of showing them."""

    def __init__(self, shell: object, shown: list[dict]) -> None:
        super().__init__(parent=shell)
        self._shown = shown

    def publish(self, data: dict, metadata: dict | None = None, *_: object, **__: object) -> None:
        size = (metadata or {}).get("image/png", {})
        self._shown.append(dict(data) | {"width": size["width"]} if "width" in size else dict(data))

    def clear_output(self, wait: bool = False) -> None:
        self._shown.clear()


class _Printed(io.TextIOBase):
    """Collects printed text in the same list; consecutive texts are one piece."""

    def __init__(self, shown: list[dict]) -> None:
        self._shown = shown

    def write(self, text: str) -> int:
        if self._shown and self._shown[-1].keys() == {"text/plain"}:
            self._shown[-1]["text/plain"] += text
        elif text:
            self._shown.append({"text/plain": text})
        return len(text)


@contextlib.contextmanager
def _capture(shell: object, shown: list[dict]) -> Iterator[None]:
    """Puts what the block prints, displays and draws into `shown`, in order, each as data by media type."""
    publisher, shell.display_pub = shell.display_pub, _Publisher(shell, shown)
    try:
        with contextlib.redirect_stdout(_Printed(shown)):
            yield
            inline = sys.modules.get("matplotlib_inline.backend_inline")
            if inline:  # else figures would be shown at the end of the cell, in the open
                inline.flush_figures()
    finally:
        shell.display_pub = publisher


def _html(bundle: dict, live: bool = False) -> str:
    """One piece of what was shown, as HTML. live: in a widget, where SVG follows the theme; a page keeps PNG, as GitHub
    shows it (plots/look.py)."""
    if "text/html" in bundle:
        return f"<div>{bundle['text/html']}</div>"
    if "image/svg+xml" in bundle and (live or "image/png" not in bundle):
        return _picture("svg+xml", bundle["image/svg+xml"].encode(), "")
    if png := bundle.get("image/png"):
        width = f' width="{bundle["width"]}"' if "width" in bundle else ""
        return _picture("png", look.small_png(png if isinstance(png, bytes) else base64.b64decode(png)), width)
    return f"<pre>{escape(bundle.get('text/plain', '').rstrip())}</pre>"


def _picture(kind: str, data: bytes, width: str) -> str:
    return f'<div><img alt="" src="data:image/{kind};base64,{base64.b64encode(data).decode()}"{width}></div>'


def _bundle(asked: _Asked, shown: Sequence[dict]) -> dict[str, str]:
    """The output where no widget runs, by media type. The site's script reads `data-guess`."""
    plain = [bundle.get("text/plain", "").rstrip("\n") for bundle in shown]
    answer = f"<p><strong>{escape(asked.found)}</strong></p>" + "".join(map(_html, shown))
    page = (
        f'<div data-guess="{escape(json.dumps(vars(asked), ensure_ascii=False))}"><p>{escape(asked.question)}</p>'
        f"<details><summary>Show the answer</summary>{answer}</details></div>"
    )
    return {"text/html": page, "text/plain": "\n".join([asked.question, *filter(None, plain), asked.found])}


class Panel(anywidget.AnyWidget):
    """The widget. asked, held (HTML): never change; guess: the last one, `stage` "open", "compared" or "skipped".
    The browser sends {"guessed": guess} with each comparison.
    """

    _esm = esm("guesses.js")
    _css = "\n".join((HERE / name).read_text(encoding="utf-8") for name in ("widgets.css", "guesses.css"))
    asked = traitlets.Dict().tag(sync=True)
    held = traitlets.Unicode().tag(sync=True)
    guess = traitlets.Any(None).tag(sync=True)
    stage = traitlets.Unicode("open").tag(sync=True)
    note = traitlets.Unicode().tag(sync=True)

    def __init__(self, asked: _Asked, shown: Sequence[dict]) -> None:
        try:
            earlier = next((one.last for one in progress.overview().guesses if one.asked == asked.question), None)
        except progress.ProgressError:
            earlier = None  # the page says so when the guess is kept
        super().__init__(asked=vars(asked), held="".join(_html(one, live=True) for one in shown), guess=earlier)
        self._bundle = _bundle(asked, shown)
        self.on_msg(lambda _widget, message, _buffers: self._guessed(message))

    def _guessed(self, message: object) -> None:
        """Keep a guess. What is no such message is left alone."""
        match message:
            case {"guessed": str() | int() | float() as guessed}:
                try:
                    progress.record_guess(self.asked["question"], guessed, self.asked["value"])
                except progress.ProgressError as error:
                    self.note = f"Not kept: {error}."

    def _repr_mimebundle_(self, **_: object) -> tuple[dict, dict]:
        live, metadata = super()._repr_mimebundle_()
        return {**live, **self._bundle}, metadata
