"""What DeepSeek's attention should return, in float64.

Multi-head latent attention in its absorbed form (DeepSeek-V3, arXiv 2412.19437 §2.1.1) and DeepSeek Sparse Attention
(DeepSeek-V3.2, arXiv 2512.02556 §2.1). One sequence, without a batch axis: S queries, T tokens in the cache, H heads.
The S queries are the last of the T tokens: query t sees key s when `s <= t + T - S`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from course_utils.reference.deepseek_weights import DeepSeekConfig, DeepSeekWeights


def mla_attention(
    query: Tensor, latent: Tensor, *, scale: float, value_dim: int = 512, is_causal: bool = True
) -> tuple[Tensor, Tensor]:
    """Dense attention of all heads to one latent row per token; the row's first `value_dim` numbers are its value.

    query `[S, H, d]`, latent `[T, d]`, any floating dtype. Returns out `[S, H, value_dim]` and the natural log-sum-exp
    `[S, H]`, both float64; zeros and minus infinity for a query that sees no key. Autograd differentiates out alone.
    """
    query, latent = query.double(), latent.double()
    scores = torch.einsum("shd,td->sht", query, latent) * scale
    if is_causal:
        scores = scores.masked_fill(~_causal(query.shape[0], latent.shape[0], query.device)[:, None], -torch.inf)
    weights, lse = _softmax(scores)
    return weights @ latent[:, :value_dim], lse


def sparse_mla(
    query: Tensor, latent: Tensor, indices: Tensor, *, scale: float, value_dim: int = 512
) -> tuple[Tensor, Tensor]:
    """The same over the rows of `latent` that `indices [S, k]` names: an index below 0 or from T on is left out, and
    one that stands there twice counts twice."""
    query, latent = query.double(), latent.double()
    valid = (indices >= 0) & (indices < latent.shape[0])
    rows = latent[torch.where(valid, indices, 0).long()]  # [S, k, d]
    scores = torch.einsum("shd,skd->shk", query, rows) * scale
    weights, lse = _softmax(scores.masked_fill(~valid[:, None], -torch.inf))
    return weights @ rows[..., :value_dim], lse


def lightning_indexer(
    q_index: Tensor,
    k_index: Tensor,
    weights: Tensor,
    *,
    q_start: int = 0,
    q_scale: Tensor | None = None,
    k_scale: Tensor | None = None,
) -> Tensor:
    """`I[t, s] = sum_j weights[t, j] · ReLU(q_index[t, j] · k_index[s])`, minus infinity where `s > t + q_start`.

    q_index `[S, H_I, d_I]`, k_index `[T, d_I]`, weights `[S, H_I]`. FP8 vectors come with the scales that give their
    numbers back: q_scale `[S, H_I]`, k_scale `[T]`. Returns float64 `[S, T]`.
    """
    q, k = q_index.double(), k_index.double()
    if q_scale is not None:
        q = q * q_scale.double()[..., None]
    if k_scale is not None:
        k = k * k_scale.double()[:, None]
    logits = torch.einsum("sh,sht->st", weights.double(), torch.einsum("shd,td->sht", q, k).relu())
    rows = torch.arange(q.shape[0], device=q.device)[:, None]
    return logits.masked_fill(torch.arange(k.shape[0], device=q.device) > rows + q_start, -torch.inf)


def select_topk(logits: Tensor, k: int) -> Tensor:
    """The k largest of each row of `logits [S, T]`, int32 `[S, k]`: the first of equal ones, in descending order.

    Minus infinity is never selected; the places that stay empty are -1, at the end of the row.
    """
    order = torch.sort(logits, dim=-1, descending=True, stable=True)
    chosen = torch.where(order.values == -torch.inf, -1, order.indices)[:, :k]
    return torch.nn.functional.pad(chosen, (0, k - chosen.shape[1]), value=-1).int()


# ---------------------------------------------------------------------------------------------- the layer


def deepseek_attention(
    hidden: Tensor, weights: DeepSeekWeights, *, indices: Tensor | None = None, dtype: torch.dtype = torch.float64
) -> Tensor:
    """The attention layer of DeepSeek-V3.2 as its formulas say (arXiv 2412.19437 §2.1.1): without absorption.

    Each head's key and value are rebuilt from the latents, and each head's query and key are nope beside rope. The
    operators compute the absorbed form, so the two share little but the weights.

    Args:
        hidden: `[S, dim]`, tokens 0 to S - 1. weights: of the layer.
        indices: integers `[S, k]`, the tokens to which each one attends, and only those up to itself; entries outside
            of 0 to S - 1 are left out. None means all up to itself.
        dtype: what to compute in. float64 is the reference; the dtype of the weights shows how far rounding alone takes
            these formulas from it.

    Returns:
        `[S, dim]` in `dtype`.
    """
    config, h = weights.config, hidden.to(dtype)
    sizes = [config.qk_nope_head_dim, config.qk_rope_head_dim]
    q_lora = _rms_norm(h @ weights.wq_a.to(dtype).T, weights.q_norm)
    q_nope, q_rope = (q_lora @ weights.wq_b.to(dtype).T).unflatten(-1, (config.n_heads, -1)).split(sizes, dim=-1)
    c, k_rope = (h @ weights.wkv_a.to(dtype).T).split([config.kv_lora_rank, config.qk_rope_head_dim], dim=-1)
    key_value = (_rms_norm(c, weights.kv_norm) @ weights.wkv_b.to(dtype).T).unflatten(-1, (config.n_heads, -1))
    k_nope, value = key_value.split([config.qk_nope_head_dim, config.v_head_dim], dim=-1)

    turns = _turns(config, len(h), h.device)
    k_rope = _rope(k_rope[:, None], turns, interleaved=True).expand(-1, config.n_heads, -1)
    query = torch.cat([q_nope, _rope(q_rope, turns, interleaved=True)], dim=-1)
    scores = torch.einsum("shd,thd->sht", query, torch.cat([k_nope, k_rope], dim=-1)) * _softmax_scale(config)

    keep = _causal(len(h), len(h), h.device)
    if indices is not None:
        chosen = torch.zeros(len(h), len(h) + 1, dtype=torch.bool, device=h.device)  # the last column: left out
        outside = (indices < 0) | (indices >= len(h))
        keep = keep & chosen.scatter_(1, torch.where(outside, len(h), indices).long(), True)[:, :-1]
    probabilities, _ = _softmax(scores.masked_fill(~keep[:, None], -torch.inf))
    return torch.einsum("sht,thv->shv", probabilities, value).flatten(1) @ weights.wo.to(dtype).T


def deepseek_sparse_attention(
    hidden: Tensor, weights: DeepSeekWeights, *, top_k: int = 2048, return_indices: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """`deepseek_attention` over the `top_k` keys of the highest `index_scores`. Where two scores are close, FP8 may
    choose the other one, and the outputs differ by more than rounding: so compare with the operator's own indices."""
    indices = select_topk(index_scores(hidden, weights), min(top_k, len(hidden)))
    out = deepseek_attention(hidden, weights, indices=indices)
    return (out, indices) if return_indices else out


