"""Chapter 02's first widget: a list of scores cut in two, and how the sums of both pieces merge into the whole sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure

from course_utils.plots.look import BLUE, ORANGE
from course_utils.widgets.frame import Frame, check_limit, pack

MOST_SCORES = 24
FIRST, SECOND = BLUE, ORANGE


@dataclass(frozen=True)
class Merged:
    """The pieces' maxima and sums, the factor of each, and the maximum and sum of the whole list."""

    m1: float
    l1: float
    m2: float
    l2: float
    a1: float
    a2: float
    m: float
    l: float  # noqa: E741 the course's letter


def merged(scores: Sequence[float], cut: int) -> Merged:
    """(m, l) of the first `cut` scores and of the others, merged. js/two_pieces.js computes the same."""
    values = torch.tensor(scores, dtype=torch.float64)
    (m1, l1), (m2, l2) = ((x.max(), torch.exp(x - x.max()).sum()) for x in (values[:cut], values[cut:]))
    m = torch.maximum(m1, m2)
    a1, a2 = torch.exp(m1 - m), torch.exp(m2 - m)
    return Merged(*(float(x) for x in (m1, l1, m2, l2, a1, a2, m, a1 * l1 + a2 * l2)))


class TwoPieces(Frame):
    """Made by `two_pieces`. `step` is one less than the number of scores before the cut."""

    _script = "two_pieces.js"

    def static_figure(self, step: int | None = None) -> Figure:
        """A still picture of one cut (None: that now shown)."""
        cut = 1 + (self.step if step is None else step)
        scores = self.meta["scores"]
        if not 1 <= cut < len(scores):
            raise ValueError(f"step: got {cut - 1}, takes 0 to {len(scores) - 2}")
        at, values, keys = merged(scores, cut), torch.tensor(scores), range(len(scores))
        of_piece = torch.tensor([at.m1] * cut + [at.m2] * (len(scores) - cut))
        colours = [FIRST] * cut + [SECOND] * (len(scores) - cut)
        figure = Figure(figsize=(8, 3.8), layout="constrained")
        figure.get_layout_engine().set(rect=(0, 0.06, 1, 0.94))  # the last line is for the note about still pictures
        apart, together = figure.subplots(1, 2, sharey=True)
        apart.bar(keys, torch.exp(values - of_piece).tolist(), color=colours)
        apart.set(title=f"m₁ = {at.m1:.1f}, l₁ = {at.l1:.2f}    m₂ = {at.m2:.1f}, l₂ = {at.l2:.2f}", xlabel="key")
        apart.set_ylabel("e to the score − its piece's m")
        together.bar(keys, torch.exp(values - of_piece).tolist(), color="none", edgecolor="0.6", linestyle=":")
        together.bar(keys, torch.exp(values - at.m).tolist(), color=colours)
        together.set(title=f"m = {at.m:.1f}, l = {at.a1:.2f} l₁ + {at.a2:.2f} l₂ = {at.l:.2f}", xlabel="key")
        for axes in (apart, together):
            axes.axvline(cut - 0.5, color="0.3", linestyle="--", linewidth=1)
            axes.spines[["top", "right"]].set_visible(False)
            axes.title.set_fontsize(10)
        return figure


def two_pieces(scores: Sequence[float], cut: int | None = None) -> TwoPieces:
    """Cut a list of scores in two and see the sums of both pieces merge into the sum of the whole.

    scores: 2 to 24 finite numbers. cut: how many are in the first piece at the start; None: a cut at which the first
    piece shrinks and stays visible, else the middle.

    Raises ValueError naming the argument.
    """
    values = [float(score) for score in scores]
    check_limit("scores", len(values), MOST_SCORES)
    if len(values) < 2 or not all(abs(value) < 1e6 for value in values):
        raise ValueError(f"scores: got {scores!r}, takes 2 to {MOST_SCORES} finite numbers")
    cut = _opening_cut(values) if cut is None else cut
    if not 1 <= cut < len(values):
        raise ValueError(f"cut: got {cut}, takes 1 to {len(values) - 1}")
    return TwoPieces(meta={"scores": values}, data=pack(torch.tensor(values)), step=cut - 1)


def _opening_cut(scores: Sequence[float]) -> int:
    """The cut at which one piece's factor is nearest to a half."""
    return min(range(1, len(scores)), key=lambda cut: abs(min(_factors(scores, cut)) - 0.5))


def _factors(scores: Sequence[float], cut: int) -> tuple[float, float]:
    at = merged(scores, cut)
    return at.a1, at.a2
