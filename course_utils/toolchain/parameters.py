"""The arguments of a kernel: torch tensors and NumPy scalars, checked against the parameters that its source declares,
and laid out as the driver takes them."""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from course_utils.arguments import check_memory
from course_utils.toolchain.source import Parameter
from course_utils.toolchain.tensor_map import BYTES as TENSOR_MAP_BYTES
from course_utils.toolchain.tensor_map import PassedMap, TensorMap

# C++ type of a kernel parameter -> torch dtype of a tensor passed for a pointer to it (None: any).
TENSOR_DTYPES: dict[str, tuple[torch.dtype, ...]] = {
    **dict.fromkeys(("float", "float2", "float3", "float4"), (torch.float32,)),
    **dict.fromkeys(("double", "double2"), (torch.float64,)),
    **dict.fromkeys(("half", "__half", "half2", "__half2"), (torch.float16,)),
    **dict.fromkeys(("__nv_bfloat16", "__nv_bfloat162", "nv_bfloat16", "nv_bfloat162"), (torch.bfloat16,)),
    **dict.fromkeys(("int", "int32_t", "int2", "int4"), (torch.int32,)),
    **dict.fromkeys(("unsigned", "unsigned int", "uint", "uint32_t"), (torch.int32, torch.uint32)),
    **dict.fromkeys(("long long", "int64_t"), (torch.int64,)),
    **dict.fromkeys(("unsigned long long", "uint64_t"), (torch.int64, torch.uint64)),
    **dict.fromkeys(("short", "int16_t"), (torch.int16,)),
    "bool": (torch.bool,),
}
# C++ type of a kernel parameter -> the NumPy scalar that it takes.
SCALAR_TYPES: dict[str, type[np.generic]] = {
    "float": np.float32,
    "double": np.float64,
    **dict.fromkeys(("half", "__half"), np.float16),
    **dict.fromkeys(("int", "int32_t"), np.int32),
    **dict.fromkeys(("unsigned", "unsigned int", "uint", "uint32_t"), np.uint32),
    **dict.fromkeys(("long long", "int64_t", "long"), np.int64),
    **dict.fromkeys(("unsigned long long", "uint64_t", "size_t", "unsigned long"), np.uint64),
    **dict.fromkeys(("short", "int16_t"), np.int16),
    **dict.fromkeys(("unsigned short", "ushort", "uint16_t"), np.uint16),
    **dict.fromkeys(("signed char", "int8_t"), np.int8),
    **dict.fromkeys(("unsigned char", "uchar", "uint8_t"), np.uint8),
    "bool": np.bool_,
}


def argument_label(index: int, name: str, kernel: str = "") -> str:
    """What messages call an argument. index: counted from 0; name: "" if it has none; kernel: where messages name
    it, too."""
    return f"argument {index} ({name or '?'!r})" + (f" of {kernel}()" if kernel else "")


