"""Checks of arguments that several rooms share: each message names the argument, what it got and what it takes. And
what they ask of the arguments' device."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

MOST_PASSED = 1024  # calls that a check remembers


def once(check: Callable[..., None]) -> Callable[..., None]:
    """A decorator for a check: arguments pass at once if an earlier call passed with the same ones. Tensors are the
    same if `_checked_properties` are, and the check looks at nothing else of them; other arguments are None or numbers.
    Under a compiler, and for symbolic sizes, the check runs each time."""
    passed: set[tuple[object, ...]] = set()

    @functools.wraps(check)
    def checked(*args: object) -> None:
        if torch.compiler.is_compiling():
            return check(*args)
        try:
            properties = tuple(
                [_checked_properties(argument) if isinstance(argument, Tensor) else argument for argument in args]
            )
            if properties in passed:
                return None
        except (
            TypeError,
            RuntimeError,
        ):  # a symbolic size and what is no tensor have no hash, a nested tensor has no shape
            return check(*args)
        check(*args)
        if len(passed) >= MOST_PASSED:
            passed.clear()
        passed.add(properties)
        return None

    return checked


def _checked_properties(tensor: Tensor) -> tuple[object, ...]:
    """The properties of a tensor that a check may look at."""
    # Nested ones have a layout of their own, or no shape.
    return tensor.shape, tensor.dtype, tensor.device, tensor.layout, tensor.is_contiguous(), tensor.requires_grad


def integer(name: str, value: object, least: int, most: int | None = None) -> int:
    """The value as an int from `least` to `most` (None: no upper end). A bool is not an int; a compiler's symbolic int
    stays symbolic."""
    takes = f"an integer of at least {least}" if most is None else f"an integer from {least} to {most}"
    not_traced(name, value)
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer, torch.SymInt)):
        raise TypeError(f"{name} is {value!r}; it must be {takes}")
    if value < least or (most is not None and value > most):
        raise ValueError(f"{name} is {value}; it must be {takes}")
    return value if isinstance(value, torch.SymInt) else int(value)


def not_traced(name: str, value: object) -> None:
    """Raises TypeError where torch.compile traces a NumPy number, which it takes for an array of unknown numbers.
    Without `fullgraph=True` the compiler leaves such a call to eager mode."""
    if torch.compiler.is_compiling() and isinstance(value, np.ndarray):
        raise TypeError(f"{name} is a number of NumPy, which torch.compile takes for an array: give a number of Python")


def flag(name: str, value: object) -> bool:
    """The value as a bool: True or False, or one of NumPy's."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is {value!r}; it must be True or False")
    return bool(value)


def check_tensor(
    name: str,
    tensor: Tensor,
    shape: tuple[int | str, ...],
    dtypes: tuple[torch.dtype, ...] | None = None,
    *,
    like: tuple[str, Tensor] | None = None,
    may_be_empty: bool = False,
) -> None:
    """Raises TypeError or ValueError, which names the argument, what it got and what it takes, unless it is a tensor of
    this shape and one of these dtypes on a CPU or GPU.

    shape: a size that is a word may be any from 1 on, with may_be_empty from 0 on. like: an argument, and its name,
    whose device the tensor must have; where dtypes is None, its dtype too.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}; it must be a torch tensor {_written(shape)}")
    _check_layout(name, tensor)
    as_other = f", like {like[0]}" if like else ""
    if dtypes is None and like and tensor.dtype != like[1].dtype:
        raise TypeError(f"{name} has dtype {tensor.dtype}; it must be {like[1].dtype}{as_other}")
    if dtypes and tensor.dtype not in dtypes:
        raise TypeError(f"{name} has dtype {tensor.dtype}; it must be {' or '.join(map(str, dtypes))}")
    fits = len(tensor.shape) == len(shape) and all(
        (may_be_empty or size > 0) if isinstance(wanted, str) else size == wanted
        for size, wanted in zip(tensor.shape, shape, strict=True)
    )
    if not fits:
        least = ", none of them 0" if not may_be_empty and any(isinstance(size, str) for size in shape) else ""
        raise ValueError(f"{name} has shape {list(tensor.shape)}; it must be {_written(shape)}{least}")
    if like and tensor.device != like[1].device:
        raise ValueError(f"{name} is on {tensor.device}; it must be on {like[1].device}{as_other}")
    if tensor.device.type not in ("cpu", "cuda"):
        raise ValueError(f"{name} is on {tensor.device}; kernels run on cpu and cuda tensors")


def _written(shape: tuple[int | str, ...]) -> str:
    """A shape for a message. torch.compile cannot print a symbolic size."""
    return "[" + ", ".join(map(str, shape)) + "]"


def _check_layout(name: str, tensor: Tensor) -> None:
    if tensor.is_nested or tensor.layout != torch.strided:
        layout = "nested" if tensor.is_nested else tensor.layout
        raise TypeError(f"{name} has layout {layout}; it must be torch.strided, and not nested")


def check_memory(name: str, tensor: Tensor) -> None:
    """Raises TypeError or ValueError, which names the tensor, unless it has memory of its own for all its elements. A
    sparse or nested tensor has none of that shape; a fake or functional one, a wrapper, a constant of zeros, and one
    whose storage was resized have none, and to read them ends the process. A tensor on meta is refused for its device.
    """
    # Nearly every tensor is such a one; the rest of this function takes four times as long.
    if type(tensor) is Tensor and tensor.layout is torch.strided and not tensor.is_nested and tensor.is_contiguous():
        before, needed = tensor.storage_offset(), tensor.nbytes
        if _storage_bytes(tensor) >= (needed + before * tensor.itemsize if before else needed):
            return
    _check_layout(name, tensor)
    extent = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    needed = (tensor.storage_offset() + extent) * tensor.element_size()
    if tensor.numel() and (held := _storage_bytes(tensor)) < needed and not tensor.is_meta:
        kind = "" if type(tensor) is Tensor else f", a {type(tensor).__name__},"
        raise ValueError(
            f"{name}{kind} has {held} bytes of memory for the {needed} of shape {list(tensor.shape)}; kernels take "
            "tensors that hold their numbers themselves"
        )


def _storage_bytes(tensor: Tensor) -> int:
    """Bytes of the tensor's storage; 0 if it has no memory."""
    try:
        storage = tensor.untyped_storage()
        if type(tensor) is not Tensor and storage.device.type == "meta":  # fake: asking for its address would fail
            return 0
        return storage.nbytes() if tensor.data_ptr() else 0
    except (RuntimeError, NotImplementedError):  # torch's own refusals differ from kind to kind
        return 0


