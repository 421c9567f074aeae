"""The findings of a launch, each with a button that opens the player at that moment, with both parties.

`findings` watches a call once. What a button shows is recorded when it is first pressed: the block that the finding
names. A page without Python has only what was recorded beforehand (`keep`); js/findings.js runs the player there.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Callable

import ipywidgets
import numpy as np
import traitlets

from course_utils.emulator import Recording, record, sanitize
from course_utils.emulator.pages import FRAME, findings_parts
from course_utils.emulator.sanitizer import Finding
from course_utils.plots import look
from course_utils.toolchain.errors import KernelError
from course_utils.widgets import recorded
from course_utils.widgets.at_work import AtWork
from course_utils.widgets.frame import HERE, SHOWN_DPI, STATE, esm
from course_utils.widgets.player import MOST_STORED, Player, stop_of, without_steps

TOO_LARGE = (
    "The recording is too large for a page without Python: this is its picture. Run the cell to step through it."
)
OPENED = {"short": True, "intoView": True, "reported": True}  # of the player: it stands below the report
NOTHING = "There is nothing to show"


class Watched:
    """What `call()` ran into: `report`, and `failure` where a launch did not come to its end."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._recordings: dict[tuple, Recording] = {}
        self.failure = ""
        with sanitize() as self.report:
            try:
                call()
            except KernelError as error:
                self.failure = str(error)

    def recording(self, finding: Finding) -> Recording:
        """The block that a finding names, in its launch: recorded once. Raises what `record` raises."""
        place = launch, block = place_of(finding)
        if place not in self._recordings:
            self._recordings[place] = record(self._call, block=block, launch=launch)
        return self._recordings[place]

    @property
    def parts(self) -> tuple[str, list[str], str]:
        """The report as HTML: what stands above the findings, a card for each, and what stands below."""
        head, cards, tail = findings_parts(self.report)
        if self.failure:
            tail += f'<pre style="{FRAME}">{html.escape(self.failure)}</pre>'
        return head, cards, tail

    @property
    def html(self) -> str:
        """The report as one page of HTML."""
        head, cards, tail = self.parts
        return "".join([head, *cards, tail])

    def __str__(self) -> str:
        return "\n".join(filter(None, [str(self.report), self.failure]))


def place_of(finding: Finding) -> tuple[int, tuple[int, int, int]]:
    """The launch and the block in which it happens."""
    return finding.launch, finding.block or (0, 0, 0)


def at_finding(meta: dict, data: bytes, finding: Finding) -> tuple[Player, str]:
    """The player of a recording where `finding` happens, and what it shows, in words.

    For a finding without a step: the last step of a launch that stopped, else the nearest line above it that touches
    memory. Raises ValueError for a recording without a step.
    """
    stop = stop_of(meta, finding)
    if stop is None:
        step, words = _without_step(meta, data, finding)
        start = {}
    else:
        step, start = meta["findings"][stop]["step"], {"finding": stop}
        words = f"The player shows line {finding.line}, step {step:,}{_partner(meta, stop, finding)}."
    return Player(meta={**meta, "start": {**OPENED, **start}}, data=data, step=step), words


def _partner(meta: dict, stop: int, finding: Finding) -> str:
    """Where the other party of a finding is."""
    if finding.other_block not in (None, finding.block):
        return f"; the other party is in block {finding.other_block}, which this recording does not have"
    step = meta["findings"][stop]["other_step"]
    return f"; the other party, at line {finding.other_line}, step {step:,}, is marked, too" if step >= 0 else ""


def _without_step(meta: dict, data: bytes, finding: Finding) -> tuple[int, str]:
    """The step that is shown for a finding that has none, and why."""
    steps = recorded.columns(meta, data)["steps.place"]
    if not len(steps):
        raise ValueError(without_steps(meta["kernel"], meta["index"], meta["failure"]))
    if meta["failure"]:
        return len(
            steps
        ) - 1, f"The launch failed before this was recorded. The player shows its last step, {len(steps) - 1:,}."
    places = meta["places"]
    above = [line for file, line, _ in places if file == finding.file and line <= (finding.line or 0)]
    if not above:
        return 0, f"Line {finding.line} has no step of its own. The player shows the first one."
    at = [n for n, (file, line, _) in enumerate(places) if (file, line) == (finding.file, max(above))]
    words = f"Line {finding.line} touches no memory that is recorded, only variables of its thread. The player shows "
    return int(np.flatnonzero(np.isin(steps, at))[0]), f"{words}line {max(above)}, the nearest above it."


