"""Questions of chapter 02: online softmax, tiles, loop orders, shared memory, register tiles, tests."""

from collections.abc import Callable
from functools import cache
from math import log
from random import Random

import torch

from course_utils import costs, reference
from course_utils.questions.question import (
    Aggregate,
    Choice,
    Figure,
    Grid,
    Mistake,
    Number,
    Option,
    Question,
    Source,
    TradeOff,
    TrueFalse,
)
from course_utils.toolchain import nvrtc

_KIB, _MB = 2**10, 1e6


def two_blocks_of_a_row(draw: Random) -> Question:
    """Online softmax by hand"""
    first_top = draw.choice((2, 3))
    second_top = first_top + draw.choice((1, 2))
    first = [first_top, draw.randrange(first_top)]
    second = [second_top, draw.randrange(second_top)]
    draw.shuffle(first)
    draw.shuffle(second)
    values = [draw.randrange(1, 5) for _ in range(4)]

    m_1, l_1, o_1 = _statistics(first, values[:2])
    m_here, l_here, o_here = _statistics(second, values[2:])
    m_2, factor = max(m_1, m_here), 2.0 ** (m_1 - m_here)
    l_2, o_2 = factor * l_1 + l_here, factor * o_1 + o_here

    forgotten = "The first block is relative to the old maximum: it needs the factor 2^(old m − new m)."
    lost = "That is the second block alone. The first one still counts, by a factor."
    return Grid(
        prompt=(
            f"A row's scores come in two blocks: ({first[0]}, {first[1]}), then ({second[0]}, {second[1]}). The values "
            f"are single numbers: {values[0]}, {values[1]}, then {values[2]}, {values[3]}. Weights are 2^(x − m) / l, "
            "with 2 in place of e. What does the kernel hold after each block? Õ is the output before the division by "
            "l."
        ),
        rows=("after the first block", "after the second block"),
        columns=("m", "l", "Õ"),
        cells=(
            (
                Figure(m_1, "", f"The larger of {first[0]} and {first[1]}."),
                Figure(l_1, "", f"2^({first[0]} − {m_1}) + 2^({first[1]} − {m_1}) = {l_1}", 1e-3),
                Figure(o_1, "", f"The same two terms, each times its value: {o_1}", 1e-3),
            ),
            (
                Figure(m_2, "", f"The larger of {m_1} and the second block's {m_here}.", 0.0),
                Figure(
                    l_2,
                    "",
                    f"2^({m_1} − {m_2}) · {l_1} + {l_here} = {l_2}",
                    1e-3,
                    (Mistake(l_1 + l_here, forgotten), Mistake(l_here, lost)),
                ),
                Figure(
                    o_2,
                    "",
                    f"The same factor as for l: 2^({m_1} − {m_2}) · {o_1} + {o_here} = {o_2}",
                    1e-3,
                    (Mistake(o_1 + o_here, forgotten), Mistake(o_here, lost)),
                ),
            ),
        ),
        read_again="The output comes along",
    )


def order_of_the_pieces(draw: Random) -> Question:
    """The order of the pieces"""
    keys, pieces = draw.choice((1024, 4096, 16384)), draw.choice((3, 5, 7))
    ending, holds = draw.choice(
        (
            ("Up to rounding, the result is the same as in one walk over all keys.", True),
            ("The result is wrong unless the pieces are finished from the first key to the last.", False),
        )
    )
    return TrueFalse(
        statement=(
            f"The {keys:,} keys of a row are cut into {pieces} pieces of unequal length. Blocks of threads compute (m, "
            f"l, Õ) of one piece each, and the triples are merged in the order in which they are finished. {ending}"
        ),
        holds=holds,
        why=(
            "Each triple holds sums over its keys, relative to its own maximum. Merging them is associative and "
            "commutative; only the rounding depends on the order."
        ),
        read_again="The output comes along",
    )


