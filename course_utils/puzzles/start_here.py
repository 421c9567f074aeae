"""The puzzles of chapter 00."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.grading import names
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Mistake, Output, Part
from course_utils.puzzles.cases import K_ONE_APART, OWN_ROW_OF_V, attention, drawn, overlapping_rows, own_row_of_V
from course_utils.puzzles.puzzle import Puzzle

BLOCK = 64
ELEMENTS = 110  # of the launch that the chapter speaks of and its widget draws: the first finding is of the same one
OTHER_BLOCKS = 96, 128, 160  # a kernel asks blockDim how many threads a block has
SOFTMAX = "00 Start here, 'Attention in ten lines'"
KERNEL = "00 Start here, 'Your first kernels'"


def _blocks(generator: torch.Generator) -> int:
    return OTHER_BLOCKS[drawn(generator, 0, len(OTHER_BLOCKS) - 1)]


def _added(generator: torch.Generator, part: str, n: int) -> Case:
    a, b = torch.randn(2, n, generator=generator)
    launch = Launch("add", (ceil_div(n, BLOCK),), (BLOCK,), ("a", "b", "c", np.int32(n)))
    outputs = {"c": Output(a.double() + b.double(), axes=("element",))}
    return Case(part, f"n = {n}", (launch,), {"a": a, "b": b}, outputs, must_be_clean=True)


def _additions(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    return [
        _added(generator, "whole", BLOCK * drawn(generator, 1, 4)),
        _added(generator, "ragged", ELEMENTS),
        _added(generator, "ragged", BLOCK * drawn(generator, 1, 4) + drawn(generator, 1, BLOCK - 1)),
    ]


def _scored(generator: torch.Generator, part: str, length: int, d: int, block: int = BLOCK) -> Case:
    q, K = torch.randn(d, generator=generator), torch.randn(length, d, generator=generator)
    scale = float(np.float32(0.3 + torch.rand((), generator=generator).item()))
    arguments = ("q", "K", "s", np.int32(length), np.int32(d), np.float32(scale))
    launch = Launch("scores_of_one_query", (ceil_div(length, block),), (block,), arguments)
    outputs = {"s": Output(scale * K.double() @ q.double(), same_dtype=scale * (K @ q), axes=("key",))}
    facts = {"scale": scale}
    name = f"L = {length}, d = {d}, blocks of {block}"
    return Case(part, name, (launch,), {"q": q, "K": K}, outputs, facts, must_be_clean=True)


def _scores(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    return [
        _scored(generator, "values", BLOCK, 32),
        _scored(generator, "sizes", drawn(generator, 65, 90), drawn(generator, 33, 60)),
        _scored(generator, "sizes", drawn(generator, 170, 250), drawn(generator, 9, 20), _blocks(generator)),
        _scored(generator, "sizes", drawn(generator, 2, 9), 1),
    ]


def _columns(case: Case) -> Mapping[str, Tensor] | None:
    """The result of taking K for a matrix with a column per key."""
    q, K = case.inputs["q"].double(), case.inputs["K"].double()
    length, d = K.shape
    return {"s": case.facts["scale"] * (K.reshape(-1).reshape(d, length).mT @ q)} if d > 1 else None


def _rows_one_apart(case: Case) -> Mapping[str, Tensor]:
    """The result of reading K[j + c]: row j of K begins at its number j."""
    q, K = case.inputs["q"].double(), case.inputs["K"].double()
    return {"s": case.facts["scale"] * overlapping_rows(K) @ q}


def _scale_of_d(case: Case) -> Mapping[str, Tensor]:
    """The result with 1/√d in place of the scale."""
    return {"s": case.outputs["s"].expected / case.facts["scale"] * case.inputs["q"].numel() ** -0.5}


def _integer_sums(case: Case) -> Mapping[str, Tensor]:
    """The result of `int sum`: each addition is rounded towards 0."""
    sums = torch.zeros(len(case.inputs["K"]))
    for q, column in zip(case.inputs["q"], case.inputs["K"].unbind(dim=1), strict=True):
        sums = torch.trunc(sums + q * column)
    return {"s": case.facts["scale"] * sums}


def _attended(generator: torch.Generator, part: str, length: int, d: int, *, large: bool = False) -> Case:
    """One case of attention. large: scores for which exp overflows, and that fp32 holds exactly."""
    Q, K, V = torch.randn(3, length, d, generator=generator)
    scale = float(np.float32(d**-0.5 * (0.5 + torch.rand((), generator=generator).item())))
    if large:
        Q, K, scale = (4 * Q).round() / 4, (4 * K).round() / 4, float(drawn(generator, 20, 40))
        Q[0] = 0  # a row that overflows nowhere: without it all that forgets something would be NaN everywhere
    arguments = ("Q", "K", "V", "O", np.int32(length), np.int32(d), np.float32(scale))
    launch = Launch("attention", (ceil_div(length, BLOCK),), (BLOCK,), arguments)
    right, plain = attention(Q.double(), K.double(), V.double(), scale), attention(Q, K, V, scale)
    outputs = {"O": Output(right, same_dtype=plain, axes=("query", "column"))}
    inputs, facts = {"Q": Q, "K": K, "V": V}, {"scale": scale}
    return Case(part, f"L = {length}, d = {d}", (launch,), inputs, outputs, facts, must_be_clean=True)


def _attentions(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    return [
        _attended(generator, "values", drawn(generator, 9, 20), 16),
        _attended(generator, "sizes", drawn(generator, 65, 80), drawn(generator, 9, 20)),
        _attended(generator, "large", drawn(generator, 9, 20), 16, large=True),
    ]


def _attention_without_scale(case: Case) -> Mapping[str, Tensor]:
    """The result without the scale in the weights. The largest score, which the kernel receives, has it."""
    Q, K, V = (case.inputs[name].double() for name in "QKV")
    scores = Q @ K.mT
    weights = torch.exp(scores - case.facts["scale"] * scores.amax(dim=-1, keepdim=True))
    return {"O": weights / weights.sum(dim=-1, keepdim=True) @ V}


def _keys_one_apart(case: Case) -> Mapping[str, Tensor]:
    """The result of K + j for row j in the weights. The largest score, which the kernel receives, is right."""
    Q, K, V = (case.inputs[name].double() for name in "QKV")
    largest = (case.facts["scale"] * Q @ K.mT).amax(dim=-1, keepdim=True)
    scores = case.facts["scale"] * Q @ overlapping_rows(K).mT
    weights = torch.exp((scores - largest).float())  # fp32, in which it overflows as in the kernel
    return {"O": weights @ V.float() / weights.sum(dim=-1, keepdim=True)}


def _maximum_not_subtracted(case: Case) -> Mapping[str, Tensor]:
    """The result of exp(score) in fp32, where it overflows."""
    Q, K, V = (case.inputs[name] for name in "QKV")
    weights = torch.exp(case.facts["scale"] * Q @ K.mT)
    return {"O": weights @ V / weights.sum(dim=-1, keepdim=True)}


def _weights_not_summed(case: Case) -> Mapping[str, Tensor]:
    """The result if l stays 0, and the rows are divided by it."""
    return {"O": case.outputs["O"].expected / 0}


PUZZLES = {
    "guard": Puzzle(
        Exercise(
            id="00_start_here/guard",
            title="Threads without an element",
            kernels=("add",),
            parts=(Part("whole", 1, "n a multiple of the block"), Part("ragged", 1, "any n")),
            cases=_additions,
            findings={"memcheck": Diagnosis("an array is read or written past its end", read_again=KERNEL)},
        ),
        lesson="Every thread asked whether it has an element; the threads without one did nothing. "
        "Next: a kernel in which a thread does more than one addition.",
        hint="The last block has more threads than there are elements left. Which i may touch the arrays?",
        stub="c[i] = a[i] + b[i];",
    ),
    "scores_of_one_query": Puzzle(
        Exercise(
            id="00_start_here/scores_of_one_query",
            title="One query's scores",
            kernels=("scores_of_one_query",),
            parts=(Part("values", 1, "the scores of 64 keys"), Part("sizes", 1, "any L and d")),
            cases=_scores,
            mistakes=(
                Mistake(
                    Diagnosis(names.SCALE_MISSING, "Each score is scale times the sum.", KERNEL),
                    lambda case: {"s": case.outputs["s"].expected / case.facts["scale"]},
                ),
                Mistake(
                    Diagnosis(names.SCALE_NOT_THE_ARGUMENT, "`scale` may be anything.", KERNEL),
                    _scale_of_d,
                ),
                Mistake(Diagnosis(K_ONE_APART, "Row j of K begins at K[j * d].", KERNEL), _rows_one_apart),
                Mistake(
                    Diagnosis("K is read by columns", "Row j of K begins at K[j * d].", KERNEL),
                    _columns,
                ),
                Mistake(
                    Diagnosis("the sum is an int, which loses what stands behind the point", "", KERNEL),
                    _integer_sums,
                ),
            ),
        ),
        lesson="Each thread read the query and its own key, and stored one score. Next: the softmax turns such a row "
        "of scores into weights.",
        hint="One thread per key. Its number j comes from blockIdx, blockDim and threadIdx, as in `add` above. A "
        "thread without a key returns. The others go over the d columns of row j, K[j * d + c], and store one number.",
    ),
    "attention": Puzzle(
        Exercise(
            id="00_start_here/attention",
            title="Attention in one kernel",
            kernels=("attention",),
            parts=(
                Part("values", 1, "a few tokens"),
                Part("sizes", 1, "any L and d"),
                Part("large", 1, "large scores"),
            ),
            cases=_attentions,
            mistakes=(
                Mistake(
                    Diagnosis(names.SCALE_MISSING, "A weight is exp(scale · score − m).", SOFTMAX),
                    _attention_without_scale,
                ),
                Mistake(
                    Diagnosis(
                        names.NO_MAXIMUM,
                        "A weight is exp(scale · score − m). Without − m, exp of a large score is infinite in fp32, "
                        "and infinite over infinite is NaN.",
                        SOFTMAX,
                    ),
                    _maximum_not_subtracted,
                ),
                Mistake(
                    Diagnosis(
                        "l stays 0: the weights are not summed",
                        "The division below is by l, the sum of the weights.",
                        SOFTMAX,
                    ),
                    _weights_not_summed,
                ),
                Mistake(Diagnosis(OWN_ROW_OF_V, "The weight of key j belongs to row j of V.", SOFTMAX), own_row_of_V),
                Mistake(Diagnosis(K_ONE_APART, "Row j of K begins at K + j * d.", SOFTMAX), _keys_one_apart),
            ),
        ),
        lesson="Scores, softmax and the sum over V in one kernel, and no score was ever stored. Its price: each "
        "product of a query and a key was made twice. Chapter 02 makes it once.",
        hint="Go over the keys once more. Each has the weight exp(scale · dot − m); l is the sum of the weights, and "
        "the row of O is the sum of the rows of V, each times its weight. The division comes below.",
    ),
}
