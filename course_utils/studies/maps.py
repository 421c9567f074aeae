"""Synthetic attention maps: what sparse patterns are designed for, where no model can be run.

Each head of a trained model has its habit. The six here are the ones that papers keep finding: near tokens
(Longformer, arXiv 2004.05150), the first tokens (StreamingLLM, arXiv 2309.17453), vertical lines and slashes, that is
columns and diagonals (MInference, arXiv 2407.02490), regular distances (Sparse Transformers, arXiv 1904.10509), and,
last, content: places that only the text decides. A seed stands for a text: it changes all strengths a little, and the
places of the last head entirely. The habits stay.
"""

import torch
from torch import Tensor

from course_utils.costs import attended_pairs
from course_utils.patterns import Pattern

HEADS = ("local", "sinks", "headings", "periodic", "far band", "content")
SINKS, HEADING, PERIOD, OFFSET, BAND = 4, 32, 16, 96, 7


def attention_maps(length: int, seed: int) -> Tensor:
    """Weights of each head of `HEADS` for one text: float64 `[6, L, L]`, causal, each row sums to 1.

    - "local": falls off with the distance, by half in about 4 tokens.
    - "sinks": three quarters on the first 4 tokens.
    - "headings": on the tokens 0, 32, 64, … that are not later than the query.
    - "periodic": on the distances 0, 16, 32, …, the near ones more.
    - "far band": on the 7 distances 93 … 99; rows before that look at the sinks.
    - "content": half on five tokens that differ from seed to seed, half near.

    Raises ValueError for a length below 1.
    """
    if length < 1:
        raise ValueError(f"length is {length}; it must be at least 1")
    generator = torch.Generator().manual_seed(seed)
    i, j = torch.arange(length)[:, None], torch.arange(length)
    distance = i - j
    causal = distance >= 0

    def normalised(weights: Tensor) -> Tensor:
        uneven = torch.exp(0.7 * torch.randn(length, length, generator=generator, dtype=torch.float64))
        weights = weights * uneven * causal
        return weights / weights.sum(dim=1, keepdim=True).clamp(min=1e-300)

    def mixed(*shares: tuple[float, Tensor]) -> Tensor:
        """Sum of shares of normalised weights; a row where a share has no key spreads it over the others."""
        total = sum(share * normalised(weights.double()) for share, weights in shares)
        return total / total.sum(dim=1, keepdim=True)

    near = torch.exp2(-distance.clamp(min=0) / 4.0)
    everywhere = torch.ones(length, length)
    sinks = (j < SINKS).expand(length, length)
    periodic = (distance % PERIOD == 0) * torch.exp2(-distance.clamp(min=0) / 128.0)
    band = (distance - OFFSET).abs() <= BAND // 2
    band = torch.where(band.any(dim=1, keepdim=True), band, sinks)
    content = torch.zeros(length, length)
    content[:, torch.randperm(length, generator=generator)[:5]] = 1.0
    noise = (0.04, everywhere)
    return torch.stack(
        [
            mixed((0.96, near), noise),
            mixed((0.75, sinks), (0.21, near), noise),
            mixed((0.96, (j % HEADING == 0).expand(length, length)), noise),
            mixed((0.96, periodic), noise),
            mixed((0.96, band), noise),
            mixed((0.5, content), (0.46, near), noise),
        ]
    )


def kept_mass(maps: Tensor, mask: Tensor) -> Tensor:
    """Recall of each head: the share of its mass that falls on pairs of `mask`, bool `[L, L]`; float64 `[heads]`."""
    return (maps * mask).sum(dim=(1, 2)) / maps.shape[1]


def mask_of(pattern: object, length: int) -> Tensor:
    """The mask of a design, bool `[L, L]`: of a `Pattern`, or of a function mask_mod(b, h, i, j) -> bool.

    b and h are 0, i is `[L, 1]` and j `[1, L]`, int32. Raises TypeError and ValueError for anything else.
    """
    if isinstance(pattern, Pattern):
        return pattern.mask(length)
    if not callable(pattern):
        raise TypeError(
            f"pattern is {pattern!r}; it must be a Pattern of course_utils.patterns or a function mask_mod(b, h, i, j)"
        )
    i, zero = torch.arange(length, dtype=torch.int32)[:, None], torch.zeros((), dtype=torch.int32)
    mask = pattern(zero, zero, i, i.T)
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(
            f"mask_mod gives {got}; it must give a bool tensor: compare with <, ==, and combine with & and |"
        )
    try:
        return mask.expand(length, length).contiguous()
    except RuntimeError:
        raise ValueError(
            f"mask_mod gives shape {tuple(mask.shape)} for i of shape ({length}, 1) and j of shape (1, {length}); it "
            f"must be what the two broadcast to, ({length}, {length})"
        ) from None


def density(mask: Tensor) -> float:
    """Visible pairs divided by causal pairs, for a mask `[L, L]`."""
    return int(mask.sum()) / attended_pairs(mask.shape[0], mask.shape[1], is_causal=True)
