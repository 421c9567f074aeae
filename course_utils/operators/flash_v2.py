"""FlashAttention-2 on tensor cores, in fp16 and bf16, forward and backward (kernels/03_flash_attention_v2)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.cuda import RawModule
from course_utils.operators.library import AUTOCAST, operator
from course_utils.operators.prepare import (
    check_inputs,
    cut,
    empty_outputs,
    fake_attention,
    fake_gradients,
    fitting,
    for_kernels,
    gradients,
    padded,
)
from course_utils.operators.tensor_core import (
    BACKWARD,
    BACKWARD_TILES,
    DTYPES,
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
    query, key, value = _attention.autocast(query, key, value)
    factor = check_inputs(
        query,
        key,
        value,
        is_causal=is_causal,
        scale=scale,
        dtypes=DTYPES,
        head_dim=HEAD_DIMS[-1],
        enable_gqa=enable_gqa,
    )
    out, lse = _attention(query, key, value, bool(is_causal), factor)
    return (out, lse) if return_lse else out


@operator(
    "flash_attention_v2_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, "
    "bool is_causal, float scale) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)",
    fake=fake_gradients,
    is_gradient=True,
    tags=("nondeterministic_bitwise",),  # unless torch is told to be deterministic
)
def _gradient(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, ...]:
    q, k, v, factor = for_kernels(query, key, value, scale, HEAD_DIMS)
    batch, heads, query_length, head_dim = q.shape
    deterministic = torch.are_deterministic_algorithms_enabled()
    out, grad_out = padded(out, head_dim), padded(grad_out, head_dim)
    delta = row_delta(out, grad_out)
    grad_key, grad_value = torch.empty_like(k), torch.empty_like(v)
    # The second pass needs no sums; delta stands for them where the kernel takes a pointer.
    dq_sum = delta if deterministic else torch.zeros_like(q, dtype=torch.float32)
    inputs = q, k, v, grad_out, lse, delta
    dense_dk_dv(inputs, dq_sum, grad_key, grad_value, factor, is_causal, adds_dq=not deterministic)
    if deterministic:
        grad_query = torch.empty_like(q)
        tile = fitting(BACKWARD_TILES[head_dim], q.device)
        kernel(BACKWARD, tile.options, q.dtype, "backward_dq")(
            (ceil_div(query_length, tile.dq_rows), heads, batch),
            (tile.threads,),
            (*inputs, grad_query, *kernel_scalars(q, k, factor), np.int32(is_causal)),
            shared_mem=tile.dq_shared_bytes,
        )
    else:
        grad_query = rounded_dq(dq_sum, factor, q.dtype)
    return gradients(query, scale, grad_query, grad_key, grad_value)


@operator(
    "flash_attention_v2(Tensor query, Tensor key, Tensor value, bool is_causal, float scale) "
    "-> (Tensor out, Tensor lse)",
    fake=fake_attention,
    casts=dict.fromkeys(("query", "key", "value"), AUTOCAST),
    gradient=_gradient,
)
def _attention(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    q, k, v, factor = for_kernels(query, key, value, scale, HEAD_DIMS)
    out, lse = empty_outputs(q)
    dense_forward(q.shape, k.shape, q.dtype, q.device, factor, is_causal)(q, k, v, out, lse)
    return cut(out, query.shape[-1]), lse


def modules(dtype: torch.dtype, device: torch.device) -> list[RawModule]:
    """What the operator launches for tensors of this dtype and device, to be compiled ahead of time."""
    forward = [(FORWARD, fitting(tiles, device)) for tiles in FORWARD_TILES.values()]
    forward += [(FORWARD, tile) for tiles in PACKED_TILES.values() for tile in tiles]
    backward = [(BACKWARD, fitting(tiles, device)) for tiles in BACKWARD_TILES.values()]
    return [module(file, tile.options, dtype) for file, tile in forward + backward]
