"""Launches of chapter 06's kernels, and the first rungs of its ladder, which no operator launches."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.cuda import compiled
from course_utils.launches.arguments import ints, normal
from course_utils.launches.launch import Launch
from course_utils.operators import serving_choice, serving_launch
from course_utils.operators.tensor_core import BF16_OPTION

FOLDER = "06_serving"
WARPS = 4  # of warp_per_head
RUNGS = {"warp_per_head": "a warp per query head", "packed_heads": "packed heads"}


def rung(name: str, query: Tensor, key: Tensor, value: Tensor, seq_lens: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Out and log-sum-exp by one of `RUNGS`, for contiguous tensors of 16 bits as `decode_attention` takes them, d 64
    or 128."""
    out, lse = torch.empty_like(query), query.new_empty(query.shape[:3], dtype=torch.float32)
    lengths = lse.view(torch.int32) if seq_lens is None else seq_lens
    options, grid, block, numbers, shared = _launched(name, query, key, seq_lens is not None)
    compiled(f"{FOLDER}/{name}.cu", options).get_function(name)(
        grid, block, (query, key, value, out, lse, lengths, *numbers), shared_mem=shared
    )
    return out, lse


def _launched(name: str, query: Tensor, key: Tensor, ragged: bool) -> tuple[tuple, tuple, tuple, tuple, int]:
    """Options, grid, block, the last arguments and the bytes of shared memory of a rung."""
    (batch, heads, query_length, head_dim), (_, kv_heads, capacity, _) = query.shape, key.shape
    group, scale = heads // kv_heads, np.float32(head_dim**-0.5)
    last = *ints(capacity, query_length, group), scale, np.int32(ragged)
    bf16 = BF16_OPTION[query.dtype]
    if name == "warp_per_head":
        options = f"-DD={head_dim}", bf16, f"-DWARPS={WARPS}"
        grid = ceil_div(heads * query_length, WARPS), batch
        return options, grid, (32, WARPS), (*ints(batch, heads), *last), 0
    row_tiles = ceil_div(group * query_length, serving_choice.block_rows(group * query_length))
    grid = row_tiles, kv_heads, batch
    tile = serving_choice.decode_tile(group * query_length, math.prod(grid), head_dim, key.element_size(), key.device)
    return (*tile.options, bf16), grid, tile.block, (*ints(batch), *last), tile.shared_bytes


# ---------------------------------------------------------------------------------------------- for the sanitizers


def hard() -> dict[str, Launch]:
    """Each kernel where most can go wrong: a sequence without keys, one shorter than its queries, pieces that end
    within a tile, a tree of queries, pages of 5 keys in any order, and a table with junk past the ends."""
    launches = _kernels(torch.float16, 64)
    wide = _kernels(torch.bfloat16, 128)
    in_e4m3 = {name: launch for name, launch in wide.items() if "-DCACHE_BITS=8" in launch.options}
    return launches | in_e4m3 | {name: launch for name, launch in wide.items() if "e4m3" in launch.source}


