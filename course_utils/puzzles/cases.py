"""What the cases of several puzzles are made with."""

from __future__ import annotations

import torch
from torch import Tensor

from course_utils.grading.draws import between as drawn

__all__ = ["attention", "drawn"]


def attention(query: Tensor, key: Tensor, value: Tensor, scale: float, seen: Tensor | None = None) -> Tensor:
    """softmax(scale · Q Kᵀ) V in the dtype of its inputs. seen: bool, which keys a query sees; None: all. NaN,
    as 0 / 0 is, where it sees none.
    """
    scores = scale * query @ key.mT
    if seen is not None:
        scores = scores.masked_fill(~seen, -torch.inf)
    return torch.softmax(scores, dim=-1) @ value
