"""A plain varlen_attention, as long as course_utils.operators has none. To be deleted with its imports."""

import torch
from torch import Tensor

from course_utils import operators


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    *,
    is_causal: bool = False,
    window: int | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """By a mask of all pairs, in fp32."""
    rows, keys = (torch.arange(len(tensor), device=query.device) for tensor in (query, key))
    of_row, of_key = (
        torch.searchsorted(ends[1:].long(), numbers, right=True)
        for ends, numbers in ((cu_seq_q, rows), (cu_seq_k, keys))
    )
    at = rows - cu_seq_q[1:][of_row] + cu_seq_k[1:][of_row]
    mask = of_row[:, None] == of_key
    if is_causal:
        mask &= keys <= at[:, None]
    if window is not None:
        mask &= keys > at[:, None] - window
    groups = query.shape[1] // key.shape[1]
    q, k, v = (x.transpose(0, 1).float() for x in (query, key, value))
    k, v = (x.repeat_interleave(groups, 0) for x in (k, v))
    scores = q @ k.transpose(1, 2) * (query.shape[2] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~mask, -1e30)
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(-1, len(rows), 1)], -1)
    weights = scores.softmax(-1)[..., : len(keys)] * mask
    return (weights @ v).transpose(0, 1).to(query.dtype)


if not hasattr(operators, "varlen_attention"):
    operators.varlen_attention = varlen_attention
