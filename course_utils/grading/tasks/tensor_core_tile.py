"""How exercise 03.4, a tile by the tensor core, is graded: S exactly, and by counters who multiplied."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_utils import costs
from course_utils.grading.draws import between
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Outcome, Output, Part, Question
from course_utils.grading.mistakes import read_mistakes

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
    mistakes=read_mistakes("03_flash_attention_v2/tensor_core_tile"),
    experiments=experiments,
    questions=QUESTIONS,
    cells=("answers",),
    assembly=True,
)
