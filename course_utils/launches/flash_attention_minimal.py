"""Launches of chapter 02's kernels, forward and backward."""

from __future__ import annotations

import numpy as np
import torch

from course_utils.costs import attention_flops, ceil_div
from course_utils.launches.arguments import ints, normal
from course_utils.launches.launch import Launch
from course_utils.operators.minimal import BACKWARD_TILES, FORWARD_TILES, BackwardTile, ForwardTile

FOLDER = "02_flash_attention_minimal"


def course() -> dict[str, Launch]:
    """Each kernel at a size that fills its tiles."""
    forward = _forward(heads=2, length=256) | _forward(heads=2, length=256, is_causal=True)
    return forward | _backward(heads=1, length=128)


def large(length: int) -> dict[str, Launch]:
    """Both loop orders at B=1, H=4, d=64, for the bytes from and to HBM."""
    return _forward(heads=4, length=length)


def busy() -> dict[str, tuple[Launch, int]]:
    """The two kernels in FlashAttention-2's order at B·H=192, L=2048, d=64, as the chapter times them, with their
    FLOPs."""
    heads, length, head_dim = 192, 2048, 64
    launches = _forward(heads, length, head_dim=head_dim)
    flops = attention_flops(1, heads, length, length, head_dim)
    return {name: (launch, flops) for name, launch in launches.items() if "fa1" not in name}


def _arguments(heads: int, length: int, head_dim: int, *outputs: torch.Tensor, is_causal: bool) -> tuple:
    query, key, value = (normal(1, heads, length, head_dim) for _ in range(3))
    scalars = *ints(length, length), np.float32(head_dim**-0.5), np.int32(is_causal)
    return query, key, value, torch.zeros_like(query), *outputs, *scalars


def _forward(heads: int, length: int, *, is_causal: bool = False, head_dim: int = 64) -> dict[str, Launch]:
    """forward_plain.cu and forward_fa1_order.cu with 64 × 32 tiles, and forward.cu with its own tiles."""
    label = f", L={length}" + (", causal" if is_causal else "")
    row = torch.zeros(1, heads, length)
    rows, cols = 64, 32
    options = f"-DD={head_dim}", f"-DB_R={rows}", f"-DB_C={cols}"
    launches: dict[str, Launch] = {}
    for name, grid, matrices, outputs in [
        ("forward_plain", ceil_div(length, rows), 1, (row,)),
        ("forward_fa1_order", 1, 2, (row, row.clone())),
    ]:
        shared = 4 * (matrices * rows * (head_dim + 1) + 2 * cols * head_dim + rows * (cols + 1))
        args = _arguments(heads, length, head_dim, *outputs, is_causal=is_causal)
        launches[name + label] = Launch(
            f"{FOLDER}/{name}.cu", name, (grid, heads, 1), (rows,), args, options, shared_mem=shared
        )
    tile: ForwardTile = FORWARD_TILES[head_dim][0]
    args = _arguments(heads, length, head_dim, row, is_causal=is_causal)
    grid3 = ceil_div(length, tile.block_rows), heads, 1
    launches["forward" + label] = Launch(
        f"{FOLDER}/forward.cu", "forward", grid3, (tile.threads,), args, tile.options, shared_mem=tile.shared_bytes
    )
    return launches


def _backward(heads: int, length: int, head_dim: int = 64) -> dict[str, Launch]:
    tile: BackwardTile = BACKWARD_TILES[head_dim][0]
    source, grid, block = f"{FOLDER}/backward.cu", (length // tile.tile, heads, 1), (tile.threads,)
    matrix, row = normal(1, heads, length, head_dim), torch.full((1, heads, length), 10.0)
    inputs = matrix, matrix.clone(), matrix.clone(), matrix.clone(), row, row.clone()
    scalars = *ints(length, length), np.float32(head_dim**-0.5), np.int32(0)
    arguments = {
        "backward_delta": (matrix, inputs[1], row, scalars[0]),
        "backward_dk_dv": (*inputs, torch.zeros_like(matrix), torch.zeros_like(matrix), *scalars),
        "backward_dq": (*inputs, torch.zeros_like(matrix), *scalars),
    }
    return {
        f"{name}, L={length}": Launch(
            source, name, grid, block, args, tile.options, 0 if name == "backward_delta" else tile.shared_bytes
        )
        for name, args in arguments.items()
    }
