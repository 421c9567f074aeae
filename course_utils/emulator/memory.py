"""Device memory of one launch: copies of the argument tensors that the worker process shares with this one.

The copies lie far apart in address space that nobody may touch. An access beyond an array is therefore a fault, not a
silent change of its neighbour, and the address says which array was meant.
"""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass, field

import torch

PAGE = mmap.PAGESIZE
ALIGNMENT = 16  # bytes: the widest access of a thread
GAP = 1 << 30  # bytes of untouchable address space on either side of an array
_PROT_NONE, _MAP_FIXED, _MAP_NORESERVE = 0, 0x10, 0x4000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def _map(address: int | None, size: int, protection: int, flags: int) -> int:
    mapped = _libc.mmap(address, size, protection, flags | mmap.MAP_ANONYMOUS, -1, 0)
    if mapped in (None, ctypes.c_void_p(-1).value):
        raise MemoryError(f"the emulator could not map {size} bytes: errno {ctypes.get_errno()}")
    return mapped


@dataclass
class Array:
    """A CPU tensor as a kernel argument: `label` names it in messages; only a `writable` one is copied back."""

    tensor: torch.Tensor
    label: str
    writable: bool


@dataclass
class _Region:
    """Overlapping tensors share memory on the device, too: one region holds them all."""

    low: int
    high: int
    arrays: list[Array] = field(default_factory=list)
    shift: int = 0  # device address - host address


def _regions(arrays: list[Array]) -> list[_Region]:
    regions: list[_Region] = []
    for array in sorted(arrays, key=lambda a: a.tensor.data_ptr()):
        low = array.tensor.data_ptr()
        high = low + array.tensor.numel() * array.tensor.element_size()
        if regions and low < regions[-1].high:
            regions[-1].high = max(regions[-1].high, high)
        else:
            regions.append(_Region(low, high))
        regions[-1].arrays.append(array)
    return regions


class DeviceMemory:
    """A context manager: copies the arrays in; `copy_back` copies the writable ones out; leaving it frees them."""

    def __init__(self, arrays: list[Array]) -> None:
        self._regions = _regions(arrays)

    def __enter__(self) -> DeviceMemory:
        spans = [-(-(r.high - r.low + ALIGNMENT) // PAGE) * PAGE for r in self._regions]
        self._size = sum(spans) + (len(spans) + 1) * GAP
        self._base = _map(None, self._size, _PROT_NONE, mmap.MAP_PRIVATE | _MAP_NORESERVE)
        try:
            self._copy_in(spans)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _copy_in(self, spans: list[int]) -> None:
        at = self._base + GAP
        for region, span in zip(self._regions, spans, strict=True):
            _map(at, span, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED)
            size = region.high - region.low
            # As far back as the alignment of the original allows: the array's end then touches the gap.
            start = at + span - size
            start -= (start - region.low) % ALIGNMENT
            region.shift = start - region.low
            ctypes.memmove(start, region.low, size)
            at += span + GAP

    def __exit__(self, *exception: object) -> None:
        _libc.munmap(self._base, self._size)

    def pointer(self, tensor: torch.Tensor) -> int:
        """The device address of one of the tensors."""
        address = tensor.data_ptr()
        for region in self._regions:
            if region.low <= address <= region.high and any(a.tensor is tensor for a in region.arrays):
                return address + region.shift
        raise KeyError("not an argument of this launch")

    def copy_back(self) -> None:
        """Copies what the kernel wrote into the caller's tensors."""
        for region in self._regions:
            for array in region.arrays:
                if array.writable:
                    low = array.tensor.data_ptr()
                    size = array.tensor.numel() * array.tensor.element_size()
                    ctypes.memmove(low, low + region.shift, size)

    def describe(self, address: int) -> str:
        """Where an address lies, in words: before or past the end of the nearest array."""
        nearest: tuple[int, str] | None = None
        for region in self._regions:
            for array in region.arrays:
                low = array.tensor.data_ptr() + region.shift
                size = array.tensor.numel() * array.tensor.element_size()
                distance = low - address if address < low else address - (low + size)
                where = "before" if address < low else "past the end of"
                text = f"{distance:,} bytes {where} {array.label} ({size:,} bytes)"
                if nearest is None or abs(distance) < nearest[0]:
                    nearest = (abs(distance), text)
        if nearest and nearest[0] < 64 * GAP:
            return nearest[1]
        return f"at address {address:#x}, near no argument of the kernel"
