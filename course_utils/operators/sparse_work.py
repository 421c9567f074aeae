"""How the work under a pattern is shared among blocks of threads: pieces of rows for block_sparse.cu, pieces of columns
for the backward passes (kernels/04_sparse_patterns). Integers on the device of the lists; nothing is launched."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.operators.tensor_core import BackwardTile
from course_utils.patterns import BlockLists, Ranges

SLOTS = {64: 512, 128: 256}  # blocks of threads that a large GPU runs at a time, by the size of a block of the lists
SHORTEST_PART = 1024  # keys, or queries: splitting a shorter row or column, and merging it again, does not pay
BACKWARD_WARPS = 1056  # that a large GPU runs at a time, of warps with all the registers that a thread can have
NEAR_MEMORY = 2**25  # bytes: what blocks of a backward pass that run at a time can share in the L2 cache of a large GPU


class Work(NamedTuple):
    """What the blocks of threads of block_sparse.cu do.

    items: int32 `[n, 4]`, (block row, first entry of the lists, end entry, part, or -1 for a row in one piece), longest
    first. split_rows: int32 `[m, 4]`, (block row, first part, end part, 0). parts: the number of parts of all rows.
    """

    items: Tensor
    split_rows: Tensor
    parts: int


def work_items(lists: BlockLists, heads: int) -> Work:
    """The rows of the lists as pieces of work for `heads` heads (of the whole batch), long rows split evenly.

    A row is split if it would keep one multiprocessor at work while the others are done: if it is longer than an eighth
    of a multiprocessor's share, unless most rows are about as long, or there are too few rows to go round. So the parts
    of all heads take at most some 100 MB, whatever the length, and most patterns have no parts.
    """
    entries = len(lists.indices)
    share = entries * heads / SLOTS[lists.block]
    items, split_rows, parts = cut(lists.indptr.diff().long(), entries, share, SHORTEST_PART / lists.block)
    longest_first = torch.argsort(items[:, 2] - items[:, 1], descending=True, stable=True)
    return Work(items[longest_first].int().contiguous(), split_rows.int().contiguous(), parts)


def cut(counts: Tensor, entries: int, share: float, shortest: float) -> Work:
    """Rows of `counts` entries, int64 `[n]`, `entries` in all, as pieces of work, in the order of the rows and int64.

    A row is cut if it is longer than an eighth of `share`, the entries that one multiprocessor has to meet, unless most
    rows are about as long, there are too few to go round, or it is not longer than `shortest`.
    """
    typical = 2 * entries / len(counts)
    pieces = split_evenly(counts, int(max(shortest, min(typical, share), share / 8)))
    pieces.items[:, 1:3] += (counts.cumsum(0) - counts)[pieces.items[:, :1]]
    return pieces


def split_evenly(counts: Tensor, limit: int) -> Work:
    """Cuts rows of `counts` entries, int64 `[n]`, into pieces of at most `limit` entries, row by row. The result is
    int64, and the first and the end entry of a piece are counted from its row's first."""
    pieces = ((counts + limit - 1) // limit).clamp_(min=1)
    first_piece = pieces.cumsum(0) - pieces

    row = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), pieces)
    number = torch.arange(len(row), device=counts.device) - first_piece[row]
    start, end = (counts[row] * n // pieces[row] for n in (number, number + 1))
    is_part = pieces[row] > 1
    part = torch.where(is_part, is_part.cumsum(0) - 1, -1)

    split = (pieces > 1).nonzero().squeeze(1)
    end_part = pieces[split].cumsum(0)
    split_rows = torch.stack((split, end_part - pieces[split], end_part, torch.zeros_like(split)), dim=1)
    return Work(torch.stack((row, start, end, part), dim=1), split_rows, int(pieces[split].sum()))


class Columns(NamedTuple):
    """What the blocks of threads of a backward pass do (kernels/include/key_columns.cuh).

    items: int32 `[n, 4]`, (tile of keys, first, end, part or -1), where first to end - 1 are queries or entries of the
    lists. split: int32 `[m, 4]`, (tile of keys, first part, end part, 0). parts: the number of parts of all columns.
    heads: key heads that are worked on side by side.
    """

    items: Tensor
    split: Tensor
    parts: int
    heads: int


def columns_of(
    tiles: Tensor,
    starts: Tensor,
    ends: Tensor,
    tile: BackwardTile,
    query_shape: torch.Size,
    key_shape: torch.Size,
    *,
    rows_of_entry: int = 1,
    in_one_piece: bool = False,
) -> Columns:
    """The columns of tiles of keys, `[n]`, each with the rows, or entries of `rows_of_entry` rows, from `starts` to
    `ends - 1`, int32 `[n]`. A column is split if it is longer than an eighth of a block's share of the work, unless it
    is at most four times as long as most columns, or half of a share; in_one_piece: none is.

    Pieces that differ by less than an eighth of a share stay in their order, because neighbours read the same queries.
    Others are sorted, the longest first, so that no long piece is left for the end. Heads are worked on side by side as
    far as the L2 cache has room for the queries that their blocks share.
    """
    (batch, _, query_length, head_dim), kv_heads = query_shape, key_shape[1]
    step = max(1, tile.block_rows // rows_of_entry)  # a tile of queries, in rows; or an entry
    starts, lengths = starts.long(), (ends - starts).long().clamp_(min=0)
    counts = (lengths + step - 1) // step
    share = int(counts.sum()) * batch * kv_heads * tile.warps / BACKWARD_WARPS
    typical, shortest = 4 * int(counts.sum()) / len(counts), SHORTEST_PART / (step * rows_of_entry)
    limit = int(max(shortest, min(typical, share / 2), share / 8))
    pieces = split_evenly(counts, max(limit, int(counts.max())) if in_one_piece else limit)
    row, first, end, part = pieces.items.unbind(1)
    of_item = torch.stack((tiles.to(row.device)[row], starts[row] + first * step), dim=1)
    last = starts[row] + torch.minimum(end * step, lengths[row])
    order = torch.argsort((end - first) // max(1, int(share / 8)), descending=True, stable=True)
    items = torch.cat((of_item, last[:, None], part[:, None]), dim=1)[order]
    split = pieces.split_rows
    split[:, 0] = tiles.to(row.device)[split[:, 0]]

    rows = query_length if rows_of_entry > 1 else max(1, int((end - first).max()) * step)
    room = NEAR_MEMORY // (8 * head_dim * rows * (query_shape[1] // kv_heads))  # 8 bytes: Q and dO, and dQ in fp32
    heads = max(n for n in range(1, kv_heads + 1) if kv_heads % n == 0 and n <= max(1, room))
    return Columns(items.int().contiguous(), split.int().contiguous(), pieces.parts, heads)


def range_columns(
    ranges: Ranges, tile: BackwardTile, query_shape: torch.Size, key_shape: torch.Size, device: torch.device
) -> Columns:
    """The columns of range_backward.cu. A residue class has its own tiles of keys: of tile n of class c the number is
    c + dilation · n. Dilated columns are in one piece, since merge_gradients has keys side by side."""
    dilation, L_q, L_k = ranges.dilation, query_shape[2], key_shape[2]
    tiles = torch.arange(class_tiles(L_k, dilation, tile.block_cols))
    of_class, j = tiles % dilation, tiles // dilation * tile.block_cols
    first = of_class - (L_k - L_q)
    query = first % dilation  # as residue_class of ranges.cuh
    keys, queries = (L_k - of_class + dilation - 1) // dilation, (L_q - query + dilation - 1) // dilation
    shift = (query - first) // dilation
    exists = j < keys
    starts, ends_of_first = rows_that_see(ranges, j, queries, shift)
    _, ends_of_last = rows_that_see(ranges, torch.minimum(j + tile.block_cols, keys) - 1, queries, shift)
    ends = torch.maximum(ends_of_first, ends_of_last)
    tiles, starts, ends = (of_tile[exists].to(device) for of_tile in (tiles, starts, ends))
    return columns_of(tiles, starts, ends, tile, query_shape, key_shape, in_one_piece=dilation > 1)


def rows_that_see(ranges: Ranges, j: Tensor, queries: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """The rows from `starts` to `ends - 1` that see keys j, int64 `[n]`, of a residue class. It has `queries` rows, of
    which row 0 has position `shift`."""
    sinks, left, right, step, _ = ranges
    starts = ((j - right + step) // step * step - shift).clamp_(min=0)
    ends = (j + left) // step * step + step - shift
    return starts, torch.where(j < sinks, queries, torch.minimum(ends, queries))


def class_tiles(length: int, dilation: int, rows: int) -> int:
    """Tiles of `rows` rows that a sequence has, each of one residue class."""
    return dilation * ceil_div(ceil_div(length, dilation), rows)
