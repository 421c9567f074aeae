"""The launches of kernels/04_sparse_patterns for a call: tiles, grid and arguments. A mask here is the form in which a
kernel takes the pattern: numbers, rows, block lists or keys. Its methods return launches and launch nothing; on a
Hopper GPU those of `sparse_hopper` where it has the pattern."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.cuda import LAID_OUT, RawModule, ReadyLaunch
from course_utils.operators import hopper_launch, sparse_hopper, sparse_hopper_lists, sparse_hopper_lists_backward
from course_utils.operators.attention import MOST_COLUMNS, Backward, Call, Forward, int_scalars
from course_utils.operators.prepare import MAX_GRID, fitting
from course_utils.operators.sparse_choice import BLOCK, MAX_DILATION, choose_kernel, dilation_at, rows_of_keys
from course_utils.operators.sparse_hopper_backward import ready_range_backward, takes_backward
from course_utils.operators.sparse_parts import merged, parts_argument
from course_utils.operators.sparse_work import Columns, Work, class_tiles, columns_of, range_columns, work_items
from course_utils.operators.tensor_core import (
    BACKWARD_TENSORS,
    BACKWARD_TILES,
    FORWARD_TENSORS,
    HEAD_DIMS,
    WIDE,
    BackwardTile,
    DkDv,
    ForwardTile,
    TwoPasses,
    by_queries,
    defines,
    dense_dk_dv,
    dense_dq,
    dense_forward,
    kernel,
    module,
    ready_backward,
    row_delta,
    takes_wgmma,
)
from course_utils.patterns import BlockLists, Pattern, Ranges, RowRanges

FOLDER = "04_sparse_patterns"
CSR_WARPS = 4
CSR_OPTIONS = {head_dim: defines(D=head_dim, WARPS=CSR_WARPS) for head_dim in HEAD_DIMS}  # of csr_gather.cu
MERGED_ROWS = 4  # rows per block of merge_parts


class RangeTile(ForwardTile):
    """Options of range.cu, except DILATED: the options of 03_flash_attention_v2/forward.cu, and tiles that no row sees
    are skipped."""

    @property
    def options(self) -> tuple[str, ...]:
        return *super().options, "-DSKIP=1"

    @property
    def shared_bytes(self) -> int:
        """Q, K and V, and the first and the last key of each row."""
        return super().shared_bytes + 8 * self.block_rows


class BlockTile(NamedTuple):
    """Options of block_sparse.cu: blocks of the lists, of which B_c keys at a time are in shared memory."""

    head_dim: int
    block: int
    block_cols: int
    warps: int

    @property
    def options(self) -> tuple[str, ...]:
        return defines(D=self.head_dim, BLOCK=self.block, B_C=self.block_cols, WARPS=self.warps)

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def shared_bytes(self) -> int:
        """Q, and two tiles each of K and V."""
        return 2 * self.head_dim * (self.block + 4 * self.block_cols)


UNDILATED, DILATED = "-DDILATED=0", "-DDILATED=1"  # options of range.cu
TABLE = UNDILATED, "-DTABLE=1"  # options of range.cu for rows whose ends are in two arrays
# As in flash_attention_v2: the fastest tiles on an H200 first, then smaller ones for GPUs with less shared memory.
RANGE_TILES = {
    64: (RangeTile(64, 128, 128, 4),),
    128: (RangeTile(128, 128, 64, 4),),
    WIDE: (RangeTile(WIDE, 64, 64, 4), RangeTile(WIDE, 64, 32, 4)),
}
RANGE_BACKWARD_TILES = BACKWARD_TILES
BLOCK_TILES = {  # by (head dimension, block)
    (64, 64): (BlockTile(64, 64, 64, 2),),
    (64, 128): (BlockTile(64, 128, 128, 4),),
    (128, 64): (BlockTile(128, 64, 32, 2),),
    (128, 128): (BlockTile(128, 128, 64, 4),),
}
BLOCK_BACKWARD_TILES = {
    (64, 64): (BackwardTile(64, 4, 16, 64),),
    (64, 128): (BackwardTile(64, 4, 32, 64),),
    (128, 64): (BackwardTile(128, 4, 16, 32),),
    (128, 128): (BackwardTile(128, 8, 16, 64), BackwardTile(128, 4, 16, 32)),
}

# ---------------------------------------------------------------------------------------------- the launches


class DenseMask(NamedTuple):
    """Launches of the dense kernels of chapter 03 or 07, with blocks of `length` rows as sequences of their own: the
    tensors are viewed as `[B · H, L / length, length, d]`. L is a multiple of length, for queries and keys alike, and
    each head has keys of its own."""

    length: int

    def forward(self, call: Call) -> Forward:
        blocks = self.of_blocks(call)
        if not takes_wgmma(call.device):
            return dense_forward(blocks, False)
        as_ranges = Ranges(left=0, right=self.length, step=self.length)
        return sparse_hopper.blocks_forward(blocks) or sparse_hopper.range_forward(call, as_ranges)

    def dk_dv(self, call: Call, adds_dq: bool) -> DkDv:
        return dense_dk_dv(self.of_blocks(call), False, adds_dq=adds_dq)

    def dq(self, call: Call) -> ReadyLaunch:
        return dense_dq(self.of_blocks(call), False)

    def of_blocks(self, call: Call) -> Call:
        """The call whose sequences are the blocks."""
        return call._replace(query_shape=self._view(call.query_shape), key_shape=self._view(call.key_shape))

    def _view(self, shape: torch.Size) -> torch.Size:
        batch, heads, rows, head_dim = shape
        return torch.Size((batch * heads, rows // self.length, self.length, head_dim))


class RowMask(NamedTuple):
    """Launches of range.cu and range_backward.cu with -DTABLE=1."""

    rows: RowRanges

    def forward(self, call: Call) -> Forward:
        return table_launch(call, self.rows)

    def dk_dv(self, call: Call, adds_dq: bool) -> DkDv:
        tile = fitting(RANGE_BACKWARD_TILES[call.key_shape[3]], call.device)
        by_key = self.rows.by_key(call.key_shape[2])
        starts, ends = by_key.of_tiles(tile.block_cols)
        columns = columns_of(torch.arange(len(starts)), starts, ends, tile, call.query_shape, call.key_shape)
        more = *by_key, np.float32(call.softcap)
        return by_columns(table_kernels(call, tile, adds_dq), "table_dk_dv", tile, columns, call, more)

    def dq(self, call: Call) -> ReadyLaunch:
        return table_dq(call, self.rows)


def table_launch(call: Call, rows: RowRanges) -> Forward:
    """The launch of table_forward: of `FORWARD_TENSORS`, then the rows where `LAID_OUT` stands for them, then the sinks
    if the call has some."""
    if takes_wgmma(call.device) and not call.is_wide:
        return sparse_hopper.table_forward(call, rows)
    batch, heads, query_length, head_dim = call.query_shape
    tile = fitting(RANGE_TILES[head_dim], call.device)
    return ReadyLaunch(
        kernel(f"{FOLDER}/range.cu", (*tile.options, *TABLE, *call.softmax_options), call.dtype, "table_forward"),
        (ceil_div(query_length, tile.block_rows), heads, batch),
        (tile.threads,),
        (*FORWARD_TENSORS, *call.scalars, *rows, *call.softmax_arguments),
        tile.shared_bytes,
    )


def table_kernels(call: Call, tile: BackwardTile, adds_dq: bool) -> RawModule:
    """range_backward.cu for rows whose ends are in two arrays."""
    options = *tile.options, "-DTABLE=1", *call.softcap_option, *_dq_option(adds_dq)
    return module(f"{FOLDER}/range_backward.cu", options, call.dtype)


def table_dq(call: Call, rows: RowRanges) -> ReadyLaunch:
    """The launch of table_dq of range_backward.cu: of `DQ_TENSORS`, then the rows where `LAID_OUT` stands for them."""
    tile = fitting(RANGE_BACKWARD_TILES[call.query_shape[3]], call.device)
    tiles = ceil_div(call.query_shape[2], tile.dq_rows)
    more = *rows, np.float32(call.softcap)
    return by_queries(table_kernels(call, tile, adds_dq=False), "table_dq", tile, tiles, call, more)


def table_dk_dv(call: Call, tiles: int, by_key: RowRanges, adds_dq: bool) -> ReadyLaunch:
    """The launch of table_dk_dv of range_backward.cu for columns in one piece: of `BACKWARD_TENSORS`, the items, one
    for each of the tiles of keys, and the rows by key where `LAID_OUT` stands for them."""
    batch, kv_heads, _, head_dim = call.key_shape
    tile = fitting(RANGE_BACKWARD_TILES[head_dim], call.device)
    parts = torch.empty(0, device=call.device)
    return ReadyLaunch(
        table_kernels(call, tile, adds_dq).get_function("table_dk_dv"),
        (tiles, kv_heads, batch),
        (tile.threads,),
        (*BACKWARD_TENSORS, *call.scalars, LAID_OUT, np.int32(1), parts, *by_key, np.float32(call.softcap)),
        tile.shared_bytes,
    )


class RangeMask(NamedTuple):
    """Launches of range.cu and range_backward.cu."""

    ranges: Ranges

    def forward(self, call: Call) -> Forward:
        if takes_wgmma(call.device) and sparse_hopper.takes_ranges(call, self.ranges):
            return sparse_hopper.range_forward(call, self.ranges)
        batch, heads, query_length, head_dim = call.query_shape
        tile = fitting(RANGE_TILES[head_dim], call.device)
        ranges = _numbers(self.ranges, query_length, call.key_shape[2])
        options = *tile.options, DILATED if ranges[-1] > 1 else UNDILATED
        return ReadyLaunch(
            kernel(f"{FOLDER}/range.cu", options, call.dtype, "range_forward"),
            (class_tiles(query_length, ranges[-1], tile.block_rows), heads, batch),
            (tile.threads,),
            (*FORWARD_TENSORS, *call.scalars, *int_scalars(*ranges)),
            tile.shared_bytes,
        )

    def dk_dv(self, call: Call, adds_dq: bool) -> DkDv:
        tile, ranges, kernels = self._backward(call, adds_dq)
        columns = range_columns(ranges, tile, call.query_shape, call.key_shape, call.device)
        return by_columns(kernels, "range_dk_dv", tile, columns, call, int_scalars(*ranges))

    def dq(self, call: Call) -> ReadyLaunch:
        tile, ranges, kernels = self._backward(call, adds_dq=False)
        tiles = class_tiles(call.query_shape[2], ranges.dilation, tile.dq_rows)
        return by_queries(kernels, "range_dq", tile, tiles, call, int_scalars(*ranges))

    def _backward(self, call: Call, adds_dq: bool) -> tuple[BackwardTile, Ranges, RawModule]:
        tile = fitting(RANGE_BACKWARD_TILES[call.key_shape[3]], call.device)
        ranges = Ranges(*_numbers(self.ranges, call.query_shape[2], call.key_shape[2]))
        options = *tile.options, DILATED if ranges.dilation > 1 else UNDILATED, *_dq_option(adds_dq)
        return tile, ranges, module(f"{FOLDER}/range_backward.cu", options, call.dtype)


def _dq_option(adds_dq: bool) -> tuple[str, ...]:
    """The backward kernels' option for a pass of its own for dQ; without it blocks of keys add to dQ."""
    return () if adds_dq else ("-DDQ_PASS=1",)


