"""Launches of chapter 00's kernels."""

from __future__ import annotations

import numpy as np
import torch

from course_utils.launches.arguments import counted, ints
from course_utils.launches.launch import Launch

FOLDER = "00_start_here"


def course() -> dict[str, Launch]:
    """Each kernel at a size that fills its tiles."""
    a, b, out = (counted(128, 128) / 128 for _ in range(3))
    side = np.int32(128)
    launches = {
        "vector_add": _elementwise("vector_add", a, b, out, np.int32(a.numel())),
        "copy": _elementwise("copy", a, out, np.int32(a.numel())),
        "copy_vectors": _elementwise("copy_vectors", a, out, np.int32(a.numel()), per_thread=4),
        "copy_strided": _elementwise("copy_strided", a, out, np.int32(a.numel()), np.int32(8)),
        "pointer_chase": Launch(
            f"{FOLDER}/pointer_chase.cu", "pointer_chase", (1,), (1,), (_ring(64), torch.zeros(1).int(), np.int32(64))
        ),
        "two_ways": Launch(f"{FOLDER}/two_ways.cu", "two_ways", (1,), (64,), (torch.zeros(64), *ints(4, 16))),
        "reread": Launch(f"{FOLDER}/reread.cu", "reread", (2,), (128,), (a, torch.zeros(256), *ints(a.numel(), 2))),
    }
    for name in ("transpose_naive", "transpose_tiled", "transpose_padded"):
        launches[name] = Launch(f"{FOLDER}/{name}.cu", name, (4, 4), (32, 32), (a, out, side, side))
    return launches | _matmuls(a, b, out)


def busy() -> dict[str, tuple[Launch, int]]:
    """The three matrix products of side 4096, as the chapter times them, each with its FLOPs."""
    side = 4096
    launches = _matmuls(*(counted(side, side) / side**2 for _ in range(3)))
    return {name: (launch, 2 * side**3) for name, launch in launches.items()}


def _matmuls(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> dict[str, Launch]:
    """Products of square matrices, by file, the rows and columns of C per block, and the block's threads."""
    kernels = ("matmul_naive", 32, (32, 32)), ("matmul_tiled", 32, (32, 32)), ("matmul_registers", 64, (16, 16))
    side = len(a)
    return {
        name: Launch(f"{FOLDER}/{name}.cu", name, (side // tile,) * 2, block, (a, b, out, *ints(side, side, side)))
        for name, tile, block in kernels
    }


def _ring(n: int) -> torch.Tensor:
    """int32 [n]: each element names the one 5 places on."""
    return ((torch.arange(n) + 5) % n).int()


def _elementwise(name: str, *args: torch.Tensor | np.generic, per_thread: int = 1) -> Launch:
    grid = args[0].numel() // per_thread // 256
    return Launch(f"{FOLDER}/{name}.cu", name, (grid,), (256,), args)
