"""FlashAttention-2 on tensor cores, in fp16 and bf16, forward and backward (kernels/03_flash_attention_v2)."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.cuda import Kernel, RawModule, read_kernel
from course_utils.operators.inputs import (
    check_inputs,
    cut,
    dense,
    differentiable_once,
    fitting,
    for_kernels,
    kernel_scalars,
)

FOLDER = "03_flash_attention_v2"
BF16 = {torch.float16: 0, torch.bfloat16: 1}  # the option -DBF16 of the kernels


class ForwardTile(NamedTuple):
    """Options of forward.cu: B_r queries, split among the warps, by B_c keys."""

    head_dim: int
    block_rows: int
    block_cols: int
    warps: int

    @property
    def options(self) -> tuple[str, ...]:
        return f"-DD={self.head_dim}", f"-DB_R={self.block_rows}", f"-DB_C={self.block_cols}", f"-DWARPS={self.warps}"

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def shared_bytes(self) -> int:
        """Q, and two tiles each of K and V: one in use, the next on its way."""
        return 2 * self.head_dim * (self.block_rows + 4 * self.block_cols)


class BackwardTile(NamedTuple):
    """Options of backward.cu: each of the warps has `keys` keys, and meets `block_rows` queries at a time."""

    head_dim: int
    warps: int
    keys: int
    block_rows: int

    @property
    def options(self) -> tuple[str, ...]:
        return f"-DD={self.head_dim}", f"-DWARPS={self.warps}", f"-DKEYS={self.keys}", f"-DB_R={self.block_rows}"

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def block_cols(self) -> int:
        """Keys per block of backward_dk_dv."""
        return self.warps * self.keys

    @property
    def dq_rows(self) -> int:
        """Queries per block of backward_dq."""
        return 16 * self.warps

    @property
    def shared_bytes(self) -> int:
        """Of backward_dk_dv: K and V; Q, dO, dS, LSE and delta twice, of this tile and the next or the last."""
        scores = self.block_cols * self.block_rows
        return 4 * self.head_dim * (self.block_cols + 2 * self.block_rows) + 4 * scores + 16 * self.block_rows

    @property
    def dq_shared_bytes(self) -> int:
        """Of backward_dq: Q and dO, and two tiles each of 64 rows of K and V."""
        return 4 * self.head_dim * (self.dq_rows + 128)


# For each head dimension, the fastest tiles on an H200 first, then smaller ones for GPUs with less shared memory.
FORWARD_TILES = {64: (ForwardTile(64, 128, 128, 4),), 128: (ForwardTile(128, 128, 64, 4),)}
BACKWARD_TILES = {
    64: (BackwardTile(64, 4, 32, 64),),
    128: (BackwardTile(128, 8, 16, 64), BackwardTile(128, 4, 16, 32)),
}
HEAD_DIMS = tuple(FORWARD_TILES)


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
        enable_gqa: grouped-query attention: query head h reads key head `h // (H / H_k)`.
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
    *inputs, factor = for_kernels(query, key, value, factor, HEAD_DIMS)
    out, lse = _FlashAttention.apply(*inputs, bool(is_causal), factor)
    out = cut(out, query.shape[-1])
    return (out, lse) if return_lse else out


class _FlashAttention(torch.autograd.Function):
    """The kernels as a differentiable function of dense tensors whose head dimension has a kernel."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float
    ) -> tuple[Tensor, Tensor]:
        batch, heads, query_length, head_dim = query.shape
        out = torch.empty_like(query)
        lse = query.new_empty(batch, heads, query_length, dtype=torch.float32)
        tile = fitting(FORWARD_TILES[head_dim], query.device)
        _kernel("forward", tile.options, query.dtype)(
            (ceil_div(query_length, tile.block_rows), heads, batch),
            (tile.threads,),
            (query, key, value, out, lse, *kernel_scalars(query, key, scale), np.int32(is_causal)),
            shared_mem=tile.shared_bytes,
        )
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.is_causal, ctx.scale = is_causal, scale
        ctx.mark_non_differentiable(lse)
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
        tile = fitting(BACKWARD_TILES[head_dim], query.device)
        kernel = functools.partial(_kernel, "backward", tile.options, query.dtype)
        block, inputs = (tile.threads,), (query, key, value, grad_out, lse, delta)
        numbers = *kernel_scalars(query, key, ctx.scale), np.int32(ctx.is_causal)

        kernel("backward_dk_dv")(
            (ceil_div(key.shape[2], tile.block_cols), key.shape[1], batch),
            block,
            (*inputs, dq_sum, grad_key, grad_value, *numbers, np.int32(not deterministic)),
            shared_mem=tile.shared_bytes,
        )
        if deterministic:
            grad_query = torch.empty_like(query)
            kernel("backward_dq")(
                (ceil_div(query_length, tile.dq_rows), heads, batch),
                block,
                (*inputs, grad_query, *numbers),
                shared_mem=tile.dq_shared_bytes,
            )
        else:
            grad_query = rounded_dq(dq_sum, ctx.scale, query.dtype)
        return grad_query, grad_key, grad_value, None, None


def row_delta(out: Tensor, grad_out: Tensor) -> Tensor:
    """Δ = rowsum(dO ∘ O), float32 `[B, H, L_q]`, with which every backward pass begins; both tensors dense."""
    batch, heads, query_length, head_dim = out.shape
    delta = out.new_empty(batch, heads, query_length, dtype=torch.float32)
    tile = fitting(BACKWARD_TILES[head_dim], out.device)
    rows = tile.threads * 8 // head_dim
    _kernel("backward", tile.options, out.dtype, "backward_delta")(
        (ceil_div(query_length, rows), heads, batch), (tile.threads,), (out, grad_out, delta, np.int32(query_length))
    )
    return delta


def rounded_dq(dq_sum: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """scale · dq_sum in 16 bits, with which a backward pass that adds up dQ by atomics ends."""
    grad_query = torch.empty_like(dq_sum, dtype=dtype)
    tile = fitting(BACKWARD_TILES[dq_sum.shape[-1]], dq_sum.device)
    size = dq_sum.numel()
    _kernel("backward", tile.options, dtype, "backward_round_dq")(
        (ceil_div(size, 4 * tile.threads),), (tile.threads,), (dq_sum, grad_query, np.float32(scale), np.int64(size))
    )
    return grad_query


def modules(dtype: torch.dtype, device: torch.device) -> list[RawModule]:
    """What the operator launches for tensors of this dtype and device, to be compiled ahead of time."""
    return [
        _module(file, (*fitting(tiles, device).options, f"-DBF16={BF16[dtype]}"))
        for file, of_file in (("forward", FORWARD_TILES), ("backward", BACKWARD_TILES))
        for tiles in of_file.values()
    ]


@functools.cache
def _kernel(file: str, options: tuple[str, ...], dtype: torch.dtype, name: str | None = None) -> Kernel:
    return _module(file, (*options, f"-DBF16={BF16[dtype]}")).get_function(name or file)


@functools.cache
def _module(file: str, options: tuple[str, ...]) -> RawModule:
    return RawModule(code=read_kernel(f"{FOLDER}/{file}.cu"), options=options)
