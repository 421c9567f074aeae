"""The puzzles of chapter 01."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.grading import names
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Mistake, Output, Part
from course_utils.puzzles.cases import drawn
from course_utils.puzzles.puzzle import Puzzle

BLOCK = 32, 8  # keys, queries
AXES = ("batch", "head", "query", "key")
SCORES = "chapter 01, section 4, 'Scores, one thread each'"
MASK = "chapter 01, section 11, 'Cross-attention: more keys than queries'"


def _grid(heads: int, L_q: int, L_k: int) -> tuple[int, int, int]:
    return ceil_div(L_k, BLOCK[0]), ceil_div(L_q, BLOCK[1]), heads


# ---------------------------------------------------------------------------------------------- the dot product


def _product(generator: torch.Generator, part: str, shape: tuple[int, int, int, int, int]) -> Case:
    """shape: B, H, L_q, L_k, d. The scale is not 1/√d."""
    B, H, L_q, L_k, d = shape
    Q, K = torch.randn(B, H, L_q, d, generator=generator), torch.randn(B, H, L_k, d, generator=generator)
    scale = float(np.float32(d**-0.5 * (0.4 + 0.4 * torch.rand((), generator=generator).item())))
    arguments = ("Q", "K", "S", np.int32(L_q), np.int32(L_k), np.int32(d), np.float32(scale))
    launch = Launch("dot_product", _grid(B * H, L_q, L_k), BLOCK, arguments)
    output = Output(scale * Q.double() @ K.double().mT, same_dtype=scale * (Q @ K.mT), axes=AXES)
    name = f"B = {B}, H = {H}, L_q = {L_q}, L_k = {L_k}, d = {d}"
    return Case(part, name, (launch,), {"Q": Q, "K": K}, {"S": output}, {"scale": scale}, must_be_clean=True)


def _products(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    return [
        _product(generator, "values", (1, 1, 32, 32, 32)),
        _product(
            generator, "sizes", (2, 2, drawn(generator, 9, 30), drawn(generator, 33, 60), drawn(generator, 33, 60))
        ),
    ]


def _without_scale(case: Case) -> Mapping[str, Tensor]:
    return {"S": case.outputs["S"].expected / case.facts["scale"]}


def _scale_of_d(case: Case) -> Mapping[str, Tensor]:
    """1/√d in the place of the scale."""
    return {"S": _without_scale(case)["S"] * case.inputs["Q"].shape[-1] ** -0.5}


# ---------------------------------------------------------------------------------------------- the causal mask


def _masked(generator: torch.Generator, part: str, B: int, H: int, L_q: int, L_k: int) -> Case:
    S = torch.randn(B, H, L_q, L_k, generator=generator)
    launch = Launch("causal_mask", _grid(B * H, L_q, L_k), BLOCK, ("S", np.int32(L_q), np.int32(L_k)))
    output = Output(_hidden(S, L_k - L_q).double(), initial=S, axes=AXES)
    return Case(part, f"L_q = {L_q}, L_k = {L_k}", (launch,), {}, {"S": output}, {"S": S}, must_be_clean=True)


def _hidden(S: Tensor, shift: int) -> Tensor:
    """S with −∞ where key j comes after query i + shift."""
    i, j = torch.arange(S.shape[2])[:, None], torch.arange(S.shape[3])
    return S.masked_fill(j > i + shift, -torch.inf)


def _masks(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    square, more = drawn(generator, 33, 60), drawn(generator, 3, 20)
    return [
        _masked(generator, "square", 1, 2, square, square),
        _masked(generator, "unequal", 1, 2, square, square + drawn(generator, 3, 20)),
        _masked(generator, "unequal", 2, 1, square, square - more),
    ]


def _with_shift(shift: Callable[[int, int], int]) -> Callable[[Case], Mapping[str, Tensor]]:
    """What a mask with another shift than L_k − L_q leaves; `shift` takes L_q and L_k."""
    return lambda case: {"S": _hidden(case.facts["S"], shift(*case.facts["S"].shape[2:])).double()}


PUZZLES = {
    "dot_product": Puzzle(
        Exercise(
            id="01_attention_basics/dot_product",
            title="The dot product",
            kernels=("dot_product",),
            parts=(Part("values", 1, "the scores of one head"), Part("sizes", 1, "several heads, any lengths and d")),
            cases=_products,
            mistakes=(
                Mistake(Diagnosis(names.SCALE_MISSING, "Each score is scale times the sum.", SCORES), _without_scale),
                Mistake(Diagnosis(names.SCALE_NOT_THE_ARGUMENT, "`scale` may be anything.", SCORES), _scale_of_d),
            ),
        ),
        hint="Query i begins at Q[i * d], key j at K[j * d]. Add up the d products, then store scale times the sum in "
        "row i of S, column j.",
    ),
    "causal_mask": Puzzle(
        Exercise(
            id="01_attention_basics/causal_mask",
            title="The causal mask",
            kernels=("causal_mask",),
            parts=(Part("square", 1, "as many queries as keys"), Part("unequal", 1, "L_q ≠ L_k")),
            cases=_masks,
            mistakes=(
                Mistake(
                    Diagnosis("a query does not see its own key", "Query i sees key i + L_k − L_q, too.", MASK),
                    _with_shift(lambda L_q, L_k: L_k - L_q - 1),
                ),
                Mistake(
                    Diagnosis("a query sees one key too many", "Only keys after query i + L_k − L_q are hidden.", MASK),
                    _with_shift(lambda L_q, L_k: L_k - L_q + 1),
                ),
                Mistake(
                    Diagnosis(
                        "queries are counted from the first key",
                        "The last query stands at the last key: query i at key i + L_k − L_q.",
                        MASK,
                    ),
                    _with_shift(lambda L_q, L_k: 0),
                ),
                Mistake(
                    Diagnosis("L_q and L_k have changed places", "Query i stands at key i + L_k − L_q.", MASK),
                    _with_shift(lambda L_q, L_k: L_q - L_k),
                ),
            ),
        ),
        hint="Where does query i stand among the keys, if the last query stands at the last key? Hide what comes "
        "after.",
    ),
}
