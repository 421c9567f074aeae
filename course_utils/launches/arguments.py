"""Arguments of launches, the same at each call: a launch is known again by them."""

from __future__ import annotations

import numpy as np
import torch


def ints(*values: int) -> tuple[np.int32, ...]:
    """Numbers as a kernel takes an `int`."""
    return tuple(map(np.int32, values))


def counted(*shape: int) -> torch.Tensor:
    """fp32 of this shape: 0, 1, 2, and so on."""
    return torch.arange(int(np.prod(shape)), dtype=torch.float32).view(shape)


def normal(*shape: int) -> torch.Tensor:
    """Random normal fp32 of this shape, the same for the same shape."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))
