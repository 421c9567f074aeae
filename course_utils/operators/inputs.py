"""What every operator does with its arguments before the first launch: check them, and lay them out for the kernels."""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor

from course_utils.emulator.module import SHARED_LIMIT
from course_utils.reference import check_attention_inputs

ALIGNMENT = 16  # bytes: kernels read float4


def check_inputs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool,
    scale: float | None,
    dtypes: tuple[torch.dtype, ...],
    enable_gqa: bool = False,
) -> float:
    """Checks the arguments of an attention operator and returns the factor of the scores.

    query: `[B, H, L_q, d]`; key, value: `[B, H, L_k, d]` (with enable_gqa a divisor of H heads), all of one device and
    of one of `dtypes`. scale: a finite number, or None for `1 / sqrt(d)`. Raises TypeError or ValueError, which names
    the argument, what it got and what it takes.
    """
    check_attention_inputs(query, key, value, enable_gqa=enable_gqa)
    if query.dtype not in dtypes:
        raise TypeError(f"query has dtype {query.dtype}; it must be {' or '.join(map(str, dtypes))}")
    if query.device.type not in ("cpu", "cuda"):
        raise ValueError(f"query is on {query.device}; kernels run on cpu and cuda tensors")
    if not isinstance(is_causal, (bool, np.bool_)):
        raise TypeError(f"is_causal is {is_causal!r}; it must be True or False")
    if scale is None:
        return query.shape[-1] ** -0.5
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise TypeError(f"scale is {scale!r}; it must be a number, or None for 1 / sqrt(d)")
    if not math.isfinite(scale):
        raise ValueError(f"scale is {scale!r}; it must be a finite number, or None for 1 / sqrt(d)")
    return float(scale)


def dense(tensor: Tensor) -> Tensor:
    """The tensor itself where a kernel can read it, contiguous and aligned to 16 bytes; else a copy that is."""
    tensor = tensor.contiguous().resolve_neg()
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()


@functools.cache
def shared_memory_limit(device: torch.device) -> int:
    """Bytes of shared memory that one block can have on this device."""
    if device.type == "cpu":
        return SHARED_LIMIT
    import cupy

    return cupy.cuda.Device(device.index or 0).attributes["MaxSharedMemoryPerBlockOptin"]
