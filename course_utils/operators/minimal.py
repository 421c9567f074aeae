"""FlashAttention in fp32 on ordinary cores, forward and backward (kernels/02_flash_attention_minimal)."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.cuda import compiled
from course_utils.operators.library import operator
from course_utils.operators.prepare import (
    check_call,
    check_gradient_call,
    check_inputs,
    cut,
    dense,
    empty_outputs,
    fake_attention,
    fake_gradients,
    fitting,
    for_kernels,
    forward_flops,
    gradient_flops,
    gradients,
    padded,
)

FORWARD, BACKWARD = (f"02_flash_attention_minimal/{file}.cu" for file in ("forward", "backward"))
ROWS = 8  # forward.cu: rows of a tile that one thread works on


class ForwardTile(NamedTuple):
    """Options of forward.cu: B_r queries by B_c keys, a row of the tile shared by `tx` threads."""

    head_dim: int
    block_rows: int
    block_cols: int
    tx: int

    @property
    def options(self) -> tuple[str, ...]:
        return f"-DD={self.head_dim}", f"-DB_R={self.block_rows}", f"-DB_C={self.block_cols}", f"-DTX={self.tx}"

    @property
    def threads(self) -> int:
        return self.block_rows // ROWS * self.tx

    @property
    def shared_bytes(self) -> int:
        """Q, K, V and P of one tile, each with its padding."""
        padded, columns = self.head_dim + 4, self.block_cols + self.tx
        return 4 * (self.block_rows * (padded + columns) + self.block_cols * (padded + self.head_dim))


class BackwardTile(NamedTuple):
    """Options of backward.cu: `tile` queries by `tile` keys; a thread has `rows` rows, shared by `tx` threads."""

    head_dim: int
    tile: int
    tx: int
    rows: int

    @property
    def options(self) -> tuple[str, ...]:
        return f"-DD={self.head_dim}", f"-DTILE={self.tile}", f"-DTX={self.tx}", f"-DROWS={self.rows}"

    @property
    def threads(self) -> int:
        return self.tile // self.rows * self.tx

    @property
    def shared_bytes(self) -> int:
        """Q, K, V, dO and one tile of scores, each with its padding, and two numbers per row."""
        return 4 * self.tile * (4 * (self.head_dim + 4) + self.tile + self.tx + 2)


# For each head dimension, the fastest tiles on an H200 first, then smaller ones for GPUs with less shared memory.
FORWARD_TILES = {
    32: (ForwardTile(32, 64, 32, 4),),
    64: (ForwardTile(64, 128, 64, 8), ForwardTile(64, 64, 32, 8)),
    128: (ForwardTile(128, 128, 64, 16), ForwardTile(128, 32, 32, 16)),
}
BACKWARD_TILES = {
    32: (BackwardTile(32, 64, 8, 4),),
    64: (BackwardTile(64, 64, 16, 8), BackwardTile(64, 32, 16, 4)),
    128: (BackwardTile(128, 32, 16, 4), BackwardTile(128, 16, 16, 2)),
}
HEAD_DIMS = tuple(FORWARD_TILES)
DTYPES = (torch.float32,)
# Of the operator and of its gradient, called by their names.
check_forward = functools.partial(check_call, dtypes=DTYPES, head_dim=HEAD_DIMS[-1])
check_gradients = functools.partial(check_gradient_call, **check_forward.keywords)


def flash_attention_minimal(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale · Q Kᵀ) V tile by tile: nothing of size L² is stored, nor for the gradients. Loops as in
    FlashAttention-2 (arXiv 2307.08691).

    Args:
        query: `[B, H, L_q, d]`, float32, d up to 128, on the CPU (emulator) or a GPU; strided inputs are copied, and d
            is filled up with zeros to 32, 64 or 128.
        key, value: `[B, H, L_k, d]`, float32, on the device of query.
        is_causal: bottom-right aligned: query i sees key j when `j <= i + L_k - L_q`.
        scale: factor of the scores; None means `1 / sqrt(d)`.
        return_lse: also return the log-sum-exp of each row of scores.

    Returns:
        out `[B, H, L_q, d]`, float32, differentiable once by autograd; zeros for a query that sees no key. With
        return_lse `(out, lse)`: lse `[B, H, L_q]`, float32, natural logarithm, not differentiable; minus infinity for a
        query that sees no key.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape, device or value; the message names it.
    """
    query, key, value = _attention.autocast(query, key, value)
    factor = check_inputs(query, key, value, is_causal=is_causal, scale=scale, dtypes=DTYPES, head_dim=HEAD_DIMS[-1])
    out, lse = _attention(query, key, value, bool(is_causal), factor)
    return (out, lse) if return_lse else out


@operator(
    "flash_attention_minimal_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, "
    "bool is_causal, float scale) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)",
    fake=fake_gradients,
    check=check_gradients,
    flops=gradient_flops,
    is_gradient=True,
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
    out, grad_out = padded(out, head_dim), padded(grad_out, head_dim)
    lse = dense(lse)
    delta = torch.empty_like(lse)
    grad_query, grad_key, grad_value = (torch.empty_like(tensor) for tensor in (q, k, v))
    tile = fitting(BACKWARD_TILES[head_dim], q.device)
    query_tiles = ceil_div(query_length, tile.tile), heads, batch
    key_tiles = ceil_div(k.shape[2], tile.tile), heads, batch
    block, shared = (tile.threads,), tile.shared_bytes
    inputs = q, k, v, grad_out, lse, delta
    scalars = _scalars(q, k, factor, is_causal)
    kernel = compiled(BACKWARD, tile.options).get_function

    kernel("backward_delta")(query_tiles, block, (out, grad_out, delta, scalars[0]))
    kernel("backward_dk_dv")(key_tiles, block, (*inputs, grad_key, grad_value, *scalars), shared_mem=shared)
    kernel("backward_dq")(query_tiles, block, (*inputs, grad_query, *scalars), shared_mem=shared)
    return gradients(query, scale, grad_query, grad_key, grad_value)


@operator(
    "flash_attention_minimal(Tensor query, Tensor key, Tensor value, bool is_causal, float scale) "
    "-> (Tensor out, Tensor lse)",
    fake=fake_attention,
    check=check_forward,
    flops=forward_flops,
    casts=dict.fromkeys(("query", "key", "value"), torch.float32),
    gradient=_gradient,
)
def _attention(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    q, k, v, factor = for_kernels(query, key, value, scale, HEAD_DIMS)
    batch, heads, query_length, head_dim = q.shape
    out, lse = empty_outputs(q)
    tile = fitting(FORWARD_TILES[head_dim], q.device)
    compiled(FORWARD, tile.options).get_function("forward")(
        (ceil_div(query_length, tile.block_rows), heads, batch),
        (tile.threads,),
        (q, k, v, out, lse, *_scalars(q, k, factor, is_causal)),
        shared_mem=tile.shared_bytes,
    )
    return cut(out, query.shape[-1]), lse


def _scalars(query: Tensor, key: Tensor, scale: float, is_causal: bool) -> tuple[np.generic, ...]:
    return np.int32(query.shape[2]), np.int32(key.shape[2]), np.float32(scale), np.int32(is_causal)
