"""FlashAttention-2 on tensor cores, in fp16 and bf16, forward and backward (kernels/03_flash_attention_v2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.cuda import RawModule
from course_utils.operators.prepare import (
    attend,
    check_inputs,
    dense,
    differentiable_once,
    empty_outputs,
    fitting,
    save_for_backward,
)
from course_utils.operators.tensor_core import (
    BACKWARD,
    BACKWARD_TILES,
    BF16,
    FORWARD,
    FORWARD_TILES,
    HEAD_DIMS,
    PACKED_TILES,
    dense_dk_dv,
    dense_forward,
    kernel,
    kernel_scalars,
    module,
    rounded_dq,
    row_delta,
)

FOLDER = "03_flash_attention_v2"


def flash_attention_v2(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale · Q Kᵀ) V by FlashAttention-2 (arXiv 2307.08691) on tensor cores: products of 16-bit numbers,
    sums in fp32, nothing of size L² stored, nor for the gradients.

    Args:
        query: `[B, H, L_q, d]`, float16 or bfloat16, d up to 128, on the CPU (emulator) or a GPU; strided inputs are
            copied, and d is filled up with zeros to 64 or 128.
        key, value: `[B, H_k, L_k, d]`, dtype and device of query; `H_k == H`, or with `enable_gqa` a divisor of H.
        is_causal: bottom-right aligned: query i sees key j when `j <= i + L_k - L_q`.
        scale: factor of the scores; None means `1 / sqrt(d)`. Scaled scores beyond some 10^8 are too coarse in
            fp32, and rows can come out wrong.
        enable_gqa: grouped-query attention: query head h reads key head `h // (H / H_k)`. With few queries the heads
            of a group share tiles (`tensor_core.forward_tile`).
        return_lse: also return the log-sum-exp of each row of scores.

    Returns:
        out `[B, H, L_q, d]` in the dtype of query, differentiable once by autograd; zeros for a query that sees no
        key. With return_lse `(out, lse)`: lse `[B, H, L_q]`, float32, natural logarithm, not differentiable; minus
        infinity for a query that sees no key.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape, device or value; the message names it.

    Where one key has most of a row's weight, the gradient of query is a small difference of larger numbers, and only
    as exact as the 16 bits of out, from which the backward pass takes Δ = rowsum(dO ∘ O), as FlashAttention-2 does.

    Every run gives the same bits, but for the gradient of query: blocks work on tiles of keys and add their shares of
    dQ by atomics, in an order of chance. Under `torch.use_deterministic_algorithms(True)` dQ comes from a second pass,
    in which blocks work on tiles of queries: two of the five matrix products are done again, and the bits are the same
    each time.
    """
    factor = check_inputs(
        query, key, value, is_causal=is_causal, scale=scale, dtypes=tuple(BF16), enable_gqa=enable_gqa
    )
    how = {"head_dims": HEAD_DIMS, "return_lse": return_lse}
    return attend(_FlashAttention, query, key, value, bool(is_causal), factor, **how)


class _FlashAttention(torch.autograd.Function):
    """The kernels as a differentiable function of dense tensors whose head dimension has a kernel."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float
    ) -> tuple[Tensor, Tensor]:
        out, lse = empty_outputs(query)
        dense_forward(query, key, value, out, lse, scale, is_causal)
        save_for_backward(ctx, (query, key, value, out, lse), scale, is_causal)
        return out, lse

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad_out: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        batch, heads, query_length, head_dim = query.shape
        deterministic = torch.are_deterministic_algorithms_enabled()
        grad_out = dense(grad_out)
        delta = row_delta(out, grad_out)
        grad_key, grad_value = torch.empty_like(key), torch.empty_like(value)
        # The second pass needs no sums; delta stands for them where the kernel takes a pointer.
        dq_sum = delta if deterministic else torch.zeros_like(query, dtype=torch.float32)
        inputs = query, key, value, grad_out, lse, delta
        dense_dk_dv(inputs, dq_sum, grad_key, grad_value, ctx.scale, ctx.mask, adds_dq=not deterministic)
        if deterministic:
            grad_query = torch.empty_like(query)
            tile = fitting(BACKWARD_TILES[head_dim], query.device)
            kernel(BACKWARD, tile.options, query.dtype, "backward_dq")(
                (ceil_div(query_length, tile.dq_rows), heads, batch),
                (tile.threads,),
                (*inputs, grad_query, *kernel_scalars(query, key, ctx.scale), np.int32(ctx.mask)),
                shared_mem=tile.dq_shared_bytes,
            )
        else:
            grad_query = rounded_dq(dq_sum, ctx.scale, query.dtype)
        return grad_query, grad_key, grad_value, None, None


def modules(dtype: torch.dtype, device: torch.device) -> list[RawModule]:
    """What the operator launches for tensors of this dtype and device, to be compiled ahead of time."""
    forward = [(FORWARD, fitting(tiles, device)) for tiles in FORWARD_TILES.values()]
    forward += [(FORWARD, tile) for tiles in PACKED_TILES.values() for tile in tiles]
    backward = [(BACKWARD, fitting(tiles, device)) for tiles in BACKWARD_TILES.values()]
    return [module(file, tile.options, dtype) for file, tile in forward + backward]
