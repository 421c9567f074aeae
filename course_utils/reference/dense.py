"""What exact attention, dense or sparse, should return, in float64.

Layout `[B, H, L, d]`. Causal masks are bottom-right aligned: query i sees key j when `j <= i + L_k - L_q`, so the last
query sees every key. A query that sees no key gives a row of zeros and a log-sum-exp of minus infinity, never NaN.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from course_utils.arguments import check_attention_inputs

if TYPE_CHECKING:
    from course_utils.patterns import Pattern


def causal_mask(query_length: int, key_length: int, device: torch.device | str = "cpu") -> Tensor:
    """Bottom-right aligned causal mask, bool `[L_q, L_k]`, True where query i may see key j.

    `torch.nn.functional.scaled_dot_product_attention(is_causal=True)` is top-left aligned instead; the two agree only
    when `L_q == L_k`. In torch this mask is `torch.nn.attention.bias.causal_lower_right`.
    """
    rows = torch.arange(query_length, device=device)[:, None]
    columns = torch.arange(key_length, device=device)[None, :]
    return columns <= rows + (key_length - query_length)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
    window: int | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale · Q Kᵀ) V in float64, whatever the dtype of the inputs.

    Args:
        query: `[B, H, L_q, d]`, any floating dtype.
        key, value: `[B, H_k, L_k, d]`; `H_k == H`, or with `enable_gqa` a divisor of H (query head h reads head
            `h // (H / H_k)`).
        is_causal: bottom-right aligned causal mask.
        attn_mask: bool `[L_q, L_k]`, True where query i may see key j; with is_causal both must allow it.
        window: with that, only the last `window` keys up to the query's own; implies is_causal.
        sinks: `[H]`, a logit for each query head in the sum of a row's exponentials, without a value.
        softcap: cap · tanh(S / cap) in place of the scaled scores S, before the mask.
        scale: factor of the scores; None means `1 / sqrt(d)`.
        return_lse: also return the natural log-sum-exp of each row of scores, float64 `[B, H, L_q]`; it is not
            differentiable.

    Returns:
        float64 `[B, H, L_q, d]`, differentiable by autograd; with `return_lse` the pair `(out, lse)`.

    Raises:
        TypeError, ValueError: an argument of the wrong type or shape; the message names it.
    """
    check_attention_inputs(query, key, value, enable_gqa=enable_gqa)
    keep = _keep(query, key, is_causal, attn_mask, window)
    scores, value = _scores(query, key, value, keep, scale, torch.float64, softcap)
    if sinks is not None:  # a key more, whose value is 0
        scores, value = _with_sinks(scores, sinks), torch.nn.functional.pad(value, (0, 0, 0, 1))
    # Subtracting the row maximum changes nothing in exact arithmetic and keeps exp from overflowing. A row without
    # any key has the maximum -inf; 0 stands in for it, so that exp(-inf - 0) = 0 rather than exp(-inf + inf) = NaN.
    maximum = scores.detach().amax(dim=-1, keepdim=True)
    maximum = torch.where(maximum == -torch.inf, torch.zeros_like(maximum), maximum)
    weights = torch.exp(scores - maximum)
    total = weights.sum(dim=-1, keepdim=True)
    out = (weights @ value) / torch.where(total == 0, torch.ones_like(total), total)
    if not return_lse:
        return out
    return out, (maximum + torch.log(total.detach())).squeeze(-1)


# One definition serves every operator that computes exact dense attention.
naive_attention = flash_attention_minimal = flash_attention_v2 = attention


def sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: Pattern,
    *,
    sinks: Tensor | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`attention` under the pattern's dense mask, bool `[L_q, L_k]`: for lengths at which that fits into memory."""
    mask = pattern.mask(query.shape[2], key.shape[2], device=query.device)
    return attention(
        query,
        key,
        value,
        attn_mask=mask,
        sinks=sinks,
        softcap=softcap,
        scale=scale,
        enable_gqa=enable_gqa,
        return_lse=return_lse,
    )


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    *,
    attend: Callable[..., Any] = attention,
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """`attention` of each packed sequence. Tensors are `[total, H, d]`; sequence s has their rows from `cu_seq[s]` to
    `cu_seq[s + 1] - 1`.

    attend: `attention`, or `torch_attention`, which has no log-sum-exp. options: as it takes them; of `attention` with
    `return_lse` also lse `[H, total_q]`.
    """
    outs, lses = [], []
    for rows, keys in zip(*(itertools.pairwise(cu_seq.tolist()) for cu_seq in (cu_seq_q, cu_seq_k)), strict=True):
        one = [tensor[slice(*at)].transpose(0, 1)[None] for tensor, at in ((query, rows), (key, keys), (value, keys))]
        if 0 in one[0].shape:
            continue
        more = {}
        if 0 in one[1].shape:  # one that nobody sees
            one[1:] = (torch.nn.functional.pad(tensor, (0, 0, 0, 1)) for tensor in one[1:])
            more["attn_mask"] = torch.zeros(one[0].shape[2], 1, dtype=torch.bool, device=query.device)
        found = attend(*one, **options, **more)
        out, lse = found if isinstance(found, tuple) else (found, None)
        outs.append(out[0].transpose(0, 1))
        lses.append(lse[0] if lse is not None else None)
    out = torch.cat(outs)
    return (out, torch.cat(lses, dim=1)) if options.get("return_lse") else out


