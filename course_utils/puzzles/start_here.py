"""The puzzles of chapter 00."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.grading import names
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Output, Part
from course_utils.puzzles.cases import K_ONE_APART, OWN_ROW_OF_V, attention, drawn
from course_utils.puzzles.puzzle import Puzzle, mistake

BLOCK = 64
ELEMENTS = 110  # of the launch that the chapter speaks of and its widget draws: the first finding is of the same one
OTHER_BLOCKS = 96, 128, 160  # a kernel asks blockDim how many threads a block has
SOFTMAX = "00 Start here, 'Attention in ten lines'"
KERNEL = "00 Start here, 'Your first kernels'"
MY_KEY = "const int j = blockIdx.x * blockDim.x + threadIdx.x;\nif (j >= L) return;\n"
OVER_KEYS = "for (int j = 0; j < L; j++) {\n"
ADDED_UP = "l += p;\nfor (int c = 0; c < d; c++) O[c] += p * V[j * d + c];\n}"


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
    name = f"L = {length}, d = {d}, blocks of {block}"
    return Case(part, name, (launch,), {"q": q, "K": K}, outputs, must_be_clean=True)


def _scores(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    return [
        _scored(generator, "values", BLOCK, 32),
        _scored(generator, "sizes", drawn(generator, 65, 90), drawn(generator, 33, 60)),
        _scored(generator, "sizes", drawn(generator, 170, 250), drawn(generator, 9, 20), _blocks(generator)),
        _scored(generator, "sizes", drawn(generator, 2, 9), 1),
    ]


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
    inputs = {"Q": Q, "K": K, "V": V}
    return Case(part, f"L = {length}, d = {d}", (launch,), inputs, outputs, must_be_clean=True)


def _attentions(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    return [
        _attended(generator, "values", drawn(generator, 9, 20), 16),
        _attended(generator, "sizes", drawn(generator, 65, 80), drawn(generator, 9, 20)),
        _attended(generator, "large", drawn(generator, 9, 20), 16, large=True),
    ]


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
        ),
        lesson="Each thread read the query and its own key, and stored one score. Next: the softmax turns such a row "
        "of scores into weights.",
        hint="One thread per key. Its number j comes from blockIdx, blockDim and threadIdx, as in `add` above. A "
        "thread without a key returns. The others go over the d columns of row j, K[j * d + c], and store one number.",
        mistakes=(
            mistake(
                names.SCALE_MISSING,
                "Each score is scale times the sum.",
                KERNEL,
                f"{MY_KEY}float sum = 0;\nfor (int c = 0; c < d; c++) sum += q[c] * K[j * d + c];\ns[j] = sum;",
            ),
            mistake(
                names.SCALE_NOT_THE_ARGUMENT,
                "`scale` may be anything.",
                KERNEL,
                f"{MY_KEY}float sum = 0;\nfor (int c = 0; c < d; c++) sum += q[c] * K[j * d + c];\n"
                "s[j] = sum / sqrtf(d);",
            ),
            mistake(
                K_ONE_APART,
                "Row j of K begins at K[j * d].",
                KERNEL,
                f"{MY_KEY}float sum = 0;\nfor (int c = 0; c < d; c++) sum += q[c] * K[j + c];\ns[j] = scale * sum;",
            ),
            mistake(
                "K is read by columns",
                "Row j of K begins at K[j * d].",
                KERNEL,
                f"{MY_KEY}float sum = 0;\nfor (int c = 0; c < d; c++) sum += q[c] * K[c * L + j];\ns[j] = scale * sum;",
            ),
            mistake(
                "the sum is an int, which loses what stands behind the point",
                "",
                KERNEL,
                f"{MY_KEY}int sum = 0;\nfor (int c = 0; c < d; c++) sum += q[c] * K[j * d + c];\ns[j] = scale * sum;",
            ),
        ),
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
        ),
        lesson="Scores, softmax and the sum over V in one kernel, and no score was ever stored. Its price: each "
        "product of a query and a key was made twice. Chapter 02 makes it once.",
        hint="Go over the keys once more. Each has the weight exp(scale · dot − m); l is the sum of the weights, and "
        "the row of O is the sum of the rows of V, each times its weight. The division comes below.",
        mistakes=(
            mistake(
                names.SCALE_MISSING,
                "A weight is exp(scale · score − m).",
                SOFTMAX,
                f"{OVER_KEYS}const float p = expf(dot(Q, K + j * d, d) - m);\n{ADDED_UP}",
            ),
            mistake(
                names.NO_MAXIMUM,
                "A weight is exp(scale · score − m). Without − m, exp of a large score is infinite in fp32, and "
                "infinite over infinite is NaN.",
                SOFTMAX,
                f"{OVER_KEYS}const float p = expf(scale * dot(Q, K + j * d, d));\n{ADDED_UP}",
            ),
            mistake(
                "l stays 0: the weights are not summed",
                "The division below is by l, the sum of the weights.",
                SOFTMAX,
                f"{OVER_KEYS}const float p = expf(scale * dot(Q, K + j * d, d) - m);\n"
                "for (int c = 0; c < d; c++) O[c] += p * V[j * d + c];\n}",
            ),
            mistake(
                OWN_ROW_OF_V,
                "The weight of key j belongs to row j of V.",
                SOFTMAX,
                f"{OVER_KEYS}const float p = expf(scale * dot(Q, K + j * d, d) - m);\nl += p;\n"
                "for (int c = 0; c < d; c++) O[c] += p * V[i * d + c];\n}",
            ),
            mistake(
                K_ONE_APART,
                "Row j of K begins at K + j * d.",
                SOFTMAX,
                f"{OVER_KEYS}const float p = expf(scale * dot(Q, K + j, d) - m);\n{ADDED_UP}",
            ),
        ),
    ),
}
