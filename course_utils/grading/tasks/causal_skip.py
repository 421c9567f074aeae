"""Grading of "03_flash_attention_v2/causal_skip": a causal mask that skips tiles, by values and by what was loaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from course_utils import costs, reference
from course_utils.checks import AttentionCase, make_inputs
from course_utils.grading import names
from course_utils.grading.diagnosis import READING_A_FINDING, wrong_values
from course_utils.grading.draws import between
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
from course_utils.grading.seen import one_hot_values, weights_in, wrong_weights

SKIPPING = "03 FlashAttention-2, section 3, 'Step 6: causal skip'"
MASK = "01 Attention basics, section 10, 'The causal mask, and a model without it'"
ALIGNMENT = "01 Attention basics, section 11, 'Cross-attention: more keys than queries'"
EMPTY_ROWS = "02 FlashAttention, minimal, section 2, 'The one trap'"
SCALING = "01 Attention basics, section 2, 'Why the scores are divided by √d'"
ONLINE = "02 FlashAttention, minimal, section 2, 'Two numbers'"
OUTPUT_TOO = "02 FlashAttention, minimal, section 2, 'The output comes along'"
OVERFLOW = "01 Attention basics, section 6, 'Softmax without overflow'"


class Tiles(NamedTuple):
    """B_r queries and B_c keys, and the columns of a head."""

    rows: int
    keys: int
    head_dim: int


# Of each a pair is drawn. Greatest common divisor of B_r and B_c is 4: with B_c / 4 blocks, first queries of blocks lie
# at every multiple of 4 modulo B_c, and four shifts make every place of the diagonal in a tile.
TALL = ((16, 12), (32, 12), (24, 20))
WIDE = ((8, 12), (8, 20), (16, 20), (8, 28))


# ---------------------------------------------------------------------------------------------- the cases


def _drawn_tiles(generator: torch.Generator) -> tuple[Tiles, Tiles]:
    """More queries than keys, and more keys than queries. The first of what is drawn: always the same for a seed."""
    tall, wide = (shapes[between(generator, 0, len(shapes) - 1)] for shapes in (TALL, WIDE))
    return Tiles(*tall, 4 * between(generator, 5, 7)), Tiles(*wide, 4 * between(generator, 9, 12))


def _large_tiles(generator: torch.Generator) -> Tiles:
    """More than a warp has lanes of queries, keys and columns: of a few short cases."""
    return Tiles(8 * between(generator, 5, 6), 4 * between(generator, 9, 10), 4 * between(generator, 17, 18))


def _many_columns(generator: torch.Generator) -> Tiles:
    """More than 128 columns, of one short launch. A tile of Q has room in shared memory beside those of K and V."""
    return Tiles(8, 12, 4 * between(generator, 33, 72))


def _case(
    part: str, inputs: tuple[Tensor, Tensor, Tensor], scale: float, tiles: Tiles, kind: str, **options: object
) -> Case:
    """One launch on Q, K and V `[1, H, L, D]`."""
    query, key, value = inputs
    heads, query_length, key_length = query.shape[1], query.shape[2], key.shape[2]
    out, lse = reference.attention(query, key, value, is_causal=True, scale=scale, return_lse=True)
    plain, plain_lse = _plain(query, key, value, scale)
    lengths = np.int32(query_length), np.int32(key_length)
    different = slice(1) if "explain" in options else slice(None)  # with a column of V for each key
    lse_kind = "lse" if kind == "extreme scores" else "values"
    return Case(
        part=part,
        name=f"L_q = {query_length}, L_k = {key_length}, B_r = {tiles.rows}, B_c = {tiles.keys}, "
        f"D = {tiles.head_dim}, {kind}",
        launches=(
            Launch(
                kernel="causal_skip",
                grid=(costs.ceil_div(query_length, tiles.rows), heads),
                block=(4 * tiles.rows,),
                arguments=("Q", "K", "V", "O", "LSE", *lengths, np.float32(scale)),
                options=(f"-DD={tiles.head_dim}", f"-DB_R={tiles.rows}", f"-DB_C={tiles.keys}"),
            ),
        ),
        inputs={"Q": query[0], "K": key[0], "V": value[0]},
        outputs={
            "O": Output(out[0], same_dtype=plain[0], axes=("head", "query", "column")),
            "LSE": Output(lse[0], kind=lse_kind, same_dtype=plain_lse[0], axes=("head", "query")),
        },
        facts={
            "tiles": tiles,
            "scale": scale,
            "where": _where(query[0, different], key[0, different], value[0], scale, tiles),
            "no_key": torch.arange(query_length) + key_length - query_length < 0,
        },
        must_be_clean=True,
        **options,
    )


def _plain(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """O and LSE in plain fp32, with 0 in both where a query sees no key."""
    scores = scale * (query @ key.mT)
    scores = scores.masked_fill(~reference.causal_mask(query.shape[2], key.shape[2]), -math.inf)
    lse = torch.logsumexp(scores, dim=-1)
    return torch.softmax(scores, dim=-1).nan_to_num(nan=0.0) @ value, lse.masked_fill(lse == -math.inf, 0)


def _fp32(x: float) -> float:
    return float(np.float32(x))


def _random(
    generator: torch.Generator, part: str, query_length: int, key_length: int, tiles: Tiles, kind: str = "normal",
    flat: bool = False, **options: object,
) -> Case:  # fmt: skip
    """Inputs of a kind of `course_utils.checks`. flat: scores so near 0 that each visible key counts about as much."""
    heads, seed = 2, between(generator, 0, 2**31 - 1)
    scale = _fp32(tiles.head_dim**-0.5 * (0.1 if flat else 1) * between(generator, 5, 8) / 4)
    attention = AttentionCase(1, heads, heads, query_length, key_length, tiles.head_dim, True, kind, scale=scale)
    return _case(part, make_inputs(attention, seed=seed)[:3], scale, tiles, kind, **options)


def _weights(
    generator: torch.Generator, part: str, query_length: int, key_length: int, tiles: Tiles, **options: object
) -> Case:
    """Flat scores, the same in all heads. V has a column for each key: O is the weights."""
    value = one_hot_values(key_length, tiles.head_dim)
    scale = _fp32(tiles.head_dim**-0.5 * between(generator, 4, 8) / 32)
    query, key = (
        torch.randn(1, 1, length, tiles.head_dim, generator=generator) for length in (query_length, key_length)
    )
    query, key = (x.expand(-1, value.shape[1], -1, -1).contiguous() for x in (query, key))
    return _case(
        part, (query, key, value), scale, tiles, "a column of V for each key", explain=_seen_weights, **options
    )


def _seen_weights(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    keys = case.inputs["K"].shape[1]
    got, expected = (weights_in(x[None], keys) for x in (outputs["O"], case.outputs["O"].expected))
    said = wrong_weights(got, expected)
    return said and replace(said, read_again=MASK)


def _extreme(generator: torch.Generator, part: str, query_length: int, key_length: int, tiles: Tiles) -> Case:
    """Queries in turn whose scores are all −20,000, −1e20, −200 or 0, or rise or fall from key to key.

    The scale is a power of two, and K[:, 1] a small integer: no score is rounded.
    """
    scale = 2.0 ** -between(generator, 1, 3)
    key, value = (torch.randn(1, 2, key_length, tiles.head_dim, generator=generator) for _ in range(2))
    key[..., 0], key[..., 1] = 1, torch.arange(key_length)
    first, slope = torch.tensor([[-20000.0, -1e20, -200, 0, 0, 0], [0, 0, 0, 0, 12, -12]])
    turn = (torch.arange(query_length) + between(generator, 0, 5)) % len(first)
    query = torch.zeros(1, 2, query_length, tiles.head_dim)
    query[..., 0], query[..., 1] = first[turn] / scale, slope[turn] / scale
    return _case(part, (query, key, value), scale, tiles, "extreme scores")


def _lengths(generator: torch.Generator, tiles: Tiles, shift: int) -> tuple[int, int]:
    """L_q and L_k, such that blocks see the diagonal at every place of a tile that this shift allows modulo 4."""
    blocks = tiles.keys // 4
    query_length = (
        max(-shift, 0) // tiles.rows * tiles.rows + blocks * tiles.rows + between(generator, 1, tiles.rows - 1)
    )
    return query_length, query_length + shift


def _shifts(generator: torch.Generator, most: int) -> list[int]:
    """Four from 1 to `most`, one for each remainder modulo 4, in any order."""
    order = torch.randperm(4, generator=generator).tolist()
    return [4 * between(generator, 0, most // 4 - 1) + (remainder or 4) for remainder in order]


def _and_small(case: Case, small: Case) -> Case:
    """The same with one more launch, of few queries: too few to tell one mistake from another."""
    (launch,) = small.launches
    queries, keys = (small.inputs[name].shape[1] for name in ("Q", "K"))
    other = {name: f"{name} of {queries} × {keys}" for name in ("Q", "K", "V", "O", "LSE")}
    arguments = tuple(other.get(a, a) if isinstance(a, str) else a for a in launch.arguments)
    return replace(
        case,
        name=f"{case.name}; {queries} × {keys}, D = {small.facts['tiles'].head_dim}",
        launches=(*case.launches, replace(launch, arguments=arguments)),
        inputs={**case.inputs, **{other[name]: x for name, x in small.inputs.items()}},
        outputs={**case.outputs, **{other[name]: x for name, x in small.outputs.items()}},
    )


def cases(generator: torch.Generator, python: Mapping[str, Tensor]) -> list[Case]:
    tall, wide = _drawn_tiles(generator)
    draw, random = partial(between, generator), partial(_random, generator)
    few, length, large = draw(2, 5), draw(57, 79), _large_tiles(generator)
    square = _weights(generator, "square", *_lengths(generator, tall, 0), tall)
    for small in (1, few):
        square = _and_small(square, random("square", small, small, wide))
    made = [
        square,
        random("square", *_lengths(generator, tall, 0), tall, "planted"),
        random("square", length, length, large, "large logits"),
    ]
    for part, sign in (("unequal", 1), ("empty", -1)):
        for n, (shift, tiles) in enumerate(zip(_shifts(generator, 24), (tall, wide, tall, wide), strict=True)):
            make = _weights if n == 1 else partial(_random, flat=True)
            made.append(make(generator, part, *_lengths(generator, tiles, sign * shift), tiles))
    first = {part: next(i for i, case in enumerate(made) if case.part == part) for part in ("unequal", "empty")}
    made[first["unequal"]] = _and_small(
        made[first["unequal"]], random("unequal", 1, draw(60, 113), _many_columns(generator))
    )
    made[first["empty"]] = _and_small(made[first["empty"]], random("empty", draw(3, 5), draw(1, 2), tall))
    made += [
        random("unequal", length, length + draw(17, 40), wide, "planted"),
        random("unequal", length, length + draw(1, 5), large, "overflowing exp"),
        random("empty", draw(60, 80), draw(28, 40), tall, "planted"),
        _extreme(generator, "empty", length, length - draw(3, 15), large),
    ]
    return made + _full_tiles(generator, tall, wide)


def _full_tiles(generator: torch.Generator, tall: Tiles, wide: Tiles) -> list[Case]:
    """Whole tiles, with more keys than queries; as many keys as queries, in tiles that are cut off; fewer keys."""
    query_length = (tall.keys // 4 + 1) * tall.rows
    key_length = (query_length // tall.keys + between(generator, 2, 3)) * tall.keys
    made = [_random(generator, "skip", query_length, key_length, tall, flat=True, review=_loads)]
    # A little less than a multiple of both: the last tiles are nearly whole. Other parts look at its values.
    multiple = wide.rows * wide.keys // 4
    length = costs.ceil_div(40, multiple) * multiple - between(generator, 1, 3)
    square = _random(generator, "skip", length, length, wide, flat=True, review=_loads)
    outputs = {name: replace(output, kind="scratch") for name, output in square.outputs.items()}
    made.append(replace(square, outputs=outputs, must_be_clean=False))
    # The first block sees no key, by less than a tile.
    rest = (tall.keys // 4 + between(generator, 1, 2)) * tall.rows
    lengths = rest + tall.rows, rest // tall.keys * tall.keys
    return [*made, _random(generator, "skip", *lengths, tall, flat=True, review=_loads, compare=_where_keys_are_seen)]


def _where_keys_are_seen(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    """As ever, but for the rows that see no key: these have a part of their own."""
    no_key = case.facts["no_key"]
    kept = {"O": outputs["O"].masked_fill(no_key[:, None], 0), "LSE": outputs["LSE"].masked_fill(no_key, -math.inf)}
    return wrong_values(replace(case, compare=None), kept)


def _loads(case: Case, outcome: Outcome) -> Diagnosis | None:
    """K and V are loaded in the tiles that hold a visible pair, and in no other. Q may be read again and again.

    Bytes are those of keys that exist. Who reads another key in the place of one past the end may do so.
    """
    heads, query_length, _ = case.inputs["Q"].shape
    key_length = case.inputs["K"].shape[1]
    tiles: Tiles = case.facts["tiles"]
    row = heads * tiles.head_dim * 4  # of K or of V, in all heads
    tile = tiles.keys * row
    rows = [min(tiles.keys, key_length - j0) for j0 in range(0, key_length, tiles.keys)]
    blocks = costs.ceil_div(query_length, tiles.rows)
    visited = [j for _, j in costs.visited_tiles(query_length, key_length, tiles.rows, tiles.keys, is_causal=True)]
    once, once_whole = row * sum(rows[j] for j in visited), tile * len(visited)  # of K, or of V
    every, every_whole = row * blocks * key_length, tile * blocks * len(rows)
    of_each = [argument.bytes_loaded for argument in outcome.footprint[1:3]]  # of K and V
    loaded, needed, of_all = sum(of_each), 2 * once, 2 * every
    if loaded <= max(needed + tile, 2 * once_whole):
        return None
    evidence = (
        f"{case.name}: of K and V, {loaded:,.0f} bytes were loaded; tiles with a visible pair hold "
        f"{needed:,}, all tiles {of_all:,}."
    )
    several = any(all(x % whole == 0 for x in of_each) for whole in (once, once_whole))
    again = several and max(of_each) not in (every, every_whole)  # the visited ones, and no other
    if loaded > 2 * every_whole + tile or again:
        return Diagnosis("K and V are loaded more than once by a block", evidence, SKIPPING)
    if loaded >= of_all - tile:
        return Diagnosis("masked tiles are still loaded", evidence, SKIPPING)
    words = f"{evidence} That is {(loaded - needed) / tile / 2:.1f} tiles too many per head, in all blocks together."
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
    query_length: int
    key_length: int
    scores: Tensor  # float64; of one head where all have the same Q and K
    value: Tensor

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


def _where(query: Tensor, key: Tensor, value: Tensor, scale: float, tiles: Tiles) -> Where:
    """Of Q, K and V `[H, L, D]`, with zeros past L_k in the last tile, as load_tile leaves them."""
    query_length, key_length = query.shape[1], key.shape[1]
    i = torch.arange(query_length)[:, None]
    j = torch.arange(costs.ceil_div(key_length, tiles.keys) * tiles.keys)[None]
    i0, j0 = i // tiles.rows * tiles.rows, j // tiles.keys * tiles.keys
    missing = j.shape[1] - key_length
    scores = torch.nn.functional.pad(scale * query.double() @ key.double().mT, (0, missing))
    value = torch.nn.functional.pad(value.double(), (0, 0, 0, missing))
    return Where(i, j, i0, j0, key_length - query_length, tiles, query_length, key_length, scores, value)


def _inputs(case: Case) -> tuple[Where, Tensor, Tensor]:
    """The places, the scores and V."""
    where: Where = case.facts["where"]
    return where, where.scores, where.value


def _attention(case: Case, scores_of: Callable[[Where, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """O and LSE where the scores, −∞ for what a kernel leaves out, are what `scores_of` makes of them."""
    where, scores, value = _inputs(case)
    scores = scores_of(where, scores)
    m = scores.amax(dim=-1, keepdim=True)
    p, total = _exponentials(scores, m)
    return p @ value / torch.where(total == 0, 1.0, total), (m + torch.log(total))[..., 0]


def _exponentials(scores: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    p = torch.exp(scores - torch.where(m == -math.inf, 0.0, m))
    return p, p.sum(dim=-1, keepdim=True)


def _causal(where: Where, scores: Tensor) -> Tensor:
    return scores.masked_fill(~(where.causal & where.exists), -math.inf)


def _differing(case: Case, out: Tensor, lse: Tensor) -> Mapping[str, Tensor] | None:
    """Those of the outputs that are not right, in the rows that the case judges."""
    lse = lse.expand(len(out), -1)
    expected_out, expected_lse = (case.outputs[name].expected for name in ("O", "LSE"))
    judged = ~case.facts["no_key"] if case.compare else slice(None)
    written = {"O": (out, expected_out), "LSE": (lse, expected_lse)}
    return {
        name: tensor
        for name, (tensor, expected) in written.items()
        if not torch.allclose(tensor[:, judged], expected[:, judged], rtol=1e-3, atol=1e-3)
    } or None


def _other_pairs(case: Case, sees: Callable[[Where], Tensor]) -> Mapping[str, Tensor] | None:
    """The outputs if query i sees the pairs of `sees` instead of the causal ones."""
    where = case.facts["where"]
    if torch.equal(sees(where) & where.exists, where.causal & where.exists):
        return None
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
    where, empty = case.facts["where"], case.facts["no_key"]
    visits = where.visited().any(dim=1)
    lost = empty & visits if in_visited else torch.zeros_like(empty)
    out = case.outputs["O"].expected.masked_fill((lost | (empty & divides))[:, None], math.nan)
    return _differing(case, out, case.outputs["LSE"].expected.masked_fill(lost, math.nan))


def _low_rows_are_empty(case: Case, below: float) -> Mapping[str, Tensor] | None:
    """Rows whose largest score is below this give 0 and −∞."""
    low = _causal(*_inputs(case)[:2]).amax(dim=-1) < below
    out, lse = (case.outputs[name].expected for name in ("O", "LSE"))
    return _differing(case, out.masked_fill(low[..., None], 0), lse.masked_fill(low, -math.inf))


def _first_key_without_maximum(case: Case) -> Mapping[str, Tensor] | None:
    """The first key of a row gets the weight exp(s) where exp(s - s) = 1 is right; those after it are right."""

    def scores_of(where: Where, scores: Tensor) -> Tensor:
        scores = _causal(where, scores)
        scores[..., 0] = torch.where(scores[..., 0] == -math.inf, -math.inf, 2 * scores[..., 0])
        return scores

    return _differing(case, *_attention(case, scores_of))


def _not_rescaled(case: Case, *, of_o: bool, of_l: bool, by_tile: bool) -> Mapping[str, Tensor] | None:
    """O, or l, or both, without the factor for a larger maximum, which grows key by key or tile by tile."""
    where, scores, value = _inputs(case)
    scores = _causal(where, scores)
    m = scores.amax(dim=-1, keepdim=True)
    right, total = _exponentials(scores, m)
    grows = scores
    if by_tile:
        tiled = scores.unflatten(-1, (-1, where.tiles.keys))
        grows = tiled.amax(dim=-1, keepdim=True).expand_as(tiled).flatten(-2)
    then, total_then = _exponentials(scores, grows.cummax(dim=-1).values)
    total = total_then if of_l else total
    out = (then if of_o else right) @ value / torch.where(total == 0, 1.0, total)
    return _differing(case, out, (m + torch.log(total))[..., 0])


def _without_maximum(case: Case) -> Mapping[str, Tensor] | None:
    """exp(s) in fp32: infinite for large scores, 0 for small ones."""
    where, scores, value = _inputs(case)
    p = torch.exp(_causal(where, scores).float())
    total = p.sum(dim=-1, keepdim=True)
    out = p @ value.float() / torch.where(total == 0, 1.0, total)
    return _differing(case, out.double(), torch.log(total)[..., 0].double())


def _with_scale(case: Case, scale: Callable[[Case], float]) -> Mapping[str, Tensor] | None:
    factor = scale(case) / case.facts["scale"]
    return _differing(case, *_attention(case, lambda where, scores: _causal(where, factor * scores)))


def _head_zero(case: Case) -> Mapping[str, Tensor] | None:
    """Each head with K and V of the first."""
    key, value = (case.inputs[name][:1] for name in ("K", "V"))
    where = _where(case.inputs["Q"], key, value, case.facts["scale"], case.facts["tiles"])
    return _differing(case, *_attention(replace(case, facts={**case.facts, "where": where}), _causal))


def _with_lse(case: Case, lse_of: Callable[[Tensor, Tensor], Tensor]) -> Mapping[str, Tensor] | None:
    """The right O with an LSE made of the right one and the largest score."""
    m = _causal(*_inputs(case)[:2]).amax(dim=-1)
    return _differing(case, case.outputs["O"].expected, lse_of(case.outputs["LSE"].expected, m))


def _with_out(case: Case, out_of: Callable[[Tensor, Tensor], Tensor]) -> Mapping[str, Tensor] | None:
    """The right LSE with an O made of the right one and l."""
    scores = _causal(*_inputs(case)[:2])
    _, total = _exponentials(scores, scores.amax(dim=-1, keepdim=True))
    return _differing(case, out_of(case.outputs["O"].expected, total), case.outputs["LSE"].expected)


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
    names.EMPTY_ROW_IS_NAN,
    "As long as a row has seen no key, m is −∞, and −∞ − (−∞) is NaN, as is exp of it, which stays in l and O. "
    "What is to be subtracted there?",
    EMPTY_ROWS,
)
_FIRST_KEY = Diagnosis(
    "the first key that a row sees gets a weight without the maximum",
    "Its weight is exp(s), not exp(s - m_new): the test for a row that has seen no key yet must look at the maximum "
    "with this key, not at the one before it.",
    EMPTY_ROWS,
)
_LOW_ROW = Diagnosis(
    "a row with very low scores is taken for one that sees no key",
    "Scores may be as low as any float: only −∞ means that there is no key. Rows of scores near −20,000 and −1e20 are "
    "tested.",
    EMPTY_ROWS,
)


def _rescaling(name: str, *, of_o: bool, of_l: bool) -> list[Mistake]:
    diagnosis = Diagnosis(name, "", OUTPUT_TOO if of_o else ONLINE)
    return [
        Mistake(diagnosis, partial(_not_rescaled, of_o=of_o, of_l=of_l, by_tile=by_tile)) for by_tile in (False, True)
    ]


def _scaling(name: str, detail: str, scale: Callable[[Case], float]) -> Mistake:
    return Mistake(Diagnosis(name, detail, SCALING), partial(_with_scale, scale=scale))


MISTAKES = (
    _mistake(names.MASK_MISSING,
             "The outputs are those of attention to all keys.", MASK, lambda w: w.exists),
    _mistake("the visited tiles are not masked",
             "The end of the loop is right. But a tile that the diagonal crosses holds hidden pairs, too: mask these.",
             MASK, lambda w: w.visited()),
    _mistake("the mask hides whole tiles, not keys",
             "A query sees the whole tile that holds its last key, with the keys after that one.",
             MASK, lambda w: w.j0 <= w.i + w.shift),
    _mistake(names.OWN_KEY_HIDDEN,
             "Query i sees key j when j <= i + L_k - L_q, and equality counts.", MASK, lambda w: w.j < w.i + w.shift),
    _mistake(names.NEXT_KEY_SEEN,
             _NO_LATER_KEY, MASK, lambda w: (w.j <= w.i + w.shift + 1) & w.visited()),
    _mistake(names.NEXT_KEY_SEEN,
             _NO_LATER_KEY, MASK, lambda w: w.j <= w.i + w.shift + 1),
    _mistake("the mask is upside down: a query sees later keys, not earlier ones",
             _NO_LATER_KEY, MASK, lambda w: w.j > w.i + w.shift),
    _mistake("the mask is upside down: a query sees later keys, not earlier ones",
             _NO_LATER_KEY, MASK, lambda w: (w.j > w.i + w.shift) & w.visited()),
    _mistake("the mask is that of the block's first query, for all of its queries",
             "Each query has its own last key: i + L_k - L_q, with its own i.", MASK, lambda w: w.j <= w.i0 + w.shift),
    _mistake("the mask is that of the block's last query, for all of its queries",
             "Each query has its own last key: i + L_k - L_q, with its own i.", MASK,
             lambda w: w.j <= w.i0 + w.tiles.rows - 1 + w.shift),
    _mistake(names.MASK_TOP_LEFT,
             "j <= i holds for L_q = L_k only. The last query sees every key: j <= i + L_k - L_q.", ALIGNMENT,
             lambda w: w.j <= w.i),
    _mistake(names.SHIFT_WRONG_SIGN,
             "With more keys than queries each query sees more: j <= i + (L_k - L_q).", ALIGNMENT,
             lambda w: w.j <= w.i - w.shift),
    _mistake("the shift of the mask is never negative",
             "With fewer keys than queries L_k - L_q is negative, and the first queries see no key at all.", ALIGNMENT,
             lambda w: w.j <= w.i + max(w.shift, 0)),
    _mistake("the shift of the mask has lost its sign",
             "With fewer keys than queries L_k - L_q is negative, and the first queries see no key at all.", ALIGNMENT,
             lambda w: w.j <= w.i + abs(w.shift)),
    _mistake("the tile on the diagonal is skipped",
             "A tile that the diagonal crosses holds visible pairs too: it is loaded and masked, not skipped.",
             SKIPPING, lambda w: w.causal & (w.j0 + w.tiles.keys - 1 <= w.i0 + w.shift)),
    _mistake("the loop ends at the first query of the block, not at the last",
             "All queries of a block walk together: the one that sees furthest, i0 + B_r - 1, sets the end.", SKIPPING,
             lambda w: w.causal & w.visited(w.i0 + w.shift + 1)),
    _mistake("the loop ends before the key of the block's first query",
             "All queries of a block walk together: the one that sees furthest sets the end, and the end is one more "
             "than its last key.", SKIPPING,
             lambda w: w.causal & w.visited(w.i0 + w.shift)),
    _mistake("the loop ends one key early",
             "The last query of a block sees key i0 + B_r - 1 + L_k - L_q, which may be the first of its tile. As the "
             "end of the loop it takes one more.", SKIPPING,
             lambda w: w.causal & w.visited(w.i0 + w.tiles.rows - 1 + w.shift)),
    _mistake("the loop leaves the shift out: the mask is right, the skipped tiles are not",
             "The end of the loop needs L_k - L_q as the mask does.", ALIGNMENT,
             lambda w: w.causal & w.visited(w.i0 + w.tiles.rows)),
    _mistake("the loop ends at L_q, not at L_k",
             "It runs over keys, and there are L_k of them.", ALIGNMENT,
             lambda w: w.causal & w.visited((w.i0 + w.tiles.rows + w.shift).clamp(max=w.query_length))),
    _mistake("the end of the loop counts B_c queries for a block, not B_r",
             "A block has B_r queries: block x ends with query (x + 1) · B_r - 1.", SKIPPING,
             lambda w: w.causal & w.visited(w.i0 // w.tiles.rows * w.tiles.keys + w.tiles.keys + w.shift)),
    _mistake("the loop ends with the tile that has the block's own number",
             "Tile j lies on the diagonal of block i where i = j only if B_r = B_c and L_q = L_k.", SKIPPING,
             lambda w: w.causal & (w.j0 // w.tiles.keys <= w.i0 // w.tiles.rows)),
    _mistake("the number of tiles is rounded down",
             "keys / B_c drops the last tile where it is not full. Round up, or compare j0 with the end.", SKIPPING,
             lambda w: w.causal
             & (w.j0 + w.tiles.keys <= (w.i0 + w.tiles.rows + w.shift).clamp(max=w.key_length))),
    _mistake(names.LAST_TILE_LEFT_OUT,
             "L_k / B_c drops the last tile where it is not full.", SKIPPING,
             lambda w: w.causal & (w.j0 + w.tiles.keys <= w.key_length)),
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
    _mistake("the test for the diagonal is off by one: a tile whose last key is hidden from one query is not masked",
             "The last key of a tile is j0 + B_c - 1. A tile needs the mask even if the first query sees all of its "
             "keys but this one.",
             SKIPPING, lambda w: _masked_in(w, w.j0 + w.tiles.keys - 2 > w.i0 + w.shift)),
    _mistake("the test for the diagonal leaves the shift out",
             "The diagonal runs through j = i + L_k - L_q. With fewer keys than queries it lies before j = i.",
             ALIGNMENT, lambda w: _masked_in(w, w.j0 + w.tiles.keys - 1 > w.i0)),
    Mistake(
        Diagnosis(names.HIDDEN_IS_ZERO,
                  "exp(0 - m) is a weight like any other. Only exp(−∞) is 0.", MASK),
        partial(_hidden_as, score=0.0)),
    Mistake(
        Diagnosis(names.HIDDEN_IS_FINITE,
                  "With a large negative number instead of −∞, a row that sees no key finds all its scores "
                  "equal: every hidden key gets the same weight.", EMPTY_ROWS),
        partial(_hidden_as, score=-1e30)),
    Mistake(_NEVER_SEEN, partial(_nan_rows, in_visited=True, divides=False)),
    Mistake(_NEVER_SEEN, partial(_nan_rows, in_visited=True, divides=True)),
    Mistake(
        Diagnosis(names.EMPTY_ROW_IS_NAN,
                  "At the end its l is 0, and 1 / l is no help. It gives O = 0 and LSE = −∞.", EMPTY_ROWS),
        partial(_nan_rows, in_visited=False, divides=True)),
    Mistake(_FIRST_KEY, _first_key_without_maximum),
    Mistake(_LOW_ROW, partial(_low_rows_are_empty, below=-1e8)),
    Mistake(
        Diagnosis(names.MAXIMUM_FROM_ZERO, "Where all scores are far below 0, each exp(s - 0) is 0.", OVERFLOW),
        partial(_low_rows_are_empty, below=-110.0)),
    Mistake(_LOW_ROW, partial(_low_rows_are_empty, below=-1e3)),
    *_rescaling(names.O_NOT_RESCALED, of_o=True, of_l=False),
    *_rescaling(names.L_NOT_RESCALED, of_o=False, of_l=True),
    *_rescaling(names.NEITHER_RESCALED, of_o=True, of_l=True),
    Mistake(
        Diagnosis(names.NO_MAXIMUM, "exp(s) is infinite for large scores, and 0 for small ones.", OVERFLOW),
        _without_maximum),
    Mistake(
        Diagnosis(names.NOT_DIVIDED, "O is the sum of p · V; its weights must sum to 1.", ONLINE),
        partial(_with_out, out_of=lambda out, total: out * total)),
    _scaling(names.SCALE_MISSING, "The scores are q · k; the argument `scale` belongs to them.", lambda case: 1.0),
    _scaling(names.SCALE_TWICE, "q carries the scale already.", lambda case: case.facts["scale"] ** 2),
    _scaling(names.SCALE_NOT_THE_ARGUMENT, "It may be any number.", lambda case: case.facts["tiles"].head_dim ** -0.5),
    Mistake(
        Diagnosis(names.HEAD_ZERO_READ, "K and V have blockIdx.y · L_k · D numbers before this head."), _head_zero),
    Mistake(
        Diagnosis(names.LSE_LACKS_M, "It is m + log(l).", ONLINE), partial(_with_lse, lse_of=lambda lse, m: lse - m)),
    Mistake(
        Diagnosis(names.LSE_BASE_2, "The log-sum-exp is a natural logarithm.", ONLINE),
        partial(_with_lse, lse_of=lambda lse, m: lse / math.log(2))),
    Mistake(
        Diagnosis(names.LSE_BASE_2, "The log-sum-exp is a natural logarithm.", ONLINE),
        partial(_with_lse, lse_of=lambda lse, m: m + (lse - m) / math.log(2))),
    *(
        Mistake(
            Diagnosis(names.LSE_EMPTY_ROW, "A sum of no exponentials is 0, and its logarithm −∞.", EMPTY_ROWS),
            partial(_with_lse, lse_of=lambda lse, m, number=number: lse.masked_fill(lse == -math.inf, number)))
        for number in (0.0, -1e30, math.inf, math.nan)
    ),
)  # fmt: skip


# ---------------------------------------------------------------------------------------------- the exercise

_ALL = (512 // 64) ** 2
_VISITED = 100 * sum(1 for _ in costs.visited_tiles(512, 512, 64, 64, is_causal=True)) / _ALL
_MASKED = costs.masked_tiles(4096, 4096, 128, 64)
_FLOPS = costs.attention_flops(1, 1, 32768, 32768, 128, is_causal=True)

EXERCISE = Exercise(
    id="03_flash_attention_v2/causal_skip",
    title="Causal tile skipping",
    difficulty=3,
    importance=4,
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
            names.NOT_ALL_ARRIVE,
            read_again=READING_A_FINDING,
        ),
        "initcheck": Diagnosis(
            names.PIECE_NEVER_WRITTEN,
            read_again=READING_A_FINDING,
        ),
    },
    questions=(
        Question(
            "visited", 1, "Visited tiles at L = 512, 64 × 64, in percent of all", _VISITED, "%", 0.005,
            misconceptions=(
                (50, "half of the pairs are visible, but the tiles on the diagonal are visited whole"),
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
            ),
            read_again="03 FlashAttention-2, section 1, 'Why: most of the GPU is idle'",
        ),
    ),
    cells=("answers",),
)  # fmt: skip
