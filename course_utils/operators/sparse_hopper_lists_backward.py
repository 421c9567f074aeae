"""Gradients under block lists, on a Hopper GPU or the emulator: chapter 07's backward pass with
kernels/04_sparse_patterns/block_sparse_backward_hopper.cu in its middle. It takes what
`sparse_hopper_lists.takes_lists` takes, and adds to dQ in an order of chance."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.cuda import ReadyLaunch
from course_utils.operators import hopper_launch
from course_utils.operators.attention import Call, int_scalars
from course_utils.operators.hopper_launch import ROWS, BackwardTile, ReadyBackward
from course_utils.operators.sparse_hopper_backward import COLUMN_TILES, THREADS, tensors_of_columns, with_merge
from course_utils.operators.sparse_hopper_lists import CONSUMERS, HEAD_DIM, UNSEEN, met_by_blocks, tiles_met
from course_utils.operators.sparse_parts import parts_argument
from course_utils.operators.sparse_work import Columns, columns_of
from course_utils.operators.tensor_core import module
from course_utils.patterns import BlockLists

BLOCK_SPARSE_BACKWARD = "04_sparse_patterns/block_sparse_backward_hopper.cu"
OPTIONS = BackwardTile(HEAD_DIM).options  # all but the dtype's


class ColumnLists(NamedTuple):
    """What the blocks of threads of block_sparse_backward_hopper.cu do, of a key head.

    entries: int32 `[n, 1 + CONSUMERS]`, tile of 64 queries, then for each consumer the first word of the bits of its
    64 × 64 pairs, WHOLE or UNSEEN. columns: of 128 keys; first and end of an item are entries.
    """

    entries: Tensor
    columns: Columns


def column_lists(lists: BlockLists, call: Call) -> ColumnLists:
    """The tiles of queries that see one of 64 · CONSUMERS keys, each tile once; long columns are cut, as
    `sparse_work.columns_of` has it. First in a column are those that only the first consumer sees, last those that only
    the second sees: a consumer skips what lies before or behind all that it sees.
    """
    row, tile, bits = tiles_met(lists)
    entries, column = met_by_blocks(tile, row, bits, ceil_div(lists.L_q, ROWS))
    first, second = (entries[:, 1:] != UNSEEN).long().unbind(1)
    entries = entries[torch.argsort(3 * column + second - first, stable=True)]
    tiles = torch.arange(ceil_div(lists.L_k, ROWS * CONSUMERS), device=lists.device)
    counts = torch.bincount(column, minlength=len(tiles))
    ends = counts.cumsum(0)
    shapes = call.query_shape, call.key_shape
    columns = columns_of(tiles, ends - counts, ends, COLUMN_TILES[HEAD_DIM], *shapes, rows_of_entry=ROWS)
    return ColumnLists(entries, columns)


def ready_list_backward(call: Call, lists: BlockLists) -> ReadyBackward:
    """The launches of the backward pass of a call under block lists for its lengths, on its device; as
    `sparse_hopper_backward.ready_range_backward`."""
    entries, columns = column_lists(lists, call)
    kernels = module(BLOCK_SPARSE_BACKWARD, OPTIONS, call.dtype)
    query_length, _, group, factor = call.scalars
    heads, stride = int_scalars(columns.heads, lists.block // 32)
    more = query_length, group, factor, columns.items, heads, parts_argument(columns), entries, lists.bits, stride
    batch, kv_heads, *_ = call.key_shape
    launch = ReadyLaunch(
        kernels.get_function("block_sparse_backward"),
        (len(columns.items) * columns.heads, kv_heads // columns.heads, batch),
        (THREADS,),
        (*tensors_of_columns(call), *more),
        BackwardTile(HEAD_DIM).shared_bytes,
    )
    return hopper_launch.around(call, with_merge(launch, kernels, columns, call), deterministic=False)
