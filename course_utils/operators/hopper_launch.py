"""The launches of kernels/07_hopper for a call: tiles, grid, tensor maps and arguments. Nothing is launched here."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.cuda import COUNTER, LAID_OUT, PASSED, Kernel, PassedMap, ReadyLaunch, TensorMap, compiled, tensor_map
from course_utils.operators.attention import Call
from course_utils.operators.tensor_core import HEAD_DIMS, defines, kernel

FOLDER = "07_hopper"
FORWARD, E4M3_FORWARD, BACKWARD = (f"{FOLDER}/{name}.cu" for name in ("forward", "forward_e4m3", "backward"))
E4M3 = torch.float8_e4m3fn
ROWS, KEYS = 64, 128  # queries of a consumer, keys of a tile


class HopperTile(NamedTuple):
    """Options of forward.cu."""

    head_dim: int
    consumers: int

    @property
    def options(self) -> tuple[str, ...]:
        return defines(D=self.head_dim, CONSUMERS=self.consumers)

    @property
    def block_rows(self) -> int:
        """Queries of a block."""
        return ROWS * self.consumers

    @property
    def threads(self) -> int:
        """128 for each consumer, and the producer's."""
        return 128 * (self.consumers + 1)

    @property
    def shared_bytes(self) -> int:
        """Q and O of each consumer, two tiles each of K and V, barriers, a float for each consumer's thread."""
        return 4 * self.head_dim * (self.block_rows + 2 * KEYS) + 528 * self.consumers + 88

    def kernel(self, dtype: torch.dtype) -> Kernel:
        """Compiled at its first launch."""
        return kernel(FORWARD, self.options, dtype, "forward")


class E4M3Tile(HopperTile):
    """Options of forward_e4m3.cu, which always has three consumers."""

    @property
    def options(self) -> tuple[str, ...]:
        return defines(D=self.head_dim)

    @property
    def shared_bytes(self) -> int:
        """A number of Q, K and V is a byte; besides, there are two tiles of V as it comes, and their barriers."""
        return 3 * self.head_dim * (self.block_rows + 2 * KEYS) + 16 * self.consumers + 128

    def kernel(self, dtype: torch.dtype) -> Kernel:
        return compiled(E4M3_FORWARD, self.options).get_function("forward_e4m3")


class BackwardTile(NamedTuple):
    """Options of backward.cu; its blocks have two consumers, each with ROWS keys, a producer and two adders."""

    head_dim: int
    takes_turns: bool = False  # blocks add to dQ in a fixed order
    dilated: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        dilated = ("-DDILATED=1",) if self.dilated else ()
        return *defines(D=self.head_dim, TURNS=int(self.takes_turns)), *dilated

    @property
    def rows(self) -> int:
        """Queries of a tile."""
        return 8192 // self.head_dim

    @property
    def shared_bytes(self) -> int:
        """K and V; Q, dO, dS and the statistics twice, of this tile and the next or the last; dQ; barriers."""
        return 8 * self.head_dim * (ROWS + self.rows) + 528 * self.rows + 32928


# For each head dimension, the tile for short causal rows, and that for all others.
TILES = {64: (HopperTile(64, 2), HopperTile(64, 3)), 128: (HopperTile(128, 2), HopperTile(128, 2))}
E4M3_TILES = {d: E4M3Tile(d, 3) for d in HEAD_DIMS}
L2_SHARE = 2**25  # bytes for keys and values, of the 50 MB of an H100
LONG = 2048  # queries: of shorter causal rows, blocks of 192 would compute too much that is masked


