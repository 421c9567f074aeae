"""One way to load and launch a kernel: CuPy's `RawModule` for CUDA tensors, the CPU emulator for CPU tensors.

    module = RawModule(code=read_kernel("00_start_here/vector_add.cu"))
    kernel = module.get_function("vector_add")
    kernel((blocks,), (threads,), (a, b, out, np.int32(n)))

The backend follows the arguments, launch by launch, so the same code runs on any machine. Arguments are contiguous
torch tensors on one device and NumPy scalars; both are checked against the kernel's own parameter list before anything
runs.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from course_utils.arguments import check_memory
from course_utils.emulator import tracing
from course_utils.emulator.memory import Array
from course_utils.emulator.module import DEVICE, SHARED_LIMIT, EmulatedModule
from course_utils.toolchain.errors import CompileError, KernelError, LaunchError
from course_utils.toolchain.source import (
    INCLUDE,
    Architecture,
    KernelFunction,
    KernelSource,
    Parameter,
    find_kernels,
    read_kernel,
    required_architecture,
    source_name,
)

__all__ = [
    "CompileError",
    "Kernel",
    "KernelError",
    "KernelSource",
    "LaunchError",
    "RawModule",
    "compiled",
    "read_kernel",
    "shared_memory_limit",
]

# C++ type of a kernel parameter -> torch dtype of a tensor passed for a pointer to it (None: any).
TENSOR_DTYPES: dict[str, tuple[torch.dtype, ...]] = {
    **dict.fromkeys(("float", "float2", "float3", "float4"), (torch.float32,)),
    **dict.fromkeys(("double", "double2"), (torch.float64,)),
    **dict.fromkeys(("half", "__half", "half2", "__half2"), (torch.float16,)),
    **dict.fromkeys(("__nv_bfloat16", "__nv_bfloat162", "nv_bfloat16", "nv_bfloat162"), (torch.bfloat16,)),
    **dict.fromkeys(("int", "int32_t", "int2", "int4"), (torch.int32,)),
    **dict.fromkeys(("unsigned", "unsigned int", "uint32_t"), (torch.int32, torch.uint32)),
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
    **dict.fromkeys(("unsigned", "unsigned int", "uint32_t"), np.uint32),
    **dict.fromkeys(("long long", "int64_t", "long"), np.int64),
    **dict.fromkeys(("unsigned long long", "uint64_t", "size_t", "unsigned long"), np.uint64),
    **dict.fromkeys(("short", "int16_t"), np.int16),
    **dict.fromkeys(("signed char", "int8_t"), np.int8),
    **dict.fromkeys(("unsigned char", "uint8_t"), np.uint8),
    "bool": np.bool_,
}
GRID_LIMITS = (2**31 - 1, 65535, 65535)
BLOCK_LIMITS = (1024, 1024, 64)
THREAD_LIMIT = 1024
DEFAULT_SHARED = 48 * 1024  # bytes of dynamic shared memory that a kernel gets without asking


class RawModule:
    """The kernels of one source text, compiled for a backend at the first launch there (or by `compile`).

    code: CUDA C++, best from `read_kernel`, so that messages name the file. options: as for NVRTC (`-DD=64`);
    `kernels/include` is always on the include path, and a kernel with `arch: sm_90a only` in its header is compiled
    for that. name_expressions: template instances, as in CuPy.
    """

    def __init__(
        self,
        code: str,
        options: Sequence[str] = (),
        name_expressions: Sequence[str] | None = None,
    ) -> None:
        if not isinstance(code, str):
            raise TypeError(f"code takes CUDA C++ as a str, got {type(code).__name__}")
        if isinstance(options, str):
            raise TypeError(f"options takes a sequence of strings such as ('-DD=64',), got the str {options!r}")
        if isinstance(name_expressions, str):
            raise TypeError(
                f"name_expressions takes a sequence of strings such as ('scale<4>',), got the str {name_expressions!r}"
            )
        self.code = code
        self.options = tuple(options)
        self.name_expressions = tuple(name_expressions or ())
        self.name = source_name(code)
        self._kernels = find_kernels(code)
        self._found: dict[str, Kernel] = {}

    def get_function(self, name: str) -> Kernel:
        """The kernel of this name or name expression. Raises LookupError, which lists the kernels of the module."""
        if name not in self._found:
            self._found[name] = self._find(name)
        return self._found[name]

    def _find(self, name: str) -> Kernel:
        base = re.match(r"\s*([\w:]*)", name)
        function = self._kernels.get(base[1].split("::")[-1] if base else name)
        if (
            function is None
            or not function.bodies
            or (function.template and name not in self.name_expressions)
            or (not function.template and "<" in name)
        ):
            there_are = [k.name for k in self._kernels.values() if k.bodies and not k.template]
            there_are += self.name_expressions
            templates = [k.name for k in self._kernels.values() if k.template and not self.name_expressions]
            hint = f"; templates that need name_expressions: {', '.join(templates)}" if templates else ""
            raise LookupError(f"{self.name} has no kernel {name!r}; it has: {', '.join(there_are) or 'none'}{hint}")
        if function.other_line is not None:
            raise LookupError(
                f"{self.name} defines {function.name}() in lines {function.other_line} and {function.line} with "
                "different parameters; arguments are checked before the preprocessor runs: give them two names"
            )
        return Kernel(self, name, function)

    def compile(self, device: str | torch.device = "cpu") -> None:
        """Compiles for a device now instead of at the first launch. Raises CompileError."""
        self._emulated if torch.device(device).type == "cpu" else self._cupy(torch.device(device).index or 0)

    def get_global(
        self, name: str, shape: Sequence[int], dtype: torch.dtype, device: str | torch.device = "cpu"
    ) -> torch.Tensor:
        """A `__device__` or `__constant__` variable on a device, as a tensor that shares its memory.

        `module.get_global("table", (256,), torch.float32, x.device).copy_(values)` sets it before a launch. Raises
        KeyError for an unknown name; on the emulator, ValueError for a shape and dtype of another size than it has.
        """
        if torch.device(device).type == "cpu":
            variable = self._emulated.global_variable(name)
            wanted = math.prod(shape) * dtype.itemsize
            if wanted != variable.numel():
                raise ValueError(
                    f"{name!r} has {variable.numel()} bytes; shape {tuple(shape)} of {dtype} takes {wanted}"
                )
            return variable.view(dtype).view(tuple(shape))
        cupy = _import_cupy()
        index = torch.device(device).index or 0
        with cupy.cuda.Device(index):
            module = self._cupy(index)
            try:
                pointer = module.get_global(name)
            except cupy.cuda.driver.CUDADriverError as error:
                raise KeyError(f"{self.name} has no __device__ or __constant__ variable {name!r} ({error})") from None
            memory = cupy.cuda.UnownedMemory(pointer.ptr, math.prod(shape) * dtype.itemsize, owner=module)
            content = cupy.ndarray(memory.size, dtype=np.uint8, memptr=cupy.cuda.MemoryPointer(memory, 0))
            return torch.as_tensor(content, device=device).view(dtype).view(tuple(shape))

    def _variables(self, device: torch.device) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The bytes of each __device__ and __constant__ variable on the emulator and on a GPU."""
        pairs = []
        for name in self._emulated.global_variables():
            here = self._emulated.global_variable(name)
            pairs.append((here, self.get_global(name, (here.numel(),), torch.uint8, device)))
        return pairs

    @functools.cached_property
    def _architecture(self) -> Architecture:
        return required_architecture(self.code)

    @functools.cached_property
    def _emulated(self) -> EmulatedModule:
        return EmulatedModule(self.code, self.options, self.name_expressions)

    def _cupy(self, device_index: int) -> Any:
        """CuPy's own RawModule, compiled; CuPy keeps one instance of it per GPU."""
        _require_architecture(self.name, self._architecture, device_index)
        return self._cupy_module

    @functools.cached_property
    def _cupy_module(self) -> Any:
        cupy = _import_cupy()
        folder = [f"-I{self.code.path.parent}"] if isinstance(self.code, KernelSource) else []
        needed = self._architecture
        exact = [f"-arch={needed}"] if needed.exact else []  # CuPy's default leaves out what only this architecture has
        options = ("--std=c++17", "-lineinfo", *exact, *self.options, *folder, f"-I{INCLUDE}")
        module = cupy.RawModule(code=str(self.code), options=options, name_expressions=self.name_expressions or None)
        try:
            module.compile()
        except cupy.cuda.compiler.CompileException as error:
            log = str(error)
            raise CompileError(f"{self.name} did not compile for the GPU:\n{log}", log) from None
        return module


