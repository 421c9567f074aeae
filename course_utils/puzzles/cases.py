"""What the cases and mistakes of several puzzles share."""

from __future__ import annotations

import torch
from torch import Tensor

from course_utils.grading.draws import between as drawn

__all__ = ["K_ONE_APART", "OWN_ROW_OF_V", "attention", "drawn"]

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