def _numbers(ranges: Ranges, query_length: int, key_length: int) -> tuple[int, ...]:
    *others, _ = ranges
    return *others, dilation_at(ranges, query_length, key_length)


class ListMask(NamedTuple):
    """Launches of block_sparse.cu, on a Hopper GPU also of block_sparse_hopper.cu, and block_sparse_backward.cu; there
    `backward_of` takes block_sparse_backward_hopper.cu in its place where it can."""

    lists: BlockLists

    def forward(self, call: Call) -> Forward:
        lists, (batch, heads, _, head_dim) = self.lists, call.query_shape
        if takes_wgmma(call.device) and sparse_hopper_lists.takes_lists(call, lists):
            return self._on_hopper(call)
        tile = fitting(BLOCK_TILES[head_dim, lists.block], call.device)
        work = work_items(lists, batch * heads)
        tables, parts = (work.items, lists.indices, lists.bits_index, lists.bits), 2 * (parts_argument(work),)
        attend = ReadyLaunch(
            self._kernels(call, lists.block).get_function("block_sparse_forward"),
            (len(work.items), heads, batch),
            (tile.threads,),
            (*FORWARD_TENSORS, *tables, *parts, *call.scalars, lists.indptr, *call.softmax_arguments),
            tile.shared_bytes,
        )
        return self._with_merge(attend, call, work, lists.block)

    def _on_hopper(self, call: Call) -> Forward:
        """By block_sparse_hopper.cu."""
        found = sparse_hopper_lists.pair_lists(self.lists, math.prod(call.query_shape[:2]))
        attend = sparse_hopper_lists.forward(call, self.lists, found)
        return self._with_merge(attend, call, found.work, hopper_launch.ROWS)

    def _with_merge(self, attend: ReadyLaunch, call: Call, work: Work, rows: int) -> Forward:
        """The launch, and if it leaves parts that of merge_parts. rows: of a part."""
        if not work.parts:
            return attend
        batch, heads, _, head_dim = call.query_shape
        merge = ReadyLaunch(
            self._kernels(call, rows).get_function("merge_parts"),
            (len(work.split_rows) * rows // MERGED_ROWS, heads, batch),
            (32 * MERGED_ROWS,),
            (LAID_OUT, LAID_OUT, work.split_rows, LAID_OUT, LAID_OUT, call.scalars[0]),
        )
        return _SplitRows(attend, merge, (work.parts, batch, heads, rows, head_dim))

    def _kernels(self, call: Call, block: int) -> RawModule:
        """block_sparse.cu for blocks of so many rows."""
        tile = fitting(BLOCK_TILES[call.query_shape[3], block], call.device)
        return module(f"{FOLDER}/block_sparse.cu", (*tile.options, *call.softmax_options), call.dtype)

    def dk_dv(self, call: Call, adds_dq: bool) -> DkDv:
        tile, kernels = self._backward(call, adds_dq)
        columns = self.columns(tile, call.query_shape, call.key_shape)
        _, rows, bits_index = self.lists.by_key()
        lists = rows, bits_index, self.lists.bits
        if call.softcap:
            return by_columns(kernels, "capped_dk_dv", tile, columns, call, (*lists, np.float32(call.softcap)))
        return by_columns(kernels, "block_sparse_dk_dv", tile, columns, call, lists)

    def dq(self, call: Call) -> ReadyLaunch:
        (tile, kernels), lists = self._backward(call, adds_dq=False), self.lists
        tiles = ceil_div(call.query_shape[2], tile.dq_rows)
        more = lists.indptr, lists.indices, lists.bits_index, lists.bits, np.float32(call.softcap)
        return by_queries(kernels, "block_sparse_dq", tile, tiles, call, more)

    def _backward(self, call: Call, adds_dq: bool) -> tuple[BackwardTile, RawModule]:
        tile = fitting(BLOCK_BACKWARD_TILES[call.key_shape[3], self.lists.block], call.device)
        options = *tile.options, f"-DBLOCK={self.lists.block}", *call.softcap_option, *_dq_option(adds_dq)
        return tile, module(f"{FOLDER}/block_sparse_backward.cu", options, call.dtype)

    def columns(self, tile: BackwardTile, query_shape: torch.Size, key_shape: torch.Size) -> Columns:
        """What the blocks of threads of block_sparse_backward.cu do."""
        lists, (indptr, *_) = self.lists, self.lists.by_key()
        tiles = torch.arange(ceil_div(lists.L_k, tile.block_cols), device=lists.device)
        column = tiles * tile.block_cols // lists.block
        return columns_of(
            tiles, indptr[column], indptr[column + 1], tile, query_shape, key_shape, rows_of_entry=lists.block
        )


class _SplitRows(NamedTuple):
    """The launches of block_sparse_forward and of merge_parts. shape: of the parts, which each call allocates."""

    attend: ReadyLaunch
    merge: ReadyLaunch
    shape: tuple[int, ...]

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, *sinks: Tensor) -> None:
        parts = query.new_empty(self.shape, dtype=torch.float32)
        lse_parts = parts.new_empty(self.shape[:-1])
        self.attend(query, key, value, out, lse, parts, lse_parts, *sinks)
        self.merge(parts, lse_parts, out, lse)


