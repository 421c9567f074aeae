"""The first rungs of chapter 06, and its step in one launch, in Triton: what a user would write without CUDA.

The same work in the same pieces, in fp16 and bf16, for one query of each sequence. Triton takes over the threads: a
program is a block, and its tensors are distributed over them, with the copies through shared memory. What Triton cannot
express is left out: a program of the step reads the cache only after it has waited, where the CUDA kernel already loads
the keys in the meantime.

Import this only where Triton is installed.
"""
# ruff: noqa: E741 (the papers call them O and l)

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.operators.serving_choice import step_workspace

ROWS, KEYS = 16, 64  # of a tile: tl.dot takes no fewer rows than 16
WARPS, STAGES = 4, 3
LOG2_E = tl.constexpr(1.4426950408889634)


# ---------------------------------------------------------------------------------------------- kernels


@triton.jit
def warp_per_head(Q, K, V, O, LSE, length, group, scale, D: tl.constexpr):
    """Rung 1: a warp has a query head, and reads one key after the other. Grid (H, B)."""
    head, columns = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0), tl.arange(0, D)
    first = (head // group).to(tl.int64) * length * D
    q = tl.load(Q + head * D + columns).to(tl.float32)
    m, l, o = -float("inf"), 0.0, tl.zeros([D], tl.float32)
    for j in range(length):
        k = tl.load(K + first + j * D + columns).to(tl.float32)
        v = tl.load(V + first + j * D + columns).to(tl.float32)
        s = scale * tl.sum(q * k)
        m_new = tl.maximum(m, s)
        rescale, p = tl.exp(m - m_new), tl.exp(s - m_new)
        m, l, o = m_new, l * rescale + p, o * rescale + p * v
    tl.store(O + head * D + columns, o / l)
    tl.store(LSE + head, m + tl.log(l))


@triton.jit
def attend(
    q, K, V, table, first, end, page_size, pitch, scale, D: tl.constexpr, KEYS: tl.constexpr, PAGED: tl.constexpr
):
    """Keys [first, end) for the rows of q, [rows, D], heads that share them: out, fp32, and log-sum-exp. Key j is row j
    of K and V, or the row that the table names."""
    columns = tl.arange(0, D)
    m, l = tl.full([q.shape[0]], -float("inf"), tl.float32), tl.zeros([q.shape[0]], tl.float32)
    o = tl.zeros([q.shape[0], D], tl.float32)
    for j0 in range(first, end, KEYS):
        j = j0 + tl.arange(0, KEYS)
        inside = j < end
        row = j
        if PAGED:
            row = tl.load(table + j // page_size, mask=inside, other=0) * page_size + j % page_size
        at = row[:, None].to(tl.int64) * pitch + columns[None, :]
        k = tl.load(K + at, mask=inside[:, None], other=0.0)
        v = tl.load(V + at, mask=inside[:, None], other=0.0)
        s = tl.dot(q, tl.trans(k)) * (scale * LOG2_E)
        s = tl.where(inside[None, :], s, -float("inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        rescale, p = tl.exp2(m - m_new), tl.exp2(s - m_new[:, None])
        l = l * rescale + tl.sum(p, 1)
        o = tl.dot(p.to(v.dtype), v, o * rescale[:, None])
        m = m_new
    lse = tl.where(l > 0, (m + tl.log2(l)) / LOG2_E, -float("inf"))
    return o / tl.where(l > 0, l, 1.0)[:, None], lse


@triton.jit
def pieces(
    Q, K, V, O, LSE, length, size, group, scale, D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr
):  # fmt: skip
    """Rungs 2 and 3: the query heads of a group are the rows of a tile, and a program has a piece of the keys; with one
    piece it has them all. Grid (H / group, B, pieces); O [pieces, B, H, D], LSE [pieces, B, H]."""
    head = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    rows, columns = tl.arange(0, ROWS), tl.arange(0, D)
    row, exists = head * group + rows, rows < group
    q = tl.load(Q + row[:, None] * D + columns[None, :], mask=exists[:, None], other=0.0)
    first = tl.program_id(2) * size
    keys = head.to(tl.int64) * length * D
    end = tl.minimum(first + size, length)
    o, lse = attend(q, K + keys, V + keys, K, first, end, 1, D, scale, D, KEYS, False)
    row += tl.program_id(2) * tl.num_programs(0) * tl.num_programs(1) * group
    tl.store(O + row[:, None] * D + columns[None, :], o, mask=exists[:, None])
    tl.store(LSE + row, lse, mask=exists)


@triton.jit
def merge_parts(O_parts, LSE_parts, first, pitch, parts, rows, exists, D: tl.constexpr):
    """Rows of all parts as one: part p of row r is row `first + p · pitch + r`. Out, fp32, and log-sum-exp."""
    columns = tl.arange(0, D)
    m = tl.full([rows.shape[0]], -float("inf"), tl.float32)
    l, o = tl.zeros([rows.shape[0]], tl.float32), tl.zeros([rows.shape[0], D], tl.float32)
    for p in range(parts):
        row = first + p * pitch + rows
        lse = tl.load(LSE_parts + row, mask=exists, other=0.0) * LOG2_E
        part = tl.load(O_parts + row[:, None] * D + columns[None, :], mask=exists[:, None], other=0.0)
        m_new = tl.maximum(m, lse)
        rescale, weight = tl.exp2(m - m_new), tl.exp2(lse - m_new)
        m, l, o = m_new, l * rescale + weight, o * rescale[:, None] + part * weight[:, None]
    return o / l[:, None], (m + tl.log2(l)) / LOG2_E


@triton.jit
def merge_pieces(O_parts, LSE_parts, O, LSE, parts, D: tl.constexpr):
    """Rung 3's second launch, a program for a row. Grid (B · H)."""
    rows, columns = tl.program_id(0) + tl.arange(0, 1), tl.arange(0, D)
    o, lse = merge_parts(O_parts, LSE_parts, 0, tl.num_programs(0), parts, rows, rows >= 0, D)
    tl.store(O + rows[:, None] * D + columns[None, :], o)
    tl.store(LSE + rows, lse)


@triton.jit
def persistent_step(
    Q, K_new, V_new, K, V, O, LSE, O_parts, LSE_parts, seq_lens, block_table, counters,
    layers, B, pages, max_pages, page_size, heads, group, splits, size, scale,
    D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, COUNTERS: tl.constexpr
):  # fmt: skip
    """Rung 9, as kernels/06_serving/persistent_step.cu: items from a queue, each depending only on earlier ones. Each
    sequence has up to `splits` pieces of `size` keys."""
    taken, left, done, arrived = counters, counters + 1, counters + 2, counters + 2 + B
    rows, columns = tl.arange(0, ROWS), tl.arange(0, D)
    exists = rows < group
    number = tl.atomic_add(taken, 1)
    while number < layers * B * splits * heads:
        head, part = number % heads, number // heads % splits
        b, layer = number // (heads * splits) % B, number // (heads * splits * B)
        length = tl.load(seq_lens + b)
        parts = tl.maximum((length + size - 1) // size, 1)
        if part < parts:
            first, end = part * size, tl.minimum((part + 1) * size, length)
            own = ((layer * B + b) * heads + head).to(tl.int64)
            cache = (layer.to(tl.int64) * pages * page_size * heads + head) * D
            table = block_table + b * max_pages
            while tl.load(done + b, volatile=True) < layer * heads:
                pass
            tl.atomic_add(done + b, 0, sem="acquire")
            tl.debug_barrier()
            if (end == length) & (length > 0):
                j = length - 1
                row = (tl.load(table + j // page_size) * page_size + j % page_size).to(tl.int64)
                tl.store(K + cache + row * heads * D + columns, tl.load(K_new + own * D + columns))
                tl.store(V + cache + row * heads * D + columns, tl.load(V_new + own * D + columns))
                tl.debug_barrier()
            q = tl.load(Q + (own * group + rows[:, None]) * D + columns[None, :], mask=exists[:, None], other=0.0)
            o, lse = attend(q, K + cache, V + cache, table, first, end, page_size, heads * D, scale, D, KEYS, True)
            last = parts == 1
            if parts > 1:
                row = ((b * splits + part) * heads + head) * group + rows
                tl.store(O_parts + row[:, None] * D + columns[None, :], o, mask=exists[:, None])
                tl.store(LSE_parts + row, lse, mask=exists)
                tl.debug_barrier()
                last = tl.atomic_add(arrived + b * heads + head, 1, sem="acq_rel") == parts * (layer + 1) - 1
                tl.debug_barrier()
                if last:
                    at = (b * splits * heads + head) * group
                    o, lse = merge_parts(O_parts, LSE_parts, at, heads * group, parts, rows, exists, D)
            if last:
                tl.store(O + (own * group + rows[:, None]) * D + columns[None, :], o, mask=exists[:, None])
                tl.store(LSE + own * group + rows, lse, mask=exists)
                tl.debug_barrier()
                tl.atomic_add(done + b, 1, sem="release")
        number = tl.atomic_add(taken, 1)
    if tl.atomic_add(left, 1, sem="acq_rel") == tl.num_programs(0) - 1:
        every = tl.arange(0, COUNTERS)
        tl.store(counters + every, 0, mask=every < 2 + B * (1 + heads))


# ---------------------------------------------------------------------------------------------- calls


def first_rung(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Out and log-sum-exp of query `[B, H, 1, d]` and a cache `[B, H_kv, L, d]`, contiguous, d 64 or 128, by a warp for
    each query head."""
    (batch, heads, _, head_dim), (_, kv_heads, length, _) = query.shape, key.shape
    out, lse = torch.empty_like(query), query.new_empty(batch, heads, 1, dtype=torch.float32)
    sizes = length, heads // kv_heads, head_dim**-0.5, head_dim
    warp_per_head[heads, batch](query, key, value, out, lse, *sizes, num_warps=1)
    return out, lse


def decode_attention(query: Tensor, key: Tensor, value: Tensor, *, splits: int = 1) -> tuple[Tensor, Tensor]:
    """Out and log-sum-exp of up to 16 query heads for each key head, with packed heads and, with splits, in so many
    pieces."""
    (batch, heads, _, head_dim), (_, kv_heads, length, _) = query.shape, key.shape
    size, group = ceil_div(length, splits), heads // kv_heads
    splits = ceil_div(length, size)
    out, lse = torch.empty_like(query), query.new_empty(batch, heads, 1, dtype=torch.float32)
    parts = (lse.new_empty(splits, *out.shape), lse.new_empty(splits, *lse.shape)) if splits > 1 else (out, lse)
    sizes = length, size, group, head_dim**-0.5, head_dim, ROWS, KEYS
    pieces[kv_heads, batch, splits](query, key, value, *parts, *sizes, num_warps=WARPS, num_stages=STAGES)
    if splits > 1:
        merge_pieces[(batch * heads,)](*parts, out, lse, splits, head_dim, num_warps=1)
    return out, lse


def decode_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    workspace: Tensor,
    *,
    split_size: int,
) -> tuple[Tensor, Tensor]:
    """`operators.decode_step` of one query of each sequence: `[layers, B, H, 1, d]`, contiguous, d 64 or 128, up to 16
    heads for each key head. split_size: keys of a piece."""
    (layers, batch, heads, _, head_dim), (_, pages, page_size, kv_heads, _) = query.shape, key_pages.shape
    max_pages = block_table.shape[1]
    splits = ceil_div(max_pages * page_size, split_size)
    out, lse = torch.empty_like(query), query.new_empty(layers, batch, heads, 1, dtype=torch.float32)
    parts = lse.new_empty(batch, splits, heads, head_dim), lse.new_empty(batch, splits, heads)
    sizes = layers, batch, pages, max_pages, page_size, kv_heads, heads // kv_heads, splits, split_size, head_dim**-0.5
    counters = triton.next_power_of_2(step_workspace(batch, kv_heads))
    blocks = 2 * torch.cuda.get_device_properties(query.device).multi_processor_count
    persistent_step[(blocks,)](
        *(query, key, value, key_pages, value_pages, out, lse, *parts, seq_lens, block_table, workspace),
        *(*sizes, head_dim, ROWS, KEYS, counters),
        num_warps=WARPS,
        num_stages=STAGES,
    )
    return out, lse
