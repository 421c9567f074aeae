"""Chapter 07's variants of the last kernel: what each was expected to gain, and what it gained.

The variants were measured once, beside the kernel of commit 7e7282b7, where `launches/hopper_tried.py` has their text.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import matplotlib.pyplot as plt

from course_utils import measured, plots, show
from course_utils.chapters.timed_ladder import ALL_CASES, title
from course_utils.measured import Measurement
from course_utils.measured.hopper import TOKENS, WIDTH

LENGTHS = 2048, 16384
RUNS = 5  # of each, in the record
AGAIN = "the kernel again"  # the kernel timed beside itself: the difference is the noise


class Idea(NamedTuple):
    """Why a variant might have been faster, and why it is not. "Likely" marks an explanation that no figure proves; the
    others follow from the kernel's text or from counting."""

    hope: str
    found: str


IDEAS = {
    "without turns": Idea(
        "The consumers may find an order of their own; no one waits at a barrier.",
        "Turns gain 1 to 2 % in short rows, causal or with d = 128. In long ones the gain is within the noise. Turns "
        "cost 0.4 to 1.4 % at d = 64 without a mask.",
    ),
    "turns, and no overlap in a consumer": Idea(
        "The other consumer's product runs beside the softmax anyway, and O need not be in flight.",
        "A tile's softmax begins only when P V of the tile before is done, too.",
    ),
    "without hold()": Idea(
        "One store fewer for each tile.",
        "The compiler moves the wait for O up: the new maximum is found after P V, not beside it.",
    ),
    "all exponentials beside P V": Idea(
        "FlashAttention-3, Algorithm 2: P V of the tile before takes longer than the new maximum, and can hide more.",
        "Likely: here O and the buffer of V wait for exponentials that need neither.",
    ),
    "a part of the exponentials beside P V": Idea(
        "48 of 128 columns, about what is done when P V is.",
        "As above; it costs less, since fewer exponentials are early.",
    ),
    "the same without turns": Idea(
        "With more to do beside P V, a consumer may keep the tensor cores busy by itself.",
        "At d = 128 this then costs next to nothing, and gains nothing.",
    ),
    "O rescaled only when m rose a lot": Idea(
        "FlashAttention-4: m is raised only when a weight would exceed 2^8 = 256; until then O stays as it is. The "
        "result is the same, because l has the same factor.",
        "Likely: a vote and a branch cost about what they save, one multiplication for each number of O.",
    ),
    "a quarter of the exponentials by a polynomial": Idea(
        "FlashAttention-4: a multiprocessor has 16 units for ex2, and 128 that add and multiply; these can help.",
        "Eleven instructions in place of one ex2 did not pay. Likely: issue slots are scarce.",
    ),
    "a quarter by a polynomial, without turns": Idea(
        "Turns may hide what the polynomial saves.",
        "No gain here, either.",
    ),
    "tiles of 64 keys, four places": Idea(
        "Fewer registers, less masking at the diagonal, and the first products start sooner.",
        "For the same keys twice as many maxima, rescalings, waits and turns.",
    ),
    "tiles of 160 keys": Idea(
        "Fewer barriers and maxima for each key; it just fits shared memory.",
        "Rows end inside a tile, and in causal rows more of it is masked.",
    ),
    "a third place for K": Idea(
        "The producer can be further ahead.",
        "Likely: with two the producer is far enough ahead.",
    ),
    "232 registers for consumers": Idea(
        "The producer has 40 and can keep its item in them, as in step 3.",
        "The compiler has eight registers fewer for addresses.",
    ),
    "two consumers": Idea(
        "Each thread has 240 registers, and there is no third consumer to wait for.",
        "A tile of K and V serves 128 queries, not 192, and fewer softmaxes run beside products.",
    ),
    "one head at a time": Idea(
        "K and V of one head surely stay in the L2 cache.",
        "Likely: the longest rows of the last head begin late, and finished blocks wait for them. No difference at "
        "L = 16,384 with d = 128.",
    ),
    "all heads at a time": Idea(
        "The longest rows of all heads come first, and short ones fill the gaps at the end.",
        "At L = 2048, with 128 or 256 heads, it costs 6 % (d = 64) and 19 % (d = 128): likely K and V leave L2. No "
        "difference at L = 16,384.",
    ),
    "the next item taken early": Idea(
        "Its number is already there when the last tile of this item has been requested.",
        "No difference at L = 16,384; up to 2 % lost in short causal rows.",
    ),
    "the shortest rows first": Idea(
        "The order in which rows lie in memory.",
        "The longest rows begin last, and finished blocks wait for them.",
    ),
}


@functools.cache
def record() -> Measurement:
    """The recording of the variants."""
    return measured.load("hopper_tried")


def ratio(name: str, d: int = 128, is_causal: bool = False, length: int = LENGTHS[-1]) -> float | None:
    """How many times as fast as the last kernel a variant is, as recorded; None if it equals the last kernel or cannot
    run."""
    rows = record().select(name=name, head_dim=d, is_causal=is_causal, length=length)
    return rows[0]["ratio"] if rows else None


def noise(*columns: str) -> float:
    """The largest deviation of the last kernel from itself: of the medians of the runs, or of these columns ("low" and
    "high" are the extreme runs)."""
    return max(abs(row[column] - 1) for row in record().select(name=AGAIN) for column in columns or ("ratio",))


def show_variants() -> None:
    """Shows each variant beside the last kernel, at both lengths: a picture, and a table with reasons."""
    names = list(IDEAS)
    panels = {
        title(*case): {f"L = {length}": [ratio(name, *case, length) for name in names] for length in LENGTHS}
        for case in ALL_CASES
    }
    plots.ratios_around_one(names, panels, "times as fast as the last kernel; –: the same kernel, or not possible")
    plt.show()
    rows = []
    for n, (name, idea) in enumerate(IDEAS.items()):
        figures = {}
        for case, series in panels.items():
            known = [of[n] for of in series.values() if of[n] is not None]
            figures[case] = ", ".join(f"{of:.2f}" for of in known) or "–"
        rows.append({"tried": name, "the hope": idea.hope, "what came of it": idea.found} | figures)
    lengths = " and ".join(f"L = {length}" for length in LENGTHS)
    where = f"{lengths}, B · L = {TOKENS}, H · d = {WIDTH}, fp16, {measured.caption(record())}"
    show.table(rows, f"times as fast as the last kernel; {where}", folded=True)
    off = f"up to {noise():.1%} off in the median of {RUNS} runs, and up to {noise('low', 'high'):.1%} in one"
    print(f"times as fast as the last kernel, {where}; beside itself it is {off}")
