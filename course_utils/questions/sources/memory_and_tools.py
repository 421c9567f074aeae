"""Questions of chapter 00's second notebook: floors, sectors, tiles, and what the tools say."""

from __future__ import annotations

from random import Random

from course_utils import costs
from course_utils.questions.question import (
    Aggregate,
    Choice,
    Figure,
    Mistake,
    Number,
    Option,
    Source,
    TradeOff,
    TrueFalse,
    Votes,
)

WARP, SECTOR = 32, 32  # threads; bytes
FLOAT = 4  # bytes
MOST_REGISTERS = 255  # of a thread (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability")


def traffic_of_a_chain(draw: Random) -> Aggregate:
    """Three kernels in a row"""
    n = draw.choice((100, 200, 400, 500)) * 10**6  # in fp16 200 MB at least: more than any L2
    element = draw.choice((2, 4))
    kind = {2: "fp16", 4: "fp32"}[element]

    def part(label: str, reads: int, lesson: str = "") -> tuple[str, Figure]:
        step = costs.Step(label, bytes_read=reads * element * n, bytes_written=element * n)
        mistakes = (
            Mistake(
                step.bytes_written / 1e6, "That is one array. Count each one that is read, and the one that is written."
            ),
            Mistake(step.bytes_read / 1e6, "What is written was left out."),
        )
        return label, Figure(
            step.total / 1e6,
            "MB",
            f"Read {reads}, write 1, of {step.bytes_written / 1e6:.0f} MB each.{lesson}",
            tolerance=0.01,
            mistakes=mistakes[:reads],
        )

    fused = f" One kernel for all three would read a, b and w and write y: {4 * element * n / 1e6:.0f} MB."
    return Aggregate(
        f"Three kernels run one after the other on vectors of {n:,} numbers in {kind}. Each vector is larger than the "
        "L2 cache, so each kernel reads its inputs from HBM and writes its result there. How many bytes does each "
        "kernel move at least, and how many do all three?",
        (part("`t = a + b`", 2), part("`r = relu(t)`", 1), part("`y = r * w`", 2, fused)),
        "5 Two floors and a roof",
    )


def sectors_of_a_load(draw: Random) -> Number:
    """Sectors of a strided load"""
    stride, element = draw.choice((2, 3, 4, 5, 6, 7)), 2

    def sectors(step: int, size: int) -> int:
        """All sectors from the first address to the last, unless the threads skip some: then one for each thread."""
        return min(WARP, costs.ceil_div((WARP - 1) * step * size + size, SECTOR))

    return Number(
        f"A warp loads `x[{stride} * i]`, with i the thread's number in the warp. x holds fp16 numbers and starts at a "
        "sector. How many sectors does the load touch?",
        Figure(
            sectors(stride, element),
            "sectors",
            f"The {WARP} addresses are {stride * element} bytes apart, less than a sector, so no sector is skipped. "
            f"They span {(WARP - 1) * stride * element + element} bytes: {sectors(stride, element)} sectors.",
            mistakes=(
                Mistake(sectors(1, element), "That is a load of neighbours, without the stride."),
                Mistake(sectors(stride, FLOAT), "That counts 4 bytes for each number. fp16 has 2."),
                Mistake(WARP, "One sector for each thread: are all of them different?"),
            ),
        ),
        "6 Coalescing: neighbours read neighbours",
    )


