"""Gradients under a pattern whose rows are ranges, on a Hopper GPU or the emulator: chapter 07's backward pass with
kernels/04_sparse_patterns/range_backward_hopper.cu in its middle."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.cuda import COUNTER, LAID_OUT, RawModule, ReadyLaunch
from course_utils.operators import hopper_launch
from course_utils.operators.attention import Call, int_scalars
from course_utils.operators.prepare import MAX_GRID
from course_utils.operators.sparse_parts import SplitColumns, merged, parts_argument
from course_utils.operators.sparse_work import Columns, columns_of, rows_that_see
from course_utils.operators.tensor_core import BackwardTile, module
from course_utils.patterns import Ranges, RowRanges

RANGE_BACKWARD = "04_sparse_patterns/range_backward_hopper.cu"
COLUMN_TILES = {  # how columns are cut: consumers' warps have 16 keys each, and meet B_r queries at a time
    head_dim: BackwardTile(head_dim, 8, 16, hopper_launch.BackwardTile(head_dim).rows) for head_dim in (64, 128)
}
THREADS, MERGE_THREADS = 384, 256


class RangeBackwardTile(hopper_launch.BackwardTile):
    """Options of range_backward_hopper.cu, whose blocks stay for one job after the other."""

    @property
    def shared_bytes(self) -> int:
        """Another place of K with its gate, and two jobs."""
        return super().shared_bytes + 256 * self.head_dim + 96


def takes_backward(call: Call, ranges: Ranges) -> bool:
    """Whether the kernel takes them: dilated, only where range_hopper.cu does, and where a class fills half of its
    tiles of queries, since sums of dQ take the memory of whole tiles."""
    if ranges.dilation == 1:
        return True
    batch, _, rows, _ = hopper_launch.of_classes(call, ranges.dilation).query_shape
    return hopper_launch.has_equal_classes(call, ranges.dilation) and rows >= hopper_launch.ROWS and batch <= MAX_GRID


def ready_range_backward(
    call: Call, ranges: Ranges | RowRanges, *, deterministic: bool = False
) -> hopper_launch.ReadyBackward:
    """The launches of the backward pass of a call in which query rows see ranges of keys.

    What is returned takes query, key, value, out, lse and the gradient of out, all dense, and returns the gradients of
    query, key and value. ranges: for the lengths of the call, which their dilation divides; rows on its device.
    deterministic: blocks take turns to add to dQ, and every run gives the same bits.
    """
    dilation = ranges.dilation if isinstance(ranges, Ranges) else 1
    of_class = hopper_launch.of_classes(call, dilation)
    query_length, head_dim = of_class.query_shape[2:]
    by_key = rows_by_key(ranges, query_length, of_class.key_shape[2], call.device)
    columns = columns_of_keys(by_key, of_class, deterministic, in_one_piece=dilation > 1)
    rows = RangeBackwardTile(head_dim).rows
    order = order_of(columns.items, rows) if deterministic else (columns.items.new_empty(0),) * 2
    kernels, parts = _kernels(call, deterministic, dilation), parts_argument(columns)
    count = len(columns.items)
    launch = _launch(call, deterministic, count, columns.items, columns.heads, parts, by_key, order, dilation)
    backward = with_merge(launch, kernels, columns, call)
    return hopper_launch.around(of_class, backward, deterministic, dilation)


def with_merge(launch: ReadyLaunch, kernels: RawModule, columns: Columns, call: Call) -> ReadyLaunch | SplitColumns:
    """A launch for columns, and where columns are split that of merge_gradients of the same kernels."""
    return merged(
        launch,
        kernels.get_function("merge_gradients"),
        columns,
        call,
        block_cols=COLUMN_TILES[call.key_shape[3]].block_cols,
        threads=MERGE_THREADS,
        gradients=slice(4, 6),
    )


def table_backward(call: Call) -> ReadyLaunch:
    """The launch of range_backward for columns in one piece: of what `hopper_launch.ReadyBackward` gives its middle
    part, then `columns_in_one_piece` and the rows by key, int32 `[L_k]`."""
    none = torch.empty(0, device=call.device)
    tiles = ceil_div(call.key_shape[2], COLUMN_TILES[call.key_shape[3]].block_cols)
    return _launch(call, False, tiles, LAID_OUT, 1, none, (LAID_OUT, LAID_OUT), (none.int(), none.int()))


def columns_in_one_piece(by_key: RowRanges, call: Call) -> Tensor:
    """The items of `table_backward`, int32 `[n, 4]`, made without waiting for the device."""
    begin, end = _rows_of_tiles(by_key, call)
    tiles = torch.arange(len(begin), dtype=torch.int32, device=begin.device)
    return torch.stack((tiles, begin, end, torch.full_like(tiles, -1)), dim=1)


def _kernels(call: Call, deterministic: bool, dilation: int) -> RawModule:
    tile = RangeBackwardTile(call.query_shape[3], deterministic, dilation > 1)
    return module(RANGE_BACKWARD, (*tile.options, *call.softcap_option), call.dtype)


def _launch(
    call: Call,
    deterministic: bool,
    count: int,
    items: object,
    heads: int,
    parts: object,
    by_key: tuple[object, object],
    order: tuple[object, object],
    dilation: int = 1,
) -> ReadyLaunch:
    """The launch of range_backward for `count` items, `heads` key heads of each side by side. by_key, order: of a
    residue class."""
    of_class = hopper_launch.of_classes(call, dilation)
    batch, kv_heads, *_ = of_class.key_shape
    tile, all_heads = RangeBackwardTile(call.query_shape[3]), kv_heads * batch
    tiles = ceil_div(of_class.query_shape[2], tile.rows)
    jobs = items, *int_scalars(count * all_heads, count * heads, heads, kv_heads, all_heads, tiles)
    more = *of_class.scalars, *jobs, parts, *by_key, *order, np.float32(call.softcap), np.int32(dilation)
    return ReadyLaunch(
        _kernels(call, deterministic, dilation).get_function("range_backward"),
        (min(count * all_heads, hopper_launch.blocks_that_stay(call.device)),),
        (THREADS,),
        (*tensors_of_columns(call, dilation), COUNTER, *more),
        tile.shared_bytes,
    )


def tensors_of_columns(call: Call, dilation: int = 1) -> tuple[object, ...]:
    """What a kernel of backward_blocks.cuh takes for the tensors that `hopper_launch.ReadyBackward` gives it."""
    tile = hopper_launch.BackwardTile(call.query_shape[3])
    of_queries = hopper_launch.map_as(call.query_shape, tile.rows, dilation)
    of_keys = hopper_launch.map_as(call.key_shape, hopper_launch.ROWS, dilation)
    return *2 * (of_queries,), *4 * (of_keys,), *3 * (LAID_OUT,)


def rows_by_key(ranges: Ranges | RowRanges, query_length: int, key_length: int, device: torch.device) -> RowRanges:
    """The query rows that see each key, int32 `[L_k]` on the device; dilated, of a residue class of these lengths."""
    if isinstance(ranges, RowRanges):
        return ranges.by_key(key_length)
    keys, shift = torch.arange(key_length), torch.tensor(key_length - query_length)
    ends = rows_that_see(ranges, keys, torch.tensor(query_length), shift)
    return RowRanges(*(end.clamp(0, query_length).int().to(device) for end in ends))


def columns_of_keys(by_key: RowRanges, call: Call, in_turns: bool, *, in_one_piece: bool = False) -> Columns:
    """The columns of range_backward, each from the first row of a tile of queries on. One that no query sees is empty.
    in_turns: of columns that are about as long, those of the last keys come first. They come to a tile of queries
    first, so that few blocks wait. in_one_piece: none is split, as where merge_gradients cannot add the parts."""
    tiles = torch.arange(ceil_div(call.key_shape[2], COLUMN_TILES[call.key_shape[3]].block_cols))
    begin, end = _rows_of_tiles(by_key, call)
    if in_turns:
        tiles, begin, end = tiles.flip(0), begin.flip(0), end.flip(0)
    tiles, tile = tiles.to(begin.device), COLUMN_TILES[call.key_shape[3]]
    return columns_of(tiles, begin, end, tile, call.query_shape, call.key_shape, in_one_piece=in_one_piece)


def _rows_of_tiles(by_key: RowRanges, call: Call) -> tuple[Tensor, Tensor]:
    """The rows that meet each tile of keys: the first, rounded down to a tile of queries, and the end."""
    tile = COLUMN_TILES[call.key_shape[3]]
    starts, ends = by_key.of_tiles(tile.block_cols)
    begin = starts.clamp(max=call.query_shape[2] - 1) // tile.block_rows * tile.block_rows
    return begin, torch.maximum(ends, begin)


def order_of(items: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Where the numbers of each item begin, int32 `[n]`, and for each tile of `rows` queries of each item how many
    items before it meet the same tile, int32."""
    first, end = items[:, 1] // rows, (items[:, 2] + rows - 1) // rows
    counts = end - first
    at = counts.cumsum(0) - counts
    number = torch.arange(int(counts.sum()), device=items.device)
    tiles = number - torch.repeat_interleave(at - first, counts)
    sorted_tiles, by_tile = tiles.sort(stable=True)
    before = torch.empty_like(number)
    before[by_tile] = number - torch.searchsorted(sorted_tiles, sorted_tiles)
    return at.int(), before.int()
