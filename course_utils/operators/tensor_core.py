"""What the operators on tensor cores share: dtypes, tiles, the dense kernels, and the two ends of a backward pass.

The kernels of kernels/04_sparse_patterns have the tiles of those of kernels/03_flash_attention_v2, and their backward
passes begin and end with the same two kernels of backward.cu there. Blocks on the diagonal are dense attention of many
short sequences, by these kernels themselves.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.cuda import Kernel, RawModule, compiled
from course_utils.emulator import tracing
from course_utils.operators.prepare import fitting

BF16 = {torch.float16: 0, torch.bfloat16: 1}  # the option -DBF16 of the kernels
DTYPES = tuple(BF16)
BF16_OPTION = {dtype: f"-DBF16={bf16}" for dtype, bf16 in BF16.items()}
HEAD_DIMS = (64, 128)
FORWARD, BACKWARD = "03_flash_attention_v2/forward.cu", "03_flash_attention_v2/backward.cu"


def module(file: str, options: tuple[str, ...], dtype: torch.dtype) -> RawModule:
    """A kernel file, for `read_kernel`, with its options and that of the dtype."""
    return compiled(file, (*options, BF16_OPTION[dtype]))


def kernel(file: str, options: tuple[str, ...], dtype: torch.dtype, name: str) -> Kernel:
    """The kernel `name` of `module(file, options, dtype)`."""
    return compiled(file, (*options, BF16_OPTION[dtype])).get_function(name)


class ReadyLaunch(NamedTuple):
    """A launch that only lacks the tensors of a call: `launch(query, key, value, ...)`."""

    kernel: Kernel
    grid: tuple[int, int, int]
    threads: int
    more: tuple[Any, ...]  # what the kernel takes behind these tensors
    shared_bytes: int = 0

    def __call__(self, *tensors: Tensor) -> None:
        self.kernel(self.grid, (self.threads,), tensors + self.more, shared_mem=self.shared_bytes)


def kernel_scalars(query: Tensor, key: Tensor, scale: float) -> tuple[np.generic, ...]:
    """L_q, L_k, the query heads of a key head, and the scale, as the tensor-core kernels and csr_gather take them."""
    return scalars_of(query.shape, key.shape, scale)


def scalars_of(query_shape: torch.Size, key_shape: torch.Size, scale: float) -> tuple[np.generic, ...]:
    """`kernel_scalars` of tensors of these shapes."""
    (_, heads, query_length, _), (_, kv_heads, key_length, _) = query_shape, key_shape
    return _scalars(query_length, key_length, heads // kv_heads, scale)


@functools.lru_cache(maxsize=1024)  # to make NumPy's scalars takes longer than to find them
def _scalars(query_length: int, key_length: int, group: int, scale: float) -> tuple[np.generic, ...]:
    return np.int32(query_length), np.int32(key_length), np.int32(group), np.float32(scale)


@functools.lru_cache(maxsize=1024)  # as for `_scalars`
def int_scalars(*numbers: int) -> tuple[np.int32, ...]:
    """The numbers as kernels take them."""
    return tuple(map(np.int32, numbers))


@functools.cache  # asked at every call, of a few tiles
def defines(**sizes: int) -> tuple[str, ...]:
    """The compiler's options that define these."""
    return tuple(f"-D{name}={size}" for name, size in sizes.items())


def takes_wgmma(device: torch.device) -> bool:
    """Whether a launch with tensors of this device reaches a Hopper GPU; what is watched runs on the emulator."""
    on_hopper = device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)
    return on_hopper and not tracing.active()


