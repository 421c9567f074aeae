"""What operators do around their launches: check the arguments, lay them out for the kernels, and back."""

from __future__ import annotations

import warnings
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from course_utils.arguments import Kind, check_kinds, check_tensor, flag, kind, not_traced, once
from course_utils.costs import attention_flops
from course_utils.cuda import shared_memory_limit

ALIGNMENT = 16  # bytes: kernels read float4
MAX_SCALE, MIN_SCALE = torch.finfo(torch.float32).max, torch.finfo(torch.float32).tiny  # smaller ones count as 0
NEVER_CAST = torch.float64, torch.float8_e4m3fn  # by autocast
MAX_GRID = 65535  # of the grid's y and z: heads and batch


def check_inputs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None,
    dtypes: tuple[torch.dtype, ...],
    head_dim: int | None = None,
    enable_gqa: bool = False,
) -> float:
    """Checks the arguments of an attention operator and returns the factor of the scores.

    query: `[B, H, L_q, d]`; key, value: `[B, H, L_k, d]` (with enable_gqa a divisor of H heads), all of one device and
    of one of `dtypes`; B and H may be 0, for which see `is_empty`. head_dim: the most that d may be, None for any.
    scale: a finite number, or None for `1 / sqrt(d)`. Raises TypeError or ValueError, which names the argument, what it
    got and what it takes.
    """
    kinds = kind("query", query), kind("key", key), kind("value", value)
    _check(*kinds, flag("enable_gqa", enable_gqa), dtypes, head_dim)
    return query.shape[-1] ** -0.5 if scale is None else checked_scale(scale, ", or None for 1 / sqrt(d)")


@once  # a call mostly has the shapes of the last
def _check(
    query: Kind, key: Kind, value: Kind, enable_gqa: bool, dtypes: tuple[torch.dtype, ...], head_dim: int | None
) -> None:
    check_kinds(query, key, value, enable_gqa=enable_gqa)
    shape, dtype, device = query
    if dtype not in dtypes:
        raise TypeError(f"query has dtype {dtype}; it must be {' or '.join(map(str, dtypes))}")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"query is on {device}; kernels run on cpu and cuda tensors")
    if head_dim is not None and shape[-1] > head_dim:
        raise ValueError(f"query has head dimension {shape[-1]}; it must be at most {head_dim}")
    for size, what in zip(shape[:2], ("batch size", "heads"), strict=True):
        if size > MAX_GRID:
            raise ValueError(f"query has {what} {size}; it must be at most {MAX_GRID}")


def check_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *others: Any,
    dtypes: tuple[torch.dtype, ...],
    head_dim: int | None = None,
    enable_gqa: bool = False,
    takes_sinks: bool = False,
) -> None:
    """`check_inputs` for an operator that is called by its name. others: its other arguments, the scale last;
    takes_sinks: of these the sinks are the first, and the softcap is the last but one, 0 for none."""
    check_scale(others[-1])
    if takes_sinks:
        check_sinks(others[0], query)
        checked_softcap(others[-2] or None)
    check_inputs(query, key, value, scale=None, dtypes=dtypes, head_dim=head_dim, enable_gqa=enable_gqa)


def check_gradient_call(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, *others: Any, **limits: Any
) -> None:
    """`check_call` for the operator of the gradient. limits: as for `check_call`."""
    check_call(query, key, value, *others, **limits)
    for name, tensor in (("grad_out", grad_out), ("out", out)):
        check_tensor(name, tensor, tuple(query.shape), like=("query", query))
    check_tensor("lse", lse, tuple(query.shape[:3]), (torch.float32,), like=("query", query))


def check_sinks(sinks: Tensor | None, query: Tensor) -> None:
    """Raises TypeError or ValueError where sinks are given and are not float32 `[H]`, one logit for each query head."""
    if sinks is not None:
        check_tensor("sinks", sinks, (query.shape[1],), (torch.float32,), like=("query", query))


def check_ends(name: str, ends: Tensor, rows: int) -> None:
    """Checks where packed sequences end among so many rows: on the CPU only, because on a GPU reading the numbers would
    wait."""
    if ends.device.type != "cpu" or torch.compiler.is_compiling():
        return
    if ends[0] != 0 or (ends.diff() < 0).any() or ends[-1] > rows:
        raise ValueError(f"{name} is {ends.tolist()}; it must begin with 0, never fall, and end at {rows} or before")


