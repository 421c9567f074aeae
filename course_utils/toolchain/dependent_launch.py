"""A launch that begins while the one before it in the stream still ends: programmatic dependent launch, from sm_90 on
(CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization").

CuPy's launchKernel has no attributes of a launch, so this calls the driver itself.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from typing import Any

from course_utils.toolchain.errors import LaunchError

ARCHITECTURE = 90  # the first that has it
CONFIG = struct.Struct("7I4xQQI4x")  # CUlaunchConfig: grid, block, bytes of shared memory; stream; attributes, how many
ATTRIBUTE = struct.Struct("i4xi60x")  # CUlaunchAttribute: which, and its value
PROGRAMMATIC_STREAM_SERIALIZATION = 6

_free: list[tuple[bytearray, int]] = []  # memory for a CONFIG and an ATTRIBUTE, and where it lies


@functools.cache
def _launch_kernel() -> Any:
    function = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    function.argtypes = 4 * (ctypes.c_void_p,)
    return function


def launch_dependent(function: int, *settings: int) -> None:
    """As `cupy.cuda.driver.launchKernel`, on the GPU that is current: function, grid, block, shared memory, stream,
    where the addresses of the arguments are, and 0. Raises LaunchError."""
    *size, stream, arguments, _ = settings
    try:
        memory, address = _free.pop()  # of another launch, which is over; never of one in another thread
    except IndexError:
        memory = bytearray(CONFIG.size + ATTRIBUTE.size)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        ATTRIBUTE.pack_into(memory, CONFIG.size, PROGRAMMATIC_STREAM_SERIALIZATION, 1)
    CONFIG.pack_into(memory, 0, *size, stream, address + CONFIG.size, 1)
    error = _launch_kernel()(address, function, arguments, None)
    _free.append((memory, address))
    if error:
        raise LaunchError(f"a dependent launch of grid {size[:3]} and block {size[3:6]} is the driver's error {error}")
