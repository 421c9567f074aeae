"""Tensors for the cases and mistakes of several puzzles."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from course_utils.grading.draws import between as drawn
from course_utils.grading.exercise import Case

__all__ = ["K_ONE_APART", "OWN_ROW_OF_V", "attention", "drawn", "overlapping_rows", "own_row_of_V"]

# Names of mistakes that learners make in several puzzles
K_ONE_APART = "row j of K is read from number j of K on, not from j · d"
OWN_ROW_OF_V = "each weight is multiplied by the query's row of V, not the key's"


def attention(query: Tensor, key: Tensor, value: Tensor, scale: float, visible: Tensor | None = None) -> Tensor:
    """softmax(scale · Q Kᵀ) V in the dtype of its inputs. visible: bool, which keys a query sees; None: all. NaN,
    as 0 / 0 is, where it sees none.
    """
    scores = scale * query @ key.mT
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    return torch.softmax(scores, dim=-1) @ value


def overlapping_rows(matrix: Tensor) -> Tensor:
    """The rows of `[..., rows, d]` that a kernel reads as M[j + c] in place of M[j * d + c]: row j begins at number j
    of the matrix."""
    rows, d = matrix.shape[-2:]
    return matrix.flatten(-2).unfold(-1, d, 1)[..., :rows, :]


def own_row_of_V(case: Case) -> Mapping[str, Tensor] | None:
    """The result of V[i * d + c]: each weight times the query's row of V, so a mean of equal rows. A row past the end
    of V reads other memory."""
    V, L_q = case.inputs["V"].double(), case.inputs["Q"].shape[-2]
    return {"O": V[..., :L_q, :]} if L_q <= V.shape[-2] else None
