"""Gradients of attention computed without a formula: by autograd, and as the slope of the loss along a direction."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from course_utils import reference
from course_utils.measured import Row

STEP = 1e-4


def example(scale: float) -> tuple[Tensor, ...]:
    """Q, K, V and dO `[20, 8]`, drawn, and S = scale · Q Kᵀ, in float64."""
    torch.manual_seed(4)
    query, key, value, grad_out = torch.randn(4, 20, 8, dtype=torch.float64).unbind()
    return query, key, value, grad_out, scale * query @ key.T


def by_autograd(query: Tensor, key: Tensor, value: Tensor, grad_out: Tensor, scale: float) -> tuple[Tensor, ...]:
    """dQ, dK and dV of one head `[L, d]`, by autograd."""
    leaves = [x.clone().requires_grad_() for x in (query, key, value)]
    out = torch.softmax(scale * leaves[0] @ leaves[1].T, dim=1) @ leaves[2]
    return torch.autograd.grad(out, leaves, grad_out)


def slopes(attention: Callable[..., Tensor], device: torch.device) -> list[Row]:
    """For query, key and value: the slope of the float64 loss along a random direction, and the slope that the gradient
    of `attention` (causal, differentiable) predicts. Columns: input, slope, gradient."""
    torch.manual_seed(5)
    *inputs, weight = torch.randn(4, 1, 2, 70, 32).to(device)
    leaves = [x.clone().requires_grad_() for x in inputs]
    gradients = torch.autograd.grad((attention(*leaves, is_causal=True) * weight).sum(), leaves)
    rows: list[Row] = []
    for n, name in enumerate(("query", "key", "value")):
        direction = torch.randn(inputs[n].shape, dtype=torch.float64).to(device)
        up, down = (_loss(inputs, weight, n, step * direction) for step in (STEP, -STEP))
        along = (gradients[n].double() * direction).sum().item()
        rows.append({"input": name, "slope": (up - down) / (2 * STEP), "gradient": along})
    return rows


def _loss(inputs: list[Tensor], weight: Tensor, which: int, moved: Tensor) -> float:
    """The loss in float64 after input `which` has moved."""
    places = [x.double() + (moved if n == which else 0) for n, x in enumerate(inputs)]
    return (reference.attention(*places, is_causal=True) * weight).sum().item()