@functools.cache
def compiled(path: str, options: tuple[str, ...] = ()) -> RawModule:
    """The module of a kernel file, for `read_kernel`, with these options: made once, then looked up.

    It is compiled at its first launch. A file that changes afterwards is not read again in this process.
    """
    return RawModule(code=read_kernel(path), options=options)


class Kernel:
    """A kernel that can be launched: `kernel(grid, block, args, shared_mem=0)`. Made by `RawModule.get_function`."""

    def __init__(self, module: RawModule, name: str, function: KernelFunction) -> None:
        self.module = module
        self.name = name
        self.parameters = function.parameters

    def __call__(
        self, grid: Sequence[int], block: Sequence[int], args: Sequence[object], *, shared_mem: int = 0
    ) -> None:
        """Launches the kernel: for CUDA tensors on torch's current stream, for CPU tensors on the emulator, to its end.

        Inside `emulator.sanitize()` or `emulator.profile()` it always runs on the emulator, on copies of CUDA tensors.

        grid, block: one to three positive ints; args: torch tensors and NumPy scalars, one per parameter; shared_mem:
        bytes of dynamic shared memory. Raises TypeError or ValueError for arguments that do not fit, LaunchError for a
        launch that the device cannot run, CompileError, and on the emulator KernelError for a kernel that fails.
        """
        grid3 = _dimensions("grid", grid, GRID_LIMITS)
        block3 = _dimensions("block", block, BLOCK_LIMITS)
        threads = block3[0] * block3[1] * block3[2]
        if threads > THREAD_LIMIT:
            raise LaunchError(f"block {block3} has {threads} threads; a block has at most {THREAD_LIMIT}")
        if not isinstance(shared_mem, (int, np.integer)) or shared_mem < 0:
            raise ValueError(f"shared_mem takes a number of bytes, got {shared_mem!r}")
        device = self._check_arguments(args)
        if device.type == "cpu":
            self._launch_emulated(grid3, block3, args, int(shared_mem))
        elif tracing.active():
            self._launch_on_copies(device, grid3, block3, args, int(shared_mem))
        else:
            self._launch_cupy(device, grid3, block3, args, int(shared_mem))

    # ---- arguments

    def _label(self, index: int) -> str:
        return f"argument {index} ({self.parameters[index].name or '?'!r}) of {self.name}()"

    def _check_arguments(self, args: Sequence[object]) -> torch.device:
        """Checks every argument against its parameter; returns the device that the tensors are on."""
        if not isinstance(args, (tuple, list)):
            raise TypeError(
                f"args of {self.name}() takes a tuple of tensors and NumPy scalars, got {type(args).__name__}"
            )
        if len(args) != len(self.parameters):
            listed = ", ".join(map(str, self.parameters))
            raise TypeError(f"{self.name}() takes {len(self.parameters)} arguments ({listed}), got {len(args)}")
        first: int | None = None
        for index, (argument, parameter) in enumerate(zip(args, self.parameters, strict=True)):
            if isinstance(argument, torch.Tensor):
                self._check_tensor(index, argument, parameter)
                if first is None:
                    first = index
                elif argument.device != args[first].device:  # type: ignore[attr-defined]
                    raise ValueError(
                        f"{self._label(index)} is on {argument.device}, but {self._label(first)} is on "
                        f"{args[first].device}: move all tensors to one device"  # type: ignore[attr-defined]
                    )
            else:
                self._check_scalar(index, argument, parameter)
        if first is None:
            return (
                torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
            )
        device: torch.device = args[first].device  # type: ignore[attr-defined]
        if device.type not in ("cpu", "cuda"):
            raise ValueError(f"{self._label(first)} is on {device}; kernels run on cpu and cuda tensors")
        return device

    def _check_tensor(self, index: int, tensor: torch.Tensor, parameter: Parameter) -> None:
        label = self._label(index)
        if parameter.type in SCALAR_TYPES and not parameter.pointer:
            wanted = SCALAR_TYPES[parameter.type].__name__
            raise TypeError(f"{label} is `{parameter}`: pass np.{wanted}(...), got a tensor")
        if not parameter.pointer and "*" not in parameter.type:
            raise TypeError(f"{label} is `{parameter}`: pass a NumPy scalar of its size, got a tensor")
        dtypes = TENSOR_DTYPES.get(parameter.type)
        if dtypes and tensor.dtype not in dtypes:
            raise TypeError(f"{label} is `{parameter}`: expected a tensor of {_or(dtypes)}, got {tensor.dtype}")
        check_memory(label, tensor)
        if tensor.is_neg():
            raise ValueError(f"{label} is a view that is negated only when it is read: call .resolve_neg() first")
        if tensor.layout != torch.strided or not tensor.is_contiguous():
            strides = tensor.stride() if tensor.layout == torch.strided else tensor.layout
            raise ValueError(
                f"{label} must be contiguous, got shape {tuple(tensor.shape)} with strides {strides}: "
                "call .contiguous() first"
            )

    def _check_scalar(self, index: int, value: object, parameter: Parameter) -> None:
        label = self._label(index)
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

    # ---- the emulator

    def _launch_emulated(
        self, grid: tuple[int, int, int], block: tuple[int, int, int], args: Sequence[object], shared_mem: int
    ) -> None:
        module = self.module._emulated
        self._check_shared(shared_mem, module.static_shared(self.name), SHARED_LIMIT, f"the emulated {DEVICE} device")
        arguments: list[Array | bytes] = []
        sizes = module.argument_sizes(self.name)
        for index, argument in enumerate(args):
            if isinstance(argument, torch.Tensor):
                writable = not (self.parameters[index].pointer and self.parameters[index].const)
                arguments.append(Array(argument.detach(), self._label(index), writable))
            else:
                value = argument.tobytes()  # type: ignore[attr-defined]
                if len(value) != sizes[index]:
                    raise TypeError(f"{self._label(index)} takes {sizes[index]} bytes, got {len(value)} ({argument!r})")
                arguments.append(value)
        module.launch(self.name, grid, block, arguments, shared_mem)

    def _launch_on_copies(
        self,
        device: torch.device,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        args: Sequence[object],
        shared_mem: int,
    ) -> None:
        """Runs on the emulator with copies of CUDA tensors. Views that share a storage still share one."""
        storages: dict[int, torch.UntypedStorage] = {}
        copies = []
        for argument in args:
            if isinstance(argument, torch.Tensor):
                storage = argument.untyped_storage()
                if storage.data_ptr() not in storages:
                    storages[storage.data_ptr()] = storage.cpu()
                view = torch.empty(0, dtype=argument.dtype).set_(
                    storages[storage.data_ptr()], argument.storage_offset(), argument.shape, argument.stride()
                )
                copies.append(view)
            else:
                copies.append(argument)
        variables = self.module._variables(device)
        for here, there in variables:
            here.copy_(there)
        self._launch_emulated(grid, block, copies, shared_mem)
        for here, there in variables:
            there.copy_(here)
        for argument, copy, parameter in zip(args, copies, self.parameters, strict=True):
            if isinstance(argument, torch.Tensor) and not (parameter.pointer and parameter.const):
                argument.detach().copy_(copy)

    # ---- CuPy

    def _launch_cupy(
        self,
        device: torch.device,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        args: Sequence[object],
        shared_mem: int,
    ) -> None:
        import cupy

        index = device.index or 0
        with cupy.cuda.Device(index), _torch_stream(cupy, device):
            kernel = self.module._cupy(index).get_function(self.name)
            if shared_mem > DEFAULT_SHARED:
                limit = shared_memory_limit(device)
                self._check_shared(shared_mem, kernel.shared_size_bytes, limit, torch.cuda.get_device_name(index))
                kernel.max_dynamic_shared_size_bytes = shared_mem
            values = tuple(np.uint64(a.data_ptr()) if isinstance(a, torch.Tensor) else a for a in args)
            kernel(grid, block, values, shared_mem=shared_mem)

    def _check_shared(self, dynamic: int, static: int, limit: int, device: str) -> None:
        if dynamic + static > limit:
            asked = f"{dynamic:,} bytes of dynamic" + (f" and {static:,} bytes of static" if static else "")
            raise LaunchError(
                f"{self.name}() asks for {asked} shared memory per block; {device} has {limit:,} bytes: "
                "use smaller tiles"
            )


