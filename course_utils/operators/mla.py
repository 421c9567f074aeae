"""Multi-head latent attention in its absorbed form, dense and over selected tokens (kernels/05_deepseek_sparse).

One latent row per token serves all heads: its d numbers are the key, the first `value_dim` of them the value
(DeepSeek-V2, arXiv 2405.04434, §2.1.2). One sequence, without a batch axis.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from course_utils.arguments import check_tensor, flag, integer
from course_utils.costs import V3_2, ceil_div
from course_utils.cuda import Kernel, RawModule, compiled
from course_utils.operators.library import needs_gradient, operator
from course_utils.operators.prepare import (
    MAX_GRID,
    autocast,
    check_scale,
    checked_scale,
    cut,
    dense,
    empty_outputs,
    fitting,
    gradients,
    not_deterministic,
    padded,
    positive_factor,
)
from course_utils.operators.tensor_core import BF16, defines, kernel, module, takes_wgmma

FOLDER = "05_deepseek_sparse"
# Columns of a latent row and of a value in DeepSeek-V2 to V3.2: 576 and 512.
FULL = V3_2.kv_lora_rank + V3_2.qk_rope_head_dim, V3_2.kv_lora_rank


class LatentTile(NamedTuple):
    """Options of mla_dense.cu and sparse_mla.cu: B_r heads of one query by B_c latent rows."""

    key_dim: int
    value_dim: int
    block_rows: int
    block_cols: int
    warps: int

    @property
    def options(self) -> tuple[str, ...]:
        sizes = {"B_R": self.block_rows, "B_C": self.block_cols, "WARPS": self.warps}
        return defines(D_QK=self.key_dim, D_V=self.value_dim, **sizes)

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def shared_bytes(self) -> int:
        """Q, two tiles of the latent, P in a panel of 64 columns; the tiles' rows, m, its change, maxima by warp."""
        tiles = 2 * self.key_dim * (self.block_rows + 2 * self.block_cols)
        return tiles + 136 * self.block_rows + 8 * self.block_cols + 64 * self.warps


class BackwardTile(LatentTile):
    """Options of sparse_mla_backward.cu."""

    @property
    def shared_bytes(self) -> int:
        """Q and dO, two tiles of the latent, P and dS in panels of 64 columns, LSE and delta; the tiles' rows."""
        rows = 2 * (self.key_dim + self.value_dim) + 264
        return rows * self.block_rows + (4 * self.key_dim + 8) * self.block_cols


class HopperTile(NamedTuple):
    """sparse_mla_hopper.cu, which has one size."""

    block_rows: int = 64
    threads: int = 384
    shared_bytes: int = 229936
    options: tuple[str, ...] = ()


# By (d, value_dim), ascending; the fastest tiles on an H200 first, then smaller ones for GPUs with less shared memory.
TILES = {
    (128, 64): (LatentTile(128, 64, 64, 64, 4),),
    (192, 128): (LatentTile(192, 128, 64, 64, 8),),
    FULL: (LatentTile(*FULL, 64, 64, 8), LatentTile(*FULL, 64, 32, 8), LatentTile(*FULL, 16, 32, 2)),
}
# Up to so many heads, a block of 64 would be mostly padding: then the portable kernels have blocks of 16. The Hopper
# kernels keep their 64, and run where they can: on an H200 both take as long with 1 to 16 heads (2.23 ms the portable
# one, 2.29 ms the other; S = 4096, T = 8192, k = 2048).
FEW_HEADS = 16
FEW_HEADS_TILES = {
    (128, 64): (LatentTile(128, 64, 16, 32, 2),),
    (192, 128): (LatentTile(192, 128, 16, 32, 2),),
    FULL: (LatentTile(*FULL, 16, 64, 4), LatentTile(*FULL, 16, 32, 2)),
}
BACKWARD_TILES = {
    (128, 64): (BackwardTile(128, 64, 64, 32, 4),),
    (192, 128): (BackwardTile(192, 128, 64, 32, 8),),
    FULL: (BackwardTile(*FULL, 64, 32, 8), BackwardTile(*FULL, 32, 32, 4), BackwardTile(*FULL, 16, 32, 2)),
}
FEW_HEADS_BACKWARD_TILES = {
    (128, 64): (BackwardTile(128, 64, 16, 32, 2),),
    (192, 128): (BackwardTile(192, 128, 16, 32, 2),),
    FULL: (BackwardTile(*FULL, 16, 64, 4), BackwardTile(*FULL, 16, 32, 2)),
}
MAX_DIM, MAX_VALUE_DIM = FULL


