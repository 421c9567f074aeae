"""What the operators on tensor cores share: dtypes, tiles, the dense kernels, and the two ends of a backward pass.

The kernels of kernels/04_sparse_patterns have the tiles of kernels/03_flash_attention_v2, and their backward
passes begin and end with the same two kernels of backward.cu there. Blocks on the diagonal are dense attention of many
short sequences, by these kernels themselves.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.cuda import LAID_OUT, Kernel, RawModule, ReadyLaunch, architecture, compiled
from course_utils.emulator import watching
from course_utils.operators.attention import Call
from course_utils.operators.prepare import fitting

BF16 = {torch.float16: 0, torch.bfloat16: 1}  # the option -DBF16 of the kernels
DTYPES = tuple(BF16)
BF16_OPTION = {dtype: f"-DBF16={bf16}" for dtype, bf16 in BF16.items()}
HEAD_DIMS = (64, 128)
WIDE = 256  # the head dimension that table_forward of range.cu has besides
FORWARD, BACKWARD = "03_flash_attention_v2/forward.cu", "03_flash_attention_v2/backward.cu"


def module(file: str, options: tuple[str, ...], dtype: torch.dtype) -> RawModule:
    """The module of a kernel file, for `read_kernel`, with these options and the dtype's."""
    return compiled(file, (*options, BF16_OPTION[dtype]))


def kernel(file: str, options: tuple[str, ...], dtype: torch.dtype, name: str) -> Kernel:
    """The kernel `name` of `module(file, options, dtype)`."""
    return compiled(file, (*options, BF16_OPTION[dtype])).get_function(name)


@functools.cache  # asked at every call, of a few tiles
def defines(**sizes: int) -> tuple[str, ...]:
    """The compiler's options that define these."""
    return tuple(f"-D{name}={size}" for name, size in sizes.items())


def takes_wgmma(device: torch.device) -> bool:
    """Whether a launch with tensors of this device reaches a Hopper GPU; inside sanitize() or profile() it does not."""
    on_hopper = device.type == "cuda" and architecture(device.index or 0) == 90
    return on_hopper and not watching.active()


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
        """Queries per block of a kernel of query_gradient_tile.cuh, such as backward_dq."""
        return 16 * self.warps

    @property
    def shared_bytes(self) -> int:
        """Shared memory of backward_dk_dv: K and V; Q, dO, dS, LSE and delta twice, for this tile and the next or
        last."""
        scores = self.block_cols * self.block_rows
        return 4 * self.head_dim * (self.block_cols + 2 * self.block_rows) + 4 * scores + 16 * self.block_rows

    @property
    def dq_shared_bytes(self) -> int:
        """Shared memory of a kernel of query_gradient_tile.cuh: Q and dO, and two tiles each of 64 rows of K and V, or
        32 if these are wide."""
        return 4 * self.head_dim * (self.dq_rows + 2 * (32 if self.head_dim > HEAD_DIMS[-1] else 64))


