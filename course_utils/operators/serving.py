"""One new token, or a few, against a long cache (kernels/06_serving), in fp16 and bf16, the cache also in E4M3.

The keys are cut into pieces, so that there is work for the whole GPU; a block attends one, and merge.cu adds up what
the blocks have found. The grid follows from the capacity of the cache, the pieces from the lengths on the device:
nothing waits for the GPU, and a captured graph can be replayed with other lengths and tables in the same tensors.
`decode_step` is the same for many layers in one launch, with what their new tokens bring to the cache.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from course_utils.arguments import check_tensor, integer
from course_utils.costs import ceil_div, splits_by_waves
from course_utils.cuda import Kernel, RawModule, compiled, shared_memory_limit
from course_utils.operators.library import AUTOCAST, operator
from course_utils.operators.prepare import (
    ALIGNMENT,
    MAX_GRID,
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
from course_utils.operators.tensor_core import BF16, HEAD_DIMS, defines, int_scalars, kernel, module

FOLDER = "06_serving"
E4M3 = torch.float8_e4m3fn
MAX_QUERIES, MAX_PAGE_SIZE = 16, 256
SHORTEST_PIECE = 128  # keys: below, to merge costs more than a shorter piece saves
SHORTEST_IN_PAIRS = 1024  # where blocks share a multiprocessor: one without a neighbour is faster, so less is lost
MERGE_BLOCK = (32, 4)
APPEND_THREADS = 256
RESERVED_SHARED = 1024  # bytes that the driver adds to those of a block, from sm_80 on
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


class Cache(NamedTuple):
    """Keys and values as the kernels take them. scales: k_scale and v_scale, with E4M3. pages: the block table, entries
    of a row, and keys of a page, where the cache has pages. capacity: keys of a sequence, at most."""

    key: Tensor
    value: Tensor
    kv_heads: int
    capacity: int
    scales: tuple[Tensor, ...] = ()
    pages: tuple[Tensor | np.generic, ...] = ()

    @property
    def file(self) -> str:
        return f"{FOLDER}/{'e4m3_cache' if self.scales else 'paged_cache' if self.pages else 'split_keys'}.cu"

    @property
    def kernel(self) -> str:
        if self.scales:
            return "e4m3_paged_cache" if self.pages else "e4m3_cache"
        return "paged_cache" if self.pages else "split_keys"


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
        key, value: `[B, H_kv, L, d]` on the device of query, in its dtype or in float8_e4m3fn; query head h reads key
            head `h // (H / H_kv)`. A cache that is strided, or whose d is not 64 or 128, is copied at every call.
        seq_lens: int32 `[B]`: how many of the L keys count, those of the queries included; others are never read. None:
            all. Numbers below 0 or above L are an error on the CPU; on a GPU they count as 0 and as L.
        scale: factor of the scores; None means `1 / sqrt(d)`.
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
        out `[B, H, L_q, d]` in the dtype of query, without a gradient; zeros for a query that sees no key. With
        return_lse `(out, lse)`: lse `[B, H, L_q]`, float32, natural logarithm; minus infinity for a query that sees no
        key.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape, device or value; the message names it.
    """
    query, key, value = _decode.autocast(query, key, value)
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
        seq_lens: int32 `[B]`, up to `max_pages · page_size`.
    """
    query, key_pages, value_pages = _paged.autocast(query, key_pages, value_pages)
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
        part is left out. No gradients.

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
    casts=dict.fromkeys(("query", "key", "value"), AUTOCAST),
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
    cache = Cache(*_numbers(key, value), key.shape[1], key.shape[2], _scales(k_scale, v_scale))
    return _attend(query, cache, seq_lens, parents, scale, num_splits, split_size)


@operator(
    "paged_attention(Tensor query, Tensor key_pages, Tensor value_pages, Tensor block_table, Tensor seq_lens, "
    "Tensor? parents, Tensor? k_scale, Tensor? v_scale, float scale, SymInt num_splits, SymInt split_size) "
    "-> (Tensor out, Tensor lse)",
    fake=fake_attention,
    check=lambda *args: _check_call(_check_paged, *args),
    flops=lambda query, key_pages, value_pages, block_table, *_: _flops(
        query, block_table.shape[1] * key_pages.shape[1]
    ),
    casts=dict.fromkeys(("query", "key_pages", "value_pages"), AUTOCAST),
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
    cache = _in_pages(_numbers(key_pages, value_pages), block_table, _scales(k_scale, v_scale))
    return _attend(query, cache, seq_lens, parents, scale, num_splits, split_size)


@operator(
    "merge_attention(Tensor outs, Tensor lses) -> (Tensor out, Tensor lse)",
    fake=lambda outs, lses: (outs.new_empty(outs.shape[1:]), lses.new_empty(lses.shape[1:])),
    check=lambda outs, lses: _check_merge(outs, lses),
)
def _merge(outs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
    parts, *rows, head_dim = outs.shape
    columns = 4 * ceil_div(head_dim, 4)
    outs, lses = padded(outs, columns), dense(lses)
    out, lse = outs.new_empty(*rows, columns), lses.new_empty(rows)
    _merge_module(outs.dtype, outs.dtype).get_function("merge_attention")(
        (lse.numel(),), MERGE_BLOCK, (outs, lses, out, lse, *int_scalars(parts, columns))
    )
    return cut(out, head_dim), lse


@operator(
    "append_paged(Tensor key, Tensor value, Tensor(a!) key_pages, Tensor(b!) value_pages, Tensor block_table, "
    "Tensor seq_lens, Tensor? k_scale, Tensor? v_scale) -> ()",
    fake=lambda *_: None,
    check=lambda *args: _check_append(*args),
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
    (batch, count, kv_heads, head_dim), (_, page_size, *_) = key.shape, key_pages.shape
    cache = _in_pages(_to_be_written(key_pages, value_pages), block_table, _scales(k_scale, v_scale))
    if key.device.type == "cpu":
        _check_values(seq_lens, None, cache, writes=True)
    lengths = seq_lens.contiguous()
    nothing = lengths.view(torch.float32), lengths.view(torch.float32)  # stand for numbers that are not read
    _writing_kernel("append", "append_paged", cache, key.dtype)(
        (ceil_div(key.numel() // 8, APPEND_THREADS),),
        (APPEND_THREADS,),
        (
            *(dense(key), dense(value), cache.key, cache.value, cache.pages[0], lengths),
            *(cache.scales or nothing),
            *int_scalars(batch, count, kv_heads, head_dim, block_table.shape[1], page_size),
        ),
    )
    increment_version([key_pages, value_pages])


@operator(
    "decode_step(Tensor query, Tensor key, Tensor value, Tensor(a!) key_pages, Tensor(b!) value_pages, "
    "Tensor block_table, Tensor seq_lens, Tensor? parents, Tensor? k_scale, Tensor? v_scale, Tensor(c!)? workspace, "
    "float scale, SymInt num_splits, SymInt split_size) -> (Tensor out, Tensor lse)",
    fake=fake_attention,
    check=lambda *args: _check_call(_check_step, *args),
    flops=lambda query, key, value, key_pages, value_pages, block_table, *_: _flops(
        query, block_table.shape[1] * key_pages.shape[2]
    ),
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
    layers, batch, heads, query_length, head_dim = query.shape
    _, pages, page_size, kv_heads, _ = key_pages.shape
    cache = _in_pages(_to_be_written(key_pages, value_pages), block_table, _scales(k_scale, v_scale))
    if query.device.type == "cpu":
        _check_values(seq_lens, parents, cache, writes=True)
        if workspace is not None and workspace.any():
            raise ValueError("workspace is not zeros; it must be, and a step leaves it so")
    query, factor = positive_factor(query, scale)
    q, group = dense(query), heads // kv_heads
    plan = _plan(q, cache, True, num_splits, split_size)
    if layers * plan.cut.pieces * kv_heads >= 2**31:
        raise ValueError(
            f"query has {layers} layers, of {plan.cut.pieces * kv_heads} items each: together 2^31 or more"
        )
    out, lse = empty_outputs(q)
    parts, lse_parts = _parts(lse, plan, batch, heads * query_length, head_dim)
    if workspace is None:
        workspace = torch.zeros(step_workspace(batch, kv_heads), dtype=torch.int32, device=q.device)
    nothing = lse, lse  # stand for numbers that are not read, as the workspace does
    _writing_kernel("persistent_step", "persistent_step", cache, q.dtype, plan.tile.options)(
        (min(layers * plan.cut.pieces * kv_heads, _places(plan.tile, q.device)),),
        plan.tile.block,
        (
            *(q, dense(key), dense(value), cache.key, cache.value, out, lse, parts, lse_parts),
            *(seq_lens.contiguous(), workspace if parents is None else parents.contiguous(), cache.pages[0]),
            *(*(cache.scales or nothing), workspace),
            *int_scalars(layers, batch, pages, block_table.shape[1], page_size, query_length, kv_heads, group),
            *(np.float32(factor), *int_scalars(parents is not None, plan.cut.wanted, plan.cut.size, plan.cut.pieces)),
        ),
        shared_mem=plan.tile.shared_bytes,
    )
    increment_version([key_pages, value_pages, workspace])
    return out, lse


def _attend(
    query: Tensor,
    cache: Cache,
    seq_lens: Tensor | None,
    parents: Tensor | None,
    scale: float,
    num_splits: int,
    split_size: int,
) -> tuple[Tensor, Tensor]:
    if query.device.type == "cpu":
        _check_values(seq_lens, parents, cache)
    head_dim = query.shape[-1]
    query, factor = positive_factor(query, scale)
    q = padded(query, cache.key.shape[-1])
    batch, heads, query_length, columns = q.shape
    rows, ragged = heads * query_length, seq_lens is not None
    plan = _plan(q, cache, ragged, num_splits, split_size)
    how, tile = plan.cut, plan.tile
    out, lse = empty_outputs(q)
    parts, lse_parts = _parts(lse, plan, batch, rows, columns)
    nothing = lse.view(torch.int32)  # stands for numbers that are not read
    lengths = seq_lens.contiguous() if ragged else nothing
    kernel(cache.file, tile.options, q.dtype, cache.kernel)(
        (plan.row_tiles, cache.kv_heads, how.pieces),
        tile.block,
        (
            *(q, cache.key, cache.value, out, lse, parts, lse_parts),
            *(lengths, nothing if parents is None else parents.contiguous()),
            *(*int_scalars(batch, cache.capacity, query_length, heads // cache.kv_heads), np.float32(factor)),
            *int_scalars(ragged, parents is not None, how.wanted, how.size),
            *(*cache.scales, *cache.pages),
        ),
        shared_mem=tile.shared_bytes,
    )
    if parts is not lse:
        _merge_module(torch.float32, q.dtype).get_function("merge_pieces")(
            (rows, batch),
            MERGE_BLOCK,
            (
                *(parts, lse_parts, out, lse, lengths),
                *int_scalars(batch, cache.capacity, columns, ragged, how.wanted, how.size),
            ),
        )
    return cut(out, head_dim), lse


# ---------------------------------------------------------------------------------------------- tiles and pieces


class Plan(NamedTuple):
    """How a launch shares the work: its tile, tiles of rows of a key head, and the pieces of the keys."""

    tile: DecodeTile
    row_tiles: int
    cut: Cut


def _plan(query: Tensor, cache: Cache, ragged: bool, num_splits: int, split_size: int) -> Plan:
    batch, heads, query_length, _ = query.shape[-4:]
    rows = heads // cache.kv_heads * query_length
    row_tiles = ceil_div(rows, block_rows(rows))
    blocks = row_tiles * cache.kv_heads
    # The bits depend on how many warps share a piece, and with a size that is given not on the batch.
    tile = decode_tile(rows, 0 if split_size else batch * blocks, cache.key)
    how = cut_keys(batch, blocks, cache.capacity, ragged, num_splits, split_size, tile, query.device)
    return Plan(tile, row_tiles, how)


def _parts(lse: Tensor, plan: Plan, batch: int, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Memory for the pieces' outputs and log-sum-exps, like lse; lse itself where each sequence has one piece."""
    pieces = plan.cut.pieces
    if pieces <= batch:
        return lse, lse
    return lse.new_empty(pieces, rows, columns), lse.new_empty(pieces, rows)


