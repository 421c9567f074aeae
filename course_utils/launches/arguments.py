"""Arguments of launches, the same at each call: a launch is known again by them."""

from __future__ import annotations

import numpy as np
import torch


def ints(*values: int) -> tuple[np.int32, ...]:
    """Numbers as a kernel takes an `int`."""
    return tuple(map(np.int32, values))


def counted(*shape: int) -> torch.Tensor:
    """fp32 of this shape: 0, 1, 2, and so on."""
    return torch.arange(int(np.prod(shape)), dtype=torch.float32).view(shape)


def normal(*shape: int) -> torch.Tensor:
    """Random normal fp32 of this shape, the same for the same shape."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def check_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None) -> None:
    """Raises ValueError for shapes, or a scale, that the kernels of a ladder do not take: query `[B, H, L_q, D]`, key
    and value `[B, H_kv, L_k, D]`, H a multiple of H_kv, scale positive or None."""
    batch, heads, _, d = query.shape
    kv_heads, key_length = key.shape[1:3]
    if key.shape != (batch, kv_heads, key_length, d) or value.shape != key.shape:
        shapes = f"query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"
        raise ValueError(f"query takes [B, H, L_q, D], key and value [B, H_kv, L_k, D]; got {shapes}")
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"query has {heads} heads, key {kv_heads}: the first must be a multiple of the second")
    if scale is not None and not scale > 0:
        raise ValueError(f"scale is {scale}; it must be positive")
