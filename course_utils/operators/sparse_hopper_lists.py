"""Block lists on a Hopper GPU: kernels/04_sparse_patterns/block_sparse_hopper.cu, and the lists that it takes. Its
functions return launches and launch nothing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.cuda import COUNTER, LAID_OUT, ReadyLaunch
from course_utils.operators.attention import Call, int_scalars
from course_utils.operators.hopper_launch import ROWS, blocks_that_stay, heads_at_once, map_as
from course_utils.operators.sparse_parts import parts_argument
from course_utils.operators.sparse_work import Work, cut
from course_utils.operators.tensor_core import defines, kernel
from course_utils.patterns import BlockLists

BLOCK_SPARSE_FORWARD = "04_sparse_patterns/block_sparse_hopper.cu"
HEAD_DIM = 128  # the only one: with 64 columns block_sparse.cu was as fast on an H200 at 16 K tokens
OPTIONS = defines(D=HEAD_DIM)  # all but the dtype's
CONSUMERS, BUFFERS = 2, 5
THREADS = 128 * (CONSUMERS + 1)
# Two places of Q and O for each consumer, the tiles of K and V, what these are, barriers, three items of work.
SHARED_BYTES = 256 * HEAD_DIM * (CONSUMERS + BUFFERS) + 352
KEYS = 64  # of a tile
WHOLE, UNSEEN = -1, -2  # of a tile, in the place of its bits
MULTIPROCESSORS = 132  # of a large GPU
SHORTEST_PART = 32  # tiles: cutting a shorter list, and merging it again, does not pay
MOST_WORDS = 2**31 - 1  # of bits: the kernel counts them with an int


def takes_lists(call: Call, lists: BlockLists) -> bool:
    """Whether the kernel takes them: a softcap, sinks, other head dimensions and more words of bits stay with
    block_sparse.cu."""
    return call.is_plain and call.query_shape[3] == HEAD_DIM and lists.bits.numel() <= MOST_WORDS


class TileLists(NamedTuple):
    """What the blocks of threads of block_sparse_hopper.cu do, of a head.

    tiles: int32 `[n, 4]`, (tile of 64 keys, then for each consumer the first word of the bits of its 64 × 64 pairs,
    WHOLE or UNSEEN; unused). work: its items are blocks of the consumers' rows, the shortest first; its rows that are
    split and their parts are of 64 rows.
    """

    tiles: Tensor
    work: Work


def tile_lists(lists: BlockLists, heads: int) -> TileLists:
    """The tiles that each block of 64 · CONSUMERS rows sees, each tile once, as pieces of work for `heads` heads of the
    whole batch. Long lists are cut, as `sparse_work.cut` has it.
    """
    row, tile, bits = pairs_of_tiles(lists)
    tiles, block = met_by_blocks(row, tile, bits, ceil_div(lists.L_k, KEYS))
    counts = torch.bincount(block, minlength=ceil_div(lists.L_q, ROWS * CONSUMERS))
    pieces = cut(counts, len(tiles), len(tiles) * heads / MULTIPROCESSORS, SHORTEST_PART)
    items = pieces.items
    shortest_first = torch.argsort(items[:, 2] - items[:, 1], stable=True)
    split_rows = _rows_of_consumers(pieces, ceil_div(lists.L_q, ROWS))
    work = Work(items[shortest_first].int().contiguous(), split_rows.int().contiguous(), CONSUMERS * pieces.parts)
    return TileLists(tiles, work)


def met_by_blocks(row: Tensor, tile: Tensor, bits: Tensor, tiles: int) -> tuple[Tensor, Tensor]:
    """What blocks of CONSUMERS rows meet, by block and then by tile: the tile and each consumer's bits, int32 `[n, 4]`
    as `TileLists` has them, and the block, int64 `[n]`. row, tile, bits: `[m]`, each pair of row and tile once, with
    bits as `pairs_of_tiles` gives them. tiles: how many there are."""
    codes, number = torch.unique(row // CONSUMERS * tiles + tile, return_inverse=True)
    met = torch.full((len(codes), 4), UNSEEN, dtype=torch.int32, device=row.device)
    met[:, 0] = codes % tiles
    met[number, 1 + row % CONSUMERS] = bits
    return met, codes // tiles


def pairs_of_tiles(lists: BlockLists) -> tuple[Tensor, Tensor, Tensor]:
    """The lists' blocks in pieces of 64 × 64 pairs, without those that hide all pairs: the row of 64 queries and the
    tile of 64 keys, int64 `[n]`, and the first word of their bits, int32 `[n]`, or WHOLE."""
    per_block = lists.block // KEYS
    place = torch.arange(per_block, device=lists.device)
    row = lists.entry_rows.long()[:, None, None] * per_block + place[:, None]
    tile = lists.indices.long()[:, None, None] * per_block + place
    partial = _partial_tiles(lists)  # of a full block the number in them is -1: the last
    bits = torch.cat((partial, partial.new_full((1, per_block, per_block), WHOLE)))[lists.bits_index.long()]
    row, tile, bits = (of_pairs.flatten() for of_pairs in torch.broadcast_tensors(row, tile, bits))
    is_met = (row * ROWS < lists.L_q) & (tile * KEYS < lists.L_k) & (bits != UNSEEN)
    return row[is_met], tile[is_met], bits[is_met]


def _partial_tiles(lists: BlockLists) -> Tensor:
    """The same pieces of the partial blocks: the first word of each one's bits, WHOLE or UNSEEN, int32
    `[partial blocks, block / 64, block / 64]`."""
    blocks, per_block, row_words = len(lists.bits), lists.block // KEYS, lists.block // 32
    rows = torch.arange(0, lists.bits.numel(), KEYS * row_words, device=lists.device).view(blocks, per_block, 1)
    columns = torch.arange(0, row_words, KEYS // 32, device=lists.device)
    words = lists.bits.view(blocks, per_block, KEYS, per_block, KEYS // 32)
    least, most = words.amin((2, 4)), words.amax((2, 4))
    tiles = torch.where((least == 0) & (most == 0), UNSEEN, rows + columns)
    return torch.where((least == -1) & (most == -1), WHOLE, tiles).int()


def _rows_of_consumers(pieces: Work, rows: int) -> Tensor:
    """The split rows of 64 queries, int64 `[m, 4]`, as merge_parts takes them. Consumer w has the parts from
    w · pieces.parts on."""
    consumer = torch.arange(CONSUMERS, device=pieces.items.device)
    block, first, end, nothing = pieces.split_rows[:, :, None].unbind(1)
    first, end = first + consumer * pieces.parts, end + consumer * pieces.parts
    split = torch.stack((block * CONSUMERS + consumer, first, end, nothing.expand_as(first)), dim=2).flatten(0, 1)
    return split[split[:, 0] < rows]


def forward(call: Call, lists: BlockLists, found: TileLists) -> ReadyLaunch:
    """The launch with query, key, value, out and lse, and the parts and their lse if `found.work` has some."""
    batch, heads, _, _ = call.query_shape
    query_length, _, group, factor = call.scalars
    at_once = heads_at_once(call.query_shape, call.key_shape, call.dtype, fewest=1, most=batch * heads)
    items, of_rows, of_keys = found.work.items, map_as(call.query_shape, ROWS), map_as(call.key_shape, KEYS)
    return ReadyLaunch(
        kernel(BLOCK_SPARSE_FORWARD, OPTIONS, call.dtype, "block_sparse_forward"),
        (min(len(items) * batch * heads, blocks_that_stay(call.device)),),
        (THREADS,),
        (
            *(of_rows, of_keys, of_keys, of_rows),
            *(LAID_OUT, COUNTER),
            *2 * (parts_argument(found.work),),
            *(query_length, group, factor),
            *int_scalars(batch * heads, at_once),
            *(items, np.int32(len(items)), found.tiles, lists.bits),
            *int_scalars(lists.block // 32, found.work.parts // CONSUMERS),
        ),
        SHARED_BYTES,
    )
