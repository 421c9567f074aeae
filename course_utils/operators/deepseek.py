"""The attention layer of DeepSeek-V3.2 end to end, from hidden states to hidden states, dense and sparse.

Multi-head latent attention (DeepSeek-V3, arXiv 2412.19437 §2.1.1) in its absorbed form, and DeepSeek Sparse Attention
(DeepSeek-V3.2, arXiv 2512.02556 §2.1) upon it. Projections are matrix products of torch in the dtype of the weights;
scores, top-k and attention are the operators beside it, which no other operator may call: `lightning_indexer`,
`select_topk`, `mla_attention` and `sparse_mla` (kernels/05_deepseek_sparse). One sequence, without a batch axis,
positions 0 to S - 1. What each step of the layer does is a small function here; shapes in comments use H heads, and
H_I index heads of d_I numbers.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from course_utils.arguments import check_tensor, flag, integer
from course_utils.operators.indexer import lightning_indexer, quantize_e4m3, runs_fp8
from course_utils.operators.library import refuse_gradient
from course_utils.operators.mla import mla_attention, sparse_mla
from course_utils.operators.rope import RopeTable, rope_half_split, rope_interleaved, rope_table
from course_utils.operators.topk import MAX_K, select_topk
from course_utils.reference import DeepSeekWeights

EPS = 1e-6  # of both norms
INDEX_DTYPES = (torch.float8_e4m3fn, torch.bfloat16)
CHUNK_SIZE = 4096

# ---------------------------------------------------------------------------------------------- the layer


def deepseek_sparse_attention(
    hidden: Tensor,
    weights: DeepSeekWeights,
    *,
    top_k: int = 2048,
    return_indices: bool = False,
    index_dtype: torch.dtype | None = None,
    chunk_size: int = CHUNK_SIZE,
) -> Tensor | tuple[Tensor, Tensor]:
    """The layer with DeepSeek Sparse Attention: each token attends to the `top_k` tokens, up to and including itself,
    that the lightning indexer scores highest. With `top_k >= S` that is dense attention.

    Not differentiable, and an error if a gradient is needed: the choice of keys has none, and V3.2 trains the
    indexer by a loss of its own. `sparse_mla` alone is differentiable.

    Args:
        hidden: `[S, dim]` after the layer's norm, dtype and device of weights, on the CPU (emulator) or a GPU.
        weights: of the layer, with its sizes in `weights.config`.
        top_k: keys per query; with more than 2048 tokens, at most 2048.
        return_indices: also return which keys each query attended to.
        index_dtype: of the indexer's queries and keys: torch.float8_e4m3fn as in V3.2, or torch.bfloat16. None means
            FP8, but bfloat16 on a GPU without FP8 tensor cores (compute capability below 8.9).
        chunk_size: queries at a time. With the sizes of V3.2 and 4096 of them at 128 K tokens, the largest
            temporaries are 2 GB of index scores, and 1 GB of queries and outputs; at one go it would be 105 GB.

    Returns:
        `[S, dim]` in the dtype of hidden; with return_indices also int32 `[S, min(top_k, S)]`, in any order, -1 at the
        end of a row with fewer keys.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape, device or value; the message names it.
    """
    _check(hidden, weights, chunk_size)
    refuse_gradient("deepseek_sparse_attention", "its parts with sparse_mla", *_tensors(hidden, weights))
    integer("top_k", top_k, 1)
    flag("return_indices", return_indices)
    if min(top_k, len(hidden)) > MAX_K:
        raise ValueError(f"top_k is {top_k}; with {len(hidden)} tokens it must be at most {MAX_K}")
    top_k, out, indices = min(top_k, len(hidden)), torch.empty_like(hidden), []
    with torch.autocast(hidden.device.type, enabled=False):  # the layer has its own rules of what is fp32
        latent = project_latent(hidden, weights)
        index_keys = project_index_keys(hidden, weights, index_dtype=index_dtype)
        for start in range(0, len(hidden), chunk_size):
            rows = slice(start, start + chunk_size)
            out[rows], chosen = sparse_step(hidden[rows], latent, index_keys, weights, q_start=start, top_k=top_k)
            if return_indices:
                indices.append(chosen)
    return (out, torch.cat(indices)) if return_indices else out


def deepseek_mla(hidden: Tensor, weights: DeepSeekWeights, *, chunk_size: int = CHUNK_SIZE) -> Tensor:
    """The same layer with dense attention, as in V3: each token attends to all tokens up to itself.

    Arguments, result and errors as for `deepseek_sparse_attention`; the indexer's weights are not used. Not
    differentiable, and an error if a gradient is needed; `mla_attention` alone is differentiable.
    """
    _check(hidden, weights, chunk_size)
    refuse_gradient("deepseek_mla", "its parts with mla_attention", *_tensors(hidden, weights))
    out = torch.empty_like(hidden)
    with torch.autocast(hidden.device.type, enabled=False):
        latent = project_latent(hidden, weights)
        for start in range(0, len(hidden), chunk_size):
            rows = slice(start, start + chunk_size)
            out[rows] = dense_step(hidden[rows], latent, weights, q_start=start)
    return out


@torch.no_grad()
def sparse_step(
    hidden: Tensor, latent: Tensor, index_keys: IndexKeys, weights: DeepSeekWeights, *, q_start: int, top_k: int
) -> tuple[Tensor, Tensor]:
    """The sparse layer for n neighbouring tokens: `(out [n, dim], indices [n, top_k])`.

    hidden `[n, dim]` is of the tokens from position q_start on; latent and index_keys are of all tokens up to the last
    of them, or more: what a decoder keeps in its cache.
    """
    query, q_lora = project_query(hidden, weights, q_start=q_start)
    indices = choose_keys(hidden, q_lora, index_keys, weights, q_start=q_start, top_k=top_k)
    config = weights.config
    out, _ = sparse_mla(query, latent, indices, scale=config.softmax_scale, value_dim=config.kv_lora_rank)
    return project_output(out, weights), indices


@torch.no_grad()
def dense_step(hidden: Tensor, latent: Tensor, weights: DeepSeekWeights, *, q_start: int) -> Tensor:
    """`sparse_step` with dense attention: `[n, dim]`."""
    query, _ = project_query(hidden, weights, q_start=q_start)
    seen, config = latent[: q_start + len(hidden)], weights.config
    out, _ = mla_attention(query, seen, scale=config.softmax_scale, value_dim=config.kv_lora_rank)
    return project_output(out, weights)


# ---------------------------------------------------------------------------------------------- latent attention


def project_latent(hidden: Tensor, weights: DeepSeekWeights, *, q_start: int = 0) -> Tensor:
    """What MLA keeps of each token, one row for all heads: `[S, kv_lora_rank + rope]`, the normalised latent c, then
    the key that carries the position. q_start: position of the first token."""
    config = weights.config
    c, k_rope = (hidden @ weights.wkv_a.T).split([config.kv_lora_rank, config.qk_rope_head_dim], dim=-1)
    return torch.cat([rms_norm(c, weights.kv_norm), rope_interleaved(k_rope, _table(hidden, weights, q_start))], dim=-1)


def project_query(hidden: Tensor, weights: DeepSeekWeights, *, q_start: int = 0) -> tuple[Tensor, Tensor]:
    """Queries against rows of `project_latent`, `[S, H, kv_lora_rank + rope]`, and the normalised latent they are made
    of, `q_lora [S, q_lora_rank]`, from which the indexer makes its own queries."""
    config = weights.config
    q_lora = rms_norm(hidden @ weights.wq_a.T, weights.q_norm)
    query = (q_lora @ weights.wq_b.T).unflatten(-1, (config.n_heads, -1))
    q_nope, q_rope = query.split([config.qk_nope_head_dim, config.qk_rope_head_dim], dim=-1)
    q_rope = rope_interleaved(q_rope, _table(hidden, weights, q_start))
    return torch.cat([absorb(q_nope, weights), q_rope], dim=-1), q_lora


def absorb(q_nope: Tensor, weights: DeepSeekWeights) -> Tensor:
    """`q' = W_UKᵀ q_nope` for each head, `[S, H, nope]` to `[S, H, kv_lora_rank]`.

    A head's score `q_nope · (W_UK c)` is `(W_UKᵀ q_nope) · c`: one product per query instead of one per pair.
    """
    return torch.einsum("shn,hnc->shc", q_nope, weights.w_uk)


def unabsorb(o_latent: Tensor, weights: DeepSeekWeights) -> Tensor:
    """`o = W_UV o_latent` for each head, `[S, H, kv_lora_rank]` to `[S, H, v]`: the sum of the values
    `Σ p (W_UV c)` is `W_UV Σ p c`."""
    return torch.einsum("shc,hvc->shv", o_latent, weights.w_uv)


def project_output(o_latent: Tensor, weights: DeepSeekWeights) -> Tensor:
    """From the attention's output `[S, H, kv_lora_rank]` to hidden states `[S, dim]`."""
    return unabsorb(o_latent, weights).flatten(1) @ weights.wo.T


