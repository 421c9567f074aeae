"""Questions of chapter 03's first notebook: floors, fragments, banks, asynchronous copies and registers."""

from random import Random

from course_utils import costs, measured
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

LANES, BANKS, BANK = 32, 32, 4  # of a warp; of shared memory, each so many bytes wide
REGISTER = 4  # bytes
MOST_REGISTERS = 255  # of a thread (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability")


def registers_for_s_and_o(draw: Random) -> Question:
    """Registers of S and O"""
    queries, columns, d = draw.choice((16, 32)), draw.choice((64, 128)), draw.choice((64, 128))
    warps = 4
    scores = costs.score_matrix_bytes(1, 1, queries, columns, REGISTER) / (REGISTER * LANES)
    output = costs.tile_shared_bytes(queries, columns, d, REGISTER, kv_buffers=0) / (REGISTER * LANES)  # as large as Q
    packed = "The sums are fp32, a register each. Only P is packed, once it is rounded."
    whole = "That is the whole block's tile. A warp has its own rows only."
    least = f"Of {MOST_REGISTERS} that a lane can have."

    def figure(registers: float, width: int) -> Figure:
        return Figure(
            registers,
            "registers",
            f"{queries} rows of {width} fp32 numbers over {LANES} lanes. {least}",
            mistakes=(Mistake(registers / 2, packed), Mistake(warps * registers, whole)),
        )

    return Aggregate(
        prompt=(
            f"A block of {warps} warps holds {warps * queries} queries, {queries} for each warp (split Q). Its tiles "
            f"have {columns} keys, and d = {d}. S and O are accumulated in fp32 by `mma.sync`. How many registers "
            "does one lane need for its part of S and of O?"
        ),
        parts=(("S", figure(scores, columns)), ("O", figure(output, d))),
        read_again="Step 7: tuning",
        total_label="together",
    )