def block_rows(rows: int) -> int:
    """B_r for so many rows, the queries of a group of heads."""
    return 16 if rows <= 16 else 32


def decode_tile(rows: int, blocks: int, key: Tensor) -> DecodeTile:
    """The tile for so many rows, the queries of a group of heads, and such a cache. blocks: of threads, before any
    sequence is cut."""
    tiles, device = TILES[key.shape[-1], block_rows(rows), key.element_size()], key.device
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


def _writing_kernel(file: str, name: str, cache: Cache, dtype: torch.dtype, options: tuple[str, ...] = ()) -> Kernel:
    """One that writes new tokens to the cache."""
    return _writing_module(file, options, cache.key.element_size(), dtype).get_function(name)


def _writing_module(file: str, options: tuple[str, ...], key_bytes: int, dtype: torch.dtype) -> RawModule:
    return module(f"{FOLDER}/{file}.cu", (*options, f"-DCACHE_BITS={8 * key_bytes}"), dtype)


def modules(dtype: torch.dtype, device: torch.device) -> list[RawModule]:
    """What the operators launch for queries of this dtype on a device, to be compiled ahead of time."""
    made = [_merge_module(torch.float32, dtype), _merge_module(dtype, dtype)]
    made += [_writing_module("append", (), key_bytes, dtype) for key_bytes in (1, 2)]
    for (head_dim, rows, key_bytes), blocks in itertools.product(TILES, (1, MAX_GRID)):
        key = torch.empty(1, head_dim, dtype=torch.uint8 if key_bytes == 1 else dtype, device=device)
        options = decode_tile(rows, blocks, key).options
        for file in ("split_keys", "paged_cache") if key_bytes == 2 else ("e4m3_cache",):
            made.append(module(f"{FOLDER}/{file}.cu", options, dtype))
        made.append(_writing_module("persistent_step", options, key_bytes, dtype))
    return made


