"""What operators do around their launches: check the arguments, lay them out for the kernels, tell autograd."""

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

from course_utils.arguments import check_attention_inputs, flag
from course_utils.cuda import shared_memory_limit

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
    flag("is_causal", is_causal)
    for size, what in zip(query.shape, ("batch size", "heads"), strict=False):
        if size > MAX_GRID:
            raise ValueError(f"query has {what} {size}; it must be at most {MAX_GRID}")
    return query.shape[-1] ** -0.5 if scale is None else checked_scale(scale, ", or None for 1 / sqrt(d)")


def checked_scale(scale: float, alternative: str = "") -> float:
    """The factor of the scores as fp32 has it: a finite number, 0 where it is too small to be a normal one.

    Raises TypeError or ValueError; alternative: what else the argument may be, for the message.
    """
    if isinstance(scale, bool) or not isinstance(scale, (int, float, np.integer, np.floating)):
        raise TypeError(f"scale is {scale!r}; it must be a number{alternative}")
    if abs(scale) > MAX_SCALE or math.isnan(scale):
        raise ValueError(f"scale is {scale!r}; it must be a finite number in fp32{alternative}")
    return float(scale) if abs(scale) >= MIN_SCALE else 0.0


def dense(tensor: Tensor) -> Tensor:
    """The tensor itself where a kernel can read it, contiguous and aligned to 16 bytes; else a copy that is."""
    tensor = tensor.contiguous().resolve_neg()
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()


def padded(tensor: Tensor, columns: int) -> Tensor:
    """`dense`, with rows padded with zeros to so many numbers."""
    missing = columns - tensor.shape[-1]
    return dense(pad(tensor, (0, missing)) if missing else tensor)


def for_kernels(
    query: Tensor, key: Tensor, value: Tensor, factor: float, head_dims: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor, float]:
    """Query, key, value and the factor of the scores as the kernels take them: the factor is positive, d one of
    `head_dims` (ascending), padded with zeros, and the tensors are dense.

    Raises ValueError where d is more than the last of `head_dims`.
    """
    query, factor = positive_factor(query, factor)
    head_dim = query.shape[-1]
    kernel_dim = next((d for d in head_dims if d >= head_dim), None)
    if kernel_dim is None:
        raise ValueError(f"query has head dimension {head_dim}; it must be at most {head_dims[-1]}")
    return *(padded(tensor, kernel_dim) for tensor in (query, key, value)), factor


def positive_factor(query: Tensor, factor: float) -> tuple[Tensor, float]:
    """The same scores with a positive factor: kernels scale after they took the maximum, and a change of sign rounds
    nothing."""
    return (query, factor) if factor > 0 else (query * (-1.0 if factor else 0.0), -factor or 1.0)


def cut(out: Tensor, head_dim: int) -> Tensor:
    """The output without the columns that `padded` has added."""
    return out if out.shape[-1] == head_dim else out[..., :head_dim].contiguous()


def empty_outputs(query: Tensor, value_dim: int | None = None) -> tuple[Tensor, Tensor]:
    """What a forward kernel writes: out, like query `[..., d]` but with `value_dim` columns (None: d), and the
    log-sum-exp, float32 `[...]`."""
    *rows, head_dim = query.shape
    return query.new_empty(*rows, value_dim or head_dim), query.new_empty(rows, dtype=torch.float32)


# ---------------------------------------------------------------------------------------------- autograd


def attend(
    function: type[torch.autograd.Function],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: object,
    factor: float,
    *,
    head_dims: tuple[int, ...],
    return_lse: bool,
) -> Tensor | tuple[Tensor, Tensor]:
    """`function.apply(query, key, value, mask, scale)` of inputs as the kernels take them (see `for_kernels`), which
    gives out and the log-sum-exp; and these as an operator returns them."""
    *inputs, scale = for_kernels(query, key, value, factor, head_dims)
    out, lse = function.apply(*inputs, mask, scale)
    out = cut(out, query.shape[-1])
    return (out, lse) if return_lse else out


def save_for_backward(ctx: Any, tensors: tuple[Tensor, ...], scale: float, mask: object = None) -> None:
    """For the `forward` of an autograd Function: keeps what `backward` needs, `tensors` with the log-sum-exp last, and
    says that the log-sum-exp is not differentiable."""
    ctx.save_for_backward(*tensors)
    ctx.scale, ctx.mask = scale, mask
    ctx.mark_non_differentiable(tensors[-1])


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
    """For a backward pass in which blocks add up `what` by atomics, in no fixed order: an error where
    `torch.use_deterministic_algorithms` is on, or with `warn_only` a warning."""
    if torch.are_deterministic_algorithms_enabled():
        message = f"the backward pass of {operator} is not deterministic: {what} is summed by atomics"
        if not torch.is_deterministic_algorithms_warn_only_enabled():
            raise RuntimeError(f"{message}; turn torch.use_deterministic_algorithms off for it")
        warnings.warn(message, UserWarning, stacklevel=2)


# ---------------------------------------------------------------------------------------------- tiles


class Tile(Protocol):
    """Tile sizes of a kernel; `shared_bytes` is the dynamic shared memory that they take."""

    @property
    def shared_bytes(self) -> int: ...


AnyTile = TypeVar("AnyTile", bound=Tile)


def fitting(tiles: tuple[AnyTile, ...], device: torch.device) -> AnyTile:
    """The first of the tiles that fits the device's shared memory; where none does, the launch says so of the last."""
    limit = shared_memory_limit(device)
    for tile in tiles:  # at every call: a generator takes as long as the rest of this
        if tile.shared_bytes <= limit:
            return tile
    return tiles[-1]