# ---- helpers


@functools.cache
def shared_memory_limit(device: torch.device) -> int:
    """Bytes of shared memory that one block can have on this device."""
    if device.type == "cpu":
        return SHARED_LIMIT
    return _import_cupy().cuda.Device(device.index or 0).attributes["MaxSharedMemoryPerBlockOptin"]


def _or(dtypes: Sequence[torch.dtype]) -> str:
    return " or ".join(map(str, dtypes))


def _dimensions(name: str, value: Sequence[int], limits: tuple[int, int, int]) -> tuple[int, int, int]:
    if not isinstance(value, (tuple, list)) or not 1 <= len(value) <= 3:
        raise ValueError(f"{name} takes one to three positive ints such as (4,) or (4, 2, 1), got {value!r}")
    if not all(isinstance(n, (int, np.integer)) and n > 0 for n in value):
        raise ValueError(f"{name} takes one to three positive ints, got {value!r}")
    x, y, z = (*map(int, value), 1, 1)[:3]
    if x > limits[0] or y > limits[1] or z > limits[2]:
        raise LaunchError(
            f"{name} {(x, y, z)} is too large: the limits are {limits}"
            + (f", and {THREAD_LIMIT} threads in all" if name == "block" else "")
        )
    return x, y, z


def _require_architecture(name: str, needed: Architecture, device_index: int) -> None:
    found = _found_architecture(device_index)
    if found < needed.number or (needed.exact and found != needed.number):
        raise LaunchError(
            f"{name} needs {needed}{' exactly' if needed.exact else ' or newer'}; "
            f"{torch.cuda.get_device_name(device_index)} is an sm_{found}"
        )


