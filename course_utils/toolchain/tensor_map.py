"""What tells Hopper's copy engine how a tensor lies in memory, and which box of it one copy moves.

Source: CUDA driver API, "Tensor Map Object Management"; PTX ISA, "Tensors".
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

BYTES = 128  # of `struct alignas(64) TensorMap { unsigned long long words[16]; };`
SWIZZLES = {None: 16, "32B": 32, "64B": 64, "128B": 128}  # -> the bytes of a row whose chunks of 16 change places
MOST_DIMENSIONS, MOST_IN_A_BOX, MOST_BYTES = 5, 256, 2**40  # MOST_BYTES: of a stride
# The driver's names and numbers, and the bytes of an element.
_TYPES = ("UINT8", "UINT16", "UINT32", "INT32", "UINT64", "INT64", "FLOAT16", "FLOAT32", "FLOAT32_FTZ", "FLOAT64")
_TYPES += ("BFLOAT16",)
_ELEMENT_BYTES = dict(zip(_TYPES, (1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2), strict=True))
_TENSOR_CORES = {"TFLOAT32": "FLOAT32", "TFLOAT32_FTZ": "FLOAT32_FTZ"}  # the same type, cut to what they take
_PROMOTIONS = ("NONE", "L2_64B", "L2_128B", "L2_256B")
# As the driver names them; 1-byte floats are bytes to it.
_BYTE = "UINT8"
_DRIVERS = {
    **dict.fromkeys((torch.uint8, torch.int8, torch.float8_e4m3fn, torch.float8_e5m2), _BYTE),
    torch.float16: "FLOAT16",
    torch.bfloat16: "BFLOAT16",
    torch.float32: "FLOAT32",
    torch.float64: "FLOAT64",
    torch.int32: "INT32",
    torch.int64: "INT64",
}


def encode(
    dtype: str,
    address: int,
    size: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    *,
    steps: Sequence[int] | None = None,
    interleave: str = "NONE",
    swizzle: str = "NONE",
    promotion: str = "L2_256B",
    fill: str = "NONE",
) -> bytes:
    """The 128 bytes that cuTensorMapEncodeTiled makes of these arguments, which are not checked here.

    The innermost dimension is first; strides are in bytes, one less than there are dimensions; enums by the end of
    their names. NVIDIA does not say how it encodes a map: this was found by changing one argument after the other (the
    record of tests/nvidia/silicon has 62 maps), and holds for interleave "NONE" and "16B".
    """
    kind = _TENSOR_CORES.get(dtype, dtype)
    steps = steps or [1] * len(size)
    swizzles = [name or "NONE" for name in SWIZZLES]
    how = len(size) - 1 << 4 | _TYPES.index(kind) << 7 | (interleave == "16B") << 11 | swizzles.index(swizzle) << 13
    how |= (fill != "NONE") << 15 | (dtype in _TENSOR_CORES) << 16 | _PROMOTIONS.index(promotion) << 17
    units = [stride >> 4 for stride in strides]
    high = sum((unit >> 32) << 4 * n for n, unit in enumerate(units))
    missing = [0] * (MOST_DIMENSIONS - len(size))
    sides = [*(n - 1 for n in box), *missing]
    walk = sum(step - 1 << 3 * n for n, step in enumerate(steps))
    copied = _ELEMENT_BYTES[kind] * math.prod(-(-n // step) for n, step in zip(box, steps, strict=True))
    alignment = 16 if swizzle == "NONE" else 8 * SWIZZLES[swizzle]
    lows = [unit & 0xFFFFFFFF for unit in units] + missing
    words = [address & 0xFFFFFFFF, address >> 32, how, *lows, high, *(n - 1 for n in size), *missing]
    words += [walk | sides[0] << 24, sum(side << 8 * n for n, side in enumerate(sides[1:])), 0, copied, 0, alignment]
    return struct.pack(f"<{len(words)}I", *words).ljust(BYTES, b"\0")


@dataclass(frozen=True, eq=False)
class TensorMap:
    """A kernel argument for `const __grid_constant__ TensorMap`. It keeps the tensor, whose address it holds.

    Made by `course_utils.cuda.tensor_map`.
    """

    tensor: torch.Tensor
    box: tuple[int, ...]
    swizzle: str | None

    @functools.cached_property
    def memory(self) -> torch.Tensor:
        """All memory from the tensor's first element to its last, as one row."""
        last = sum((size - 1) * stride for size, stride in zip(self.tensor.shape, self.tensor.stride(), strict=True))
        return torch.as_strided(self.tensor.detach(), (last + 1,), (1,))

    def for_emulator(self, address: int) -> bytes:
        """The map as the driver would encode it, of a copy of `memory` at this address."""
        return encode(
            _DRIVERS[self.tensor.dtype],
            address,
            self.tensor.shape[::-1],
            [stride * self.tensor.element_size() for stride in reversed(self.tensor.stride()[:-1])],
            self.box[::-1],
            swizzle=self.swizzle or "NONE",
        )

    def for_gpu(self) -> np.generic:
        """The map as the driver encodes it, to be passed by value."""
        from cuda.bindings import driver

        rank, size = self.tensor.dim(), self.tensor.element_size()
        dtypes, swizzles = driver.CUtensorMapDataType, driver.CUtensorMapSwizzle
        status, encoded = driver.cuTensorMapEncodeTiled(
            getattr(dtypes, f"CU_TENSOR_MAP_DATA_TYPE_{_DRIVERS[self.tensor.dtype]}"),
            rank,
            self.tensor.data_ptr(),
            [driver.cuuint64_t(n) for n in reversed(self.tensor.shape)],
            # One dimension has no strides, but the driver takes no null.
            [driver.cuuint64_t(stride * size) for stride in reversed(self.tensor.stride()[:-1])]
            or [driver.cuuint64_t(16)],
            [driver.cuuint32_t(n) for n in reversed(self.box)],
            [driver.cuuint32_t(1)] * rank,
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(swizzles, f"CU_TENSOR_MAP_SWIZZLE_{self.swizzle or 'NONE'}"),
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        if status != driver.CUresult.CUDA_SUCCESS:
            raise ValueError(f"the driver refuses a tensor map of {self}: {status.name}")
        return np.void(ctypes.string_at(int(encoded.getPtr()), BYTES))

    def __str__(self) -> str:
        return f"{tuple(self.tensor.shape)}, {self.tensor.dtype}, box {self.box}, swizzle {self.swizzle}"


class PassedMap:
    """In the arguments of a `ReadyLaunch`, the place of a tensor that each call passes and that the kernel takes as a
    tensor map, which `make` makes.

    The tensors of all calls have one shape, dtype and device, so a map depends on the address alone, and what the
    driver has encoded is cached by it. laid_out: the caller has seen to that, and launches look at the address only.
    """

    MOST = 256  # addresses: torch's allocator gives the same few again and again

    def __init__(self, make: Callable[[torch.Tensor], TensorMap], *, laid_out: bool = False) -> None:
        self.make, self.laid_out = make, laid_out
        self._encoded: dict[int, bytes] = {}

    def encoded(self, tensor: torch.Tensor) -> bytes:
        """The map as the driver encodes it."""
        address = tensor.data_ptr()
        found = self._encoded.get(address)
        if found is None:
            if len(self._encoded) >= self.MOST:
                self._encoded.clear()
            found = self._encoded[address] = self.make(tensor).for_gpu().tobytes()
        return found


def tensor_map(tensor: torch.Tensor, box: Sequence[int], *, swizzle: str | None = "128B") -> TensorMap:
    """A kernel argument by which the copy engine moves boxes of a tensor, on either machine.

    The parameter is `const __grid_constant__ TensorMap name`, with `struct alignas(64) TensorMap { unsigned long long
    words[16]; };`. tensor: of 1 to 5 dimensions, the last of them contiguous; other strides are multiples of 16
    bytes. box: how many elements of each dimension one copy moves, in the tensor's order (the last is the innermost; in
    PTX the coordinates come the other way round). swizzle: None, "32B", "64B" or "128B": how chunks of 16 bytes change
    places in shared memory. What lies outside of the tensor is read as zero, and not written.

    The map is good for the tensor's memory as long as that is the tensor's. Raises TypeError or ValueError.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tensor takes a torch.Tensor, got {type(tensor).__name__}")
    if tensor.dtype not in _DRIVERS:
        raise TypeError(f"tensor takes one of {', '.join(map(str, _DRIVERS))}, got {tensor.dtype}")
    if swizzle not in SWIZZLES:
        raise ValueError(f'swizzle takes None, "32B", "64B" or "128B", got {swizzle!r}')
    sizes, size = tuple(tensor.shape), tensor.element_size()
    if not 1 <= len(sizes) <= MOST_DIMENSIONS or 0 in sizes:
        raise ValueError(f"tensor takes 1 to {MOST_DIMENSIONS} dimensions, none of them empty, got shape {sizes}")
    if tensor.data_ptr() % 16:
        raise ValueError(
            f"tensor begins at a multiple of 16 bytes, got an address that leaves {tensor.data_ptr() % 16}"
        )
    if tensor.stride(-1) != 1 and sizes[-1] > 1:
        raise ValueError(f"the last dimension of tensor is contiguous, got strides {tensor.stride()}")
    if any(stride * size % 16 or not 0 < stride * size < MOST_BYTES for stride in tensor.stride()[:-1]):
        raise ValueError(
            f"the strides of tensor are multiples of 16 bytes above 0 and below 2**40, got {tensor.stride()} elements "
            f"of {size} bytes"
        )
    box = tuple(box)
    if len(box) != len(sizes) or not all(isinstance(n, int) and 1 <= n <= MOST_IN_A_BOX for n in box):
        raise ValueError(
            f"box takes {len(sizes)} ints from 1 to {MOST_IN_A_BOX}, one for each dimension of tensor, got {box}"
        )
    inner = box[-1] * size
    if inner % 16:
        raise ValueError(f"the innermost side of box is a multiple of 16 bytes, got {box[-1]} elements of {size} bytes")
    if swizzle and inner > SWIZZLES[swizzle]:
        raise ValueError(
            f"with swizzle {swizzle!r} the innermost side of box has at most {SWIZZLES[swizzle]} bytes, got {inner}"
        )
    return TensorMap(tensor, box, swizzle)