# ---------------------------------------------------------------------------------------------- layout and checks


def _numbers(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """As the kernels read them: d filled up to 64 or 128, E4M3 as bytes."""
    columns = next(d for d in HEAD_DIMS if d >= key.shape[-1])
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


def _in_pages(numbers: tuple[Tensor, Tensor], block_table: Tensor, scales: tuple[Tensor, ...]) -> Cache:
    page_size, kv_heads, _ = numbers[0].shape[-3:]
    max_pages = block_table.shape[1]
    pages = block_table.contiguous(), *int_scalars(max_pages, page_size)
    return Cache(*numbers, kv_heads, max_pages * page_size, scales, pages)


def _scales(k_scale: Tensor | None, v_scale: Tensor | None) -> tuple[Tensor, ...]:
    return () if k_scale is None else (k_scale.contiguous(), v_scale.contiguous())


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
    _check_heads("key", key.shape[1], query.shape[1])
    _check_scales("key", key, (batch, key.shape[1]), (k_scale, v_scale))
    if seq_lens is not None:
        _check_integers("seq_lens", seq_lens, (batch,), ("query", query))


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
    for name, pages in (("key_pages", key_pages.shape[-4]), ("block_table", block_table.shape[1])):
        if pages * page_size >= 2**31:
            raise ValueError(f"{name} has {pages} pages of {page_size} keys; together they must have fewer than 2^31")


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
    return splits, 0 if split_size is None else integer("split_size", split_size, 1)


def _check_values(seq_lens: Tensor | None, parents: Tensor | None, cache: Cache, *, writes: bool = False) -> None:
    """What a look at the numbers alone shows: lengths, trees, scales and pages. On a GPU it would have to wait. writes:
    whether numbers are divided by the scales."""
    if seq_lens is not None and not ((seq_lens >= 0) & (seq_lens <= cache.capacity)).all():
        raise ValueError(f"seq_lens is {seq_lens.tolist()}; each must be from 0 to {cache.capacity}")
    if parents is not None:
        own = torch.arange(parents.shape[1], dtype=torch.int32)
        if not ((parents >= -1) & (parents < own)).all():
            raise ValueError(f"parents is {parents.tolist()}; entry i of each must be from -1 to i - 1")
    for name, scale in zip(("k_scale", "v_scale") if writes else ("k_scale",), cache.scales, strict=False):
        if not (scale > 0).all():
            raise ValueError(f"{name} goes down to {scale.min().item()}; it must be positive")
    if cache.pages:
        table, max_pages, page_size = cache.pages
        used = torch.arange(int(max_pages)) * int(page_size) < seq_lens[:, None]
        pages = cache.key.shape[-4]
        wrong = used & ((table < 0) | (table >= pages))
        if wrong.any():
            at = wrong.nonzero()[0].tolist()
            raise ValueError(f"block_table{at} is {int(table[*at])}; key_pages has pages 0 to {pages - 1}")
