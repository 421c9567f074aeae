"""Launches of chapter 03's kernels: the steps of the ladder, whose last is forward.cu, and the backward pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import attention_flops, ceil_div
from course_utils.launches.arguments import ints, normal
from course_utils.launches.ladder import FORWARD, LADDER, Step, as_launch
from course_utils.launches.launch import Launch
from course_utils.operators import flash_v2
from course_utils.operators.tensor_core import BF16_OPTION, BackwardTile

FOLDER = "03_flash_attention_v2"


def course() -> dict[str, Launch]:
    """Each kernel at a length that does not fill its tiles, in fp16."""
    launches: dict[str, Launch] = {}
    for head_dim in flash_v2.HEAD_DIMS:
        tensors = *_halves(2, 200, head_dim), torch.full((1, 2, 200), 10.0)
        found = _backward(flash_v2.BACKWARD_TILES[head_dim][0], *tensors, is_causal=False)
        launches |= {f"v2 {name}, d={head_dim}, L=200": launch for name, launch in found.items()}
        for is_causal in (False, True):
            steps = LADDER if head_dim == 64 else LADDER[-1:]  # of the others, once is enough
            launches |= _ladder(steps, heads=2, length=200, is_causal=is_causal, head_dim=head_dim)
    return launches


def hard() -> dict[str, Launch]:
    """The final kernels where most can go wrong: bf16, two query heads to a key head, and a mask that leaves the first
    queries without a key."""
    queries, keys, launches = 200, 136, dict[str, Launch]()
    for head_dim in flash_v2.HEAD_DIMS:
        query, out = (normal(1, 4, queries, head_dim).bfloat16() for _ in range(2))
        key, value = (normal(1, 2, keys, head_dim).bfloat16() for _ in range(2))
        row = torch.zeros(1, 4, queries)
        launches[f"v2 forward, d={head_dim}, hard"] = as_launch(FORWARD, query, key, value, out, row, is_causal=True)
        lse = torch.full_like(row, 10.0).masked_fill(torch.arange(queries) < queries - keys, -torch.inf)
        for n, tile in enumerate(flash_v2.BACKWARD_TILES[head_dim]):
            found = _backward(tile, query, key, value, out, lse, is_causal=True)
            for name in ("backward_dk_dv", "backward_dq"):
                launches[f"v2 {name}, d={head_dim}, hard, tile {n}"] = found[name]
    return launches


def busy() -> dict[str, tuple[Launch, int]]:
    """forward.cu at 16384 tokens of 2048 numbers, L=2048, as the chapter times it, with its FLOPs."""
    launches, length = dict[str, tuple[Launch, int]](), 2048
    for head_dim in flash_v2.HEAD_DIMS:
        heads = 16384 // length * 2048 // head_dim
        flops = attention_flops(1, heads, length, length, head_dim)
        found = _ladder(LADDER[-1:], heads, length, is_causal=False, head_dim=head_dim)
        launches |= {name: (launch, flops) for name, launch in found.items()}
    return launches


def _halves(heads: int, length: int, head_dim: int) -> tuple[Tensor, ...]:
    return tuple(normal(1, heads, length, head_dim).half() for _ in range(4))


def _ladder(steps: Sequence[Step], heads: int, length: int, *, is_causal: bool, head_dim: int) -> dict[str, Launch]:
    """Steps of the ladder, in fp16."""
    label = f"d={head_dim}, L={length}" + (", causal" if is_causal else "")
    tensors = *_halves(heads, length, head_dim), torch.zeros(1, heads, length)
    return {f"v2 {step.kernel}, {label}": as_launch(step, *tensors, is_causal=is_causal) for step in steps}


def _backward(
    tile: BackwardTile,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    grad_out: Tensor,
    lse: Tensor,
    *,
    is_causal: bool,
) -> dict[str, Launch]:
    """The four kernels of backward.cu."""
    (_, heads, queries, head_dim), (_, kv_heads, keys, _) = query.shape, key.shape
    dq_sum, delta = torch.zeros(query.shape), torch.zeros_like(lse)
    inputs, scale, size = (query, key, value, grad_out, lse, delta), np.float32(head_dim**-0.5), query.numel()
    scalars = *ints(queries, keys, heads // kv_heads), scale, np.int32(is_causal)
    rows = tile.threads * 8 // head_dim  # of a block of backward_delta
    kernels: dict[str, tuple[tuple[int, ...], tuple, int]] = {
        "backward_delta": ((ceil_div(queries, rows), heads, 1), (query, grad_out, delta, np.int32(queries)), 0),
        "backward_dk_dv": (
            (ceil_div(keys, tile.block_cols), kv_heads, 1),
            (*inputs, dq_sum, key.clone(), value.clone(), *scalars, np.int32(1)),
            tile.shared_bytes,
        ),
        "backward_round_dq": (
            (ceil_div(size, 4 * tile.threads),),
            (dq_sum, query.clone(), scale, np.int64(size)),
            0,
        ),
        "backward_dq": (
            (ceil_div(queries, tile.dq_rows), heads, 1),
            (*inputs, query.clone(), *scalars),
            tile.dq_shared_bytes,
        ),
    }
    options = *tile.options, BF16_OPTION[query.dtype]
    return {
        name: Launch(f"{FOLDER}/backward.cu", name, grid, (tile.threads,), args, options, shared)
        for name, (grid, args, shared) in kernels.items()
    }
