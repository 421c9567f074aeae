"""CUDA's own headers: which of them add nothing to what a kernel has anyway, and which are taken as NVIDIA wrote them.

All others that the emulator has are in `include/`, with its own text.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from cuda.pathfinder import find_nvidia_header_directory

from course_utils.toolchain.errors import CompileError

_OF_ONE_FILE = (
    *("common_functions", "device_double_functions", "device_functions", "math_functions", "sm_35_atomic_functions"),
    *("sm_35_intrinsics", "texture_indirect_functions", "surface_indirect_functions", "device_launch_parameters"),
    *("host_config", "host_defines", "vector_types", "device_types", "cudart_platform"),
    *("cuda_runtime", "cuda_runtime_api", "cuda_device_runtime_api"),
    *(f"crt/{name}" for name in ("common_functions", "cudacc_ext", "host_config", "host_defines", "host_runtime")),
    "crt/storage_class",
)
_OF_TWO_FILES = (
    *("sm_20_atomic_functions", "sm_20_intrinsics", "sm_30_intrinsics", "sm_32_atomic_functions", "sm_32_intrinsics"),
    *("sm_60_atomic_functions", "sm_61_intrinsics", "device_atomic_functions", "vector_functions"),
    *(f"crt/{name}" for name in ("device_double_functions", "device_functions", "math_functions")),
    *(f"crt/sm_{number}_rt" for number in (70, 80, 90, 100)),
)
BUILT_IN = frozenset(
    [*(f"{name}.h" for name in (*_OF_ONE_FILE, *_OF_TWO_FILES)), *(f"{name}.hpp" for name in _OF_TWO_FILES)]
)
"""What these declare for kernels, NVRTC and the emulator have built in."""

AS_NVIDIA_WROTE_IT = frozenset(
    ["builtin_types.h", "driver_types.h", "library_types.h", "math_constants.h"]
    + ["surface_types.h", "texture_types.h", "cuComplex.h"]
)
"""Types, macros and plain functions, which a compiler for the host takes as they are."""

RUNTIME_TYPES = "builtin_types.h"
"""The types of the host's API (`cudaStream_t`, `cudaTextureObject_t`, …), which NVRTC knows without a header."""

NAMES_OF_THE_RUNTIME = r"\bcuda(?:[A-Z]\w*)"
"""What a file names that needs them."""


@functools.cache
def cuda_folder() -> Path:
    """The folder of NVIDIA's headers, as the wheels bring them. Raises CompileError where there is none."""
    folder = find_nvidia_header_directory("cudart")
    if folder is None:
        raise CompileError("CUDA's headers are missing: `pip install nvidia-cuda-runtime nvidia-cuda-cccl`")
    return Path(folder)


def plain_types(text: str) -> str:
    """A header of NVIDIA's, in which `gridDim` and the like are names of members, and which asks for no header of the
    host's, since NVRTC has none."""
    text = re.sub(r"#(\s*include\s*<(?:math|limits|stddef)\.h>)", r"//\1", text)
    names = ("gridDim", "blockDim", "warpSize")
    before = " ".join(f'_Pragma("push_macro(\\"{name}\\")")' for name in names)
    after = "".join(f'_Pragma("pop_macro(\\"{name}\\")")\n' for name in names)
    return f"{before}\n" + "".join(f"#undef {name}\n" for name in names) + f"{text}\n{after}"