class ForwardTile(NamedTuple):
    """Options of 03_flash_attention_v2/forward.cu: B_r queries, split among the warps, by B_c keys. packed: the queries
    are those of all heads that share a key head."""

    head_dim: int
    block_rows: int
    block_cols: int
    warps: int
    packed: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        sizes = defines(D=self.head_dim, B_R=self.block_rows, B_C=self.block_cols, WARPS=self.warps)
        return (*sizes, "-DPACKED=1") if self.packed else sizes

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
        return defines(D=self.head_dim, WARPS=self.warps, KEYS=self.keys, B_R=self.block_rows)

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
FORWARD_TILES = {64: (ForwardTile(64, 128, 128, 4),), 128: (ForwardTile(128, 128, 64, 4),)}
# For few queries: one tile that just holds them, if it does, so that every warp has some; else the large one.
PACKED_TILES = {
    64: (ForwardTile(64, 64, 128, 4, packed=True), ForwardTile(64, 128, 128, 4, packed=True)),
    128: (ForwardTile(128, 64, 64, 4, packed=True), ForwardTile(128, 128, 64, 4, packed=True)),
}


def forward_tile(query_length: int, group: int, head_dim: int, device: torch.device) -> ForwardTile:
    """The tile for queries of which `group` heads share a key head. The heads of a group share tiles, too (PackGQA in
    the code of FlashAttention-3), where that makes fewer tiles than the group has heads.

    Each head has one tile then, which visits all keys, as the shared ones do: a tile less is that much work less. Heads
    of several tiles keep their own, since causal ones end early, and a tile of several heads would not.
    """
    tile, rows = fitting(FORWARD_TILES[head_dim], device), group * query_length
    if ceil_div(rows, tile.block_rows) >= group:
        return tile
    small, large = PACKED_TILES[head_dim]
    return small if rows <= small.block_rows else large


@functools.lru_cache(maxsize=1024)
def dense_forward(
    query_shape: torch.Size,
    key_shape: torch.Size,
    dtype: torch.dtype,
    device: torch.device,
    scale: float,
    is_causal: bool,
) -> ReadyLaunch:
    """The launch of forward.cu with query, key, value, out `[B, H, L_q, d]` and lse `[B, H, L_q]`, all dense, of which
    it writes the last two."""
    batch, heads, rows, head_dim = query_shape
    group = heads // key_shape[1]
    tile = forward_tile(rows, group, head_dim, device)
    if tile.packed:  # the matrices [L_q, d] of a group's heads lie behind one another: they are one
        heads, rows = heads // group, group * rows
    return ReadyLaunch(
        kernel(FORWARD, tile.options, dtype, "forward"),
        (ceil_div(rows, tile.block_rows), heads, batch),
        tile.threads,
        (*scalars_of(query_shape, key_shape, scale), np.int32(is_causal)),
        tile.shared_bytes,
    )


def dense_dk_dv(
    inputs: tuple[Tensor, ...],
    dq_sum: Tensor,
    grad_key: Tensor,
    grad_value: Tensor,
    scale: float,
    is_causal: bool,
    *,
    adds_dq: bool = True,
) -> None:
    """Launches backward_dk_dv of backward.cu, which writes grad_key and grad_value `[B, H_k, L_k, d]` and, with
    adds_dq, adds to dq_sum, float32 `[B, H, L_q, d]`. inputs: query, key, value, the gradient of out, lse and delta."""
    query, key, *_ = inputs
    batch, kv_heads, key_length, head_dim = key.shape
    tile = fitting(BACKWARD_TILES[head_dim], key.device)
    numbers = *kernel_scalars(query, key, scale), np.int32(is_causal), np.int32(adds_dq)
    kernel(BACKWARD, tile.options, key.dtype, "backward_dk_dv")(
        (ceil_div(key_length, tile.block_cols), kv_heads, batch),
        (tile.threads,),
        (*inputs, dq_sum, grad_key, grad_value, *numbers),
        shared_mem=tile.shared_bytes,
    )


def row_delta(out: Tensor, grad_out: Tensor) -> Tensor:
    """Δ = rowsum(dO ∘ O), float32 `[B, H, L_q]`, with which every backward pass begins; both tensors dense.

    Sums are in fp32, but of the 16 bits of O. So Δ of a row is off by at most u · Σ |dO ∘ O|, with u = 2⁻¹¹ for fp16
    and 2⁻⁸ for bf16, and its row of dQ by scale · |Σ_j P_ij K_j| times that. Plain torch in 16 bits rounds dP of each
    pair, which costs more: common parts of dO, K and V break no gradient (tests/operators/test_row_delta.py).
    """
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
