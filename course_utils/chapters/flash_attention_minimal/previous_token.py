"""A task that one attention layer learns in seconds: say the token before the current one."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from course_utils import reference
from course_utils.operators import flash_attention_minimal

TOKENS, WIDTH = 16, 32  # a token is a random vector in the first half, its position a 3 in one place of the second


def train(attention: Callable[..., Tensor], device: torch.device, steps: int = 25) -> tuple[list[float], list[Tensor]]:
    """Trains W_q, W_k and W_v of one causal layer, always from the same start and on the same sequences. Returns the
    error at each step and the matrices `[32, 32]`. A layer that always answers 0 has an error of about 1."""
    torch.manual_seed(6)
    weights = [(0.1 * torch.randn(WIDTH, WIDTH)).to(device).requires_grad_() for _ in range(3)]
    optimiser, losses = torch.optim.Adam(weights, lr=0.05), []
    for _ in range(steps):
        tokens = _sequences(device)
        out = attention(*((tokens + _positions(device)) @ w for w in weights), is_causal=True)
        loss = (out[:, :, 1:, : WIDTH // 2] - tokens[:, :, :-1, : WIDTH // 2]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses, weights


def looks_at(weights: list[Tensor]) -> Tensor:
    """The attention weights `[16, 16]` of one sequence under trained matrices: P = exp(S − LSE), since the kernel never
    stores them."""
    device = weights[0].device
    with torch.no_grad():
        query, key, value = ((_sequences(device) + _positions(device)) @ w for w in weights)
        _, lse = flash_attention_minimal(query, key, value, is_causal=True, return_lse=True)
        scores = (query @ key.mT / math.sqrt(WIDTH)).masked_fill(
            ~reference.causal_mask(TOKENS, TOKENS, device), -torch.inf
        )
        return torch.exp(scores - lse[..., None])[0, 0].cpu()


def _sequences(device: torch.device) -> Tensor:
    """Eight sequences, `[8, 1, 16, 32]`."""
    half = 8, 1, TOKENS, WIDTH // 2
    return torch.cat([torch.randn(half), torch.zeros(half)], dim=3).to(device)


def _positions(device: torch.device) -> Tensor:
    return torch.cat([torch.zeros(TOKENS, WIDTH // 2), 3 * torch.eye(TOKENS)], dim=1).to(device)
