"""Questions of chapter 06: what a decode step reads, pieces and pages, one launch, and how a batch changes bits."""

from __future__ import annotations

from random import Random

from course_utils import costs
from course_utils.operators.serving_choice import SHORTEST_PIECE
from course_utils.questions.question import (
    Aggregate,
    Choice,
    Figure,
    Grid,
    Mistake,
    Number,
    Option,
    Source,
    TradeOff,
    TrueFalse,
    Votes,
    shuffled,
)

WHY = "1 Why: one token, and all the bytes"
PAGES = "5 Pages"
PREFIX = "7 A shared prefix"
LAUNCH = "9 One launch for a step"
BATCH_CHANGES_BITS = "11 Company changes bits"
WRONG = "12 What can go wrong"


def bytes_of_a_step(draw: Random) -> Number:
    """Bytes of a decode step"""
    batch, length = draw.choice((4, 16, 32)), draw.choice((2048, 6144, 12288))
    heads, kv_heads = draw.choice(((32, 4), (40, 8), (64, 8)))
    read = costs.kv_cache_bytes(length, kv_heads, 128, batch=batch) / 1e6
    return Number(
        f"One layer attends for one new token of each of {batch} sequences with {length:,} keys: {heads} query heads, "
        f"{kv_heads} key heads, d = 128, fp16. How many MB (10⁶ bytes) of keys and values must it read at least?",
        Figure(
            read,
            "MB",
            f"2 · {batch} · {kv_heads} · {length:,} · 128 numbers of 2 bytes.",
            tolerance=0.01,
            mistakes=(
                Mistake(read * heads / kv_heads, "Query heads share the keys that are read."),
                Mistake(read / 2, "That is K without the values."),
                Mistake(read / batch, "That is only one of the sequences."),
            ),
        ),
        read_again=WHY,
    )


def pages_of_a_batch(draw: Random) -> Grid:
    """Pages and what they waste"""
    lengths = draw.sample((37, 50, 75, 90, 111, 130), 2)
    sizes = draw.choice(((16, 64), (8, 32), (16, 128)))

    def cells(length: int) -> tuple[Figure, ...]:
        found = []
        for size in sizes:
            pages = costs.ceil_div(length, size)
            empty = pages * size - length
            found.append(
                Figure(
                    empty,
                    "rows",
                    f"{pages} pages have {pages * size} rows for {length} tokens.",
                    mistakes=tuple(
                        Mistake(value, why)
                        for value, why in (
                            (length % size, "These rows of the last page are full."),
                            (size, "The last page is not empty."),
                        )
                        if value != empty
                    ),
                )
            )
        return tuple(found)

    return Grid(
        "How many rows of a sequence's pages hold no token?",
        tuple(f"{length} tokens" for length in lengths),
        tuple(f"pages of {size}" for size in sizes),
        tuple(cells(length) for length in lengths),
        read_again=PAGES,
    )


def room_for_a_prompt(draw: Random) -> Aggregate:
    """Pages of a shared prompt"""
    size, count = 16, draw.choice((6, 10, 25))
    prefix, own = size * draw.choice((32, 64)), draw.choice((50, 70, 120))
    shared, each = costs.ceil_div(prefix, size), costs.ceil_div(own, size)
    return Aggregate(
        f"{count} sequences begin with the same {prefix} tokens in shared pages of {size}; then each has {own} tokens "
        "of its own. How many pages are taken?",
        (
            (
                "of the shared tokens",
                Figure(
                    shared,
                    "pages",
                    f"{prefix} / {size}, once for all.",
                    mistakes=(Mistake(shared * count, "All tables name the same pages."),),
                ),
            ),
            (
                "of the own tokens",
                Figure(
                    each * count,
                    "pages",
                    f"{own} tokens take {each} pages, {count} times.",
                    mistakes=(
                        Mistake(each, "That is only one sequence."),
                        Mistake(
                            costs.ceil_div(own * count, size),
                            "No two sequences write to one page: round up for each.",
                        ),
                    ),
                ),
            ),
        ),
        read_again=PREFIX,
    )


def paging_and_time(draw: Random) -> TrueFalse:
    """What pages are for"""
    if draw.choice((True, False)):
        return TrueFalse(
            "A kernel that reads a cache in pages takes less time than the same kernel on a contiguous cache.",
            False,
            "It reads the same bytes, and the table besides. Pages save room, not time.",
            read_again=PAGES,
        )
    return TrueFalse(
        "With pages more sequences fit into the same memory, although attention to each does not get faster.",
        True,
        "A contiguous cache reserves rows for the longest answer; pages are taken as they are needed.",
        read_again=PAGES,
    )


