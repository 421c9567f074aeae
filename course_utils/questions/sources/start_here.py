"""Questions of chapter 00's first notebook: launches and what they leave out."""

from __future__ import annotations

from random import Random

from course_utils import costs
from course_utils.questions.question import (
    Choice,
    Figure,
    Grid,
    Mistake,
    Option,
    Source,
)

WARP = 32  # threads


def idle_threads(draw: Random) -> Grid:
    """Threads without an element"""
    sizes = (256, 512)
    idle_at_512 = draw.choice((9, 10, 14)) * WARP + draw.randrange(1, WARP)  # more than 256: the sizes differ
    n = 512 * draw.choice((12, 20, 39)) - idle_at_512
    cells = []
    for threads in sizes:
        blocks = costs.ceil_div(n, threads)
        idle = blocks * threads - n
        left_over = n % threads
        cells.append(
            (
                Figure(
                    blocks,
                    "",
                    f"{n:,} / {threads} rounded up is {blocks}: the last block covers the {left_over} elements "
                    "left over.",
                    mistakes=(
                        Mistake(
                            blocks - 1,
                            "Rounded down: the elements after the last whole block then belong to no thread.",
                        ),
                    ),
                ),
                Figure(
                    idle,
                    "",
                    f"{blocks} · {threads} = {blocks * threads:,} threads, less {n:,} elements.",
                    mistakes=(Mistake(left_over, "Those are the busy threads of the last block."),),
                ),
                Figure(
                    idle // WARP,
                    "",
                    f"{idle} idle threads hold {idle // WARP} whole warp(s); {idle % WARP} sit in a warp whose "
                    "first threads are busy.",
                    mistakes=(
                        Mistake(
                            costs.ceil_div(idle, WARP),
                            "That counts the warp that is partly busy, too: some of its threads have elements.",
                        ),
                    ),
                ),
            )
        )
    return Grid(
        f"`vector_add` has {n:,} elements, one thread for each. Fill in what a launch with blocks of this size has.",
        tuple(f"{threads} threads per block" for threads in sizes),
        ("blocks", "threads without an element", "warps without any element"),
        tuple(cells),
        "2 A first kernel",
    )


def unchecked_overrun(draw: Random) -> Choice:
    """A kernel without its bounds check"""
    threads = draw.choice((128, 256))
    n = threads * draw.choice((4, 10, 20)) - draw.choice((8, 24, 40))
    blocks = costs.ceil_div(n, threads)
    past = blocks * threads - n
    options = [
        Option(
            f"The last {past} threads read behind a and b, and wrote behind c.",
            "A GPU has no fence around a tensor, and the memory behind it exists, so nothing is reported. PyTorch "
            f"rounds allocations up to 512 bytes, and {blocks} · {threads} · 4 is a multiple of that: if `c` is a "
            "tensor of its own, these writes hit its padding. Behind a slice of a larger tensor they hit its data.",
            right=True,
        ),
        Option(
            f"The hardware switched off the {past} threads past the end.",
            "The hardware does not know how long a tensor is. It knows the launch only, and starts every thread of it.",
        ),
        Option(
            "The last block was not launched, as it is not full.",
            "Blocks are launched whole, all of them. With one block fewer, the last elements of `c` would be missing.",
        ),
        Option(
            "Nothing: a result equal to PyTorch's shows that all accesses were allowed.",
            "Right numbers show that what was compared is right. The accesses past the end are not among it.",
        ),
    ]
    draw.shuffle(options)
    return Choice(
        f"A colleague runs `vector_add` without `if (i < n)` on a GPU: {blocks} blocks of {threads} threads, {n:,} "
        "elements. No error, and `c` equals PyTorch's sum. What happened?",
        tuple(options),
        "3 Breaking it on purpose",
        kind="scenario",
    )


QUESTIONS: tuple[Source, ...] = (
    idle_threads,
    unchecked_overrun,
)