class Panel(AtWork):
    """The report with its buttons. The browser sends {"show": number of the finding}."""

    _esm = esm("findings.js")
    _css = (HERE / "widgets.css").read_text(encoding="utf-8")
    meta = traitlets.Dict().tag(sync=True)

    def __init__(self, watched: Watched) -> None:
        head, cards, tail = watched.parts
        names = [f"{n}: {one.tool}, line {one.line}" for n, one in enumerate(watched.report.findings, 1)]
        super().__init__(meta={"head": head, "cards": cards, "tail": tail, "names": names})
        self._watched = watched
        self.on_msg(lambda _widget, message, _buffers: self._asked(message))

    def _asked(self, message: object) -> None:
        """What is no such message is left alone."""
        match message:
            case {"show": int() as number} if 0 <= number < len(self._watched.report.findings):
                finding = self._watched.report.findings[number]
                block = f"block {place_of(finding)[1]} of {finding.kernel}()"
                with self.at_work(f"Recording {block}: this takes a moment.", NOTHING):
                    shown, words = at_finding(*self._watched.recording(finding).packed(), finding)
                    self.play_below(shown)
                    self.status = words


class Findings(ipywidgets.VBox):
    """Made by `findings`: the report with its buttons, and below it the player. `report`: the sanitizer's."""

    def __init__(self, watched: Watched, keep: bool) -> None:
        self._watched, self._keep, self._panel = watched, keep, Panel(watched)
        super().__init__([self._panel, self._panel.below])
        self.report = watched.report

    def _repr_mimebundle_(self, **options: object) -> tuple[dict, dict]:
        bundle = super()._repr_mimebundle_(**options)
        live, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        stored = {"text/html": self._watched.html, "text/plain": str(self._watched)}
        if self._keep and self.report.findings:
            stored[STATE] = self._state()
        return {**live, **stored}, metadata

    def _state(self) -> dict:
        """What a page without Python starts from: recordings without local variables, as long as there is room for
        them, and for each finding where the player opens, or a still picture of it."""
        recordings, stops, data = {}, [], b""
        for finding in self.report.findings:
            place = place_of(finding)
            try:
                meta, packed = self._watched.recording(finding).without_variables().packed()
                shown, words = at_finding(meta, packed, finding)
            except (KernelError, ValueError) as error:
                stops.append({"words": f"{NOTHING}: {error}"})
                continue
            if place not in recordings and len(data) + len(packed) <= MOST_STORED:
                recordings[place] = {**meta, "from": len(data), "to": len(data) + len(packed)}
                data += packed
            if place in recordings:
                number = list(recordings).index(place)
                opened = {"recording": number, "step": shown.step, "start": shown.meta["start"]}
                stops.append({"words": words, **opened})
            else:
                stops.append({"words": f"{words} {TOO_LARGE}", "still": _png(shown)})
        meta = {**self._panel.meta, "recordings": list(recordings.values()), "stops": stops}
        return {"script": "findings.js", "meta": meta, "data": base64.b64encode(data).decode(), "step": 0}


def _png(shown: Player) -> str:
    png, _ = look.png_and_size(shown.static_figure(), SHOWN_DPI)
    return base64.b64encode(png).decode()


def findings(call: Callable[[], object], *, keep: bool = False) -> Findings:
    """What the sanitizer finds in the launches that `call()` makes; each finding has a button, Show, that plays its
    block from that moment on, with both parties marked.

        widgets.findings(lambda: kernel(grid, block, args))

    The call runs on the emulator, once now, and once more for each block that is shown, when its button is first
    pressed. keep: record these blocks at once, so that the buttons work on a page without Python, too; what is larger
    than 4 MB in all is a still picture there. `.report` is the sanitizer's report. A launch that fails is said, with
    what was found before.

    Raises TypeError for what is no call, and what `call()` raises, but for a KernelError.
    """
    if not callable(call):
        raise TypeError(f"call: got {type(call).__name__}, takes a function without arguments that makes launches")
    return Findings(Watched(call), keep)
