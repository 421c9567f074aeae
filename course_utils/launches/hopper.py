"""The ladder of forward kernels of chapter 07, for Hopper: one step a file, each the one before with one idea more.

for step in LADDER:
    out, lse = launch(step, query, key, value, is_causal=True)
out, lse = launch(EIGHT_BITS, *in_e4m3, scales=(q_scale, k_scale, v_scale), is_causal=True)
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_utils import reference
from course_utils.costs import attention_flops, ceil_div
from course_utils.cuda import Kernel, TensorMap, compiled
from course_utils.launches.arguments import check_attention, ints, normal
from course_utils.launches.launch import Launch
from course_utils.operators.hopper_launch import (
    BACKWARD,
    E4M3,
    E4M3_FORWARD,
    E4M3_TILES,
    FOLDER,
    FORWARD,
    KEYS,
    ROWS,
    TILES,
    BackwardTile,
    blocks_that_stay,
    heads_at_once,
    tile_map,
)
from course_utils.operators.tensor_core import BF16_OPTION, DTYPES, HEAD_DIMS, defines

MULTIPROCESSORS = 132  # of an H100 (SXM) or H200


@dataclass(frozen=True)
class Step:
    """One kernel of the ladder.

    file: as for `read_kernel`; the kernel has the name of the file. number: its place on the ladder. title, idea: for
    tables; the idea is what this step changes. producer: whether a block has four warps that do not compute. shared:
    bytes of dynamic shared memory from (D, B_R). by_maps: tensors come as tensor maps; otherwise as pointers. stays:
    blocks fetch one item after the other. consumers: by D, where there are not two; at_once: heads at
    a time, from the shapes of query and key and their dtype. in_e4m3: inputs are in E4M3, with a scale for each head,
    and out is in bf16. more: other options.
    """

    file: str
    number: str
    title: str
    idea: str
    producer: bool
    shared: Callable[[int, int], int]
    by_maps: bool = True
    stays: bool = False
    consumers: dict[int, int] | None = None
    at_once: Callable[[Sequence[int], Sequence[int], torch.dtype], int] | None = None
    in_e4m3: bool = False
    more: tuple[str, ...] = ()

    @property
    def kernel(self) -> str:
        """The name of the `__global__` function."""
        return self.file.split("/")[-1].removesuffix(".cu")

    def options(self, head_dim: int, dtype: torch.dtype) -> tuple[str, ...]:
        """The compiler's options. Raises ValueError for another D than 64 and 128, or another dtype of the inputs."""
        if head_dim not in HEAD_DIMS:
            raise ValueError(f"head_dim is {head_dim}; {self.file} takes {' and '.join(map(str, HEAD_DIMS))}")
        dtypes = (E4M3,) if self.in_e4m3 else DTYPES
        if dtype not in dtypes:
            raise ValueError(f"dtype is {dtype}; {self.file} takes {' and '.join(map(str, dtypes))}")
        if self.in_e4m3:
            return (*E4M3_TILES[head_dim].options, *self.more)
        sizes = {"D": head_dim} | ({"CONSUMERS": self.consumers[head_dim]} if self.consumers else {})
        return (*defines(**sizes), BF16_OPTION[dtype], *self.more)

    def rows(self, head_dim: int) -> int:
        """Queries of a block."""
        return ROWS * (self.consumers[head_dim] if self.consumers else 2)

    def threads(self, head_dim: int) -> int:
        """Threads of a block: 128 for each 64 queries, and the producer's."""
        return 2 * self.rows(head_dim) + 128 * self.producer


