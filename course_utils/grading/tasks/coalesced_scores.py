"""How 01_attention_basics/coalesced_scores is graded: values by float64, the traffic by the emulator's counters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div, naive_requested
from course_utils.grading.counters import counters_only, loaded_again, scattered, sectors
from course_utils.grading.draws import between
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Mistake, Outcome, Output, Part, Question
from course_utils.grading.job import still_blank
from course_utils.grading.mistakes import read_mistakes
from course_utils.grading.names import PIECE_NEVER_WRITTEN
from course_utils.grading.wrong_values import first_of, places, wrong_columns

TILE, SECTOR = 32, 32  # queries and keys of a block's tile; bytes
ALLOWED = 1.25  # times the ideal number of sectors, in a line
AT_MOST = 1.1  # times the sectors that a kernel by tiles loads, in all
AXES = ("sequence", "head", "query", "key")
CUT_OFF = "where tiles are cut off"
LARGE = 1000  # a hidden score below its negative is meant to be −∞
ROUNDED = 0.005  # how far scores may be off, relative to the largest, that were kept with 8 bits or more
ADDRESSES = "01 Attention basics, section 5, 'Which addresses does a warp touch?'"
MASK = "01 Attention basics, section 10, 'The causal mask, and a model without it'"
SCORES = "01 Attention basics, section 4, 'Scores, one thread each'"
TILES = "00 Memory and tools, section 7, 'A tile in shared memory'"


def scores(query: Tensor, key: Tensor, scale: float, is_causal: bool) -> Tensor:
    """S [B, H, L_q, L_k] in float64 of query [B, L_q, H, d] and key [B, L_k, H, d].

    With `is_causal`, key j is masked for query i if j > i + L_k − L_q.
    """
    S = scale * torch.einsum("bihd,bjhd->bhij", query.double(), key.double())
    if not is_causal:
        return S
    i, j = torch.arange(query.shape[1])[:, None], torch.arange(key.shape[1])
    return S.masked_fill(j > i + key.shape[1] - query.shape[1], -torch.inf)


def _case(
    part: str,
    generator: torch.Generator,
    shape: tuple[int, int, int, int, int],
    *,
    is_causal: bool = False,
    largest: float | None = None,
    one_column: bool = False,
    mask_alone: bool = False,
    review: Callable[[Case, Outcome], Diagnosis | None] | None = None,
) -> Case:
    """One launch. shape: B, H, L_q, L_k, d. largest: |score| that the queries are scaled to.

    one_column: key j has nothing but a 1 in column j, so that each score shows one column. mask_alone: all
    scores are 0, so that nothing but which keys are hidden can cost points here. The scale is not 1/√d.
    """
    B, H, L_q, L_k, d = shape
    query = torch.randn(B, L_q, H, d, generator=generator)
    key = torch.randn(B, L_k, H, d, generator=generator)
    if one_column:
        key[:] = torch.eye(L_k, d)[None, :, None]
    if mask_alone:
        query[:] = 0
    scale = float(np.float32(d**-0.5 * (0.4 + 0.4 * torch.rand((), generator=generator).item())))
    if largest is not None:
        query *= largest / scores(query, key, scale, False).abs().max()
    launch = Launch(
        kernel="coalesced_scores",
        grid=(ceil_div(L_k, TILE), ceil_div(L_q, TILE), B * H),
        block=(TILE, 8),
        arguments=("Q", "K", "S", *map(np.int32, (L_q, L_k, H, d)), np.float32(scale), np.int32(is_causal)),
    )
    return Case(
        part=part,
        name=f"B={B} H={H} L_q={L_q} L_k={L_k} d={d}{', causal' * is_causal}{', large scores' * bool(largest)}"
        f"{', all scores 0' * mask_alone}{', a key for each column' * one_column}",
        launches=(launch,),
        inputs={"Q": query, "K": key},
        outputs={"S": Output(expected=scores(query, key, scale, is_causal), kind="values", axes=AXES)},
        facts={"one_column": one_column},
        must_be_clean=True,
        explain=explain,
        review=review,
    )


def cases(generator: torch.Generator, python: Mapping[str, Tensor]) -> list[Case]:
    """Values with one head, with several, with the mask; then the counters of whole tiles, and of such as are cut off.

    Nearly all sizes are drawn: d below, beside and far above a piece of 32, L_k − L_q of both signs. Where sectors are
    counted, rows begin at a sector: L_k and d are multiples of 8.
    """

    drawn = partial(between, generator)
    case = partial(_case, generator=generator)
    columns, causal = drawn(130, 140), [drawn(34, 45), drawn(33, 45), drawn(65, 75), drawn(66, 80), drawn(2, 4)]
    whole, cut_off = (1, 1, 64, 96, 64), (1, 3, drawn(40, 56, 8), drawn(72, 88, 8), drawn(40, 56, 8))
    return [
        case("scores", shape=(1, 1, 64, 64, 64)),
        case("scores", shape=(1, 1, 1, drawn(2, 5), 1)),
        case("scores", shape=(1, 1, drawn(65, 80), drawn(33, 50), drawn(30, 33, 3))),
        case("scores", shape=(1, 1, drawn(3, 9), columns, columns), one_column=True),
        case("scores", shape=(1, 1, drawn(2, 5), drawn(3, 9), drawn(390, 420))),
        case("scores", shape=(1, 1, 33, drawn(97, 127), 72), largest=50.0),
        case("heads", shape=(2, 3, drawn(33, 40), drawn(41, 65), drawn(30, 33, 3))),
        case("heads", shape=(3, 1, drawn(3, 9), drawn(33, 50), drawn(34, 62))),
        case("heads", shape=(2, drawn(2, 4), drawn(9, 20), drawn(2, 8), drawn(1, 5))),
        case("causal", shape=(1, 2, causal[0], causal[0], 32), is_causal=True),
        # With a shift of 1, 30 or 31 beyond whole tiles, one score of a tile is seen, or hidden, or none is.
        case(
            "causal",
            shape=(2, 2, causal[0], causal[0] + drawn(31, 63, TILE), drawn(36, 60, 4)),
            is_causal=True,
            mask_alone=True,
        ),
        case("causal", shape=(1, 2, causal[1], causal[1] + drawn(1, 33, TILE), 32), is_causal=True),
        case("causal", shape=(1, 1, causal[2], causal[2] - drawn(2, 34, TILE), 32), is_causal=True, largest=50.0),
        case("causal", shape=(1, 1, causal[3], drawn(1, 20), 32), is_causal=True),
        case("causal", shape=(1, 1, causal[4], causal[4] + drawn(62, 94, TILE), 32), is_causal=True),
        case("causal", shape=(1, 1, 1, drawn(33, 95), 64), is_causal=True),
        case("loads", shape=whole, review=review_loads),
        counters_only(case("loads", shape=cut_off, review=review_loads), CUT_OFF),
        case("stores", shape=whole, review=review_stores),
        counters_only(case("stores", shape=(*cut_off[:4], drawn(8, 16, 8)), review=review_stores), CUT_OFF),
        case("reuse", shape=whole, review=review_reuse),
        # Nearly whole tiles: loads that go to the end of a tile are not loads again.
        counters_only(case("reuse", shape=(1, 2, 56, 88, 32), review=review_reuse), CUT_OFF),
    ]


def explain(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    """What wrong scores show: which keys are hidden, which columns count, whether digits are missing."""
    got, expected = outputs["S"].double(), case.outputs["S"].expected
    if still_blank(outputs["S"]).any() or torch.isnan(got).any():
        return None
    hidden, is_hidden = torch.isneginf(expected), torch.isneginf(got)
    if (hidden != is_hidden).any():
        if (got[hidden] < -LARGE).all() and not (is_hidden & ~hidden).any():
            first = first_of(hidden & ~is_hidden, got, expected, AXES)
            return Diagnosis("a hidden score is a large negative number, not −∞", first, MASK)
        lost = is_hidden & ~hidden
        where, how = (
            (lost, "hidden, and must be seen") if lost.any() else (hidden & ~is_hidden, "seen, and must be hidden")
        )
        b, h, i, _ = where.nonzero()[0].tolist()
        of_row = torch.zeros_like(where)
        of_row[b, h, i] = where[b, h, i]
        heads = where.any(dim=-1).any(dim=-1)
        of = "" if heads.all() else f"{places(heads, AXES[:2])}: "
        detail = f"{int(where.any(dim=-1).sum())} of {where[..., 0].numel()} rows have such keys"
        return Diagnosis(f"{of}for query {i}, {places(where[b, h, i], ('key',))}: {how}", detail, MASK)
    got, expected = got.masked_fill(hidden, 0), expected.masked_fill(hidden, 0)
    if case.facts["one_column"] and (columns := wrong_columns((got / expected)[0, 0])):
        return Diagnosis(columns, f"d = {case.inputs['Q'].shape[-1]}", SCORES)
    error = (got - expected).abs().max() / expected.abs().max()
    if error < ROUNDED:
        detail = f"The scores are off by {error:.1e} of the largest. Is something kept in fp16, or by a fast function?"
        return Diagnosis("the scores have fewer digits than fp32", detail, SCORES)
    return None


# ---------------------------------------------------------------------------------------------- the counters


def review_loads(case: Case, outcome: Outcome) -> Diagnosis | None:
    """Whether each line that loads from global memory touches about as few sectors as would hold its bytes."""
    row = scattered(outcome, "load", ALLOWED)
    if row is None:
        return None
    tensors = " and ".join(name for name in "QK" if re.search(rf"\b{name}\s*\[", row.source)) or "Q or K"
    return Diagnosis(f"the loads of {tensors} are not coalesced", sectors(row), ADDRESSES)


def review_stores(case: Case, outcome: Outcome) -> Diagnosis | None:
    """The same for the lines that store."""
    row = scattered(outcome, "store", ALLOWED)
    return row and Diagnosis("the stores of S are not coalesced", sectors(row), ADDRESSES)


def review_reuse(case: Case, outcome: Outcome) -> Diagnosis | None:
    """Whether a number that was loaded serves a tile of 32: the sectors of all loads against those of 32 × 32 tiles.

    A tile that is cut off counts as a whole one: who reads another row in the place of one past the end may do so.
    """
    (B, L_q, H, d), L_k = case.inputs["Q"].shape, case.inputs["K"].shape[1]
    tiled = 4 * B * H * 2 * ceil_div(L_q, TILE) * ceil_div(L_k, TILE) * TILE * d // SECTOR  # rows of Q, and of K
    return loaded_again(outcome, tiled, AT_MOST, TILES)


# ---------------------------------------------------------------------------------------- a mistake without one result


def _places_by_queries(case: Case) -> Tensor:
    """Where S has its elements if a row of it is taken to have L_q: indices `[B, H, L_q, L_k]`."""
    B, H, L_q, L_k = case.outputs["S"].expected.shape
    i, j = torch.arange(L_q)[:, None], torch.arange(L_k)
    return torch.arange(B * H).reshape(B, H, 1, 1) * L_q * L_k + i * L_q + j


def _rows_by_queries(case: Case) -> Mapping[str, Tensor] | None:
    """One of the results. Several elements go to one place, and any of them may come last."""
    right, places = case.outputs["S"].expected, _places_by_queries(case)
    if right.shape[2] == right.shape[3]:
        return None
    S, inside = torch.full((right.numel(),), torch.nan, dtype=torch.float64), places < right.numel()
    S[places[inside]] = right[inside]
    return {"S": S.reshape(right.shape)}


def _has_rows_by_queries(case: Case, outputs: Mapping[str, Tensor]) -> bool:
    """Whether each place has one of the elements that belong there, and is blank where none does."""
    got, right, places = outputs["S"].double(), case.outputs["S"].expected, _places_by_queries(case)
    inside = places < right.numel()
    there = torch.isclose(got.flatten()[places[inside]], right[inside], rtol=1e-3, atol=1e-3)
    written, one_of_them = (torch.zeros(right.numel(), dtype=torch.bool) for _ in range(2))
    written[places[inside]] = True
    one_of_them[places[inside][there]] = True
    return bool(torch.equal(one_of_them, written) and still_blank(outputs["S"]).flatten()[~written].all())


ROWS_BY_QUERIES = Mistake(
    Diagnosis(
        "the rows of S are taken to be L_q apart",
        "A row of S has L_k scores: (i, j) belongs at i · L_k + j.",
        SCORES,
    ),
    simulate=_rows_by_queries,
    shows_in=_has_rows_by_queries,
)

FINDINGS = {
    "initcheck": Diagnosis(
        PIECE_NEVER_WRITTEN,
        read_again=TILES,
    ),
}

# ---------------------------------------------------------------------------------------------- figures to predict

LENGTH, HEADS, D = 2048, 16, 64  # of the question about a whole launch; B = 1
MIB = 1 << 20
REQUESTED = naive_requested(1, HEADS, LENGTH, LENGTH, D)[0].bytes_read
UNSHARED = naive_requested(1, HEADS, LENGTH, LENGTH, D, coalesced=False)[0].bytes_read
ONCE = 2 * 4 * HEADS * LENGTH * D  # bytes of Q and K

QUESTIONS = (
    Question(
        name="naive_sectors",
        points=1,
        title="Sectors per load of K where thread t reads row t, H = 16, d = 64",
        value=32,
        misconceptions=(
            (4, "that is a coalesced load: here the 32 threads read 32 rows, H · d floats apart"),
            (1, "a request is one, but it touches a sector for every row"),
            (1024, "those are the bytes that move (32 sectors of 32); the question is how many sectors"),
        ),
        read_again=ADDRESSES,
    ),
    Question(
        name="tile_sectors",
        points=1,
        title="Sectors per load of K where thread t reads column t of one row",
        value=4,
        misconceptions=(
            (1, "32 floats are 128 bytes; a sector has 32"),
            (32, "eight neighbouring floats share a sector"),
            (8, "a sector holds 8 floats; the question is how many sectors hold 32"),
        ),
        read_again=ADDRESSES,
    ),
    Question(
        name="requested_mib",
        points=1,
        title="MiB of Q and K that all blocks ask for, tiles of 32 × 32, L_q = L_k = 2048, H = 16, d = 64",
        value=REQUESTED / MIB,
        unit="MiB",
        misconceptions=(
            (
                ONCE / MIB,
                "that is Q and K once: each tile of queries asks for all of K, and each of keys for all of Q",
            ),
            (UNSHARED / MIB, "that is each score for itself: in a tile, a number that was loaded serves 32 scores"),
            (REQUESTED / MIB / HEADS, "that is one head of 16"),
            (REQUESTED / MIB / 2, "that is K alone, or Q alone"),
        ),
        read_again="01 Attention basics, section 9, 'The score matrix needs bandwidth'",
    ),
)

EXERCISE = Exercise(
    id="01_attention_basics/coalesced_scores",
    title="Coalesced scores",
    difficulty=3,
    importance=4,
    kernels=("coalesced_scores",),
    parts=(
        Part("scores", 3, "S = scale · Q Kᵀ, one head, every length and every d"),
        Part("heads", 2, "Several heads and sequences in [B, L, H, d]"),
        Part("causal", 2, "Causal mask, L_q ≠ L_k too"),
        Part("loads", 4, "Loads of Q and K are coalesced"),
        Part("stores", 1, "Stores of S are coalesced"),
        Part("reuse", 2, "A number that was loaded serves 32 scores"),
    ),
    cases=cases,
    mistakes=(*read_mistakes("01_attention_basics/coalesced_scores"), ROWS_BY_QUERIES),
    findings=FINDINGS,
    questions=QUESTIONS,
    cells=("answers",),
)
