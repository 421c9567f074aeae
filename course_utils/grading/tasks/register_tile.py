"""How 02_flash_attention_minimal/register_tile is graded: values by float64, reads of shared memory by the counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.grading.counters import FLOATS, bank_conflicts, counters_only, loaded_again, scattered, sectors
from course_utils.grading.draws import between
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Outcome, Output, Part, Question
from course_utils.grading.job import still_blank
from course_utils.grading.mistakes import read_mistakes
from course_utils.grading.wrong_values import first_of, places, wrong_columns

TILE, PIECE, SIDE, WARP = 64, 32, 8, 32  # queries and keys of a block; columns at a time; threads of a side; lanes
BAR = 0.3  # wavefronts of shared memory for each multiply-add of a warp
BOTH, ONE = 1.9, 1.05  # from so many reads on, both numbers of a multiply-add are read for it, or one of them
ALLOWED = 1.25  # times the ideal number of sectors, in a line
AT_MOST = 1.1  # times the sectors that tiles take which are loaded once
AXES = ("head", "query", "key")
CUT_OFF = "where tiles are cut off"
REGISTERS = "02 FlashAttention, minimal, section 9, 'From plain to fast: register tiles'"
TILES = "00 Memory and tools, section 7, 'A tile in shared memory'"
COALESCING = "00 Memory and tools, section 6, 'Coalescing: neighbours read neighbours'"
CONFLICTS = "00 Memory and tools, section 8, 'Bank conflicts'"


def _case(
    part: str,
    generator: torch.Generator,
    shape: tuple[int, int, int, int],
    *,
    one_column: bool = False,
    review: Callable[[Case, Outcome], Diagnosis | None] | None = None,
) -> Case:
    """One launch. shape: heads, L_q, L_k, d. one_column: key j has nothing but a 1 in column j, so that each score
    shows one column. The scale is not 1/√d."""
    heads, L_q, L_k, d = shape
    Q, K = (torch.randn(heads, length, d, generator=generator) for length in (L_q, L_k))
    if one_column:
        K[:] = torch.eye(L_k, d)
    scale = float(np.float32(d**-0.5 * (0.4 + 0.4 * torch.rand((), generator=generator).item())))
    launch = Launch(
        kernel="register_tile",
        grid=(ceil_div(L_k, TILE), ceil_div(L_q, TILE), heads),
        block=(SIDE, SIDE),
        arguments=("Q", "K", "S", *map(np.int32, (L_q, L_k, d)), np.float32(scale)),
    )
    return Case(
        part=part,
        name=f"heads={heads} L_q={L_q} L_k={L_k} d={d}{', a key for each column' * one_column}",
        launches=(launch,),
        inputs={"Q": Q, "K": K},
        outputs={"S": Output(expected=scale * Q.double() @ K.double().mT, axes=AXES)},
        facts={"one_column": one_column},
        must_be_clean=True,
        explain=explain,
        review=review,
    )


def cases(generator: torch.Generator, python: Mapping[str, Tensor]) -> list[Case]:
    """Values of whole tiles and of others, then the counters of whole tiles and of such as are cut off.

    Nearly all sizes are drawn. Where sectors are counted, rows begin at a sector: L_k and d are multiples of 8.
    """

    drawn = partial(between, generator)
    case = partial(_case, generator=generator)
    columns = drawn(132, 156, 4)
    whole, cut_off = (1, 64, 128, 64), (2, drawn(70, 100), drawn(72, 120, 8), drawn(40, 56, 8))
    return [
        case("whole", shape=(1, 64, 64, 32)),
        case("whole", shape=(2, 64 * drawn(1, 2), 128, 96)),
        case("ragged", shape=(1, 1, drawn(2, 7), 4)),
        case("ragged", shape=(1, drawn(2, 7), 1, drawn(8, 28, 4))),
        case("ragged", shape=(1, drawn(65, 90), drawn(33, 63), drawn(36, 60, 4))),
        case("ragged", shape=(3, drawn(9, 31), drawn(129, 150), drawn(68, 92, 4))),
        case("ragged", shape=(1, drawn(3, 9), columns, columns), one_column=True),
        case("ragged", shape=(1, drawn(3, 9), drawn(10, 20), drawn(388, 420, 4))),
        case("reads", shape=whole, review=review_reads),
        counters_only(case("reads", shape=cut_off, review=review_reads), CUT_OFF),
        case("conflicts", shape=whole, review=review_conflicts),
        counters_only(case("conflicts", shape=cut_off, review=review_conflicts), CUT_OFF),
        case("traffic", shape=whole, review=review_traffic),
        counters_only(case("traffic", shape=cut_off, review=review_traffic), CUT_OFF),
    ]


def explain(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    """What wrong scores show: which places of each tile, which columns of Q and K, whether digits are missing."""
    got, expected = outputs["S"].double(), case.outputs["S"].expected
    blank = still_blank(outputs["S"])
    if blank.all():
        return None
    if blank.any():
        return _places_of_a_tile(blank, "never written", f"{int(blank.sum())} of {blank.numel()} scores")
    if not torch.isfinite(got).all():
        return None
    if case.facts["one_column"] and (columns := wrong_columns((got / expected)[0])):
        return Diagnosis(columns, f"d = {case.inputs['Q'].shape[-1]}", REGISTERS)
    error = (got - expected).abs()
    if error.max() < 0.005 * expected.abs().max():
        detail = f"The scores are off by {error.max() / expected.abs().max():.1e} of the largest."
        return Diagnosis("the scores have fewer digits than fp32", detail, REGISTERS)
    wrong = error > 1e-3 * expected.abs().max()
    return _places_of_a_tile(wrong, "wrong", first_of(wrong, got, expected, AXES)) if wrong.any() else None


def _places_of_a_tile(where: Tensor, how: str, detail: str) -> Diagnosis | None:
    """Which rows or columns of each tile a mask `[heads, L_q, L_k]` marks, in words; None where it marks no such, or
    everything."""
    if where.all():
        return None
    for axis, marked in (("query", where.all(2).all(0)), ("key", where.all(1).all(0))):
        place = torch.arange(len(marked)) % TILE
        lines = torch.isin(torch.arange(TILE), place[marked])
        shape = (1, -1, 1) if axis == "query" else (1, 1, -1)
        if 0 < lines.sum() < TILE and torch.equal(where, lines[place].reshape(shape).expand_as(where)):
            return Diagnosis(f"{places(lines, (axis,))} of each tile: {how}", detail, REGISTERS)
    return None


# ---------------------------------------------------------------------------------------------- the counters


def _tiles(case: Case) -> int:
    """Blocks of a launch, each with a tile."""
    return int(np.prod(case.launches[0].grid))


def review_reads(case: Case, outcome: Outcome) -> Diagnosis | None:
    """Whether a multiply-add takes few wavefronts of shared memory, and global memory does not stand in for it.

    Multiply-adds are counted for whole tiles and whole pieces of d: a kernel may multiply the zeros past an end.
    """
    shared = [row for row in outcome.counters if row.space == "shared"]
    fmas = _tiles(case) * TILE * TILE * ceil_div(case.inputs["Q"].shape[-1], PIECE) * PIECE // WARP
    per_fma = sum(row.wavefronts for row in shared) / fmas
    if per_fma <= BAR:
        return review_loads_again(case, outcome)
    if sum(row.ideal_wavefronts for row in shared) <= BAR * fmas:
        return review_banks(case, outcome)
    worst = max(shared, key=lambda row: row.wavefronts)
    reads = sum(row.bytes for row in shared if row.operation == "load") / (4 * WARP * fmas)
    name = "the register tile is too small: a number that was read feeds too few multiply-adds"
    if reads > BOTH:
        name = "each multiply-add reads both of its numbers from shared memory"
    elif reads > ONE:
        name = "each multiply-add reads one of its numbers from shared memory"
    detail = (
        f"{per_fma:.3f} wavefronts for each multiply-add of a warp; the bar is {BAR}. A thread reads {reads:.3g} "
        f"numbers for each of its own. Most wavefronts here:\n{worst.line:6d} | {worst.source}"
    )
    return Diagnosis(name, detail, REGISTERS)


def review_conflicts(case: Case, outcome: Outcome) -> Diagnosis | None:
    """Whether the products read shared memory at all, and without bank conflicts."""
    if any(row.space == "shared" and row.operation == "load" for row in outcome.counters):
        return review_banks(case, outcome)
    detail = "No number of Q or K is read from shared memory. What reads no bank meets nobody there, and earns nothing."
    return Diagnosis("nothing is read from shared memory", detail, REGISTERS)


def review_banks(case: Case, outcome: Outcome) -> Diagnosis | None:
    """Whether every request to shared memory takes as few wavefronts as it can."""
    return bank_conflicts(outcome, {}, BANKS, CONFLICTS)


BANKS = (
    "A row of the tile is 36 floats long: neighbouring rows begin four banks apart, and every eighth row begins in the "
    "same bank. Which rows do the threads of a warp read together?"
)


def review_traffic(case: Case, outcome: Outcome) -> Diagnosis | None:
    """Whether global memory is read and written by neighbours, and each tile is loaded once."""
    if row := scattered(outcome, "load", ALLOWED):
        return Diagnosis("the loads of Q and K are not coalesced", sectors(row), COALESCING)
    if row := scattered(outcome, "store", ALLOWED):
        return Diagnosis("the stores of S are not coalesced", sectors(row), COALESCING)
    return review_loads_again(case, outcome)


def review_loads_again(case: Case, outcome: Outcome) -> Diagnosis | None:
    """Whether a block loads each number of its tiles once. A tile that is cut off counts as a whole one."""
    return loaded_again(outcome, _tiles(case) * 2 * TILE * case.inputs["Q"].shape[-1] // FLOATS, AT_MOST, TILES)


# ---------------------------------------------------------------------------------------------- figures to predict


def reads_per_fma(rows: int, columns: int) -> float:
    """Reads of 4 bytes for each multiply-add of a thread that has rows × columns scores."""
    return (rows + columns) / (rows * columns)


def fraction_of_peak(reads: float) -> float:
    """Share of the fp32 peak that shared memory can feed: one wavefront a clock, four warps' multiply-adds a clock."""
    return min(1.0, 1 / (4 * reads))