class Parameters:
    """The parameters of one kernel, and the check of the arguments passed for them."""

    def __init__(self, kernel: str, parameters: tuple[Parameter, ...]) -> None:
        self.kernel = kernel
        self.parameters = parameters

    def label(self, index: int) -> str:
        """The name of an argument in messages."""
        return argument_label(index, self.parameters[index].name, self.kernel)

    def check(self, args: Sequence[object]) -> torch.device | None:
        """Checks the arguments; returns the device of the tensors, None if there are none.

        Raises TypeError or ValueError, which names the argument, what it got and what it takes.
        """
        if not isinstance(args, (tuple, list)):
            raise TypeError(
                f"args of {self.kernel}() takes a tuple of tensors and NumPy scalars, got {type(args).__name__}"
            )
        if len(args) != len(self.parameters):
            listed = ", ".join(map(str, self.parameters))
            raise TypeError(f"{self.kernel}() takes {len(self.parameters)} arguments ({listed}), got {len(args)}")
        first: int | None = None
        for index, argument in enumerate(args):
            if isinstance(argument, TensorMap):
                if self.parameters[index].type in SCALAR_TYPES or self.parameters[index].pointer:
                    raise TypeError(f"{self.label(index)} is `{self.parameters[index]}`, got a tensor map")
                tensor = argument.tensor
            elif isinstance(argument, torch.Tensor):
                self._check_tensor(index, argument)
                tensor = argument
            else:
                self._check_scalar(index, argument)
                continue
            if first is None:
                first, device = index, tensor.device
            elif tensor.device != device:
                raise ValueError(
                    f"{self.label(index)} is on {tensor.device}, but {self.label(first)} is on {device}: "
                    "move all tensors to one device"
                )
        if first is None:
            return None
        if device.type not in ("cpu", "cuda"):
            raise ValueError(f"{self.label(first)} is on {device}; kernels run on cpu and cuda tensors")
        return device

    def _check_tensor(self, index: int, tensor: torch.Tensor) -> None:
        label, parameter = self.label(index), self.parameters[index]
        if parameter.type in SCALAR_TYPES and not parameter.pointer:
            wanted = SCALAR_TYPES[parameter.type].__name__
            raise TypeError(f"{label} is `{parameter}`: pass np.{wanted}(...), got a tensor")
        if not parameter.pointer and "*" not in parameter.type:
            raise TypeError(f"{label} is `{parameter}`: pass a NumPy scalar of its size, got a tensor")
        dtypes = TENSOR_DTYPES.get(parameter.type)
        if dtypes and tensor.dtype not in dtypes:
            expected = " or ".join(map(str, dtypes))
            raise TypeError(f"{label} is `{parameter}`: expected a tensor of {expected}, got {tensor.dtype}")
        check_memory(label, tensor)
        if tensor.is_neg():
            raise ValueError(f"{label} is a view that is negated only when it is read: call .resolve_neg() first")
        if tensor.is_conj():
            raise ValueError(f"{label} is a view that is conjugated only when it is read: call .resolve_conj() first")
        if not tensor.is_contiguous():
            raise ValueError(
                f"{label} must be contiguous, got shape {tuple(tensor.shape)} with strides {tensor.stride()}: "
                "call .contiguous() first"
            )

    def _check_scalar(self, index: int, value: object) -> None:
        label, parameter = self.label(index), self.parameters[index]
        if parameter.pointer:
            got = f"{type(value).__name__} {value!r}" if np.isscalar(value) else type(value).__name__
            raise TypeError(f"{label} is `{parameter}`: expected a torch tensor, got {got}")
        wanted = SCALAR_TYPES.get(parameter.type)
        if not isinstance(value, np.generic):
            should = f"np.{wanted.__name__}(...)" if wanted else "a NumPy scalar of its size"
            raise TypeError(f"{label} is `{parameter}`: pass {should}, got {type(value).__name__} {value!r}")
        if wanted is not None:
            expected = np.dtype(wanted)
            same_kind = value.dtype.kind == expected.kind or {value.dtype.kind, expected.kind} == {"i", "u"}
            if not same_kind or value.dtype.itemsize != expected.itemsize:
                raise TypeError(f"{label} is `{parameter}`: pass np.{wanted.__name__}(...), got np.{value.dtype.name}")


# ---- for a GPU

SLOT = 8  # bytes: each value begins at a multiple of it
FORMATS = {np.dtype(letter).type: letter for letter in "?bBhHiIlLqQefd"}  # a letter means the same to struct and NumPy


