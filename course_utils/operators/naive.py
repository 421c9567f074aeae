"""Attention in three kernels that keep the whole score matrix in global memory (kernels/01_attention_basics)."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from course_utils.arguments import flag
from course_utils.costs import ceil_div
from course_utils.cuda import Kernel, compiled
from course_utils.operators.library import operator
from course_utils.operators.prepare import autocast, check_call, check_inputs, dense, forward_flops, is_empty

TILE = 32  # scores.cu and output.cu: a block makes 32 × 32 elements
SOFTMAX_THREADS = 256
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def naive_attention(
    query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool = False, scale: float | None = None
) -> Tensor:
    """softmax(scale · Q Kᵀ) V by the kernels scores, softmax and output; S and P take 8·B·H·L_q·L_k bytes meanwhile.

    Args:
        query: `[B, H, L_q, d]`, float32, float16 or bfloat16, on the CPU (emulator) or a GPU;
            strided inputs are copied.
        key, value: `[B, H, L_k, d]`, dtype and device of query.
        is_causal: bottom-right aligned: query i sees key j when `j <= i + L_k - L_q`.
        scale: factor of the scores; None means `1 / sqrt(d)`.

    Returns:
        `[B, H, L_q, d]` in the dtype of query, computed in float32; zeros for a query that sees no key. To ask for its
        gradient is an error.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape, device or value; the message names it.
    """
    query, key, value = autocast(query, key, value)
    factor = check_inputs(query, key, value, scale=scale, dtypes=DTYPES)
    return _attention(query, key, value, flag("is_causal", is_causal), factor)


@operator(
    "naive_attention(Tensor query, Tensor key, Tensor value, bool is_causal, float scale) -> Tensor",
    fake=lambda query, *_: query.new_empty(query.shape),
    check=functools.partial(check_call, dtypes=DTYPES),
    flops=forward_flops,
    instead="flash_attention_minimal or flash_attention_v2",
)
def _attention(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float) -> Tensor:
    if is_empty(query):
        return query.new_empty(query.shape)
    q, k, v = (dense(tensor.float()) for tensor in (query, key, value))
    batch, heads, query_length, head_dim = q.shape
    key_length = k.shape[2]
    lengths = np.int32(query_length), np.int32(key_length), np.int32(head_dim)
    row_tiles, key_tiles, column_tiles = (ceil_div(n, TILE) for n in (query_length, key_length, head_dim))

    scores = q.new_empty(batch, heads, query_length, key_length)
    weights, out = torch.empty_like(scores), torch.empty_like(q)
    _kernel("scores")(
        (key_tiles * row_tiles, heads, batch),
        (TILE, TILE),
        (q, k, scores, *lengths, np.float32(scale), np.int32(is_causal)),
    )
    _kernel("softmax")((query_length, heads, batch), (SOFTMAX_THREADS,), (scores, weights, np.int32(key_length)))
    _kernel("output")((column_tiles * row_tiles, heads, batch), (TILE, TILE), (weights, v, out, *lengths))
    return out.to(query.dtype)


def _kernel(name: str) -> Kernel:
    return compiled(f"01_attention_basics/{name}.cu").get_function(name)
