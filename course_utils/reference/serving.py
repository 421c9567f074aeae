"""What attention of a few queries over a long cache should return, in float64.

Of a sequence of n keys, query i of L_q stands at position `i + n - L_q`. It sees the keys before the queries, itself,
and of the other queries those before it or, in a tree, its ancestors.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from course_utils.reference.dense import attention, causal_mask
from course_utils.reference.e4m3 import E4M3


def decode_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    seq_lens: Tensor | None = None,
    scale: float | None = None,
    parents: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    window: int | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale · Q Kᵀ) V in float64, sequence by sequence.

    Args:
        query: `[B, H, L_q, d]`; key, value: `[B, H_kv, L, d]`, any floating dtypes.
        seq_lens: `[B]`, how many of the L keys count; None: all.
        parents: `[B, L_q]`, the queries as a tree, -1 for a root; None: a chain.
        k_scale, v_scale: `[B, H_kv]`, factors of the numbers in key and value.
        window, sinks, softcap: as for `attention`.

    Returns:
        float64 `[B, H, L_q, d]`, zeros for a query that sees no key; with return_lse `(out, lse)`, lse `[B, H, L_q]`,
        minus infinity for such a query, or the sink.
    """
    key, value = (
        tensor.double() if factor is None else tensor.double() * factor.double()[..., None, None]
        for tensor, factor in ((key, k_scale), (value, v_scale))
    )
    outs, lses = [], []
    for b, length in enumerate([key.shape[2]] * len(key) if seq_lens is None else seq_lens.tolist()):
        q, k, v = query[b : b + 1].double(), key[b : b + 1, :, :length], value[b : b + 1, :, :length]
        if length:
            mask = seen_keys(q.shape[2], length, None if parents is None else parents[b].tolist()).to(q.device)
            model = {"window": window, "sinks": sinks, "softcap": softcap, "scale": scale}
            out, lse = attention(q, k, v, attn_mask=mask, enable_gqa=True, return_lse=True, **model)
        else:
            out, lse = torch.zeros_like(q), q.new_full(q.shape[:3], -torch.inf)
            lse = lse if sinks is None else sinks.double()[:, None].expand_as(lse)
        outs.append(out)
        lses.append(lse)
    out, lse = torch.cat(outs), torch.cat(lses)
    return (out, lse) if return_lse else out


def seen_keys(query_length: int, length: int, parents: list[int] | None = None) -> Tensor:
    """Which of `length` keys the last queries see, bool `[L_q, length]`; parents: of each query in a tree, -1 for a
    root, None for a chain."""
    if parents is None:
        return causal_mask(query_length, length)
    seen = torch.zeros(query_length, length + query_length, dtype=torch.bool)  # as many keys more in front as it takes
    seen[:, :length] = True
    for i in range(query_length):
        ancestor = i
        while ancestor >= 0:
            seen[i, length + ancestor] = True
            ancestor = parents[ancestor]
    return seen[:, query_length:]


def paged_attention(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    cu_seq_q: Tensor | None = None,
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """`decode_attention` over pages `[pages, page_size, H_kv, d]`: key j of sequence b is row `j % page_size` of page
    `block_table[b, j // page_size]`. options: the keyword arguments of `decode_attention`. With cu_seq_q query is
    `[total_q, H, d]`, and rows `cu_seq_q[b]` to `cu_seq_q[b + 1] - 1` are the queries of sequence b; lse
    `[H, total_q]`."""
    page_size = key_pages.shape[1]
    positions = torch.arange(int(seq_lens.max()) if len(seq_lens) else 0, device=query.device)
    pages = block_table.long()[:, positions // page_size]
    pages = pages.masked_fill(positions >= seq_lens[:, None], 0)  # entries past a sequence's end may be anything
    places = pages, positions % page_size
    if key_pages.dtype == E4M3:  # as bytes: on the CPU, torch 2.9 indexes no E4M3
        key, value = (tensor.view(torch.uint8)[places].view(E4M3) for tensor in (key_pages, value_pages))
    else:
        key, value = key_pages[places], value_pages[places]
    key, value = key.transpose(1, 2), value.transpose(1, 2)
    if cu_seq_q is None:
        return decode_attention(query, key, value, seq_lens=seq_lens, **options)
    return_lse = options.pop("return_lse", False)
    scales = {name: options.pop(name) for name in ("k_scale", "v_scale") if options.get(name) is not None}
    unseen = query.transpose(0, 1)[None], key[:1, :, :0], value[:1, :, :0]  # for rows behind the last sequence
    out, lse = decode_attention(*unseen, **options, return_lse=True)
    for b, (first, end) in enumerate(itertools.pairwise(cu_seq_q.tolist())):
        if first < end:
            queries = query[first:end].transpose(0, 1)[None]
            own = {name: scale[b, None] for name, scale in scales.items()} | {"seq_lens": seq_lens[b, None]}
            found = decode_attention(queries, key[b, None], value[b, None], **own, **options, return_lse=True)
            out[:, :, first:end], lse[:, :, first:end] = found
    out, lse = out[0].transpose(0, 1), lse[0]
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
) -> tuple[Tensor, Tensor]:
    """Copies of the pages `[pages, page_size, H_kv, d]` with the last n tokens of each sequence, `[B, n, H_kv, d]`, at
    their places: token i is number `seq_lens[b] - n + i`. Scales `[B, H_kv]`: pages in E4M3 get the numbers divided by
    them, those beyond ±448 as ±448."""
    made = []
    for tokens, pages, scale in ((key, key_pages, k_scale), (value, value_pages, v_scale)):
        written = pages.clone()
        for b, length in enumerate(seq_lens.tolist()):
            for i, numbers in enumerate(tokens[b]):
                j = length - tokens.shape[1] + i
                if j < 0:
                    continue
                if scale is not None:
                    numbers = (numbers.float() / scale[b][:, None]).clamp(-448, 448).to(pages.dtype)
                written[block_table[b, j // pages.shape[1]], j % pages.shape[1]] = numbers
        made.append(written)
    return made[0], made[1]


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
) -> Tensor | tuple[Tensor, Tensor]:
    """`paged_attention` of sequences that each begin with a prefix `[H_kv, P, d]`, before the keys in their pages."""
    page_size, outs, lses = key_pages.shape[1], [], []
    for b, length in enumerate(seq_lens.tolist()):
        positions = torch.arange(length, device=query.device)
        pages = block_table[b].long()[positions // page_size]
        own = (tensor[pages, positions % page_size].transpose(0, 1) for tensor in (key_pages, value_pages))
        key, value = (torch.cat(both, dim=1)[None] for both in zip((prefix_key, prefix_value), own, strict=True))
        out, lse = decode_attention(query[b : b + 1], key, value, scale=scale, return_lse=True)
        outs.append(out)
        lses.append(lse)
    out, lse = torch.cat(outs), torch.cat(lses)
    return (out, lse) if return_lse else out


def merge_attention(outs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over the union of N disjoint sets of keys, float64: outs `[N, ..., d]`, lses `[N, ...]`. A part whose
    log-sum-exp is minus infinity is left out, whatever its out holds."""
    lses = lses.double()
    lse = torch.logsumexp(lses, dim=0)
    weights = torch.exp(lses - lse.masked_fill(lse == -torch.inf, 0.0))[..., None]
    return (outs.double().masked_fill(weights == 0, 0.0) * weights).sum(dim=0), lse
