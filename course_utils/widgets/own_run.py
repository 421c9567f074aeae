"""The launch player on a learner's own kernel, opened at the moment that the grade is about."""

from __future__ import annotations

from course_utils.grading.replay import Replay
from course_utils.widgets.player import Player


def own_run(found: Replay) -> Player:
    """Opens at the finding, with both parties, or at the last write of a wrong number, with that number chosen; where
    nobody writes it, at the last step; where there is no such number, at the first step, or at the last one of a launch
    that stopped."""
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
    if found.step is None:
        return f"{where} It opens at its end, with a wrong number of {name} chosen: no block that was tried writes one."
    instead = (
        f": {found.got:.5g} in the place of {found.expected:.5g}".replace("-", "−") if found.got is not None else ""
    )
    return f"{where} It opens where a wrong number of {name} is written last{instead}."