# For each head dimension, the fastest tiles on an H200 first, then smaller ones for GPUs with less shared memory.
BACKWARD_TILES = {
    64: (BackwardTile(64, 4, 32, 64),),
    128: (BackwardTile(128, 8, 16, 64), BackwardTile(128, 4, 16, 32)),
    WIDE: (BackwardTile(WIDE, 4, 16, 32),),  # a warp's sums of dK and dV take more registers than there are
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


# query, key, value, out `[B, H, L_q, d]` and lse `[B, H, L_q]`, all dense; the call has made the last two
FORWARD_TENSORS = LAID_OUT, LAID_OUT, LAID_OUT, LAID_OUT, LAID_OUT


@functools.lru_cache(maxsize=1024)
def dense_forward(call: Call, is_causal: bool) -> ReadyLaunch:
    """The launch of forward.cu with `FORWARD_TENSORS`; it writes the last two."""
    batch, heads, rows, head_dim = call.query_shape
    group = heads // call.key_shape[1]
    tile = forward_tile(rows, group, head_dim, call.device)
    if tile.packed:  # the matrices [L_q, d] of a group's heads lie behind one another: they are one
        heads, rows = heads // group, group * rows
    return ReadyLaunch(
        kernel(FORWARD, tile.options, call.dtype, "forward"),
        (ceil_div(rows, tile.block_rows), heads, batch),
        (tile.threads,),
        (*FORWARD_TENSORS, *call.scalars, np.int32(is_causal)),
        tile.shared_bytes,
    )


# ---------------------------------------------------------------------------------------------- backward passes

# query, key, value, the gradient of out, lse, delta; dq_sum, float32 like query; grad_key and grad_value: all dense
BACKWARD_TENSORS = 9 * (LAID_OUT,)

DkDv = Callable[..., None]  # of BACKWARD_TENSORS; writes the last two, and adds to dq_sum


class ReadyBackward(NamedTuple):
    """The launches of a backward pass that adds up dQ by atomics."""

    delta: ReadyLaunch
    dk_dv: DkDv
    round_dq: ReadyLaunch

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, grad_out: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of query, key and value. All tensors are dense; out `[B, H, L_q, d]`, lse `[B, H, L_q]`."""
        delta, grad_key, grad_value = torch.empty_like(lse), torch.empty_like(key), torch.empty_like(value)
        self.delta(out, grad_out, delta)
        dq_sum = torch.zeros_like(query, dtype=torch.float32)
        self.dk_dv(query, key, value, grad_out, lse, delta, dq_sum, grad_key, grad_value)
        grad_query = torch.empty_like(query)
        self.round_dq(dq_sum, grad_query)
        return grad_query, grad_key, grad_value


def ready_backward(call: Call, dk_dv: DkDv) -> ReadyBackward:
    """The backward pass with this middle part."""
    return ReadyBackward(row_delta(call), dk_dv, rounded_dq(call))


# query, key, value, the gradient of out, lse, delta; grad_query, which it writes: all dense
DQ_TENSORS = 7 * (LAID_OUT,)


class TwoPasses(NamedTuple):
    """The launches of a backward pass without atomics, which gives the same bits in every run: dQ has a pass of its
    own. Called as a `ReadyBackward`."""

    delta: ReadyLaunch
    dk_dv: DkDv
    dq: Callable[..., None]  # of DQ_TENSORS

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, grad_out: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        delta, grad_query, grad_key, grad_value = map(torch.empty_like, (lse, query, key, value))
        self.delta(out, grad_out, delta)
        inputs = query, key, value, grad_out, lse, delta
        # It needs no sums of dQ; delta stands for them where the kernel takes a pointer.
        self.dk_dv(*inputs, delta, grad_key, grad_value)
        self.dq(*inputs, grad_query)
        return grad_query, grad_key, grad_value


def row_delta(call: Call) -> ReadyLaunch:
    """The launch for Δ = rowsum(dO ∘ O), with which every backward pass begins: of out and its gradient, both dense, to
    delta, float32 `[B, H, L_q]`.

    Sums are in fp32, but of the 16 bits of O. So Δ of a row is off by at most u · Σ |dO ∘ O|, with u = 2⁻¹¹ for fp16
    and 2⁻⁸ for bf16, and its row of dQ by scale · |Σ_j P_ij K_j| times that. Plain torch in 16 bits rounds dP of each
    pair, which costs more: common parts of dO, K and V break no gradient (tests/operators/test_row_delta.py).
    """
    batch, heads, query_length, head_dim = call.query_shape
    tile = fitting(BACKWARD_TILES[head_dim], call.device)
    rows = tile.threads * 8 // head_dim
    return ReadyLaunch(
        kernel(BACKWARD, tile.options, call.dtype, "backward_delta"),
        (ceil_div(query_length, rows), heads, batch),
        (tile.threads,),
        (LAID_OUT, LAID_OUT, LAID_OUT, np.int32(query_length)),
    )


def dense_dk_dv(call: Call, is_causal: bool, *, adds_dq: bool = True) -> ReadyLaunch:
    """The launch of backward_dk_dv of backward.cu with `BACKWARD_TENSORS`. It adds to dq_sum with adds_dq only."""
    batch, kv_heads, key_length, head_dim = call.key_shape
    tile = fitting(BACKWARD_TILES[head_dim], call.device)
    return ReadyLaunch(
        kernel(BACKWARD, tile.options, call.dtype, "backward_dk_dv"),
        (ceil_div(key_length, tile.block_cols), kv_heads, batch),
        (tile.threads,),
        (*BACKWARD_TENSORS, *call.scalars, np.int32(is_causal), np.int32(adds_dq)),
        tile.shared_bytes,
    )


def dense_dq(call: Call, is_causal: bool) -> ReadyLaunch:
    """The launch of backward_dq of backward.cu with `DQ_TENSORS`."""
    tile = fitting(BACKWARD_TILES[call.query_shape[-1]], call.device)
    kernels = module(BACKWARD, tile.options, call.dtype)
    tiles = ceil_div(call.query_shape[2], tile.dq_rows)
    return by_queries(kernels, "backward_dq", tile, tiles, call, (np.int32(is_causal),))


def by_queries(
    kernels: RawModule, name: str, tile: BackwardTile, tiles: int, call: Call, more: tuple[object, ...]
) -> ReadyLaunch:
    """The launch of a kernel of query_gradient_tile.cuh with `DQ_TENSORS`, for `tiles` tiles of queries of each head.
    more: what the kernel takes behind the scalars."""
    batch, heads, *_ = call.query_shape
    args = *DQ_TENSORS, *call.scalars, *more
    return ReadyLaunch(kernels.get_function(name), (tiles, heads, batch), (tile.threads,), args, tile.dq_shared_bytes)


def rounded_dq(call: Call) -> ReadyLaunch:
    """The launch for dQ = factor · dq_sum in 16 bits, with which a backward pass that adds up dQ by atomics ends."""
    size = math.prod(call.query_shape)
    tile = fitting(BACKWARD_TILES[call.query_shape[-1]], call.device)
    return ReadyLaunch(
        kernel(BACKWARD, tile.options, call.dtype, "backward_round_dq"),
        (ceil_div(size, 4 * tile.threads),),
        (tile.threads,),
        (LAID_OUT, LAID_OUT, np.float32(call.factor), np.int64(size)),
    )
