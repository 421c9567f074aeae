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

_pack = CONFIG.pack_into
_free: list[tuple[bytearray, int, int]] = []  # memory for a CONFIG and an ATTRIBUTE, and where each of them lies


@functools.cache
def _launch_kernel() -> Any:
    function = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    function.argtypes = 4 * (ctypes.c_void_p,)
    return function


def launch_dependent(
    function: int, x: int, y: int, z: int, u: int, v: int, w: int, shared_mem: int, stream: int, arguments: int, _: int
) -> None:
    """As `cupy.cuda.driver.launchKernel`, on the GPU that is current: function, grid, block, shared memory, stream,
    where the addresses of the arguments are, and 0. Raises LaunchError."""
    try:
        taken = memory, config, attribute = _free.pop()  # of another launch, which is over; never of another thread's
    except IndexError:
        memory = bytearray(CONFIG.size + ATTRIBUTE.size)
        config = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        taken = memory, config, attribute = memory, config, config + CONFIG.size
        ATTRIBUTE.pack_into(memory, CONFIG.size, PROGRAMMATIC_STREAM_SERIALIZATION, 1)
    _pack(memory, 0, x, y, z, u, v, w, shared_mem, stream, attribute, 1)
    error = _launch_kernel()(config, function, arguments, None)
    _free.append(taken)
    if error:
        raise LaunchError(f"a dependent launch of grid {(x, y, z)} and block {(u, v, w)} is the driver's error {error}")