def mla_attention(
    query: Tensor, latent: Tensor, *, scale: float, value_dim: int = 512, is_causal: bool = True
) -> tuple[Tensor, Tensor]:
    """softmax(scale · query latentᵀ) latent[:, :value_dim] for all heads at once, by tensor cores, sums in fp32.

    Args:
        query: `[S, H, d]`, float16 or bfloat16, absorbed: what scores against the latent. d up to 576; on the CPU
            (emulator) or a GPU; strided inputs are copied, and d is padded with zeros to 128, 192 or 576.
        latent: `[T, d]`, dtype and device of query: key and value of a token, for every head.
        scale: factor of the scores. It does not follow from d, which absorption has changed: in DeepSeek-V3 it is
            `192 ** -0.5`. Scaled scores beyond some 10^8 are too coarse in fp32, and rows can come out wrong.
        value_dim: how many of a latent row's first numbers are the value, up to 512.
        is_causal: query t sees key s when `s <= t + T - S`: the queries are the last of the tokens.

    Returns:
        out `[S, H, value_dim]` in the dtype of query, zeros for a query that sees no key, and the log-sum-exp
        `[S, H]`, float32, natural logarithm, minus infinity for such a query. out is differentiable once; the
        log-sum-exp is not. Where query or latent requires a gradient, the forward and the backward pass are those of
        `sparse_mla` over lists of all keys, S · T int32.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape, device or value; the message names it.
    """
    query, latent = autocast(query, latent)
    scale = _checked(query, latent, scale, value_dim)
    flag("is_causal", is_causal)
    if needs_gradient(query, latent):
        indices = _all_keys(query.shape[0], latent.shape[0], is_causal, query.device)
        return sparse_mla(query, latent, indices, scale=scale, value_dim=value_dim)
    return _dense_mla(query, latent, scale, int(value_dim), bool(is_causal))


@operator(
    "mla_attention(Tensor query, Tensor latent, float scale, int value_dim, bool is_causal) "
    "-> (Tensor out, Tensor lse)",
    fake=lambda query, latent, scale, value_dim, is_causal: empty_outputs(query, value_dim),
    check=lambda query, latent, scale, value_dim, is_causal: _check_call(query, latent, scale, value_dim),
    flops=lambda query, latent, scale, value_dim, is_causal: _flops(query, latent.shape[0], value_dim),
    instead="sparse_mla with lists of all keys, as the function mla_attention does",
)
def _dense_mla(query: Tensor, latent: Tensor, scale: float, value_dim: int, is_causal: bool) -> tuple[Tensor, Tensor]:
    padded_query, padded_latent, columns, factor = _for_kernels(query, latent, scale, value_dim)
    out, lse = dense_forward(padded_query, padded_latent, scale=factor, value_dim=columns, is_causal=is_causal)
    return cut(out, value_dim), lse


def sparse_mla(
    query: Tensor, latent: Tensor, indices: Tensor, *, scale: float, value_dim: int = 512
) -> tuple[Tensor, Tensor]:
    """`mla_attention` of each query to the tokens of its list: the core of DeepSeek Sparse Attention (DeepSeek-V3.2,
    arXiv 2512.02556, §2.1).

    Args:
        query, latent, scale, value_dim: as for `mla_attention`.
        indices: `[S, k]`, int32 (int64 is converted), on the device of query, in any order. An index below 0 or from
            T on is left out; one that stands twice in a row counts twice. Causality is the list's business.

    Returns:
        out `[S, H, value_dim]`, zeros for a query without a valid index, and the log-sum-exp `[S, H]`, minus infinity
        for such a query. out is differentiable once, by query and latent; the log-sum-exp is not.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape, device or value; the message names it.
        RuntimeError: in the backward pass under `torch.use_deterministic_algorithms(True)`: blocks add their shares of
            the gradient of latent by atomics, in no fixed order.
    """
    query, latent = autocast(query, latent)
    scale = _checked(query, latent, scale, value_dim)
    indices = _checked_indices(indices, query, latent)
    return _sparse_mla(query, latent, indices, scale, int(value_dim))


