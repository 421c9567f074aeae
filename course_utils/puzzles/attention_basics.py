"""The puzzles of chapter 01."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.grading import names
from course_utils.grading.exercise import Case, Exercise, Launch, Output, Part
from course_utils.puzzles.cases import K_ONE_APART, drawn
from course_utils.puzzles.puzzle import Puzzle, mistake

BLOCK = 32, 8  # keys, queries
AXES = ("batch", "head", "query", "key")
SCORES = "01 Attention basics, section 4, 'Scores, one thread each'"
SOFTMAX = "01 Attention basics, section 6, 'Softmax without overflow'"
MASK = "01 Attention basics, section 11, 'Cross-attention: more keys than queries'"
PRODUCT = "float sum = 0;\nfor (int c = 0; c < d; c++) sum += Q[i * d + c] * K[j * d + c];\n"
EACH = "for (int j = lane; j < L_k; j += 32) "
SUM_UP = "for (int step = 16; step > 0; step /= 2) l += __shfl_xor_sync(0xffffffff, l, step);\n"


def _grid(heads: int, L_q: int, L_k: int) -> tuple[int, int, int]:
    return ceil_div(L_k, BLOCK[0]), ceil_div(L_q, BLOCK[1]), heads


# ---------------------------------------------------------------------------------------------- the dot product


def _product(generator: torch.Generator, part: str, shape: tuple[int, int, int, int, int]) -> Case:
    """One case of the product. shape: B, H, L_q, L_k, d. The scale is not 1/√d."""
    B, H, L_q, L_k, d = shape
    Q, K = torch.randn(B, H, L_q, d, generator=generator), torch.randn(B, H, L_k, d, generator=generator)
    scale = float(np.float32(d**-0.5 * (0.4 + 0.4 * torch.rand((), generator=generator).item())))
    arguments = ("Q", "K", "S", np.int32(L_q), np.int32(L_k), np.int32(d), np.float32(scale))
    launch = Launch("dot_product", _grid(B * H, L_q, L_k), BLOCK, arguments)
    output = Output(scale * Q.double() @ K.double().mT, same_dtype=scale * (Q @ K.mT), axes=AXES)
    name = f"B = {B}, H = {H}, L_q = {L_q}, L_k = {L_k}, d = {d}"
    return Case(part, name, (launch,), {"Q": Q, "K": K}, {"S": output}, must_be_clean=True)


def _products(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    return [
        _product(generator, "values", (1, 1, 32, 32, 32)),
        _product(
            generator, "sizes", (2, 2, drawn(generator, 9, 30), drawn(generator, 33, 60), drawn(generator, 33, 60))
        ),
    ]


# ---------------------------------------------------------------------------------------------- the safe softmax


def _normalised(part: str, S: Tensor) -> Case:
    launch = Launch("safe_softmax", (S.shape[0],), (32,), ("S", "P", np.int32(S.shape[1])))
    expected, plain = (torch.softmax(scores, dim=-1).nan_to_num(0) for scores in (S.double(), S))
    output = Output(expected, same_dtype=plain, axes=("row", "key"))
    return Case(part, f"{S.shape[0]} rows, L_k = {S.shape[1]}", (launch,), {"S": S}, {"P": output}, must_be_clean=True)


def _softmaxes(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    small, large = (
        torch.randn(drawn(generator, 3, 6), drawn(generator, 33, 90), generator=generator) for _ in range(2)
    )
    large = (40 * large).round()
    large[0, 0] = 100  # exp of it overflows
    masked = torch.randn(4, drawn(generator, 5, 40), generator=generator)
    masked[1], masked[2, 3:] = -torch.inf, -torch.inf
    return [_normalised("values", small), _normalised("large", large), _normalised("masked", masked)]


# ---------------------------------------------------------------------------------------------- the causal mask


def _masked(generator: torch.Generator, part: str, B: int, H: int, L_q: int, L_k: int) -> Case:
    S = torch.randn(B, H, L_q, L_k, generator=generator)
    launch = Launch("causal_mask", _grid(B * H, L_q, L_k), BLOCK, ("S", np.int32(L_q), np.int32(L_k)))
    output = Output(_hidden(S, L_k - L_q).double(), initial=S, axes=AXES)
    return Case(part, f"L_q = {L_q}, L_k = {L_k}", (launch,), {}, {"S": output}, must_be_clean=True)


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


PUZZLES = {
    "dot_product": Puzzle(
        Exercise(
            id="01_attention_basics/dot_product",
            title="The dot product",
            kernels=("dot_product",),
            parts=(Part("values", 1, "the scores of one head"), Part("sizes", 1, "several heads, any lengths and d")),
            cases=_products,
        ),
        lesson="Each score took d products and read 2 d numbers. Many threads load the same rows of Q and K; with a "
        "tile in shared memory, a block would load each row once.",
        hint="Query i begins at Q[i * d], key j at K[j * d]. Add up the d products, then store scale times the sum in "
        "row i of S, column j.",
        mistakes=(
            mistake(
                names.SCALE_MISSING,
                "Each score is scale times the sum.",
                SCORES,
                f"{PRODUCT}S[i * L_k + j] = sum;",
            ),
            mistake(
                names.SCALE_NOT_THE_ARGUMENT,
                "`scale` may be anything.",
                SCORES,
                f"{PRODUCT}S[i * L_k + j] = sum / sqrtf(d);",
            ),
            mistake(
                K_ONE_APART,
                "Row j of K begins at K[j * d].",
                SCORES,
                "float sum = 0;\nfor (int c = 0; c < d; c++) sum += Q[i * d + c] * K[j + c];\n"
                "S[i * L_k + j] = scale * sum;",
            ),
        ),
    ),
    "safe_softmax": Puzzle(
        Exercise(
            id="01_attention_basics/safe_softmax",
            title="Softmax without overflow",
            kernels=("safe_softmax",),
            parts=(
                Part("values", 1, "small scores"),
                Part("large", 1, "large scores"),
                Part("masked", 1, "a row of nothing but −∞"),
            ),
            cases=_softmaxes,
        ),
        lesson="The maximum was subtracted first, so no exponential is above 1, and a row of nothing but −∞ became "
        "zeros. Chapter 02 does the same with a row that comes in pieces.",
        hint="Find l as m was found: each lane takes every 32nd key, then the shuffles combine the lanes. In a row of "
        "nothing but −∞, what is exp(S[j] − m)? What would it be with 0 in place of m?",
        mistakes=(
            mistake(
                names.NO_MAXIMUM,
                "A weight is exp(S[j] − m).",
                SOFTMAX,
                f"{EACH}l += expf(S[j]);\n{SUM_UP}{EACH}P[j] = l > 0 ? expf(S[j]) / l : 0;",
            ),
            mistake(
                names.NOT_DIVIDED,
                "The weights of a row add up to 1.",
                SOFTMAX,
                f"if (m == NEG_INF) m = 0;\n{EACH}P[j] = expf(S[j] - m);",
            ),
            mistake(
                "each lane divides by a sum of its own",
                "A lane has added up every 32nd weight; l is the sum of all lanes.",
                SOFTMAX,
                f"if (m == NEG_INF) m = 0;\n{EACH}l += expf(S[j] - m);\n{EACH}P[j] = l > 0 ? expf(S[j] - m) / l : 0;",
            ),
            mistake(
                names.EMPTY_ROW_IS_NAN,
                "−∞ − (−∞) is NaN, and so is 0 / 0.",
                SOFTMAX,
                f"{EACH}l += expf(S[j] - m);\n{SUM_UP}{EACH}P[j] = expf(S[j] - m) / l;",
            ),
        ),
    ),
    "causal_mask": Puzzle(
        Exercise(
            id="01_attention_basics/causal_mask",
            title="The causal mask",
            kernels=("causal_mask",),
            parts=(Part("square", 1, "as many queries as keys"), Part("unequal", 1, "L_q ≠ L_k")),
            cases=_masks,
        ),
        lesson="The last query stands at the last key, whatever the lengths: the same line holds for one new token "
        "against a long cache. Next: a tile that is hidden as a whole need not be computed.",
        hint="Where does query i stand among the keys, if the last query stands at the last key? Hide what comes "
        "after.",
        mistakes=(
            mistake(
                "a query does not see its own key",
                "Query i sees key i + L_k − L_q, too.",
                MASK,
                "if (j >= i + L_k - L_q) S[i * L_k + j] = NEG_INF;",
            ),
            mistake(
                "a query sees one key too many",
                "Only keys after query i + L_k − L_q are hidden.",
                MASK,
                "if (j > i + L_k - L_q + 1) S[i * L_k + j] = NEG_INF;",
            ),
            mistake(
                "queries are counted from the first key",
                "The last query stands at the last key: query i at key i + L_k − L_q.",
                MASK,
                "if (j > i) S[i * L_k + j] = NEG_INF;",
            ),
            mistake(
                "L_q and L_k have changed places",
                "Query i stands at key i + L_k − L_q.",
                MASK,
                "if (j > i + L_q - L_k) S[i * L_k + j] = NEG_INF;",
            ),
        ),
    ),
}
