"""Device memory of one launch: copies of the argument tensors, in a file without a name that the worker maps, too.

The worker sees the copies far apart, in address space that nobody may touch. An access beyond an array is therefore a
fault, not a silent change of its neighbour, and the address says which array was meant.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

PAGE = mmap.PAGESIZE
ALIGNMENT = 16  # bytes: the widest access of a thread
GPU_ALIGNMENT = 512  # bytes: what PyTorch's allocator gives to a new tensor on a GPU
GAP = 1 << 30  # bytes of untouchable address space on either side of an array
DEVICE_BASE = 1 << 38  # where device addresses start: above every heap, below every library


@dataclass(eq=False)
class Array:
    """A CPU tensor as a kernel argument: which one, counted from 0, and its name ("" if it has none). Only a `writable`
    one is copied back."""

    tensor: torch.Tensor
    index: int
    name: str
    writable: bool

    @property
    def size(self) -> int:
        """In bytes."""
        return self.tensor.numel() * self.tensor.element_size()


class Nearest(NamedTuple):
    """The array that is nearest to an access. It begins `distance` bytes "before" the array, or "past" its end; or it
    is wide, begins inside and reaches "over" the end, of which `distance` bytes are left."""

    array: Array
    side: str
    distance: int


@dataclass(eq=False)
class Mapped:
    """A tensor that the kernel has not by its address, but by what `encode` makes of it."""

    array: Array
    encode: Callable[[int], bytes]


@dataclass
class _Region:
    """Overlapping tensors share memory on the device, too: one region holds them all."""

    low: int
    high: int
    arrays: list[Array] = field(default_factory=list)
    shift: int = 0  # device address - the tensor's address
    copy_shift: int = 0  # address of the copy in this process - the tensor's address


def _regions(arrays: Sequence[Array]) -> list[_Region]:
    """In the order of the arguments: by their addresses here, a wild access would meet another one in each run."""
    regions: list[_Region] = []
    for array in sorted(arrays, key=lambda a: a.tensor.data_ptr()):
        low = array.tensor.data_ptr()
        high = low + array.size
        if regions and low < regions[-1].high:
            regions[-1].high = max(regions[-1].high, high)
        else:
            regions.append(_Region(low, high))
        regions[-1].arrays.append(array)
    return sorted(regions, key=lambda region: min(array.index for array in region.arrays))


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


class DeviceMemory:
    """A context manager: copies the arrays in; `copy_back` copies the writable ones out; leaving it frees them.

    `file` is the descriptor of the file; its first `front_bytes`, mapped here as `front`, are free for other use.
    `mappings` lists (device address, offset in the file, bytes) of the regions, all within `reserved`, an (address,
    bytes) of device address space.
    """

    def __init__(self, arrays: list[Array], front_bytes: int, *, as_on_a_gpu: bool = False) -> None:
        """`as_on_a_gpu`: arrays start where a GPU's allocator would put them, for the sake of their sectors and banks,
        instead of ending at a gap, where an overrun is a fault."""
        self._regions = _regions(arrays)
        self.front_bytes = _pages(front_bytes)
        self.mappings: list[tuple[int, int, int]] = []
        address, offset = DEVICE_BASE + GAP, self.front_bytes
        for region in self._regions:
            size = region.high - region.low
            if as_on_a_gpu:
                span = _pages(size + GPU_ALIGNMENT)
                start = address + (region.low - region.arrays[0].tensor.untyped_storage().data_ptr()) % GPU_ALIGNMENT
            else:
                # As far back as the alignment of the original allows: the array's end then touches the gap.
                span = _pages(size + ALIGNMENT)
                start = address + span - size
                start -= (start - region.low) % ALIGNMENT
            region.shift = start - region.low
            region.copy_shift = region.shift - address + offset
            self.mappings.append((address, offset, span))
            address, offset = address + span + GAP, offset + span
        self.reserved = (DEVICE_BASE, address - DEVICE_BASE)
        self._file_bytes = offset

    def __enter__(self) -> DeviceMemory:
        self.file = os.memfd_create("emulated device memory")
        try:
            os.ftruncate(self.file, self._file_bytes)
            self.front = mmap.mmap(self.file, self._file_bytes)  # unmapped with its last user
        except BaseException:
            os.close(self.file)
            raise
        here = ctypes.addressof(ctypes.c_char.from_buffer(self.front))
        for region in self._regions:
            region.copy_shift += here
            ctypes.memmove(region.low + region.copy_shift, region.low, region.high - region.low)
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self.file)

    def pointer(self, tensor: torch.Tensor) -> int:
        """The device address of one of the tensors."""
        for region in self._regions:
            if any(array.tensor is tensor for array in region.arrays):
                return tensor.data_ptr() + region.shift
        raise KeyError("not an argument of this launch")

    @property
    def spans(self) -> list[tuple[int, int, int]]:
        """(device address, bytes, bytes per element) of each stretch of memory that belongs to arguments, ascending.

        A stretch that a kernel takes as const alone has 0 bytes per element: nobody can race to write it.
        """
        return [
            (
                region.low + region.shift,
                region.high - region.low,
                min(array.tensor.element_size() for array in region.arrays)
                if any(array.writable for array in region.arrays)
                else 0,
            )
            for region in self._regions
        ]

    def arrays(self) -> list[tuple[list[Array], int]]:
        """For each of the `spans`: its arrays, in the order of the arguments, and bytes."""
        return [
            (sorted(region.arrays, key=lambda array: array.index), region.high - region.low) for region in self._regions
        ]

    def tensors(self) -> list[tuple[list[Array], torch.Tensor | None, int, int]]:
        """For each of the `spans`: its arrays, the tensor that is all of it (None: several share it), and where its
        bytes are in this process as they were before the launch: address and how many."""
        found = []
        for region, (arrays, size) in zip(self._regions, self.arrays(), strict=True):
            whole = [array.tensor for array in region.arrays if array.size == size]
            found.append((arrays, whole[0] if whole else None, region.low, size))
        return found

    def copy_back(self) -> None:
        """Copies what the kernel wrote into the caller's tensors."""
        for region in self._regions:
            for array in region.arrays:
                if array.writable:
                    low = array.tensor.data_ptr()
                    ctypes.memmove(low, low + region.copy_shift, array.size)

    def nearest(self, address: int) -> Nearest | None:
        """Which array an access that is out of bounds is nearest to; None: it is far from each."""
        nearest: Nearest | None = None
        for region in self._regions:
            for array in region.arrays:
                low = array.tensor.data_ptr() + region.shift
                end = low + array.size
                if address < low:
                    found = Nearest(array, "before", low - address)
                elif address < end:  # a wide access that reaches over the end
                    found = Nearest(array, "over", end - address)
                else:
                    found = Nearest(array, "past", address - end)
                if nearest is None or found.distance < nearest.distance:
                    nearest = found
        return nearest if nearest and nearest.distance < 64 * GAP else None
