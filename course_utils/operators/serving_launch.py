"""The launches of kernels/06_serving for a call: grid, arguments, and the tensors that a call makes for them."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.cuda import LAID_OUT, PASSED, RawModule, ReadyLaunch, compiled
from course_utils.operators.attention import int_scalars
from course_utils.operators.prepare import MAX_GRID
from course_utils.operators.serving_choice import TILES, Call, Cut, decode_tile, places, plan
from course_utils.operators.tensor_core import BF16, FORWARD_TENSORS, defines, module

FOLDER = "06_serving"
MERGE_BLOCK = (32, 4)
APPEND_THREADS = 256


class ReadyPieces(NamedTuple):
    """The launches of attention to pieces of the keys.

    outputs: shape, strides and dtype of each tensor that a call allocates: out and the log-sum-exp, and where a
    sequence may have several pieces, the same of the pieces. merge: the launch that merges pieces; None if nothing is
    to merge, or the first launch merges. lengths: how many tensors hold the lengths of sequences, 0 or 1.
    """

    device: torch.device
    outputs: tuple[tuple[tuple[int, ...], tuple[int, ...], torch.dtype], ...]
    attend: ReadyLaunch
    merge: ReadyLaunch | None
    lengths: int

    def __call__(self, inputs: tuple[Tensor, ...], more: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Out and the log-sum-exp. inputs, more: the first launch's arguments before and after the outputs; `more`
        begins with the lengths."""
        outputs = [torch.empty_strided(shape, steps, dtype=of, device=self.device) for shape, steps, of in self.outputs]
        self.attend(*inputs, *outputs, *more)
        if self.merge:
            self.merge(*outputs[2:], *outputs[:2], *more[: self.lengths])
        return outputs[0], outputs[1]


