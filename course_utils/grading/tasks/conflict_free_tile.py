"""How 00_start_here/conflict_free_tile is graded: values bit for bit, sectors and bank conflicts by the counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.grading.counters import FLOATS, bank_conflicts, counters_only, scattered, sectors
from course_utils.grading.diagnosis import READING_A_FINDING, wrong_values
from course_utils.grading.draws import between
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Outcome, Output, Part, Question
from course_utils.grading.job import still_blank
from course_utils.grading.mistakes import read_mistakes
from course_utils.grading.names import DIFFERENT_BARRIERS, NEVER_WRITTEN
from course_utils.grading.wrong_values import first_of, places

CUT_OFF = "where tiles are cut off"
AXES = ("head", "row", "column")
ROUNDED = 0.01  # how far a number may be off that was kept with 8 bits or more
TILE, ROWS = 32, 8  # ROWS: of a tile that the threads of a block move at a time
COALESCING = "00 Memory and tools, section 6, 'Coalescing: neighbours read neighbours'"
TILES = "00 Memory and tools, section 7, 'A tile in shared memory'"
HEADS = "01 Attention basics, section 4, 'Scores, one thread each'"
CONFLICTS = "00 Memory and tools, section 8, 'Bank conflicts'"
COUNTERS = "00 Memory and tools, section 11, 'Reading a counter table'"


def _case(
    part: str,
    generator: torch.Generator,
    heads: int,
    length: int,
    width: int,
    review: Callable[[Case, Outcome], Diagnosis | None] | None = None,
) -> Case:
    """One launch on `heads` matrices of `length` rows of `width` numbers, no two of which are the same, and none 0."""
    count = heads * length * width
    x = ((2 * torch.randperm(count, generator=generator) + 1.5) / count - 1).reshape(heads, length, width)
    launch = Launch(
        kernel="conflict_free_tile",
        grid=(ceil_div(width, TILE), ceil_div(length, TILE), heads),
        block=(TILE, ROWS),
        arguments=("in", "out", np.int32(length), np.int32(width)),
    )
    return Case(
        part=part,
        name=f"heads={heads} L={length} D={width}",
        launches=(launch,),
        inputs={"in": x},
        outputs={"out": Output(expected=x.mT.contiguous(), kind="exact", axes=AXES)},
        must_be_clean=True,
        compare=_compare,
        review=review,
        explain=explain,
    )


def _compare(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    """Bit for bit, as `Output.kind` says; and whether only those elements are missing whose threads had none to load.

    Thread (tx, ty) of the block at (left, top) loads column left + tx of the rows top + ty, top + ty + 8, ... of `in`,
    and writes columns top + tx of the rows left + ty, left + ty + 8, ... of `out`.
    """
    wrong = wrong_values(replace(case, compare=None), outputs)
    missing = still_blank(outputs["out"])
    _, width, length = missing.shape
    c, r = torch.arange(width)[:, None], torch.arange(length)[None, :]
    past_a_row = c // TILE * TILE + r % TILE >= width
    past_the_last = r // TILE * TILE + c % ROWS >= length
    for gone in (past_a_row, past_the_last, past_a_row | past_the_last):
        if gone.any() and torch.equal(missing, gone.expand_as(missing)):
            detail = f"{wrong.detail}; a thread that has nothing to load may have something to write"
            return Diagnosis("threads past the end of `in` leave before they have written", detail, TILES)
    for axis, within, gone in (("row", c % TILE, missing.all(2).all(0)), ("column", r % TILE, missing.all(1).all(0))):
        lines = torch.isin(torch.arange(TILE), within.flatten()[gone])
        if 0 < lines.sum() < TILE and torch.equal(missing, lines[within].expand_as(missing)):
            return Diagnosis(f"{places(lines, (axis,))} of each tile of out: never written", wrong.detail, TILES)
    return wrong


def explain(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    """Where the numbers of `out` come from: no two of `in` are the same."""
    x, got, expected = case.inputs["in"], outputs["out"], case.outputs["out"].expected
    wrong = got != expected
    if still_blank(got).any():
        return None
    first = first_of(wrong, got, expected, AXES)
    if not got[wrong].any():
        return Diagnosis("zeros stand where a number of `in` belongs", f"{places(wrong, AXES)}; {first}", TILES)
    values, order = x.flatten().sort()
    nearest = torch.searchsorted(values, got.flatten().contiguous()).clamp(max=len(values) - 1)
    if not torch.equal(values[nearest].reshape(got.shape)[wrong], got[wrong]):
        near = ((got - expected).abs() <= ROUNDED * expected.abs()).all()
        return Diagnosis("the numbers are rounded on the way", first, TILES) if near else None
    far = (order[nearest].reshape(got.shape) - torch.arange(x.numel()).reshape(x.shape).mT).flatten(1)
    if len(far) > 1 and far.any() and (far == torch.arange(len(far))[:, None] * far[1, 0]).all():
        detail = f"head 1 begins at number {x[0].numel()}; it was looked for {int(far[1, 0]):+d} numbers from there"
        return Diagnosis("the heads of `in` are looked for at the wrong distance", detail, HEADS)
    came_from = torch.stack(torch.unravel_index(order[nearest].reshape(got.shape), x.shape))
    belongs = torch.stack(torch.meshgrid(*map(torch.arange, got.shape), indexing="ij"))[[0, 2, 1]]
    off = (came_from != belongs)[:, wrong].any(dim=1).tolist()
    other = ", ".join(f"{name}s" for name, is_off in zip(AXES, off, strict=True) if is_off)
    at, source = (tuple(int(n[wrong][0]) for n in place) for place in (belongs, came_from))
    detail = f"{places(wrong, AXES)}; where in{list(at)} belongs stands in{list(source)}"
    return Diagnosis(f"out holds numbers of other {other} of `in`", detail, TILES)


def cases(generator: torch.Generator, python: Mapping[str, Tensor]) -> list[Case]:
    """Values of whole tiles and of others, then the counters of whole tiles and of such as are cut off.

    All sizes but one are drawn. Where sectors are counted, rows begin at a sector: L and D are multiples of 8.
    """

    drawn = partial(between, generator)
    whole = (1, drawn(64, 96, 32), 128)  # not square
    cut_off = (1, drawn(72, 88, 8), drawn(40, 56, 8))
    narrow = (1, drawn(47, 63, 16), drawn(79, 95, 16))  # a pitch of the tile's own width + 1 would be 16 or 32
    return [
        _case("whole", generator, 1, 64, 64),
        _case("whole", generator, 1, drawn(288, 384, 32), 32),
        _case("ragged", generator, 1, drawn(65, 95), drawn(33, 63)),
        _case("ragged", generator, 1, 1, drawn(2, 31)),
        _case("ragged", generator, 1, drawn(33, 63), 1),
        _case("ragged", generator, 1, drawn(2, 31), drawn(261, 300)),
        _case("ragged", generator, 1, drawn(261, 300), drawn(2, 31)),
        _case("heads", generator, drawn(9, 12), 64, 32),
        _case("heads", generator, drawn(4, 6), drawn(33, 61, 2), drawn(65, 95)),
        _case("loads", generator, *whole, review=review_loads),
        counters_only(_case("loads", generator, *cut_off, review=coalesced_loads), CUT_OFF),
        _case("stores", generator, *whole, review=review_stores),
        counters_only(_case("stores", generator, *cut_off, review=coalesced_stores), CUT_OFF),
        _case("conflicts", generator, *whole, review=review_conflicts),
        counters_only(_case("conflicts", generator, *narrow, review=review_banks), CUT_OFF),
    ]


# ---------------------------------------------------------------------------------------------- the counters


def coalesced_loads(case: Case, outcome: Outcome) -> Diagnosis | None:
    """Whether every load from global memory touches as few sectors as hold its bytes."""
    row = scattered(outcome, "load")
    return row and Diagnosis("the loads of `in` are not coalesced", sectors(row), COALESCING)


def coalesced_stores(case: Case, outcome: Outcome) -> Diagnosis | None:
    """The same for the stores."""
    row = scattered(outcome, "store")
    return row and Diagnosis("the stores of `out` are not coalesced", sectors(row), COALESCING)


def review_loads(case: Case, outcome: Outcome) -> Diagnosis | None:
    """Whether all loads together touch no sector twice, either."""
    return coalesced_loads(case, outcome) or _too_many(case, outcome, "in", "load", "loaded")


def review_stores(case: Case, outcome: Outcome) -> Diagnosis | None:
    """The same for the stores."""
    return coalesced_stores(case, outcome) or _too_many(case, outcome, "out", "store", "stored")


def _too_many(case: Case, outcome: Outcome, tensor: str, operation: str, done: str) -> Diagnosis | None:
    """Whether some sectors were touched twice."""
    touched = sum(row.sectors for row in outcome.counters if row.space == "global" and row.operation == operation)
    needed = ceil_div(case.inputs["in"].numel(), FLOATS)
    if touched <= needed:
        return None
    detail = f"{touched:,} sectors in all; {needed:,} hold the numbers"
    return Diagnosis(f"some numbers of `{tensor}` are {done} twice", detail, TILES)


def review_conflicts(case: Case, outcome: Outcome) -> Diagnosis | None:
    """Whether the numbers are turned on the chip, and every request to shared memory takes as few wavefronts as it can.

    A warp can also turn them by shuffles, without shared memory; then both sides are coalesced all the same.
    """
    astray = scattered(outcome, "load") or scattered(outcome, "store")
    if conflicts := review_banks(case, outcome):
        return conflicts
    if not astray:
        return None
    if not any(row.space == "shared" for row in outcome.counters):
        return Diagnosis(
            "nothing goes through shared memory",
            f"So a warp meets the other direction in global memory: {sectors(astray)}",
            TILES,
        )
    return Diagnosis("the tile does not change the direction of a warp", sectors(astray), TILES)


def review_banks(case: Case, outcome: Outcome) -> Diagnosis | None:
    """Whether every request to shared memory takes as few wavefronts as it can."""
    return bank_conflicts(outcome, _HINTS, _OTHERS, CONFLICTS)


_OTHERS = "Write down the banks, (address / 4) % 32, of the 32 threads of a warp."
_HINTS = {
    32: "All threads of a warp meet in one bank, as with a row pitch that is a multiple of 32 words.",
    16: "Sixteen threads meet in a bank, as with a padding of 16 words.",
    8: "Eight threads meet in a bank, as with a padding of 8 words.",
    4: "Four threads meet in a bank, as with a padding of 4 words, which serves float4 along rows but no columns.",
    2: "Two threads meet in a bank, as with a padding of 2 words: the row pitch must be odd.",
}


FINDINGS = {
    "initcheck": Diagnosis(NEVER_WRITTEN, read_again=TILES),
    "synccheck": Diagnosis(DIFFERENT_BARRIERS, read_again=READING_A_FINDING),
}

# ---------------------------------------------------------------------------------------------- figures to predict

KEYS, D = 4096, 128  # of the question about a whole matrix


def column_wavefronts(pitch: int) -> int:
    """Wavefronts of a warp that reads a column of 32 words of 4 bytes, `pitch` words apart: the fullest of 32 banks."""
    return int(torch.bincount(torch.arange(TILE) * pitch % 32).max())


QUESTIONS = (
    Question(
        name="pitch_34",
        points=1,
        title="Wavefronts of a warp that reads a column of a tile with 34 floats per row",
        value=column_wavefronts(34),
        misconceptions=(
            (1, "34 is no multiple of 32, but it is even: rows 0 and 16 are 544 words apart, and 544 is 17 · 32"),
            (16, "that is the number of banks in use; each of them serves two threads"),
            (32, "that is the tile without padding"),
        ),
        read_again=CONFLICTS,
    ),
    Question(
        name="pitch_36",
        points=1,
        title="Wavefronts of a warp that reads a column of a tile with 36 floats per row",
        value=column_wavefronts(36),
        misconceptions=(
            (1, "a padding of 4 keeps float4 loads aligned, but rows 0 and 8 meet in a bank"),
            (8, "that is the number of banks in use; how many threads meet in each?"),
            (32, "that is the tile without padding"),
        ),
        read_again=CONFLICTS,
    ),
    Question(
        name="unpadded",
        points=1,
        title="Wavefronts to read all tiles by columns, one matrix with L = 4096 and D = 128, 32 floats per row",
        value=KEYS * D // TILE * column_wavefronts(32),
        misconceptions=(
            (KEYS * D // TILE, "those are the requests; each takes 32 wavefronts, since a column lies in one bank"),
            (KEYS * D * TILE, "a request serves 32 threads: there are L · D / 32 requests, not L · D"),
        ),
        read_again=COUNTERS,
    ),
)

EXERCISE = Exercise(
    id="00_start_here/conflict_free_tile",
    title="A tile without bank conflicts",
    difficulty=2,
    importance=4,
    kernels=("conflict_free_tile",),
    parts=(
        Part("whole", 2, "out = inᵀ, whole tiles"),
        Part("ragged", 2, "Every L and D"),
        Part("heads", 1, "Several matrices in one launch"),
        Part("loads", 2, "Loads touch no sector too many"),
        Part("stores", 2, "Stores touch no sector too many"),
        Part("conflicts", 4, "No bank conflicts in the tile"),
    ),
    cases=cases,
    mistakes=read_mistakes("00_start_here/conflict_free_tile"),
    findings=FINDINGS,
    questions=QUESTIONS,
    cells=("answers",),
)
