"""How exercise 03.4, a tile by the tensor core, is graded: S exactly, and by counters who multiplied."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_utils import costs
from course_utils.grading import names
from course_utils.grading.draws import between
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Mistake, Outcome, Output, Part, Question

TILE = 16  # queries, keys, and columns of a step
A_BYTES, B_BYTES = TILE * TILE * 2, TILE * TILE * 2  # of the fragments of a step; B for both halves of the keys
AXES = ("head", "query", "key")
LARGEST = 8  # of the whole numbers in Q and K: each sum is exact in fp32, and most are not in fp16

_FRAGMENTS = "03 FlashAttention-2, section 3, 'Step 2: tensor cores'"
_SWIZZLE = "03 FlashAttention-2, section 3, 'Step 3: swizzle'"
_SPEC = "this exercise, 'What to write'"

PARTS = (
    Part("one", 3, "S for D = 16: one step"),
    Part("steps", 3, "S for any D that is a multiple of 16"),
    Part("ragged", 2, "S for any L_q and L_k, and for several heads"),
    Part("range", 1, "S beyond what fp16 can hold"),
    Part("tensor", 3, "The tensor core multiplies: what is asked of shared memory is fragments"),
    Part("banks", 1, "The fragments come without bank conflicts"),
)


# ---------------------------------------------------------------------------------------------- cases


def _case(part: str, Q: Tensor, K: Tensor, **options: Any) -> Case:
    """One launch. Q [B, L_q, D] and K [B, L_k, D], whole numbers, so that S has no rounding in fp32."""
    heads, query_length, head_dim = Q.shape
    key_length = K.shape[1]
    launch = Launch(
        "tensor_core_tile",
        (costs.ceil_div(key_length, TILE), costs.ceil_div(query_length, TILE), heads),
        (32,),
        ("Q", "K", "S", np.int32(query_length), np.int32(key_length)),
        options=(f"-DD={head_dim}",),
    )
    output = Output(Q.double() @ K.double().mT, axes=AXES)
    name = f"heads = {heads}, L_q = {query_length}, L_k = {key_length}, D = {head_dim}"
    inputs = {"Q": Q.half(), "K": K.half()}
    return Case(part, name, (launch,), inputs, {"S": output}, must_be_clean=True, **options)


def _inputs(
    generator: torch.Generator, heads: int, query_length: int, key_length: int, head_dim: int, factor: int = 1
) -> tuple[Tensor, Tensor]:
    """Whole numbers from −8 to 8, times `factor`."""

    def whole(length: int) -> Tensor:
        return factor * torch.randint(-LARGEST, LARGEST + 1, (heads, length, head_dim), generator=generator)

    return whole(query_length), whole(key_length)


def cases(generator: torch.Generator, python: Mapping[str, Tensor]) -> list[Case]:
    """Fresh inputs for each part. Lengths and D are drawn."""
    number = partial(between, generator)
    few, many = 16 * number(2, 4), 16 * number(5, 8)
    return [
        _case("one", *_inputs(generator, 1, 16, 16, 16)),
        _case("one", *_inputs(generator, 1, 32, 48, 16)),
        _case("steps", *_inputs(generator, 1, 16, 16, few)),
        _case("steps", *_inputs(generator, 1, 32, 32, many)),
        _case("ragged", *_inputs(generator, 1, number(1, 7), number(9, 15), 16)),
        _case("ragged", *_inputs(generator, number(2, 3), number(17, 31), number(33, 47), few)),
        _case("ragged", *_inputs(generator, 1, number(25, 31), 1, many)),
        _case("range", *_inputs(generator, 1, 16, 16, few, factor=64)),
        _case("tensor", *_inputs(generator, 1, 32, 32, many), review=_who_multiplies),
        _case("banks", *_inputs(generator, 1, 16, 32, few), review=_banks),
    ]


def _who_multiplies(case: Case, outcome: Outcome) -> Diagnosis | None:
    """Whether the warps ask for fragments and no more: each number of a tile by one lane, or of A by two.

    Who multiplies without the tensor core needs a row of Q and a row of K for each number of S. Even if a lane keeps
    what serves all eight of its numbers, that is 4 times as much as is allowed here.
    """
    heads, query_length, head_dim = case.inputs["Q"].shape
    key_length = case.inputs["K"].shape[1]
    tiles = heads * costs.ceil_div(query_length, TILE) * costs.ceil_div(key_length, TILE)
    once = tiles * TILE * head_dim * 2  # of Q, and of K
    for name, touched in zip("QK", outcome.footprint[:2], strict=True):
        if touched.bytes_loaded > once:
            words = f"{case.name}: of {name}, {touched.bytes_loaded:,} bytes were asked for; the tiles hold {once:,}"
            return Diagnosis("a warp loads its tile from global memory more than once", words, _SPEC)
    loaded = sum(row.bytes for row in outcome.counters if row.space == "shared" and row.operation == "load")
    steps = tiles * head_dim // TILE
    most, fewest = steps * (2 * A_BYTES + B_BYTES), steps * (A_BYTES + B_BYTES)
    words = f"{case.name}: {loaded:,} bytes were loaded from shared memory; the fragments have {fewest:,}"
    if loaded > most:
        return Diagnosis("S is multiplied number by number, not by the tensor core", words, _FRAGMENTS)
    if loaded < fewest:
        return Diagnosis("the fragments do not come from shared memory", words, _FRAGMENTS)
    return None


def _banks(case: Case, outcome: Outcome) -> Diagnosis | None:
    """Whether each request for a fragment takes as few wavefronts as it can: of a kernel that asks for fragments."""
    if multiplied := _who_multiplies(case, outcome):
        return multiplied
    rows = [row for row in outcome.counters if row.space == "shared" and row.operation == "load"]
    row = max(rows, key=lambda row: row.bank_conflicts, default=None)
    if row is None or not row.bank_conflicts:
        return None
    words = (
        f"Line {row.line}: {row.requests:,} requests take {row.wavefronts:,} wavefronts; {row.ideal_wavefronts:,} "
        f"would do. Rows are D + 8 numbers apart, so that eight of them lie in different banks\n"
        f"{row.line:6d} | {row.source}"
    )
    return Diagnosis("the fragments are read with bank conflicts", words, _SWIZZLE)


def experiments(generator: torch.Generator) -> list[Case]:
    """What tells mistakes apart that may look alike in the cases."""
    return [
        _case("whole", *_inputs(generator, 1, 32, 48, 48)),
        _case("heads", *_inputs(generator, 3, 16, 16, 32)),
    ]


# ---------------------------------------------------------------------------------------------- known mistakes

LANE = torch.arange(32)
G, T = LANE // 4, LANE % 4
Place = tuple[Tensor, Tensor]  # row and column, for each lane
# Register e of A, or of B for half n of the keys, and which of its two numbers (h) -> the place in the tile of Q or K
OfA = Callable[[int, int], Place]
OfB = Callable[[int, int, int], Place]
OfD = Callable[[int], Place]  # register e of D -> the place in a half of the tile of S


def of_a(e: int, h: int) -> Place:
    """Where the hardware takes number h of a[e] to come from."""
    return G + e % 2 * 8, 2 * T + e // 2 * 8 + h


def of_b(e: int, h: int, n: int) -> Place:
    """Row and column of K's tile for number h of b[n][e]: column and row of B."""
    return 8 * n + G, 2 * T + e * 8 + h


