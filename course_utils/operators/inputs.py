"""What every operator does with its arguments before the first launch: check them, and lay them out for the kernels."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from course_utils.cuda import shared_memory_limit
from course_utils.emulator import tracing
from course_utils.reference import check_attention_inputs

ALIGNMENT = 16  # bytes: kernels read float4
MAX_SCALE, MIN_SCALE = torch.finfo(torch.float32).max, torch.finfo(torch.float32).tiny  # smaller ones count as 0
MAX_GRID = 65535  # of the grid's y and z: heads and batch


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
    for size, what in zip(query.shape, ("batch size", "heads"), strict=False):
        if size > MAX_GRID:
            raise ValueError(f"query has {what} {size}; it must be at most {MAX_GRID}")
    if scale is None:
        return query.shape[-1] ** -0.5
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise TypeError(f"scale is {scale!r}; it must be a number, or None for 1 / sqrt(d)")
    if abs(scale) > MAX_SCALE or math.isnan(scale):
        raise ValueError(f"scale is {scale!r}; it must be a finite number in fp32, or None for 1 / sqrt(d)")
    return float(scale) if abs(scale) >= MIN_SCALE else 0.0


def dense(tensor: Tensor) -> Tensor:
    """The tensor itself where a kernel can read it, contiguous and aligned to 16 bytes; else a copy that is."""
    tensor = tensor.contiguous().resolve_neg()
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()


def for_kernels(
    query: Tensor, key: Tensor, value: Tensor, factor: float, head_dims: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor, float]:
    """Query, key, value and the factor of the scores as the kernels take them: the factor is positive, d one of
    `head_dims` (ascending), filled up with zeros, and the tensors are dense.

    Raises ValueError where d is more than the last of `head_dims`.
    """
    query, factor = positive_factor(query, factor)
    head_dim = query.shape[-1]
    kernel_dim = next((d for d in head_dims if d >= head_dim), None)
    if kernel_dim is None:
        raise ValueError(f"query has head dimension {head_dim}; it must be at most {head_dims[-1]}")
    padding = kernel_dim - head_dim
    tensors = (dense(pad(tensor, (0, padding)) if padding else tensor) for tensor in (query, key, value))
    return *tensors, factor


def positive_factor(query: Tensor, factor: float) -> tuple[Tensor, float]:
    """The same scores with a positive factor: kernels scale after they took the maximum, and a change of sign rounds
    nothing."""
    return (query, factor) if factor > 0 else (query * (-1.0 if factor else 0.0), -factor or 1.0)


def kernel_scalars(query: Tensor, key: Tensor, scale: float) -> tuple[np.generic, ...]:
    """L_q, L_k, the query heads of a key head, and the scale, as the tensor-core kernels and csr_gather take them."""
    group = query.shape[1] // key.shape[1]
    return np.int32(query.shape[2]), np.int32(key.shape[2]), np.int32(group), np.float32(scale)


def cut(out: Tensor, head_dim: int) -> Tensor:
    """The output without the columns that `for_kernels` filled up."""
    return out if out.shape[-1] == head_dim else out[..., :head_dim].contiguous()


def differentiable_once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """For the `backward` of an autograd Function whose kernels have no second derivative: to ask for one is an error.

    torch's own `once_differentiable` lets it pass, with a wrong result, where the gradient of the output is a constant.
    """
    marked = once_differentiable(backward)

    def checked(ctx: Any, grad_out: Tensor, *more: Any) -> Any:
        if torch.is_grad_enabled():  # create_graph=True
            grad_out = grad_out.detach().requires_grad_()
        return marked(ctx, grad_out, *more)

    return checked


def not_deterministic(operator: str, what: str) -> None:
    """For a backward pass in which blocks add up `what` by atomics, in an order of chance: an error where
    `torch.use_deterministic_algorithms` is on, or with `warn_only` a warning."""
    if torch.are_deterministic_algorithms_enabled():
        message = f"the backward pass of {operator} is not deterministic: {what} is summed by atomics"
        if not torch.is_deterministic_algorithms_warn_only_enabled():
            raise RuntimeError(f"{message}; turn torch.use_deterministic_algorithms off for it")
        warnings.warn(message, UserWarning, stacklevel=2)


def takes_wgmma(device: torch.device) -> bool:
    """Whether a launch with tensors of this device reaches a Hopper GPU; what is watched runs on the emulator."""
    on_hopper = device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)
    return on_hopper and not tracing.active()


class Tile(Protocol):
    """Tile sizes of a kernel; `shared_bytes` is the dynamic shared memory that they take."""

    @property
    def shared_bytes(self) -> int: ...


AnyTile = TypeVar("AnyTile", bound=Tile)


def fitting(tiles: tuple[AnyTile, ...], device: torch.device) -> AnyTile:
    """The first of the tiles that fits the device's shared memory; where none does, the launch says so of the last."""
    limit = shared_memory_limit(device)
    return next((tile for tile in tiles if tile.shared_bytes <= limit), tiles[-1])