def wavefronts_of_a_matrix(draw: Random) -> Question:
    """Rows, padding and banks"""
    widths = draw.sample((32, 48, 64, 96, 128), 2)
    paddings = (0, 8, 16)

    def cell(width: int, padding: int) -> Figure:
        pitch = 2 * (width + padding)
        count = max(costs.ldmatrix_turns([pitch * row for row in range(8)])) + 1
        groups = [pitch * row // (4 * BANK) % (BANKS // 4) for row in range(8)]
        return Figure(
            count,
            "wavefronts",
            f"Rows of {pitch} bytes, bank groups {', '.join(map(str, groups))}: at most {count} in one.",
            mistakes=(Mistake(4 * count, "That is `ldmatrix.x4`: four such matrices."),),
        )

    return Grid(
        prompt=(
            "`ldmatrix` reads a matrix of 8 × 8 numbers of 16 bits: one chunk of 16 bytes from each of eight "
            "neighbouring rows. Shared memory has 32 banks of 4 bytes, so a chunk takes a group of four banks. "
            "How many wavefronts does one matrix take, for rows of this many numbers and this much padding?"
        ),
        rows=tuple(f"{padding} numbers of padding" if padding else "no padding" for padding in paddings),
        columns=tuple(f"{width} numbers" for width in widths),
        cells=tuple(tuple(cell(width, padding) for width in widths) for padding in paddings),
        read_again="Step 3: swizzle",
    )


def whose_copies(draw: Random) -> Question:
    """Whose copies have arrived"""
    warps = draw.choice((4, 8))
    readable, holds = draw.choice((("the whole tile", False), ("the chunks that it has copied itself", True)))
    return TrueFalse(
        statement=(
            f"A block of {warps} warps copies a tile of K with `cp.async`, each thread some chunks of it. Once a "
            f"thread has returned from `wait_for_copies<0>()`, it may read {readable}, before any barrier."
        ),
        holds=holds,
        why=(
            "The wait covers the thread's own copies. The other threads' copies are there after a barrier, which all "
            "threads pass after their own wait."
        ),
        read_again="Step 3b: copies past the registers",
    )


def why_p_stays(draw: Random) -> Question:
    """Why P need not move"""
    options = [
        Option(
            "A lane holds the same places of a result D as of a left factor A",
            "So P, rounded and packed in pairs, is the left factor of P V as it lies: two products of 8 keys make one "
            "fragment of 16 columns.",
            right=True,
        ),
        Option(
            "Each lane holds whole rows of S, so that the softmax needs no other lane",
            ("Four lanes share a row, and agree on its maximum by two shuffles. That would not bring P into place."),
        ),
        Option(
            "`mma.sync` reads its left factor from shared memory by itself",
            "All factors of `mma.sync` are registers. `ldmatrix` brings them from shared memory.",
        ),
        Option(
            "P is the transpose of what V needs, and `ldmatrix.trans` turns it in registers",
            "`ldmatrix` reads from shared memory, not from registers. It is V whose columns are wanted.",
        ),
    ]
    draw.shuffle(options)
    return Choice(
        prompt="From step 5 on, P goes from one product to the next without shared memory. What makes that possible?",
        options=tuple(options),
        read_again="Step 5: P in registers",
    )


def queries_per_warp(draw: Random) -> Question:
    """Queries per warp"""
    columns, d = draw.choice(((64, 64), (128, 64), (32, 64), (128, 128)))
    others = 60  # registers for addresses, fragments, m and l
    chip = {row["name"]: row for row in measured.load("00_start_here").rows}
    clocks = chip["clock, at most"]["mhz"] * 1e6 * chip["streaming multiprocessors"]["count"]
    choices = [16, 32, 64, 128]

    def registers(queries: int) -> int:
        return queries * (columns + d) // LANES

    def allowed(queries: int) -> float:
        fragment = 16 * 16  # numbers of 2 bytes, that many multiply-adds for each query; 128 bytes per clock
        return clocks * 128 / (2 * fragment) * 2 * queries * fragment / 1e12

    best = max(queries for queries in choices if registers(queries) + others <= MOST_REGISTERS)

    def why(queries: int) -> str:
        if queries == best:
            return "S and O stay in registers, and each fragment of K and V serves as many queries as possible."
        if queries > best:
            return "S and O do not fit. Spilled registers go to local memory and back, at each tile."
        return "It fits, but each fragment serves fewer queries than the registers would allow."

    return TradeOff(
        prompt=(
            f"How many queries should a warp have, with tiles of {columns} keys, d = {d}, fp16? S and O live in fp32 "
            f"registers; a lane has {MOST_REGISTERS} registers, and needs {others} for all else. Nothing may spill. "
            "Which choice reads the fewest bytes from shared memory for each product? (The second column is the rate "
            "at which shared memory can feed fragments of K and V; the tensor cores' peak is another limit.)"
        ),
        columns=("S and O, registers per lane", "shared memory allows, TFLOP/s"),
        options=tuple(
            Option(
                f"{queries} queries per warp",
                why(queries),
                right=queries == best,
                figures=(str(registers(queries)), f"{allowed(queries):,.0f}"),
            )
            for queries in choices
        ),
        read_again="Step 7: tuning",
    )


def warps_that_fit(draw: Random) -> Question:
    """Warps on a multiprocessor"""
    registers, threads, shared = draw.choice(
        ((128, 128, 40), (168, 128, 80), (64, 128, 64), (255, 128, 40), (80, 256, 40))
    )
    limits = nvrtc.SM_LIMITS[90]

    def fitting(registers: int, shared: int) -> nvrtc.Occupancy:
        kernel = nvrtc.Resources(registers, shared * 2**10, 0, 0, 0, 0, 1)
        return nvrtc.occupancy(kernel, threads, arch="sm_90")

    fits, by_registers, by_shared = fitting(registers, shared), fitting(registers, 0), fitting(16, shared)
    ways = [
        (by_registers.warps, "That counts registers only. Blocks need shared memory as well."),
        (by_shared.warps, "That counts shared memory only. The blocks' registers must fit as well."),
        (fits.blocks, "Those are blocks. A block has several warps."),
    ]
    return Number(
        prompt=(
            f"A kernel takes {registers} registers per thread, {threads} threads per block and {shared} KiB of shared "
            f"memory per block. A multiprocessor of sm_90 has room for {limits.warps} warps, {limits.registers:,} "
            f"registers and {limits.shared // 2**10} KiB of shared memory; the system takes "
            f"{limits.shared_reserved // 2**10} KiB of it for each block. A warp gets registers in units of 256, so "
            "255 per thread count as 256. How many warps does the multiprocessor hold at a time?"
        ),
        figure=Figure(
            fits.warps,
            "warps",
            f"Registers leave room for {by_registers.blocks} blocks, shared memory for {by_shared.blocks}. So "
            f"{fits.blocks} fit, of {threads // LANES} warps each: {fits.warps}.",
            mistakes=tuple(Mistake(warps, said) for warps, said in ways if warps != fits.warps),
        ),
        read_again="What a step costs",
    )


QUESTIONS: tuple[Source, ...] = (
    wavefronts_of_a_matrix,
    whose_copies,
    why_p_stays,
    queries_per_warp,
    registers_for_s_and_o,
    warps_that_fit,
)
