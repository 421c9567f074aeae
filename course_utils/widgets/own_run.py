"""The launch player on a learner's own kernel, opened at the moment that their grade is about."""

from __future__ import annotations

from course_utils.grading.replay import Replay
from course_utils.widgets.player import Player, player


def own_run(found: Replay) -> Player:
    """Opens at the finding, with both parties, or at the last write of a wrong number, with that number chosen; where
    there is neither, at the first step, or at the last one of a launch that stopped."""
    meta, data = found.recording.packed()
    if found.finding is not None:
        return player(meta, data, at=found.recording.findings[found.finding])
    if found.step is None:
        return Player(meta=meta, data=data, step=found.recording.steps - 1 if found.recording.failure else 0)
    start = {"cell": {"array": found.array, "offset": found.offset}, "array": found.array, "looksAtCell": True}
    return Player(meta={**meta, "start": start}, data=data, step=found.step)


def words_of(found: Replay) -> str:
    """What is seen, in a sentence or two."""
    recording = found.recording
    where = f"Your kernel in block {recording.index}, {found.part}: {found.case}."
    if found.finding is not None:
        return f"{where} It opens at a finding: {recording.findings[found.finding].message}."
    if recording.failure:
        return f"{where} It did not come to its end: {recording.failure}"
    if found.step is None or found.array is None:
        return where
    return f"{where} It opens where a wrong number of {recording.arrays[found.array].name} is written last."