def first_tile_hidden(draw: Random) -> Question:
    """A first tile without a visible key"""
    options = [
        Option(
            "NaN, whatever the later tiles hold",
            "The new maximum is −∞ like the old one, and exp(−∞ − (−∞)) is NaN. Later tiles multiply it and add to it. "
            "Subtracting 0 in place of −∞ keeps every term at 0.",
            right=True,
        ),
        Option(
            "0 from this tile, so the row is right in the end",
            "The exponent is not −∞: it is the difference of two infinities.",
        ),
        Option(
            "something wrong, which the next tile's factor 0 wipes out",
            "The factor exp(−∞ − m) is 0, but 0 times NaN is NaN.",
        ),
        Option(
            "the average of V, since every key of the tile weighs the same",
            "That happens with a large negative number in place of −∞: all differences are 0 then.",
        ),
    ]
    draw.shuffle(options)
    return Choice(
        prompt=(
            "A row starts with m = −∞, l = 0 and Õ = 0. All keys of its first tile are masked, with scores of −∞. Its "
            "later tiles hold visible keys. A kernel computes `P = exp(S - m_new)` and `rescale = exp(m - m_new)`. "
            "What is the row's output?"
        ),
        options=tuple(options),
        read_again="The one trap",
    )


@cache  # the costs go through all tiles
def _megabytes(traffic: Callable[..., list[costs.Step]], length: int, d: int, rows: int, columns: int) -> dict:
    """MB of one head in fp32, by the name of the step."""
    steps = traffic(1, 1, length, length, d, block_rows=rows, block_cols=columns, element_bytes=4)
    return {step.name: step.total / _MB for step in steps}


def bytes_of_both_orders(draw: Random) -> Question:
    """Bytes of the two loop orders"""
    length, d = draw.choice((2048, 4096)), draw.choice((64, 128))
    rows, columns = draw.choice(((128, 32), (64, 16), (256, 64), (32, 128)))
    fa1, fa2 = (_megabytes(one, length, d, rows, columns) for one in (costs.fa1_traffic, costs.fa2_traffic))
    one = length * d * 4 / _MB  # a matrix of length × d

    def requested(megabytes: float, why: str, *mistakes: Mistake) -> Figure:
        return Figure(megabytes, "MB", why, 0.02, mistakes)

    by_rows, by_columns = costs.ceil_div(length, rows), costs.ceil_div(length, columns)
    return Grid(
        prompt=(
            f"One head, L = {length:,}, d = {d}, fp32, B_r = {rows}, B_c = {columns}, no mask. How many MB (10⁶ bytes) "
            f"does each loop order request, reads and writes together? A matrix of L × d takes {one:.4g} MB. Leave out "
            "the zeros that FA1 first writes to O."
        ),
        rows=("Q", "K and V", "O"),
        columns=("FA1: outer loop over K and V", "FA2: outer loop over Q"),
        cells=(
            (
                requested(
                    fa1["Q tiles"],
                    f"Q is read once for each of the {by_columns} tiles of keys.",
                    Mistake(one, "FA1 holds K and V; Q streams past each of their tiles."),
                    Mistake(by_rows * one, "FA1's outer loop runs over tiles of keys, and B_c says how many."),
                ),
                requested(
                    fa2["Q tiles"],
                    "A block loads its tile of Q once and holds it.",
                    Mistake(by_columns * one, "FA2 holds the query tile; K and V stream past it."),
                ),
            ),
            (
                requested(
                    fa1["K and V tiles"],
                    "Each tile of K and V is loaded once, by the outer loop.",
                    Mistake(one, "K and V are two matrices."),
                    Mistake(2 * by_rows * one, "FA2 does this; FA1's outer loop holds K and V."),
                ),
                requested(
                    fa2["K and V tiles"],
                    f"Both are read once for each of the {by_rows} query tiles.",
                    Mistake(by_rows * one, "K and V are two matrices."),
                    Mistake(2 * by_columns * one, "K and V come back once per query tile: B_r says how often."),
                    Mistake(2 * one, "K and V do not stay on the chip: FA2 holds Q."),
                ),
            ),
            (
                requested(
                    fa1["O tiles"],
                    f"O is read and written for each of the {by_columns} tiles of keys.",
                    Mistake(by_columns * one, "Each inner step reads O too."),
                    Mistake(one, "FA1 comes back to an unfinished O for each tile of keys."),
                ),
                requested(
                    fa2["O tiles"],
                    "O waits in registers, and is written once.",
                    Mistake(2 * one, "O is never read back: until it is written, it is in registers."),
                ),
            ),
        ),
        read_again="7 Two loop orders and their traffic",
    )