def of_d(e: int) -> Place:
    """Where d[e] belongs."""
    return G + e // 2 * 8, 2 * T + e % 2


@dataclass(frozen=True)
class Way:
    """How a kernel works; as it stands, the right one.

    a, b, d: where the numbers of the registers come from, and where they go. of_Q, of_K: the first column of a step,
    from that of the right kernel. counts: of (step, steps), whether the step's products count. halves: the halves of
    the keys that are multiplied. turned: the tile of S is stored by keys. then: what becomes of S. of_head_0: the
    inputs that every head reads of head 0.
    """

    a: OfA = of_a
    b: OfB = of_b
    d: OfD = of_d
    of_Q: Callable[[int], int] = lambda k: k
    of_K: Callable[[int], int] = lambda k: k
    counts: Callable[[int, int], bool] = lambda step, steps: True
    halves: tuple[int, ...] = (0, 1)
    turned: bool = False
    then: Callable[[Tensor, int], Tensor] = lambda S, head_dim: S
    of_head_0: str = ""


def _taken(right: Callable[[int, int], Place], way: Callable[[int, int], Place], registers: int) -> Place:
    """For each place of a fragment, as the hardware knows it, the place of the number that stands in it."""
    row, column = torch.empty(TILE, TILE, dtype=torch.int64), torch.empty(TILE, TILE, dtype=torch.int64)
    for e in range(registers):
        for h in range(2):
            at = right(e, h)
            row[at], column[at] = way(e, h)
    return row, column