def kept_by_a_graph(draw: Random) -> Votes:
    """What a graph keeps"""
    length = draw.choice((1024, 2048))
    return Votes(
        f"A decode step is captured as a CUDA graph at {length:,} keys. What do all replays keep?",
        shuffled(
            draw,
            Option("The number of blocks of each launch.", "The grid is part of the graph.", right=True),
            Option("The addresses of the tensors.", "A pointer is an argument, and is kept.", right=True),
            Option(
                "A length passed as a number.",
                "It is an argument: replays attend to the same keys.",
                right=True,
            ),
            Option(
                "The lengths in a tensor on the device.",
                "Only its address is kept: change it in place.",
            ),
            Option(
                "Which pages the block table names.",
                "The kernel reads the table at each replay.",
            ),
        ),
        read_again=LAUNCH,
    )


def wrong_for_some(draw: Random) -> Choice:
    """Right alone, wrong together"""
    batch = draw.choice((4, 8, 16))
    return Choice(
        f"One user gets right answers. Of {batch} users all get an answer to the first one's prompt, and the sanitizer "
        "is silent. Where do you look first?",
        shuffled(
            draw,
            Option(
                "Where a sequence finds its row of the block table.",
                "All read the first row: valid pages of somebody else.",
                right=True,
            ),
            Option(
                "In the merge of the parts.",
                "Wrong parts would be a mixture, for one user as well.",
            ),
            Option(
                "In the online softmax.",
                "It would be wrong for one user, too.",
            ),
            Option(
                "In the tail of the last page.",
                "That would add wrong keys for one user as well.",
            ),
        ),
        read_again=WRONG,
        kind="scenario",
    )


def bits_of_a_batch(draw: Random) -> Choice:
    """The same bits in any batch"""
    splits = draw.choice((4, 8, 16))
    return Choice(
        "A sequence's output must have the same bits in any batch. How should its keys be cut?",
        shuffled(
            draw,
            Option(
                f"Into pieces of a fixed size, such as {2 * SHORTEST_PIECE} keys.",
                "Then the order of the sum follows from the sequence alone.",
                right=True,
            ),
            Option(
                f"Into {splits} pieces a sequence on average, all of one size.",
                "That size follows from the lengths of all sequences.",
            ),
            Option(
                "By the waves of blocks that fill the GPU.",
                "It depends on how many sequences there are.",
            ),
            Option(
                "In any way, with parts in fp32.",
                "Another order still gives other last bits.",
            ),
        ),
        read_again=BATCH_CHANGES_BITS,
    )


def cache_for_a_server(draw: Random) -> TradeOff:
    """A cache for a server"""
    longest, mean = draw.choice(((8192, 1100), (16384, 1500), (4096, 700)))
    one = costs.kv_cache_bytes(1, 8, 128, layers=32) / 1e6

    def option(text: str, rows: int, bytes_of: float, exact: str, why: str, right: bool = False) -> Option:
        return Option(text, why, right, (f"{one * bytes_of * rows:,.0f} MB", exact))

    return TradeOff(
        f"Requests have {mean:,} tokens on average and {longest:,} at most. Outputs must stay as with 16 bits. Which "
        "cache serves the most sequences?",
        ("memory of a sequence, on average", "outputs as with 16 bits"),
        shuffled(
            draw,
            option(
                "contiguous, fp16",
                longest,
                1,
                "yes",
                "It reserves room for the longest answer.",
            ),
            option(
                "pages of 16, fp16",
                mean + 8,
                1,
                "yes",
                "A sequence wastes half a page, and the numbers are the same.",
                right=True,
            ),
            option(
                "pages of 256, fp16",
                mean + 128,
                1,
                "yes",
                "Half of the last page is empty: smaller pages waste less.",
            ),
            option(
                "pages of 16, E4M3",
                mean + 8,
                0.5,
                "no",
                "The smallest, but eight bits change the outputs.",
            ),
        ),
        read_again=PAGES,
    )


QUESTIONS: tuple[Source, ...] = (
    bytes_of_a_step,
    pages_of_a_batch,
    paging_and_time,
    cache_for_a_server,
    room_for_a_prompt,
    kept_by_a_graph,
    bits_of_a_batch,
    wrong_for_some,
)
