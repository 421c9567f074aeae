"""The puzzles of chapter 02."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Mistake, Output, Part
from course_utils.puzzles.puzzle import Puzzle, drawn

THREADS, D = 64, 32
AXES = ("batch", "head", "query", "column")
ONLINE = "chapter 02, section 2, 'Softmax, a piece at a time'"


def _attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    return torch.softmax(scale * query @ key.mT, dim=-1) @ value


def _case(generator: torch.Generator, part: str, B: int, H: int, L_q: int, L_k: int, spread: float = 1.0) -> Case:
    """spread: how far scores lie apart, in units of what random ones do."""
    Q, K, V = (torch.randn(B, H, length, D, generator=generator) for length in (L_q, L_k, L_k))
    scale = float(np.float32(spread * (0.15 + 0.1 * torch.rand((), generator=generator).item())))
    launch = Launch(
        "rescale",
        (ceil_div(L_q, THREADS), B * H),
        (THREADS,),
        ("Q", "K", "V", "O", np.int32(L_q), np.int32(L_k), np.float32(scale)),
        options=(f"-DD={D}",),
    )
    right, plain = (_attention(q, k, v, scale) for q, k, v in ((Q.double(), K.double(), V.double()), (Q, K, V)))
    inputs, facts = {"Q": Q, "K": K, "V": V}, {"scale": scale}
    outputs = {"O": Output(right, same_dtype=plain, axes=AXES)}
    return Case(part, f"L_q = {L_q}, L_k = {L_k}", (launch,), inputs, outputs, facts, must_be_clean=True)


def _cases(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    return [
        _case(generator, "values", 1, 1, drawn(generator, 9, 20), drawn(generator, 20, 40)),
        _case(generator, "sizes", 2, 2, drawn(generator, 65, 80), drawn(generator, 9, 30)),
        _case(generator, "large", 1, 1, drawn(generator, 9, 20), drawn(generator, 20, 40), spread=40.0),
    ]


def _one_pass(l_rescaled: bool, O_rescaled: bool) -> Callable[[Case], Mapping[str, Tensor]]:
    """What a kernel gives that rescales l, or O, or neither."""

    def simulate(case: Case) -> Mapping[str, Tensor]:
        Q, K, V = (case.inputs[name].double() for name in "QKV")
        m = torch.full((*Q.shape[:3], 1), -torch.inf, dtype=torch.float64)
        total, out = torch.zeros_like(m), torch.zeros_like(Q)
        for j in range(K.shape[2]):
            s = case.facts["scale"] * (Q * K[:, :, j : j + 1]).sum(dim=-1, keepdim=True)
            m_new = torch.maximum(m, s)
            rescale, p = torch.exp(m - m_new), torch.exp(s - m_new)
            total = (total * rescale if l_rescaled else total) + p
            out = (out * rescale if O_rescaled else out) + p * V[:, :, j : j + 1]
            m = m_new
        return {"O": out / total}

    return simulate


PUZZLES = {
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
            mistakes=(
                Mistake(
                    Diagnosis("O is not rescaled", "What O holds was summed relative to the old maximum.", ONLINE),
                    _one_pass(l_rescaled=True, O_rescaled=False),
                ),
                Mistake(
                    Diagnosis("l is not rescaled", "What l holds was summed relative to the old maximum.", ONLINE),
                    _one_pass(l_rescaled=False, O_rescaled=True),
                ),
                Mistake(
                    Diagnosis("nothing is rescaled", "l and O were summed relative to the old maximum.", ONLINE),
                    _one_pass(l_rescaled=False, O_rescaled=False),
                ),
            ),
        ),
        hint="What l and O hold so far was summed with exp(s − m). Multiplied by exp(m − m_new) it is as if it had "
        "been summed with exp(s − m_new). Then this key's own part is added.",
    ),
}
