"""FlashAttention in fp32 on ordinary cores, forward and backward (kernels/02_flash_attention_minimal)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from course_utils.arguments import flag
from course_utils.costs import ceil_div
from course_utils.cuda import compiled
from course_utils.operators.attention import Attention, Backward, Call, Forward, int_scalars
from course_utils.operators.prepare import fitting

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
    is_causal = flag("is_causal", is_causal)
    return _attention(query, key, value, is_causal, scale=scale, return_lse=return_lse, casts_to=torch.float32)


def _forward(call: Call, is_causal: bool) -> Forward:
    (batch, heads, query_length, head_dim), key_length = call.query_shape, call.key_shape[2]
    tile = fitting(FORWARD_TILES[head_dim], call.device)
    launch = compiled(FORWARD, tile.options).get_function("forward")
    grid = ceil_div(query_length, tile.block_rows), heads, batch
    scalars = *int_scalars(query_length, key_length), np.float32(call.factor), np.int32(is_causal)

    def forward(*tensors: Tensor) -> None:
        launch(grid, (tile.threads,), (*tensors, *scalars), shared_mem=tile.shared_bytes)

    return forward


def _backward(call: Call, is_causal: bool) -> Backward:
    (batch, heads, query_length, head_dim), key_length = call.query_shape, call.key_shape[2]
    tile = fitting(BACKWARD_TILES[head_dim], call.device)
    query_tiles, key_tiles = ((ceil_div(length, tile.tile), heads, batch) for length in (query_length, key_length))
    block, shared = (tile.threads,), tile.shared_bytes
    scalars = *int_scalars(query_length, key_length), np.float32(call.factor), np.int32(is_causal)
    kernel = compiled(BACKWARD, tile.options).get_function

    def backward(
        query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, grad_out: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        delta, *grads = map(torch.empty_like, (lse, query, key, value))
        inputs = query, key, value, grad_out, lse, delta
        kernel("backward_delta")(query_tiles, block, (out, grad_out, delta, scalars[0]))
        kernel("backward_dk_dv")(key_tiles, block, (*inputs, *grads[1:], *scalars), shared_mem=shared)
        kernel("backward_dq")(query_tiles, block, (*inputs, grads[0], *scalars), shared_mem=shared)
        return grads[0], grads[1], grads[2]

    return backward


_attention = Attention(
    "flash_attention_minimal",
    "bool is_causal",
    _forward,
    _backward,
    dtypes=(torch.float32,),
    head_dims=HEAD_DIMS,
    grouped=False,
)
