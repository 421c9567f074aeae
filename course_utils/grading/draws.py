"""Inputs that exercises draw: sizes, and tensors that more than one exercise uses."""

from __future__ import annotations

import torch
from torch import Tensor

from course_utils import checks

LOWEST = -(2.0**66)  # finite, and its product with log2(e) is exact in fp32
FAR = torch.tensor(  # log-sum-exps, six rows of five parts
    [
        [0.0, 0.0, 0.0, 0.0, 0.0],
        [100.0, 100.0, 100.0, 100.0, 100.0],
        [-130.0, -130.0, -130.0, -130.0, -130.0],
        [110.0, -120.0, -100.0, -130.0, -90.0],  # the first far above the others, and the last
        [-130.0, -90.0, -120.0, -100.0, 110.0],
        [0.0, 95.0, 10.0, -140.0, -20.0],  # one far above the first and the last
    ]
)


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


def low_lse(generator: torch.Generator, splits: int) -> Tensor:
    """LSE of four rows, [4, splits]: in each of them one split is far above the others."""
    below = 100.0 + 100.0 * torch.rand(4, splits, generator=generator)
    lse = torch.stack([-2e4 - below[0], LOWEST * below[1], LOWEST * below[2], LOWEST * below[3]])
    for n, (split, largest) in enumerate(
        ((between(generator, 1, 4), -2e4), (0, LOWEST), (splits - 1, LOWEST), (2, -3.0))
    ):
        lse[n, split] = largest
    return lse