def attention_gradients(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    grad_output: Tensor,
    *,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `attention` by the closed formulas of FlashAttention (arXiv 2205.14135, appendix B.2).

    `P = exp(S − LSE)`, `D = rowsum(dO ∘ O)`, `dV = Pᵀ dO`, `dP = dO Vᵀ`, `dS = P ∘ (dP − D)`,
    `dQ = scale · dS K`, `dK = scale · dSᵀ Q`.

    Args:
        grad_output: gradient of the loss with respect to the output, `[B, H, L_q, d]`. The rest as for `attention`.
        dtype: what to compute in. float64 is the reference; the dtype of the inputs shows how far rounding alone
            takes these formulas from it.

    Returns:
        `(dq, dk, dv)` in `dtype`, shaped as query, key and value; under GQA summed over the query heads of a group.
    """
    check_attention_inputs(query, key, value, enable_gqa=enable_gqa)
    if grad_output.shape != query.shape:
        raise ValueError(
            f"grad_output has shape {list(grad_output.shape)}; it must be that of query, {list(query.shape)}"
        )
    factor = _factor(scale, query.shape[-1])
    groups = query.shape[1] // key.shape[1]
    keep = _keep(query, key, is_causal, attn_mask)
    scores, v = _scores(query, key, value, keep, scale, dtype)
    q, k, grad = query.to(dtype), _repeat_heads(key.to(dtype), query.shape[1]), grad_output.to(dtype)

    # A backward pass gets the log-sum-exp from a forward pass, which adds up in an order of its own (here: backwards)
    # and keeps it in fp32 where the inputs are half precision. Both matter for rounding only.
    forward_scores, _ = _scores(query.flip(-1), key.flip(-1), value, keep, scale, dtype)
    lse = torch.logsumexp(forward_scores.to(torch.promote_types(dtype, torch.float32)), dim=-1, keepdim=True)
    weights = torch.exp(scores - lse).nan_to_num(nan=0.0).to(dtype)  # NaN only in rows without a key, where P is 0
    row_sum = (grad * (weights @ v)).sum(dim=-1, keepdim=True)
    grad_scores = weights * (grad @ v.mT - row_sum)
    grad_query = factor * (grad_scores @ k)
    grad_key = factor * (grad_scores.mT @ q)
    grad_value = weights.mT @ grad
    return grad_query, _sum_groups(grad_key, groups), _sum_groups(grad_value, groups)


def torch_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
    window: int | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The same attention as a torch user would first write it, in the dtype of the inputs; the L² matrices are stored.

    This is the yardstick for rounding errors (an operator may be at most twice as far from float64 as this is) and
    the "naive torch" of the timings. Use it inside `full_float32()`, or TF32 makes fp32 inputs less exact than fp32.
    """
    check_attention_inputs(query, key, value, enable_gqa=enable_gqa)
    key, value = _repeat_heads(key, query.shape[1]), _repeat_heads(value, query.shape[1])
    keep = _keep(query, key, is_causal, attn_mask, window)
    scores = _capped((query @ key.mT) * _factor(scale, query.shape[-1]), softcap)
    if keep is not None:
        scores = scores.masked_fill(~keep, -torch.inf)
    if sinks is None:
        weights = torch.softmax(scores, dim=-1)
    else:
        weights = torch.softmax(_with_sinks(scores, sinks), dim=-1)[..., :-1]
    if keep is not None:  # softmax of a row without keys is NaN; its weights are 0
        weights = weights.masked_fill(~keep, 0.0)
    return weights @ value


@contextmanager
def full_float32() -> Iterator[None]:
    """Inside, fp32 matrix products on a GPU use fp32 and not TF32; the setting found before is put back after."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _scores(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keep: Tensor | None,
    scale: float | None,
    dtype: torch.dtype,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Masked scores and the values in `dtype`, with the key heads repeated for GQA."""
    key, value = _repeat_heads(key.to(dtype), query.shape[1]), _repeat_heads(value.to(dtype), query.shape[1])
    scores = _capped((query.to(dtype) @ key.mT) * _factor(scale, query.shape[-1]), softcap)
    if keep is not None:
        scores = scores.masked_fill(~keep, -torch.inf)
    return scores, value


def _capped(scores: Tensor, softcap: float | None) -> Tensor:
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def _with_sinks(scores: Tensor, sinks: Tensor) -> Tensor:
    """Scores with one more for each row, the sink of its head."""
    return torch.cat((scores, sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:3], 1)), dim=-1)


def _keep(
    query: Tensor, key: Tensor, is_causal: bool, attn_mask: Tensor | None, window: int | None = None
) -> Tensor | None:
    """Which pairs count, bool `[L_q, L_k]`; None for all."""
    lengths = query.shape[2], key.shape[2]
    if attn_mask is not None and (attn_mask.dtype != torch.bool or attn_mask.shape != lengths):
        got = f"{attn_mask.dtype} {list(attn_mask.shape)}"
        raise ValueError(f"attn_mask is {got}; it must be torch.bool [L_q, L_k], here {list(lengths)}")
    if not is_causal and window is None:
        return attn_mask
    causal = causal_mask(*lengths, query.device)
    if window is not None:
        causal = causal.triu(lengths[1] - lengths[0] - window + 1)
    return causal if attn_mask is None else causal & attn_mask


def _factor(scale: float | None, head_dim: int) -> float:
    return head_dim**-0.5 if scale is None else float(scale)


def _repeat_heads(tensor: Tensor, heads: int) -> Tensor:
    groups = heads // tensor.shape[1]
    return tensor if groups == 1 else tensor.repeat_interleave(groups, dim=1)


def _sum_groups(gradient: Tensor, groups: int) -> Tensor:
    return gradient if groups == 1 else gradient.unflatten(1, (-1, groups)).sum(dim=2)
