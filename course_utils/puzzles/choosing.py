"""The puzzles of chapter 08: one query that reads a cache."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from course_utils.grading import names
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Output, Part
from course_utils.puzzles.cases import attention, drawn
from course_utils.puzzles.puzzle import Puzzle, mistake

DECODE = "08 Choosing, section 6, 'Decode'"


def _scale(generator: torch.Generator) -> np.float32:
    return np.float32(0.1 + 0.2 * torch.rand((), generator=generator).item())


# ---------------------------------------------------------------------------------------------- heads that share keys


def _shared(generator: torch.Generator, part: str, H_kv: int, group: int) -> Case:
    T, d, H = drawn(generator, 20, 40), 4 * drawn(generator, 3, 6), H_kv * group
    q, scale = torch.randn(H, d, generator=generator), _scale(generator)
    K, V = (torch.randn(H_kv, T, d, generator=generator) for _ in "KV")
    arguments = ("q", "K", "V", "O", *map(np.int32, (H, H_kv, T, d)), scale)
    inputs = {"q": q, "K": K, "V": V}
    heads = torch.arange(H) // group
    right = _by_heads(q.double(), K.double(), V.double(), float(scale), heads)
    output = Output(right, same_dtype=_by_heads(q, K, V, float(scale), heads), axes=("head", "column"))
    launch = Launch("shared_heads", (H,), (d,), arguments)
    return Case(part, f"H = {H}, H_kv = {H_kv}, T = {T}, d = {d}", (launch,), inputs, {"O": output}, must_be_clean=True)


def _by_heads(q: Tensor, K: Tensor, V: Tensor, scale: float, heads: Tensor) -> Tensor:
    """O [H, d], where head h of q reads head heads[h] of K and V."""
    return attention(q[:, None], K[heads], V[heads], scale)[:, 0]


def _groups(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    return [_shared(generator, "two", 3, 2), _shared(generator, "more", 2, drawn(generator, 3, 5))]


PUZZLES = {
    "shared_heads": Puzzle(
        Exercise(
            id="08_choosing/shared_heads",
            title="Heads that share their keys",
            kernels=("shared_heads",),
            parts=(Part("two", 1, "two heads to each head of K"), Part("more", 1, "three or more")),
            cases=_groups,
            findings={"memcheck": Diagnosis("a head is read that K or V does not have", read_again=DECODE)},
        ),
        lesson="The query heads of a group read the same K and V. A block with the whole group would read them once.",
        hint="H / H_kv neighbouring heads of q form a group. Which group is head h in? A head of K or V has T * d "
        "numbers: move both pointers past the heads of the groups before.",
        mistakes=(
            mistake(
                names.HEAD_ZERO_READ,
                "K and V begin with their head 0; move on to yours.",
                DECODE,
                "const int kv = 0;\nK += kv * T * d, V += kv * T * d;",
            ),
            mistake(
                "heads share in turns, not as neighbours",
                "Heads 0, 1, … of one group are neighbours: divide, and take no remainder.",
                DECODE,
                "const int kv = h % H_kv;\nK += kv * T * d, V += kv * T * d;",
            ),
            mistake(
                "the last heads come first",
                "Head 0 of q reads head 0 of K and V.",
                DECODE,
                "const int kv = H_kv - 1 - h / (H / H_kv);\nK += kv * T * d, V += kv * T * d;",
            ),
        ),
    ),
}
