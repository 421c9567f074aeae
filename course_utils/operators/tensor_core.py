"""What the operators on tensor cores share: dtypes, tiles, and the two ends of a backward pass.

The kernels of kernels/04_sparse_patterns have the tiles of those of kernels/03_flash_attention_v2, and their backward
passes begin and end with the same two kernels of backward.cu there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.cuda import Kernel, RawModule, compiled
from course_utils.emulator import tracing
from course_utils.operators.prepare import fitting

BF16 = {torch.float16: 0, torch.bfloat16: 1}  # the option -DBF16 of the kernels
BF16_OPTION = {dtype: f"-DBF16={bf16}" for dtype, bf16 in BF16.items()}
HEAD_DIMS = (64, 128)
BACKWARD = "03_flash_attention_v2/backward.cu"


def module(file: str, options: tuple[str, ...], dtype: torch.dtype) -> RawModule:
    """A kernel file, for `read_kernel`, with its options and that of the dtype."""
    return compiled(file, (*options, BF16_OPTION[dtype]))


def kernel(file: str, options: tuple[str, ...], dtype: torch.dtype, name: str) -> Kernel:
    """The kernel `name` of `module(file, options, dtype)`."""
    return compiled(file, (*options, BF16_OPTION[dtype])).get_function(name)


def kernel_scalars(query: Tensor, key: Tensor, scale: float) -> tuple[np.generic, ...]:
    """L_q, L_k, the query heads of a key head, and the scale, as the tensor-core kernels and csr_gather take them."""
    group = query.shape[1] // key.shape[1]
    return np.int32(query.shape[2]), np.int32(key.shape[2]), np.int32(group), np.float32(scale)


def takes_wgmma(device: torch.device) -> bool:
    """Whether a launch with tensors of this device reaches a Hopper GPU; what is watched runs on the emulator."""
    on_hopper = device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)
    return on_hopper and not tracing.active()


class ForwardTile(NamedTuple):
    """Options of 03_flash_attention_v2/forward.cu: B_r queries, split among the warps, by B_c keys."""

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
    """Options of 03_flash_attention_v2/backward.cu: each of the warps has `keys` keys, and meets `block_rows` queries
    at a time."""

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
BACKWARD_TILES = {
    64: (BackwardTile(64, 4, 32, 64),),
    128: (BackwardTile(128, 8, 16, 64), BackwardTile(128, 4, 16, 32)),
}


def row_delta(out: Tensor, grad_out: Tensor) -> Tensor:
    """Δ = rowsum(dO ∘ O), float32 `[B, H, L_q]`, with which every backward pass begins; both tensors dense."""
    batch, heads, query_length, head_dim = out.shape
    delta = out.new_empty(batch, heads, query_length, dtype=torch.float32)
    tile = fitting(BACKWARD_TILES[head_dim], out.device)
    rows = tile.threads * 8 // head_dim
    kernel(BACKWARD, tile.options, out.dtype, "backward_delta")(
        (ceil_div(query_length, rows), heads, batch), (tile.threads,), (out, grad_out, delta, np.int32(query_length))
    )
    return delta


def rounded_dq(dq_sum: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """scale · dq_sum in 16 bits, with which a backward pass that adds up dQ by atomics ends."""
    grad_query = torch.empty_like(dq_sum, dtype=dtype)
    tile = fitting(BACKWARD_TILES[dq_sum.shape[-1]], dq_sum.device)
    size = dq_sum.numel()
    kernel(BACKWARD, tile.options, dtype, "backward_round_dq")(
        (ceil_div(size, 4 * tile.threads),), (tile.threads,), (dq_sum, grad_query, np.float32(scale), np.int64(size))
    )
    return grad_query
