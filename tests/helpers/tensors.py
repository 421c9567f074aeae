"""Tensors of random numbers, the same for a seed on every device."""

import torch
from torch import Tensor


def random(*shape, device="cpu", dtype=torch.float32, seed=0, factor=1.0) -> Tensor:
    """Normal numbers times `factor`."""
    return (factor * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(device, dtype)