class CsrMask(NamedTuple):
    """The launch of csr_gather.cu."""

    indptr: Tensor
    indices: Tensor

    def forward(self, call: Call) -> Forward:
        batch, heads, query_length, head_dim = call.query_shape
        return ReadyLaunch(
            kernel(f"{FOLDER}/csr_gather.cu", CSR_OPTIONS[head_dim], call.dtype, "csr_gather"),
            (ceil_div(query_length, CSR_WARPS), heads, batch),
            (32 * CSR_WARPS,),
            (*FORWARD_TENSORS, self.indptr, self.indices, *call.scalars),
        )


Mask = DenseMask | RangeMask | RowMask | ListMask | CsrMask


def backward_of(mask: Mask, call: Call, deterministic: bool) -> Backward:
    """The launches of the backward pass. deterministic: they give the same bits in every run. The kernels of a Hopper
    GPU take turns for that; the others leave dQ to a pass of its own."""
    if takes_wgmma(call.device) and not call.is_wide:
        if isinstance(mask, DenseMask):
            return hopper_launch.ready_backward(mask.of_blocks(call), False, deterministic)
        if isinstance(mask, RowMask) or (isinstance(mask, RangeMask) and takes_backward(call, mask.ranges)):
            return ready_range_backward(call, mask[0], deterministic=deterministic)
        if isinstance(mask, ListMask) and not deterministic and sparse_hopper_lists.takes_lists(call, mask.lists):
            return sparse_hopper_lists_backward.ready_list_backward(call, mask.lists)
    if deterministic:
        return TwoPasses(row_delta(call), mask.dk_dv(call, adds_dq=False), mask.dq(call))
    return ready_backward(call, mask.dk_dv(call, adds_dq=True))


