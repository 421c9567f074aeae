"""One new token, a few or a chunk, against a long cache (kernels/06_serving), in fp16 and bf16, the cache also in E4M3.

The keys are cut into pieces, so that there is work for the whole GPU; a block attends one, and merge.cu adds up what
the blocks have found. The grid follows from the capacity of the cache, the pieces from the lengths on the device:
nothing waits for the GPU, and a captured graph can be replayed with other lengths and tables in the same tensors.
`decode_step` is the same for many layers in one launch, with what their new tokens bring to the cache.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from course_utils.arguments import check_tensor
from course_utils.costs import ceil_div
from course_utils.operators.library import Operator, operator
from course_utils.operators.prepare import (
    ALIGNMENT,
    autocast,
    check_ends,
    checked_scale,
    checked_softcap,
    cut,
    dense,
    empty_outputs,
    fake_attention,
    packed_outputs,
    padded,
    positive_factor,
)
from course_utils.operators.serving_checks import (
    MAX_KEYS,
    check_append,
    check_call,
    check_decode,
    check_merge,
    check_paged,
    check_paged_call,
    check_step,
    check_table,
    check_values,
    checked_splits,
    checked_window,
)
from course_utils.operators.serving_choice import E4M3, Call, group_queries, step_workspace
from course_utils.operators.serving_groups import groups_of
from course_utils.operators.serving_launch import ready_append, ready_attention, ready_merge, ready_step
from course_utils.operators.tensor_core import HEAD_DIMS

INSTEAD = "flash_attention_v2, which is for training"  # where a gradient is asked for


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
    check_decode(*inputs)
    return _call_operator(_decode, inputs, scale, num_splits, split_size, return_lse)


def paged_attention(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    cu_seq_q: Tensor | None = None,
    window: int | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
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
        cu_seq_q: int32 `[B + 1]` on the device of query, which then is `[total_q, H, d]`: sequence b has the rows
            `cu_seq_q[b]` to `cu_seq_q[b + 1] - 1`, as many as it likes, a chunk of a prompt or one token or none. It
            begins with 0 and never falls; on a GPU its numbers are not looked at, and others give wrong results. Rows
            behind the last sequence see no key. out is `[total_q, H, d]`, lse `[H, total_q]`. Not with parents.
        window: a query sees the last `window` keys up to itself. Pages in front of all windows of a sequence's queries,
            with cu_seq_q those more than 15 keys in front, are not read, and may have any number. Not with parents.
        sinks: float32 `[H]`: for each query head one more logit in the sum of exponentials, without a value; it is in
            lse, also for a query that sees no key.
        softcap: `softcap · tanh(S / softcap)` takes the place of the scaled scores S.
    """
    query, key_pages, value_pages = autocast(query, key_pages, value_pages)
    inputs = query, key_pages, value_pages, block_table, seq_lens, cu_seq_q, parents, k_scale, v_scale, sinks
    check_paged(*inputs)
    inputs += checked_window(window, parents), checked_softcap(softcap)
    return _call_operator(_paged, inputs, scale, num_splits, split_size, return_lse)


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
        key_pages, value_pages: `[pages, page_size, H_kv, d]`, contiguous, in the dtype of key or in float8_e4m3fn; not
            memory that is only to be read, as of some NumPy arrays, which torch cannot tell from other memory.
        block_table: int32 `[B, max_pages]`, as `paged_attention` takes it. No two sequences may write to one place.
        seq_lens: int32 `[B]`: the lengths with the new tokens, those that `paged_attention` then takes.
        k_scale, v_scale: float32 `[B, H_kv]`, positive, with pages in E4M3 and only then: what is written is
            `key / k_scale`, rounded to the nearest, and beyond 448 to that.

    Raises:
        TypeError, ValueError: as `paged_attention`.
    """
    inputs = key, value, key_pages, value_pages, block_table, seq_lens, k_scale, v_scale
    check_append(*inputs)
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
    check_step(*inputs)
    return _call_operator(_step, inputs, scale, num_splits, split_size, return_lse)


def _call_operator(
    operator: Operator,
    inputs: tuple[Any, ...],
    scale: float | None,
    num_splits: int | None,
    split_size: int | None,
    return_lse: bool,
) -> Tensor | tuple[Tensor, Tensor]:
    """Calls the operator with checked arguments, query first, and with numbers that are checked here."""
    factor = inputs[0].shape[-1] ** -0.5 if scale is None else checked_scale(scale, ", or None for 1 / sqrt(d)")
    out, lse = operator(*inputs, factor, *checked_splits(num_splits, split_size))
    return (out, lse) if return_lse else out


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
    num_splits: int | None = None,
    split_size: int | None = None,
    parents: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`paged_attention` of sequences that all begin with the same prefix, which is read once for all of them.

    The prefix is attended by the queries of all sequences together, as if they were heads of one sequence; then
    `merge_attention` joins it with what each sequence has of its own. So the parts are rounded to 16 bits once more.

    Args:
        query: `[B, H, L_q, d]`, as for `paged_attention`.
        prefix_key, prefix_value: `[H_kv, P, d]`, in the dtype of query: seen by every query.
        key_pages, value_pages, block_table, seq_lens: each sequence's own tokens, with those of the queries.
        num_splits, split_size, parents, k_scale, v_scale: those of `paged_attention`, for the own tokens.

    Returns, Raises: as `paged_attention`.
    """
    options = {"num_splits": num_splits, "split_size": split_size, "parents": parents}
    options |= {"scale": scale, "k_scale": k_scale, "v_scale": v_scale, "return_lse": True}
    own = paged_attention(query, key_pages, value_pages, block_table, seq_lens, **options)
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
    check_merge(outs, lses)
    return _merge(outs, lses)