COPIES = 2 * TILE * PIECE / (TILE * TILE * PIECE)  # numbers that are written to the tiles, for each multiply-add
WITH_COPIES = reads_per_fma(SIDE, SIDE) + COPIES

QUESTIONS = (
    Question(
        name="one_score",
        points=1,
        title="Wavefronts of reads for each FMA of a warp, one score per thread, reads of 4 bytes",
        value=reads_per_fma(1, 1),
        misconceptions=((1, "that is Q alone, or K alone"), (64, "that is a thread with 64 scores and no reuse")),
        read_again=REGISTERS,
    ),
    Question(
        name="share",
        points=1,
        title="Most of the fp32 peak that shared memory can feed, 6 × 4 scores per thread, in %",
        value=100 * fraction_of_peak(reads_per_fma(6, 4)),
        unit="%",
        misconceptions=(
            (100 * reads_per_fma(6, 4), "those are reads per 100 multiply-adds; the peak is four warps' FMA a clock"),
            (100 / reads_per_fma(6, 4), "that is FMA for each 100 reads; the peak is four warps' FMA a clock"),
            (100 * fraction_of_peak(2 / 24), "6 × 4 scores need 6 + 4 reads for each column, not 2"),
        ),
        read_again=REGISTERS,
    ),
    Question(
        name="with_copies",
        points=1,
        title="Wavefronts for each FMA, 8 × 8 scores per thread, reads of 4 bytes, and the writes of load_piece",
        value=WITH_COPIES,
        misconceptions=(
            (reads_per_fma(SIDE, SIDE), "those are the reads; each number of the tiles was written first"),
            (reads_per_fma(SIDE, SIDE) + COPIES / 2, "that is one tile; Q and K have one each"),
            (COPIES, "those are the writes; each column takes 8 + 8 reads, too"),
        ),
        read_again=REGISTERS,
    ),
)

EXERCISE = Exercise(
    id="02_flash_attention_minimal/register_tile",
    title="A register tile",
    difficulty=3,
    importance=4,
    kernels=("register_tile",),
    parts=(
        Part("whole", 3, "S = scale · Q Kᵀ, whole tiles"),
        Part("ragged", 4, "Every L_q and L_k, every d that is a multiple of 4"),
        Part("reads", 4, "At most 0.3 wavefronts of shared memory for each FMA"),
        Part("conflicts", 2, "No bank conflicts"),
        Part("traffic", 2, "Global memory by neighbours, and each tile once"),
    ),
    cases=cases,
    mistakes=read_mistakes("02_flash_attention_minimal/register_tile"),
    questions=QUESTIONS,
    cells=("answers",),
)
