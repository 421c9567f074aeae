"""Kernels of packages that a user can install, on the tensors of this course: flash-attn-4 and FlashMLA.

Neither is a dependency of the course. Each function below turns the course's tensors into what a package takes, before
it is timed, and returns a function without arguments whose result has the course's shape.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import NamedTuple

from torch import Tensor

from course_utils.bench.by_hand import sequence_ends
from course_utils.bench.timed import Function, backward_pass


class Package(NamedTuple):
    """A package by the name of its module, and the command that installs what was tried here."""

    module: str
    install: str


FLASH_4 = Package("flash_attn.cute", "pip install 'flash-attn-4[cu13]==4.0.0b36'")
# Its wheel asks for a newer torch than the course, and works without.
FLASH_MLA = Package("flash_mla", "pip install --no-deps sgl-flash-mla==1.0.0")


def load(package: Package) -> ModuleType:
    """The module of a package.

    Raises:
        RuntimeError: it cannot be imported; the message says how to install it.
    """
    try:
        return importlib.import_module(package.module)
    except (ImportError, OSError) as error:  # OSError: a library that does not fit this machine
        raise RuntimeError(
            f"{package.module} cannot be imported ({error}); to install it: {package.install}"
        ) from error


def flash_4(
    query: Tensor, key: Tensor, value: Tensor, *sinks: Tensor, is_causal: bool = False, **options: float | None
) -> Function:
    """flash-attn-4. sinks: one tensor, fp32 `[H]`, or none; options: window, the keys that a query sees up to its own,
    and softcap, both None for none."""
    attend, inputs = _flash_4(is_causal, **options), _rows_first(query, key, value)
    return lambda: attend(*inputs, *sinks).transpose(1, 2)


def flash_4_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *others: Tensor,
    is_causal: bool = False,
    **options: float | None,
) -> Callable[[], tuple[Tensor, ...]]:
    """The backward pass alone of `flash_4`: dq, dk, dv, and that of the sinks. others: sinks, one or none, and the
    gradient of the output."""
    *sinks, grad_output = others
    *inputs, grad = _rows_first(query, key, value, grad_output)
    run = backward_pass(_flash_4(is_causal, **options), *inputs, *sinks, grad)
    return lambda: tuple(found.transpose(1, 2) if found.dim() == 4 else found for found in run())


def flash_4_packed(
    query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int], *, is_causal: bool = False
) -> Function:
    """flash-attn-4 on sequences of these lengths, one after the other in a batch of one."""
    attend = _flash_4_packed(lengths, str(query.device), is_causal)
    inputs = [tensor[0] for tensor in _rows_first(query, key, value)]
    return lambda: attend(*inputs).transpose(0, 1)[None]


def flash_4_packed_backward(
    query: Tensor, key: Tensor, value: Tensor, grad_output: Tensor, lengths: Sequence[int], *, is_causal: bool = False
) -> Callable[[], tuple[Tensor, ...]]:
    """The backward pass alone of `flash_4_packed`: dq, dk, dv."""
    tensors = [tensor[0] for tensor in _rows_first(query, key, value, grad_output)]
    run = backward_pass(_flash_4_packed(lengths, str(query.device), is_causal), *tensors)
    return lambda: tuple(found.transpose(0, 1)[None] for found in run())


def flash_4_dilated(query: Tensor, key: Tensor, value: Tensor, window: int, dilation: int) -> Function:
    """flash-attn-4's causal window in each class of every `dilation`-th position of a batch of one, on a strided view.

    Its output is sorted by class, and stays so, `[1, H, L / dilation, dilation, d]` as a view: a copy would be timed.
    """
    attend = _flash_4(is_causal=True, window=window)
    inputs = [_classes(tensor, dilation) for tensor in _rows_first(query, key, value)]
    return lambda: attend(*inputs).permute(2, 1, 0, 3)[None]


def flash_4_dilated_backward(
    query: Tensor, key: Tensor, value: Tensor, grad_output: Tensor, window: int, dilation: int
) -> Callable[[], tuple[Tensor, ...]]:
    """The backward pass alone of the same: dq, dk, dv, which have the strides of its inputs."""
    views = [_classes(tensor, dilation) for tensor in _rows_first(query, key, value, grad_output)]
    run = backward_pass(_flash_4(is_causal=True, window=window), *views)
    return lambda: tuple(found.transpose(0, 1).flatten(0, 1).transpose(0, 1)[None] for found in run())


def flash_mla(query: Tensor, latent: Tensor, indices: Tensor, *, scale: float, value_dim: int) -> Function:
    """FlashMLA's sparse core, by its kernel for Hopper GPUs: the output `[S, H, value_dim]`, and what follows it."""
    attend = load(FLASH_MLA).flash_mla_sparse_fwd
    return functools.partial(attend, query, latent[:, None], indices[:, None], scale, value_dim, use_legacy=True)


def _flash_4(is_causal: bool, window: int | None = None, softcap: float | None = None) -> Callable[..., Tensor]:
    """flash-attn-4 on `[B, L, H, d]`, and sinks."""
    attend = load(FLASH_4).flash_attn_func
    ends = (None, None) if window is None else (window - 1, 0)

    def call(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None = None) -> Tensor:
        options = {"learnable_sink": sinks, "softcap": softcap or 0.0} if sinks is not None or softcap else {}
        return attend(query, key, value, causal=is_causal, window_size=ends, **options)[0]

    return call


def _flash_4_packed(lengths: Sequence[int], device: str, is_causal: bool) -> Callable[..., Tensor]:
    """flash-attn-4 on sequences of these lengths, `[tokens, H, d]`."""
    attend, ends, longest = load(FLASH_4).flash_attn_varlen_func, sequence_ends(lengths, device), max(lengths)
    sizes = {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "max_seqlen_q": longest, "max_seqlen_k": longest}
    return lambda *inputs: attend(*inputs, **sizes, causal=is_causal)[0]


def _classes(rows: Tensor, dilation: int) -> Tensor:
    """A view of `[1, L, H, d]` as `[dilation, L / dilation, H, d]`: a batch of the classes of every dilation-th row."""
    return rows[0].unflatten(0, (-1, dilation)).transpose(0, 1)


def _rows_first(*tensors: Tensor) -> list[Tensor]:
    """`[B, L, H, d]`, the layout that flash-attn-4 takes."""
    return [tensor.transpose(1, 2).contiguous() for tensor in tensors]
