"""Steps of chapter 07's ladder with one thing changed, as recorded by kernels without clocks."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import matplotlib.pyplot as plt

from course_utils import measured, plots, show
from course_utils.chapters.timed_ladder import ALL_CASES, title
from course_utils.launches.ablations import PARTS
from course_utils.launches.hopper import COPIES_AFTER, LADDER
from course_utils.measured import Measurement
from course_utils.measured.hopper import TOKENS, WIDTH
from course_utils.operators.tensor_core import HEAD_DIMS

LENGTH = 16384
ORDERS = {
    LADDER[0].title: "step 1",
    COPIES_AFTER.title: "step 1, copies after",
    LADDER[1].title: "step 2",
}


@functools.cache
def record() -> Measurement:
    """The recording."""
    return measured.load("hopper_ablations")


def caption() -> str:
    """The timed shape, device and date."""
    return f"L = {LENGTH}, B · L = {TOKENS}, H · d = {WIDTH}, fp16, {measured.caption(record())}"


def ratio(name: str, d: int = 128, is_causal: bool = False) -> float:
    """How many times as fast as step 1 it is with its copies after the first product, or step 2 is, by title."""
    where = {"part": "copies", "name": name, "head_dim": d, "is_causal": is_causal, "length": LENGTH}
    return record().select(**where)[0]["ratio"]


def share(number: str, d: int, part: str) -> float:
    """The share of a step's time that the step takes without a part."""
    (step,) = [step for step in LADDER if step.number == number]
    return record().select(part="ablations", name=step.title, head_dim=d, without=part)[0]["share"]


def show_order_of_copies() -> float:
    """Draws how many times as fast as step 1 it is with its copies after the first product, and step 2 is, in each
    case. Returns the first of them at d = 128 without a mask."""
    panels = {title(*case): [ratio(name, *case) for name in ORDERS] for case in ALL_CASES}
    plots.bars(list(ORDERS.values()), panels, alike=len(panels))
    plt.show()
    print(f"times as fast as step 1; {caption()}")
    return ratio(COPIES_AFTER.title)


def show_parts(numbers: Sequence[str] = ("3", "4", "5")) -> None:
    """Shows which share of their time these steps take without their softmax and without their products."""
    rows = [
        {"": f"d = {d}, step {number}"} | {f"without {part}": f"{share(number, d, part):.0%}" for part in PARTS}
        for d in HEAD_DIMS
        for number in numbers
    ]
    show.table(rows, f"of the step's time, not causal; {caption()}")