@functools.lru_cache(maxsize=1024)
def ready_attention(call: Call) -> ReadyPieces:
    """Launches for query, key and value; more: lengths, parents, scales, the block table and sinks, those that the call
    has."""
    (tile, row_tiles, how), (batch, heads, query_length, columns) = plan(call), call.query_shape
    outputs, parts = _outputs(call, how)
    lengths = _passed_or_empty(call.ragged, torch.int32, call.device)
    options = *tile.options, *call.softmax_options
    attend = ReadyLaunch(
        module(f"{FOLDER}/{call.file}.cu", options, call.dtype).get_function(call.kernel),
        (row_tiles, call.kv_heads, how.pieces),
        tile.block,
        (
            *(*FORWARD_TENSORS, *parts),
            *(lengths, _passed_or_empty(call.tree, torch.int32, call.device)),
            *(*int_scalars(batch, call.capacity, query_length, heads // call.kv_heads), np.float32(call.factor)),
            *int_scalars(call.ragged, call.tree, how.wanted, how.size),
            *(2 * (PASSED,) if call.key_bytes == 1 else ()),
            *(_arguments_of_pages(call) if call.pages else ()),
        ),
        tile.shared_bytes,
    )
    if len(outputs) == 2:
        return ReadyPieces(call.device, outputs, attend, None, int(call.ragged))
    merge = ReadyLaunch(
        _merge_module(torch.float32, call.dtype).get_function("merge_pieces"),
        (heads * query_length, batch),
        MERGE_BLOCK,
        (
            *(*4 * (LAID_OUT,), lengths),
            *int_scalars(batch, call.capacity, columns, call.ragged, how.wanted, how.size),
        ),
        dependent=True,
    )
    return ReadyPieces(call.device, outputs, attend, merge, int(call.ragged))


@functools.lru_cache(maxsize=1024)
def ready_step(call: Call, pages: int) -> ReadyPieces:
    """Launches for query, key, value and a cache of so many pages; more: lengths, parents, the block table, scales and
    the workspace, those that the call has."""
    (tile, _, how), (layers, batch, heads, query_length, _) = plan(call), call.query_shape
    items, (outputs, parts) = how.pieces * call.kv_heads, _outputs(call, how)
    if layers * items >= 2**31:
        raise ValueError(f"query has {layers} layers, of {items} items each: together 2^31 or more")
    attend = ReadyLaunch(
        _writing_module("persistent_step", tile.options, call.key_bytes, call.dtype).get_function("persistent_step"),
        (min(layers * items, places(tile, call.device)),),
        tile.block,
        (
            *(*5 * (PASSED,), LAID_OUT, LAID_OUT, *parts),
            *(PASSED, _passed_or_empty(call.tree, torch.int32, call.device), PASSED),
            *(*2 * (_passed_or_empty(call.key_bytes == 1, torch.float32, call.device),), PASSED),
            *int_scalars(layers, batch, pages, *call.pages, query_length, call.kv_heads, heads // call.kv_heads),
            *(np.float32(call.factor), *int_scalars(call.tree, how.wanted, how.size, how.pieces)),
        ),
        tile.shared_bytes,
    )
    return ReadyPieces(call.device, outputs, attend, None, int(call.ragged))


def _outputs(call: Call, how: Cut) -> tuple[tuple[Any, ...], tuple[object, ...]]:
    """The outputs of a `ReadyPieces`, and the arguments of a launch that stand for the results of pieces."""
    *_, batch, heads, query_length, columns = call.query_shape
    pieces, several = (how.pieces, heads * query_length, columns), how.pieces > batch
    shapes = [(call.query_shape, call.dtype), (call.query_shape[:-1], torch.float32)]
    shapes += several * [(pieces, torch.float32), (pieces[:-1], torch.float32)]
    outputs = tuple((shape, torch.empty(shape, device="meta").stride(), dtype) for shape, dtype in shapes)
    return outputs, 2 * (LAID_OUT if several else _passed_or_empty(False, torch.float32, call.device),)


def _arguments_of_pages(call: Call) -> tuple[object, ...]:
    """The last arguments of a kernel for pages."""
    sinks = _passed_or_empty(call.has_sinks, torch.float32, call.device)
    return PASSED, *int_scalars(*call.pages, call.window), np.float32(call.softcap), sinks


def _passed_or_empty(is_passed: object, dtype: torch.dtype, device: torch.device) -> object:
    """`PASSED` for a tensor that the call has; else an empty tensor, which the kernel does not read."""
    return PASSED if is_passed else torch.empty(0, dtype=dtype, device=device)


@functools.lru_cache(maxsize=1024)
def ready_merge(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> ReadyLaunch:
    """The launch of merge_attention with outs of this shape, lses, out and lse, all on the device."""
    parts, *rows, columns = shape
    return ReadyLaunch(
        _merge_module(dtype, dtype).get_function("merge_attention"),
        (math.prod(rows),),
        MERGE_BLOCK,
        (*4 * (PASSED,), *int_scalars(parts, columns)),
    )


@functools.lru_cache(maxsize=1024)
def ready_append(
    shape: torch.Size, pages: tuple[int, int], dtype: torch.dtype, key_bytes: int, device: torch.device
) -> ReadyLaunch:
    """The launch of append_paged with keys and values of this shape, pages, table, lengths and, with E4M3, scales.
    pages, key_bytes: as for a `Call`."""
    return ReadyLaunch(
        _writing_module("append", (), key_bytes, dtype).get_function("append_paged"),
        (ceil_div(math.prod(shape) // 8, APPEND_THREADS),),
        (APPEND_THREADS,),
        (*6 * (PASSED,), *2 * (_passed_or_empty(key_bytes == 1, torch.float32, device),), *int_scalars(*shape, *pages)),
    )


def _merge_module(parts: torch.dtype, out: torch.dtype) -> RawModule:
    options = defines(BF16=BF16.get(out, 0), PART_BITS=8 * parts.itemsize, O_BITS=8 * out.itemsize)
    return compiled(f"{FOLDER}/merge.cu", options)


def _writing_module(file: str, options: tuple[str, ...], key_bytes: int, dtype: torch.dtype) -> RawModule:
    """With a kernel that writes new tokens to the cache."""
    return module(f"{FOLDER}/{file}.cu", (*options, f"-DCACHE_BITS={8 * key_bytes}"), dtype)


def modules(dtype: torch.dtype, device: torch.device) -> list[RawModule]:
    """What the operators launch for queries of this dtype on a device, to be compiled ahead of time."""
    made = [_merge_module(torch.float32, dtype), _merge_module(dtype, dtype)]
    made += [_writing_module("append", (), key_bytes, dtype) for key_bytes in (1, 2)]
    for (head_dim, rows, key_bytes), blocks in itertools.product(TILES, (1, MAX_GRID)):
        options = decode_tile(rows, blocks, head_dim, key_bytes, device).options
        for file in ("split_keys", "paged_cache") if key_bytes == 2 else ("e4m3_cache",):
            made.append(module(f"{FOLDER}/{file}.cu", options, dtype))
        made.append(_writing_module("persistent_step", options, key_bytes, dtype))
    return made
