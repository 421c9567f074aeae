"""The checks of the arguments of `serving`: each raises TypeError or ValueError, which names the argument, what it got
and what it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course_utils.arguments import check_tensor, integer, once
from course_utils.costs import ceil_div
from course_utils.operators.prepare import MAX_GRID, check_scale, check_sinks, checked_softcap
from course_utils.operators.serving_choice import E4M3, MAX_QUERIES, group_queries, step_workspace
from course_utils.operators.tensor_core import BF16, HEAD_DIMS

MAX_PAGE_SIZE = 256
MAX_KEYS = 2**30  # of a sequence: its keys and those of a piece together are an int of the kernels


@once
def check_decode(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seq_lens: Tensor | None,
    parents: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> None:
    """The tensors of `decode_attention`."""
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
def check_paged(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    cu_seq_q: Tensor | None,
    parents: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    sinks: Tensor | None,
) -> None:
    """The tensors of `paged_attention`."""
    if cu_seq_q is None:
        _check_query(query, parents)
        batch = query.shape[0]
    else:
        batch = _check_packed_query(query, cu_seq_q, parents)
    head_dim = query.shape[-1]
    shape = "pages", "page_size", "H_kv", head_dim
    _check_pages(key_pages, value_pages, shape, block_table, seq_lens, ("query", query), batch)
    _check_heads("key_pages", key_pages.shape[2], query.shape[1])
    _check_scales("key_pages", key_pages, (batch, key_pages.shape[2]), (k_scale, v_scale))
    check_sinks(sinks, query)
    if cu_seq_q is not None:
        groups = batch + ceil_div(query.shape[0], group_queries(query.shape[1] // key_pages.shape[2]))
        if groups > MAX_GRID:
            raise ValueError(f"query has {query.shape[0]} rows, which make {groups} groups; there can be {MAX_GRID}")


@once
def check_append(
    key: Tensor,
    value: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> None:
    """The tensors of `append_paged`."""
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
def check_step(
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
    """The tensors of `decode_step`."""
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
def check_merge(outs: Tensor, lses: Tensor) -> None:
    """The tensors of `merge_attention`."""
    check_tensor("outs", outs, ("N", "B", "H", "L_q", "d"), (torch.float32, *BF16))
    check_tensor("lses", lses, tuple(outs.shape[:-1]), (torch.float32,), like=("outs", outs))


def check_call(check: Callable[..., None], *args: Any) -> None:
    """Runs `check` on the tensors of an operator that is called by its name; three numbers follow them."""
    *tensors, scale, num_splits, split_size = args
    check(*tensors)
    check_scale(scale)
    checked_splits(num_splits or None, split_size or None)


def check_paged_call(*args: Any) -> None:
    """`check_call` of `paged_attention`: a window and a softcap, 0 for None, come before the three numbers."""
    *tensors, window, softcap, scale, num_splits, split_size = args
    check_call(check_paged, *tensors, scale, num_splits, split_size)
    checked_window(window or None, tensors[6])
    checked_softcap(softcap or None)


def _check_query(query: Tensor, parents: Tensor | None, shape: tuple[str, ...] = ("B", "H", "L_q", "d")) -> None:
    check_tensor("query", query, shape, tuple(BF16))
    batch, heads, query_length, head_dim = query.shape[-4:]
    _check_sizes(("batch size", batch, MAX_GRID), ("L_q", query_length, MAX_QUERIES), *_limits(heads, head_dim))
    if parents is not None:
        _check_integers("parents", parents, (batch, query_length), ("query", query))


def _check_packed_query(query: Tensor, cu_seq_q: Tensor, parents: Tensor | None) -> int:
    """The query that cu_seq_q parts into sequences; returns how many these are."""
    check_tensor("query", query, ("total_q", "H", "d"), tuple(BF16))
    _check_integers("cu_seq_q", cu_seq_q, ("B + 1",), ("query", query))
    _check_sizes(*_limits(*query.shape[1:]))
    if cu_seq_q.shape[0] == 1:
        raise ValueError("cu_seq_q has 1 element; it must be [B + 1], with B of at least 1")
    if parents is not None:
        raise ValueError("parents is given, and so is cu_seq_q; at most one of them may be")
    return cu_seq_q.shape[0] - 1


def _limits(heads: int, head_dim: int) -> tuple[tuple[str, int, int], ...]:
    return ("heads", heads, MAX_GRID), ("head dimension", head_dim, HEAD_DIMS[-1])


def _check_sizes(*limits: tuple[str, int, int]) -> None:
    for what, size, most in limits:
        if size > most:
            others = "; paged_attention takes more with cu_seq_q" if what == "L_q" else ""
            raise ValueError(f"query has {what} {size}; it must be at most {most}{others}")


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
    """Checks tensors that are written in place: they cannot be copied first, and have no gradient."""
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
    """Scales are given if the keys are in E4M3, and only then."""
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


def checked_splits(num_splits: int | None, split_size: int | None) -> tuple[int, int]:
    """num_splits and split_size, 0 for None."""
    if num_splits is not None and split_size is not None:
        raise ValueError(f"num_splits is {num_splits} and split_size {split_size}; at most one of them may be given")
    splits = 0 if num_splits is None else integer("num_splits", num_splits, 1, MAX_GRID)
    # No cache has more keys, and torch's integers have 64 bits.
    return splits, 0 if split_size is None else min(integer("split_size", split_size, 1), 2**31)


def checked_window(window: int | None, parents: Tensor | None) -> int:
    """The window, 0 for None."""
    if window is None:
        return 0
    checked = min(integer("window", window, 1), MAX_KEYS)  # no cache has more keys
    if parents is not None:
        raise ValueError(f"window is {window}, and parents is given; the nodes of a tree have no window")
    return checked


def check_values(seq_lens: Tensor | None, parents: Tensor | None, capacity: int, **positive: Tensor | None) -> None:
    """Checks lengths, trees and scales by their numbers: on the CPU only, because on a GPU reading them would wait."""
    if seq_lens is not None and not ((seq_lens >= 0) & (seq_lens <= capacity)).all():
        raise ValueError(f"seq_lens is {seq_lens.tolist()}; each must be from 0 to {capacity}")
    if parents is not None:
        own = torch.arange(parents.shape[1], dtype=torch.int32)
        if not ((parents >= -1) & (parents < own)).all():
            raise ValueError(f"parents is {parents.tolist()}; entry i of each must be from -1 to i - 1")
    for name, scale in positive.items():
        if scale is not None and not (scale > 0).all():
            raise ValueError(f"{name} goes down to {scale.min().item()}; it must be positive")


def check_table(block_table: Tensor, seq_lens: Tensor, key_pages: Tensor, most: Tensor | int = MAX_KEYS) -> None:
    """Checks the numbers of the pages that the last `most` keys of each sequence are in, on the CPU only."""
    pages, page_size = key_pages.shape[-4:-2]
    first = torch.arange(block_table.shape[1]) * page_size  # key of each page
    used = (first < seq_lens[:, None]) & (first + page_size > seq_lens[:, None] - most)
    wrong = used & ((block_table < 0) | (block_table >= pages))
    if wrong.any():
        at = wrong.nonzero()[0].tolist()
        raise ValueError(f"block_table{at} is {int(block_table[*at])}; key_pages has pages 0 to {pages - 1}")