def mask_of(pattern: Pattern, call: Call, differentiable: bool) -> Mask:
    """The mask that the kernel of `choose_kernel` takes for the pattern; with sinks, a softcap or wide heads the two
    arrays of table_forward, or block lists."""
    if call.is_wide or not call.is_plain:
        sizes, device = (call.query_shape[2], call.key_shape[2]), call.device
        rows = pattern.row_ranges(*sizes, device=device)
        if rows is not None:
            return RowMask(rows)
        if call.is_wide:
            raise NotImplementedError(
                f"{pattern.name} with head dimension {call.query_shape[3]}: where rows are not ranges of keys, it must "
                f"be at most {MOST_COLUMNS}"
            )
        return ListMask(pattern.block_lists(*sizes, block=BLOCK, device=device))
    (batch, heads, query_length, _), (_, kv_heads, key_length, _) = call.query_shape, call.key_shape
    sizes, device = (query_length, key_length), call.device
    chosen = choose_kernel(
        pattern, *sizes, differentiable=differentiable, grouped=heads != kv_heads, device=device
    ).kernel
    if chosen == "dense" and batch * heads <= MAX_GRID:
        return DenseMask(pattern.ranges.step)
    if chosen in ("dense", "range"):
        return mask_of_ranges(pattern, *sizes, device)
    if chosen == "block_sparse":
        return ListMask(pattern.block_lists(*sizes, block=BLOCK, device=device))
    return CsrMask(*rows_of_keys(pattern, *sizes, device))