def _kernels(dtype: torch.dtype, head_dim: int) -> dict[str, Launch]:
    batch, heads, kv_heads, queries, keys, page_size, size = 3, 6, 2, 3, 500, 5, 440
    group, pages = heads // kv_heads, batch * keys // page_size
    lengths = torch.tensor([keys, 0, 2], dtype=torch.int32)
    parents = torch.tensor([[-1, 0, 0], [-1, -1, 1], [-1, 0, 1]], dtype=torch.int32)
    table = torch.randperm(pages, generator=torch.Generator().manual_seed(0)).int().view(batch, -1)
    table = table.masked_fill(page_size * torch.arange(table.shape[1]) >= lengths[:, None], 2**31 - 1)
    query = normal(batch, heads, queries, head_dim).to(dtype)
    out, lse = torch.empty_like(query), torch.empty(batch, heads, queries)
    rows = [normal(batch, kv_heads, keys, head_dim).to(dtype) for _ in range(2)]
    in_pages = [normal(pages, page_size, kv_heads, head_dim).to(dtype) for _ in range(2)]
    bf16, launches = BF16_OPTION[dtype], {}

    def add(file: str, kernel: str, grid: tuple, block: tuple, args: tuple, options: tuple, shared: int = 0) -> None:
        name = f"serving {kernel}, D={head_dim}"
        launches[name] = Launch(f"{FOLDER}/{file}.cu", kernel, grid, block, args, options, shared)

    for name in RUNGS:
        options, grid, block, numbers, shared = _launched(name, query, rows[0], ragged=True)
        add(name, name, grid, block, (query, *rows, out, lse, lengths, *numbers), options, shared)

    pieces = batch + 1  # of the first sequence two: in one the stages are filled again, one is short
    parts, lse_parts = torch.zeros(pieces, heads * queries, head_dim), torch.zeros(pieces, heads * queries)
    sizes = *ints(batch, keys, queries, group), np.float32(head_dim**-0.5), *ints(1, 1, 0, size)
    scales = torch.full((batch, kv_heads), 0.5), torch.full((batch, kv_heads), 2.0)
    of_pages = table, *ints(table.shape[1], page_size, 0), np.float32(0), torch.empty(0)  # no window, softcap, sinks
    for file, kernel, cache, more in (
        ("split_keys", "split_keys", rows, ()),
        ("paged_cache", "paged_cache", in_pages, of_pages),
        ("e4m3_cache", "e4m3_cache", rows, scales),
        ("e4m3_cache", "e4m3_paged_cache", in_pages, (*scales, *of_pages)),
    ):
        numbers = (
            [tensor.to(serving_choice.E4M3).view(torch.uint8) for tensor in cache] if file == "e4m3_cache" else cache
        )
        tile = serving_choice.TILES[head_dim, 16, numbers[0].element_size()].small
        args = query, *numbers, out, lse, parts, lse_parts, lengths, parents, *sizes, *more
        add(file, kernel, (1, kv_heads, pieces), tile.block, args, (*tile.options, bf16), tile.shared_bytes)

    eight, layers = head_dim == 128, 2
    bits = f"-DCACHE_BITS={8 if eight else 16}"
    new = [normal(layers, batch, queries, kv_heads, head_dim).to(dtype) for _ in range(2)]
    cache = [normal(layers, pages, page_size, kv_heads, head_dim).to(dtype) for _ in range(2)]
    if eight:
        cache = [tensor.to(serving_choice.E4M3).view(torch.uint8) for tensor in cache]
    tile = serving_choice.TILES[head_dim, 16, cache[0].element_size()].small
    scales = [scale.expand(layers, -1, -1).contiguous() for scale in scales]
    of_one = *(tensor[0] for tensor in (*new, *cache)), table, lengths, *(scale[0] for scale in scales)
    args = *of_one, *ints(batch, queries, kv_heads, head_dim, table.shape[1], page_size)
    threads = serving_launch.APPEND_THREADS
    add("append", "append_paged", (ceil_div(new[0][0].numel() // 8, threads),), (threads,), args, (bf16, bits))
    many = [tensor.expand(layers, *tensor.shape).contiguous() for tensor in (query, out, lse)]
    counters = torch.zeros(serving_choice.step_workspace(batch, kv_heads), dtype=torch.int32)
    args = many[0], *new, *cache, *many[1:], parts, lse_parts, lengths, parents, table, *scales, counters
    args += ints(layers, batch, pages, table.shape[1], page_size, queries, kv_heads, group)
    args += np.float32(head_dim**-0.5), *ints(1, 0, size, pieces)
    options = *tile.options, bf16, bits
    add("persistent_step", "persistent_step", (3,), tile.block, args, options, tile.shared_bytes)

    options = bf16, "-DPART_BITS=32", "-DO_BITS=16"
    args = parts, lse_parts, out, lse, lengths, *ints(batch, keys, head_dim, 1, 0, size)
    add("merge", "merge_pieces", (heads * queries, batch), serving_launch.MERGE_BLOCK, args, options)
    args = parts, lse_parts, out[0], lse[0], *ints(pieces, head_dim)
    add("merge", "merge_attention", (heads * queries,), serving_launch.MERGE_BLOCK, args, options)
    return launches