# ---------------------------------------------------------------------------------------------- the lightning indexer


class IndexKeys(NamedTuple):
    """The indexer's keys: `key [T, d_I]`, one for all index heads, bfloat16 without scale, or float8_e4m3fn with
    `scale [T]`, fp32, that gives their numbers back."""

    key: Tensor
    scale: Tensor | None


def choose_keys(
    hidden: Tensor,
    q_lora: Tensor,
    index_keys: IndexKeys,
    weights: DeepSeekWeights,
    *,
    q_start: int = 0,
    top_k: int,
) -> Tensor:
    """The `top_k` keys of each token that the indexer scores highest, int32 `[n, top_k]`, -1 where there are fewer."""
    q_index, index_weights = project_index_query(hidden, q_lora, weights, q_start=q_start)
    q_index, q_scale = to_index_dtype(q_index, index_keys.key.dtype)
    seen = IndexKeys(*(part if part is None else part[: q_start + len(hidden)] for part in index_keys))
    logits = lightning_indexer(
        q_index, seen.key, index_weights, q_start=q_start, q_scale=q_scale, k_scale=seen.scale
    )  # fp32 [n, q_start + n]
    return select_topk(logits, top_k)


def project_index_keys(
    hidden: Tensor, weights: DeepSeekWeights, *, q_start: int = 0, index_dtype: torch.dtype | None = None
) -> IndexKeys:
    """The indexer's key of each token. index_dtype: as for `deepseek_sparse_attention`."""
    if index_dtype is None:
        index_dtype = default_index_dtype(hidden.device)
    if index_dtype not in INDEX_DTYPES:
        raise TypeError(f"index_dtype is {index_dtype!r}; it must be {' or '.join(map(str, INDEX_DTYPES))}, or None")
    return IndexKeys(*to_index_dtype(project_index_key(hidden, weights, q_start=q_start), index_dtype))


