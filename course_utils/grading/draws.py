"""Inputs that exercises draw: sizes, and tensors that more than one exercise uses."""

from __future__ import annotations

import torch
from torch import Tensor

from course_utils import checks


def between(generator: torch.Generator, first: int, last: int, step: int = 1) -> int:
    """A number from `first` to `last`, both included, in steps of `step`."""
    return first + step * int(torch.randint((last - first) // step + 1, (), generator=generator))


def attention_inputs(
    seed: int,
    query_length: int,
    key_length: int,
    kind: str = "normal",
    *,
    head_dim: int = 32,
    is_causal: bool = False,
    batch: int = 1,
    heads: int = 2,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Q, K, V and dO of a kind of `course_utils.checks`."""
    case = checks.AttentionCase(batch, heads, heads, query_length, key_length, head_dim, is_causal, kind)
    return checks.make_inputs(case, seed=seed)


def same_in_each_head(generator: torch.Generator, heads: int, length: int, head_dim: int) -> Tensor:
    """[1, heads, length, head_dim], normal, every head the same."""
    return torch.randn(1, 1, length, head_dim, generator=generator).expand(1, heads, -1, -1).contiguous()
