"""Launches of chapter 03's kernels: the steps of the ladder, whose last is forward.cu, and the backward pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from course_utils.costs import attention_flops, ceil_div
from course_utils.launches.arguments import ints, normal
from course_utils.launches.ladder import LADDER, Step
from course_utils.launches.launch import Launch
from course_utils.operators import flash_v2

FOLDER = "03_flash_attention_v2"


def course() -> dict[str, Launch]:
    """Each kernel at a length that does not fill its tiles, in fp16."""
    launches: dict[str, Launch] = {}
    for head_dim in flash_v2.HEAD_DIMS:
        launches |= _backward(heads=2, length=200, head_dim=head_dim)
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
        tile = flash_v2.FORWARD_TILES[head_dim][0]
        scalars = *ints(queries, keys, 2), np.float32(head_dim**-0.5), np.int32(1)
        launches[f"v2 forward, d={head_dim}, hard"] = Launch(
            f"{FOLDER}/forward.cu",
            "forward",
            (ceil_div(queries, tile.block_rows), 4, 1),
            (tile.threads,),
            (query, key, value, out, torch.zeros(1, 4, queries), *scalars),
            (*tile.options, "-DBF16=1"),
            tile.shared_bytes,
        )
        for n, tile in enumerate(flash_v2.BACKWARD_TILES[head_dim]):
            lse = torch.full((1, 4, queries), 10.0).masked_fill(torch.arange(queries) < queries - keys, -torch.inf)
            inputs = query, key, value, out, lse, torch.zeros(1, 4, queries)
            of_key_tiles = torch.zeros(1, 4, queries, head_dim), key.clone(), value.clone(), *scalars, np.int32(1)
            launches |= {
                f"v2 {name}, d={head_dim}, hard, tile {n}": Launch(
                    f"{FOLDER}/backward.cu",
                    name,
                    grid,
                    (tile.threads,),
                    args,
                    (*tile.options, "-DBF16=1"),
                    shared,
                )
                for name, grid, args, shared in [
                    (
                        "backward_dk_dv",
                        (ceil_div(keys, tile.block_cols), 2, 1),
                        (*inputs, *of_key_tiles),
                        tile.shared_bytes,
                    ),
                    (
                        "backward_dq",
                        (ceil_div(queries, tile.dq_rows), 4, 1),
                        (*inputs, out.clone(), *scalars),
                        tile.dq_shared_bytes,
                    ),
                ]
            }
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


def _halves(heads: int, length: int, head_dim: int, inputs: int) -> tuple[torch.Tensor, ...]:
    return tuple(normal(1, heads, length, head_dim).half() for _ in range(inputs))


def _ladder(steps: Sequence[Step], heads: int, length: int, *, is_causal: bool, head_dim: int) -> dict[str, Launch]:
    """Steps of the ladder, in fp16."""
    launches: dict[str, Launch] = {}
    for step in steps:
        query, key, value, out = _halves(heads, length, head_dim, 4)
        scalars = *ints(length, length, 1), np.float32(head_dim**-0.5), np.int32(is_causal)
        launches[f"v2 {step.kernel}, d={head_dim}, L={length}" + (", causal" if is_causal else "")] = Launch(
            step.file,
            step.kernel,
            (ceil_div(length, step.rows_per_block(head_dim)), heads, 1),
            (step.threads(head_dim),),
            (query, key, value, out, torch.zeros(1, heads, length), *scalars),
            step.options(head_dim, torch.float16),
            step.shared_bytes(head_dim),
        )
    return launches


def _backward(heads: int, length: int, head_dim: int) -> dict[str, Launch]:
    """The four kernels of backward.cu, in fp16."""
    tile = flash_v2.BACKWARD_TILES[head_dim][0]
    query, key, value, grad_out, grad = _halves(heads, length, head_dim, 5)
    row, dq_sum = torch.full((1, heads, length), 10.0), torch.zeros(1, heads, length, head_dim)
    inputs = query, key, value, grad_out, row, row.clone()
    scale, lengths = np.float32(head_dim**-0.5), ints(length, length, 1)
    scalars, size = (*lengths, scale, np.int32(0)), query.numel()
    key_tiles, query_tiles = ceil_div(length, tile.block_cols), ceil_div(length, tile.dq_rows)
    rows = tile.threads * 8 // head_dim  # of a block of backward_delta
    kernels: dict[str, tuple[tuple[int, ...], tuple, int]] = {
        "backward_delta": ((ceil_div(length, rows), heads, 1), (query, grad_out, row, lengths[0]), 0),
        "backward_dk_dv": (
            (key_tiles, heads, 1),
            (*inputs, dq_sum, grad, grad.clone(), *scalars, np.int32(1)),
            tile.shared_bytes,
        ),
        "backward_round_dq": ((ceil_div(size, 4 * tile.threads),), (dq_sum, grad, scale, np.int64(size)), 0),
        "backward_dq": ((query_tiles, heads, 1), (*inputs, grad, *scalars), tile.dq_shared_bytes),
    }
    return {
        f"v2 {name}, d={head_dim}, L={length}": Launch(
            f"{FOLDER}/backward.cu",
            name,
            grid,
            (tile.threads,),
            args,
            (*tile.options, "-DBF16=0"),
            shared_mem=shared,
        )
        for name, (grid, args, shared) in kernels.items()
    }
