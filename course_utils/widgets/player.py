"""The player of a recorded launch: source, memory and the lanes of a block, step by step, in the browser."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.figure import Figure

from course_utils.emulator import record
from course_utils.emulator.recorded import RecordedFinding
from course_utils.emulator.sanitizer import Finding
from course_utils.widgets import recorded
from course_utils.widgets.frame import HERE, Frame
from course_utils.widgets.recorded_picture import picture

MOST_STORED = 4 << 20  # bytes of a recording that a notebook keeps for pages without Python


class Player(Frame):
    """Made by `play`. `step` counts from 0; `meta` and `data` are the recording as `Recording.packed` gives it."""

    _script = "player.js"
    _css = "\n".join((HERE / name).read_text(encoding="utf-8") for name in ("widgets.css", "player.css"))

    def static_figure(self, step: int | None = None) -> Figure:
        """A still picture of step `step` (None: the step now shown), as the player shows it when it opens: the source
        around its line, and the array that it touches as it was before it. Raises ValueError for a step that is not
        there."""
        step = self.step if step is None else step
        last = self.meta["columns"][0]["count"] - 1
        if not 0 <= step <= last:
            raise ValueError(f"step: got {step}, takes 0 to {last}")
        return picture(self.meta, recorded.columns(self.meta, self.data), step)

    def _state(self) -> dict:
        """What a page without Python starts from. A large recording would make the notebook large: there the page shows
        the still picture."""
        return super()._state() if len(self.data) <= MOST_STORED else {}


def play(
    call: Callable[[], object],
    *,
    block: int | tuple[int, ...] = (0, 0, 0),
    launch: int | None = None,
    at: int | Finding | None = None,
) -> Player:
    """Records one block of the launch that `call()` makes, on the emulator, and plays it in the browser.

        widgets.play(lambda: kernel(grid, block, args), at=17)

    Forwards, backwards, to a line, to a barrier, to the next write of a cell; each number says who wrote it, and what
    was read in the same line or statement. block: its index in the grid, as blockIdx.x or (x, y, z). launch: which
    one, counted from 0, where `call()` makes several. at: the line, or the finding of a report, at whose first step it
    opens; a finding is shown with both parties. None: at the first step.

    Raises what `course_utils.emulator.record` raises, TypeError for another `at`, and ValueError for a line in which
    the block does nothing and for a finding that it does not run into, and where there is no step to play.
    """
    return player(*record(call, block=block, launch=launch).packed(), at=at)


def player(meta: dict, data: bytes, *, at: int | Finding | None = None) -> Player:
    """The player of a recording as `Recording.packed` gives it. at: as for `play`."""
    if not meta["columns"][0]["count"]:
        raise ValueError(f"call: nothing to play; {without_steps(meta['kernel'], meta['index'], meta['failure'])}")
    step, start = _opening(meta, data, at)
    return Player(meta={**meta, "start": start}, data=data, step=step)


def _opening(meta: dict, data: bytes, at: int | Finding | None) -> tuple[int, dict]:
    """The first step that is shown, and what else the player starts with."""
    if at is None:
        return 0, {}
    if isinstance(at, (int, np.integer)) and not isinstance(at, bool):
        places = [n for n, (file, line, *_) in enumerate(meta["places"]) if (file, line) == (meta["file"], at)]
        found = np.flatnonzero(np.isin(recorded.columns(meta, data)["steps.place"], places))
        if not found.size:
            lines = sorted({line for file, line, *_ in meta["places"] if file == meta["file"]})
            raise ValueError(f"at: got line {at}, in which this block has no step; takes one of {lines}")
        return int(found[0]), {}
    if not hasattr(at, "tool"):
        raise TypeError(f"at: got {type(at).__name__}, takes a Finding of a report, a line number or None")
    stop = stop_of(meta, at)
    if stop is None:
        raise ValueError(f"at: got a finding of {at.tool} at line {at.line}, which this block did not run into")
    return meta["findings"][stop]["step"], {"finding": stop}


def without_steps(kernel: str, index: Sequence[int], failure: str) -> str:
    """Why the recording of a block has no steps: the launch failed before it had touched memory, or it touches none."""
    block = f"block ({', '.join(map(str, index))}) of {kernel}()"
    if failure:
        return f"{block} had not touched memory when the launch failed: {failure}"
    return f"{block} touches no memory"


def stop_of(meta: dict, finding: Finding | RecordedFinding) -> int | None:
    """The number of a finding in a recording, if it has a step there; else None."""
    wanted = (finding.tool, finding.line, finding.other_line)
    for n, one in enumerate(meta["findings"]):
        if (one["tool"], one["line"], one["other_line"]) == wanted and one["step"] >= 0:
            return n
    return None