class CheckedArguments:
    """Arguments of a launch on a GPU that `Parameters.check` has passed, so that the next launch with arguments of the
    same types, dtypes and device is checked quickly; and the memory in which the driver finds their values.

    given: the places of the arguments that the next launch passes; None for all. The other arguments stay as they are.
    If `given` is set, the caller has already checked those tensors' storage, so it is not checked here. laid_out: the
    places among them whose dtype, device and layout are always the same. maps: by place, for arguments that the kernel
    takes as tensor maps.
    """

    def __init__(
        self,
        args: Sequence[object],
        device: torch.device,
        given: Sequence[int] | None = None,
        laid_out: Sequence[int] = (),
        maps: Mapping[int, PassedMap] | None = None,
    ) -> None:
        places = range(len(args)) if given is None else given
        others = [place for place in range(len(args)) if place not in places]
        self._maps = [(places.index(place), of) for place, of in (maps or {}).items()]
        of_launch, fixed = ([args[place] for place in some] for some in (places, others))
        self._checks_storage = given is None
        self._gpu = device.index if device.type == "cuda" else -1  # as Tensor.get_device says it
        self._types = tuple(map(type, of_launch))
        self._tensors = [(n, tensor.dtype) for n, tensor in enumerate(of_launch) if isinstance(tensor, torch.Tensor)]
        self._laid_out = [n for n, place in enumerate(places) if place in laid_out]
        plain = (torch.Tensor, torch.nn.Parameter, *FORMATS)  # a subclass of Tensor may do anything
        # Complex tensors may be conjugated views; without tensors, nothing says on which GPU the next launch is.
        reals = self._tensors and not any(dtype.is_complex for _, dtype in self._tensors)
        self._is_quick = bool(reals) and all(of in plain for of in self._types)
        self._fixed_tensors = [(tensor, tensor.data_ptr()) for tensor in fixed if isinstance(tensor, torch.Tensor)]
        self._checked_tensors = [(n, dtype) for n, dtype in self._tensors if n not in self._laid_out]
        laid_out: list[object] = list(of_launch)
        for n, _ in self._maps:
            laid_out[n] = np.void(TENSOR_MAP_BYTES)
        self._layout, self._fixed = _layout(laid_out), _layout(fixed).pack(*self.checked_values(fixed))
        begins = itertools.accumulate((_layout([a]).size for a in (*laid_out, *fixed)), initial=0)
        self._offsets = [begin for _, begin in sorted(zip((*places, *others), begins, strict=False))]
        self._free: list[tuple[bytearray, int]] = []

    def values(self, args: Sequence[object]) -> list[object] | None:
        """The values of the arguments passed, an address or a map for a tensor; None if these quick checks do not
        suffice, and `Parameters.check` must look at the arguments."""
        if not self._is_quick or type(args) is not tuple or tuple(map(type, args)) != self._types:
            return None
        values, gpu = list(args), self._gpu
        try:
            for place in self._laid_out:
                values[place] = args[place].data_ptr()
            for place, dtype in self._checked_tensors:
                tensor = args[place]
                if (
                    tensor.dtype is not dtype
                    or tensor.get_device() != gpu
                    or not tensor.is_contiguous()
                    or tensor.is_neg()
                    or tensor.is_nested
                ):
                    return None
                values[place] = address = tensor.data_ptr()
                if not address and tensor.numel():
                    return None
                if self._checks_storage:
                    needed = (tensor.storage_offset() + tensor.numel()) * dtype.itemsize
                    if address and tensor.untyped_storage().nbytes() < needed:
                        return None
            for tensor, address in self._fixed_tensors:
                if tensor.data_ptr() != address:
                    return None
            for place, of in self._maps:
                values[place] = of.encoded(args[place])
        except RuntimeError:  # torch has tensors without an address
            return None
        return values

    @staticmethod
    def checked_values(args: Sequence[object]) -> list[object]:
        """The values of any arguments that `Parameters.check` has just passed."""
        return [
            a.data_ptr() if isinstance(a, torch.Tensor) else a if type(a) in FORMATS else a.tobytes()  # type: ignore[attr-defined]
            for a in args
        ]

    def fill(self, values: Sequence[object]) -> tuple[bytearray, int]:
        """The memory that cuLaunchKernel reads, and its address: addresses of all values, then the values. It belongs
        to the caller, who gives it back by `release` once the kernel is launched."""
        start = len(self._offsets) * SLOT
        try:
            memory, address = self._free.pop()  # that an earlier launch has released; no other thread has it
        except IndexError:
            memory = bytearray(start + self._layout.size) + self._fixed
            address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            addresses = [address + start + offset for offset in self._offsets]
            struct.pack_into(f"{len(addresses)}Q", memory, 0, *addresses)
        self._layout.pack_into(memory, start, *values)
        return memory, address

    def release(self, filled: tuple[bytearray, int]) -> None:
        """Takes back the memory that `fill` returned."""
        self._free.append(filled)


def _layout(args: Sequence[object]) -> struct.Struct:
    """How struct writes arguments, each at a multiple of SLOT."""
    return struct.Struct("".join(map(_format, args)))


def _format(argument: object) -> str:
    if isinstance(argument, torch.Tensor):
        return "Q"
    size = argument.nbytes  # type: ignore[attr-defined]
    return f"{FORMATS.get(type(argument), f'{size}s')}{-size % SLOT}x"
