"""A game beside chapter 07: choose tile, stages, warps and order of a kernel, and race past cuDNN.

A measured kernel answers with its figure; for others a model estimates the speed; if a kernel does not fit into a
multiprocessor, the answer says why. js/race.js computes the answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from course_utils.plots.look import GREY, INK, MATRICES
from course_utils.widgets.frame import Frame

START = {
    "keys": "128", "places": "2", "consumers": "2", "copies": "threads", "overlap": "none", "turns": "no",
    "blocks": "end", "order": "lie", "idea": "none",
}  # fmt: skip


class Race(Frame):
    """Made by `race_past_cudnn`. `step` is the number of a problem."""

    _script = "race.js"

    def static_figure(self, step: int | None = None) -> Figure:
        """A still picture: FLASH, cuDNN and the record of a problem (None: the current one)."""
        return _draw(self.meta["figures"], self.step if step is None else step)


def race_past_cudnn(figures: Mapping[str, Any], head_dim: int = 128, *, is_causal: bool = False) -> Race:
    """The game, in the browser. figures: of `course_utils.chapters.hopper.race`; head_dim and is_causal: of the first
    problem. Score and tries stay in the browser. Raises ValueError naming the argument."""
    cases = [(problem["head_dim"], problem["is_causal"]) for problem in figures["problems"]]
    if (head_dim, is_causal) not in cases:
        dims = sorted({dim for dim, _ in cases})
        raise ValueError(f"head_dim: got {head_dim!r}, takes {' or '.join(map(str, dims))}")
    meta = {"figures": dict(figures), "start": START}
    return Race(meta=meta, data=b"", step=cases.index((head_dim, is_causal)))


def title_of(problem: Mapping[str, Any]) -> str:
    """A problem in words, as "d = 128, causal, L = 2,048"."""
    mask = "causal" if problem["is_causal"] else "full"
    return f"d = {problem['head_dim']}, {mask}, L = {problem['length']:,}"


def _draw(figures: Mapping[str, Any], place: int) -> Figure:
    problem = figures["problems"][place]
    record = problem["measured"][problem["record"]]
    bars = {"FLASH": problem["flash"] / problem["cudnn"], "cuDNN": 1.0, "chapter 07's record": record["ratio"]}
    figure = Figure(figsize=(7.5, 2.2), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0.1, 1, 0.9))  # the last line is for the note about still pictures
    axes = figure.subplots()
    axes.barh(list(bars), list(bars.values()), color=[GREY, GREY, MATRICES["Q"]])
    axes.axvline(1, color=INK, linestyle="--", linewidth=1)
    for y, ratio in enumerate(bars.values()):
        axes.text(ratio + 0.01, y, f"{ratio:.2f}", va="center", fontsize=9)
    axes.set(xlim=(0, 1.35), xlabel=f"times as fast as cuDNN; {figures['caption']}")
    axes.invert_yaxis()
    axes.set_title(title_of(problem), fontsize=10)
    return figure