def tile_of_a_product(draw: Random) -> TradeOff:
    """How large a tile of C"""
    side = draw.choice((1024, 2048, 4096))
    multiprocessors = draw.choice((108, 132))
    threads = 256
    tiles = (32, 64, 128, 256)
    blocks = {tile: (side // tile) ** 2 for tile in tiles}
    sums = {tile: tile**2 // threads for tile in tiles}
    requested = {tile: 2 * FLOAT * side**3 // tile for tile in tiles}
    allowed = [tile for tile in tiles if sums[tile] < MOST_REGISTERS and blocks[tile] >= multiprocessors]
    best = min(allowed, key=requested.__getitem__)

    def why(tile: int) -> str:
        if tile == best:
            return "Of the tiles that fit, it asks for the fewest bytes: each loaded element serves the most products."
        if sums[tile] >= MOST_REGISTERS:
            return f"{sums[tile]} sums do not fit in a thread's {MOST_REGISTERS} registers and would spill to memory."
        if blocks[tile] < multiprocessors:
            return f"{blocks[tile]} blocks leave some of the {multiprocessors} multiprocessors without work."
        return "It fits, but a larger tile that fits too would use each loaded element more often."

    options = tuple(
        Option(
            f"{tile} × {tile}",
            why(tile),
            right=tile == best,
            figures=(f"{requested[tile] / 1e9:.2f} GB", str(sums[tile]), f"{blocks[tile]:,}"),
        )
        for tile in tiles
    )
    return TradeOff(
        f"C = A B with sides of {side} in fp32. A block of {threads} threads computes a square tile of C and keeps its "
        f"sums in registers. A thread has at most {MOST_REGISTERS} registers. The GPU has {multiprocessors} "
        "multiprocessors, and each should get a block. Which tile asks the least of global memory?",
        ("global bytes requested", "sums per thread", "blocks"),
        options,
        "9 The matrix product, in tiles",
    )


def lucky_race(draw: Random) -> TrueFalse:
    """A product without its second barrier"""
    K = draw.choice((20, 24, 32, 33, 40, 64))
    rounds = costs.ceil_div(K, WARP)
    return TrueFalse(
        f"`matmul_tiled.cu` without its second barrier multiplies A [64, {K}] by B [{K}, 64]. `racecheck` "
        "finds a race.",
        rounds > 1,
        f"The second barrier protects a tile from the loads of the next round. K = {K} takes {rounds} round"
        + ("s: the race is there." if rounds > 1 else ", so nothing is overwritten. The race begins at K = 33."),
        "10 Reading a finding",
    )


def line_to_mend(draw: Random) -> Choice:
    """Which line of the table"""
    requests = draw.choice((1024, 2048, 4096))
    wide, narrow, few = 16 * requests, 4 * requests, requests // 16
    saved, saved_by_few = wide - narrow, 32 * few - 4 * few  # sectors beyond the ideal, on lines 19 and 23
    options = [
        Option(
            f"line 12: {requests:,} requests, {wide:,} sectors, ideal {wide:,}",
            "It moves the most, and its threads want every byte: the lowest price of 16 bytes per thread.",
        ),
        Option(
            f"line 19: {requests:,} requests, {wide:,} sectors, ideal {narrow:,}",
            f"It moves {wide // narrow} times what its threads ask for: {saved:,} sectors beyond the ideal.",
            right=True,
        ),
        Option(
            f"line 23: {few:,} requests, {few * 32:,} sectors, ideal {few * 4:,}",
            f"Its ratio to the ideal is the worst, but it runs seldom: mending it saves {saved_by_few:,} sectors.",
        ),
        Option(
            f"line 30: {requests:,} requests, {narrow:,} sectors, ideal {narrow:,}",
            "Each request has its lowest price: coalesced loads of 4 bytes per thread.",
        ),
    ]
    draw.shuffle(options)
    return Choice(
        "These are the global loads of a kernel, by line. You can bring one line to its ideal. Which one saves the "
        "most sectors?",
        tuple(options),
        "11 Reading a counter table",
    )


def meaning_of_silence(draw: Random) -> Votes:
    """What silence means"""
    tile = draw.choice((16, 32, 64))
    length = tile * draw.choice((2, 4))
    statements = [
        Option(
            f"At length {length} no access of this launch left its tensor.",
            "The emulator's memcheck saw each access to a tensor, and none was out of bounds.",
            right=True,
        ),
        Option(
            f"Length {length + 1} could still give a finding.",
            f"At {length + 1} the last tile is not full, and its checks are needed for the first time.",
            right=True,
        ),
        Option(
            "The result is right.",
            "A sanitizer knows no formula. A kernel that forgets to scale its scores is clean.",
        ),
        Option(
            "The kernel is free of races at every length.",
            "The tools speak of the path that was executed. Another length takes another path.",
        ),
        Option(
            "The kernel does not waste memory traffic.",
            "Waste is no error. Only counters show it.",
        ),
    ]
    draw.shuffle(statements)
    return Votes(
        f"A kernel works on tiles of {tile}. You run it once, at length {length}, inside `emulator.sanitize()`. There "
        "is no finding. Which statements follow?",
        tuple(statements),
        "12 What silence does not prove",
    )


QUESTIONS: tuple[Source, ...] = (
    traffic_of_a_chain,
    sectors_of_a_load,
    tile_of_a_product,
    lucky_race,
    line_to_mend,
    meaning_of_silence,
)
