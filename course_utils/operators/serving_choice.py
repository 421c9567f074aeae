"""How attention to a cache is shared among blocks of threads: the tile, and the pieces into which the keys are cut
(kernels/06_serving). Chosen from sizes, dtypes and device alone, before anything is launched."""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import torch

from course_utils.costs import ceil_div, splits_by_waves
from course_utils.cuda import shared_memory_limit
from course_utils.operators.prepare import MAX_GRID, fitting
from course_utils.operators.tensor_core import HEAD_DIMS, defines

E4M3 = torch.float8_e4m3fn
MAX_QUERIES = 16  # of a sequence, in one tile
SHORTEST_PIECE = 128  # keys: below, to merge costs more than a shorter piece saves
SHORTEST_IN_PAIRS = 1024  # where blocks share a multiprocessor: one without a neighbour is faster, so less is lost
RESERVED_SHARED = 1024  # bytes that the driver adds for each block, from sm_80 on
EMULATED_MULTIPROCESSORS = 132  # those of an H100


class DecodeTile(NamedTuple):
    """Options of the kernels: B_r rows, that is queries of a group of heads, which all warps of a block share; each
    warp has tiles of B_c keys, `stages` of them on their way. key_bytes: of a number of the cache."""

    head_dim: int
    block_rows: int
    block_cols: int
    warps: int
    stages: int
    key_bytes: int = 2

    @property
    def options(self) -> tuple[str, ...]:
        sizes = {"D": self.head_dim, "B_R": self.block_rows, "B_C": self.block_cols}
        return defines(**sizes, WARPS=self.warps, STAGES=self.stages)

    @property
    def block(self) -> tuple[int, int]:
        return 32, self.warps

    @property
    def shared_bytes(self) -> int:
        """Q, and the warps' tiles of K and V; in their place, at the end, the warps' results."""
        tiles = 2 * self.key_bytes * self.warps * self.stages * self.block_cols * self.head_dim
        results = 4 * self.warps * self.block_rows * (self.head_dim + 9)
        return 2 * self.head_dim * self.block_rows + max(tiles, results)


class Tiles(NamedTuple):
    """The fastest on an H100: where few blocks share the work, one of them on each multiprocessor, with up to 130 kB on
    their way; where there are enough anyway, two, so that one streams while the other begins or ends. And one for GPUs
    with less shared memory."""

    alone: DecodeTile
    in_pairs: DecodeTile
    small: DecodeTile


