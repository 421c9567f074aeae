"""Patterns whose rows are ranges of keys, on a Hopper GPU: kernels/04_sparse_patterns/range_hopper.cu, and for equal
blocks chapter 07's dense kernel on a view. Functions return launches and launch nothing."""

from __future__ import annotations

import numpy as np

from course_utils.costs import ceil_div
from course_utils.cuda import COUNTER, LAID_OUT, Kernel, ReadyLaunch
from course_utils.operators.attention import Call, Forward, int_scalars
from course_utils.operators.hopper_launch import (
    KEYS,
    LONG,
    ROWS,
    TILES,
    HopperTile,
    blocks_that_stay,
    forward_launch,
    has_equal_classes,
    heads_at_once,
    map_as,
)
from course_utils.operators.tensor_core import defines, kernel
from course_utils.patterns import Ranges, RowRanges

RANGE_FORWARD = "04_sparse_patterns/range_hopper.cu"
NAMES = "range_forward", "table_forward"  # of its kernels, with TABLE 0 and 1
# Equal blocks are a batch of dense attention as long as filling them up to whole tiles of queries adds no more to the
# work than this.
MOST_PADDING = 1.15


class RangeTile(HopperTile):
    """Options of range_hopper.cu, except TABLE and DILATED."""

    @property
    def shared_bytes(self) -> int:
        """As for forward.cu, and the first and the last key of each row; an item of work is 8 bytes longer."""
        return super().shared_bytes + 8 * self.block_rows + 16

    def options_for(self, table: bool, dilated: bool) -> tuple[str, ...]:
        """All options but the dtype's and the softmax's."""
        return (*self.options, *defines(TABLE=int(table), DILATED=int(dilated)))

    def kernel_of(self, call: Call, table: bool, dilated: bool) -> Kernel:
        """Compiled at its first launch."""
        options = *self.options_for(table, dilated), *call.softmax_options
        return kernel(RANGE_FORWARD, options, call.dtype, NAMES[table])


def forward_options() -> list[tuple[str, ...]]:
    """The options of range_hopper.cu in use by calls whose softmax is plain, for modules that are compiled ahead of
    time."""
    kinds = (False, False), (False, True), (True, False)  # a table, dilated
    tiles = RangeTile(64, 2), RangeTile(64, 3), RangeTile(128, 2)
    return [tile.options_for(*kind) for tile in tiles for kind in kinds if kind != (True, False) or tile.consumers == 2]


def takes_ranges(call: Call, ranges: Ranges) -> bool:
    """Whether the kernel takes them: dilated, only where the residue classes have as many positions each."""
    return has_equal_classes(call, ranges.dilation)


def range_forward(call: Call, ranges: Ranges) -> Forward:
    """The launch for five numbers, which `takes_ranges` takes."""
    lengths = [shape[2] // ranges.dilation for shape in (call.query_shape, call.key_shape)]
    seen = min(ranges.left, lengths[1]) + min(ranges.right, lengths[1])
    return _forward(call, min(lengths[0], seen) >= LONG, False, int_scalars(*ranges), ranges.dilation)


def table_forward(call: Call, rows: RowRanges) -> Forward:
    """The launch for two arrays, int32 `[L_q]`, with what the call's softmax has besides."""
    pattern = *rows, *call.softmax_arguments, np.int32(call.query_shape[1])
    return _forward(call, False, True, pattern)


def _forward(call: Call, wide: bool, table: bool, pattern: tuple[object, ...], dilation: int = 1) -> Forward:
    """wide: rows see many keys, so that a third consumer pays where registers allow it."""
    batch, heads, query_length, head_dim = call.query_shape
    tile = RangeTile(head_dim, 3 if wide and head_dim == 64 else 2)
    *sizes, factor = call.scalars
    items = batch * heads * dilation * ceil_div(query_length // dilation, tile.block_rows)
    of_rows, of_keys = map_as(call.query_shape, ROWS, dilation), map_as(call.key_shape, KEYS, dilation)
    return ReadyLaunch(
        tile.kernel_of(call, table, dilation > 1),
        (min(items, blocks_that_stay(call.device)),),
        (tile.threads,),
        (
            *(of_rows, of_keys, of_keys, of_rows),
            *(LAID_OUT, COUNTER),
            np.int32(batch * heads),
            *sizes,
            factor,
            np.int32(heads_at_once(call.query_shape, call.key_shape, call.dtype)),
            *pattern,
        ),
        tile.shared_bytes,
    )


def blocks_forward(call: Call) -> Forward | None:
    """The launch of chapter 07's dense kernel for a call whose shapes are those of the blocks, `[B · H, L / length,
    length, d]`; its tensors come as `[B, H, L, d]`. None where a block would have to be filled up too far."""
    *_, length, head_dim = call.query_shape
    rows = TILES[head_dim][True].block_rows
    if ceil_div(length, rows) * rows > MOST_PADDING * length:
        return None
    return forward_launch(call, False)
