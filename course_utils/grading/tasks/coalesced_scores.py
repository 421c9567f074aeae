"""How 01_attention_basics/coalesced_scores is graded: values by float64, the traffic by the emulator's counters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div, naive_requested
from course_utils.grading.counters import scattered, sectors
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Mistake, Outcome, Output, Part, Question

TILE, SECTOR = 32, 32  # queries and keys of a block's tile; bytes
ALLOWED = 1.25  # times the ideal number of sectors, and times the sectors that a kernel by tiles loads
ADDRESSES = "chapter 01, section 5, 'Which addresses does a warp touch?'"
MASK = "chapter 01, section 10, 'The causal mask, and a model that cheats'"
UNEQUAL = "chapter 01, section 11, 'Cross-attention: more keys than queries'"
SCORES = "chapter 01, section 4, 'Scores, one thread each'"
TILES = "chapter 00, section 7, 'A tile in shared memory'"


def scores(query: Tensor, key: Tensor, scale: float, is_causal: bool, *, shift: int | None = None) -> Tensor:
    """S [B, H, L_q, L_k] in float64 of query [B, L_q, H, d] and key [B, L_k, H, d].

    With `is_causal`, key j is masked for query i if j > i + shift, by default L_k − L_q.
    """
    S = scale * torch.einsum("bihd,bjhd->bhij", query.double(), key.double())
    if not is_causal:
        return S
    i, j = torch.arange(query.shape[1])[:, None], torch.arange(key.shape[1])
    return S.masked_fill(j > i + (key.shape[1] - query.shape[1] if shift is None else shift), -torch.inf)


def _case(
    part: str,
    generator: torch.Generator,
    shape: tuple[int, int, int, int, int],
    *,
    is_causal: bool = False,
    largest: float | None = None,
    review: Callable[[Case, Outcome], Diagnosis | None] | None = None,
) -> Case:
    """One launch. shape: B, H, L_q, L_k, d. largest: |score| that the queries are scaled to."""
    B, H, L_q, L_k, d = shape
    query = torch.randn(B, L_q, H, d, generator=generator)
    key = torch.randn(B, L_k, H, d, generator=generator)
    scale = float(np.float32(d**-0.5))
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
        name=f"B={B} H={H} L_q={L_q} L_k={L_k} d={d}{', causal' * is_causal}{', large scores' * bool(largest)}",
        launches=(launch,),
        inputs={"Q": query, "K": key},
        outputs={"S": Output(expected=scores(query, key, scale, is_causal), kind="values")},
        facts={"scale": scale, "is_causal": is_causal},
        must_be_clean=True,
        review=review,
    )


def cases(generator: torch.Generator, python: Mapping[str, Tensor]) -> list[Case]:
    """Values with one head, with several, with the mask; then three looks at the counters of one size."""
    case = partial(_case, generator=generator)
    counted = (1, 2, 64, 96, 64)
    return [
        case("scores", shape=(1, 1, 64, 64, 64)),
        case("scores", shape=(1, 1, 1, 3, 32)),
        case("scores", shape=(1, 1, 70, 45, 40)),
        case("scores", shape=(1, 1, 33, 113, 72), largest=50.0),
        case("heads", shape=(2, 3, 35, 65, 32)),
        case("heads", shape=(3, 1, 3, 33, 40)),
        case("causal", shape=(1, 1, 65, 65, 32), is_causal=True),
        case("causal", shape=(1, 2, 40, 75, 32), is_causal=True),
        case("causal", shape=(1, 1, 75, 40, 32), is_causal=True, largest=50.0),
        case("loads", shape=counted, review=review_loads),
        case("stores", shape=counted, review=review_stores),
        case("reuse", shape=counted, review=review_reuse),
    ]


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
    """Whether a number that was loaded serves a tile of 32: the sectors of all loads against those of 32 × 32 tiles."""
    query, key = case.inputs["Q"], case.inputs["K"]
    key_tiles, query_tiles = ceil_div(key.shape[1], TILE), ceil_div(query.shape[1], TILE)
    tiled = 4 * (query.numel() * key_tiles + key.numel() * query_tiles) // SECTOR
    loaded = sum(row.sectors for row in outcome.counters if row.space == "global" and row.operation != "store")
    if loaded <= ALLOWED * tiled:
        return None
    detail = f"The loads touch {loaded:,} sectors in all; tiles of 32 × 32 need {tiled:,} ({loaded / tiled:.1f} times)."
    return Diagnosis("K is loaded again for every query, or Q for every key", detail, TILES)


# ---------------------------------------------------------------------------------------------- known mistakes

Change = Callable[[Tensor, Tensor, float, bool], Tensor | None]  # Q, K, scale, is_causal -> S with a mistake in it


def _mistake(name: str, detail: str, read_again: str, change: Change) -> Mistake:
    def simulate(case: Case) -> Mapping[str, Tensor] | None:
        S = change(case.inputs["Q"], case.inputs["K"], float(case.facts["scale"]), bool(case.facts["is_causal"]))
        return None if S is None else {"S": S}

    return Mistake(Diagnosis(name, detail, read_again), simulate)


def _mask_value(query: Tensor, key: Tensor, scale: float, is_causal: bool) -> Tensor | None:
    return scores(query, key, scale, False).masked_fill(~_kept(query, key), 0) if is_causal else None


def _kept(query: Tensor, key: Tensor) -> Tensor:
    i, j = torch.arange(query.shape[1])[:, None], torch.arange(key.shape[1])
    return j <= i + key.shape[1] - query.shape[1]


def _rows_side_by_side(x: Tensor) -> Tensor:
    """x [B, L, H, d] as one sees it who takes rows to be d floats apart."""
    B, L, H, d = x.shape
    return x.as_strided((B, L, H, d), (L * H * d, d, d, 1))


def _heads_first(x: Tensor) -> Tensor:
    """x [B, L, H, d] as one sees it who takes it for [B, H, L, d]."""
    B, L, H, d = x.shape
    return x.reshape(B, H, L, d).transpose(1, 2)


def _past_the_end_of_d(x: Tensor) -> Tensor:
    """x with the columns behind d that a last piece of 32 reads: those of the next head, then zeros."""
    B, L, H, d = x.shape
    columns = ceil_div(d, TILE) * TILE
    flat = torch.cat([x.flatten(), x.new_zeros(columns)])
    return flat.as_strided((B, L, H, columns), (L * H * d, H * d, d, 1))


def _last_piece(query: Tensor, key: Tensor, scale: float, is_causal: bool) -> Tensor:
    first = (query.shape[-1] - 1) // TILE * TILE
    return scores(query[..., first:], key[..., first:], scale, is_causal)


def _transposed(query: Tensor, key: Tensor, scale: float, is_causal: bool) -> Tensor:
    S = scores(query, key, scale, is_causal)
    return S.mT.reshape(S.shape)


MISTAKES = (
    _mistake(
        "the scores are not multiplied by scale",
        "S is Q Kᵀ.",
        "chapter 01, section 2, 'Why the scores are divided by √d'",
        lambda q, k, s, c: scores(q, k, 1.0, c),
    ),
    _mistake(
        "only the first 32 columns of Q and K are multiplied",
        "Each score is the dot product of the first piece; the loop over pieces of d does not go on.",
        SCORES,
        lambda q, k, s, c: scores(q[..., :TILE], k[..., :TILE], s, c) if q.shape[-1] > TILE else None,
    ),
    _mistake(
        "only the last piece of d counts",
        "The sum starts afresh with each piece of 32 columns; it belongs before the loop.",
        SCORES,
        lambda q, k, s, c: _last_piece(q, k, s, c) if q.shape[-1] > TILE else None,
    ),
    _mistake(
        "the columns past d are multiplied too",
        "d is no multiple of 32 here. The last piece of a row goes on into the next head or token: zeros belong there.",
        SCORES,
        lambda q, k, s, c: scores(_past_the_end_of_d(q), _past_the_end_of_d(k), s, c) if q.shape[-1] % TILE else None,
    ),
    _mistake(
        "rows are taken to be d floats apart",
        "In [B, L, H, d] the next token's row begins H · d floats further on.",
        SCORES,
        lambda q, k, s, c: scores(_rows_side_by_side(q), _rows_side_by_side(k), s, c),
    ),
    _mistake(
        "Q and K are read as [B, H, L, d]",
        "They are [B, L, H, d]: the heads of one token lie side by side.",
        SCORES,
        lambda q, k, s, c: scores(_heads_first(q), _heads_first(k), s, c),
    ),
    _mistake(
        "every head reads head 0",
        "Head h of a token begins h · d floats further on.",
        SCORES,
        lambda q, k, s, c: scores(q[:, :, :1].expand_as(q), k[:, :, :1].expand_as(k), s, c),
    ),
    _mistake(
        "every sequence of the batch reads the first one",
        "Sequence b begins b · L · H · d floats further on.",
        SCORES,
        lambda q, k, s, c: scores(q[:1].expand_as(q), k[:1].expand_as(k), s, c),
    ),
    _mistake(
        "S is stored transposed",
        "Element (i, j) belongs at i · L_k + j.",
        SCORES,
        _transposed,
    ),
    _mistake(
        "the causal mask is missing",
        "With is_causal, a key j > i + L_k − L_q gets −∞.",
        MASK,
        lambda q, k, s, c: scores(q, k, s, False) if c else None,
    ),
    _mistake(
        "the causal mask is aligned at the top left",
        "It keeps j ≤ i. The last query must see every key: j ≤ i + L_k − L_q.",
        UNEQUAL,
        lambda q, k, s, c: scores(q, k, s, c, shift=0) if c else None,
    ),
    _mistake(
        "the causal mask is off by one: a query does not see its own key",
        "It masks j ≥ i + L_k − L_q; the diagonal stays.",
        MASK,
        lambda q, k, s, c: scores(q, k, s, c, shift=k.shape[1] - q.shape[1] - 1) if c else None,
    ),
    _mistake(
        "the causal mask is off by one: a query sees one key of the future",
        "It keeps j ≤ i + L_k − L_q + 1.",
        MASK,
        lambda q, k, s, c: scores(q, k, s, c, shift=k.shape[1] - q.shape[1] + 1) if c else None,
    ),
    _mistake(
        "a masked score is 0 instead of −∞",
        "A score of 0 is a score like any other: exp(0) = 1, so the softmax would give the key a weight.",
        MASK,
        _mask_value,
    ),
)

FINDINGS = {
    "initcheck": Diagnosis(
        "a piece of the tile is read that nobody has written",
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
        read_again="chapter 01, section 9, 'The score matrix needs bandwidth'",
    ),
)

EXERCISE = Exercise(
    id="01_attention_basics/coalesced_scores",
    title="Coalesced scores",
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
    mistakes=MISTAKES,
    findings=FINDINGS,
    questions=QUESTIONS,
    cells=("answers",),
)
