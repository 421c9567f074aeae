"""What attention of a few queries over a long cache should return, in float64.

Of a sequence of n keys, query i of L_q stands at position `i + n - L_q`. It sees the keys before the queries, itself,
and of the other queries those before it or, in a tree, its ancestors.
"""

from __future__ import annotations

import torch
from torch import Tensor

from course_utils.reference.dense import attention, causal_mask


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
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale · Q Kᵀ) V in float64, sequence by sequence.

    Args:
        query: `[B, H, L_q, d]`; key, value: `[B, H_kv, L, d]`, any floating dtypes.
        seq_lens: `[B]`, how many of the L keys count; None: all.
        parents: `[B, L_q]`, the queries as a tree, -1 for a root; None: a chain.
        k_scale, v_scale: `[B, H_kv]`, factors of the numbers in key and value.

    Returns:
        float64 `[B, H, L_q, d]`, zeros for a query that sees no key; with return_lse `(out, lse)`, lse `[B, H, L_q]`,
        minus infinity for such a query.
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
            out, lse = attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True, return_lse=True)
        else:
            out, lse = torch.zeros_like(q), q.new_full(q.shape[:3], -torch.inf)
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
    **options: Tensor | float | bool | None,
) -> Tensor | tuple[Tensor, Tensor]:
    """`decode_attention` over pages `[pages, page_size, H_kv, d]`: key j of sequence b is row `j % page_size` of page
    `block_table[b, j // page_size]`. options: the keyword arguments of `decode_attention`."""
    page_size = key_pages.shape[1]
    positions = torch.arange(int(seq_lens.max()) if len(seq_lens) else 0, device=query.device)
    pages = block_table.long()[:, positions // page_size]
    pages = pages.masked_fill(positions >= seq_lens[:, None], 0)  # entries past a sequence's end may be anything
    key, value = (tensor[pages, positions % page_size].transpose(1, 2) for tensor in (key_pages, value_pages))
    return decode_attention(query, key, value, seq_lens=seq_lens, **options)


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
