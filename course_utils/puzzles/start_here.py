"""The puzzles of chapter 00."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Mistake, Output, Part
from course_utils.puzzles.puzzle import Puzzle, drawn

THREADS = 64
KERNEL = "chapter 00, section 2, 'A first kernel'"


def _added(generator: torch.Generator, part: str, n: int) -> Case:
    a, b = torch.randn(2, n, generator=generator)
    launch = Launch("add", (ceil_div(n, THREADS),), (THREADS,), ("a", "b", "c", np.int32(n)))
    outputs = {"c": Output(a.double() + b.double(), axes=("element",))}
    return Case(part, f"n = {n}", (launch,), {"a": a, "b": b}, outputs, must_be_clean=True)


def _additions(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    return [
        _added(generator, "whole", THREADS * drawn(generator, 1, 4)),
        _added(generator, "ragged", THREADS * drawn(generator, 1, 4) + drawn(generator, 1, THREADS - 1)),
    ]


def _scored(generator: torch.Generator, part: str, length: int, d: int) -> Case:
    q, K = torch.randn(d, generator=generator), torch.randn(length, d, generator=generator)
    scale = float(np.float32(0.3 + torch.rand((), generator=generator).item()))
    arguments = ("q", "K", "s", np.int32(length), np.int32(d), np.float32(scale))
    launch = Launch("scores_of_one_query", (ceil_div(length, THREADS),), (THREADS,), arguments)
    outputs = {"s": Output(scale * K.double() @ q.double(), same_dtype=scale * (K @ q), axes=("key",))}
    facts = {"scale": scale}
    return Case(part, f"L = {length}, d = {d}", (launch,), {"q": q, "K": K}, outputs, facts, must_be_clean=True)


def _scores(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    return [
        _scored(generator, "values", THREADS, 32),
        _scored(generator, "sizes", drawn(generator, 65, 120), drawn(generator, 33, 60)),
        _scored(generator, "sizes", drawn(generator, 2, 9), 1),
    ]


def _columns(case: Case) -> Mapping[str, Tensor] | None:
    """K taken for a matrix with a column per key."""
    q, K = case.inputs["q"].double(), case.inputs["K"].double()
    length, d = K.shape
    return {"s": case.facts["scale"] * (K.reshape(-1).reshape(d, length).mT @ q)} if d > 1 else None


PUZZLES = {
    "guard": Puzzle(
        Exercise(
            id="00_start_here/guard",
            title="Threads without an element",
            kernels=("add",),
            parts=(Part("whole", 1, "n a multiple of the block"), Part("ragged", 1, "any n")),
            cases=_additions,
            findings={"memcheck": Diagnosis("a thread past the end reads or writes", read_again=KERNEL)},
        ),
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
                    Diagnosis("the scale is missing", "Each score is scale times the sum.", KERNEL),
                    lambda case: {"s": case.outputs["s"].expected / case.facts["scale"]},
                ),
                Mistake(
                    Diagnosis("K is read by columns", "Row j of K begins at K[j * d].", KERNEL),
                    _columns,
                ),
            ),
            findings={"memcheck": Diagnosis("a thread past the end reads or writes", read_again=KERNEL)},
        ),
        hint="One thread per key. Its number j comes from blockIdx, blockDim and threadIdx, as in vector_add; a thread "
        "without a key leaves. The others go over the d columns of row j, K[j * d + c], and store one number.",
    ),
}
