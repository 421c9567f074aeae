"""Questions of chapter 07: products and copies that run by themselves, the ring, registers, order, "
"and what is missing."""

from __future__ import annotations

from random import Random

from course_utils.questions.question import (
    Choice,
    Figure,
    Grid,
    Mistake,
    Number,
    Option,
    Source,
    TrueFalse,
    Votes,
    shuffled,
)

WGMMA = "2 Step 1: wgmma"
COPIES = "3 Step 2: the copy engine"
RING = "4 Step 3: producer and consumers"
OVERLAP = "5 Step 4: softmax beside a product"
STAYS = "7 Step 6: blocks that stay"
ORDER = "8 Step 7: order"
MISSING = "10 The fence that is missing"
FLOP_OF_A_CYCLE = 4096


def bytes_to_expect(draw: Random) -> Number:
    """Bytes to expect"""
    keys, d = draw.choice((64, 128, 176)), draw.choice((64, 128))
    size = 2 * keys * d
    return Number(
        f"One mbarrier counts the bytes of a tile of K and a tile of V, {keys} keys each, d = {d}, 16 bits. How many "
        "bytes must the thread that asks for them expect?",
        Figure(
            2 * size,
            "bytes",
            f"2 tiles · {keys} keys · {d} numbers · 2 bytes. With fewer the phase ends too early, with more it "
            f"never ends.",
            mistakes=(
                Mistake(size, "That is one tile. Both count at this mbarrier."),
                Mistake(size // 2, "A number has two bytes, and there are two tiles."),
            ),
        ),
        read_again=COPIES,
    )


def places_in_a_ring(draw: Random) -> Grid:
    """Places in a ring"""
    buffers = draw.choice((3, 4))
    tiles = sorted(draw.sample(range(buffers, 5 * buffers), 3))

    def cells(t: int) -> tuple[Figure, Figure]:
        around = t // buffers
        return (
            Figure(t % buffers, "", f"{t} mod {buffers}.", mistakes=()),
            Figure(
                around % 2,
                "",
                f"The ring has gone around {around} times before, and that number's last bit is the parity.",
                mistakes=(Mistake(1 - around % 2, "The first time around has parity 0, the second 1."),),
            ),
        )

    return Grid(
        f"A ring has {buffers} buffers, numbered from 0. Tiles are numbered from 0, too. Where is a tile, and "
        f"for which "
        "parity of `full` does its consumer wait?",
        tuple(f"tile {t}" for t in tiles),
        ("buffer", "parity"),
        tuple(cells(t) for t in tiles),
        read_again=RING,
    )


def registers_that_move(draw: Random) -> Number:
    """Registers that move"""
    consumers, start, low = draw.choice(((2, 168, 40), (2, 168, 24), (3, 128, 32)))
    moved = 128 * (start - low)
    return Number(
        f"A block has a producer and {consumers} consumers, 128 threads each, and starts with {start} "
        f"registers a thread. "
        f"The producer keeps {low}. How many can each thread of a consumer have?",
        Figure(
            start + moved // (128 * consumers),
            "registers",
            f"128 · ({start} − {low}) = {moved:,} registers move to {128 * consumers} threads.",
            mistakes=(
                Mistake(2 * start - low, "That gives all of them to one consumer."),
                Mistake(start, "setmaxnreg moves registers within the block: consumers take what the producer gave."),
            ),
        ),
        read_again=RING,
    )


def not_there_yet(draw: Random) -> Choice:
    """A result that is not there"""
    number = draw.choice((1, 2))
    return Choice(
        f"A warpgroup starts {number + 1} products, each in a group of its own, and calls "
        f"`wgmma_wait<{number}>()`. Which "
        "results may it read?",
        shuffled(
            draw,
            Option(
                "Those of the first product alone.",
                f"At most the {number} newest groups still run. So the oldest is done.",
                right=True,
            ),
            Option("Those of the last product alone.", "Groups end in the order in which they were committed."),
            Option("Those of all products.", f"That needs wgmma_wait<0>: {number} may still run."),
            Option(
                "None: it must wait at an mbarrier.", "An mbarrier is for copies; products have groups of their own."
            ),
        ),
        read_again=WGMMA,
    )


def one_parity(draw: Random) -> TrueFalse:
    """What a parity says"""
    if draw.choice((True, False)):
        return TrueFalse(
            "A thread that has waited for parity 0 of an mbarrier knows how many phases of it are over.",
            False,
            "It knows that the newest phase of parity 0 is over: the first, or the third, or the fifth. It must count "
            "the rest itself, and must not fall two phases behind.",
            read_again=COPIES,
        )
    return TrueFalse(
        "The first wait for parity 1 of a fresh mbarrier ends at once.",
        True,
        "A phase of parity 1 counts as over. So a producer finds every place of the ring empty at first.",
        read_again=RING,
    )


def beside_what(draw: Random) -> Choice:
    """What hides the softmax"""
    return Choice(
        "Within one warpgroup, step 4 lets the softmax of a tile run beside a product. Beside which one?",
        shuffled(
            draw,
            Option("P V of the tile before.", "Its weights are ready, and nobody needs its sum yet.", right=True),
            Option("Q Kᵀ of the same tile.", "The softmax needs its result: it must be waited for."),
            Option("P V of the same tile.", "Its weights are what the softmax is just computing."),
            Option("Q Kᵀ of the tile after next.", "S of the next tile is in the registers that it would need."),
        ),
        read_again=OVERLAP,
    )


def share_of_the_peak(draw: Random) -> Number:
    """Share of the peak"""
    d, cycles = draw.choice(((128, 2800), (128, 3200), (64, 2000)))
    flop = 2 * 2 * 128 * 128 * d
    return Number(
        f"A block multiplies 128 queries by tiles of 128 keys, d = {d}: Q Kᵀ and P V. From tile to tile it "
        f"takes {cycles:,} "
        f"cycles. A multiprocessor's tensor cores can do {FLOP_OF_A_CYCLE:,} FLOP a cycle. Which share of that is it?",
        Figure(
            100 * flop / (cycles * FLOP_OF_A_CYCLE),
            "%",
            f"2 products · 2 · 128 · 128 · {d} = {flop:,} FLOP, in {cycles:,} · {FLOP_OF_A_CYCLE:,}.",
            tolerance=0.02,
            mistakes=(
                Mistake(
                    50 * flop / (cycles * FLOP_OF_A_CYCLE), "A multiply-add is two FLOP, and there are two products."
                ),
            ),
        ),
        read_again=WGMMA,
    )


def who_ends_last(draw: Random) -> Choice:
    """Who ends last"""
    blocks = draw.choice((114, 132))
    return Choice(
        f"{blocks} blocks fetch items of causal attention, from the first rows of each head to the last. At "
        f"the end most "
        "of them are idle. What helps?",
        shuffled(
            draw,
            Option(
                "The longest items first.",
                "What is left at the end is short, and fills the gaps between those that end at different times.",
                right=True,
            ),
            Option("Fewer blocks.", "Then even fewer work, all the time."),
            Option("A larger tile of keys.", "That makes each step of an item longer, and the items no more equal."),
            Option("More buffers in the ring.", "Tiles come early enough; it is whole items that are unequal."),
        ),
        read_again=ORDER,
    )


def between_proxies(draw: Random) -> Votes:
    """Which pairs need a fence"""
    return Votes(
        "Which of these need `fence.proxy.async` between them, and not a barrier alone?",
        shuffled(
            draw,
            Option(
                "Threads write P to shared memory; a product reads it there.",
                "wgmma reads by another proxy.",
                right=True,
            ),
            Option("Threads write O to a tile; the copy engine stores it.", "So does the copy engine.", right=True),
            Option(
                "Threads write a tile; other threads read it.", "All of them use the same proxy: a barrier is enough."
            ),
            Option(
                "The copy engine brings K; a product reads it.", "Both are of that proxy; the mbarrier orders them."
            ),
        ),
        read_again=MISSING,
    )


def silent_tools(draw: Random) -> Choice:
    """Right today"""
    return Choice(
        "A Hopper kernel gave right numbers for weeks. With a new compiler a few outputs are wrong. memcheck "
        "and racecheck "
        "are silent. What do you suspect first?",
        shuffled(
            draw,
            Option(
                "A wait or a fence is missing between a product or a copy and the threads.",
                "Then it was luck who came first, and another order of instructions changed it. These tools do not "
                "see it.",
                right=True,
            ),
            Option("An array is read past its end.", "memcheck sees what threads read, and would say so."),
            Option("The new compiler has a mistake.", "Rarely. Look for what your kernel does not order, first."),
            Option("fp16 is too coarse.", "It was the same before, and rounding makes no few large errors."),
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
    beside_what,
    share_of_the_peak,
    who_ends_last,
    between_proxies,
    silent_tools,
)