def _tiles(head_dim: int, rows: int, key_bytes: int) -> Tiles:
    keys = min(32, 4096 // (head_dim * key_bytes))
    more = 4096 // (keys * head_dim * key_bytes)  # stages, where a tile is small
    sizes = (8, 2 * more), (4, 3 * more), (4, 2 * more)
    return Tiles(*(DecodeTile(head_dim, rows, keys, warps, stages, key_bytes) for warps, stages in sizes))


MOST_ROWS = 32  # of a block
# By head dimension, rows of a block and bytes of a number of the cache.
TILES = {sizes: _tiles(*sizes) for sizes in itertools.product(HEAD_DIMS, (16, MOST_ROWS), (2, 1))}


class Call(NamedTuple):
    """What the launches of a call depend on: sizes, as the kernels take them, dtypes and options."""

    query_shape: torch.Size  # `[B, H, L_q, D]`, of decode_step with layers before
    kv_heads: int
    capacity: int  # keys of a sequence, at most, without those before the windows of its queries
    pages: tuple[int, ...]  # entries of a row of the block table, and keys of a page; none without pages
    dtype: torch.dtype  # of query
    key_bytes: int  # of a number of the cache: 1 for E4M3, which has scales
    device: torch.device
    ragged: bool  # whether there are seq_lens
    tree: bool  # whether there are parents
    factor: float  # of the scores
    num_splits: int  # 0 for None, as is split_size
    split_size: int
    window: int = 0  # 0: none, as is a softcap of 0
    softcap: float = 0
    has_sinks: bool = False

    @property
    def softmax_options(self) -> tuple[str, ...]:
        """Options of a kernel for pages."""
        given = {"WINDOW": self.window, "SOFTCAP": self.softcap, "SINKS": self.has_sinks}
        return defines(**{name: 1 for name, value in given.items() if value})

    @property
    def file(self) -> str:
        return "e4m3_cache" if self.key_bytes == 1 else "paged_cache" if self.pages else "split_keys"

    @property
    def kernel(self) -> str:
        return "e4m3_paged_cache" if self.key_bytes == 1 and self.pages else self.file


class Cut(NamedTuple):
    """Into what pieces the keys are cut: `size` keys each, or, where that is 0, of a size that follows on the device
    from the lengths, with which there are about `wanted`. pieces: the most that there can be."""

    wanted: int
    size: int
    pieces: int


class Plan(NamedTuple):
    """How a launch shares the work: its tile, tiles of rows of a key head, and the pieces of the keys."""

    tile: DecodeTile
    row_tiles: int
    cut: Cut


def plan(call: Call) -> Plan:
    *_, batch, heads, query_length, columns = call.query_shape
    rows = heads // call.kv_heads * query_length
    row_tiles = ceil_div(rows, block_rows(rows))
    blocks = row_tiles * call.kv_heads
    # The bits depend on how many warps share a piece, and with a size that is given not on the batch.
    tile = decode_tile(rows, 0 if call.split_size else batch * blocks, columns, call.key_bytes, call.device)
    how = cut_keys(batch, blocks, call.capacity, call.ragged, call.num_splits, call.split_size, tile, call.device)
    return Plan(tile, row_tiles, how)


def block_rows(rows: int) -> int:
    """B_r for so many rows, the queries of a group of heads."""
    return 16 if rows <= 16 else MOST_ROWS


def group_queries(heads: int) -> int:
    """How many queries fill a tile, where so many heads share a key head."""
    return max(1, min(MAX_QUERIES, MOST_ROWS // heads))


def decode_tile(rows: int, blocks: int, head_dim: int, key_bytes: int, device: torch.device) -> DecodeTile:
    """The tile for so many rows, the queries of a group of heads, and a cache of such numbers. blocks: of threads,
    before any sequence is cut."""
    tiles = TILES[head_dim, block_rows(rows), key_bytes]
    if blocks >= multiprocessors(device) and blocks_at_a_time(tiles.in_pairs, device) > 1:
        return tiles.in_pairs
    return fitting((tiles.alone, tiles.small), device)


def cut_keys(
    batch: int,
    blocks: int,
    capacity: int,
    ragged: bool,
    num_splits: int,
    split_size: int,
    tile: DecodeTile,
    device: torch.device,
) -> Cut:
    """How the keys of a batch are cut. blocks: of threads for one piece. num_splits, split_size: 0 for None."""
    if split_size:
        size = min(split_size, capacity)
        made = Cut(0, size, batch * ceil_div(capacity, size))
    else:
        shortest = SHORTEST_PIECE if blocks_at_a_time(tile, device) == 1 else SHORTEST_IN_PAIRS
        most = max(1, capacity // shortest)
        splits = num_splits or splits_by_waves(batch * blocks, places(tile, device), most)
        if ragged:
            made = Cut(batch * splits, 0, batch * splits + batch - 1)
        else:
            size = ceil_div(capacity, splits)
            made = Cut(0, size, batch * ceil_div(capacity, size))
    if made.pieces > MAX_GRID:
        raise ValueError(
            f"query has batch size {batch}, and the keys are cut into up to {made.pieces} pieces; there can be "
            f"{MAX_GRID}: take fewer num_splits or a larger split_size"
        )
    return made


def places(tile: DecodeTile, device: torch.device) -> int:
    """How many blocks the device runs at a time."""
    return blocks_at_a_time(tile, device) * multiprocessors(device)


@functools.cache
def blocks_at_a_time(tile: DecodeTile, device: torch.device) -> int:
    """How many blocks a multiprocessor's shared memory has room for; its registers have room for more."""
    return (shared_memory_limit(device) + RESERVED_SHARED) // (tile.shared_bytes + RESERVED_SHARED)


@functools.cache
def multiprocessors(device: torch.device) -> int:
    if device.type == "cpu":
        return EMULATED_MULTIPROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def step_workspace(batch: int, kv_heads: int) -> int:
    """How many counters `decode_step` needs: items taken, blocks that have left, heads and parts that are done."""
    return 2 + batch * (1 + kv_heads)