def _scores(case: Case, way: Way) -> dict[str, Tensor] | None:
    """S as tensor_core_tile.cu computes it, in float64. None where a fragment leaves the tile."""
    (heads, query_length, head_dim), key_length = case.inputs["Q"].shape, case.inputs["K"].shape[1]
    tiles = {}
    for name, x in case.inputs.items():
        of_head = x[:1].expand_as(x) if name in way.of_head_0 else x
        padded = torch.nn.functional.pad(of_head.double(), (0, 0, 0, -x.shape[1] % TILE))
        tiles[name] = padded.unflatten(1, (-1, TILE))
    rows_a, columns_a = _taken(of_a, way.a, 4)
    S = torch.zeros(heads, tiles["Q"].shape[1], tiles["K"].shape[1], TILE, TILE, dtype=torch.float64)
    for n in way.halves:
        # B is a piece of Kᵀ: what is a row here, of 8 in each half, is a column of B
        rows_b, columns_b = _taken(partial(of_b, n=n), partial(way.b, n=n), 2)
        rows_b, columns_b = rows_b[8 * n : 8 * n + 8], columns_b[8 * n : 8 * n + 8]
        product = torch.zeros(*S.shape[:3], TILE, 8, dtype=torch.float64)
        for k in range(0, head_dim, TILE):
            in_Q, in_K = way.of_Q(k) + columns_a, way.of_K(k) + columns_b
            if max(int(in_Q.max()), int(in_K.max())) >= head_dim:
                return None
            A, B = tiles["Q"][:, :, rows_a, in_Q], tiles["K"][:, :, rows_b, in_K]
            if way.counts(k // TILE, head_dim // TILE):
                product += torch.einsum("bimk,bjnk->bijmn", A, B)
        half = torch.zeros_like(product)
        for e in range(4):
            row, column = way.d(e)
            at = of_d(e)
            half[..., row, column] = product[..., at[0], at[1]]
        S[..., 8 * n : 8 * n + 8] = half
    if way.turned:
        S = S.mT
    S = S.transpose(2, 3).flatten(3).flatten(1, 2)[:, :query_length, :key_length]
    return {"S": way.then(S, head_dim)}


def _mistake(name: str, detail: str, read_again: str, *ways: Mapping[str, Any]) -> tuple[Mistake, ...]:
    """One mistake, in each of the ways in which a kernel may make it: fields of `Way`."""
    diagnosis = Diagnosis(name, detail, read_again)
    return tuple(Mistake(diagnosis, partial(_scores, way=Way(**way))) for way in ways)


_A = "a[0]: row g, columns 2t and 2t + 1; a[1]: row g + 8; a[2] and a[3]: the same rows, 8 columns further on"
_B = "b[0]: column g of B, which is row g of K's tile, at 2t and 2t + 1; b[1]: 8 further on"
_D = "d[0], d[1]: row g, columns 2t and 2t + 1; d[2], d[3]: row g + 8"
_HEAD = "each head has rows of its own"
_STEP = "step k takes the columns k … k + 15, of Q and of K"

MISTAKES = (
    *_mistake("rows g and g + 8 are swapped, in A or in D", f"{_A}. {_D}", _FRAGMENTS,
              {"a": lambda e, h: of_a(e ^ 1, h)}),
    *_mistake("a[1] and a[2] are swapped", _A, _FRAGMENTS, {"a": lambda e, h: of_a((e % 2) * 2 + e // 2, h)}),
    *_mistake("the first and the last 8 columns of a step are swapped, in A or in B", f"{_A}. {_B}", _FRAGMENTS,
              {"a": lambda e, h: of_a(e ^ 2, h)}),
    *_mistake("A has row g twice", _A, _FRAGMENTS, {"a": lambda e, h: of_a(e & 2, h)}),
    *_mistake("A has columns 2t and 2t + 1 twice", _A, _FRAGMENTS, {"a": lambda e, h: of_a(e & 1, h)}),
    *_mistake("A is made of rows 2g and 2g + 1", _A, _FRAGMENTS,
              {"a": lambda e, h: (2 * G + e % 2, 2 * T + e // 2 * 8 + h)}),
    *_mistake("A has the columns 4t … 4t + 3", f"{_A}. In B they stand otherwise", _FRAGMENTS,
              {"a": lambda e, h: (G + e % 2 * 8, 4 * T + e // 2 * 2 + h)}),
    *_mistake("the two numbers of a register are swapped, in A or in B", "the first of a pair is in the lower half",
              _FRAGMENTS, {"a": lambda e, h: of_a(e, 1 - h)}),
    *_mistake("A is read transposed", _A, _FRAGMENTS, {"a": lambda e, h: of_a(e, h)[::-1]}),
    *_mistake("B has rows 2t and 2t + 1 twice", _B, _FRAGMENTS, {"b": lambda e, h, n: of_b(0, h, n)}),
    *_mistake("B has the rows 4t … 4t + 3", f"{_B}. In A they stand otherwise", _FRAGMENTS,
              {"b": lambda e, h, n: (8 * n + G, 4 * T + e * 2 + h)}),
    *_mistake(
        "B is read transposed",
        "S = Q Kᵀ, and B is a piece of Kᵀ: its columns are rows of K's tile, as they lie in memory",
        _FRAGMENTS,
        {"b": lambda e, h, n: (2 * T + e * 8 + h, 8 * n + G)},
        {"b": lambda e, h, n: (2 * T + e * 8 + h, G)},
    ),
    *_mistake("both halves take keys 0 to 7", "b[1] and S_d[1] belong to the keys 8 to 15 of the tile", _SPEC,
              {"b": lambda e, h, n: of_b(e, h, 0)}),
    *_mistake("the halves of the keys are swapped", "b[n] and S_d[n] belong to the keys 8 n … 8 n + 7", _SPEC,
              {"b": lambda e, h, n: of_b(e, h, 1 - n)}),
    *_mistake("d[1] and d[2] are swapped", _D, _FRAGMENTS, {"d": lambda e: of_d(e % 2 * 2 + e // 2)}),
    *_mistake("columns 2t and 2t + 1 of D are swapped", _D, _FRAGMENTS, {"d": lambda e: of_d(e ^ 1)}),
    *_mistake("D has the columns t and t + 4", f"{_D}: neighbours, not t and t + 4", _FRAGMENTS,
              {"d": lambda e: (G + e // 2 * 8, T + e % 2 * 4)}),
    *_mistake("D is made of rows 2g and 2g + 1", _D, _FRAGMENTS, {"d": lambda e: (2 * G + e // 2, 2 * T + e % 2)}),
    *_mistake("the tile of S is stored transposed", "a row of D is a query, a column a key", _SPEC, {"turned": True}),
    *_mistake("every step takes the first 16 columns", _STEP, _SPEC, {"of_Q": lambda k: 0, "of_K": lambda k: 0}),
    *_mistake("every step takes the first 16 columns of Q", _STEP, _SPEC, {"of_Q": lambda k: 0}),
    *_mistake("every step takes the first 16 columns of K", _STEP, _SPEC, {"of_K": lambda k: 0}),
    *_mistake(
        "the sums start anew with each step",
        "mma.sync adds to what is in d: S_d is 0 before the first step, and never again",
        _SPEC,
        {"counts": lambda step, steps: step == steps - 1},
    ),
    *_mistake("only the first step counts", "D / 16 steps add up", _SPEC, {"counts": lambda step, steps: step == 0}),
    *_mistake("the last step is left out", "D / 16 steps add up", _SPEC,
              {"counts": lambda step, steps: step < steps - 1 or steps == 1}),
    *_mistake("the keys 8 to 15 of a tile stay 0", "two products in each step: S_d[0] and S_d[1]", _SPEC,
              {"halves": (0,)}),
    *_mistake("S is rounded to fp16", "the tensor core adds up in fp32, and S is fp32", _FRAGMENTS,
              {"then": lambda S, head_dim: S.half().double()}),
    *_mistake("S is multiplied by 1/√d", "here S = Q Kᵀ, without a scale", _SPEC,
              {"then": lambda S, head_dim: S / math.sqrt(head_dim)}),
    *_mistake(names.HEAD_ZERO_READ, _HEAD, _SPEC, {"of_head_0": "QK"}),
    *_mistake(names.HEAD_ZERO_OF_Q, _HEAD, _SPEC, {"of_head_0": "Q"}),
    *_mistake(names.HEAD_ZERO_OF_K, _HEAD, _SPEC, {"of_head_0": "K"}),
)  # fmt: skip


# ---------------------------------------------------------------------------------------------- questions

_LENGTH, _HEAD_DIM = 4096, 128
_OF_ONE = 2 * 16 * 8 * 16  # FLOPs of an mma.sync.m16n8k16
_PRODUCTS = costs.attention_flops(1, 1, _LENGTH, _LENGTH, _HEAD_DIM) / 2 / _OF_ONE  # Q Kᵀ alone
_STEP_FLOPS = 2 * TILE**3

QUESTIONS = (
    Question(
        "products",
        1,
        "mma.sync of all warps together for S of one head, L = 4096, D = 128",
        _PRODUCTS,
        tolerance=0.001,
        misconceptions=(
            (_PRODUCTS / 2, "a tile of 16 keys takes two mma.sync in each step: B has 8 columns"),
            (_PRODUCTS / 2 * TILE / _HEAD_DIM, "a tile takes D / 16 steps, of two mma.sync each"),
            (_PRODUCTS * TILE / _HEAD_DIM, "a tile takes D / 16 steps"),
            (_PRODUCTS * 2, "S is one product of matrices, Q Kᵀ; P V is another one"),
            (_PRODUCTS * 32, "an mma.sync is one instruction of the whole warp, not of a lane"),
        ),
        read_again=_FRAGMENTS,
    ),
    Question(
        "intensity",
        1,
        "FLOP per byte that a warp loads from shared memory, in a step of 16 columns",
        costs.arithmetic_intensity(_STEP_FLOPS, A_BYTES + B_BYTES),
        unit="FLOP/byte",
        misconceptions=(
            (_STEP_FLOPS / 2 / (A_BYTES + B_BYTES), "a multiply-add counts as two"),
            (_STEP_FLOPS / (2 * A_BYTES + B_BYTES), "A serves both halves of the keys: it is loaded once"),
            (_OF_ONE / (A_BYTES + B_BYTES), "two mma.sync belong to a step"),
            (0.5, "so it is without a tensor core, if each multiply-add loads its two numbers"),
        ),
        read_again=_FRAGMENTS,
    ),
)

EXERCISE = Exercise(
    id="03_flash_attention_v2/tensor_core_tile",
    title="A tile by the tensor core",
    difficulty=3,
    importance=4,
    parts=PARTS,
    kernels=("tensor_core_tile",),
    cases=cases,
    mistakes=MISTAKES,
    experiments=experiments,
    questions=QUESTIONS,
    cells=("answers",),
    assembly=True,
)