@operator(
    "sparse_mla_backward(Tensor grad_out, Tensor query, Tensor latent, Tensor indices, Tensor lse, float scale) "
    "-> (Tensor grad_query, Tensor grad_latent)",
    fake=lambda _, query, latent, *more: (query.new_empty(query.shape), latent.new_empty(latent.shape)),
    check=lambda *args: _check_gradient_call(*args),
    flops=lambda grad_out, query, latent, indices, *_: _gradient_flops(grad_out, query, indices.shape[1]),
    tags=("nondeterministic_bitwise",),
)
def _gradient(
    grad_out: Tensor, query: Tensor, latent: Tensor, indices: Tensor, lse: Tensor, scale: float
) -> tuple[Tensor, ...]:
    not_deterministic("sparse_mla", "the gradient of latent")
    q, rows, columns, factor = _for_kernels(query, latent, scale, grad_out.shape[-1])
    grad_query, grad_latent = sparse_backward(
        q, rows, dense(indices), dense(lse), padded(grad_out, columns), scale=factor
    )
    return gradients(query, scale, grad_query, grad_latent.to(latent.dtype))


@operator(
    "sparse_mla(Tensor query, Tensor latent, Tensor indices, float scale, int value_dim) -> (Tensor out, Tensor lse)",
    fake=lambda query, latent, indices, scale, value_dim: empty_outputs(query, value_dim),
    check=lambda *args: _check_sparse_call(*args),
    flops=lambda query, latent, indices, scale, value_dim: _flops(query, indices.shape[1], value_dim),
    gradient=_gradient,
    saves=lambda inputs, results: ((*inputs[:3], results[1]), (inputs[3],)),
)
def _sparse_mla(query: Tensor, latent: Tensor, indices: Tensor, scale: float, value_dim: int) -> tuple[Tensor, Tensor]:
    padded_query, padded_latent, columns, factor = _for_kernels(query, latent, scale, value_dim)
    out, lse = sparse_forward(padded_query, padded_latent, dense(indices), scale=factor, value_dim=columns)
    return cut(out, value_dim), lse


def mla_reprojected(
    q_nope: Tensor, q_rope: Tensor, c: Tensor, k_rope: Tensor, w_uk: Tensor, w_uv: Tensor, *, scale: float
) -> Tensor:
    """Causal latent attention as it is first written down, a lesson for small sizes: `k = w_uk c` and `v = w_uv c` are
    rebuilt for every query, key and head.

    All float32, contiguous, on one device, unchecked but for that: q_nope `[S, H, d_nope]`, q_rope `[S, H, d_rope]`, c
    `[T, d_c]`, k_rope `[T, d_rope]`, w_uk `[H, d_nope, d_c]`, w_uv `[H, d_v, d_c]` with d_v up to 128. Returns
    `[S, H, d_v]`: `w_uv` times what `mla_attention` gives for the query `w_ukᵀ q_nope`, q_rope.
    """
    queries, heads, nope_dim = q_nope.shape
    value_dim, latent_dim = w_uv.shape[1:]
    sizes = {"D_NOPE": nope_dim, "D_ROPE": q_rope.shape[2], "D_C": latent_dim, "D_V": value_dim, "THREADS": 128}
    out = q_nope.new_empty(queries, heads, value_dim)
    compiled(f"{FOLDER}/mla_reprojected.cu", defines(**sizes)).get_function("mla_reprojected")(
        (heads, queries),
        (sizes["THREADS"],),
        (q_nope, q_rope, c, k_rope, w_uk, w_uv, out, *map(np.int32, (queries, c.shape[0], heads)), np.float32(scale)),
    )
    return out


# ---------------------------------------------------------------------------------------------- the launches