def tile_map(tensor: Tensor, rows: int, dilation: int = 1) -> TensorMap:
    """The tensor `[B, H, L, D]` for the copy engine, as kernels/include/copy_engine.cuh takes it: a box is `rows` rows
    of one head, in panels of 64 columns; of bytes in one panel. dilation: so many rows are one row of the map, of which
    a box has D columns; it divides L."""
    batch, heads, length, d = tensor.shape
    columns = 64 if tensor.element_size() == 2 else d
    shape = batch * heads, length // dilation, dilation * d // columns, columns
    return tensor_map(
        tensor.view(shape).transpose(1, 2),
        (1, d // columns, rows, columns),
        swizzle=f"{columns * tensor.element_size()}B",
    )


def map_as(shape: torch.Size, rows: int, dilation: int = 1) -> PassedMap:
    """The place of a tensor in a launch that takes it as `tile_map` of a view of this shape."""
    return PassedMap(lambda tensor: tile_map(tensor.view(shape), rows, dilation), laid_out=True)


def heads_at_once(
    query_shape: Sequence[int], key_shape: Sequence[int], dtype: torch.dtype, fewest: int = 8, most: int = 32
) -> int:
    """How many heads the blocks work on at the same time: as many as have their keys and values in the L2 cache, from
    `fewest` to `most`, of those that there are. The defaults suit a causal mask. Shapes as for
    `flash_attention_hopper`."""
    batch, heads, _, head_dim = query_shape
    _, kv_heads, key_length, _ = key_shape
    kept = L2_SHARE * heads // max(1, 2 * kv_heads * key_length * head_dim * dtype.itemsize)
    return min(max(fewest, min(kept, most)), batch * heads)


@functools.lru_cache(maxsize=1024)
def forward_launch(call: Call, is_causal: bool) -> ReadyLaunch:
    """The launch of forward.cu with query, key, value, out and lse. In E4M3, where tensors come as bytes, that of
    forward_e4m3.cu; it takes the three scales in front of lse."""
    batch, heads, query_length, head_dim = call.query_shape
    in_e4m3 = call.dtype == E4M3
    tile = E4M3_TILES[head_dim] if in_e4m3 else TILES[head_dim][not is_causal or query_length >= LONG]
    of_rows, of_keys = map_as(call.query_shape, ROWS), map_as(call.key_shape, KEYS)
    *sizes, factor = call.scalars
    items = batch * heads * ceil_div(query_length, tile.block_rows)
    return ReadyLaunch(
        tile.kernel(call.dtype),
        (min(items, blocks_that_stay(call.device)),),
        (tile.threads,),
        (
            *(of_rows, of_keys, of_keys),
            map_as(call.query_shape, ROWS),  # of out, whose dtype may be another than that of query
            *(in_e4m3 * (PASSED, PASSED, PASSED)),
            *(LAID_OUT, COUNTER),
            np.int32(batch * heads),
            *sizes,
            factor,
            np.int32(is_causal),
            np.int32(heads_at_once(call.query_shape, call.key_shape, call.dtype)),
        ),
        tile.shared_bytes,
    )


class ReadyBackward(NamedTuple):
    """The launches of a backward pass, and how many numbers they need between them: statistics and sums of dQ, float32,
    and turns, int32."""

    prepare: ReadyLaunch
    backward: Callable[..., None]  # a launch, or more
    finish: ReadyLaunch
    sizes: tuple[int, int, int]

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, grad_out: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of query, key and value. out `[B, H, L_q, d]`, its gradient and lse `[B, H, L_q]` are dense,
        the others strided as the launch was made for."""
        grad_query = torch.empty_like(query, memory_format=torch.contiguous_format)
        grad_key, grad_value = torch.empty_like(key), torch.empty_like(value)
        dtypes = torch.float32, torch.float32, torch.int32
        made = [torch.empty(n, dtype=of, device=query.device) for n, of in zip(self.sizes, dtypes, strict=True)]
        statistics, dq_sum, turns = made
        self.prepare(out, grad_out, lse, statistics, dq_sum, turns)
        self.backward(query, grad_out, key, value, grad_key, grad_value, statistics, dq_sum, turns)
        self.finish(dq_sum, grad_query)
        return grad_query, grad_key, grad_value


def has_equal_classes(call: Call, dilation: int) -> bool:
    """Whether every residue class has as many positions, as maps of dilated rows ask for."""
    return call.query_shape[2] % dilation == call.key_shape[2] % dilation == 0


def of_classes(call: Call, dilation: int) -> Call:
    """The call in which each residue class of a batch is a batch of its own, `[B · dilation, H, L / dilation, d]`."""

    def shape_of(shape: torch.Size) -> torch.Size:
        batch, heads, length, head_dim = shape
        return torch.Size((batch * dilation, heads, length // dilation, head_dim))

    return call._replace(query_shape=shape_of(call.query_shape), key_shape=shape_of(call.key_shape))


@functools.lru_cache(maxsize=1024)
def ready_backward(call: Call, is_causal: bool, deterministic: bool) -> ReadyBackward:
    """The launches of backward.cu. deterministic: blocks take turns to add to dQ."""
    tile = BackwardTile(call.query_shape[3], deterministic)
    of_queries, of_keys = map_as(call.query_shape, tile.rows), map_as(call.key_shape, ROWS)
    batch, kv_heads, key_length, _ = call.key_shape
    backward = ReadyLaunch(
        kernel(BACKWARD, tile.options, call.dtype, "backward"),
        (ceil_div(key_length, 2 * ROWS), kv_heads, batch),
        (384,),
        (*2 * (of_queries,), *4 * (of_keys,), *3 * (LAID_OUT,), *call.scalars, np.int32(is_causal)),
        tile.shared_bytes,
    )
    return around(call, backward, deterministic)


def around(call: Call, backward: Callable[..., None], deterministic: bool, dilation: int = 1) -> ReadyBackward:
    """A backward pass by backward.cu's first and last kernel, and what comes between them. dilation: above 1, the call
    is one `of_classes`."""
    batch, heads, query_length, head_dim = call.query_shape
    tile = BackwardTile(head_dim, deterministic, dilation > 1)
    tiles = ceil_div(query_length, tile.rows), heads, batch
    padded_rows = math.prod(tiles) * tile.rows

    def ready(name: str, args: tuple[object, ...]) -> ReadyLaunch:
        return ReadyLaunch(kernel(BACKWARD, tile.options, call.dtype, name), tiles, (256,), args)

    length, factor, pitch = np.int32(query_length), np.float32(call.factor), np.int32(dilation)
    return ReadyBackward(
        ready("backward_prepare", (*6 * (LAID_OUT,), length, pitch)),
        backward,
        ready("backward_finish", (LAID_OUT, LAID_OUT, length, factor, pitch)),
        (2 * padded_rows, head_dim * padded_rows, math.prod(tiles)),
    )


def blocks_that_stay(device: torch.device) -> int:
    """The number of the GPU's multiprocessors; two on the emulator, so that each block fetches more than one item."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
