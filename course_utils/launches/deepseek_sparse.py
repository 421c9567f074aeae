"""Launches of chapter 05's kernels."""

from __future__ import annotations

import numpy as np
import torch

from course_utils.costs import ceil_div
from course_utils.launches.arguments import ints, normal
from course_utils.launches.launch import Launch
from course_utils.operators import indexer, mla

FOLDER = "05_deepseek_sparse"
# They leave to the compiler how many atomics become one, on a GPU and on the emulator, so that these are for the
# sanitizers only.
UNCOUNTED = ("radix_topk", "sparse_mla_backward")


def course() -> dict[str, Launch]:
    """Each kernel at a small size, except kernels that only the sanitizers see."""
    return {name: launch for name, launch in _small().items() if launch.kernel not in UNCOUNTED}


def hard() -> dict[str, Launch]:
    """The kernels that `course` leaves out; and all of them where most can go wrong, at V3.2's sizes."""
    return {name: launch for name, launch in _small().items() if launch.kernel in UNCOUNTED} | _large_and_odd()


def _small() -> dict[str, Launch]:
    """The portable kernels at a small size, with heads that do not fill a tile."""
    tiles = mla.FEW_HEADS_TILES[128, 64][0], mla.FEW_HEADS_BACKWARD_TILES[128, 64][0]
    launches = _latent_attention("small", *tiles, queries=3, keys=70, heads=5)
    sizes = {"D_NOPE": 32, "D_ROPE": 64, "D_C": 64, "D_V": 32, "THREADS": 128}
    shapes = (2, 3, 32), (2, 3, 64), (9, 64), (9, 64), (3, 32, 64), (3, 32, 64)
    launches["deepseek mla_reprojected"] = Launch(
        f"{FOLDER}/mla_reprojected.cu",
        "mla_reprojected",
        (3, 2),
        (128,),
        (*(normal(*shape) for shape in shapes), torch.zeros(2, 3, 32), *ints(2, 9, 3), np.float32(0.1)),
        tuple(f"-D{name}={size}" for name, size in sizes.items()),
    )
    for dtype in (torch.bfloat16, indexer.E4M3):
        launches |= _indexer(dtype, queries=5, keys=300, heads=20, q_start=250)
    args = normal(2, 5001), torch.zeros(2, 100, dtype=torch.int32), *ints(5001, 100)
    launches["deepseek radix_topk, T=5001"] = Launch(
        f"{FOLDER}/radix_topk.cu", "radix_topk", (2,), (1024,), args, ("-DTHREADS=1024",)
    )
    return launches


def _large_and_odd() -> dict[str, Launch]:
    """Latents of 576 numbers, queries without a key, index heads that fill the tile, and scores most of which are
    equal or minus infinity."""
    launches: dict[str, Launch] = {}
    for n, (tiles, backward_tiles) in enumerate(
        [(mla.TILES, mla.BACKWARD_TILES), (mla.FEW_HEADS_TILES, mla.FEW_HEADS_BACKWARD_TILES)]
    ):
        tile, backward_tile = tiles[mla.FULL][0], backward_tiles[mla.FULL][0]
        heads = tile.block_rows + 1
        launches |= _latent_attention(f"hard, tile {n}", tile, backward_tile, queries=3, keys=2, heads=heads)
    launches |= _indexer(torch.float16, queries=2, keys=70, heads=64, q_start=-1, head_dim=128)
    scores = normal(2, 6000).clamp(min=1.5)  # 93 of 100 are 1.5
    scores[1, 50:] = -torch.inf
    args = scores, torch.zeros(2, 2048, dtype=torch.int32), *ints(6000, 2048)
    launches["deepseek radix_topk, hard"] = Launch(
        f"{FOLDER}/radix_topk.cu", "radix_topk", (2,), (512,), args, ("-DTHREADS=512",)
    )
    return launches


def _latent_attention(
    label: str, forward: mla.LatentTile, backward: mla.BackwardTile, *, queries: int, keys: int, heads: int
) -> dict[str, Launch]:
    """mla_dense.cu, causal, sparse_mla.cu over 40 indices in any order, some of them -1 or too large, and its backward
    pass, in bf16."""
    query, grad_query = (normal(queries, heads, forward.key_dim).bfloat16() for _ in range(2))
    latent = normal(keys, forward.key_dim).bfloat16()
    out, grad = (normal(queries, heads, forward.value_dim).bfloat16() for _ in range(2))
    row = torch.full((queries, heads), 10.0)
    indices = torch.randint(-1, keys + 1, (queries, 40), generator=torch.Generator().manual_seed(0)).int()
    sizes, scale = ints(queries, keys, heads), np.float32(forward.key_dim**-0.5)
    of_lists = *sizes[1:], np.int32(40), scale  # the grid says how many queries
    gradients = grad, row, grad_query, torch.zeros(keys, forward.key_dim)
    launches: dict[str, Launch] = {}

    def add(kernel: str, tile: mla.LatentTile, args: tuple):
        launches[f"deepseek {kernel}, {label}"] = Launch(
            f"{FOLDER}/{kernel}.cu",
            kernel,
            (ceil_div(heads, tile.block_rows), queries),
            (tile.threads,),
            args,
            (*tile.options, "-DBF16=1"),
            tile.shared_bytes,
        )

    add("mla_dense", forward, (query, latent, out, row, *sizes, scale, np.int32(1)))
    add("sparse_mla", forward, (query, latent, indices, out, row, *of_lists))
    add("sparse_mla_backward", backward, (query, latent, indices, *gradients, *of_lists))
    return launches


def _indexer(
    dtype: torch.dtype, *, queries: int, keys: int, heads: int, q_start: int, head_dim: int = 64
) -> dict[str, Launch]:
    """The indexer for one dtype; FP8 has its scales."""
    q, k, weights = normal(queries, heads, head_dim), normal(keys, head_dim), normal(queries, heads)
    variant, scales = indexer.variant(dtype, head_dim, torch.device("cpu")), ()
    if dtype == indexer.E4M3:
        q, k = normal(queries, heads, variant.dim), normal(keys, variant.dim)
        (q, q_scale), (k, k_scale) = indexer.quantize_e4m3(q), indexer.quantize_e4m3(k)
        q, k, scales = q.view(torch.uint8), k.view(torch.uint8), (q_scale, k_scale)
    else:
        q, k = q.to(dtype), k.to(dtype)
    logits = torch.zeros(queries, keys)
    return {
        f"deepseek {variant.file}, H={heads}": Launch(
            f"{FOLDER}/{variant.file}.cu",
            variant.file,
            (ceil_div(keys, indexer.BLOCK_KEYS), 1),  # so that a block goes from query to query
            (variant.threads,),
            (q, k, weights, *scales, logits, *ints(queries, keys, heads, q_start)),
            variant.options,
            variant.shared_bytes,
        )
    }
