"""A chapter "99_demo" with one question of each kind, for tests. Its figures follow from sizes that are drawn."""

import sys
from random import Random

from course_utils import costs, course
from course_utils.questions.question import (
    Aggregate,
    Choice,
    Figure,
    Grid,
    Mistake,
    Number,
    Option,
    TradeOff,
    TrueFalse,
    Votes,
)

SLUG = "99_demo"
HEADING = "1 The only section"


def concept(draw: Random) -> Choice:
    """What the online softmax keeps."""
    return Choice(
        "Which numbers does `online_softmax` keep for a row?",
        (
            Option("All scores", "Then the score matrix would be stored, which it is <b>not</b>."),
            Option("The maximum `m` and the sum `l`", "With those, earlier parts can be rescaled.", right=True),
            Option("The maximum only", "Without the sum, the weights cannot be normalised."),
        ),
        HEADING,
    )


def scenario(draw: Random) -> Choice:
    """A wrong last row."""
    length = draw.choice((100, 130, 150))
    return Choice(
        f"At L = {length} the last rows are wrong, at L = 128 all is right. What do we look at first?",
        (
            Option("The bounds check of the last tile", "A ragged length is what differs.", right=True),
            Option("The scale of the scores", "A wrong scale would spoil every length, 128 as well."),
        ),
        HEADING,
        kind="scenario",
    )


def true_false(draw: Random) -> TrueFalse:
    """Exactness."""
    return TrueFalse(
        "FlashAttention is an approximation of attention.",
        False,
        "It computes the same sums in another order: only the rounding differs.",
        HEADING,
    )


def votes(draw: Random) -> Votes:
    """What a tile saves."""
    return Votes(
        "Which of these does a tile in shared memory save?",
        (
            Option("Reads from global memory", "Each element is read once for the tile.", right=True),
            Option("Multiplications", "Every product is still computed, tile or not."),
            Option("Traffic through L2", "What is not read again does not pass L2 again.", right=True),
            Option("Registers", "A tile costs shared memory; the registers stay as they were."),
        ),
        HEADING,
    )


def trade_off(draw: Random) -> TradeOff:
    """Least memory within 2 ms."""
    heads = draw.choice((8, 16))
    dense = costs.score_matrix_bytes(1, heads, 4096, 4096, 4)
    return TradeOff(
        "The layer has 2 ms. Which choice needs the least memory?",
        ("time, ms", "scores, MB"),
        (
            Option("`naive`", "It stores the whole score matrix.", figures=("1.9", f"{dense / 1e6:,.0f}")),
            Option("`flash`", "It is in time, and stores no scores.", right=True, figures=("0.4", "0")),
            Option("`slow_flash`", "It takes 3 ms, and 2 ms are allowed.", figures=("3.0", "0")),
        ),
        HEADING,
    )


def number(draw: Random) -> Number:
    """The score matrix."""
    length = 1024 * draw.choice((2, 4, 8))
    value = costs.score_matrix_bytes(1, 1, length, length, 4)
    return Number(
        f"How many MB has the fp32 score matrix of one head at L = {length:,}?",
        Figure(
            value / 1e6,
            "MB",
            f"{length:,} · {length:,} · 4 bytes.",
            tolerance=0.01,
            mistakes=(Mistake(value / 2e6, "That is fp16: in fp32 a score has 4 bytes."),),
        ),
        HEADING,
    )


def aggregate(draw: Random) -> Aggregate:
    """Traffic of two kernels."""
    n = 2 ** draw.choice((20, 21))
    return Aggregate(
        f"`t = a + b`, then `r = 2 * t`, with {n:,} floats. How many bytes does each move?",
        (
            ("`t = a + b`", Figure(3 * 4 * n / 1e6, "MB", "Two arrays are read, one is written.", tolerance=0.01)),
            ("`r = 2 * t`", Figure(2 * 4 * n / 1e6, "MB", "One array is read, one is written.", tolerance=0.01)),
        ),
        HEADING,
    )


def grid(draw: Random) -> Grid:
    """Tiles of a sequence."""
    length = draw.choice((100, 200, 1000))
    sizes = (32, 64)
    return Grid(
        f"A sequence has L = {length}. Fill in its tiles.",
        tuple(f"tiles of {size} rows" for size in sizes),
        ("tiles", "rows of the last tile"),
        tuple(
            (
                Figure(costs.ceil_div(length, size), "", f"{length} / {size}, rounded up."),
                Figure(
                    length - size * (costs.ceil_div(length, size) - 1), "rows", f"What the {size}s before leave over."
                ),
            )
            for size in sizes
        ),
        HEADING,
    )


QUESTIONS = (concept, scenario, true_false, votes, trade_off, number, aggregate, grid)


def install() -> None:
    """Make the demo a chapter of the course, in this process."""
    course.CHAPTERS = (*course.CHAPTERS, course.Chapter(SLUG, "Demo", "one question of each kind"))
    sys.modules["course_utils.questions.sources.demo"] = sys.modules[__name__]
