"""Grading of "03_flash_attention_v2/causal_skip": a causal mask that skips tiles, by values and by what was loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from course_utils import costs, reference
from course_utils.checks import AttentionCase, make_inputs
from course_utils.grading import names
from course_utils.grading.diagnosis import NOT_ALL_ARRIVE, READING_A_FINDING, wrong_values
from course_utils.grading.draws import between
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Outcome, Output, Part, Question
from course_utils.grading.mistakes import read_mistakes
from course_utils.grading.wrong_values import one_hot_values, weights_in, wrong_weights

SKIPPING = "03 FlashAttention-2, section 3, 'Step 6: causal skip'"
MASK = "01 Attention basics, section 10, 'The causal mask, and a model without it'"


class Tiles(NamedTuple):
    """B_r queries and B_c keys, and the columns of a head."""

    rows: int
    keys: int
    head_dim: int


# One pair is drawn from TALL and one from WIDE. The greatest common divisor of B_r and B_c is 4: with B_c / 4 blocks,
# first queries of blocks lie at every multiple of 4 modulo B_c, and four shifts make every place of the diagonal in a
# tile.
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
        facts={"tiles": tiles, "no_key": torch.arange(query_length) + key_length - query_length < 0},
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
    planted = random("square", *_lengths(generator, tall, 0), tall, "planted")
    for small in (1, few):
        planted = _and_small(planted, random("square", small, small, wide))
    made = [
        _weights(generator, "square", *_lengths(generator, tall, 0), tall),
        planted,
        random("square", length, length, large, "large logits"),
    ]
    for part, sign in (("unequal", 1), ("empty", -1)):
        for n, (shift, tiles) in enumerate(zip(_shifts(generator, 24), (tall, wide, tall, wide), strict=True)):
            make = _weights if n == 1 else partial(_random, flat=True)
            made.append(make(generator, part, *_lengths(generator, tiles, sign * shift), tiles))
    more_keys = random("unequal", length, length + draw(17, 40), wide, "planted")
    fewer_keys = random("empty", draw(60, 80), draw(28, 40), tall, "planted")
    made += [
        _and_small(more_keys, random("unequal", 1, draw(60, 113), _many_columns(generator))),
        random("unequal", length, length + draw(1, 5), large, "overflowing exp"),
        _and_small(fewer_keys, random("empty", draw(3, 5), draw(1, 2), tall)),
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
    mistakes=read_mistakes("03_flash_attention_v2/causal_skip"),
    findings={
        **NOT_ALL_ARRIVE,
        "initcheck": Diagnosis(names.PIECE_NEVER_WRITTEN, read_again=READING_A_FINDING),
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