LADDER = (
    Step(
        f"{FOLDER}/step1_wgmma.cu",
        "1",
        "wgmma",
        "Four warps together start a product of 64 rows, which reads K and V in shared memory itself.",
        False,
        lambda d, rows: 2 * d * (rows + 4 * KEYS),
        by_maps=False,
    ),
    Step(
        f"{FOLDER}/step2_copy_engine.cu",
        "2",
        "copy engine",
        "One thread requests a whole tile; an mbarrier counts its bytes, and the others wait there.",
        False,
        lambda d, rows: 2 * d * (rows + 4 * KEYS) + 24,
    ),
    Step(
        f"{FOLDER}/step3_producer.cu",
        "3",
        "producer and consumers",
        "Extra warps request tiles and run ahead; the others only compute, with most of the registers.",
        True,
        lambda d, rows: 2 * d * (rows + 4 * KEYS) + 96,
    ),
    Step(
        f"{FOLDER}/step4_overlap.cu",
        "4",
        "softmax beside a product",
        "S of the next tile is started before P V of this one, and its maximum is found beside that P V.",
        True,
        lambda d, rows: 2 * d * (rows + 4 * KEYS) + 1120,
    ),
    Step(
        f"{FOLDER}/step5_ping_pong.cu",
        "5",
        "ping-pong",
        "The two consumers take turns at the tensor cores: one multiplies while the other computes softmax.",
        True,
        lambda d, rows: 2 * d * (rows + 4 * KEYS) + 1120,
    ),
    Step(
        f"{FOLDER}/step6_persistent.cu",
        "6",
        "blocks that stay",
        "A block fetches item after item: the next one's Q, K and V come while this one's O is written.",
        True,
        lambda d, rows: 2 * d * (2 * rows + 4 * KEYS) + 1144,
        stays=True,
    ),
    Step(
        FORWARD,
        "7",
        "order",
        "Causal: the longest rows first, as many heads at a time as L2 keeps. At D = 64, three consumers.",
        True,
        lambda d, rows: 2 * d * (2 * rows + 4 * KEYS) + 528 * rows // ROWS + 88,
        stays=True,
        consumers={d: long.consumers for d, (_, long) in TILES.items()},
        at_once=heads_at_once,
    ),
)
COPIES_AFTER = replace(
    LADDER[0],
    title="wgmma, copies after",
    idea="The next tiles are requested after S has been started, not before.",
    more=("-DCOPIES_AFTER=1",),
)

EIGHT_BITS = Step(
    E4M3_FORWARD,
    "8",
    "8 bits",
    "Products of E4M3, twice as fast. Warps of the producer transpose V, and a tile's P V is summed by itself.",
    True,
    lambda d, _: E4M3_TILES[d].shared_bytes,
    stays=True,
    consumers={d: tile.consumers for d, tile in E4M3_TILES.items()},
    at_once=heads_at_once,
    in_e4m3=True,
)
ONE_LEVEL = replace(EIGHT_BITS, title="8 bits, one sum", idea="All of P V is one sum of 14 bits.", more=("-DLEVELS=1",))


def build(step: Step, head_dim: int, dtype: torch.dtype) -> Kernel:
    """The kernel of a step, compiled at its first launch. Errors as for `Step.options`."""
    return compiled(step.file, step.options(head_dim, dtype)).get_function(step.kernel)


