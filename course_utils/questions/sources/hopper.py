"""Questions of chapter 07: asynchronous products and copies, the ring, registers, and missing fences."""

from __future__ import annotations

from random import Random

from course_utils import costs
from course_utils.operators.hopper_launch import KEYS, HopperTile
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

WGMMA = "2 Step 1: wgmma"
COPIES = "3 Step 2: the copy engine"
RING = "4 Step 3: producer and consumers"
ORDER = "8 Step 7: order"
MISSING = "13 The fence that is missing"


def bytes_to_expect(draw: Random) -> Aggregate:
    """Bytes to expect"""
    queries, keys, d = draw.choice((64, 192)), draw.choice((96, 128, 176)), draw.choice((64, 128))
    of_tile = costs.kv_cache_bytes(keys, 1, d)  # of K and V
    of_queries = costs.kv_cache_bytes(queries, 1, d) // 2
    return Aggregate(
        f"One mbarrier counts the first tiles of a block: a tile of {queries} queries, and of K and V a tile of {keys} "
        f"keys each, d = {d}, 16 bits. How many bytes must be expected?",
        (
            (
                "of Q",
                Figure(
                    of_queries,
                    "bytes",
                    f"{queries} queries · {d} numbers · 2 bytes.",
                    mistakes=(Mistake(of_queries // 2, "A number in 16 bits has two bytes."),),
                ),
            ),
            (
                "of K and V",
                Figure(
                    of_tile,
                    "bytes",
                    f"2 tiles · {keys} keys · {d} numbers · 2 bytes.",
                    mistakes=(
                        Mistake(of_tile // 2, "That is one tile; both count here."),
                        Mistake(of_tile // 4, "A number has two bytes, and there are two tiles."),
                    ),
                ),
            ),
        ),
        read_again=COPIES,
        total_label="to expect",
    )


def places_in_a_ring(draw: Random) -> Grid:
    """Places in a ring"""
    buffers = draw.choice((3, 4))
    tiles = sorted(draw.sample(range(buffers, 5 * buffers), 3))

    def cells(t: int) -> tuple[Figure, Figure]:
        around = costs.ceil_div(t + 1, buffers) - 1
        times = "once" if around == 1 else f"{around} times"
        return (
            Figure(t - around * buffers, "", f"Tile {t} is in buffer {t} mod {buffers}."),
            Figure(
                around % 2,
                "",
                f"The ring has gone around {times} before; the parity is that number's last bit.",
                mistakes=(Mistake(1 - around % 2, "The first time around has parity 0, the second has 1."),),
            ),
        )

    return Grid(
        f"A ring has {buffers} buffers. Buffers and tiles are numbered from 0. Which buffer has a tile, and for which "
        "parity of `full` does its consumer wait?",
        tuple(f"tile {t}" for t in tiles),
        ("buffer", "parity"),
        tuple(cells(t) for t in tiles),
        read_again=RING,
    )


def registers_that_move(draw: Random) -> Number:
    """Registers that move"""
    consumers, start, low = draw.choice(((2, 168, 40), (2, 168, 24), (3, 128, 32), (3, 128, 56)))
    threads = HopperTile(64, consumers).threads
    computing, moved = threads - 128, 128 * (start - low)
    return Number(
        f"A block has a producer and {consumers} consumers, 128 threads each, and starts with {start} registers a "
        f"thread. The producer keeps {low} a thread. How many can a consumer's thread have?",
        Figure(
            (threads * start - 128 * low) // computing,
            "registers",
            f"128 · ({start} − {low}) = {moved:,} registers move to {computing} threads.",
            mistakes=(
                Mistake(2 * start - low, "That gives all of them to one consumer."),
                Mistake(start, "Consumers take what the producer gave."),
            ),
        ),
        read_again=RING,
    )


def consumers_of_a_block(draw: Random) -> TradeOff:
    """Consumers of a block"""
    d, length = draw.choice((64, 128)), draw.choice((8192, 16384))
    needed = KEYS // 2 + d // 2 + KEYS // 4 + 30  # S, O and P of a thread, and all else
    allowed = {1: 255, 2: 240, 3: 160}

    def option(text: str, consumers: int, buffers: int, why: str, right: bool = False) -> Option:
        rows = HopperTile(d, consumers).block_rows
        shared = costs.tile_shared_bytes(rows, KEYS, d, 2, kv_buffers=buffers, output_tile=True)
        read = costs.ceil_div(length, rows) * costs.kv_cache_bytes(length, 1, d)
        return Option(text, why, right, (f"{shared / 1024:.0f} KiB", f"{allowed[consumers]}", f"{read / 1e6:,.0f} MB"))

    three = d == 64
    return TradeOff(
        f"A block of a Hopper kernel with d = {d} has 64 queries for each consumer, and reads K and V once for all of "
        f"them. A consumer's thread needs {needed} registers, and a block has at most 227 KiB of shared memory. Which "
        "block reads least for a head?",
        ("shared memory", "registers a consumer's thread may have", "K and V read for a head"),
        shuffled(
            draw,
            option("one consumer, two buffers", 1, 2, "It fits, but has the fewest queries for each tile."),
            option(
                "two consumers, two buffers",
                2,
                2,
                "It fits, but a larger block fits, too." if three else "The most queries that fit.",
                right=not three,
            ),
            option(
                "two consumers, three buffers",
                2,
                3,
                "With a third buffer the producer runs further ahead; the block reads no less."
                if three
                else "It does not fit, and would read no less.",
            ),
            option(
                "three consumers, two buffers",
                3,
                2,
                "At d = 64 O takes half as many registers, so they suffice."
                if three
                else "Too few registers: the compiler would spill sums in the inner loop.",
                right=three,
            ),
        ),
        read_again=ORDER,
    )


def not_there_yet(draw: Random) -> Choice:
    """A result that is not there"""
    number = draw.choice((1, 2))
    return Choice(
        f"A warpgroup starts {number + 1} products, each in its own group, and calls `wgmma_wait<{number}>()`. Which "
        "results may it read?",
        shuffled(
            draw,
            Option(
                "The result of the first product alone.",
                f"At most the {number} newest groups still run, so the oldest is done.",
                right=True,
            ),
            Option("The result of the last product alone.", "Groups end in the order of their commits."),
            Option("All results.", f"That needs wgmma_wait<0>: {number} may still run."),
            Option("None: it must wait at an mbarrier.", "Copies have mbarriers; products have groups."),
        ),
        read_again=WGMMA,
    )


def one_parity(draw: Random) -> TrueFalse:
    """What a parity says"""
    if draw.choice((True, False)):
        return TrueFalse(
            "A thread that has waited for parity 0 of an mbarrier knows how many phases of it are over.",
            False,
            "It knows that the newest phase of parity 0 is over: the first, the third or the fifth. The thread counts "
            "phases itself.",
            read_again=COPIES,
        )
    return TrueFalse(
        "A producer whose first waits at `empty` name parity 0 never asks for a tile.",
        True,
        "The first phase of `empty` ends when consumers have used a tile, and none has come. Parity 1 counts as over.",
        read_again=RING,
    )


def between_proxies(draw: Random) -> Votes:
    """Which pairs need a fence"""
    return Votes(
        "Which of these need `fence.proxy.async` between them, and not a barrier alone?",
        shuffled(
            draw,
            Option(
                "Threads write P to shared memory; a product reads it there.",
                "wgmma reads through the async proxy.",
                right=True,
            ),
            Option(
                "Threads write O to a tile; the copy engine stores it.",
                "The copy engine reads through the async proxy.",
                right=True,
            ),
            Option("Threads write a tile; other threads read it.", "All use the generic proxy: a barrier is enough."),
            Option(
                "The copy engine brings K; a product reads it.", "Both use the async proxy; the mbarrier orders them."
            ),
        ),
        read_again=MISSING,
    )


def silent_tools(draw: Random) -> Choice:
    """Right today"""
    return Choice(
        "A Hopper kernel gave right numbers for weeks. With a new compiler a few outputs are wrong. memcheck and "
        "racecheck are silent. What do you suspect first?",
        shuffled(
            draw,
            Option(
                "A wait or a fence is missing between a product or a copy and the threads.",
                "The order was luck, and the new instructions changed it. These tools do not see it.",
                right=True,
            ),
            Option("An array is read past its end.", "memcheck sees what threads read."),
            Option(
                "The new compiler has a mistake.",
                "Possible, but rare: first look for a pair of events without an order.",
            ),
            Option("fp16 is too coarse.", "It was the same before, and rounding spreads over all outputs."),
        ),
        read_again=MISSING,
        kind="scenario",
    )


QUESTIONS: tuple[Source, ...] = (
    not_there_yet,
    bytes_to_expect,
    one_parity,
    places_in_a_ring,
    registers_that_move,
    consumers_of_a_block,
    between_proxies,
    silent_tools,
)