def check_attention_inputs(query: Tensor, key: Tensor, value: Tensor, *, enable_gqa: bool = False) -> None:
    """Raises TypeError or ValueError unless the three tensors fit an attention operator: query `[B, H, L_q, d]`, key
    and value `[B, H_k, L_k, d]` of one floating dtype and device; `H_k == H`, or with enable_gqa a divisor of H. B and
    H may be 0, as for torch's `scaled_dot_product_attention`."""
    check_kinds(kind("query", query), kind("key", key), kind("value", value), enable_gqa=enable_gqa)


Kind = tuple[torch.Size, torch.dtype, torch.device]  # what a check of attention's inputs looks at


def kind(name: str, tensor: Tensor) -> Kind:
    """Shape, dtype and device of a tensor `[B, H, L, d]`. Raises TypeError, with the argument's name, if it is no dense
    tensor."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}; it must be a torch tensor [B, H, L, d]")
    if tensor.is_nested or tensor.layout is not torch.strided:  # asked here: a call takes as long as the question
        _check_layout(name, tensor)
    return tensor.shape, tensor.dtype, tensor.device


def check_kinds(query: Kind, key: Kind, value: Kind, *, enable_gqa: bool) -> None:
    """`check_attention_inputs` of tensors of these kinds."""
    for name, (shape, dtype, device) in (("query", query), ("key", key), ("value", value)):
        if not dtype.is_floating_point:
            raise TypeError(f"{name} has dtype {dtype}; it must be a floating point dtype")
        if len(shape) != 4 or 0 in shape[2:]:
            raise ValueError(f"{name} has shape {list(shape)}; it must be [B, H, L, d], with L and d of at least 1")
        if device != query[2]:
            raise ValueError(f"{name} is on {device}; it must be on {query[2]}, like query")
        if dtype != query[1]:
            raise TypeError(f"{name} has dtype {dtype}; it must be {query[1]}, like query")
    batch, heads, _, head_dim = query[0]
    if key[0][0] != batch or key[0][3] != head_dim:
        raise ValueError(f"key has shape {list(key[0])}; B and d must be those of query, {list(query[0])}")
    if value[0] != key[0]:
        raise ValueError(f"value has shape {list(value[0])}; it must be that of key, {list(key[0])}")
    kv_heads = key[0][1]
    if enable_gqa and (heads % kv_heads if kv_heads else heads):
        raise ValueError(f"key has {kv_heads} heads; with enable_gqa that must divide the {heads} heads of query")
    if not enable_gqa and kv_heads != heads:
        raise ValueError(f"key has {kv_heads} heads and query {heads}; they must be equal, or pass enable_gqa=True")


def is_capturing(device: torch.device) -> bool:
    """Whether a CUDA graph is captured on torch's current stream of this device. Then nothing may be made that later
    launches share."""
    if device.type != "cuda" or not torch.cuda.is_initialized():
        return False
    if device.index in (None, torch.cuda.current_device()):
        return torch.cuda.is_current_stream_capturing()
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()