def shared_memory_of_the_tiles(draw: Random) -> Question:
    """Shared memory of the tiles"""
    rows, columns, d = draw.choice((64, 128)), draw.choice((16, 32)), draw.choice((64, 128))
    keys = costs.tile_shared_bytes(rows, columns, d, 4, query_tiles=0) / _KIB
    query = costs.tile_shared_bytes(rows, columns, d, 4) / _KIB - keys
    scores = costs.tile_shared_bytes(rows, columns, d, 4, score_tile=True) / _KIB - keys - query
    elements = "That counts elements. An fp32 number takes four bytes."
    limit = nvrtc.SM_LIMITS[90].shared_per_block // _KIB
    return Aggregate(
        prompt=(
            f"A block holds tiles of Q, K, V and S in shared memory: fp32, B_r = {rows}, B_c = {columns}, d = {d}, no "
            f"padding. How many KiB (1024 bytes) is that? A block gets 48 without asking, and at most {limit} on "
            "Hopper."
        ),
        parts=(
            (
                "tile of Q",
                Figure(query, "KiB", f"{rows} · {d} numbers of 4 bytes", mistakes=(Mistake(query / 4, elements),)),
            ),
            (
                "tiles of K and V",
                Figure(
                    keys,
                    "KiB",
                    f"2 · {columns} · {d} numbers of 4 bytes",
                    mistakes=(Mistake(keys / 2, "K and V are two tiles."), Mistake(keys / 4, elements)),
                ),
            ),
            (
                "tile of S",
                Figure(
                    scores,
                    "KiB",
                    f"{rows} · {columns} numbers of 4 bytes",
                    mistakes=(
                        Mistake(scores / 4, elements),
                        Mistake(query, "A row of S has B_c numbers, one for each key of the tile, and not d."),
                    ),
                ),
            ),
        ),
        read_again="8 Tile sizes against shared memory",
    )


def tiles_for_two_blocks(draw: Random) -> Question:
    """Tiles that leave room for a second block"""
    arch, shapes = draw.choice(
        (
            (89, [(32, 64), (64, 32), (64, 16), (128, 32)]),
            (90, [(64, 64), (128, 64), (128, 32), (256, 64)]),
        )
    )
    length, d = draw.choice((2048, 4096, 8192)), 64
    draw.shuffle(shapes)
    limits = nvrtc.SM_LIMITS[arch]

    def shared(shape: tuple[int, int]) -> int:
        return costs.tile_shared_bytes(*shape, d, 4, score_tile=True)

    def requested(shape: tuple[int, int]) -> float:
        return sum(_megabytes(costs.fa2_traffic, length, d, *shape).values())

    def two_fit(shape: tuple[int, int]) -> bool:
        return 2 * (shared(shape) + limits.shared_reserved) <= limits.shared

    best = min(filter(two_fit, shapes), key=lambda shape: (requested(shape), shared(shape)))

    def why(shape: tuple[int, int]) -> str:
        if shape == best:
            return "Two blocks fit, and K and V are requested as seldom as that allows. A larger B_c saves no byte."
        if not two_fit(shape):
            return "Two such blocks do not fit: while one waits, nothing else runs."
        if requested(shape) == requested(best):
            return "A smaller B_c requests the same bytes and takes less shared memory."
        return "It fits, but a larger B_r would request K and V less often."

    return TradeOff(
        prompt=(
            f"FA2's loop order, tiles of Q, K, V and S in fp32 without padding; one head, L = {length:,}, d = {d}, no "
            f"mask. A multiprocessor of sm_{arch} has {limits.shared // _KIB} KiB of shared memory, of which the "
            f"system takes {limits.shared_reserved // _KIB} KiB for each block. Two blocks must fit, so that one "
            "computes while the other waits. Which tiles then request the fewest bytes and, among these, take the "
            "least shared memory?"
        ),
        columns=("shared memory, KiB", "requested, MB"),
        options=tuple(
            Option(
                f"B_r = {shape[0]}, B_c = {shape[1]}",
                why(shape),
                right=shape == best,
                figures=(f"{shared(shape) / _KIB:.0f}", f"{requested(shape):.1f}"),
            )
            for shape in shapes
        ),
        read_again="8 Tile sizes against shared memory",
    )


