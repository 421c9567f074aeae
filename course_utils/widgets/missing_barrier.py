"""A game: a kernel has lost a barrier; step through its recording, and mark the place where it is missing.

js/barrier.js judges a mark as `judge` does here, and plays the recording with the player's own parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from course_utils.widgets import player
from course_utils.widgets.frame import HERE, Frame

# What races, by its kind; {a} and {b} are the two lines, {x} and {y} their steps.
RACES = {
    "read after write": "{a} writes {array} at step {x}, and {b} reads it in another thread at step {y}",
    "write after read": "{a} reads {array} at step {x}, and {b} writes over it in another thread at step {y}",
    "write after write": "{a} and {b} write the same bytes of {array} in different threads, at steps {x} and {y}",
    "read before copy": "{b} reads {array} at step {y}, and the copy that {a} began at step {x} has not come",
}
HANDS = {
    "read after write": "line {line} writes {array}, and line {then_line} reads it",
    "write after read": "line {line} reads {array}, and line {then_line} writes over it",
    "write after write": "line {line} writes {array}, and line {then_line} writes it again",
}


def judge(level: Mapping[str, Any], place: int) -> dict[str, Any]:
    """The verdict on a mark: the barrier is missing after line `place` of the kernel. kind: "right", "close" (the race
    passes this place, too), "ordered", "nothing" or "outside"; text, in words; steps: those that the text names.

    level: of `course_utils.chapters.missing_barrier.levels()`. Raises ValueError for a place below 0.
    """
    if place < 0:
        raise ValueError(f"place: got {place}, takes the number of a line, or 0 for the place before the first")
    race, (first, last) = level["race"], level["lines"]
    if place in level["places"]:
        own = (
            f" In the course {level['barrier']} stands after line {level['place']}." if place != level["place"] else ""
        )
        text = f"Right. {_raced(race)}, with nothing between.{own} {level['lesson']}"
        return {"kind": "right", "text": text, "steps": [race["first"], race["then"]]}
    if not first - 1 <= place <= last:
        text = f"Not here: the lines in which this block does something are {first} to {last}."
        return {"kind": "outside", "text": text, "steps": []}
    passing = [one for one in level["handed"] if one["above"] <= place < one["below"]]
    nearest = min(passing, key=lambda one: (one["below"] - one["above"], one["first"]), default=None)
    if race["above"] <= place < race["below"]:
        text = "Close: what races passes this place, too. But here not all threads would wait, or not each time."
        return {"kind": "close", "text": text, "steps": []}
    if nearest is None:
        text = "Not here: no line above this place hands shared memory to a line below it. See which line writes what "
        text += "another thread reads, and the other way round."
        return {"kind": "nothing", "text": text, "steps": []}
    handed = HANDS[nearest["kind"]].format(**nearest)
    text = f"Not here: {handed}, but in this order: the barrier in line {nearest['by_line']} comes between (step "
    text += f"{nearest['by']:,})."
    return {"kind": "ordered", "text": text, "steps": [nearest["first"], nearest["by"], nearest["then"]]}


def _raced(race: Mapping[str, Any]) -> str:
    steps = {"x": f"{race['first']:,}", "y": f"{race['then']:,}"}
    words = RACES[race["kind"]].format(a=race["at"], b=race["then_at"], array=race["array"], **steps)
    return words[0].upper() + words[1:]


class MissingBarrier(Frame):
    """Made by `find_the_missing_barrier`. `step` is the step of the recording that is shown."""

    _script = "barrier.js"
    _css = "\n".join((HERE / name).read_text(encoding="utf-8") for name in ("widgets.css", "player.css", "playing.css"))

    def static_figure(self, step: int | None = None) -> Figure:
        """A still picture of the first level: its source and memory at a step (None: the first)."""
        level = self.meta["levels"][0]
        return player.player(level["recording"], self.data[: level["bytes"]]).static_figure(step or 0)


def find_the_missing_barrier(levels: Sequence[tuple[Mapping[str, Any], bytes]]) -> MissingBarrier:
    """The game, in the browser. levels: of `course_utils.chapters.missing_barrier.levels()`. The score stays in the
    browser. Raises ValueError without a level."""
    if not levels:
        raise ValueError("levels: got none, takes at least one")
    meta = {"levels": [{**known, "bytes": len(data)} for known, data in levels]}
    return MissingBarrier(meta=meta, data=b"".join(data for _, data in levels), step=0)
