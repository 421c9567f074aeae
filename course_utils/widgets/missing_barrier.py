"""A game: a kernel has lost a barrier; step through its recording, and mark the place where it is missing.

js/barrier.js judges a mark, and plays the recording with the player's own parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from course_utils.widgets import player
from course_utils.widgets.frame import HERE, Frame


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
