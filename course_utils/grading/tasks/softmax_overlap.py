"""Grading of "07_hopper/softmax_overlap": the order of a warpgroup's products and its softmax.

Wrong values and what asynccheck finds are told as in other exercises. Whether softmax runs beside a product is counted:
the emulator knows of each exponential whether its warp has started a product that it has not waited for. The products
are counted, too: one that no tile needs is nothing to be beside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from course_utils import reference
from course_utils.costs import ceil_div
from course_utils.grading.draws import between
from course_utils.grading.exercise import (
    Boxes,
    Case,
    Diagnosis,
    Exercise,
    Launch,
    Mistake,
    Outcome,
    Output,
    Part,
    Question,
)
from course_utils.grading.names import L_NOT_RESCALED, O_NOT_RESCALED

D, ROWS, KEYS = 64, 64, 128  # columns; queries of a block; keys of a tile
CONSUMERS = 128  # threads
PRODUCT_FLOPS = 2 * ROWS * KEYS * D  # of S = Q Kᵀ of a tile, and of its P V
SHARED_BYTES = 74_320
AXES = ("head", "query", "column")
ENOUGH = 0.9  # of the exponentials of all tiles but the first one: so many run beside a product
RING = "07 Hopper, section 4, 'Step 3: producer and consumers'"
PRODUCTS = "07 Hopper, section 2, 'Step 1: wgmma'"
OVERLAP = "07 Hopper, section 5, 'Step 4: softmax beside a product'"
TWO_NUMBERS = "02 FlashAttention, minimal, section 2, 'Two numbers'"


# ---------------------------------------------------------------------------------------------- the cases


def _case(part: str, query: Tensor, key: Tensor, value: Tensor, scale: float, **options: object) -> Case:
    """One launch. query [H, L_q, 64], key and value [H, L_k, 64], numbers that fp16 holds."""
    heads, L_q, _ = query.shape
    L_k = key.shape[1]
    maps = (Boxes("Q", ROWS), Boxes("K", KEYS), Boxes("V", KEYS))
    launch = Launch(
        "softmax_overlap",
        (ceil_div(L_q, ROWS), heads),
        (CONSUMERS + 32,),
        (*maps, "O", "LSE", np.int32(L_q), np.int32(L_k), np.float32(scale)),
        shared_mem=SHARED_BYTES,
    )
    S = query.double() @ key.double().mT * scale
    out = reference.attention(query[None].double(), key[None].double(), value[None].double(), scale=scale)[0]
    weights = torch.exp(S - S.amax(dim=-1, keepdim=True))
    same = weights.half().double() @ value.double() / weights.sum(dim=-1, keepdim=True)
    return Case(
        part=part,
        name=f"H = {heads}, L_q = {L_q}, L_k = {L_k}",
        launches=(launch,),
        inputs={"Q": query.half(), "K": key.half(), "V": value.half()},
        outputs={
            "O": Output(out, same_dtype=same, axes=AXES),
            "LSE": Output(torch.logsumexp(S, dim=-1), kind="lse", axes=AXES[:2]),
        },
        facts={"scale": scale, "tiles": ceil_div(L_k, KEYS)},
        must_be_clean=True,
        **options,
    )


def cases(generator: torch.Generator, python: Mapping[str, Tensor]) -> list[Case]:
    """One tile; several, where the largest scores come late; ragged ones; and one whose exponentials are counted."""
    draw = partial(between, generator)

    def case(part: str, heads: int, L_q: int, L_k: int, **options: object) -> Case:
        scale = float(np.float32(0.1 + 0.05 * torch.rand((), generator=generator).item()))
        query, key, value = (
            torch.randn(heads, length, D, generator=generator).half().float() for length in (L_q, L_k, L_k)
        )
        for tile in range(1, ceil_div(L_k, KEYS)):  # each tile has larger scores than those before: all of them rescale
            key[:, tile * KEYS] = (tile * 4 * query[:, 0] / query[:, 0].norm(dim=-1, keepdim=True)).half().float()
            key[:, tile * KEYS + 1 :] *= 1 + 0.2 * tile
        return _case(part, query, key.half().float(), value, scale, **options)

    return [
        case("one", 1, ROWS, KEYS),
        case("one", 2, draw(3, 60), draw(5, 120)),
        case("tiles", 1, ROWS, 3 * KEYS),
        case("tiles", 1, ROWS, 2 * KEYS),
        case("ragged", 1, draw(70, 120), 4 * KEYS + draw(3, 120)),
        case("overlap", 1, ROWS, draw(4, 5) * KEYS, review=_review_overlap),
    ]


def _review_overlap(case: Case, outcome: Outcome) -> Diagnosis | None:
    """Whether the softmax of each tile but the first one is computed while a product runs, and one that is needed."""
    needed = (case.facts["tiles"] - 1) * ROWS * KEYS  # one block, whole tiles
    figures = (
        f"{case.name}: of {outcome.exponentials:,} exponentials {outcome.beside_products:,} are computed while a "
        f"product of their warp runs; {needed:,} weights, those of all tiles but the first one, can be."
    )
    if outcome.serialized:
        return SERIALIZED.with_figures(f"{figures}\n{outcome.serialized}")
    if outcome.beside_products < ENOUGH * needed:
        return (PARTLY if outcome.beside_products else NOTHING_OVERLAPS).with_figures(figures)
    products = outcome.product_flops / PRODUCT_FLOPS
    if products > 2 * case.facts["tiles"]:
        return TOO_MANY_PRODUCTS.with_figures(f"{case.name}: {case.facts['tiles']} tiles, {products:g} products.")
    return None


# ---------------------------------------------------------------------------------------------- what is found

NOTHING_OVERLAPS = Diagnosis(
    "right, but no exponential is computed while a product runs",
    "Each product is waited for before softmax begins: the tensor cores pause meanwhile. Start O += P V of the tile "
    "before behind S = Q Kᵀ of this one, wait for S alone by wait_for_product<1>(S), and for O after softmax.",
    OVERLAP,
)
PARTLY = Diagnosis(
    "only part of the exponentials are computed while a product runs",
    "Some tiles have their softmax beside a product and others not: all of them can, but for the first.",
    OVERLAP,
)
TOO_MANY_PRODUCTS = Diagnosis(
    "more products are computed than the tiles have",
    "Each tile has two, S = Q Kᵀ and O += P V. One more keeps the tensor cores busy for nothing: softmax belongs "
    "beside a product that is needed, P V of the tile before or S of the next one.",
    OVERLAP,
)
SERIALIZED = Diagnosis(
    "ptxas lets the products run one after the other",
    "On a GPU nothing overlaps then. It does so where registers of a product are touched between its start and its "
    "wait.",
    PRODUCTS,
)
S_TOO_EARLY = Diagnosis(
    "S is read before its product is waited for",
    "softmax finds numbers of the tile before. wait_for_product<N>(S) waits until no more than the N newest products "
    "run: N is how many were started after start_scores, 1 if that is start_output alone.",
    PRODUCTS,
)
LAST_NOT_WAITED = Diagnosis(
    "the last P V is started and not waited for",
    "O is divided by l and stored while the product still adds to it. Behind the loop stands wait_for_product<0>(O).",
    PRODUCTS,
)
O_IN_FLIGHT = Diagnosis(
    "O is rescaled while P V of the tile before is still added to it",
    "rescale(O, rows) reads and writes the product's accumulators. It belongs behind wait_for_product<0>(O).",
    OVERLAP,
)
P_IN_FLIGHT = Diagnosis(
    "P is overwritten while the product still reads it",
    "The registers of P are the left factor of the product that runs. pack_weights(P, S) belongs behind "
    "wait_for_product<0>(O).",
    OVERLAP,
)
GIVEN_BACK_TOO_EARLY = Diagnosis(
    "a tile is given back while a product still reads it",
    "The producer may overwrite it at once. give_back stands behind the wait for the product that reads the tile: that "
    "of K behind the wait for S, that of V behind the wait for O.",
    RING,
)
NOT_FULL = Diagnosis(
    "a product is started on a tile that has not come",
    "wait_until_full(gate, parity) of that tile stands before start_scores or start_output: of gate_K for K, of gate_V "
    "for V, with the buffer and the parity of place(t) for the tile's own t.",
    RING,
)
NOT_GIVEN_BACK_ONCE = Diagnosis(
    "a tile is not given back exactly once",
    "All four warps give each K and each V back once. Never: nobody notices while there are no more tiles than "
    "buffers. Twice: two phases end at once, and the producer waits for a third.",
    RING,
)
NEVER_ASKED = Diagnosis(
    "the warps wait for a tile that does not come",
    "The producer brings tiles 0 to tiles − 1, each once, tile t to the buffer of place(t). A wait for another tile, "
    "or with another tile's parity, does not end.",
    RING,
)
LEFT_OUT = Diagnosis(
    "the loop ends before all tiles are taken",
    "The producer still waits for buffers, or brings tiles that nobody waits for.",
    RING,
)


def diagnose_findings(cases: Sequence[Case], outcomes: Sequence[Outcome]) -> list[Diagnosis | None]:
    """The mistake that findings or the error of each case show."""
    return [_of_one(outcome) for outcome in outcomes]


def _of_one(outcome: Outcome) -> Diagnosis | None:
    accumulators = outcome.found("accumulator in flight")
    if any("transposed" in (finding.other_source or "") for finding in accumulators):
        return S_TOO_EARLY
    if outcome.found("product not waited for"):
        return LAST_NOT_WAITED
    if accumulators or outcome.found("accumulator not fenced"):
        return O_IN_FLIGHT
    for kind, diagnosis in (
        ("factor in flight", P_IN_FLIGHT),
        ("operand not come", NOT_FULL),
        ("overwrites operand", GIVEN_BACK_TOO_EARLY),
        ("too many arrivals", NOT_GIVEN_BACK_ONCE),
    ):
        if outcome.found(kind):
            return diagnosis
    stuck = outcome.found("stuck at mbarrier")
    if stuck:
        producer = any(finding.thread and finding.thread[0] >= CONSUMERS for finding in stuck)
        consumers = any(finding.thread and finding.thread[0] < CONSUMERS for finding in stuck)
        return NEVER_ASKED if not producer else NOT_GIVEN_BACK_ONCE if consumers else LEFT_OUT
    return LEFT_OUT if outcome.found("load left behind") else None


# ---------------------------------------------------------------------------------------------- known mistakes


def _loop(
    case: Case,
    *,
    reverse: bool = False,
    last: int = 0,
    first: int = 0,
    of_O: str = "before",
    rescales_l: bool = True,
    packs: bool = True,
) -> Mapping[str, Tensor]:
    """O and LSE of the loop over tiles in float64.

    reverse: from the last tile on. last, first: how many of the last and first P V are left out. of_O: when O is
    rescaled: "before" P V of the tile is added, as it must be; "late", after it; "early", before P V of the tile before
    is added; or "never". packs: whether P is packed anew for each tile.
    """
    query, key, value = (case.inputs[name].double() for name in "QKV")
    starts = list(range(0, key.shape[1], KEYS))
    starts = starts[::-1] if reverse else starts
    m = torch.full((*query.shape[:2], 1), -torch.inf, dtype=torch.float64)
    total, out, waiting = torch.zeros_like(m), torch.zeros_like(query), torch.zeros_like(query)
    P = torch.empty(0)
    first = first if len(starts) > 1 else 0  # of one tile P V is the last, too
    for n, j in enumerate(starts):
        S = query @ key[:, j : j + KEYS].mT * case.facts["scale"]
        new = m.maximum(S.amax(dim=-1, keepdim=True))
        factor = torch.exp(m - new)
        weights = torch.exp(S - new)
        P = _whole(weights, 2) if packs or not n else P
        added = P @ _whole(value[:, j : j + KEYS], 1) if first <= n < len(starts) - last else torch.zeros_like(out)
        if of_O == "early":
            out, waiting = out * factor + waiting, added
        else:
            out = (out + added) * factor if of_O == "late" and n else out * (factor if of_O == "before" else 1) + added
        total = total * (factor if rescales_l else 1) + weights.sum(dim=-1, keepdim=True)
        m = new
    return {"O": (out + waiting) / total, "LSE": (m + total.log())[..., 0]}


def _whole(x: Tensor, axis: int) -> Tensor:
    """With zeros for the keys that a tile lacks."""
    missing = list(x.shape)
    missing[axis] = KEYS - x.shape[axis]
    return torch.cat([x, x.new_zeros(missing)], dim=axis)


def _mistake(name: str, detail: str, read_again: str, **way: object) -> tuple[Mistake, ...]:
    """The mistake, from the first tile on and from the last."""

    def simulate(case: Case, reverse: bool) -> Mapping[str, Tensor]:
        return _loop(case, reverse=reverse, **way)

    diagnosis = Diagnosis(name, detail, read_again)
    return tuple(Mistake(diagnosis, partial(simulate, reverse=reverse)) for reverse in (False, True))


MISTAKES = (
    *_mistake(
        "the last P V is missing",
        "P V runs a tile behind S: when the loop ends, that of the last tile has not been started. It stands behind "
        "the loop.",
        OVERLAP,
        last=1,
    ),
    *_mistake(
        "the first P V is missing", "P V of tile t − 1 is added beside S of tile t, from t = 1 on.", OVERLAP, first=1
    ),
    *_mistake(
        "O is rescaled too early: P V of the tile before is added afterwards",
        "The weights of the tile before belong to the old maximum. Their product must be in O before O takes the "
        "factor exp(m_old − m): first wait_for_product<0>(O), then rescale(O, rows).",
        OVERLAP,
        of_O="early",
    ),
    *_mistake(
        "O is rescaled too late: P V of the same tile takes the factor, too",
        "The weights of this tile belong to the new maximum already. rescale(O, rows) stands before start_output of "
        "the tile whose softmax has raised m.",
        OVERLAP,
        of_O="late",
    ),
    *_mistake(O_NOT_RESCALED, "O belongs to the old maximum until it is: rescale(O, rows).", TWO_NUMBERS, of_O="never"),
    *_mistake(L_NOT_RESCALED, "l belongs to the old maximum until it is.", TWO_NUMBERS, rescales_l=False),
    *_mistake(
        "P is that of the first tile for all",
        "pack_weights(P, S) makes a tile's weights the left factor of its product: once for each tile.",
        OVERLAP,
        packs=False,
    ),
)

# ---------------------------------------------------------------------------------------------- the exercise

EXPONENTIALS = 16  # a cycle, of a multiprocessor
MULTIPLY_ADDS = 4096 // 2  # a cycle, fp16: 4,096 floating-point operations
S_CYCLES = ROWS * KEYS * D / MULTIPLY_ADDS
SOFTMAX_CYCLES = ROWS * KEYS / EXPONENTIALS
TILES = 32  # of the question about the share
OVERLAP_PERCENT = 100 * (TILES - 1) / TILES

QUESTIONS = (
    Question(
        name="softmax_cycles",
        points=1,
        title="Cycles that the exponentials of a tile take at least: 64 × 128, 16 a cycle",
        value=SOFTMAX_CYCLES,
        unit="cycles",
        misconceptions=(
            (ROWS * KEYS / CONSUMERS, "that is how many each thread has"),
            (ROWS * KEYS, "16 of them are done in a cycle"),
        ),
        read_again=OVERLAP,
    ),
    Question(
        name="product_cycles",
        points=1,
        title="Cycles of S = Q Kᵀ of a tile: 64 × 128, D = 64, 4,096 floating-point operations a cycle",
        value=S_CYCLES,
        unit="cycles",
        misconceptions=(
            (S_CYCLES / 2, "a multiply-add is two operations"),
            (2 * S_CYCLES, "that is both products of the tile, S and P V"),
        ),
        read_again=OVERLAP,
    ),
    Question(
        name="beside",
        points=1,
        title="Percent of the exponentials that can be computed beside a product, L_k = 4096",
        value=OVERLAP_PERCENT,
        unit="%",
        tolerance=0.003,
        misconceptions=(
            (100.0, "the first tile has no product beside it: there is no P V yet"),
            (100 * (TILES - 2) / TILES, "the last tile's softmax has P V of the tile before beside it"),
        ),
        read_again=OVERLAP,
    ),
)

EXERCISE = Exercise(
    id="07_hopper/softmax_overlap",
    title="Softmax beside a product",
    difficulty=4,
    importance=4,
    kernels=("softmax_overlap",),
    parts=(
        Part("one", 2, "One tile, whole and ragged: right, and nothing found"),
        Part("tiles", 4, "Several tiles: right, and nothing found"),
        Part("ragged", 2, "A last tile with fewer keys, and a block with fewer queries"),
        Part("overlap", 4, "The softmax of each tile but the first one runs beside a product"),
    ),
    cases=cases,
    mistakes=MISTAKES,
    diagnose_findings=diagnose_findings,
    questions=QUESTIONS,
    cells=("answers",),
    half_in_step=False,
)
