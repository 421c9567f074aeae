"""Launches of chapter 04's kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from course_utils import patterns
from course_utils.costs import ceil_div
from course_utils.cuda import ReadyLaunch
from course_utils.launches.arguments import ints, normal
from course_utils.launches.launch import Launch
from course_utils.operators import sparse_hopper, sparse_hopper_lists, sparse_launch, sparse_work
from course_utils.operators.attention import Call
from course_utils.operators.hopper_launch import ReadyBackward
from course_utils.operators.sparse_hopper_backward import ready_range_backward
from course_utils.operators.sparse_hopper_lists_backward import ready_list_backward
from course_utils.operators.tensor_core import BF16, HEAD_DIMS, BackwardTile

FOLDER = "04_sparse_patterns"
# Their source names what a row sees, or the bits of a block, again for each score. How often that is an access depends
# on the compiler, on a GPU and on the emulator, so that these are for the sanitizers only.
UNCOUNTED = ("range_forward", "block_sparse_forward", "range_dk_dv")


def course() -> dict[str, Launch]:
    """Each kernel at a length that does not fill its tiles, except kernels that only the sanitizers see."""
    return {name: launch for name, launch in _short().items() if launch.kernel not in UNCOUNTED}


def hard() -> dict[str, Launch]:
    """The kernels that `course` leaves out; and all of them where most can go wrong: bf16, two query heads to a key
    head, and a mask that leaves the first queries without a key. So for a Hopper GPU's kernels, with each d."""
    sizes = {"heads": 4, "kv_heads": 2, "queries": 200, "keys": 136, "head_dim": 128}
    uncounted = {name: launch for name, launch in _short().items() if launch.kernel in UNCOUNTED}
    of_hopper = {name: launch for head_dim in HEAD_DIMS for name, launch in _on_hopper(head_dim).items()}
    of_hopper |= _lists_on_hopper()
    return uncounted | _kernels("hard", torch.bfloat16, (patterns.dilated(16, 3),), **sizes) | of_hopper


def _short() -> dict[str, Launch]:
    kinds = patterns.sliding_window(40), patterns.streaming(4, 40), patterns.dilated(16, 3)
    return _kernels("L=200", torch.float16, kinds, heads=2, kv_heads=2, queries=200, keys=200, head_dim=64)