def project_index_key(hidden: Tensor, weights: DeepSeekWeights, *, q_start: int = 0) -> Tensor:
    """`LayerNorm(W_k h)` with RoPE and Hadamard transform, `[S, d_I]` in the dtype of hidden."""
    key = (hidden @ weights.indexer_wk.T).float()
    norm = weights.indexer_k_norm_weight, weights.indexer_k_norm_bias
    key = functional.layer_norm(key, key.shape[-1:], *norm, EPS).to(hidden.dtype)
    return hadamard_transform(_rope_first(key, _table(hidden, weights, q_start)))


def project_index_query(
    hidden: Tensor, q_lora: Tensor, weights: DeepSeekWeights, *, q_start: int = 0
) -> tuple[Tensor, Tensor]:
    """The indexer's queries `[S, H_I, d_I]`, in the dtype of hidden, and the weight of each index head, fp32
    `[S, H_I]`, scaled by `H_I^-1/2 · d_I^-1/2`; a weight may be negative."""
    config = weights.config
    query = (q_lora @ weights.indexer_wq_b.T).unflatten(-1, (config.index_n_heads, -1))
    query = hadamard_transform(_rope_first(query, _table(hidden, weights, q_start)))
    scale = config.index_n_heads**-0.5 * config.index_head_dim**-0.5
    return query, hidden.float() @ weights.indexer_weights_proj.T * scale


