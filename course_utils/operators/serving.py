"""One new token, or a few, against a long cache (kernels/06_serving), in fp16 and bf16, the cache also in E4M3.

The keys are cut into pieces, so that there is work for the whole GPU; a block attends one, and merge.cu adds up what
the blocks have found. The grid follows from the capacity of the cache, the pieces from the lengths on the device:
nothing waits for the GPU, and a captured graph can be replayed with other lengths and tables in the same tensors.
`decode_step` is the same for many layers in one launch, with what their new tokens bring to the cache.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from course_utils.arguments import check_tensor, integer, once
from course_utils.costs import ceil_div, splits_by_waves
from course_utils.cuda import MADE, OPEN, RawModule, ReadyLaunch, compiled, shared_memory_limit
from course_utils.operators.attention import int_scalars
from course_utils.operators.library import operator
from course_utils.operators.prepare import (
    ALIGNMENT,
    MAX_GRID,
    autocast,
    check_scale,
    checked_scale,
    cut,
    dense,
    empty_outputs,
    fake_attention,
    fitting,
    padded,
    positive_factor,
)
from course_utils.operators.tensor_core import BF16, FORWARD_TENSORS, HEAD_DIMS, defines, module

FOLDER = "06_serving"
E4M3 = torch.float8_e4m3fn
MAX_QUERIES, MAX_PAGE_SIZE = 16, 256
MAX_KEYS = 2**30  # of a sequence: its keys and those of a piece together are an int of the kernels
SHORTEST_PIECE = 128  # keys: below, to merge costs more than a shorter piece saves
SHORTEST_IN_PAIRS = 1024  # where blocks share a multiprocessor: one without a neighbour is faster, so less is lost
MERGE_BLOCK = (32, 4)
APPEND_THREADS = 256
RESERVED_SHARED = 1024  # bytes that the driver adds to those of a block, from sm_80 on
INSTEAD = "flash_attention_v2, which is for training"  # where a gradient is asked for
EMULATED_MULTIPROCESSORS = 132  # those of an H100


class DecodeTile(NamedTuple):
    """Options of the kernels: B_r rows, that is queries of a group of heads, which all warps of a block share; each
    warp has tiles of B_c keys, `stages` of them on their way. key_bytes: of a number of the cache."""

    head_dim: int
    block_rows: int
    block_cols: int
    warps: int
    stages: int
    key_bytes: int = 2

    @property
    def options(self) -> tuple[str, ...]:
        sizes = {"D": self.head_dim, "B_R": self.block_rows, "B_C": self.block_cols}
        return defines(**sizes, WARPS=self.warps, STAGES=self.stages)

    @property
    def block(self) -> tuple[int, int]:
        return 32, self.warps

    @property
    def shared_bytes(self) -> int:
        """Q, and the warps' tiles of K and V; in their place, at the end, the warps' results."""
        tiles = 2 * self.key_bytes * self.warps * self.stages * self.block_cols * self.head_dim
        results = 4 * self.warps * self.block_rows * (self.head_dim + 9)
        return 2 * self.head_dim * self.block_rows + max(tiles, results)


class Tiles(NamedTuple):
    """The fastest on an H100: where few blocks share the work, one of them on each multiprocessor, with up to 130 kB on
    their way; where there are enough anyway, two, so that one streams while the other begins or ends. And one for GPUs
    with less shared memory."""

    alone: DecodeTile
    in_pairs: DecodeTile
    small: DecodeTile


def _tiles(head_dim: int, rows: int, key_bytes: int) -> Tiles:
    keys = min(32, 4096 // (head_dim * key_bytes))
    more = 4096 // (keys * head_dim * key_bytes)  # stages, where a tile is small
    sizes = (8, 2 * more), (4, 3 * more), (4, 2 * more)
    return Tiles(*(DecodeTile(head_dim, rows, keys, warps, stages, key_bytes) for warps, stages in sizes))


# By head dimension, rows of a block and bytes of a number of the cache.
TILES = {sizes: _tiles(*sizes) for sizes in itertools.product(HEAD_DIMS, (16, 32), (2, 1))}


class Call(NamedTuple):
    """What settles the launches of a call: sizes, as the kernels take them, dtypes and options."""

    query_shape: torch.Size  # `[B, H, L_q, D]`, of decode_step with layers before
    kv_heads: int
    capacity: int  # keys of a sequence, at most
    pages: tuple[int, ...]  # entries of a row of the block table, and keys of a page; none without pages
    dtype: torch.dtype  # of query
    key_bytes: int  # of a number of the cache: 1 for E4M3, which has scales
    device: torch.device
    ragged: bool  # whether there are seq_lens
    tree: bool  # whether there are parents
    factor: float  # of the scores
    num_splits: int  # 0 for None, as is split_size
    split_size: int

    @property
    def file(self) -> str:
        return "e4m3_cache" if self.key_bytes == 1 else "paged_cache" if self.pages else "split_keys"

    @property
    def kernel(self) -> str:
        return "e4m3_paged_cache" if self.key_bytes == 1 and self.pages else self.file


class Cut(NamedTuple):
    """Into what pieces the keys are cut: `size` keys each, or, where that is 0, of a size that follows on the device
    from the lengths, with which there are about `wanted`. pieces: the most that there can be."""

    wanted: int
    size: int
    pieces: int


# ---------------------------------------------------------------------------------------------- the public functions


def decode_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    seq_lens: Tensor | None = None,
    scale: float | None = None,
    num_splits: int | None = None,
    split_size: int | None = None,
    parents: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale · Q Kᵀ) V for the last one to 16 queries of each sequence against its cache.

    Args:
        query: `[B, H, L_q, d]`, float16 or bfloat16, L_q from 1 to 16, d up to 128, on the CPU (emulator) or a GPU. Of
            a sequence of n keys, query i stands at position `i + n - L_q` and sees the keys up to itself.
        key, value: `[B, H_kv, L, d]` on the device of query, in its dtype or in float8_e4m3fn, L at most 2^30; query
            head h reads key head `h // (H / H_kv)`. A cache that is strided, or whose d is not 64 or 128, is copied at
            every call.
        seq_lens: int32 `[B]`: how many of the L keys count, those of the queries included; others are never read. None:
            all. Numbers below 0 or above L are an error on the CPU; on a GPU they count as 0 and as L.
        scale: factor of the scores; None means `1 / sqrt(d)`. Scaled scores beyond some 10^8 are too coarse in fp32,
            and rows can come out wrong.
        num_splits: into how many pieces the keys of a sequence are cut, where all sequences have one length. With
            seq_lens, the pieces of all have one size, and there are so many for each sequence on average. None: as many
            as fill the GPU (`costs.splits_by_waves`).
        split_size: keys of a piece, instead of num_splits. Then the bits of a sequence's result do not depend on the
            batch around it, nor on the capacity of the cache.
        parents: int32 `[B, L_q]`: the queries are the nodes of a tree. Query i sees the keys before the queries, itself
            and its ancestors; `parents[b, i]` is less than i, and -1 for a root. Other numbers are an error on the CPU;
            on a GPU those from i on count as i - 1. None: a chain, in which each query sees those before.
        k_scale, v_scale: float32 `[B, H_kv]`, with a cache in E4M3 and only then: keys are `key.float() · k_scale`,
            k_scale positive. NaN in E4M3 counts as 480.
        return_lse: also return the log-sum-exp of each row of scores.

    Returns:
        out `[B, H, L_q, d]` in the dtype of query; zeros for a query that sees no key. With return_lse `(out, lse)`:
        lse `[B, H, L_q]`, float32, natural logarithm; minus infinity for a query that sees no key. To ask for a
        gradient is an error.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape, device or value; the message names it.
    """
    query, key, value = autocast(query, key, value)
    inputs = query, key, value, seq_lens, parents, k_scale, v_scale
    _check_decode(*inputs)
    out, lse = _decode(*inputs, _factor(query, scale), *_checked_splits(num_splits, split_size))
    return (out, lse) if return_lse else out


