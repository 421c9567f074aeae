"""Queries and a cache of keys and values, in rows and in pages."""

import itertools

import torch

from course_utils import checks

JUNK = 2**31 - 1


def ints(*values, device="cpu"):
    return torch.tensor(values, dtype=torch.int32, device=device)


def inputs(device, dtype, lengths, *, heads=4, kv_heads=1, queries=1, capacity=None, head_dim=64, kind="planted"):
    """Query, a cache of this capacity whose numbers past the lengths are NaN, and the lengths."""
    capacity = capacity or max(lengths) + 5
    case = checks.AttentionCase(len(lengths), heads, kv_heads, queries, capacity, head_dim, True, kind)
    query, key, value, _ = checks.make_inputs(case, dtype=dtype, device=device, seed=capacity)
    for b, length in enumerate(lengths):
        key[b, :, length:] = value[b, :, length:] = torch.nan
    return query, key, value, ints(*lengths, device=device)


def in_pages(cache, page_size, seq_lens):
    """The cache in pages at random places, the rest of them NaN, and a table with junk past each sequence's end."""
    batch, kv_heads, capacity, head_dim = cache[0].shape
    of_one = -(-capacity // page_size)
    table = torch.randperm(batch * of_one + 3, generator=torch.Generator().manual_seed(page_size))[: batch * of_one]
    table = table.view(batch, of_one)
    pages = [torch.full((batch * of_one + 3, page_size, kv_heads, head_dim), torch.nan).to(x) for x in cache]
    for (b, n), (tensor, made) in itertools.product(enumerate(seq_lens.tolist()), zip(cache, pages, strict=True)):
        j = torch.arange(n)
        made[table[b, j // page_size], j % page_size] = tensor[b, :, :n].transpose(0, 1)
    table[torch.arange(of_one) * page_size >= seq_lens.cpu()[:, None]] = JUNK
    return pages, table.int().to(cache[0].device)