def default_index_dtype(device: torch.device) -> torch.dtype:
    """float8_e4m3fn, on the emulator too; bfloat16 on a GPU of compute capability below 8.9."""
    return torch.float8_e4m3fn if runs_fp8(device) else torch.bfloat16


def hadamard_transform(x: Tensor) -> Tensor:
    """`x [..., d]` times the Hadamard matrix times `d^-1/2`, d a power of two; dtype of x, rounded once.

    An orthogonal matrix leaves dot products as they are; one of equal magnitudes spreads a single large number over
    all d. Where queries and keys are large in the same place, differently from key to key, the rounding error of FP8
    then averages out over all products instead of lying in one.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    return (x.to(dtype) @ hadamard_matrix(x.shape[-1], x.device).to(dtype) * x.shape[-1] ** -0.5).to(x.dtype)


@functools.cache
@torch.inference_mode(False)  # the first call may be within it, and a later one may want gradients
def hadamard_matrix(dim: int, device: torch.device | str = "cpu") -> Tensor:
    """Sylvester's Hadamard matrix of ones and minus ones, fp32 `[dim, dim]`."""
    if dim < 1 or dim & (dim - 1):
        raise ValueError(f"dim is {dim}; it must be a power of two")
    numbers = {"dtype": torch.float32, "device": device}
    matrix = torch.ones(1, 1, **numbers)
    while len(matrix) < dim:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]], **numbers), matrix)
    return matrix


def _rope_first(x: Tensor, table: RopeTable) -> Tensor:
    """RoPE, half-split, on the first numbers of x, as many as the table is for."""
    dim = 2 * table.cos.shape[-1]
    return torch.cat([rope_half_split(x[..., :dim], table), x[..., dim:]], dim=-1)


def to_index_dtype(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Vectors `[..., d]` for `lightning_indexer`, and their scales `[...]`: E4M3, or bfloat16, which has none."""
    return quantize_e4m3(x) if dtype == torch.float8_e4m3fn else (x.to(dtype), None)


# ---------------------------------------------------------------------------------------------- what both use


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """`x / rms(x) · weight` along the last axis, in fp32, rounded once to the dtype of x."""
    return functional.rms_norm(x.float(), x.shape[-1:], weight, EPS).to(x.dtype)


def _table(hidden: Tensor, weights: DeepSeekWeights, q_start: int) -> RopeTable:
    return rope_table(weights.config, torch.arange(q_start, q_start + len(hidden), device=hidden.device))


def _tensors(hidden: Tensor, weights: DeepSeekWeights) -> list[Tensor]:
    return [tensor for tensor in (hidden, *vars(weights).values()) if isinstance(tensor, Tensor)]


def _check(hidden: Tensor, weights: DeepSeekWeights, chunk_size: int) -> None:
    if not isinstance(weights, DeepSeekWeights):
        raise TypeError(f"weights is a {type(weights).__name__}; it must be a DeepSeekWeights")
    check_tensor("hidden", hidden, ("S", weights.config.dim), like=("the weights", weights.wq_a))
    if len(hidden) > weights.config.max_seq_len:
        raise ValueError(f"hidden has {len(hidden)} tokens; it must have at most {weights.config.max_seq_len}")
    integer("chunk_size", chunk_size, 1)