# A larger cap makes tanh(S / cap) too coarse in fp32; a smaller one cannot be taken back from its exponential.
LEAST_SOFTCAP, MOST_SOFTCAP = 1e-3, 1e4
SOFTCAPS = f"a number from {LEAST_SOFTCAP:g} to {MOST_SOFTCAP:g}, or None for no cap"


def checked_softcap(softcap: float | None) -> float:
    """The softcap as fp32 has it, a number from 10^-3 to 10^4; 0 for None. Raises TypeError or ValueError."""
    if softcap is None:
        return 0.0
    not_traced("softcap", softcap)
    if isinstance(softcap, bool) or not isinstance(softcap, (int, float, np.integer, np.floating, torch.SymFloat)):
        raise TypeError(f"softcap is {softcap!r}; it must be {SOFTCAPS}")
    if not LEAST_SOFTCAP <= softcap <= MOST_SOFTCAP:
        raise ValueError(f"softcap is {softcap!r}; it must be {SOFTCAPS}")
    return float(softcap)


def autocast(*tensors: Tensor, dtype: torch.dtype | None = None) -> tuple[Tensor, ...]:
    """The tensors, cast where autocast is on for their device: to its dtype, as torch casts for SDPA, or to `dtype`,
    for an operator that stays in fp32. Integers, float64 and FP8, which has scales, are not cast."""
    device = tensors[0].device.type if isinstance(tensors[0], Tensor) else ""
    if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
        return tensors
    lower = dtype or torch.get_autocast_dtype(device)
    return tuple([tensor.to(lower) if _may_be_cast(tensor) else tensor for tensor in tensors])


def _may_be_cast(tensor: Tensor) -> bool:
    return isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.dtype not in NEVER_CAST


def check_scale(scale: float) -> None:
    """Raises TypeError or ValueError unless kernels can take the number as it is."""
    if checked_scale(scale) != scale:
        raise ValueError(f"scale is {scale!r}; it must be 0, or large enough to be a normal number in fp32")


def checked_scale(scale: float, alternative: str = "") -> float:
    """The factor of the scores as fp32 has it: a finite number, 0 where it is too small to be a normal one.

    Raises TypeError or ValueError; alternative: what else the argument may be, for the message.
    """
    not_traced("scale", scale)
    if isinstance(scale, bool) or not isinstance(scale, (int, float, np.integer, np.floating, torch.SymFloat)):
        raise TypeError(f"scale is {scale!r}; it must be a number{alternative}")
    if isinstance(scale, np.float16):  # in which the limits below are infinity and 0
        scale = float(scale)
    if not abs(scale) <= MAX_SCALE:  # nor NaN: torch.compile cannot trace math.isnan of a number that it keeps open
        raise ValueError(f"scale is {scale!r}; it must be a finite number in fp32{alternative}")
    return float(scale) if abs(scale) >= MIN_SCALE else 0.0


def is_empty(query: Tensor) -> bool:
    """Whether the batch or the heads are 0. An operator then returns empty results, and gradients of 0, without a
    launch: a grid has at least one block."""
    return query.numel() == 0


def dense(tensor: Tensor) -> Tensor:
    """The tensor itself where a kernel can read it, contiguous and aligned to 16 bytes; else a copy that is."""
    if _is_dense(tensor):
        return tensor
    tensor = tensor.contiguous().resolve_neg()
    return tensor if _is_dense(tensor) else tensor.clone()


