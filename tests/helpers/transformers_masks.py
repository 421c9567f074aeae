"""The pairs that a description of course_utils.integrations.transformers keeps."""

import torch
from torch import Tensor


def kept_by(description: Tensor, batch: int, queries: int, keys: int) -> Tensor:
    """bool [B, L_q, L_k]: the pairs that a description keeps, by a slow loop."""
    causal, window = description.shape[0] == 2, description.shape[1] - 1
    if description.shape[2]:
        cu_q, cu_k = description[0, 0].tolist()
    else:
        cu_q, cu_k = ([row * length for row in range(batch + 1)] for length in (queries, keys))
    found = torch.zeros(batch * queries, batch * keys, dtype=torch.bool)
    for q, q_end, k, k_end in zip(cu_q, cu_q[1:], cu_k, cu_k[1:], strict=False):
        for row in range(q, q_end):
            at = row - q_end + k_end
            for column in range(k, k_end):
                near = abs(at - column) <= window - (1 if causal else 0) if window else True
                found[row, column] = near and (column <= at or not causal)
    found = found.view(batch, queries, batch, keys)
    assert not any(found[a, :, b].any() for a in range(batch) for b in range(batch) if a != b)
    return torch.stack([found[b, :, b] for b in range(batch)])
