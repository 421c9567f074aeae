"""Chapter 07's list of what was tried to make the last kernel faster: what each was hoped to give, and what it gave."""

from __future__ import annotations

import functools

import matplotlib.pyplot as plt

from course_utils import measured, plots, show
from course_utils.bench.hopper import TOKENS, WIDTH
from course_utils.bench.hopper_tried import AGAIN
from course_utils.chapters.timed_ladder import ALL_CASES, title
from course_utils.launches.hopper_tried import TRIED
from course_utils.measured import Measurement

LENGTH = 16384
# Why a variant is slower, or not faster. What follows from the text of the kernel or from counting stands as it is;
# "likely" is an explanation that no figure proves.
FOUND = {
    "without turns": "The consumers find an order without it: turns decide little once blocks stay.",
    "turns, and no overlap in a consumer": "A tile's softmax begins only when P V of the tile before is done, too.",
    "without hold()": "The compiler moves the wait for O up: the new maximum is found after P V, not beside it.",
    "all exponentials beside P V": "Likely: O and the place of V wait for exponentials that need neither.",
    "a part of the exponentials beside P V": "The same, and less of it.",
    "the same without turns": "At d = 128 the part then costs next to nothing; it gives nothing, either.",
    "O rescaled only when m rose a lot": "Likely: a vote and a branch cost about what they save, a product for "
    "each number of O.",
    "a quarter of the exponentials by a polynomial": "Eleven instructions in place of one. Likely: what is short is "
    "the time to issue them, not ex2.",
    "a quarter by a polynomial, without turns": "As with turns.",
    "tiles of 64 keys, four places": "Twice as many maxima, rescalings, waits and turns for as many keys.",
    "tiles of 160 keys": "Lengths end inside a tile; causal, more of it is masked.",
    "a third place for K": "Likely: with two the producer is far enough ahead.",
    "232 registers for consumers": "The compiler has eight less for addresses and for what it prepares.",
    "two consumers": "A tile of K and V serves 128 queries, not 192, and one softmax less runs beside products.",
    "one head at a time": "The longest rows of the last head begin late, and blocks that are done wait for them.",
    "all heads at a time": "Up to 32 heads it is the kernel's own order. Of more, L2 cannot keep K and V.",
    "the next item taken early": "With the longest rows first, an item that waits for a busy block is a short one.",
    "the shortest rows first": "The longest rows begin last, and blocks that are done wait for them.",
}


@functools.cache
def record() -> Measurement:
    """The recording of what was tried."""
    return measured.load("hopper_tried")


def ratio(name: str, d: int = 128, is_causal: bool = False, length: int = LENGTH) -> float | None:
    """How many times as fast as the kernel a variant is, as recorded; None where it is the kernel, or cannot be."""
    rows = record().select(name=name, head_dim=d, is_causal=is_causal, length=length)
    return rows[0]["ratio"] if rows else None


def noise() -> float:
    """By how much the kernel is faster or slower than itself, at the most."""
    return max(abs(row["ratio"] - 1) for row in record().select(name=AGAIN))


def tried(length: int = LENGTH) -> None:
    """What was tried, each beside the last kernel: a picture of the time for d = 128, and a table of
    speeds, with reasons."""
    panels = {
        title(d, is_causal): [ratio(variant.name, d, is_causal, length) for variant in TRIED]
        for d, is_causal in ALL_CASES
    }
    longer = {
        f"{case}: more time, %": [None if of is None else round(100 / of - 100, 1) for of in panels[case]]
        for case in (title(128, False), title(128, True))
    }
    plots.bars([variant.name for variant in TRIED], longer, alike=2)
    plt.show()
    rows = []
    for n, variant in enumerate(TRIED):
        figures = {name: "–" if of[n] is None else f"{of[n]:.2f}" for name, of in panels.items()}
        rows.append({"tried": variant.name, "the hope": variant.hope, "what came of it": FOUND[variant.name]} | figures)
    where = f"L = {length}, B · L = {TOKENS}, H · d = {WIDTH}, fp16, {measured.caption(record())}"
    show.table(rows, f"times as fast as the last kernel; {where}", folded=True)
    print(f"times as fast as the last kernel, {where}; beside itself it is up to {noise():.1%} off")
