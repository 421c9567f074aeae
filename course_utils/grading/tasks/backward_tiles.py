"""How exercise 03.3, dK and dV by tiles, is graded: both gradients, one property after the other, and their traffic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_utils import costs, reference
from course_utils.grading import names
from course_utils.grading.diagnosis import NOT_ALL_ARRIVE, unwritten_or_empty
from course_utils.grading.draws import attention_inputs, between, same_in_each_head
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Outcome, Output, Part, Question
from course_utils.grading.job import still_blank
from course_utils.grading.mistakes import read_mistakes
from course_utils.grading.wrong_values import one_hot_values, weights_in, wrong_weights

B_R, B_C, LANES, THREADS = 16, 16, 8, 128
AXES = ("sequence", "head", "key", "column")

_WALK = "02 FlashAttention, backward, section 16, 'Two walks over the tiles'"
_TRAP = "02 FlashAttention, minimal, section 2, 'The one trap'"
_TRAFFIC = "02 FlashAttention, minimal, section 7, 'Two loop orders and their traffic'"

PARTS = (
    Part("dv", 3, "dV = Pᵀ dO"),
    Part("dk", 4, "dK = scale · dSᵀ Q"),
    Part("large", 2, "Both with large logits: more than exp can hold"),
    Part("causal", 2, "Both with the causal mask"),
    Part("unequal", 2, "Both with L_q ≠ L_k, and queries that see no key"),
    Part("lengths", 2, "Both for tiny and ragged lengths, and other D"),
    Part("traffic", 2, "A block asks for each number once, and writes nothing but dK and dV"),
    Part("clean", 1, "Nothing for the sanitizer to find"),
)

Inputs = dict[str, Tensor]  # Q, K, V and dO


# ---------------------------------------------------------------------------------------------- cases


def _case(
    part: str,
    given: Inputs,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    judged: str = "dK dV",
    **options: Any,
) -> Case:
    """One launch on Q, K, V and dO. judged: which of dK and dV the part is about."""
    Q, K, V, dO = (given[name] for name in ("Q", "K", "V", "dO"))
    batch, heads, query_length, head_dim = Q.shape
    key_length = K.shape[2]
    scale = head_dim**-0.5 if scale is None else scale
    out, lse = reference.attention(Q, K, V, is_causal=is_causal, scale=scale, return_lse=True)
    inputs = {**given, "LSE": lse.float(), "delta": (dO.double() * out).sum(dim=-1).float()}
    _, dK, dV = reference.attention_gradients(Q, K, V, dO, is_causal=is_causal, scale=scale)
    lengths = (np.int32(query_length), np.int32(key_length), np.float32(scale), np.int32(is_causal))
    launch = Launch(
        "backward_tiles",
        (costs.ceil_div(key_length, B_C), heads, batch),
        (THREADS,),
        ("Q", "K", "V", "dO", "LSE", "delta", "dK", "dV", *lengths),
        options=(f"-DD={head_dim}",),
    )
    plain = [_plain(inputs, is_causal, scale, base, first) for base in (math.e, 2.0) for first in (False, True)]
    outputs = {
        name: Output(
            expected,
            same_dtype=[run[name] for run in plain],
            kind="values" if name in judged.split() else "scratch",
            axes=AXES,
        )
        for name, expected in (("dK", dK), ("dV", dV))
    }
    name = f"L_q = {query_length}, L_k = {key_length}, D = {head_dim}{', causal' * is_causal}"
    return Case(part, name, (launch,), inputs, outputs, **options)


def _plain(inputs: Mapping[str, Tensor], is_causal: bool, scale: float, base: float, first: bool) -> dict[str, Tensor]:
    """dK and dV in plain fp32, with powers of this base. first: whether K takes the scale before the product."""
    Q, K, V, dO, LSE, delta = (inputs[name] for name in ("Q", "K", "V", "dO", "LSE", "delta"))
    factor = scale / math.log(base)
    S = Q @ (factor * K).mT if first else factor * (Q @ K.mT)
    P = torch.pow(base, S - (LSE / math.log(base))[..., None])
    if is_causal:
        P = P.masked_fill(~reference.causal_mask(Q.shape[2], K.shape[2]), 0.0)
    dS = P * (dO @ V.mT - delta[..., None])
    return {"dK": scale * (dS.mT @ Q), "dV": P.mT @ dO}


def _inputs(generator: torch.Generator, *lengths_and_kind: Any, **sizes: Any) -> Inputs:
    """`attention_inputs` with a seed that is drawn."""
    made = attention_inputs(between(generator, 0, 2**31 - 2), *lengths_and_kind, **sizes)
    return dict(zip(("Q", "K", "V", "dO"), made, strict=True))


def _one_hot(generator: torch.Generator, query_length: int, key_length: int, head_dim: int = 32) -> Inputs:
    """Every head has the same Q, K and V, every query a column of dO of its own: dV is Pᵀ. No weight is small."""
    dO = one_hot_values(query_length, head_dim)
    lengths = {"Q": query_length, "K": key_length, "V": key_length}
    made = {name: same_in_each_head(generator, dO.shape[1], length, head_dim) for name, length in lengths.items()}
    return {**made, "Q": 0.5 * made["Q"], "dO": dO}


def _weights(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    """What is read off dV where dO is one-hot: the weight of each query in the row of each key."""
    if still_blank(outputs["dV"]).any():
        return None
    if bool(torch.isnan(outputs["dV"]).all()) and bool(torch.isneginf(case.inputs["LSE"]).any()):
        return Diagnosis(names.EMPTY_ROW_IS_NAN, _OF_EMPTY, _TRAP)
    queries = case.inputs["Q"].shape[2]
    got, expected = weights_in(outputs["dV"], queries), weights_in(case.outputs["dV"].expected, queries)
    return wrong_weights(got, expected, ("key", "query"))


_OF_EMPTY = "LSE is −∞ there, and S − LSE is +∞ or NaN, which no factor 0 mends: choose P = 0 for a hidden key"


def _far(generator: torch.Generator, query_length: int, key_length: int) -> Inputs:
    """Logits far from 0, or far apart: of head 0, a third of the queries near −300, a third near 300.

    Meant for a scale of 0.25. All products are exact in fp32, so that no order of the sums is better than another.
    """
    made = _inputs(generator, query_length, key_length)
    made["Q"], made["K"] = (8 * made["Q"]).round() / 4, (8 * made["K"]).round() / 8
    made["K"][..., 0] = 1
    i = torch.arange(query_length)
    shift = torch.randperm(3, generator=generator)
    made["Q"][:, 0, :, 0] = torch.tensor([-1200.0, 1200.0, 0.0])[shift][i % 3]
    return made


def _traffic(case: Case, outcome: Outcome) -> Diagnosis | None:
    """Whether a block asks for each number of its keys and of the queries once, and writes dK and dV once."""
    heads, query_length, head_dim = case.inputs["Q"].shape[1:]
    key_length = case.inputs["K"].shape[2]
    row = 4 * heads * head_dim
    blocks = costs.ceil_div(key_length, B_C)
    arrays = [argument for argument in case.launches[0].arguments if isinstance(argument, str)]
    loaded = {name: touched.bytes_loaded for name, touched in zip(arrays, outcome.footprint, strict=True)}
    for both, once, what in (
        (("Q", "dO"), blocks * query_length * row, "a tile of queries is loaded more than once by a block"),
        (("K", "V"), key_length * row, "a tile of keys is loaded more than once"),
        (("dK", "dV"), 0, "dK or dV is read back from global memory"),
    ):
        for name in both:
            if loaded[name] > once:
                times = f", {loaded[name] / once:.3g} times as many" if once else ""
                words = f"{case.name}: of {name}, {loaded[name]:,} bytes were asked for; {once:,} would do{times}"
                return Diagnosis(what, f"{words}. The threads of a block share what is in `tile`", _TRAFFIC)
    stored = sum(row.bytes for row in outcome.counters if row.space == "global" and row.operation != "load")
    needed = 2 * key_length * row
    if stored > needed:
        words = f"{case.name}: {stored:,} bytes were written; dK and dV have {needed:,}"
        return Diagnosis("more than dK and dV is written to global memory", words, _WALK)
    return None


def cases(generator: torch.Generator, python: Mapping[str, Tensor]) -> list[Case]:
    """Fresh inputs for each part. Sizes, places and scales are drawn, so that no number in a kernel fits them."""
    make, number = partial(_inputs, generator), partial(between, generator)
    head_dim = 8 * (1, 2, 3, 5, 6, 7, 9, 10, 12, 16)[number(0, 9)]
    scale, other_scale = number(20, 30) / 100, number(35, 60) / 100
    square, shift = number(34, 47), number(3, 13)
    more = {"batch": 2, "heads": number(2, 3)}
    return [
        _case("dv", make(number(33, 47), number(33, 47)), judged="dV"),
        _case("dv", _one_hot(generator, number(33, 47), number(17, 31)), scale=scale, judged="dV", explain=_weights),
        _case("dk", make(number(33, 47), number(17, 31), "offset on V"), judged="dK"),
        _case("dk", make(number(33, 47), number(17, 31), "planted"), judged="dK"),
        _case("dk", make(number(17, 31), number(33, 47), heads=1), scale=other_scale, judged="dK"),
        _case("large", _far(generator, number(33, 47), number(17, 31)), scale=0.25),
        _case("large", make(number(17, 31), number(33, 47), "large logits", heads=1)),
        _case("causal", _one_hot(generator, square, square), is_causal=True, explain=_weights),
        _case("causal", make(square, square, "planted", is_causal=True), is_causal=True),
        _case("unequal", make(number(17, 31), number(49, 63), **more)),
        _case("unequal", _one_hot(generator, square, square + shift), is_causal=True, explain=_weights),
        _case("unequal", _one_hot(generator, square, square - shift), is_causal=True, explain=_weights),
        _case("unequal", _one_hot(generator, number(50, 60), number(20, 30)), is_causal=True, explain=_weights),
        _case("lengths", make(1, 1, **more), judged="dV"),  # with one key P is 1 and dK is 0, whatever the scale
        _case("lengths", make(1, number(2, 5), **more)),
        _case("lengths", make(number(2, 7), number(2, 7), head_dim=64)),
        _case("lengths", make(number(17, 31), number(9, 15), head_dim=head_dim)),
        _case("traffic", make(number(33, 47), 32), review=_traffic),
        _case(
            "clean",
            make(number(33, 40), number(41, 47), is_causal=True, heads=1),
            is_causal=True,
            must_be_clean=True,
            compare=partial(unwritten_or_empty, names=("dK", "dV"), what="a gradient"),
            names=False,
        ),
    ]


def experiments(generator: torch.Generator) -> list[Case]:
    """What tells mistakes apart that may look alike in the cases."""
    make, number = partial(_inputs, generator), partial(between, generator)
    return [
        _case("weights", _one_hot(generator, number(33, 47), number(33, 47)), explain=_weights),
        _case("whole", make(48, 32)),
        _case("heads", make(number(17, 31), number(17, 31), batch=2, heads=3)),
    ]


# ---------------------------------------------------------------------------------------------- questions

_LENGTH, _HEAD_DIM = 4096, 64
_BACKWARD = costs.attention_flops(1, 1, _LENGTH, _LENGTH, _HEAD_DIM, backward=True) / 1e9


def _query_mib(block_keys: int) -> float:
    """MiB of Q and dO, fp32, that the blocks of one head ask for."""
    return costs.ceil_div(_LENGTH, block_keys) * 2 * _LENGTH * _HEAD_DIM * 4 / 2**20


QUESTIONS = (
    Question(
        "query_mib",
        1,
        "MiB of Q and dO that the blocks of one head ask for, L = 4096, D = 64",
        _query_mib(B_C),
        unit="MiB",
        misconceptions=(
            (_query_mib(_LENGTH), "Q and dO are read once for each tile of keys, not once"),
            (_query_mib(B_C) / 2, "both Q and dO are read, in fp32"),
            (_query_mib(1), "a tile of queries serves all 16 keys of the block"),
            (_query_mib(128), "a block has 128 threads, but 16 keys"),
            (_query_mib(B_C) * 2, "there are L / 16 tiles of keys, and 4 bytes in an fp32 number"),
        ),
        read_again=_TRAFFIC,
    ),
    Question(
        "gflop",
        1,
        "GFLOP of the products of this kernel for one head, not causal, L = 4096, D = 64",
        _BACKWARD * 4 / 5,
        unit="GFLOP",
        misconceptions=(
            (_BACKWARD, "of the five products of the backward pass, dQ = dS K is another kernel's"),
            (_BACKWARD * 2 / 5, "there are four products, S, dP, dV and dK, and a multiply-add counts 2"),
            (_BACKWARD * 3 / 5, "S is computed again: with dP, dV and dK there are four products"),
        ),
        read_again=_WALK,
    ),
)

EXERCISE = Exercise(
    id="03_flash_attention_v2/backward_tiles",
    title="dK and dV, tile by tile",
    difficulty=4,
    importance=4,
    parts=PARTS,
    kernels=("backward_tiles",),
    cases=cases,
    mistakes=read_mistakes("03_flash_attention_v2/backward_tiles"),
    experiments=experiments,
    findings=NOT_ALL_ARRIVE,
    questions=QUESTIONS,
    cells=("answers",),
)
