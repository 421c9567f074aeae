"""Attention in E4M3: how tensors get there, what it should return, and what the rounding of weights alone costs.

E4M3 is a number in a byte, `torch.float8_e4m3fn`, with 3 bits behind the first. A head has a scale: its numbers stand
for themselves times it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from course_utils.reference.dense import _keep, _scores, attention, full_float32

E4M3 = torch.float8_e4m3fn
LARGEST = 448.0  # number of E4M3
WEIGHT_UNIT = 256.0  # weights are rounded as multiples of 1/256: E4M3 has few bits for numbers far below 1


def quantize_heads(x: Tensor) -> tuple[Tensor, Tensor]:
    """E4M3 `[B, H, L, d]` and a scale for each head, float32 `[B, H]`, by which its largest number becomes 448.

    x: `[B, H, L, d]`, any floating dtype. A head of zeros has the scale 1.
    """
    largest = x.float().abs().amax(dim=(-2, -1))
    scale = torch.where(largest > 0, largest / LARGEST, torch.ones_like(largest))
    return (x.float() / scale[..., None, None]).clamp(-LARGEST, LARGEST).to(E4M3), scale


def dequantize_heads(x: Tensor, scale: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """The numbers that `[B, H, L, d]` in E4M3 stands for; scale: `[B, H]`."""
    return x.to(dtype) * scale.to(dtype)[..., None, None]


def e4m3_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    q_scale: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    **options: bool | float | None,
) -> Tensor | tuple[Tensor, Tensor]:
    """`attention` in float64 of the numbers that are in E4M3; scales: float32 `[B, H]`, of key and value `[B, H_k]`.
    options: its other arguments."""
    pairs = (query, q_scale), (key, k_scale), (value, v_scale)
    return attention(*(dequantize_heads(x, scale) for x, scale in pairs), **options)


def rounded_e4m3_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    q_scale: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The same in plain torch, fp32, with weights rounded to E4M3, as 8-bit products take them, and the output to bf16:
    the yardstick for kernels."""
    pairs = (query, q_scale), (key, k_scale), (value, v_scale)
    q, k, v = (dequantize_heads(x, of_head, torch.float32) for x, of_head in pairs)
    with full_float32():
        scores, v = _scores(q, k, v, _keep(q, k, is_causal, attn_mask), scale, torch.float32)
        maximum = scores.amax(dim=-1, keepdim=True)
        weights = (scores - maximum.masked_fill(maximum == -torch.inf, 0.0)).exp()
        total = weights.sum(dim=-1, keepdim=True)
        rounded = (weights * WEIGHT_UNIT).to(E4M3).float() / WEIGHT_UNIT
        return ((rounded @ v) / total.masked_fill(total == 0, 1.0)).to(torch.bfloat16)
