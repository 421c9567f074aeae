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
                    f"{n:,} / {threads} rounded up: the last block has the {left_over} elements left over.",
                    mistakes=(
                        Mistake(
                            blocks - 1,
                            "Rounded down: the last elements then belong to no thread.",
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
                    f"{idle} = {idle // WARP} · {WARP} + {idle % WARP}: the rest share a warp with busy threads.",
                    mistakes=(
                        Mistake(
                            costs.ceil_div(idle, WARP),
                            "That counts the warp that is partly busy, too.",
                        ),
                    ),
                ),
            )
        )
    return Grid(
        f"`vector_add` adds {n:,} elements, one thread for each. What does a launch with blocks of this size have?",
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
            f"The last {past} threads read past the end of `a` and `b`, and wrote past the end of `c`.",
            "A GPU has no fence around a tensor, and the memory behind it exists, so nothing is reported. PyTorch "
            f"rounds allocations up to 512 bytes, and {blocks} · {threads} · 4 is a multiple of 512: in a tensor of "
            "its own, `c` has padding there. In a slice of a larger tensor, these writes hit data.",
            right=True,
        ),
        Option(
            f"The hardware switched off the {past} threads past the end.",
            "The hardware does not know how long a tensor is. It starts every thread of a launch.",
        ),
        Option(
            "The last block was not launched, as it is not full.",
            "All blocks are launched, and each is whole. Without the last block, the end of `c` would be missing.",
        ),
        Option(
            "Nothing: a result equal to PyTorch's shows that all accesses were allowed.",
            "The comparison covers the elements of `c`. It does not see accesses past the end.",
        ),
    ]
    draw.shuffle(options)
    return Choice(
        f"A colleague runs `vector_add` without `if (i < n)` on a GPU: {blocks} blocks of {threads} threads, {n:,} "
        "elements. There is no error, and `c` equals PyTorch's sum. What happened?",
        tuple(options),
        "3 Breaking it on purpose",
        kind="scenario",
    )


QUESTIONS: tuple[Source, ...] = (
    idle_threads,
    unchecked_overrun,
)