# ---------------------------------------------------------------------------------------------- the operators


@operator(
    "decode_attention(Tensor query, Tensor key, Tensor value, Tensor? seq_lens, Tensor? parents, Tensor? k_scale, "
    "Tensor? v_scale, float scale, SymInt num_splits, SymInt split_size) -> (Tensor out, Tensor lse)",
    fake=fake_attention,
    check=functools.partial(check_call, check_decode),
    flops=lambda query, key, *_: _flops(query, key.shape[2]),
    instead=INSTEAD,
)
def _decode(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    seq_lens, parents, k_scale, v_scale, *numbers = others
    _, kv_heads, capacity, _ = key.shape
    if query.is_cpu:
        check_values(seq_lens, parents, capacity, k_scale=k_scale)
    more = seq_lens, parents, k_scale, v_scale, None, None
    return _attend(query, key, value, more, kv_heads, capacity, (), *numbers)


@operator(
    "paged_attention(Tensor query, Tensor key_pages, Tensor value_pages, Tensor block_table, Tensor seq_lens, "
    "Tensor? cu_seq_q, Tensor? parents, Tensor? k_scale, Tensor? v_scale, Tensor? sinks, SymInt window, "
    "float softcap, float scale, SymInt num_splits, SymInt split_size) -> (Tensor out, Tensor lse)",
    fake=lambda query, *others: packed_outputs(query) if query.dim() == 3 else empty_outputs(query),
    check=check_paged_call,
    flops=lambda query, key_pages, value_pages, block_table, *others: _flops(
        query, min(block_table.shape[1] * key_pages.shape[1], others[6] or MAX_KEYS)
    ),
    instead=INSTEAD,
)
def _paged(query: Tensor, key_pages: Tensor, value_pages: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    block_table, seq_lens, cu_seq_q, parents, k_scale, v_scale, sinks, window, softcap, *numbers = others
    _, page_size, kv_heads, _ = key_pages.shape
    pages = block_table.shape[1], page_size
    capacity = math.prod(pages)
    if query.is_cpu:
        check_values(seq_lens, parents, capacity, k_scale=k_scale)
    groups = None
    if cu_seq_q is not None:
        check_ends("cu_seq_q", cu_seq_q, len(query))
        width = group_queries(query.shape[1] // kv_heads)
        groups = groups_of(cu_seq_q, seq_lens.clamp(max=capacity), len(query), width)
    if query.is_cpu:
        in_groups = ceil_div(cu_seq_q.diff(), width)[:, None] * width if groups else query.shape[2]
        check_table(block_table, seq_lens, key_pages, window + in_groups - 1 if window else MAX_KEYS)
    if groups:
        query, seq_lens = groups.queries(query), groups.seq_lens
        block_table, k_scale, v_scale = map(groups.of_sequences, (block_table, k_scale, v_scale))
    if window >= capacity:
        window = 0
    seen = min(capacity, window + query.shape[2] - 1) if window else capacity
    more = seq_lens, parents, k_scale, v_scale, block_table, sinks
    found = _attend(query, key_pages, value_pages, more, kv_heads, seen, pages, *numbers, window, softcap)
    return groups.rows(*found) if groups else found


@operator(
    "merge_attention(Tensor outs, Tensor lses) -> (Tensor out, Tensor lse)",
    fake=lambda outs, lses: (outs.new_empty(outs.shape[1:]), lses.new_empty(lses.shape[1:])),
    check=check_merge,
    instead=INSTEAD,
)
def _merge(outs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
    head_dim = outs.shape[-1]
    outs, lses = padded(outs, 4 * ceil_div(head_dim, 4)), dense(lses)
    out, lse = empty_outputs(outs[0])
    ready_merge(outs.shape, outs.dtype, outs.device)(outs, lses, out, lse)
    return cut(out, head_dim), lse


@operator(
    "append_paged(Tensor key, Tensor value, Tensor(a!) key_pages, Tensor(b!) value_pages, Tensor block_table, "
    "Tensor seq_lens, Tensor? k_scale, Tensor? v_scale) -> ()",
    fake=lambda *_: None,
    check=check_append,
    instead=INSTEAD,
)
def _append(key: Tensor, value: Tensor, key_pages: Tensor, value_pages: Tensor, *others: Any) -> None:
    block_table, seq_lens, k_scale, v_scale = others
    if key.is_cpu:
        check_values(seq_lens, None, block_table.shape[1] * key_pages.shape[1], k_scale=k_scale, v_scale=v_scale)
        check_table(block_table, seq_lens, key_pages)
    pages = _writable(key_pages, value_pages)
    launch = ready_append(
        key.shape, (block_table.shape[1], key_pages.shape[1]), key.dtype, pages[0].element_size(), key.device
    )
    launch(dense(key), dense(value), *pages, *_given(block_table, seq_lens, k_scale, v_scale))
    increment_version([key_pages, value_pages])


@operator(
    "decode_step(Tensor query, Tensor key, Tensor value, Tensor(a!) key_pages, Tensor(b!) value_pages, "
    "Tensor block_table, Tensor seq_lens, Tensor? parents, Tensor? k_scale, Tensor? v_scale, Tensor(c!)? workspace, "
    "float scale, SymInt num_splits, SymInt split_size) -> (Tensor out, Tensor lse)",
    fake=fake_attention,
    check=functools.partial(check_call, check_step),
    flops=lambda query, key, value, key_pages, value_pages, block_table, *_: _flops(
        query, block_table.shape[1] * key_pages.shape[2]
    ),
    instead=INSTEAD,
)
def _step(
    query: Tensor, key: Tensor, value: Tensor, key_pages: Tensor, value_pages: Tensor, *others: Any
) -> tuple[Tensor, Tensor]:
    block_table, seq_lens, parents, k_scale, v_scale, workspace, scale, *splits = others
    batch = query.shape[1]
    _, pages, page_size, kv_heads, _ = key_pages.shape
    max_pages = block_table.shape[1]
    if query.is_cpu:
        check_values(seq_lens, parents, max_pages * page_size, k_scale=k_scale, v_scale=v_scale)
        check_table(block_table, seq_lens, key_pages)
        if workspace is not None and workspace.any():
            raise ValueError("workspace is not zeros; it must be, and a step leaves it so")
    query, factor = positive_factor(query, scale)
    q, cache = dense(query), _writable(key_pages, value_pages)
    call = Call(
        *(q.shape, kv_heads, max_pages * page_size, (max_pages, page_size), q.dtype, cache[0].element_size(), q.device),
        *(True, parents is not None, factor, *splits),
    )
    if workspace is None:
        workspace = torch.zeros(step_workspace(batch, kv_heads), dtype=torch.int32, device=q.device)
    more = _given(seq_lens, parents, block_table, k_scale, v_scale)
    results = ready_step(call, pages)((q, dense(key), dense(value), *cache), (*more, workspace))
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
    window: int = 0,
    softcap: float = 0,
) -> tuple[Tensor, Tensor]:
    """more: seq_lens, parents, the two scales, the block table and sinks. pages, window, softcap: as for a `Call`."""
    head_dim, (seq_lens, parents, *_, sinks) = query.shape[-1], more
    query, factor = positive_factor(query, scale)
    key, value = _readable(key, value)
    q = padded(query, key.shape[-1])
    call = Call(
        *(q.shape, kv_heads, capacity, pages, q.dtype, key.element_size(), q.device),
        *(seq_lens is not None, parents is not None, factor, num_splits, split_size),
        *(window, softcap, sinks is not None),
    )
    out, lse = ready_attention(call)((q, key, value), _given(*more))
    return cut(out, head_dim), lse


def _given(*tensors: Tensor | None) -> tuple[Tensor, ...]:
    """The tensors that are not None, as the kernels read them."""
    return tuple([tensor.contiguous() for tensor in tensors if tensor is not None])


def _flops(query: Tensor, capacity: int) -> int:
    """FLOPs of the products with a full cache: the lengths are on the device, and reading them would wait for it."""
    return 4 * query.numel() * capacity


# ---------------------------------------------------------------------------------------------- layout


def _readable(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values as the kernels read them: d filled up to 64 or 128, E4M3 as bytes."""
    columns = key.shape[-1]
    if columns not in HEAD_DIMS:
        columns = next(d for d in HEAD_DIMS if d >= columns)
    if key.dtype == E4M3:
        key, value = key.view(torch.uint8), value.view(torch.uint8)
    return padded(key, columns), padded(value, columns)


def _writable(key_pages: Tensor, value_pages: Tensor) -> tuple[Tensor, Tensor]:
    """Pages as the kernels write to them: in place, E4M3 as bytes."""
    for name, pages in (("key_pages", key_pages), ("value_pages", value_pages)):
        if pages.data_ptr() % ALIGNMENT:
            raise ValueError(f"{name} begins at an address that is no multiple of {ALIGNMENT}, as it must be")
    if key_pages.dtype == E4M3:
        return key_pages.view(torch.uint8), value_pages.view(torch.uint8)
    return key_pages, value_pages
