"""Random tensors, and the comparison with float64, of several chapters."""

from __future__ import annotations

import torch
from torch import Tensor

from course_utils import checks


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float16) -> Tensor:
    """Normal random numbers from a fixed seed, the same on every machine; on the GPU if there is one."""
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return numbers.cuda() if torch.cuda.is_available() else numbers


def is_right(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> bool:
    """Whether output and log-sum-exp are right by the course's rule."""
    return checks.error_report(found[0], expected[0]).passed and checks.lse_report(found[1], expected[1]).passed