def mask_of_ranges(pattern: Pattern, query_length: int, key_length: int, device: torch.device) -> RangeMask | RowMask:
    """The mask that range.cu takes for a pattern whose rows are ranges: five numbers if they suffice, else two
    arrays."""
    if pattern.ranges is not None and dilation_at(pattern.ranges, query_length, key_length) <= MAX_DILATION:
        return RangeMask(pattern.ranges)
    return RowMask(pattern.row_ranges(query_length, key_length, device=device))


def by_columns(
    kernels: RawModule, name: str, tile: BackwardTile, columns: Columns, call: Call, more: tuple[object, ...]
) -> DkDv:
    """The launch of a kernel of key_columns.cuh, and of merge_gradients where columns are split. more: what the kernel
    takes behind the columns."""
    batch, kv_heads, *_ = call.key_shape
    dk_dv = ReadyLaunch(
        kernels.get_function(name),
        (len(columns.items) * columns.heads, kv_heads // columns.heads, batch),
        (tile.threads,),
        (*BACKWARD_TENSORS, *call.scalars, columns.items, np.int32(columns.heads), parts_argument(columns), *more),
        tile.shared_bytes,
    )
    return merged(
        dk_dv,
        kernels.get_function("merge_gradients"),
        columns,
        call,
        block_cols=tile.block_cols,
        threads=tile.threads,
        gradients=slice(-2, None),
    )


def modules(dtype: torch.dtype, device: torch.device) -> list[RawModule]:
    """What the operators launch for tensors of this dtype and device, to be compiled ahead of time."""
    options = [("csr_gather", of_file) for of_file in CSR_OPTIONS.values()]
    options += [
        ("range", (*fitting(RANGE_TILES[head_dim], device).options, f"-DDILATED={dilated}"))
        for head_dim in HEAD_DIMS
        for dilated in (0, 1)
    ]
    options += [("range", (*fitting(RANGE_TILES[head_dim], device).options, *TABLE)) for head_dim in HEAD_DIMS]
    options += [
        ("range_backward", (*fitting(RANGE_BACKWARD_TILES[head_dim], device).options, kind))
        for head_dim in HEAD_DIMS
        for kind in ("-DDILATED=0", "-DDILATED=1", "-DTABLE=1")
    ]
    options += [("block_sparse", fitting(tiles, device).options) for tiles in BLOCK_TILES.values()]
    options += [
        ("block_sparse_backward", (*fitting(tiles, device).options, f"-DBLOCK={block}"))
        for (_, block), tiles in BLOCK_BACKWARD_TILES.items()
    ]
    if takes_wgmma(device):
        options += [("range_hopper", of_file) for of_file in sparse_hopper.forward_options()]
        options.append(("block_sparse_hopper", sparse_hopper_lists.OPTIONS))
        options.append(("block_sparse_backward_hopper", sparse_hopper_lists_backward.OPTIONS))
        options += [
            ("range_backward_hopper", hopper_launch.BackwardTile(head_dim, dilated=dilated).options)
            for head_dim in HEAD_DIMS
            for dilated in (False, True)
        ]
    return [module(f"{FOLDER}/{file}.cu", of_file, dtype) for file, of_file in options]
