"""The launch player on a learner's own kernel, opened at the moment that the grade is about: the button *Watch it run*
of an exercise's check and of a puzzle's verdict."""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets
import traitlets

from course_utils.grading.replay import Replay
from course_utils.widgets.at_work import AtWork
from course_utils.widgets.frame import HERE, esm
from course_utils.widgets.player import Player, without_steps


def own_run(found: Replay) -> Player:
    """Opens at the finding, with both parties, or at the last write of a wrong number, with that number chosen; where
    nobody writes it, at the last step; where no number is wrong, at the last write of the output's first number.
    Where there is no such number, it opens at the first step, or at the last one of a launch that stopped."""
    recording, step = found.recording, found.step or 0
    meta, data = recording.packed()
    start: dict = {"intoView": True}
    if found.finding is not None:
        step = recording.findings[found.finding].step
        start["finding"] = found.finding
    elif found.array is not None:
        step = recording.steps - 1 if found.step is None else found.step
        cell = {"array": found.array, "offset": found.offset}
        start |= {"cell": cell, "array": found.array, "looksAtCell": True}
    elif recording.failure:
        step = recording.steps - 1
    return Player(meta={**meta, "start": start}, data=data, step=step)


def words_of(found: Replay) -> str:
    """What the player shows, in a sentence or two."""
    recording = found.recording
    where = f"Below: your kernel, part “{found.part}”, case “{found.case}”, block {recording.index}."
    if found.finding is not None:
        return f"{where} It opens at a finding: {recording.findings[found.finding].message}."
    if recording.failure:
        return f"{where} It opens where the launch stopped: {recording.failure}"
    if found.array is None:
        return where
    name = recording.arrays[found.array].name
    if found.expected is None and found.step is not None:
        return f"{where} Its numbers are right. It opens where the first number of {name} gets its value."
    if found.step is None:
        return f"{where} It opens at its end, with a wrong number of {name} chosen: no block that was tried writes one."
    instead = (
        f": {found.got:.5g} in the place of {found.expected:.5g}".replace("-", "−") if found.got is not None else ""
    )
    return f"{where} It opens where a wrong number of {name} is written last{instead}."


class WatchesRun(AtWork):
    """A widget with the button: `played` counts its clicks."""

    played = traitlets.Int(0).tag(sync=True)

    def __init__(self, find: Callable[[], Replay | None], **traits: object) -> None:
        """find: records the run; None where the kernel cannot be launched, ValueError where a recording cannot hold
        the run."""
        super().__init__(**traits)
        self._find = find
        self.observe(self._play, "played")

    def _play(self, _: object) -> None:
        with self.at_work("Recording your kernel: this takes a few seconds.", "Your kernel was not recorded"):
            self.play_below(None)
            try:
                found = self._find()
            except ValueError as error:  # as `record` says it
                self.status = f"Nothing to play, since the run is too long: {error}"
                return
            if found is None:
                self.status = "Your kernel cannot be launched here: the verdict says why."
                return
            run = found.recording
            if not run.steps:
                self.status = f"Nothing to play: {without_steps(run.kernel, run.index, run.failure)}"
                return
            self.play_below(own_run(found))
            self.status = words_of(found)


class Button(WatchesRun):
    """The button alone."""

    _esm = esm("watch_it_run.js")
    _css = (HERE / "widgets.css").read_text(encoding="utf-8")


class WatchIt(ipywidgets.VBox):
    """The button for a verdict that stands on the page already, and the player below it. A page without Python
    shows neither."""

    def __init__(self, find: Callable[[], Replay | None]) -> None:
        self.button = Button(find)
        super().__init__([self.button, self.button.below])

    def _repr_mimebundle_(self, **options: object) -> tuple[dict, dict]:
        bundle = super()._repr_mimebundle_(**options)
        live, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        return {**live, "text/html": "<!-- Watch it run: in JupyterLab -->", "text/plain": ""}, metadata