def launch(
    step: Step,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    scales: tuple[Tensor, ...] = (),
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Runs one step: on the GPU for CUDA tensors, which takes an sm_90, on the emulator for CPU tensors.

    Arguments, results and errors as for `ladder.launch`, but for steps `in_e4m3`: query, key and value are E4M3, out is
    bf16, and scales has the scales of query, key and value, fp32 [B, H], [B, H_kv] and [B, H_kv].
    """
    check_attention(query, key, value, scale)
    if out is None:
        out = torch.empty_like(query, dtype=torch.bfloat16 if step.in_e4m3 else None)
    lse = query.new_empty(query.shape[:3], dtype=torch.float32) if lse is None else lse
    ready(step, query, key, value, out, lse, is_causal=is_causal, scale=scale, scales=scales)()
    return out, lse


def as_launch(
    step: Step,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    scales: tuple[Tensor, ...] = (),
    blocks: int | None = None,
) -> Launch:
    """`launch` as data. blocks: the most blocks of a persistent grid; None takes as many as the device has room for."""
    batch, heads, query_length, d = query.shape
    tensors: tuple[Tensor | TensorMap, ...] = query, key, value, out
    if step.by_maps:
        tensors = tuple(tile_map(x, rows) for x, rows in zip(tensors, (ROWS, KEYS, KEYS, ROWS), strict=True))
    numbers = (
        *ints(query_length, key.shape[2], heads // key.shape[1]),
        np.float32(scale or d**-0.5),
        np.int32(is_causal),
    )
    grid: tuple[int, ...] = ceil_div(query_length, step.rows(d)), heads, batch
    if step.stays:
        grid = (min(math.prod(grid), blocks or blocks_that_stay(query.device)),)
        counter = torch.zeros(1, dtype=torch.int32, device=query.device)
        numbers = (
            counter,
            np.int32(batch * heads),
            *numbers,
            *([np.int32(step.at_once(query.shape, key.shape, query.dtype))] if step.at_once else []),
        )
    return Launch(
        step.file,
        step.kernel,
        grid,
        (step.threads(d),),
        (*tensors, *scales, lse, *numbers),
        step.options(d, query.dtype),
        step.shared(d, step.rows(d)),
    )


def ready(
    step: Step, query: Tensor, key: Tensor, value: Tensor, *more: Tensor, kernel: Kernel | None = None, **how: Any
) -> Callable[[], None]:
    """A launch to be run again and again; arguments as for `as_launch`. kernel: instead of the step's own."""
    found = as_launch(step, query, key, value, *more, **how)
    kernel = kernel or build(step, query.shape[-1], query.dtype)
    return functools.partial(kernel, found.grid, found.block, found.args, shared_mem=found.shared_mem)


# ---- for NVIDIA's tools


def hard() -> dict[str, Launch]:
    """Every kernel where most can go wrong: two query heads to a key head, lengths that fill no tile, blocks that fetch
    a second item, and a mask that leaves the first queries without a key. And a ring as small as it can be."""
    queries, keys, launches = 200, 136, dict[str, Launch]()
    for head_dim in HEAD_DIMS:
        query, out, grad_out = (normal(1, 4, queries, head_dim).bfloat16() for _ in range(3))
        key, value = (normal(1, 2, keys, head_dim).bfloat16() for _ in range(2))
        lse = torch.zeros(1, 4, queries)
        for step in (*LADDER, EIGHT_BITS):
            inputs, scales = (query, key, value), ()
            if step.in_e4m3:
                inputs, scales = zip(*map(reference.quantize_heads, inputs), strict=True)
            launches[f"hopper {step.kernel}, d={head_dim}, hard"] = as_launch(
                step, *inputs, out, lse, is_causal=True, scales=scales, blocks=2
            )
        for name, found in _backward(BackwardTile(head_dim), query, key, value, grad_out).items():
            launches[f"hopper {name}, d={head_dim}, hard"] = found
        in_turns = _backward(BackwardTile(head_dim, takes_turns=True), query, key, value, grad_out)
        launches[f"hopper backward, d={head_dim}, hard, in turns"] = in_turns["backward"]
    ring = f"{FOLDER}/puzzles/ring.cu"
    launches["hopper ring"] = Launch(ring, "ring", (1,), (64,), (normal(12, 32), torch.zeros(32), np.int32(12)))
    return launches


def busy() -> dict[str, tuple[Launch, int]]:
    """The ladder's steps and the kernel of 8 bits at 16384 tokens of 2048 numbers, L=16384, d=128, with and without a
    mask, as the chapter times them, with the FLOPs."""
    length, heads, head_dim = 16384, 16, 128
    query, key, value, out = (normal(1, heads, length, head_dim).half() for _ in range(4))
    numbers, scales = zip(*map(reference.quantize_heads, (query, key, value)), strict=True)
    lse, launches = torch.zeros(1, heads, length), dict[str, tuple[Launch, int]]()
    for is_causal, step in itertools.product((False, True), (*LADDER, EIGHT_BITS)):
        inputs = (*numbers, out.bfloat16()) if step.in_e4m3 else (query, key, value, out)
        more = scales if step.in_e4m3 else ()
        name = f"hopper {step.kernel}, d={head_dim}, L={length}" + (", causal" if is_causal else "")
        found = as_launch(step, *inputs, lse, is_causal=is_causal, scales=more, blocks=MULTIPROCESSORS)
        launches[name] = found, attention_flops(1, heads, length, length, head_dim, is_causal)
    return launches


def _backward(tile: BackwardTile, query: Tensor, key: Tensor, value: Tensor, grad_out: Tensor) -> dict[str, Launch]:
    """The three kernels of backward.cu, causal."""
    batch, heads, queries, head_dim = query.shape
    kv_heads, keys = key.shape[1:3]
    tiles = ceil_div(queries, tile.rows), heads, batch
    padded = math.prod(tiles) * tile.rows
    statistics, dq_sum = torch.zeros(2 * padded), torch.zeros(head_dim * padded)
    turns = torch.zeros(math.prod(tiles), dtype=torch.int32)
    lse = torch.full(query.shape[:3], 10.0).masked_fill(torch.arange(queries) < queries - keys, -torch.inf)
    factor, length = np.float32(head_dim**-0.5), np.int32(queries)
    maps = [tile_map(tensor, tile.rows) for tensor in (query, grad_out)]
    maps += [tile_map(tensor, ROWS) for tensor in (key, value, key.clone(), value.clone())]
    scalars = *ints(queries, keys, heads // kv_heads), factor, np.int32(1)
    kernels: dict[str, tuple[tuple[int, ...], int, tuple, int]] = {
        "backward_prepare": (tiles, 256, (query, grad_out, lse, statistics, dq_sum, turns, length, *ints(1)), 0),
        "backward": (
            (ceil_div(keys, 2 * ROWS), kv_heads, batch),
            384,
            (*maps, statistics, dq_sum, turns, *scalars),
            tile.shared_bytes,
        ),
        "backward_finish": (tiles, 256, (dq_sum, query.clone(), length, factor, *ints(1)), 0),
    }
    options = *tile.options, BF16_OPTION[query.dtype]
    return {
        name: Launch(BACKWARD, name, grid, (threads,), args, options, shared)
        for name, (grid, threads, args, shared) in kernels.items()
    }