def _is_dense(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and not tensor.is_neg() and tensor.data_ptr() % ALIGNMENT == 0


def padded(tensor: Tensor, columns: int) -> Tensor:
    """`dense`, with rows padded with zeros to so many numbers."""
    if tensor.shape[-1] == columns and _is_dense(tensor):
        return tensor
    missing = columns - tensor.shape[-1]
    return dense(pad(tensor, (0, missing)) if missing else tensor)


def has_own_value_dim(query: Tensor, value: Tensor) -> bool:
    """Whether the rows of value have another length than those of query, as with 128 beside 192."""
    tensors = isinstance(query, Tensor) and isinstance(value, Tensor)
    return tensors and query.dim() == value.dim() and query.shape[-1:] != value.shape[-1:]


def check_own_value_dim(key: Tensor, value: Tensor, most: int) -> None:
    """Raises TypeError or ValueError unless value, `[..., d_v]`, fits key, `[..., d]`, and d_v is from 1 to `most`."""
    check_tensor("value", value, (*key.shape[:-1], value.shape[-1]), like=("key", key))
    if not 1 <= value.shape[-1] <= most:
        raise ValueError(f"value has head dimension {value.shape[-1]}; it must be from 1 to {most}")


def with_one_head_dim(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Fills rows up with zeros, all to the same length. That changes no score, and adds columns of 0 to the output."""
    columns = max(tensor.shape[-1] for tensor in tensors)
    return tuple(pad(tensor, (0, columns - tensor.shape[-1])) for tensor in tensors)


def for_kernels(
    query: Tensor, key: Tensor, value: Tensor, factor: float, head_dims: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor, float]:
    """Query, key, value and the factor of the scores as the kernels take them: the factor is positive, d the first of
    `head_dims` (ascending) that is enough, filled up with zeros, and the tensors are dense."""
    if factor <= 0:
        query, factor = positive_factor(query, factor)
    columns = query.shape[-1]
    if columns not in head_dims:
        columns = next(d for d in head_dims if d >= columns)
    elif _is_dense(query) and _is_dense(key) and _is_dense(value):  # as nearly always
        return query, key, value, factor
    return padded(query, columns), padded(key, columns), padded(value, columns), factor


def positive_factor(query: Tensor, factor: float) -> tuple[Tensor, float]:
    """The same scores with a positive factor: kernels scale after they took the maximum, and a change of sign rounds
    nothing."""
    return (query, factor) if factor > 0 else (query * _sign(factor), -factor or 1.0)


def gradients(query: Tensor, factor: float, grad_query: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """Turns the gradients of the tensors that `for_kernels` returned into gradients of its arguments. query, factor:
    its arguments."""
    columns = query.shape[-1]
    if columns != grad_query.shape[-1]:
        grad_query, *others = (cut(grad, columns) for grad in (grad_query, *others))
    return (grad_query if factor > 0 else grad_query * _sign(factor), *others)


def _sign(factor: float) -> float:
    """The sign of a factor that is not positive."""
    return -1.0 if factor else 0.0


def cut(out: Tensor, head_dim: int) -> Tensor:
    """The output without the columns that `padded` has added."""
    return out if out.shape[-1] == head_dim else out[..., :head_dim].contiguous()


def empty_outputs(query: Tensor, value_dim: int | None = None) -> tuple[Tensor, Tensor]:
    """What a forward kernel writes: out, like query `[..., d]` but with `value_dim` columns (None: d), and the
    log-sum-exp, float32 `[...]`."""
    # empty_like and empty_strided take the host half as long as new_empty.
    if value_dim is None:
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
    else:
        out = query.new_empty(*query.shape[:-1], value_dim)
    *rows, columns = out.shape
    steps = [step // columns for step in out.stride()[:-1]]
    return out, torch.empty_strided(rows, steps, dtype=torch.float32, device=query.device)


def packed_outputs(query: Tensor) -> tuple[Tensor, Tensor]:
    """The same for packed sequences: out `[total, H, d]`, and the log-sum-exp, float32 `[H, total]`."""
    rows, heads, _ = query.shape
    return query.new_empty(query.shape), query.new_empty((heads, rows), dtype=torch.float32)


# ---------------------------------------------------------------------------------------------- without memory


def fake_attention(query: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """The results of an attention operator of query, key, value and more."""
    return empty_outputs(query)


def fake_gradients(_: Tensor, query: Tensor, key: Tensor, value: Tensor, *more: Any) -> tuple[Tensor, ...]:
    """The results of its gradient."""
    return tuple(tensor.new_empty(tensor.shape) for tensor in (query, key, value))


def fake_gradients_and_of_sinks(
    _: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, sinks: Tensor | None, *more: Any
) -> tuple[Tensor, ...]:
    """The same of an operator that takes sinks: of none, the last result is empty."""
    return *fake_gradients(_, query, key, value), lse.new_empty(0 if sinks is None else sinks.shape)


# ---------------------------------------------------------------------------------------------- counting


def forward_flops(query: Tensor, key: Tensor, *_: Any) -> int:
    """FLOPs of the products of an attention operator: of all pairs, causal or not, as `FlopCounterMode` counts SDPA."""
    (batch, heads, query_length, head_dim), key_length = query.shape, key.shape[2]
    return attention_flops(batch, heads, query_length, key_length, head_dim)


# ---------------------------------------------------------------------------------------------- atomics


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