@functools.cache
def _found_architecture(device_index: int) -> int:
    major, minor = torch.cuda.get_device_capability(device_index)
    return 10 * major + minor


def _import_cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise LaunchError(
            f"CUDA tensors need CuPy, which cannot be imported here ({error}): "
            f"pip install 'cupy-cuda{_cuda_major()}x[ctk]', "
            "or use CPU tensors, which run on the emulator; `python -m course_utils doctor` says more"
        ) from error
    built_for = cupy.cuda.runtime.runtimeGetVersion() // 1000
    driver = cupy.cuda.runtime.driverGetVersion() // 1000
    if built_for > driver:
        raise LaunchError(
            f"CuPy was built for CUDA {built_for}, but the driver supports CUDA {driver}: update the driver, "
            f"or pip install 'cupy-cuda{driver}x[ctk]'"
        )
    return cupy


def _cuda_major() -> str:
    return (torch.version.cuda or "13").split(".")[0]


def _torch_stream(cupy: Any, device: torch.device) -> Any:
    stream = torch.cuda.current_stream(device)
    return (
        cupy.cuda.Stream.from_external(stream)
        if hasattr(cupy.cuda.Stream, "from_external")
        else cupy.cuda.ExternalStream(stream.cuda_stream, device.index or 0)
    )