def share_of_the_peak(draw: Random) -> Question:
    """What shared memory can feed"""
    rows, columns = draw.choice(((4, 2), (8, 2), (6, 4), (6, 6), (8, 6)))  # none is in the chapter's table
    balance = costs.ridge_point(4, 1)  # multiply-adds of a warp per clock, over loads of a warp
    share = 100 * costs.arithmetic_intensity(rows * columns, rows + columns) / balance
    alone = 100 * costs.arithmetic_intensity(1, 2) / balance
    return Number(
        prompt=(
            f"Each thread computes a piece of {rows} × {columns} scores in registers. For each step of d it loads "
            f"{rows} numbers of Q and {columns} of K from shared memory, each by its own instruction. Per clock a "
            "multiprocessor executes four warps' multiply-adds and one warp's load. Which share of the multiply-add "
            "peak do the loads allow at most?"
        ),
        figure=Figure(
            share,
            "%",
            f"{rows} + {columns} loads give {rows} · {columns} multiply-adds. Four per clock would need 4 · "
            f"{rows + columns} / {rows * columns} loads per clock, and there is one: {share:.1f} %. Loads of 16 bytes, "
            "or lanes that share a number, allow more.",
            0.01,
            (
                Mistake(alone, "That is for one score per thread, with two loads for each multiply-add."),
                Mistake(4 * share, "Four warps compute at a time, but only one can load per clock."),
            ),
        ),
        read_again="9 From plain to fast: register tiles",
    )


def a_test_that_passes(draw: Random) -> Question:
    """A test that passes"""
    length, sigma = draw.choice((128, 256, 512)), draw.choice((0.01, 0.02))
    options = [
        Option(
            "Compare with float64 on large logits, planted keys and ragged lengths.",
            "Small inputs give scores near 0, so that every factor is nearly 1. Inputs with peaks make a wrong factor "
            "visible.",
            right=True,
        ),
        Option(
            "Run compute-sanitizer once more, with all of its tools.",
            "A sanitizer knows who reads and writes what, and when. It knows no formula.",
        ),
        Option(
            "Repeat the test with a hundred other seeds.",
            "None of a hundred such inputs makes the maximum rise by much.",
        ),
        Option(
            "Compute the sums and the division by l in double precision.",
            "A wrong sum stays wrong in double precision. First find an input that shows the error.",
        ),
    ]
    draw.shuffle(options)
    return Choice(
        prompt=(
            f"Your kernel agrees with PyTorch to 1e-5 on {length} tokens of random inputs with standard deviation "
            f"{sigma}, and compute-sanitizer finds nothing. In training the loss soon leaves PyTorch's. What do you "
            "try first?"
        ),
        options=tuple(options),
        read_again="Mistakes in the formula",
        kind="scenario",
    )


def _statistics(scores: list[int], values: list[int]) -> tuple[int, float, float]:
    """(m, l, Õ) of one block, with powers of two: the reference's output and log-sum-exp, taken apart again."""
    key, value = (torch.tensor(numbers, dtype=torch.float64).view(1, 1, -1, 1) for numbers in (scores, values))
    query = torch.full((1, 1, 1, 1), log(2), dtype=torch.float64)
    output, lse = reference.attention(query, key, value, scale=1.0, return_lse=True)
    m = max(scores)
    l = round(2 ** (lse.item() / log(2) - m), 9)  # noqa: E741 the course's letter
    return m, l, round(output.item() * l, 9)


QUESTIONS: tuple[Source, ...] = (
    two_blocks_of_a_row,
    order_of_the_pieces,
    first_tile_hidden,
    bytes_of_both_orders,
    shared_memory_of_the_tiles,
    tiles_for_two_blocks,
    share_of_the_peak,
    a_test_that_passes,
)