def dense_forward(
    query: Tensor,
    latent: Tensor,
    *,
    scale: float,
    value_dim: int = 512,
    is_causal: bool = True,
    hopper: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """The kernel of `mla_attention`, without checks and gradients: dense tensors, (d, value_dim) of `TILES`, scale > 0.

    hopper: whether sparse_mla_hopper.cu does the work, or the portable kernel; None for the one that
    `mla_attention` takes.
    """
    (queries, heads, _), keys = query.shape, latent.shape[0]
    out, lse = empty_outputs(query, value_dim)
    tile, launch = _tile_and_kernel("mla_dense", query, value_dim, hopper)
    for part, size in _launches(queries):
        seen = keys - queries + part.stop if is_causal else keys  # the part's queries are the last of so many tokens
        launch(
            (ceil_div(heads, tile.block_rows), size),
            (tile.threads,),
            (query[part], latent, out[part], lse[part], *map(np.int32, (size, seen, heads)))
            + (np.float32(scale), np.int32(is_causal)),
            shared_mem=tile.shared_bytes,
        )
    return out, lse


def sparse_forward(
    query: Tensor,
    latent: Tensor,
    indices: Tensor,
    *,
    scale: float,
    value_dim: int = 512,
    hopper: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """The kernel of `sparse_mla`, as `dense_forward` is that of `mla_attention`; indices are int32."""
    queries, heads, _ = query.shape
    out, lse = empty_outputs(query, value_dim)
    tile, launch = _tile_and_kernel("sparse_mla", query, value_dim, hopper)
    for part, size in _launches(queries):
        launch(
            (ceil_div(heads, tile.block_rows), size),
            (tile.threads,),
            (query[part], latent, indices[part], out[part], lse[part])
            + (*map(np.int32, (latent.shape[0], heads, indices.shape[1])), np.float32(scale)),
            shared_mem=tile.shared_bytes,
        )
    return out, lse


def sparse_backward(
    query: Tensor, latent: Tensor, indices: Tensor, lse: Tensor, grad_out: Tensor, *, scale: float
) -> tuple[Tensor, Tensor]:
    """Gradients of query, in its dtype, and of latent, float32, from what `sparse_forward` took and the log-sum-exp
    that it gave."""
    (queries, heads, key_dim), value_dim = query.shape, grad_out.shape[2]
    tiles = FEW_HEADS_BACKWARD_TILES if heads <= FEW_HEADS else BACKWARD_TILES
    tile = fitting(tiles[key_dim, value_dim], query.device)
    grad_query, grad_latent = torch.empty_like(query), torch.zeros_like(latent, dtype=torch.float32)
    launch = kernel(f"{FOLDER}/sparse_mla_backward.cu", tile.options, query.dtype, "sparse_mla_backward")
    for part, size in _launches(queries):
        launch(
            (ceil_div(heads, tile.block_rows), size),
            (tile.threads,),
            (query[part], latent, indices[part], grad_out[part], lse[part], grad_query[part], grad_latent)
            + (*map(np.int32, (latent.shape[0], heads, indices.shape[1])), np.float32(scale)),
            shared_mem=tile.shared_bytes,
        )
    return grad_query, grad_latent


def _launches(queries: int) -> list[tuple[slice, int]]:
    """The queries of each launch, and how many: a grid has at most MAX_GRID of them."""
    parts = (slice(start, min(start + MAX_GRID, queries)) for start in range(0, queries, MAX_GRID))
    return [(part, part.stop - part.start) for part in parts]


def _tile_and_kernel(
    name: str, query: Tensor, value_dim: int, hopper: bool | None
) -> tuple[LatentTile | HopperTile, Kernel]:
    _, heads, key_dim = query.shape
    if hopper is None:
        hopper = (key_dim, value_dim) == FULL and takes_wgmma(query.device)
    if hopper:
        tile: LatentTile | HopperTile = HopperTile()
        return tile, kernel(f"{FOLDER}/sparse_mla_hopper.cu", tile.options, query.dtype, f"{name}_hopper")
    tiles = FEW_HEADS_TILES if heads <= FEW_HEADS else TILES
    tile = fitting(tiles[key_dim, value_dim], query.device)
    return tile, kernel(f"{FOLDER}/{name}.cu", tile.options, query.dtype, name)


def modules(device: torch.device) -> list[RawModule]:
    """What the operators launch for DeepSeek-V3.2's sizes on this device, in bf16, to be compiled ahead of time."""
    files = ("mla_dense", TILES), ("sparse_mla", TILES), ("sparse_mla_backward", BACKWARD_TILES)
    options = [(file, fitting(tiles[FULL], device).options) for file, tiles in files]
    options += [("sparse_mla_hopper", HopperTile().options)] if takes_wgmma(device) else []
    return [module(f"{FOLDER}/{file}.cu", of_file, torch.bfloat16) for file, of_file in options]


# ---------------------------------------------------------------------------------------------- the inputs


def _checked(query: Tensor, latent: Tensor, scale: float, value_dim: int) -> float:
    """Checks the arguments; returns the scale."""
    check_tensor("query", query, ("S", "H", "d"), tuple(BF16))
    head_dim = query.shape[2]
    if head_dim > MAX_DIM:
        raise ValueError(f"query has d = {head_dim}; it must be at most {MAX_DIM}")
    check_tensor("latent", latent, ("T", head_dim), like=("query", query))
    integer("value_dim", value_dim, 1, min(head_dim, MAX_VALUE_DIM))
    return checked_scale(scale)


def _check_call(query: Tensor, latent: Tensor, scale: float, value_dim: int) -> None:
    """`_checked` for an operator that is called by its name."""
    _checked(query, latent, scale, value_dim)
    check_scale(scale)


def _check_sparse_call(query: Tensor, latent: Tensor, indices: Tensor, scale: float, value_dim: int) -> None:
    _check_call(query, latent, scale, value_dim)
    check_tensor("indices", indices, (query.shape[0], "k"), (torch.int32,), like=("query", query))


def _check_gradient_call(
    grad_out: Tensor, query: Tensor, latent: Tensor, indices: Tensor, lse: Tensor, scale: float
) -> None:
    check_tensor("grad_out", grad_out, ("S", "H", "value_dim"), tuple(BF16))
    _check_sparse_call(query, latent, indices, scale, grad_out.shape[2])
    rows = tuple(query.shape[:2])
    check_tensor("grad_out", grad_out, (*rows, grad_out.shape[2]), like=("query", query))
    check_tensor("lse", lse, rows, (torch.float32,), like=("query", query))


def _checked_indices(indices: Tensor, query: Tensor, latent: Tensor) -> Tensor:
    """The indices in int32."""
    check_tensor("indices", indices, (query.shape[0], "k"), (torch.int32, torch.int64), like=("query", query))
    if indices.dtype == torch.int64:
        indices = indices.clamp(-1, latent.shape[0]).int()  # what was no token stays none
    return indices


def _for_kernels(query: Tensor, latent: Tensor, scale: float, value_dim: int) -> tuple[Tensor, Tensor, int, float]:
    """Query, latent, value_dim and scale as the kernels take them: of a size of `TILES`, dense, and scale positive."""
    query, scale = positive_factor(query, scale)
    head_dim = query.shape[-1]
    columns, value_columns = next(size for size in TILES if size[0] >= head_dim and size[1] >= value_dim)
    return padded(query, columns), padded(latent, columns), value_columns, scale


def _flops(query: Tensor, keys: int, value_dim: int) -> int:
    """FLOPs of the two products with so many keys for each query."""
    queries, heads, head_dim = query.shape
    return 2 * queries * heads * keys * (head_dim + value_dim)


def _gradient_flops(grad_out: Tensor, query: Tensor, keys: int) -> int:
    """FLOPs of five products: the scores again, the gradients of the weights, and those of query, of keys and of
    values."""
    queries, heads, head_dim = query.shape
    return 2 * queries * heads * keys * (3 * head_dim + 2 * grad_out.shape[2])


def _all_keys(queries: int, keys: int, is_causal: bool, device: torch.device) -> Tensor:
    """The lists with which sparse attention is dense: int32 `[S, T]`, -1 where a query does not see the key."""
    key = torch.arange(keys, dtype=torch.int32, device=device)
    if not is_causal:
        return key.repeat(queries, 1)
    last = torch.arange(keys - queries, keys, dtype=torch.int32, device=device)[:, None]
    return torch.where(key <= last, key, -1)