# Without `indices`, `deepseek_attention` is the dense layer.
deepseek_mla = deepseek_attention


def index_scores(hidden: Tensor, weights: DeepSeekWeights) -> Tensor:
    """The indexer's scores `[S, S]` from hidden states `[S, dim]` in exact arithmetic: float64, without FP8, and
    without the Hadamard transform, which changes no dot product. Minus infinity where a token would see a later one."""
    config, h = weights.config, hidden.double()
    q_lora = _rms_norm(h @ weights.wq_a.double().T, weights.q_norm)
    query = (q_lora @ weights.indexer_wq_b.double().T).unflatten(-1, (config.index_n_heads, -1))
    key = h @ weights.indexer_wk.double().T
    key = (key - key.mean(dim=-1, keepdim=True)) / (key.var(dim=-1, keepdim=True, correction=0) + 1e-6).sqrt()
    key = key * weights.indexer_k_norm_weight + weights.indexer_k_norm_bias

    turns, dim = _turns(config, len(h), h.device), config.qk_rope_head_dim
    query = torch.cat([_rope(query[..., :dim], turns, interleaved=False), query[..., dim:]], dim=-1)
    key = torch.cat([_rope(key[:, None, :dim], turns, interleaved=False)[:, 0], key[:, dim:]], dim=-1)
    head_weights = h @ weights.indexer_weights_proj.double().T
    return lightning_indexer(query, key, head_weights / math.sqrt(config.index_n_heads * config.index_head_dim))


def _turns(config: DeepSeekConfig, length: int, device: torch.device) -> Tensor:
    """RoPE as complex numbers `exp(i · position · frequency)`, complex128 `[S, d/2]`, with YaRN's frequencies in an
    extended context (arXiv 2309.00071 §3.2; which pairs are in between is rounded as in DeepSeek's code)."""
    dim, theta = config.qk_rope_head_dim, config.rope_theta
    frequencies = [theta ** (-2 * i / dim) for i in range(dim // 2)]
    if config.max_seq_len > config.original_seq_len:
        # Pair i turns n times in original_seq_len positions where theta^(2i / dim) = original_seq_len / (2 pi n).
        fast, slow = (
            dim / 2 * math.log(config.original_seq_len / (2 * math.pi * n), theta)
            for n in (config.beta_fast, config.beta_slow)
        )
        fast, slow = max(math.floor(fast), 0), min(math.ceil(slow), dim - 1)
        for i in range(dim // 2):
            kept = 1.0 if i <= fast else max(0.0, (slow - i) / (slow - fast)) if slow > fast else 0.0
            frequencies[i] *= kept + (1 - kept) / config.rope_factor
    angles = torch.outer(torch.arange(length), torch.tensor(frequencies, dtype=torch.float64))
    return torch.polar(torch.ones_like(angles), angles).to(device)


def _rope(x: Tensor, turns: Tensor, *, interleaved: bool) -> Tensor:
    """`x [S, H, d]` as d/2 complex numbers, each times its turn: the pairs (2i, 2i + 1), or (i, i + d/2)."""
    pairs = x.unflatten(-1, (-1, 2)) if interleaved else x.unflatten(-1, (2, -1)).mT
    turned = torch.view_as_real(torch.view_as_complex(pairs.double().contiguous()) * turns[:, None])
    return (turned if interleaved else turned.mT).flatten(-2).to(x.dtype)


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    x, dtype = x.double(), x.dtype
    return (x / (x.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt() * weight).to(dtype)


def _softmax_scale(config: DeepSeekConfig) -> float:
    scale = 1 / math.sqrt(config.qk_nope_head_dim + config.qk_rope_head_dim)
    if config.max_seq_len > config.original_seq_len:
        scale *= (0.1 * config.mscale * math.log(config.rope_factor) + 1) ** 2
    return scale


def _causal(queries: int, keys: int, device: torch.device) -> Tensor:
    return torch.arange(keys, device=device) <= torch.arange(queries, device=device)[:, None] + keys - queries


def _softmax(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and log-sum-exp along the last axis; a row of minus infinities gives zeros and minus infinity."""
    lse = torch.logsumexp(scores, dim=-1)
    base = torch.where(lse == -torch.inf, 0.0, lse)
    return torch.exp(scores - base[..., None]), lse.detach()
