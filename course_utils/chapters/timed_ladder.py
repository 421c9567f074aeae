"""A timed ladder of kernels: the speed of each step, what it gained, and the whole beside PyTorch's kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import matplotlib.pyplot as plt

from course_utils import measured, plots
from course_utils.measured import Measurement, Row

Case = tuple[int, bool]  # d, is_causal
ALL_CASES: tuple[Case, ...] = ((64, False), (64, True), (128, False), (128, True))


class Step(Protocol):
    """What every ladder's steps have."""

    number: str
    title: str


def title(d: int, is_causal: bool) -> str:
    """The title of a case's panel: "d = 64, causal"."""
    return f"d = {d}" + ", causal" * is_causal


@dataclass(frozen=True)
class TimedLadder:
    """The steps of a chapter and their recorded rows, at one length.

    figures: returns the rows, measured here or recorded; part: the part of the rows that is the ladder; peers:
    PyTorch's kernels, a step faster than the first of them is green; shape: the rest of the timed shape, for captions.
    """

    figures: Callable[[], Measurement]
    part: str
    steps: Sequence[Step]
    peers: Sequence[str]
    length: int
    shape: str

    @functools.cached_property
    def timed(self) -> Measurement:
        """The figures, loaded once."""
        return self.figures()

    def caption(self) -> str:
        """The timed shape, device and date."""
        return f"L = {self.length}, {self.shape}, {measured.caption(self.timed)}"

    def row(self, name: str, d: int = 64, is_causal: bool = False) -> Row:
        """The row of a step, by title, or of one of PyTorch's kernels; empty if it does not run here."""
        where = {"part": self.part, "name": name, "head_dim": d, "is_causal": is_causal, "length": self.length}
        return next(iter(self.timed.select(**where)), {})

    def speed(self, name: str, d: int = 64, is_causal: bool = False) -> float:
        """TFLOP/s of a step, or of one of PyTorch's kernels; NaN if it does not run here."""
        return self.row(name, d, is_causal).get("tflop_per_s", float("nan"))

    def rung(self, number: str) -> tuple[Step, Step]:
        """The step before, and the step of this number ("3b")."""
        n = [step.number for step in self.steps].index(number)
        return self.steps[n - 1], self.steps[n]

    def gain(self, number: str, d: int = 64, is_causal: bool = False) -> float:
        """How many times as fast a step is as the step before it."""
        before, now = (self.speed(step.title, d, is_causal) for step in self.rung(number))
        return now / before

    def climb(self, number: str = "", *cases: Case) -> None:
        """Draws the ladder up to a step ("" for none) for the first of the cases, and prints what the step gained in
        each case."""
        numbers = [step.number for step in self.steps]
        reached = numbers.index(number) + 1 if number else 0
        case = (cases or ALL_CASES)[0]
        plots.climb(self._names(), self._speeds(case), reached, self._peers(case), title(*case))
        plt.show()
        for d, is_causal in (cases or ALL_CASES[:1]) if reached > 1 else ():
            before, now = self.rung(number)
            gained = f"{self.gain(number, d, is_causal):.2f} times as fast as step {before.number}"
            mask = "causal" if is_causal else "not causal"
            print(f"d = {d:3}, {mask:10}: {gained}, {self.speed(now.title, d, is_causal):.0f} TFLOP/s")
        print(f"({self.caption()})")

    def whole_ladder(self) -> None:
        """Draws all steps beside PyTorch's kernels, for both head dimensions, with and without a mask."""
        speeds = {title(*case): self._speeds(case) for case in ALL_CASES}
        plots.ladder(self._names(), speeds, {title(*case): self._peers(case) for case in ALL_CASES})
        plt.show()
        print(self.caption())

    def _names(self) -> list[str]:
        return [f"{step.number} {step.title}" for step in self.steps]

    def _speeds(self, case: Case) -> list[float]:
        return [self.speed(step.title, *case) for step in self.steps]

    def _peers(self, case: Case) -> dict[str, float]:
        return {name: self.speed(name, *case) for name in self.peers}
