"""The puzzles of chapter 02."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.grading.exercise import Case, Exercise, Launch, Output, Part
from course_utils.puzzles.cases import OWN_ROW_OF_V, attention, drawn
from course_utils.puzzles.puzzle import Puzzle, mistake

THREADS, D = 64, 32
AXES = ("batch", "head", "query", "column")
ONLINE = "02 FlashAttention, minimal, section 2, 'Softmax, a piece at a time'"
OUTPUT = "02 FlashAttention, minimal, section 2, 'The output comes along'"
GRADIENT = "02 FlashAttention, backward, section 15, 'The formulas'"
FACTORS = "const float m = fmaxf(m1[i], m2[i]);\nconst float a1 = expf(m1[i] - m), a2 = expf(m2[i] - m);\n"
SUM_OF_BOTH = "const float l = a1 * l1[i] + a2 * l2[i];\n"
QUOTIENT = "for (int c = 0; c < d; c++) O[c] = (a1 * O1[c] + a2 * O2[c]) / "
WEIGHT = "const float rescale = expf(m - m_new), p = expf(s - m_new);\n"
DELTA = "float delta = 0;\nfor (int c = 0; c < D; c++) delta += dO[i * D + c] * O[i * D + c];\n"


# ---------------------------------------------------------------------------------------------- two halves of the keys


def _half(scores: Tensor, V: Tensor, no_key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """m, l and the unnormalised O of each row of scores, for one half of the keys. no_key: the rows without keys."""
    m = scores.amax(dim=-1)
    p = torch.exp(scores - m[:, None]).masked_fill(no_key[:, None], 0)
    return m.masked_fill(no_key, -torch.inf), p.sum(dim=-1), p @ V


def _halves(generator: torch.Generator, part: str, spread: float = 2.0, empty: bool = False) -> Case:
    """One case of the merge. spread: how far scores lie apart. empty: every third row has no key in its first half, and
    every third none in its second."""
    rows, d = drawn(generator, 65, 90), drawn(generator, 9, 30)
    inputs = {}
    for half in "12":
        keys = drawn(generator, 4, 12)
        scores, V = spread * torch.randn(rows, keys, generator=generator), torch.randn(keys, d, generator=generator)
        no_key = torch.arange(rows) % 3 == (int(half) if empty else 3)
        inputs |= dict(zip((f"m{half}", f"l{half}", f"O{half}"), _half(scores, V, no_key), strict=True))
    launch = Launch("merge", (ceil_div(rows, THREADS),), (THREADS,), (*inputs, "O", np.int32(rows), np.int32(d)))
    right, plain = (_merged({name: x.to(dtype) for name, x in inputs.items()}) for dtype in (torch.double, torch.float))
    outputs = {"O": Output(right, same_dtype=plain, axes=("row", "column"))}
    return Case(part, f"rows = {rows}, d = {d}", (launch,), inputs, outputs, must_be_clean=True)


def _merged(halves: Mapping[str, Tensor]) -> Tensor:
    m = torch.maximum(halves["m1"], halves["m2"])
    a1, a2 = torch.exp(halves["m1"] - m), torch.exp(halves["m2"] - m)
    total = a1 * halves["l1"] + a2 * halves["l2"]
    return (a1[:, None] * halves["O1"] + a2[:, None] * halves["O2"]) / total[:, None]


def _merges(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    return [
        _halves(generator, "values"),
        _halves(generator, "large", spread=100.0),
        _halves(generator, "empty", empty=True),
    ]


# ---------------------------------------------------------------------------------------------- one key at a time


def _case(generator: torch.Generator, part: str, B: int, H: int, L_q: int, L_k: int, *, large: bool = False) -> Case:
    """One case of the pass over keys. large: scores for which exp overflows, and that fp32 holds exactly."""
    Q, K, V = (torch.randn(B, H, length, D, generator=generator) for length in (L_q, L_k, L_k))
    scale = float(np.float32(0.15 + 0.1 * torch.rand((), generator=generator).item()))
    if large:
        Q, K, scale = (4 * Q).round() / 4, (4 * K).round() / 4, float(drawn(generator, 12, 16))
    launch = Launch(
        "rescale",
        (ceil_div(L_q, THREADS), B * H),
        (THREADS,),
        ("Q", "K", "V", "O", np.int32(L_q), np.int32(L_k), np.float32(scale)),
        options=(f"-DD={D}",),
    )
    right, plain = (attention(q, k, v, scale) for q, k, v in ((Q.double(), K.double(), V.double()), (Q, K, V)))
    inputs = {"Q": Q, "K": K, "V": V}
    outputs = {"O": Output(right, same_dtype=plain, axes=AXES)}
    return Case(part, f"L_q = {L_q}, L_k = {L_k}", (launch,), inputs, outputs, must_be_clean=True)


def _cases(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    return [
        _case(generator, "values", 1, 1, drawn(generator, 9, 20), drawn(generator, 20, 40)),
        _case(generator, "sizes", 2, 2, drawn(generator, 65, 80), drawn(generator, 9, 30)),
        _case(generator, "large", 1, 1, drawn(generator, 9, 20), drawn(generator, 20, 40), large=True),
    ]


# ---------------------------------------------------------------------------------------------- gradient of a score


def _gradients(generator: torch.Generator, part: str, spread: float = 1.0) -> Case:
    """One case of the gradients. spread: how far scores lie apart."""
    L_q, L_k = drawn(generator, 17, 40), drawn(generator, 17, 40)
    S = spread * torch.randn(L_q, L_k, generator=generator)
    V, dO = (torch.randn(length, D, generator=generator) for length in (L_k, L_q))
    P = torch.softmax(S.double(), dim=1)
    inputs = {"S": S, "dP": dO @ V.T, "LSE": torch.logsumexp(S.double(), dim=1).float(), "O": (P @ V.double()).float()}
    inputs["dO"] = dO
    grid = ceil_div(L_k, 16), ceil_div(L_q, 16)
    arguments = (*inputs, "dS", np.int32(L_q), np.int32(L_k))
    launch = Launch("score_gradient", grid, (16, 16), arguments, options=(f"-DD={D}",))
    right, plain = (
        _score_gradient({name: x.to(dtype) for name, x in inputs.items()}) for dtype in (torch.double, torch.float)
    )
    outputs = {"dS": Output(right, same_dtype=plain, axes=("query", "key"))}
    return Case(part, f"L_q = {L_q}, L_k = {L_k}", (launch,), inputs, outputs, must_be_clean=True)


def _gradient_cases(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    return [_gradients(generator, "values"), _gradients(generator, "large", spread=40.0)]


def _score_gradient(of: Mapping[str, Tensor]) -> Tensor:
    delta = (of["dO"] * of["O"]).sum(dim=1, keepdim=True)
    return torch.exp(of["S"] - of["LSE"][:, None]) * (of["dP"] - delta)


PUZZLES = {
    "merge": Puzzle(
        Exercise(
            id="02_flash_attention_minimal/merge",
            title="Two halves of the keys",
            kernels=("merge",),
            parts=(
                Part("values", 1, "O of every row"),
                Part("large", 1, "large scores"),
                Part("empty", 1, "rows that see no key in one half"),
            ),
            cases=_merges,
        ),
        lesson="Two halves, each with its own maximum, make one softmax, the same up to rounding. So the keys may be "
        "cut anywhere: into tiles for one block, or into parts for several blocks.",
        hint="Each half was summed relative to its own maximum. Let m be the larger of the two maxima. "
        "Multiply l1 and O1 by exp(m1 − m), and l2 and O2 by exp(m2 − m). Divide at the end, by the l of both halves.",
        mistakes=(
            mistake(
                "the halves are added without their factors",
                "Each half of l and O was summed relative to its own maximum.",
                OUTPUT,
                "const float l = l1[i] + l2[i];\nfor (int c = 0; c < d; c++) O[c] = (O1[c] + O2[c]) / l;",
            ),
            mistake(
                "l is added without the factors",
                "l takes the same factors as O.",
                OUTPUT,
                f"{FACTORS}{QUOTIENT}(l1[i] + l2[i]);",
            ),
            mistake(
                "O is added without the factors",
                "O takes the same factors as l.",
                OUTPUT,
                f"{FACTORS}{SUM_OF_BOTH}for (int c = 0; c < d; c++) O[c] = (O1[c] + O2[c]) / l;",
            ),
            mistake(
                "the factors are upside down",
                "The half with the smaller maximum shrinks: by exp(m1 − m), where m is the larger maximum.",
                OUTPUT,
                "const float m = fmaxf(m1[i], m2[i]);\nconst float a1 = expf(m - m1[i]), a2 = expf(m - m2[i]);\n"
                f"{SUM_OF_BOTH}{QUOTIENT}l;",
                "const float m = fmaxf(m1[i], m2[i]);\nconst float a1 = expf(m2[i] - m), a2 = expf(m1[i] - m);\n"
                f"{SUM_OF_BOTH}{QUOTIENT}l;",
            ),
            mistake(
                "O is not divided by l",
                "Divide at the end, by the l of both halves.",
                OUTPUT,
                f"{FACTORS}{QUOTIENT}1;",
            ),
            mistake(
                "O is divided by the sum of one half",
                "l of all keys has a part of each half.",
                OUTPUT,
                *(f"{FACTORS}{QUOTIENT}{half};" for half in ("(a1 * l1[i])", "l1[i]", "(a2 * l2[i])", "l2[i]")),
            ),
        ),
    ),
    "rescale": Puzzle(
        Exercise(
            id="02_flash_attention_minimal/rescale",
            title="Rescale, then add",
            kernels=("rescale",),
            parts=(
                Part("values", 1, "O of one head"),
                Part("sizes", 1, "several heads, any lengths"),
                Part("large", 1, "large scores"),
            ),
            cases=_cases,
        ),
        lesson="The row of scores never existed as a whole: m, l and O were enough. This is FlashAttention's idea; "
        "tiles make it fast.",
        hint="So far l and O_i are sums with exp(s − m). A multiplication by exp(m − m_new) turns them into sums with "
        "exp(s − m_new). Then add the part of this key.",
        mistakes=(
            mistake(
                "O_i is not rescaled",
                "O_i was summed relative to the old maximum.",
                ONLINE,
                f"{WEIGHT}l = l * rescale + p;\nfor (int c = 0; c < D; c++) O_i[c] += p * V[j * D + c];",
            ),
            mistake(
                "l is not rescaled",
                "l was summed relative to the old maximum.",
                ONLINE,
                f"{WEIGHT}l += p;\nfor (int c = 0; c < D; c++) O_i[c] = O_i[c] * rescale + p * V[j * D + c];",
            ),
            mistake(
                "nothing is rescaled",
                "l and O_i were summed relative to the old maximum.",
                ONLINE,
                "const float p = expf(s - m_new);\nl += p;\nfor (int c = 0; c < D; c++) O_i[c] += p * V[j * D + c];",
            ),
            mistake(
                OWN_ROW_OF_V,
                "The weight of key j belongs to row j of V.",
                OUTPUT,
                f"{WEIGHT}l = l * rescale + p;\n"
                "for (int c = 0; c < D; c++) O_i[c] = O_i[c] * rescale + p * V[i * D + c];",
            ),
        ),
    ),
    "score_gradient": Puzzle(
        Exercise(
            id="02_flash_attention_minimal/score_gradient",
            title="The gradient of a score",
            kernels=("score_gradient",),
            parts=(Part("values", 1, "dS of every score"), Part("large", 1, "large scores")),
            cases=_gradient_cases,
        ),
        lesson="The score and one number per row, the LSE, give P back. So the forward pass need not keep P for the "
        "backward pass.",
        hint="The weight comes back as exp of the score minus the row's LSE. Δ is the sum of dO times O over the D "
        "columns of row i.",
        mistakes=(
            mistake(
                "Δ is missing",
                "From dP of each key the row's Δ is subtracted: the mean of dP, weighted by P.",
                GRADIENT,
                "dS[at] = expf(S[at] - LSE[i]) * dP[at];",
            ),
            mistake(
                "the weight is not normalised",
                "P = exp(S − LSE), and LSE contains both m and l.",
                GRADIENT,
                f"{DELTA}dS[at] = expf(S[at]) * (dP[at] - delta);",
            ),
            mistake(
                "the weight is missing",
                "dS is the product of the weight P and of dP − Δ.",
                GRADIENT,
                f"{DELTA}dS[at] = dP[at] - delta;",
            ),
            mistake(
                "Δ is added",
                "Δ is subtracted from dP.",
                GRADIENT,
                f"{DELTA}dS[at] = expf(S[at] - LSE[i]) * (dP[at] + delta);",
            ),
        ),
    ),
}