def paged_attention(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    scale: float | None = None,
    num_splits: int | None = None,
    split_size: int | None = None,
    parents: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`decode_attention` with a cache in pages (PagedAttention, arXiv 2309.06180, §4): the same arguments, results and
    errors, but for these.

    Args:
        key_pages, value_pages: `[pages, page_size, H_kv, d]`, page_size from 1 to 256.
        block_table: int32 `[B, max_pages]`: key j of sequence b is row `j % page_size` of page
            `block_table[b, j // page_size]`. Sequences may share pages, and entries past a sequence's end may be
            anything. The others must name a page that there is. On the CPU anything else is an error; on a GPU it is
            not looked for, since that would wait for the GPU, and what is read is not defined.
        seq_lens: int32 `[B]`, up to `max_pages · page_size`, which is at most 2^30.
    """
    query, key_pages, value_pages = autocast(query, key_pages, value_pages)
    inputs = query, key_pages, value_pages, block_table, seq_lens, parents, k_scale, v_scale
    _check_paged(*inputs)
    out, lse = _paged(*inputs, _factor(query, scale), *_checked_splits(num_splits, split_size))
    return (out, lse) if return_lse else out


def append_paged(
    key: Tensor,
    value: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """Writes the keys and values of the last n tokens of each sequence into the pages of a cache, in place.

    Args:
        key, value: `[B, n, H_kv, d]`, float16 or bfloat16, d a multiple of 8, on the CPU (emulator) or a GPU. Token i
            is number `seq_lens[b] - n + i` of its sequence; where that is negative, it is left out.
        key_pages, value_pages: `[pages, page_size, H_kv, d]`, contiguous, in the dtype of key or in float8_e4m3fn.
        block_table: int32 `[B, max_pages]`, as `paged_attention` takes it. No two sequences may write to one place.
        seq_lens: int32 `[B]`: the lengths with the new tokens, those that `paged_attention` then takes.
        k_scale, v_scale: float32 `[B, H_kv]`, positive, with pages in E4M3 and only then: what is written is
            `key / k_scale`, rounded to the nearest, and beyond 448 to that.

    Raises:
        TypeError, ValueError: as `paged_attention`.
    """
    inputs = key, value, key_pages, value_pages, block_table, seq_lens, k_scale, v_scale
    _check_append(*inputs)
    _append(*inputs)


def decode_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    scale: float | None = None,
    num_splits: int | None = None,
    split_size: int | None = None,
    parents: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    workspace: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`append_paged` and `paged_attention` for each layer of a step, one after the other, in one launch.

    What is computed is theirs, bit by bit. A sequence's work on a layer waits for the layer before, as it must in a
    model, where queries, keys and values come from there; the cache is read ahead.

    Args:
        query: `[layers, B, H, L_q, d]`, d 64 or 128. All other arguments are those of `paged_attention`, but for these.
        key, value: `[layers, B, L_q, H_kv, d]`, of the queries' own tokens, in the dtype of query.
        key_pages, value_pages: `[layers, pages, page_size, H_kv, d]`, contiguous; the tokens are written to them.
        block_table, seq_lens, parents: of all layers.
        k_scale, v_scale: `[layers, B, H_kv]`.
        workspace: int32, contiguous, at least `step_workspace(B, H_kv)` numbers, zeros: for the kernel to count in. It
            leaves zeros. Steps that may run at the same time, as those in two graphs may, must not have the same one.
            None: a new one.

    Returns:
        out, like query; with return_lse `(out, lse)`, lse float32 `[layers, B, H, L_q]`.
    """
    inputs = query, key, value, key_pages, value_pages, block_table, seq_lens, parents, k_scale, v_scale, workspace
    _check_step(*inputs)
    out, lse = _step(*inputs, _factor(query, scale), *_checked_splits(num_splits, split_size))
    return (out, lse) if return_lse else out


def step_workspace(batch: int, kv_heads: int) -> int:
    """How many numbers `decode_step` counts in: items taken, blocks that left, and heads and parts that are done."""
    return 2 + batch * (1 + kv_heads)


def cascade_attention(
    query: Tensor,
    prefix_key: Tensor,
    prefix_value: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    scale: float | None = None,
    return_lse: bool = False,
    **options: Tensor | int | None,
) -> Tensor | tuple[Tensor, Tensor]:
    """`paged_attention` of sequences that all begin with the same prefix, which is read once for all of them.

    The prefix is attended by the queries of all sequences together, as if they were heads of one sequence; then
    `merge_attention` joins it with what each sequence has of its own. So the parts are rounded to 16 bits once more.

    Args:
        query: `[B, H, L_q, d]`, as for `paged_attention`.
        prefix_key, prefix_value: `[H_kv, P, d]`, in the dtype of query: seen by every query.
        key_pages, value_pages, block_table, seq_lens: each sequence's own tokens, with those of the queries.
        options: those of `paged_attention` for the own tokens: num_splits, split_size, parents, k_scale, v_scale.

    Returns, Raises: as `paged_attention`.
    """
    own = paged_attention(query, key_pages, value_pages, block_table, seq_lens, scale=scale, return_lse=True, **options)
    kv_heads, head_dim = key_pages.shape[2], query.shape[-1]
    check_tensor("prefix_key", prefix_key, (kv_heads, "P", head_dim), like=("query", query))
    check_tensor("prefix_value", prefix_value, tuple(prefix_key.shape), like=("query", query))
    by_head = query.unflatten(1, (kv_heads, -1)).transpose(0, 1)  # [H_kv, B, group, L_q, d]
    rows = by_head.reshape(1, -1, 1, head_dim)  # of each key head, those of all sequences
    shared = decode_attention(rows, prefix_key[None], prefix_value[None], scale=scale, return_lse=True)
    out, lse = (part.view(by_head.shape[:4] + part.shape[3:]).transpose(0, 1).flatten(1, 2) for part in shared)
    merged = merge_attention(torch.stack((out, own[0])), torch.stack((lse, own[1])))
    return merged if return_lse else merged[0]


def merge_attention(outs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over the union of N disjoint sets of keys, from attention over each (Flash-Decoding):
    `lse = log Σ exp(lses)`, `out = Σ exp(lses - lse) · outs`.

    Args:
        outs: `[N, B, H, L_q, d]`, float32, float16 or bfloat16, on the CPU (emulator) or a GPU.
        lses: float32 `[N, B, H, L_q]` on the device of outs: the log-sum-exp of each row, natural logarithm. A part
            whose log-sum-exp is minus infinity is left out, whatever its out holds.

    Returns:
        out `[B, H, L_q, d]` in the dtype of outs, and lse, float32 `[B, H, L_q]`; zeros and minus infinity where every
        part is left out. To ask for a gradient is an error.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape or device; the message names it.
    """
    _check_merge(outs, lses)
    return _merge(outs, lses)


# ---------------------------------------------------------------------------------------------- the operators


@operator(
    "decode_attention(Tensor query, Tensor key, Tensor value, Tensor? seq_lens, Tensor? parents, Tensor? k_scale, "
    "Tensor? v_scale, float scale, SymInt num_splits, SymInt split_size) -> (Tensor out, Tensor lse)",
    fake=fake_attention,
    check=lambda *args: _check_call(_check_decode, *args),
    flops=lambda query, key, *_: _flops(query, key.shape[2]),
    instead=INSTEAD,
)
def _decode(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seq_lens: Tensor | None,
    parents: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    scale: float,
    num_splits: int,
    split_size: int,
) -> tuple[Tensor, Tensor]:
    _, kv_heads, capacity, _ = key.shape
    if query.is_cpu:
        _check_values(seq_lens, parents, capacity, k_scale=k_scale)
    more = seq_lens, parents, k_scale, v_scale, None
    return _attend(query, key, value, more, kv_heads, capacity, (), scale, num_splits, split_size)


@operator(
    "paged_attention(Tensor query, Tensor key_pages, Tensor value_pages, Tensor block_table, Tensor seq_lens, "
    "Tensor? parents, Tensor? k_scale, Tensor? v_scale, float scale, SymInt num_splits, SymInt split_size) "
    "-> (Tensor out, Tensor lse)",
    fake=fake_attention,
    check=lambda *args: _check_call(_check_paged, *args),
    flops=lambda query, key_pages, value_pages, block_table, *_: _flops(
        query, block_table.shape[1] * key_pages.shape[1]
    ),
    instead=INSTEAD,
)
def _paged(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    parents: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    scale: float,
    num_splits: int,
    split_size: int,
) -> tuple[Tensor, Tensor]:
    _, page_size, kv_heads, _ = key_pages.shape
    max_pages = block_table.shape[1]
    capacity = max_pages * page_size
    if query.is_cpu:
        _check_values(seq_lens, parents, capacity, k_scale=k_scale)
        _check_table(block_table, seq_lens, key_pages)
    more = seq_lens, parents, k_scale, v_scale, block_table
    of_pages = max_pages, page_size
    return _attend(query, key_pages, value_pages, more, kv_heads, capacity, of_pages, scale, num_splits, split_size)


@operator(
    "merge_attention(Tensor outs, Tensor lses) -> (Tensor out, Tensor lse)",
    fake=lambda outs, lses: (outs.new_empty(outs.shape[1:]), lses.new_empty(lses.shape[1:])),
    check=lambda outs, lses: _check_merge(outs, lses),
    instead=INSTEAD,
)
def _merge(outs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
    head_dim = outs.shape[-1]
    outs, lses = padded(outs, 4 * ceil_div(head_dim, 4)), dense(lses)
    out, lse = empty_outputs(outs[0])
    _ready_merge(outs.shape, outs.dtype, outs.device)(outs, lses, out, lse)
    return cut(out, head_dim), lse


@functools.lru_cache(maxsize=1024)
def _ready_merge(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> ReadyLaunch:
    """The launch of merge_attention with outs of this shape, lses, out and lse, all on the device."""
    parts, *rows, columns = shape
    return ReadyLaunch(
        _merge_module(dtype, dtype).get_function("merge_attention"),
        (math.prod(rows),),
        MERGE_BLOCK,
        (*4 * (OPEN,), *int_scalars(parts, columns)),
    )


@operator(
    "append_paged(Tensor key, Tensor value, Tensor(a!) key_pages, Tensor(b!) value_pages, Tensor block_table, "
    "Tensor seq_lens, Tensor? k_scale, Tensor? v_scale) -> ()",
    fake=lambda *_: None,
    check=lambda *args: _check_append(*args),
    instead=INSTEAD,
)
def _append(
    key: Tensor,
    value: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> None:
    if key.is_cpu:
        _check_values(seq_lens, None, block_table.shape[1] * key_pages.shape[1], k_scale=k_scale, v_scale=v_scale)
        _check_table(block_table, seq_lens, key_pages)
    pages = _to_be_written(key_pages, value_pages)
    launch = _ready_append(
        key.shape, (block_table.shape[1], key_pages.shape[1]), key.dtype, pages[0].element_size(), key.device
    )
    launch(dense(key), dense(value), *pages, *_there(block_table, seq_lens, k_scale, v_scale))
    increment_version([key_pages, value_pages])


@functools.lru_cache(maxsize=1024)
def _ready_append(
    shape: torch.Size, pages: tuple[int, int], dtype: torch.dtype, key_bytes: int, device: torch.device
) -> ReadyLaunch:
    """The launch of append_paged with keys and values of this shape, pages, table, lengths and, with E4M3, scales.
    pages, key_bytes: as of a `Call`."""
    return ReadyLaunch(
        _writing_module("append", (), key_bytes, dtype).get_function("append_paged"),
        (ceil_div(math.prod(shape) // 8, APPEND_THREADS),),
        (APPEND_THREADS,),
        (*6 * (OPEN,), *2 * (_open(key_bytes == 1, torch.float32, device),), *int_scalars(*shape, *pages)),
    )


@operator(
    "decode_step(Tensor query, Tensor key, Tensor value, Tensor(a!) key_pages, Tensor(b!) value_pages, "
    "Tensor block_table, Tensor seq_lens, Tensor? parents, Tensor? k_scale, Tensor? v_scale, Tensor(c!)? workspace, "
    "float scale, SymInt num_splits, SymInt split_size) -> (Tensor out, Tensor lse)",
    fake=fake_attention,
    check=lambda *args: _check_call(_check_step, *args),
    flops=lambda query, key, value, key_pages, value_pages, block_table, *_: _flops(
        query, block_table.shape[1] * key_pages.shape[2]
    ),
    instead=INSTEAD,
)
def _step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    parents: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    workspace: Tensor | None,
    scale: float,
    num_splits: int,
    split_size: int,
) -> tuple[Tensor, Tensor]:
    batch = query.shape[1]
    _, pages, page_size, kv_heads, _ = key_pages.shape
    max_pages = block_table.shape[1]
    if query.is_cpu:
        _check_values(seq_lens, parents, max_pages * page_size, k_scale=k_scale, v_scale=v_scale)
        _check_table(block_table, seq_lens, key_pages)
        if workspace is not None and workspace.any():
            raise ValueError("workspace is not zeros; it must be, and a step leaves it so")
    query, factor = positive_factor(query, scale)
    q, cache = dense(query), _to_be_written(key_pages, value_pages)
    call = Call(
        *(q.shape, kv_heads, max_pages * page_size, (max_pages, page_size), q.dtype, cache[0].element_size(), q.device),
        *(True, parents is not None, factor, num_splits, split_size),
    )
    if workspace is None:
        workspace = torch.zeros(step_workspace(batch, kv_heads), dtype=torch.int32, device=q.device)
    more = _there(seq_lens, parents, block_table, k_scale, v_scale)
    results = _ready_step(call, pages)((q, dense(key), dense(value), *cache), (*more, workspace))
    increment_version([key_pages, value_pages, workspace])
    return results


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    more: tuple[Tensor | None, ...],
    kv_heads: int,
    capacity: int,
    pages: tuple[int, ...],
    scale: float,
    num_splits: int,
    split_size: int,
) -> tuple[Tensor, Tensor]:
    """more: seq_lens, parents, the two scales and the block table. pages: as of a `Call`."""
    head_dim, (seq_lens, parents, *_) = query.shape[-1], more
    query, factor = positive_factor(query, scale)
    key, value = _numbers(key, value)
    q = padded(query, key.shape[-1])
    call = Call(
        *(q.shape, kv_heads, capacity, pages, q.dtype, key.element_size(), q.device),
        *(seq_lens is not None, parents is not None, factor, num_splits, split_size),
    )
    out, lse = _ready_attention(call)((q, key, value), _there(*more))
    return cut(out, head_dim), lse


def _there(*tensors: Tensor | None) -> tuple[Tensor, ...]:
    """Those that are given, as the kernels read them."""
    return tuple([tensor.contiguous() for tensor in tensors if tensor is not None])


# ---------------------------------------------------------------------------------------------- launches


class ReadyPieces(NamedTuple):
    """The launches of attention to pieces of the keys, and what each call makes for them: shapes, strides and dtypes of
    out, the log-sum-exp and, where a sequence may have several pieces, of those of the pieces. merge: of pieces; None
    where there are none, or the first launch merges. lengths: how many tensors say how long sequences are, 0 or 1."""

    device: torch.device
    made: tuple[tuple[tuple[int, ...], tuple[int, ...], torch.dtype], ...]
    attend: ReadyLaunch
    merge: ReadyLaunch | None
    lengths: int

    def __call__(self, inputs: tuple[Tensor, ...], more: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Out and the log-sum-exp. inputs, more: what the first launch takes before and after what is made, with the
        lengths first in more."""
        made = [torch.empty_strided(shape, steps, dtype=of, device=self.device) for shape, steps, of in self.made]
        self.attend(*inputs, *made, *more)
        if self.merge:
            self.merge(*made[2:], *made[:2], *more[: self.lengths])
        return made[0], made[1]


@functools.lru_cache(maxsize=1024)
def _ready_attention(call: Call) -> ReadyPieces:
    """Of query, key and value; more: lengths, parents, scales and the block table, those that there are."""
    (tile, row_tiles, how), (batch, heads, query_length, columns) = _plan(call), call.query_shape
    made, parts = _made(call, how)
    lengths = _open(call.ragged, torch.int32, call.device)
    attend = ReadyLaunch(
        module(f"{FOLDER}/{call.file}.cu", tile.options, call.dtype).get_function(call.kernel),
        (row_tiles, call.kv_heads, how.pieces),
        tile.block,
        (
            *(*FORWARD_TENSORS, *parts),
            *(lengths, _open(call.tree, torch.int32, call.device)),
            *(*int_scalars(batch, call.capacity, query_length, heads // call.kv_heads), np.float32(call.factor)),
            *int_scalars(call.ragged, call.tree, how.wanted, how.size),
            *(2 * (OPEN,) if call.key_bytes == 1 else ()),
            *((OPEN, *int_scalars(*call.pages)) if call.pages else ()),
        ),
        tile.shared_bytes,
    )
    if len(made) == 2:
        return ReadyPieces(call.device, made, attend, None, int(call.ragged))
    merge = ReadyLaunch(
        _merge_module(torch.float32, call.dtype).get_function("merge_pieces"),
        (heads * query_length, batch),
        MERGE_BLOCK,
        (
            *(*4 * (MADE,), lengths),
            *int_scalars(batch, call.capacity, columns, call.ragged, how.wanted, how.size),
        ),
        dependent=True,
    )
    return ReadyPieces(call.device, made, attend, merge, int(call.ragged))


@functools.lru_cache(maxsize=1024)
def _ready_step(call: Call, pages: int) -> ReadyPieces:
    """Of query, key, value and a cache of so many pages; more: lengths, parents, the block table, scales and the
    workspace, those that there are."""
    (tile, _, how), (layers, batch, heads, query_length, _) = _plan(call), call.query_shape
    items, (made, parts) = how.pieces * call.kv_heads, _made(call, how)
    if layers * items >= 2**31:
        raise ValueError(f"query has {layers} layers, of {items} items each: together 2^31 or more")
    attend = ReadyLaunch(
        _writing_module("persistent_step", tile.options, call.key_bytes, call.dtype).get_function("persistent_step"),
        (min(layers * items, _places(tile, call.device)),),
        tile.block,
        (
            *(*5 * (OPEN,), MADE, MADE, *parts),
            *(OPEN, _open(call.tree, torch.int32, call.device), OPEN),
            *(*2 * (_open(call.key_bytes == 1, torch.float32, call.device),), OPEN),
            *int_scalars(layers, batch, pages, *call.pages, query_length, call.kv_heads, heads // call.kv_heads),
            *(np.float32(call.factor), *int_scalars(call.tree, how.wanted, how.size, how.pieces)),
        ),
        tile.shared_bytes,
    )
    return ReadyPieces(call.device, made, attend, None, int(call.ragged))


def _made(call: Call, how: Cut) -> tuple[tuple[Any, ...], tuple[object, ...]]:
    """What a call makes, as `ReadyPieces` has it, and what stands for the pieces' results in a launch."""
    *_, batch, heads, query_length, columns = call.query_shape
    pieces, several = (how.pieces, heads * query_length, columns), how.pieces > batch
    shapes = [(call.query_shape, call.dtype), (call.query_shape[:-1], torch.float32)]
    shapes += several * [(pieces, torch.float32), (pieces[:-1], torch.float32)]
    made = tuple((shape, torch.empty(shape, device="meta").stride(), dtype) for shape, dtype in shapes)
    return made, 2 * (MADE if several else _open(False, torch.float32, call.device),)


def _open(there: object, dtype: torch.dtype, device: torch.device) -> object:
    """In the arguments of a `ReadyLaunch`, a tensor of the call; where it is not there, one for numbers that the kernel
    does not read."""
    return OPEN if there else torch.empty(0, dtype=dtype, device=device)


# ---------------------------------------------------------------------------------------------- tiles and pieces


class Plan(NamedTuple):
    """How a launch shares the work: its tile, tiles of rows of a key head, and the pieces of the keys."""

    tile: DecodeTile
    row_tiles: int
    cut: Cut


def _plan(call: Call) -> Plan:
    *_, batch, heads, query_length, columns = call.query_shape
    rows = heads // call.kv_heads * query_length
    row_tiles = ceil_div(rows, block_rows(rows))
    blocks = row_tiles * call.kv_heads
    # The bits depend on how many warps share a piece, and with a size that is given not on the batch.
    tile = decode_tile(rows, 0 if call.split_size else batch * blocks, columns, call.key_bytes, call.device)
    how = cut_keys(batch, blocks, call.capacity, call.ragged, call.num_splits, call.split_size, tile, call.device)
    return Plan(tile, row_tiles, how)


def block_rows(rows: int) -> int:
    """B_r for so many rows, the queries of a group of heads."""
    return 16 if rows <= 16 else 32


def decode_tile(rows: int, blocks: int, head_dim: int, key_bytes: int, device: torch.device) -> DecodeTile:
    """The tile for so many rows, the queries of a group of heads, and a cache of such numbers. blocks: of threads,
    before any sequence is cut."""
    tiles = TILES[head_dim, block_rows(rows), key_bytes]
    if blocks >= _multiprocessors(device) and _blocks_at_a_time(tiles.in_pairs, device) > 1:
        return tiles.in_pairs
    return fitting((tiles.alone, tiles.small), device)


def cut_keys(
    batch: int,
    blocks: int,
    capacity: int,
    ragged: bool,
    num_splits: int,
    split_size: int,
    tile: DecodeTile,
    device: torch.device,
) -> Cut:
    """How the keys of a batch are cut. blocks: of threads for one piece. num_splits, split_size: 0 for None."""
    if split_size:
        size = min(split_size, capacity)
        made = Cut(0, size, batch * ceil_div(capacity, size))
    else:
        shortest = SHORTEST_PIECE if _blocks_at_a_time(tile, device) == 1 else SHORTEST_IN_PAIRS
        most = max(1, capacity // shortest)
        splits = num_splits or splits_by_waves(batch * blocks, _places(tile, device), most)
        if ragged:
            made = Cut(batch * splits, 0, batch * splits + batch - 1)
        else:
            size = ceil_div(capacity, splits)
            made = Cut(0, size, batch * ceil_div(capacity, size))
    if made.pieces > MAX_GRID:
        raise ValueError(
            f"query has batch size {batch}, and the keys are cut into up to {made.pieces} pieces; there can be "
            f"{MAX_GRID}: take fewer num_splits or a larger split_size"
        )
    return made


def _places(tile: DecodeTile, device: torch.device) -> int:
    """For blocks on the device, at a time."""
    return _blocks_at_a_time(tile, device) * _multiprocessors(device)


@functools.cache
def _blocks_at_a_time(tile: DecodeTile, device: torch.device) -> int:
    """On a multiprocessor, as far as shared memory goes: registers last for more."""
    return (shared_memory_limit(device) + RESERVED_SHARED) // (tile.shared_bytes + RESERVED_SHARED)


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    if device.type == "cpu":
        return EMULATED_MULTIPROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def _flops(query: Tensor, capacity: int) -> int:
    """Of the products with a full cache: the lengths are on the device, and to look at them would wait for it."""
    return 4 * query.numel() * capacity


def _merge_module(parts: torch.dtype, out: torch.dtype) -> RawModule:
    bits = tuple(f"-D{name}={8 * dtype.itemsize}" for name, dtype in (("PART_BITS", parts), ("O_BITS", out)))
    bf16 = f"-DBF16={BF16.get(out, 0)}"
    return compiled(f"{FOLDER}/merge.cu", (bf16, *bits))


def _writing_module(file: str, options: tuple[str, ...], key_bytes: int, dtype: torch.dtype) -> RawModule:
    """With a kernel that writes new tokens to the cache."""
    return module(f"{FOLDER}/{file}.cu", (*options, f"-DCACHE_BITS={8 * key_bytes}"), dtype)


def modules(dtype: torch.dtype, device: torch.device) -> list[RawModule]:
    """What the operators launch for queries of this dtype on a device, to be compiled ahead of time."""
    made = [_merge_module(torch.float32, dtype), _merge_module(dtype, dtype)]
    made += [_writing_module("append", (), key_bytes, dtype) for key_bytes in (1, 2)]
    for (head_dim, rows, key_bytes), blocks in itertools.product(TILES, (1, MAX_GRID)):
        options = decode_tile(rows, blocks, head_dim, key_bytes, device).options
        for file in ("split_keys", "paged_cache") if key_bytes == 2 else ("e4m3_cache",):
            made.append(module(f"{FOLDER}/{file}.cu", options, dtype))
        made.append(_writing_module("persistent_step", options, key_bytes, dtype))
    return made


# ---------------------------------------------------------------------------------------------- layout and checks


def _numbers(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """As the kernels read them: d filled up to 64 or 128, E4M3 as bytes."""
    columns = key.shape[-1]
    if columns not in HEAD_DIMS:
        columns = next(d for d in HEAD_DIMS if d >= columns)
    if key.dtype == E4M3:
        key, value = key.view(torch.uint8), value.view(torch.uint8)
    return padded(key, columns), padded(value, columns)


def _to_be_written(key_pages: Tensor, value_pages: Tensor) -> tuple[Tensor, Tensor]:
    """As the kernels write to them: as they are."""
    for name, pages in (("key_pages", key_pages), ("value_pages", value_pages)):
        if pages.data_ptr() % ALIGNMENT:
            raise ValueError(f"{name} begins at an address that is no multiple of {ALIGNMENT}, as it must be")
    if key_pages.dtype == E4M3:
        return key_pages.view(torch.uint8), value_pages.view(torch.uint8)
    return key_pages, value_pages


@once
def _check_decode(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seq_lens: Tensor | None,
    parents: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> None:
    _check_query(query, parents)
    batch, head_dim = query.shape[0], query.shape[-1]
    _check_cache(("key", "value"), (key, value), (batch, "H_kv", "L", head_dim), ("query", query))
    if key.shape[2] > MAX_KEYS:
        raise ValueError(f"key has {key.shape[2]} keys of a sequence; there can be {MAX_KEYS}")
    _check_heads("key", key.shape[1], query.shape[1])
    _check_scales("key", key, (batch, key.shape[1]), (k_scale, v_scale))
    if seq_lens is not None:
        _check_integers("seq_lens", seq_lens, (batch,), ("query", query))


@once
def _check_paged(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    parents: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> None:
    _check_query(query, parents)
    batch, head_dim = query.shape[0], query.shape[-1]
    shape = "pages", "page_size", "H_kv", head_dim
    _check_pages(key_pages, value_pages, shape, block_table, seq_lens, ("query", query), batch)
    _check_heads("key_pages", key_pages.shape[2], query.shape[1])
    _check_scales("key_pages", key_pages, (batch, key_pages.shape[2]), (k_scale, v_scale))


@once
def _check_append(
    key: Tensor,
    value: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> None:
    check_tensor("key", key, ("B", "n", "H_kv", "d"), tuple(BF16))
    check_tensor("value", value, tuple(key.shape), like=("key", key))
    batch, _, kv_heads, head_dim = key.shape
    if head_dim % 8:
        raise ValueError(f"key has head dimension {head_dim}; it must be a multiple of 8")
    shape = "pages", "page_size", kv_heads, head_dim
    _check_pages(key_pages, value_pages, shape, block_table, seq_lens, ("key", key), batch)
    _check_written(key_pages, value_pages)
    _check_scales("key_pages", key_pages, (batch, kv_heads), (k_scale, v_scale))


@once
def _check_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    parents: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    workspace: Tensor | None,
) -> None:
    _check_query(query, parents, ("layers", "B", "H", "L_q", "d"))
    layers, batch, heads, query_length, head_dim = query.shape
    if head_dim not in HEAD_DIMS:
        raise ValueError(f"query has head dimension {head_dim}; it must be {' or '.join(map(str, HEAD_DIMS))}")
    check_tensor("key", key, (layers, batch, query_length, "H_kv", head_dim), like=("query", query))
    check_tensor("value", value, tuple(key.shape), like=("query", query))
    kv_heads = key.shape[3]
    shape = layers, "pages", "page_size", kv_heads, head_dim
    _check_pages(key_pages, value_pages, shape, block_table, seq_lens, ("query", query), batch)
    _check_written(key_pages, value_pages)
    _check_heads("key", kv_heads, heads)
    _check_scales("key_pages", key_pages, (layers, batch, kv_heads), (k_scale, v_scale))
    if workspace is not None:
        check_tensor("workspace", workspace, ("numbers",), (torch.int32,), like=("query", query))
        if workspace.numel() < (least := step_workspace(batch, kv_heads)) or not workspace.is_contiguous():
            raise ValueError(
                f"workspace has shape {list(workspace.shape)} and strides {list(workspace.stride())}; it must be "
                f"contiguous, of at least {least} numbers"
            )


@once
def _check_merge(outs: Tensor, lses: Tensor) -> None:
    check_tensor("outs", outs, ("N", "B", "H", "L_q", "d"), (torch.float32, *BF16))
    check_tensor("lses", lses, tuple(outs.shape[:-1]), (torch.float32,), like=("outs", outs))


def _check_call(check: Callable[..., None], *args: Any) -> None:
    """check of the tensors that an operator is called with by its name; behind them are three numbers."""
    *tensors, scale, num_splits, split_size = args
    check(*tensors)
    check_scale(scale)
    _checked_splits(num_splits or None, split_size or None)


def _factor(query: Tensor, scale: float | None) -> float:
    """Of the scores."""
    return query.shape[-1] ** -0.5 if scale is None else checked_scale(scale, ", or None for 1 / sqrt(d)")


def _check_query(query: Tensor, parents: Tensor | None, shape: tuple[str, ...] = ("B", "H", "L_q", "d")) -> None:
    check_tensor("query", query, shape, tuple(BF16))
    batch, heads, query_length, head_dim = query.shape[-4:]
    limits = ("batch size", batch, MAX_GRID), ("heads", heads, MAX_GRID)
    limits += ("L_q", query_length, MAX_QUERIES), ("head dimension", head_dim, HEAD_DIMS[-1])
    for what, size, most in limits:
        if size > most:
            raise ValueError(f"query has {what} {size}; it must be at most {most}")
    if parents is not None:
        _check_integers("parents", parents, (batch, query_length), ("query", query))


def _check_cache(
    names: tuple[str, str], cache: tuple[Tensor, Tensor], shape: tuple[int | str, ...], like: tuple[str, Tensor]
) -> None:
    """Keys and values of this shape, in the dtype of another argument or in E4M3."""
    check_tensor(names[0], cache[0], shape, (like[1].dtype, E4M3), like=like)
    check_tensor(names[1], cache[1], tuple(cache[0].shape), (cache[0].dtype,), like=(names[0], cache[0]))


def _check_pages(
    key_pages: Tensor,
    value_pages: Tensor,
    shape: tuple[int | str, ...],
    block_table: Tensor,
    seq_lens: Tensor,
    like: tuple[str, Tensor],
    batch: int,
) -> None:
    """A cache in pages, `[..., pages, page_size, H_kv, d]`, with its table and lengths."""
    _check_cache(("key_pages", "value_pages"), (key_pages, value_pages), shape, like)
    _check_integers("block_table", block_table, (batch, "max_pages"), like)
    _check_integers("seq_lens", seq_lens, (batch,), like)
    page_size = key_pages.shape[-3]
    if page_size > MAX_PAGE_SIZE:
        raise ValueError(f"key_pages has pages of {page_size} keys; they must have at most {MAX_PAGE_SIZE}")
    if (rows := key_pages.shape[-4] * page_size) >= 2**31:
        raise ValueError(f"key_pages has {rows} keys in all pages together; they must be fewer than 2^31")
    if (keys := block_table.shape[1] * page_size) > MAX_KEYS:
        raise ValueError(f"block_table has pages for {keys} keys of a sequence; there can be {MAX_KEYS}")


def _check_written(key_pages: Tensor, value_pages: Tensor) -> None:
    """What is written in place cannot be copied first, and has no gradient."""
    for name, pages in (("key_pages", key_pages), ("value_pages", value_pages)):
        if not pages.is_contiguous():
            raise ValueError(
                f"{name} has strides {list(pages.stride())}; it is written in place, and must be contiguous"
            )
        if pages.requires_grad:
            raise ValueError(f"{name} requires a gradient; it is written in place, without one")


def _check_heads(name: str, kv_heads: int, heads: int) -> None:
    if heads % kv_heads:
        raise ValueError(f"{name} has {kv_heads} heads; that must divide the {heads} heads of query")


def _check_scales(name: str, key: Tensor, shape: tuple[int, ...], scales: tuple[Tensor | None, Tensor | None]) -> None:
    """Scales, if the keys are in E4M3; else none."""
    for scale_name, tensor in zip(("k_scale", "v_scale"), scales, strict=True):
        if key.dtype != E4M3:
            if tensor is not None:
                raise ValueError(f"{scale_name} is given, and {name} is {key.dtype}; scales go with {E4M3} alone")
            continue
        if tensor is None:
            layers = "layers, " if len(shape) == 3 else ""
            raise ValueError(f"{scale_name} is None; with {name} in {E4M3} it must be float32 [{layers}B, H_kv]")
        check_tensor(scale_name, tensor, shape, (torch.float32,), like=(name, key))


def _check_integers(name: str, tensor: Tensor, shape: tuple[int | str, ...], like: tuple[str, Tensor]) -> None:
    check_tensor(name, tensor, shape, (torch.int32,), like=like)


def _checked_splits(num_splits: int | None, split_size: int | None) -> tuple[int, int]:
    """Both, 0 for None."""
    if num_splits is not None and split_size is not None:
        raise ValueError(f"num_splits is {num_splits} and split_size {split_size}; at most one of them may be given")
    splits = 0 if num_splits is None else integer("num_splits", num_splits, 1, MAX_GRID)
    # No cache has more keys, and torch's integers have 64 bits.
    return splits, 0 if split_size is None else min(integer("split_size", split_size, 1), 2**31)


def _check_values(seq_lens: Tensor | None, parents: Tensor | None, capacity: int, **positive: Tensor | None) -> None:
    """What a look at the numbers alone shows: lengths, trees and scales. On a GPU it would have to wait."""
    if seq_lens is not None and not ((seq_lens >= 0) & (seq_lens <= capacity)).all():
        raise ValueError(f"seq_lens is {seq_lens.tolist()}; each must be from 0 to {capacity}")
    if parents is not None:
        own = torch.arange(parents.shape[1], dtype=torch.int32)
        if not ((parents >= -1) & (parents < own)).all():
            raise ValueError(f"parents is {parents.tolist()}; entry i of each must be from -1 to i - 1")
    for name, scale in positive.items():
        if scale is not None and not (scale > 0).all():
            raise ValueError(f"{name} goes down to {scale.min().item()}; it must be positive")


def _check_table(block_table: Tensor, seq_lens: Tensor, key_pages: Tensor) -> None:
    """The pages, as `_check_values`."""
    pages, page_size = key_pages.shape[-4:-2]
    used = torch.arange(block_table.shape[1]) * page_size < seq_lens[:, None]
    wrong = used & ((block_table < 0) | (block_table >= pages))
    if wrong.any():
        at = wrong.nonzero()[0].tolist()
        raise ValueError(f"block_table{at} is {int(block_table[*at])}; key_pages has pages 0 to {pages - 1}")
