"""Ten kernels of chapters 00 to 07 with so small inputs that each of their numbers can be changed in turn."""

from __future__ import annotations

import numpy as np
import torch

from course_utils.costs import ceil_div
from course_utils.launches.arguments import ints
from course_utils.launches.hopper import LADDER
from course_utils.launches.launch import Launch
from course_utils.operators import serving_choice
from course_utils.operators.hopper_launch import KEYS, ROWS
from tests.helpers.left_out import Subject

HALF = torch.float16


def _numbers(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _attention(queries: int, keys: int, d: int, dtype: torch.dtype = HALF) -> tuple[torch.Tensor, ...]:
    """Q, K, V, O and LSE of one head."""
    q, k, v = (_numbers(1, 1, n, d, seed=seed, dtype=dtype) for seed, n in enumerate((queries, keys, keys)))
    return q, k, v, torch.zeros_like(q), torch.zeros(1, 1, queries)


def matmul_tiled() -> Subject:
    m, n, k = 6, 36, 34
    args = _numbers(m, k, seed=0), _numbers(k, n, seed=1), torch.zeros(m, n), *ints(m, n, k)
    return Subject(Launch("00_start_here/matmul_tiled.cu", "matmul_tiled", (2, 1), (32, 32), args), ("C",))


def scores() -> Subject:
    queries, keys, d = 5, 36, 40
    q, k = _numbers(1, 1, queries, d, seed=0), _numbers(1, 1, keys, d, seed=1)
    args = q, k, torch.zeros(1, 1, queries, keys), *ints(queries, keys, d), np.float32(d**-0.5), np.int32(0)
    return Subject(Launch("01_attention_basics/scores.cu", "scores", (2, 1, 1), (32, 32), args), ("S",))


def softmax() -> Subject:
    args = _numbers(1, 1, 4, 300, seed=0), torch.zeros(1, 1, 4, 300), np.int32(300)
    return Subject(Launch("01_attention_basics/softmax.cu", "softmax", (4, 1, 1), (256,), args), ("P",))


def minimal_forward() -> Subject:
    queries, keys, d, rows, cols, tx = 10, 40, 32, 64, 32, 4
    args = *_attention(queries, keys, d, torch.float32), *ints(queries, keys), np.float32(d**-0.5), np.int32(0)
    options = f"-DD={d}", f"-DB_R={rows}", f"-DB_C={cols}", f"-DTX={tx}"
    shared = 4 * (rows * (d + 4) + cols * (d + 4) + cols * d + rows * (cols + tx))
    source = "02_flash_attention_minimal/forward.cu"
    return Subject(Launch(source, "forward", (1, 1, 1), (rows // 8 * tx,), args, options, shared), ("O", "LSE"))


def _v2(kernel: str, tiles: int) -> Subject:
    """A kernel of chapter 03 with small tiles, of which shared memory has so many of keys."""
    queries, keys, d, rows, cols, warps = 20, 20, 64, 32, 16, 2
    args = *_attention(queries, keys, d), *ints(queries, keys, 1), np.float32(d**-0.5), np.int32(0)
    options = f"-DD={d}", "-DBF16=0", f"-DB_R={rows}", f"-DB_C={cols}", f"-DWARPS={warps}"
    source, shared = f"03_flash_attention_v2/{kernel}.cu", 2 * d * (rows + tiles * cols)
    return Subject(Launch(source, kernel, (1, 1, 1), (32 * warps,), args, options, shared), ("O", "LSE"))


def v2_tensor_cores() -> Subject:
    return _v2("step2_tensor_cores", 2 + 2)  # and P, with rows as long as those of Q


def v2_forward() -> Subject:
    return _v2("forward", 4)


def csr_gather() -> Subject:
    length, d, warps = 12, 64, 4
    rows = [sorted({i, max(i - 1, 0), max(i - 3, 0), i // 2, i // 2 // 2 * 2}) for i in range(length)]
    indptr = torch.tensor([0, *np.cumsum([len(row) for row in rows])])
    indices = torch.tensor([j for row in rows for j in row], dtype=torch.int32)
    args = *_attention(length, length, d), indptr, indices, *ints(length, length, 1), np.float32(d**-0.5)
    options = f"-DD={d}", "-DBF16=0", f"-DWARPS={warps}"
    source, grid = "04_sparse_patterns/csr_gather.cu", (ceil_div(length, warps), 1, 1)
    launch = Launch(source, "csr_gather", grid, (32 * warps,), args, options)
    return Subject(launch, ("O", "LSE"), others={"indices": (indices + 7) % length})


def lightning_indexer() -> Subject:
    queries, keys, heads, d, warps = 3, 30, 4, 64, 4
    q, k = _numbers(queries, heads, d, seed=0, dtype=HALF), _numbers(keys, d, seed=1, dtype=HALF)
    weights, logits = _numbers(queries, heads, seed=2), torch.zeros(queries, keys)
    options = f"-DD={d}", "-DBF16=0", f"-DWARPS={warps}"
    args = q, k, weights, logits, *ints(queries, keys, heads, keys - queries)
    shared, source = max(128 * d * warps, 256 * d + 512), "05_deepseek_sparse/lightning_indexer.cu"
    return Subject(Launch(source, "lightning_indexer", (1, 1), (32 * warps,), args, options, shared), ("logits",))


def paged_cache() -> Subject:
    """Two sequences; the first has two pieces."""
    heads, d, page, pages, size = 2, 64, 4, 8, 16
    lengths, pieces = torch.tensor([20, 9], dtype=torch.int32), 3
    table = torch.tensor([[6, 1, 3, 0, 4], [2, 7, 5, 5, 5]], dtype=torch.int32)
    query = _numbers(2, heads, 1, d, seed=0, dtype=HALF)
    cache = [_numbers(pages, page, 1, d, seed=seed, dtype=HALF) for seed in (1, 2)]
    parts, lse_parts = torch.zeros(pieces, heads, 1, d), torch.zeros(pieces, heads, 1)
    args = query, *cache, torch.zeros_like(query), torch.zeros(2, heads, 1), parts, lse_parts, lengths
    args += torch.full((2, 1), -1, dtype=torch.int32), *ints(2, page * table.shape[1], 1, heads)
    args += np.float32(d**-0.5), *ints(1, 0, 0, size), table, *ints(table.shape[1], page, 0)
    args += np.float32(0), torch.empty(0)
    tile = serving_choice.TILES[d, 16, 2].small
    source, grid = "06_serving/paged_cache.cu", (1, 1, pieces)
    launch = Launch(source, "paged_cache", grid, tile.block, args, (*tile.options, "-DBF16=0"), tile.shared_bytes)
    return Subject(launch, ("O", "LSE", "O_parts", "LSE_parts"), others={"block_table": (table + 1) % pages})


def copy_engine() -> Subject:
    step, queries, keys, d = LADDER[1], 4, 6, 64
    args = *_attention(queries, keys, d), *ints(queries, keys, 1), np.float32(d**-0.5), np.int32(0)
    grid, block, shared = (1, 1, 1), (step.threads(d),), step.shared(d, step.rows(d))
    launch = Launch(step.file, step.kernel, grid, block, args, step.options(d, HALF), shared)
    return Subject(launch, ("O", "LSE"), maps={"Q": ROWS, "K": KEYS, "V": KEYS, "O": ROWS})


SUBJECTS = {
    make.__name__: make
    for make in (
        matmul_tiled,
        scores,
        softmax,
        minimal_forward,
        v2_tensor_cores,
        v2_forward,
        csr_gather,
        lightning_indexer,
        paged_cache,
        copy_engine,
    )
}
