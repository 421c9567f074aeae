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
HEAD_DIM = 128  # the only one: with 64 columns block_sparse.cu was as fast as the first kernel with tiles of 64 keys
OPTIONS = defines(D=HEAD_DIM)  # all but the dtype's
CONSUMERS, BUFFERS = 2, 5
THREADS = 128 * (CONSUMERS + 1)
# Two places of Q and O for each consumer, the tiles of K and V, barriers, three items of work, a float for each
# consumer's thread.
SHARED_BYTES = 256 * HEAD_DIM * (CONSUMERS + BUFFERS) + 1232
KEYS = 64  # of a tile
PANEL = 64  # columns of a box of K or V
WHOLE, UNSEEN = -1, -2  # of a tile, in the place of its bits
MULTIPROCESSORS = 132  # of a large GPU
SHORTEST_PART = 16  # pairs of tiles: cutting a shorter list, and merging it again, does not pay
MOST_WORDS = 2**31 - 1  # of bits: the kernel counts them with an int


def takes_lists(call: Call, lists: BlockLists) -> bool:
    """Whether the kernel takes them: a softcap, sinks, other head dimensions and more words of bits stay with
    block_sparse.cu."""
    return call.is_plain and call.query_shape[3] == HEAD_DIM and lists.bits.numel() <= MOST_WORDS


class PairLists(NamedTuple):
    """What the blocks of threads of block_sparse_hopper.cu do, of a head.

    pairs: int32 `[n, 1 + CONSUMERS, 2]`, two tiles of 64 keys, then for each consumer the first word of the bits of its
    64 × 64 pairs in each, WHOLE or UNSEEN. work: its items are blocks of the consumers' rows, the shortest first; its
    rows that are split and their parts are of 64 rows.
    """

    pairs: Tensor
    work: Work


def pair_lists(lists: BlockLists, heads: int) -> PairLists:
    """The tiles that each block of 64 · CONSUMERS rows sees, each tile once and two at a time, as pieces of work for
    `heads` heads of the whole batch. Long lists are cut, as `sparse_work.cut` has it.
    """
    row, tile, bits = tiles_met(lists)
    columns, blocks = ceil_div(lists.L_k, KEYS), ceil_div(lists.L_q, ROWS * CONSUMERS)
    met, block = met_by_blocks(row, tile, bits, columns)
    tiles = met[_by_who_sees_them(block, met[:, 1:] != UNSEEN)]

    counts = (torch.bincount(block, minlength=blocks) + 1) // 2
    pair = (counts.cumsum(0) - counts)[block] + _ranks(block) // 2
    pairs = torch.full((int(counts.sum()), 1 + CONSUMERS, 2), UNSEEN, dtype=torch.int32, device=lists.device)
    pairs[:, 0] = columns  # a tile past the last, which comes as zeros, where a block has no other left
    pairs[pair, :, _ranks(block) % 2] = tiles

    pieces = cut(counts, len(pairs), len(pairs) * heads / MULTIPROCESSORS, SHORTEST_PART)
    items = pieces.items
    shortest_first = torch.argsort(items[:, 2] - items[:, 1], stable=True)
    split_rows = _rows_of_consumers(pieces, ceil_div(lists.L_q, ROWS))
    work = Work(items[shortest_first].int().contiguous(), split_rows.int().contiguous(), CONSUMERS * pieces.parts)
    return PairLists(pairs, work)


def _by_who_sees_them(block: Tensor, is_seen: Tensor) -> Tensor:
    """The order of tiles, int64 `[n]`, in which each two of a block in a row are a pair, so that few consumers see one
    tile of a pair only. block: of each tile, int64 `[n]`, sorted. is_seen: by each consumer, bool `[n, CONSUMERS]`.

    First come the pairs that both consumers see. Then those that only one sees, of each in turn: as the ring has place
    for few pairs, one consumer would else wait for all those of the other. What is left over is paired at the end.
    """
    kind = torch.where(is_seen.all(1), 0, torch.where(is_seen[:, 0], 1, 2))
    by_kind = torch.argsort(3 * block + kind, stable=True)
    block, kind = block[by_kind], kind[by_kind]
    group = 3 * block + kind
    rank, is_last = _ranks(group), group.diff(append=group.new_tensor([-1])) != 0
    is_left = is_last & (rank % 2 == 0)
    stage = torch.where(is_left, 2, kind.clamp(max=1))
    turn = torch.where(is_left, 0, rank // 2)
    return by_kind[torch.argsort(((3 * block + stage) * len(block) + turn) * 3 + kind, stable=True)]


def _ranks(groups: Tensor) -> Tensor:
    """How many of its group come before each, of sorted groups, int64 `[n]`."""
    return torch.arange(len(groups), device=groups.device) - torch.searchsorted(groups, groups)


def met_by_blocks(row: Tensor, tile: Tensor, bits: Tensor, tiles: int) -> tuple[Tensor, Tensor]:
    """What blocks of CONSUMERS rows meet, by block and then by tile: the tile and the first word of each consumer's
    bits, WHOLE or UNSEEN, int32 `[n, 1 + CONSUMERS]`, and the block, int64 `[n]`. row, tile, bits: `[m]`, as
    `tiles_met` gives them, or with row and tile in each other's place. tiles: how many there are."""
    codes, number = torch.unique(row // CONSUMERS * tiles + tile, return_inverse=True)
    met = torch.full((len(codes), 1 + CONSUMERS), UNSEEN, dtype=torch.int32, device=row.device)
    met[:, 0] = codes % tiles
    met[number, 1 + row % CONSUMERS] = bits
    return met, codes // tiles


def tiles_met(lists: BlockLists) -> tuple[Tensor, Tensor, Tensor]:
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


def forward(call: Call, lists: BlockLists, found: PairLists) -> ReadyLaunch:
    """The launch with query, key, value, out and lse, and the parts and their lse if `found.work` has some."""
    batch, heads, _, _ = call.query_shape
    query_length, _, group, factor = call.scalars
    at_once = heads_at_once(call.query_shape, call.key_shape, call.dtype, fewest=1, most=batch * heads)
    items, of_rows = found.work.items, map_as(call.query_shape, ROWS)
    panels = HEAD_DIM // PANEL  # of a row, which is so many rows of the view that a map of panels is made of
    of_keys = map_as(torch.Size((*call.key_shape[:2], panels * call.key_shape[2], PANEL)), KEYS, dilation=panels)
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
            *(items, np.int32(len(items)), found.pairs, lists.bits),
            *int_scalars(lists.block // 32, found.work.parts // CONSUMERS),
        ),
        SHARED_BYTES,
    )
