"""Grading of "03_flash_attention_v2/causal_skip": a causal mask that skips tiles, by values and by what was loaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from course_utils import costs, reference
from course_utils.checks import AttentionCase, make_inputs
from course_utils.grading.exercise import (
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

D, HEADS = 32, 2
SCALE = D**-0.5

SKIPPING = "chapter 03, section 3, 'Step 6: causal skip'"
MASK = "chapter 01, section 10, 'The causal mask, and a model that cheats'"
ALIGNMENT = "chapter 01, section 11, 'Cross-attention: more keys than queries'"
EMPTY_ROWS = "chapter 02, section 2, 'The one trap'"


class Tiles(NamedTuple):
    """B_r queries and B_c keys."""

    rows: int
    keys: int


WIDE, TALL = Tiles(16, 32), Tiles(32, 16)


# ---------------------------------------------------------------------------------------------- the cases


def _case(
    generator: torch.Generator, part: str, query_length: int, key_length: int, tiles: Tiles, kind: str = "normal",
    review: Callable[[Case, Outcome], Diagnosis | None] | None = None,
) -> Case:  # fmt: skip
    seed = int(torch.randint(2**31, (), generator=generator))
    attention = AttentionCase(1, HEADS, HEADS, query_length, key_length, D, True, kind)
    query, key, value, _ = make_inputs(attention, seed=seed)
    out, lse = reference.attention(query, key, value, is_causal=True, return_lse=True)
    lengths = np.int32(query_length), np.int32(key_length)
    return Case(
        part=part,
        name=f"L_q = {query_length}, L_k = {key_length}, B_r = {tiles.rows}, B_c = {tiles.keys}, {kind}",
        launches=(
            Launch(
                kernel="causal_skip",
                grid=(costs.ceil_div(query_length, tiles.rows), HEADS),
                block=(4 * tiles.rows,),
                arguments=("Q", "K", "V", "O", "LSE", *lengths, np.float32(SCALE)),
                options=(f"-DD={D}", f"-DB_R={tiles.rows}", f"-DB_C={tiles.keys}"),
            ),
        ),
        inputs={"Q": query[0], "K": key[0], "V": value[0]},
        outputs={
            "O": Output(out[0], same_dtype=reference.torch_attention(query, key, value, is_causal=True)[0]),
            "LSE": Output(lse[0], kind="lse"),
        },
        facts={"tiles": tiles, "empty_rows": attention.empty_rows},
        must_be_clean=True,
        review=review,
    )


def cases(generator: torch.Generator, python: Mapping[str, Tensor]) -> list[Case]:
    case = partial(_case, generator)
    return [
        case("square", 113, 113, TALL, "planted"),
        case("square", 65, 65, WIDE, "large logits"),
        case("square", 1, 1, TALL),
        case("square", 3, 3, WIDE),
        case("unequal", 33, 97, WIDE, "planted"),
        case("unequal", 64, 65, TALL),
        case("unequal", 1, 113, TALL),
        case("unequal", 48, 65, WIDE, "overflowing exp"),
        case("empty", 97, 33, TALL, "planted"),
        case("empty", 65, 40, WIDE),
        case("empty", 3, 1, TALL),
        # Full tiles only: what a kernel reads for rows that do not exist is not counted.
        case("skip", 128, 144, TALL, review=_loads),
        case("skip", 48, 128, WIDE, review=_loads),
        case("skip", 128, 80, TALL, review=_loads),
    ]


def _loads(case: Case, outcome: Outcome) -> Diagnosis | None:
    """K and V are loaded in the tiles that hold a visible pair, and in no other."""
    query_length, key_length = (case.inputs[name].shape[1] for name in ("Q", "K"))
    tiles: Tiles = case.facts["tiles"]
    tile = 2 * HEADS * tiles.keys * D * 4  # of K and of V, in all heads
    blocks, every = costs.ceil_div(query_length, tiles.rows), costs.ceil_div(key_length, tiles.keys)
    visited = sum(1 for _ in costs.visited_tiles(query_length, key_length, *tiles, is_causal=True))
    needed, everything = visited * tile, blocks * every * tile
    once, per_tile = case.inputs["Q"].nbytes, visited * HEADS * tiles.rows * D * 4
    loaded = outcome.loaded_bytes - once
    # Q may also be read again for each tile, or whole by each of the four threads of a query.
    if loaded <= needed + tile // 2 or outcome.loaded_bytes - needed in (4 * once, per_tile, 4 * per_tile):
        return None
    evidence = f"{case.name}: besides Q, once, {loaded:,} bytes were loaded; tiles with a visible pair hold {needed:,}"
    if loaded >= everything - tile // 2:
        return Diagnosis("masked tiles are still loaded", f"{evidence}, all tiles {everything:,}.", SKIPPING)
    many = (loaded - needed) / tile
    words = f"{evidence}. That is {many:.1f} tiles too many per head, in {blocks} blocks."
    return Diagnosis("some tiles that nobody sees are still loaded", words, SKIPPING)


# ---------------------------------------------------------------------------------------------- known mistakes


class Where(NamedTuple):
    """Of every pair: query i, key j, and the first of their tiles; keys run on to the end of the last tile."""

    i: Tensor  # [L_q, 1]
    j: Tensor  # [1, keys of all tiles]
    i0: Tensor
    j0: Tensor
    shift: int
    tiles: Tiles
    key_length: int

    @property
    def causal(self) -> Tensor:
        return self.j <= self.i + self.shift

    @property
    def exists(self) -> Tensor:
        return self.j < self.key_length

    def visited(self, end: Tensor | None = None) -> Tensor:
        """Pairs in the tiles with j0 < end; by default those that hold a visible pair."""
        end = self.i0 + self.tiles.rows + self.shift if end is None else end
        return (self.j0 < end) & (self.j0 < self.key_length)


def _where(case: Case) -> Where:
    query_length, key_length = (case.inputs[name].shape[1] for name in ("Q", "K"))
    tiles: Tiles = case.facts["tiles"]
    i = torch.arange(query_length)[:, None]
    j = torch.arange(costs.ceil_div(key_length, tiles.keys) * tiles.keys)[None]
    i0, j0 = i // tiles.rows * tiles.rows, j // tiles.keys * tiles.keys
    return Where(i, j, i0, j0, key_length - query_length, tiles, key_length)


def _attention(case: Case, scores_of: Callable[[Where, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """O and LSE where the scores, −∞ for what a kernel leaves out, are what `scores_of` makes of them.

    Keys of the last tile past L_k are zeros in K and V, as load_tile leaves them.
    """
    where = _where(case)
    query, key, value = (case.inputs[name].double() for name in ("Q", "K", "V"))
    missing = where.j.shape[1] - where.key_length
    key, value = (torch.nn.functional.pad(x, (0, 0, 0, missing)) for x in (key, value))
    scores = scores_of(where, SCALE * query @ key.mT)
    m = scores.amax(dim=-1, keepdim=True)
    p = torch.exp(scores - torch.where(m == -math.inf, 0.0, m))
    total = p.sum(dim=-1, keepdim=True)
    out = p @ value / torch.where(total == 0, 1.0, total)
    return out, torch.logsumexp(scores, dim=-1)


def _differing(case: Case, out: Tensor, lse: Tensor) -> Mapping[str, Tensor] | None:
    written = {"O": out, "LSE": lse}
    return {
        name: tensor
        for name, tensor in written.items()
        if not torch.allclose(tensor, case.outputs[name].expected, rtol=1e-3, atol=1e-3)
    } or None


def _other_pairs(case: Case, sees: Callable[[Where], Tensor]) -> Mapping[str, Tensor] | None:
    """The outputs if query i sees the pairs of `sees` instead of the causal ones."""
    return _differing(case, *_attention(case, lambda w, scores: scores.masked_fill(~(sees(w) & w.exists), -math.inf)))


def _hidden_as(case: Case, score: float) -> Mapping[str, Tensor] | None:
    """The outputs if hidden pairs of visited tiles get this score. Their LSE depends on how far it is from 0."""
    out, _ = _attention(
        case,
        lambda w, scores: torch.where(w.causal & w.exists, scores, score).masked_fill(~w.visited(), -math.inf),
    )
    return _differing(case, out, case.outputs["LSE"].expected)


def _nan_rows(case: Case, *, in_visited: bool, divides: bool) -> Mapping[str, Tensor] | None:
    """Rows without keys: NaN where the block visits a tile (`in_visited`), and 0 / 0 at the end (`divides`)."""
    where, empty = _where(case), case.facts["empty_rows"]
    visits = where.visited().any(dim=1)
    lost = empty & visits if in_visited else torch.zeros_like(empty)
    out = case.outputs["O"].expected.masked_fill((lost | (empty & divides))[:, None], math.nan)
    return _differing(case, out, case.outputs["LSE"].expected.masked_fill(lost, math.nan))


def _mistake(name: str, detail: str, read_again: str, sees: Callable[[Where], Tensor]) -> Mistake:
    return Mistake(Diagnosis(name, detail, read_again), partial(_other_pairs, sees=sees))


def _masked_in(w: Where, tiles: Tensor) -> Tensor:
    """What a query sees if only these tiles are masked."""
    return (w.causal | ~tiles) & w.visited()


def _last_visited(w: Where) -> Tensor:
    end = (w.i0 + w.tiles.rows + w.shift).clamp(max=w.key_length)
    return w.j0 == (end - 1) // w.tiles.keys * w.tiles.keys


_NO_LATER_KEY = "Query i sees key j when j <= i + L_k - L_q, and no key after it."
_NEVER_SEEN = Diagnosis(
    "a row that sees no key computes −∞ − (−∞)",
    "As long as a row has seen no key, m is −∞, and exp(m - m) is NaN, which stays in l and O. Subtract 0 "
    "there: exp(−∞ − 0) is 0.",
    EMPTY_ROWS,
)

MISTAKES = (
    _mistake("there is no mask: queries see later keys",
             "The outputs are those of attention to all keys.", MASK, lambda w: w.exists),
    _mistake("the visited tiles are not masked",
             "The end of the loop is right. But a tile that the diagonal crosses holds hidden pairs, too: mask these.",
             MASK, lambda w: w.visited()),
    _mistake("mask is off by one: a query does not see its own key",
             "Query i sees key j when j <= i + L_k - L_q, and equality counts.", MASK, lambda w: w.j < w.i + w.shift),
    _mistake("mask is off by one: a query sees the next key",
             _NO_LATER_KEY, MASK, lambda w: (w.j <= w.i + w.shift + 1) & w.visited()),
    _mistake("mask is off by one: a query sees the next key",
             _NO_LATER_KEY, MASK, lambda w: w.j <= w.i + w.shift + 1),
    _mistake("the mask is aligned at the top left",
             "j <= i holds for L_q = L_k only. The last query sees every key: j <= i + L_k - L_q.", ALIGNMENT,
             lambda w: w.j <= w.i),
    _mistake("the shift of the mask has the wrong sign",
             "With more keys than queries each query sees more: j <= i + (L_k - L_q).", ALIGNMENT,
             lambda w: w.j <= w.i - w.shift),
    _mistake("the tile on the diagonal is skipped",
             "A tile that the diagonal crosses holds visible pairs too: it is loaded and masked, not skipped.",
             SKIPPING, lambda w: w.causal & (w.j0 + w.tiles.keys - 1 <= w.i0 + w.shift)),
    _mistake("the loop ends at the first query of the block, not at the last",
             "All queries of a block walk together: the one that sees furthest, i0 + B_r - 1, sets the end.", SKIPPING,
             lambda w: w.causal & w.visited(w.i0 + w.shift + 1)),
    _mistake("the loop ends one key early",
             "The last query of a block sees key i0 + B_r - 1 + L_k - L_q, which may be the first of its tile. As the "
             "end of the loop it takes one more.", SKIPPING,
             lambda w: w.causal & w.visited(w.i0 + w.tiles.rows - 1 + w.shift)),
    _mistake("the loop leaves the shift out: the mask is right, the skipped tiles are not",
             "The end of the loop needs L_k - L_q as the mask does.", ALIGNMENT,
             lambda w: w.causal & w.visited(w.i0 + w.tiles.rows)),
    _mistake("the number of tiles is rounded down",
             "keys / B_c drops the last tile where it is not full. Round up, or compare j0 with the end.", SKIPPING,
             lambda w: w.causal
             & (w.j0 + w.tiles.keys <= (w.i0 + w.tiles.rows + w.shift).clamp(max=w.key_length))),
    _mistake("only the last tile of a block is masked",
             "With B_r > B_c, or where L_k - L_q is no multiple of the tile, the diagonal crosses several tiles of a "
             "block.", SKIPPING, lambda w: _masked_in(w, _last_visited(w))),
    _mistake("only the tile with the block's own number is masked",
             "Tile j lies on the diagonal of block i where i = j only if B_r = B_c and L_q = L_k.", SKIPPING,
             lambda w: _masked_in(w, w.j0 // w.tiles.keys == w.i0 // w.tiles.rows)),
    _mistake("the test for the diagonal looks at the last query, not at the first",
             "A tile needs the mask as soon as one query of the block does not see all of it: the first sees least.",
             SKIPPING, lambda w: _masked_in(w, w.j0 + w.tiles.keys - 1 > w.i0 + w.tiles.rows - 1 + w.shift)),
    _mistake("the test for the diagonal looks at the first key of the tile, not at the last",
             "A tile needs the mask as soon as the first query does not see its last key, j0 + B_c - 1.",
             SKIPPING, lambda w: _masked_in(w, w.j0 > w.i0 + w.shift)),
    _mistake("the test for the diagonal leaves the shift out",
             "The diagonal runs through j = i + L_k - L_q. With fewer keys than queries it lies before j = i.",
             ALIGNMENT, lambda w: _masked_in(w, w.j0 + w.tiles.keys - 1 > w.i0)),
    Mistake(
        Diagnosis("hidden scores are 0, not −∞",
                  "exp(0 - m) is a weight like any other. Only exp(−∞) is 0.", MASK),
        partial(_hidden_as, score=0.0)),
    Mistake(
        Diagnosis("a row that sees no key averages V",
                  "With a large negative number instead of −∞, a row that sees no key finds all its scores "
                  "equal: every hidden key gets the same weight.", EMPTY_ROWS),
        partial(_hidden_as, score=-1e30)),
    Mistake(_NEVER_SEEN, partial(_nan_rows, in_visited=True, divides=False)),
    Mistake(_NEVER_SEEN, partial(_nan_rows, in_visited=True, divides=True)),
    Mistake(
        Diagnosis("a row that sees no key divides 0 by 0",
                  "Its l is 0. It gives O = 0 and LSE = −∞.", EMPTY_ROWS),
        partial(_nan_rows, in_visited=False, divides=True)),
)  # fmt: skip


# ---------------------------------------------------------------------------------------------- the exercise

_ALL = (512 // 64) ** 2
_VISITED = 100 * sum(1 for _ in costs.visited_tiles(512, 512, 64, 64, is_causal=True)) / _ALL
_MASKED = costs.masked_tiles(4096, 4096, 128, 64)
_FLOPS = costs.attention_flops(1, 1, 32768, 32768, 128, is_causal=True)

EXERCISE = Exercise(
    id="03_flash_attention_v2/causal_skip",
    title="Causal tile skipping",
    parts=(
        Part("square", 3, "The causal mask, L_q = L_k"),
        Part("unequal", 3, "More keys than queries: aligned at the bottom right"),
        Part("empty", 2, "More queries than keys: rows that see no key"),
        Part("skip", 4, "No tile is loaded that nobody sees"),
    ),
    kernels=("causal_skip",),
    cases=cases,
    mistakes=MISTAKES,
    findings={
        "synccheck": Diagnosis(
            "not all threads of a block reach the same barrier",
            read_again="chapter 00, section 10, 'Reading a finding'",
        )
    },
    questions=(
        Question(
            "visited", 1, "Visited tiles at L = 512, 64 × 64, in percent of all", _VISITED, "%", 0.005,
            misconceptions=(
                (50, "half of the pairs are visible, but the tiles on the diagonal are visited whole"),
                (_VISITED / 100, "this is the ratio; the question asks for percent"),
                (100 - _VISITED, "this is the part that is skipped; the tiles on the diagonal are visited too"),
            ),
            read_again=SKIPPING,
        ),
        Question(
            "masked", 1, "Tiles that need the mask at L = 4096, B_r = 128, B_c = 64", _MASKED, "tiles", 0.005,
            misconceptions=(
                (4096 // 128, "a block of 128 queries has two tiles of 64 keys on its diagonal"),
                (sum(1 for _ in costs.visited_tiles(4096, 4096, 128, 64, is_causal=True)),
                 "these are all visited tiles; most of them lie wholly below the diagonal"),
                (4096 // 128 * (4096 // 64), "these are all tiles there are"),
            ),
            read_again=SKIPPING,
        ),
        Question(
            "flops", 1, "FLOPs of one causal head, forward, L = 32,768, d = 128", _FLOPS, "FLOP", 0.02,
            misconceptions=(
                (2 * _FLOPS, "this is attention without a mask; a causal one needs half"),
                (32768**2, "this is the number of scores, L². Each costs 4 · d FLOPs: a multiply-add is two, in "
                 "Q Kᵀ and in P V"),
                (32768**2 / 2, "this is the number of visible pairs. Each costs 4 · d FLOPs"),
                (_FLOPS / 2, "a multiply-add counts as two FLOPs, and there are two products, Q Kᵀ and P V"),
                (_FLOPS / 4, "a multiply-add counts as two FLOPs, and there are two products, Q Kᵀ and P V"),
            ),
            read_again="chapter 03, section 1, 'Why: most of the GPU is idle'",
        ),
    ),
    cells=("answers",),
)  # fmt: skip
