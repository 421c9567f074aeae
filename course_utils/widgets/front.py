"""A small recorded kernel that plays by itself on the first page of the course."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from course_utils.widgets import player
from course_utils.widgets.frame import HERE, Frame


class RunningKernel(Frame):
    """Made by `running_kernel`. `step` is the step of the recording that is shown."""

    _script = "front.js"
    _css = "\n".join((HERE / name).read_text(encoding="utf-8") for name in ("widgets.css", "player.css", "playing.css"))

    def static_figure(self, step: int | None = None) -> Figure:
        """A still picture of a step (None: the one now shown)."""
        recording = player.player(self.meta["recording"], self.data)
        return recording.static_figure(self.step if step is None else step)


def running_kernel(recording: Mapping[str, Any], data: bytes, words: str, *, first: int = 0) -> RunningKernel:
    """A recording, as `Recording.packed` returns it, that plays by itself and begins again at step `first`. words: what
    it shows, in a sentence. Raises ValueError for a step that does not exist."""
    steps = recording["columns"][0]["count"]
    if not 0 <= first < steps:
        raise ValueError(f"first: got {first}, takes 0 to {steps - 1}")
    return RunningKernel(meta={"recording": dict(recording), "words": words, "first": first}, data=data, step=first)
