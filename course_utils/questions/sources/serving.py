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
ONCE = "2 Every key is read once"
PAGES = "5 Pages"
PREFIX = "7 A shared prefix"
LAUNCH = "9 One launch for a step"
COMPANY = "11 Company changes bits"
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
            f"2 · {batch} · {kv_heads} · {length:,} · 128 numbers of 2 bytes: keys and values, by key heads.",
            tolerance=0.01,
            mistakes=(
                Mistake(read * heads / kv_heads, "Query heads that share a key head share what is read of it."),
                Mistake(read / 2, "That is K alone. The values are read as well."),
                Mistake(read / batch, "That is one sequence. Each has a cache of its own."),
            ),
        ),
        read_again=WHY,
    )


def why_pack(draw: Random) -> Choice:
    """What packing gains"""
    group = draw.choice((4, 8))
    return Choice(
        f"{group} query heads share a key head. A kernel makes them rows of one tile of the tensor cores. What is the "
        "gain in a decode step?",
        shuffled(
            draw,
            Option(
                "Each key and value comes from memory once for all of them.",
                f"A block for each query head would ask {group} times for the same bytes, and bytes are the time.",
                right=True,
            ),
            Option(
                "The tensor cores do the products faster than the CUDA cores.",
                "They do, and hardly matter: there are only a few products for each byte that is read.",
            ),
            Option(
                f"There are {group} times as many blocks to fill the GPU.",
                "There are fewer: one block for each key head. Filling the GPU is what splits are for.",
            ),
            Option(
                "The softmax of the heads is shared.",
                "Each row has its own scores, maximum and sum. Only keys and values are shared.",
            ),
        ),
        read_again=ONCE,
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
                    f"{pages} pages of {size} have {pages * size} rows, and {length} of them hold a token.",
                    mistakes=tuple(
                        Mistake(value, why)
                        for value, why in (
                            (length % size, "That many tokens are in the last page. The others of its rows are empty."),
                            (size, "The last page is not empty: it would not have been taken."),
                        )
                        if value != empty
                    ),
                )
            )
        return tuple(found)

    return Grid(
        "A sequence takes whole pages. How many rows of its pages hold no token?",
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
        f"{count} sequences begin with the same {prefix} tokens, which lie in shared pages of {size}; then each has "
        f"{own} tokens of its own. How many pages are taken?",
        (
            (
                "of the prompt",
                Figure(
                    shared,
                    "pages",
                    f"{prefix} / {size}, once for all.",
                    mistakes=(Mistake(shared * count, "The pages are shared: all tables name the same ones."),),
                ),
            ),
            (
                "of the own tokens",
                Figure(
                    each * count,
                    "pages",
                    f"{own} tokens take {each} pages, and {count} sequences do so.",
                    mistakes=(
                        Mistake(each, "That is one sequence."),
                        Mistake(
                            costs.ceil_div(own * count, size),
                            "Sequences do not share the page that they write to: round up for each.",
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
            "It reads the same bytes, and the table besides. Pages save room: more sequences fit, and that raises "
            "the tokens per second of the whole server.",
            read_again=PAGES,
        )
    return TrueFalse(
        "With pages more sequences fit into the same memory, although attention to each does not get faster.",
        True,
        "A contiguous cache must reserve rows for the longest answer that may come. Pages are taken as they "
        "are needed.",
        read_again=PAGES,
    )


def kept_by_a_graph(draw: Random) -> Votes:
    """What a graph keeps"""
    length = draw.choice((1024, 2048))
    return Votes(
        f"A decode step is captured as a CUDA graph while the sequences have {length:,} keys. Which of these "
        "are fixed from "
        "then on, however often it is replayed?",
        shuffled(
            draw,
            Option("The number of blocks of each launch.", "The grid is part of the node.", right=True),
            Option("The addresses of the tensors.", "Pointers are arguments, and arguments are kept.", right=True),
            Option(
                "A length that was handed over as a number.",
                "It is a scalar argument: replays would attend the same keys for ever.",
                right=True,
            ),
            Option(
                "The lengths in a tensor on the device.",
                "Its address is fixed, not what stands there: change it in place before a replay.",
            ),
            Option(
                "Which pages the block table names.",
                "The table is read by the kernel, at each replay anew.",
            ),
        ),
        read_again=LAUNCH,
    )


def wrong_for_some(draw: Random) -> Choice:
    """Right alone, wrong together"""
    batch = draw.choice((4, 8, 16))
    return Choice(
        f"A server's answers are right when one user is there. With {batch} users all seem to get an answer "
        "to the first "
        "one's prompt. The sanitizer is silent. Where do you look first?",
        shuffled(
            draw,
            Option(
                "Where a sequence finds its row of the block table.",
                "All read the first row: valid pages, valid keys, of somebody else. A single sequence cannot show it.",
                right=True,
            ),
            Option(
                "In the merge of the parts.",
                "Parts of another piece would give a mixture, with one user as well as with many.",
            ),
            Option(
                "In the online softmax.",
                "It knows nothing of other sequences, and would be wrong for one user, too.",
            ),
            Option(
                "In the tail of the last page.",
                "An attended tail adds keys that are none, to each sequence whose length is no multiple of the page.",
            ),
        ),
        read_again=WRONG,
        kind="scenario",
    )


def bits_of_a_batch(draw: Random) -> Choice:
    """The same bits in any batch"""
    splits = draw.choice((4, 8, 16))
    return Choice(
        "A sequence's output must have the same bits whoever else is in the batch. How should its keys be cut?",
        shuffled(
            draw,
            Option(
                f"Into pieces of a fixed size, such as {2 * SHORTEST_PIECE} keys.",
                "Then where the pieces begin, and the order of their sum, follow from the sequence alone.",
                right=True,
            ),
            Option(
                f"Into a fixed number of splits, such as {splits} on average.",
                "With lengths that differ, the size of a piece then follows from the sum of all lengths.",
            ),
            Option(
                "By the waves of blocks that fill the GPU.",
                "That number depends on how many sequences there are.",
            ),
            Option(
                "In any way, if the parts are kept in fp32.",
                "fp32 makes the differences small. A sum in another order still has other last bits.",
            ),
        ),
        read_again=COMPANY,
    )


def cache_for_a_server(draw: Random) -> TradeOff:
    """A cache for a server"""
    longest, mean = draw.choice(((8192, 1100), (16384, 1500), (4096, 700)))
    one = costs.kv_cache_bytes(1, 8, 128, layers=32) / 1e6

    def option(text: str, rows: int, bytes_of: float, exact: str, why: str, right: bool = False) -> Option:
        return Option(text, why, right, (f"{one * bytes_of * rows:,.0f} MB", exact))

    return TradeOff(
        f"Requests have {mean:,} tokens in the mean, prompt and answer, and {longest:,} at most. Outputs must "
        "stay what 16 "
        "bits give. Which cache serves the most sequences?",
        ("memory of a sequence, in the mean", "numbers as in 16 bits"),
        shuffled(
            draw,
            option(
                "contiguous, fp16",
                longest,
                1,
                "yes",
                "Nobody knows how long an answer gets, so room for the longest is reserved. What is it filled with?",
            ),
            option(
                "pages of 16, fp16",
                mean + 8,
                1,
                "yes",
                "A sequence wastes half a page in the mean, and the numbers are the same.",
                right=True,
            ),
            option(
                "pages of 256, fp16",
                mean + 128,
                1,
                "yes",
                "Half of a last page of 256 rows is empty, in the mean. Smaller pages waste less.",
            ),
            option(
                "pages of 16, E4M3",
                mean + 8,
                0.5,
                "no",
                "It would be the smallest, but eight bits are other numbers, and the outputs change.",
            ),
        ),
        read_again=PAGES,
    )


QUESTIONS: tuple[Source, ...] = (
    bytes_of_a_step,
    why_pack,
    pages_of_a_batch,
    paging_and_time,
    cache_for_a_server,
    room_for_a_prompt,
    kept_by_a_graph,
    bits_of_a_batch,
    wrong_for_some,
)