def _kernels(
    label: str,
    dtype: torch.dtype,
    of_ranges: Sequence[patterns.Pattern],
    *,
    heads: int,
    kv_heads: int,
    queries: int,
    keys: int,
    head_dim: int,
) -> dict[str, Launch]:
    """Every kernel, range_dk_dv for the last of the patterns of ranges only. The block lists have rows of
    several lengths, one of which is split in two."""
    query, out = (normal(1, heads, queries, head_dim).to(dtype) for _ in range(2))
    key, value = (normal(1, kv_heads, keys, head_dim).to(dtype) for _ in range(2))
    row = torch.zeros(1, heads, queries)
    lse = torch.full_like(row, 10.0).masked_fill(torch.arange(queries) < queries - keys, -torch.inf)
    gradients = out, lse, row, torch.zeros(1, heads, queries, head_dim), key.clone(), value.clone()
    scalars = *ints(queries, keys, heads // kv_heads), np.float32(head_dim**-0.5)
    bf16 = f"-DBF16={BF16[dtype]}"
    launches: dict[str, Launch] = {}

    def add(what, file, kernel, grid, threads, args, options, shared=0):
        launches[f"sparse {kernel}, {what}{label}"] = Launch(
            f"{FOLDER}/{file}.cu", kernel, (*grid, 1), (threads,), args, (*options, bf16), shared
        )

    forward, back = sparse_launch.RANGE_TILES[head_dim][0], sparse_launch.RANGE_BACKWARD_TILES[head_dim][0]
    for pattern in of_ranges:
        what = f"{pattern.kind}, "
        numbers, classes = ints(*pattern.ranges), pattern.ranges.dilation
        tiles = classes * ceil_div(ceil_div(queries, classes), forward.block_rows)
        args = query, key, value, out, row, *scalars, *numbers
        options = *forward.options, f"-DDILATED={int(classes > 1)}"
        add(what, "range", "range_forward", (tiles, heads), forward.threads, args, options, forward.shared_bytes)
    shapes, options = (query.shape, key.shape), (*back.options, f"-DDILATED={int(classes > 1)}")
    columns = sparse_work.range_columns(pattern.ranges, back, *shapes, query.device)
    inputs = query, key, value, *gradients, *scalars
    for kernel, *launch in _by_columns("range_dk_dv", back, columns, inputs, numbers):
        add(what, "range_backward", kernel, *launch[:3], options, *launch[3:])

    lists = (patterns.local(40) | patterns.global_tokens([3])).block_lists(queries, keys)
    ends = lists.indptr.tolist()
    items = [(n, ends[n], ends[n + 1], -1) for n in range(1, lists.rows)]
    items += [(0, 0, ends[1] // 2, 0), (0, ends[1] // 2, ends[1], 1)]
    parts = torch.zeros(2, 1, heads, lists.block, head_dim)
    tile = sparse_launch.BLOCK_TILES[head_dim, lists.block][0]
    of_lists = torch.tensor(items, dtype=torch.int32), lists.indices, lists.bits_index, lists.bits
    of_softmax = lists.indptr, np.float32(0), torch.zeros(0)  # neither a softcap nor sinks
    args = query, key, value, out, row, *of_lists, parts, parts[..., 0].contiguous(), *scalars, *of_softmax
    name = "block_sparse_forward"
    add("", "block_sparse", name, (len(items), heads), tile.threads, args, tile.options, tile.shared_bytes)
    args = parts, parts[..., 0].contiguous(), torch.tensor([(0, 0, 2, 0)], dtype=torch.int32), out, row, scalars[0]
    rows = sparse_launch.MERGED_ROWS
    add("", "block_sparse", "merge_parts", (lists.block // rows, heads), 32 * rows, args, tile.options)
    back = sparse_launch.BLOCK_BACKWARD_TILES[head_dim, lists.block][0]
    columns = sparse_launch.ListMask(lists).columns(back, *shapes)
    first, *others = columns.items.tolist()  # split in two, as a longer column is
    middle = (first[1] + first[2]) // 2
    halves = [first[0], first[1], middle, 0], [first[0], middle, first[2], 1]
    split = torch.tensor([(first[0], 0, 2, 0)], dtype=torch.int32)
    columns = columns._replace(items=torch.tensor([*halves, *others], dtype=torch.int32), split=split, parts=2)
    _, *by_key = lists.by_key()
    options = *back.options, "-DBLOCK=64"
    for kernel, *launch in _by_columns("block_sparse_dk_dv", back, columns, inputs, (*by_key, lists.bits)):
        add("", "block_sparse_backward", kernel, *launch[:3], options, *launch[3:])

    warps = sparse_launch.CSR_WARPS
    args = query, key, value, out, row, *patterns.power_of_two().csr(queries, keys), *scalars
    options = f"-DD={head_dim}", f"-DWARPS={warps}"
    add("", "csr_gather", "csr_gather", (ceil_div(queries, warps), heads), 32 * warps, args, options)
    return launches


def _on_hopper(head_dim: int) -> dict[str, Launch]:
    """The kernels of range_hopper.cu and range_backward_hopper.cu, with more items than blocks, and a column of keys
    that all queries see, which is cut; and for residue classes the first and the last kernel of a backward pass."""
    queries, keys, device = 1100, 1090, torch.device("cpu")
    query, grad_out = (normal(1, 2, queries, head_dim).bfloat16() for _ in range(2))
    key, value = (normal(1, 1, keys, head_dim).bfloat16() for _ in range(2))
    call = Call(query.shape, key.shape, query.dtype, device, head_dim**-0.5)
    launches: dict[str, Launch] = {}

    def add(what: str, ready: ReadyLaunch, *tensors: torch.Tensor) -> None:
        launches[f"sparse hopper {ready.kernel.name}, {what}, d={head_dim}, hard"] = Launch.of_ready(ready, *tensors)

    streaming, dilated = patterns.streaming(4, 40).ranges, patterns.dilated(16, 2).ranges
    documents = patterns.document([500, 590]) & patterns.causal()
    out, lse = torch.zeros_like(query), torch.zeros(query.shape[:3])
    attend = query, key, value, out, lse
    add("streaming", sparse_hopper.range_forward(call, streaming), *attend)
    add("dilated", sparse_hopper.range_forward(call, dilated), *attend)
    add("documents", sparse_hopper.table_forward(call, documents.row_ranges(queries, keys, device=device)), *attend)
    gradients = torch.zeros_like(key), torch.zeros_like(value)
    for deterministic, how in ((False, ""), (True, " in turns")):
        of_streaming, of_dilated = (
            ready_range_backward(call, ranges, deterministic=deterministic) for ranges in (streaming, dilated)
        )
        inputs = query, grad_out, key, value, *gradients
        parts = torch.zeros(of_streaming.backward.shape)
        add(f"streaming{how}", of_streaming.backward.attend, *inputs, *_between(of_streaming), parts)
        add(f"dilated{how}", of_dilated.backward, *inputs, *_between(of_dilated))
    add("streaming", of_streaming.backward.merge, parts, *gradients)
    statistics, dq_sum, turns = _between(of_dilated)
    add("dilated", of_dilated.prepare, out, grad_out, lse, statistics, dq_sum, turns)
    add("dilated", of_dilated.finish, dq_sum, torch.zeros_like(query))
    return launches


def _between(ready: ReadyBackward) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Statistics, sums of dQ and turns for the launches of a backward pass, all 0."""
    statistics, dq_sum, turns = map(torch.zeros, ready.sizes)
    return statistics, dq_sum, turns.int()


def _lists_on_hopper() -> dict[str, Launch]:
    """block_sparse_hopper.cu, with more items than blocks, and a block of queries that sees all keys, whose list is
    cut; block_sparse_backward_hopper.cu, with keys that all queries see, whose column is cut."""
    queries, keys, head_dim = 640, 2200, sparse_hopper_lists.HEAD_DIM
    query, key, value = (normal(1, heads, n, head_dim).bfloat16() for heads, n in ((2, queries), (1, keys), (1, keys)))
    call = Call(query.shape, key.shape, query.dtype, query.device, head_dim**-0.5)
    lists = (patterns.local(40) | patterns.global_tokens([3, 1570])).block_lists(queries, keys)
    pairs = sparse_hopper_lists.pair_lists(lists, heads=2)
    parts = torch.zeros(pairs.work.parts, 1, 2, 64, head_dim)
    ready = sparse_hopper_lists.forward(call, lists, pairs)
    tensors = (
        query,
        key,
        value,
        torch.zeros_like(query),
        torch.zeros(query.shape[:3]),
        parts,
        parts[..., 0].contiguous(),
    )
    launches = {f"sparse hopper {ready.kernel.name}, d={head_dim}, hard": Launch.of_ready(ready, *tensors)}
    query, grad_out = (normal(1, 2, 1100, head_dim).bfloat16() for _ in range(2))
    call = call._replace(query_shape=query.shape)
    lists = (patterns.local(40) | patterns.global_tokens([3])).block_lists(1100, keys)
    middle = (of_columns := ready_list_backward(call, lists)).backward
    inputs = query, grad_out, key, value, torch.zeros_like(key), torch.zeros_like(value)
    name = f"sparse hopper {middle.attend.kernel.name}, d={head_dim}, hard"
    launches[name] = Launch.of_ready(middle.attend, *inputs, *_between(of_columns), torch.zeros(middle.shape))
    return launches


def _by_columns(
    kernel: str, tile: BackwardTile, columns: sparse_work.Columns, inputs: tuple, more: tuple
) -> Iterator[tuple[str, tuple[int, int], int, tuple, int]]:
    """Kernel, grid, threads, arguments and shared memory of a kernel of key_columns.cuh, and of merge_gradients where
    columns are split. inputs, more: the kernel's arguments before and after those of the columns."""
    key, (num_keys, scale) = inputs[1], (inputs[-3], inputs[-1])
    _, kv_heads, _, head_dim = key.shape
    parts = torch.zeros(columns.parts, 2, 1, kv_heads, tile.block_cols, head_dim)
    args = *inputs, columns.items, *ints(columns.heads), parts, *more
    yield kernel, (len(columns.items) * columns.heads, kv_heads // columns.heads), tile.threads, args, tile.shared_bytes
    if columns.parts:
        grid = len(columns.split) * tile.block_cols * head_dim // (4 * tile.threads), kv_heads
        args = parts, columns.split, key.clone(), inputs[2].clone(), num_keys, scale
        yield "merge_gradients", grid, tile.threads, args, 0
