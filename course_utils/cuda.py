"""One way to load and launch a kernel: CuPy's `RawModule` for CUDA tensors, the CPU emulator for CPU tensors.

    module = RawModule(code=read_kernel("00_start_here/vector_add.cu"))
    kernel = module.get_function("vector_add")
    kernel((blocks,), (threads,), (a, b, out, np.int32(n)))

The backend follows the arguments, launch by launch, so the same code runs on any machine. Arguments are contiguous
torch tensors on one device and NumPy scalars; both are checked against the kernel's own parameter list before anything
runs. A `ReadyLaunch` is for the operators: the same launch again and again, with other tensors.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from course_utils.arguments import is_capturing
from course_utils.emulator import watching
from course_utils.emulator.memory import Array, Mapped
from course_utils.emulator.module import DEVICE, SHARED_LIMIT, EmulatedModule
from course_utils.toolchain import dependent_launch
from course_utils.toolchain.errors import CompileError, KernelError, LaunchError
from course_utils.toolchain.host_code import DevicePart, device_part
from course_utils.toolchain.parameters import CheckedArguments, Parameters
from course_utils.toolchain.program import about_program
from course_utils.toolchain.serialized import cached_log, refuse_serialized
from course_utils.toolchain.source import (
    INCLUDE,
    Architecture,
    KernelFunction,
    KernelSource,
    Parameter,
    find_kernels,
    include_folders,
    included_files,
    macro_kernels,
    own_folder,
    read_kernel,
    required_architecture,
    source_name,
)
from course_utils.toolchain.tensor_map import BYTES as TENSOR_MAP_BYTES
from course_utils.toolchain.tensor_map import PassedMap, TensorMap, tensor_map

__all__ = [
    "COUNTER",
    "LAID_OUT",
    "PASSED",
    "CompileError",
    "DevicePart",
    "Kernel",
    "KernelError",
    "KernelSource",
    "LaunchError",
    "PassedMap",
    "RawModule",
    "ReadyLaunch",
    "TensorMap",
    "architecture",
    "compiled",
    "device_part",
    "read_kernel",
    "shared_memory_limit",
    "tensor_map",
]

GRID_LIMITS = (2**31 - 1, 65535, 65535)
BLOCK_LIMITS = (1024, 1024, 64)
THREAD_LIMIT = 1024
# In the arguments of a ReadyLaunch, the place of a tensor that each call passes; LAID_OUT: of one that the caller has
# allocated or checked for this launch: contiguous, and always with the same dtype on the same device; COUNTER: of one
# int32 that the launch brings itself, 0 between launches.
PASSED, LAID_OUT, COUNTER = object(), object(), object()
DEFAULT_SHARED = 48 * 1024  # bytes of dynamic shared memory that a kernel gets without asking


class RawModule:
    """The kernels of one source text, compiled for a backend at the first launch there (or by `compile`).

    code: CUDA C++, best from `read_kernel`, so that messages name the file. options: as for NVRTC (`-DD=64`); the
    emulator follows only -D, -U and -I; `kernels/include` is always on the include path, and a kernel with
    `arch: sm_90a only` in its header is compiled for that. name_expressions: template instances, as in CuPy.

    Raises CompileError at once for a file with a program around its kernels (`main`, launches by `<<<...>>>`), with the
    lines that launch the first kernel from Python; `device_part` leaves such host code out.
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
        self.code = code = code[1:] if code.startswith("\ufeff") else code  # what marks a file as UTF-8
        self.options = tuple(options)
        self.name_expressions = tuple(map(_named, name_expressions or ()))
        self.name = source_name(code)
        self._kernels = find_kernels(code)
        if message := about_program(code, self.options):
            raise CompileError(message)
        self._found: dict[str, Kernel] = {}

    def get_function(self, name: str) -> Kernel:
        """The kernel of this name or name expression. Raises LookupError, which lists the kernels of the module."""
        name = _named(name)
        if name not in self._found:
            self._found[name] = self._find(name)
        return self._found[name]

    def _find(self, name: str) -> Kernel:
        function = self._kernels.get(_base(name))
        if (
            function is None
            or not function.bodies
            or (function.template and name not in self.name_expressions)
            or (not function.template and "<" in name)
        ):
            there_are = [k.name for k in self._kernels.values() if k.bodies and not k.template]
            there_are += [name for name in self.name_expressions if _base(name) in self._kernels]
            templates = [k.name for k in self._kernels.values() if k.template and not self.name_expressions]
            hint = f"; templates that need name_expressions: {', '.join(templates)}" if templates else ""
            if macros := macro_kernels(self.code):
                hint += f"; a kernel that a macro writes ({', '.join(macros)}) is not found: write it out"
            if header := self._header_of(_base(name)):
                hint += f"; {_base(name)} is in {header.name}, which it includes: make the module of that file"
            raise LookupError(f"{self.name} has no kernel {name!r}; it has: {', '.join(there_are) or 'none'}{hint}")
        if function.other_line is not None:
            raise LookupError(
                f"{self.name} defines {function.name}() in lines {function.other_line} and {function.line} with "
                "different parameters; arguments are checked before the preprocessor runs: give them two names"
            )
        return Kernel(self, name, function)

    def _header_of(self, kernel: str) -> Path | None:
        """The included file that has a kernel of this name."""
        headers = included_files(self.code, own_folder(self.code) + include_folders(self.options))
        return next((path for path, text in headers.items() if kernel in find_kernels(text)), None)

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
        try:
            return EmulatedModule(self.code, self.options, self.name_expressions)
        except CompileError as error:  # the first one may be in host code beside the kernels
            message = about_program(self.code, self.options, error.log)
            if message is None:
                raise
            raise CompileError(message, error.log) from None

    def _cupy(self, device_index: int) -> Any:
        """CuPy's own RawModule, compiled; CuPy keeps one instance of it per GPU."""
        _require_architecture(self.name, self._architecture, device_index)
        return self._cupy_module

    @functools.cached_property
    def _cupy_module(self) -> Any:
        folder = [f"-I{folder}" for folder in own_folder(self.code)]
        needed = self._architecture
        exact = (
            [f"-arch={needed}"] if needed.exact else []
        )  # by default CuPy leaves out instructions that only this architecture has
        options = ("--std=c++17", "-lineinfo", *exact, *self.options, *folder, f"-I{INCLUDE}")
        said = io.StringIO()
        module = self._compiled_by_cupy(options, said)
        if needed.exact:  # CuPy caches what it compiled, and then logs nothing
            headers = included_files(self.code, [Path(option[2:]) for option in (*folder, f"-I{INCLUDE}")])
            compilation = str(self.code), sorted(headers.values()), self.options, self.name_expressions
            refuse_serialized(
                self.name, cached_log(said.getvalue(), _import_cupy().cuda.nvrtc.getVersion(), *compilation)
            )
        return module

    def _compiled_by_cupy(self, options: Sequence[str], said: io.StringIO) -> Any:
        """CuPy's module, compiled. said: gets what NVRTC logs.

        CuPy finds a kernel with C++ linkage by its name only if that is among the name expressions. NVRTC refuses a
        name that the preprocessor leaves out, or that is in a namespace; the module is then compiled without it. And
        it ends the process where a name meets parameters that it cannot read: so the file alone is compiled first.
        """
        cupy = _import_cupy()
        plain = [k.name for k in self._kernels.values() if k.bodies and not k.template]
        if 'extern "C"' in self.code:
            plain = []

        def attempt(names: tuple[str, ...]) -> tuple[Any, str]:
            """The module, compiled, or what NVRTC says against it."""
            module = cupy.RawModule(code=str(self.code), options=options, name_expressions=names or None)
            try:
                module.compile(log_stream=said)
            except cupy.cuda.compiler.CompileException as error:
                return None, str(error)
            return module, ""

        module, log = attempt(())
        while not log and (names := tuple(dict.fromkeys((*self.name_expressions, *plain)))):
            found, log = attempt(names)
            refused = set(re.findall(r'Input name expression was: "\s*([^"]+?)\s*"', log)) & set(plain)
            if not refused:
                module = found
                break
            plain, log = [name for name in plain if name not in refused], ""
        if log:
            raise CompileError(f"{self.name} did not compile for the GPU:\n{log}", log)
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
        self._parameters = Parameters(name, function.parameters)
        self._gpus: dict[torch.device, _OnGpu] = {}
        self._last: tuple[CheckedArguments, _OnGpu] | None = None  # of the last launch on a GPU

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The kernel's parameters as the source declares them."""
        return self._parameters.parameters

    def __call__(
        self, grid: Sequence[int], block: Sequence[int], args: Sequence[object], *, shared_mem: int = 0
    ) -> None:
        """Launches the kernel: for CUDA tensors on torch's current stream, for CPU tensors on the emulator, to its end.

        Inside `emulator.sanitize()` or `emulator.profile()` it always runs on the emulator, on copies of CUDA tensors.

        grid, block: one to three positive ints; args: torch tensors and NumPy scalars, one per parameter; shared_mem:
        bytes of dynamic shared memory. Raises TypeError or ValueError for arguments that do not fit, LaunchError for a
        launch that the device cannot run, CompileError, and on the emulator KernelError for a kernel that fails.
        """
        self._launch(_size(grid, block, shared_mem), args)

    def _launch(self, size: Size, args: Sequence[object], dependent: bool = False) -> _OnGpu | None:
        """Launches the kernel. Returns it as loaded on a GPU, or None if the emulator ran it.

        dependent: as for a `ReadyLaunch`.
        """
        last = self._last  # read once: another thread may launch the kernel, too
        values = last[0].values(args) if last and not watching.active() else None
        if last is None or values is None:
            device = self._parameters.check(args) or _current_device()
            if device.type == "cpu":
                self._launch_emulated(*size, args)
                return None
            if watching.active():
                self._launch_on_copies(device, *size, args)
                return None
            args = tuple(a.for_gpu() if isinstance(a, TensorMap) else a for a in args)
            last = self._last = CheckedArguments(args, device), self._on(device)
            values = CheckedArguments.checked_values(args)
        checked, gpu = last
        gpu.launch(size, checked, values, gpu.stream(), dependent)
        return gpu

    # ---- the emulator

    def _launch_emulated(
        self, grid: tuple[int, int, int], block: tuple[int, int, int], shared_mem: int, args: Sequence[object]
    ) -> None:
        module = self.module._emulated
        _check_shared(
            self.name, shared_mem, module.static_shared(self.name), SHARED_LIMIT, f"the emulated {DEVICE} device"
        )
        arguments: list[Array | Mapped | bytes] = []
        sizes = module.argument_sizes(self.name)
        for index, argument in enumerate(args):
            name, size = self._parameters.parameters[index].name, sizes[index]
            if isinstance(argument, torch.Tensor):
                writable = not (self.parameters[index].pointer and self.parameters[index].const)
                arguments.append(Array(argument.detach(), index, name, writable))
                continue
            if isinstance(argument, TensorMap):
                arguments.append(Mapped(Array(argument.memory, index, name, writable=True), argument.for_emulator))
                given = TENSOR_MAP_BYTES
            else:
                arguments.append(argument.tobytes())  # type: ignore[attr-defined]
                given = len(arguments[-1])
            if given != size:
                raise TypeError(f"{self._parameters.label(index)} takes {size} bytes, got {given} ({argument!s})")
        module.launch(self.name, grid, block, arguments, shared_mem)

    def _launch_on_copies(
        self,
        device: torch.device,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_mem: int,
        args: Sequence[object],
    ) -> None:
        """Runs on the emulator with copies of CUDA tensors. Views that share a storage still share one."""
        storages: dict[int, torch.UntypedStorage] = {}

        def copied(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in storages:
                storages[storage.data_ptr()] = storage.cpu()
            return torch.empty(0, dtype=tensor.dtype).set_(
                storages[storage.data_ptr()], tensor.storage_offset(), tensor.shape, tensor.stride()
            )

        copies: list[object] = []
        for argument in args:
            if isinstance(argument, TensorMap):
                copies.append(replace(argument, tensor=copied(argument.tensor)))
            else:
                copies.append(copied(argument) if isinstance(argument, torch.Tensor) else argument)
        variables = self.module._variables(device)
        for here, there in variables:
            here.copy_(there)
        self._launch_emulated(grid, block, shared_mem, copies)
        for here, there in variables:
            there.copy_(here)
        for argument, copy, parameter in zip(args, copies, self.parameters, strict=True):
            if isinstance(argument, TensorMap):
                argument.tensor.detach().copy_(copy.tensor)
            elif isinstance(argument, torch.Tensor) and not (parameter.pointer and parameter.const):
                argument.detach().copy_(copy)

    # ---- the GPU

    def _on(self, device: torch.device) -> _OnGpu:
        """The kernel on this GPU, where it is loaded once."""
        if device not in self._gpus:
            self._gpus[device] = _OnGpu(self, device.index or 0)
        return self._gpus[device]


class _OnGpu:
    """A kernel loaded on one GPU, with what all its launches there share."""

    _granting = threading.Lock()

    def __init__(self, kernel: Kernel, index: int) -> None:
        cupy = _import_cupy()
        self._name, self._index, self.device = kernel.name, index, torch.device("cuda", index)
        self._cuda = cupy.cuda
        self._launch, self._context_now = cupy.cuda.driver.launchKernel, cupy.cuda.driver.ctxGetCurrent
        has_dependent = architecture(index) >= dependent_launch.ARCHITECTURE
        self._launch_dependent = dependent_launch.launch_dependent if has_dependent else self._launch
        with self._current():
            self._raw = kernel.module._cupy(index).get_function(kernel.name)
            self._loaded = self._raw.kernel  # held, because the function is unloaded with it
            self._function = self._loaded.ptr
            self._context = self._context_now()
        self._granted = DEFAULT_SHARED

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        """Makes this GPU the thread's current one for a while, also in a thread that has no CUDA context yet."""
        with self._cuda.Device(self._index):
            self._cuda.runtime.setDevice(self._index)
            yield

    def stream(self) -> int:
        """The handle of torch's current stream."""
        return torch.cuda.current_stream(self._index).cuda_stream

    def launch(
        self, size: Size, checked: CheckedArguments, values: Sequence[object], stream: int, dependent: bool
    ) -> None:
        """Launches the kernel. values: of the arguments, for `checked.fill`. dependent: as for a `ReadyLaunch`."""
        grid, block, shared_mem = size
        if shared_mem > self._granted:
            self._grant(shared_mem)
        filled = checked.fill(values)
        settings = *grid, *block, shared_mem, stream, filled[1], 0
        launch = self._launch_dependent if dependent else self._launch
        if self._context_now() == self._context:
            launch(self._function, *settings)
        else:
            with self._current():
                launch(self._function, *settings)
        checked.release(filled)

    def _grant(self, shared_mem: int) -> None:
        """Raises the kernel's limit of dynamic shared memory. Modules of the same code share this limit, so it never
        shrinks."""
        with self._current(), self._granting:
            limit = shared_memory_limit(self.device)
            static = self._raw.shared_size_bytes
            _check_shared(self._name, shared_mem, static, limit, torch.cuda.get_device_name(self._index))
            if self._raw.max_dynamic_shared_size_bytes < shared_mem:
                self._raw.max_dynamic_shared_size_bytes = shared_mem
        self._granted = shared_mem


class ReadyLaunch:
    """A launch that lacks only the tensors of a call: `launch(query, key, value, ...)`. What does not change from call
    to call is checked and laid out for the driver once.

    args: as `Kernel.__call__` takes them, with `PASSED` in the place of each tensor of a call. `LAID_OUT` stands for a
    tensor that the caller allocates or lays out alike for every call: later launches look at its address only. A
    `PassedMap` stands for a tensor of a call that the kernel takes as a tensor map. `COUNTER` stands for one int32 that
    is 0 when the kernel begins, and that the kernel leaves at 0: for blocks that fetch their work. Launches on one
    stream run one after the other and share it; a graph that is being captured may be replayed anywhere, and has its
    own. grid, block, shared_mem and errors: as for `Kernel.__call__`; errors of the size are raised at once.

    dependent: on a GPU that can (sm_90 on), the kernel begins while the one before it in the stream still ends, once
    all blocks of that one have said so, or have ended. Every thread must wait before it reads what that one writes, and
    before it ends: kernels/include/dependent_launch.cuh.

    The tensors of a call are the caller's. The other tensors are recorded on every stream that launches it
    (`Tensor.record_stream`): their memory is not reused before these streams are done with it. Their contents must have
    been computed.
    """

    def __init__(
        self,
        kernel: Kernel,
        grid: Sequence[int],
        block: Sequence[int],
        args: tuple[object, ...],
        shared_mem: int = 0,
        *,
        dependent: bool = False,
    ) -> None:
        self._kernel, self._args, self._size = kernel, args, _size(grid, block, shared_mem)
        self._dependent = dependent
        self._maps = {place: argument for place, argument in enumerate(args) if isinstance(argument, PassedMap)}
        self._laid_out = [
            n for n, a in enumerate(args) if a is LAID_OUT or a is COUNTER or (n in self._maps and a.laid_out)
        ]
        self._passed = [n for n, a in enumerate(args) if a is PASSED or n in self._laid_out or n in self._maps]
        self._counter = next((at for at, n in enumerate(self._passed) if args[n] is COUNTER), None)
        self._tensors = [argument for argument in args if isinstance(argument, torch.Tensor)]
        self._streams: set[int] = set()  # on which the tensors are recorded
        self._launched_once = False
        self._again: tuple[CheckedArguments, _OnGpu] | None = None  # for the next launch on a GPU

    @property
    def kernel(self) -> Kernel:
        """What is launched."""
        return self._kernel

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks of threads."""
        return self._size[0]

    @property
    def block(self) -> tuple[int, int, int]:
        """Threads of a block."""
        return self._size[1]

    @property
    def shared_mem(self) -> int:
        """Bytes of dynamic shared memory."""
        return self._size[2]

    def arguments(self, *tensors: torch.Tensor) -> tuple[object, ...]:
        """What the kernel is launched with for the tensors of a call, in the order of its parameters."""
        if self._counter is not None:
            tensors = *tensors[: self._counter], counter(tensors[0].device), *tensors[self._counter :]
        return self._with_maps(self._filled_in(tensors))

    def __call__(self, *tensors: torch.Tensor) -> None:
        again = self._again
        stream = again[1].stream() if again else None
        if self._counter is not None:
            tensors = *tensors[: self._counter], counter(tensors[0].device, stream), *tensors[self._counter :]
        values = again[0].values(tensors) if again and not watching.active() else None
        if again and values is not None:
            again[1].launch(self._size, again[0], values, stream, self._dependent)
            if self._tensors and stream not in self._streams:
                self._record_tensors(again[1].device)
            return
        args = self._filled_in(tensors)
        gpu = self._kernel._launch(self._size, self._with_maps(args), self._dependent)
        if gpu and self._tensors:
            self._record_tensors(gpu.device)
        if gpu and self._launched_once:  # a launch that runs once need not be prepared for more
            self._again = CheckedArguments(args, gpu.device, self._passed, self._laid_out, self._maps), gpu
        self._launched_once = True

    def _record_tensors(self, device: torch.device) -> None:
        """Records the launch's own tensors on torch's current stream, once."""
        stream = torch.cuda.current_stream(device)
        if stream.cuda_stream not in self._streams:
            for tensor in self._tensors:
                tensor.record_stream(stream)
            self._streams.add(stream.cuda_stream)

    def _filled_in(self, tensors: tuple[torch.Tensor, ...]) -> tuple[object, ...]:
        if len(tensors) != len(self._passed):
            raise TypeError(f"{self._kernel.name}() is ready but for {len(self._passed)} tensors, got {len(tensors)}")
        args = list(self._args)
        for place, tensor in zip(self._passed, tensors, strict=True):
            args[place] = tensor
        return tuple(args)

    def _with_maps(self, args: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(self._maps[place].make(a) if place in self._maps else a for place, a in enumerate(args))


# ---- helpers


def counter(device: torch.device, stream: int | None = None) -> torch.Tensor:
    """What stands for `COUNTER` in a launch. stream: the handle of torch's current one, if it is known."""
    if device.type == "cpu" or is_capturing(device):
        return torch.zeros(1, dtype=torch.int32, device=device)
    if stream is None:  # torch's default stream has the handle 0
        stream = torch.cuda.current_stream(device).cuda_stream
    return _counter_of_stream(device, stream)


@functools.cache
def _counter_of_stream(device: torch.device, stream: int) -> torch.Tensor:
    """In CuPy's memory: torch's would be that of a CUDA graph, if torch.compile is preparing one, and go with it."""
    cupy = _import_cupy()
    with cupy.cuda.Device(device.index or 0), cupy.cuda.Stream(non_blocking=True) as its_own:
        zero = cupy.zeros(1, dtype=cupy.int32)
        its_own.synchronize()
    return torch.from_dlpack(zero)


Size = tuple[tuple[int, int, int], tuple[int, int, int], int]  # grid, block, bytes of dynamic shared memory


def _base(name: str) -> str:
    """The kernel's own name in a name or name expression, such as many of `own::many<3>`."""
    return re.match(r"([\w:]*)", name)[1].split("::")[-1]


def _named(expression: str) -> str:
    """A name or name expression without what does not matter: `&many<3>` is many<3>."""
    return expression.strip().removeprefix("&")


def _size(grid: Sequence[int], block: Sequence[int], shared_mem: int) -> Size:
    """The size of a launch, checked."""
    grid3 = _dimensions("grid", grid, GRID_LIMITS)
    block3 = x, y, z = _dimensions("block", block, BLOCK_LIMITS)
    if x * y * z > THREAD_LIMIT:
        raise LaunchError(f"block {block3} has {x * y * z} threads; a block has at most {THREAD_LIMIT}")
    if not isinstance(shared_mem, (int, np.integer)) or shared_mem < 0:
        raise ValueError(f"shared_mem takes a number of bytes, got {shared_mem!r}")
    return grid3, block3, int(shared_mem)


def _check_shared(kernel: str, dynamic: int, static: int, limit: int, device: str) -> None:
    if dynamic + static > limit:
        asked = f"{dynamic:,} bytes of dynamic" + (f" and {static:,} bytes of static" if static else "")
        raise LaunchError(
            f"{kernel}() asks for {asked} shared memory per block; {device} has {limit:,} bytes: use smaller tiles"
        )


def _current_device() -> torch.device:
    """Where a kernel without tensors runs."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


@functools.cache
def shared_memory_limit(device: torch.device) -> int:
    """Bytes of shared memory that one block can have on this device."""
    if device.type == "cpu":
        return SHARED_LIMIT
    return _import_cupy().cuda.Device(device.index or 0).attributes["MaxSharedMemoryPerBlockOptin"]


def _dimensions(name: str, value: Sequence[int], limits: tuple[int, int, int]) -> tuple[int, int, int]:
    if not isinstance(value, (tuple, list)) or not 1 <= len(value) <= 3:
        raise ValueError(f"{name} takes one to three positive ints such as (4,) or (4, 2, 1), got {value!r}")
    x, y, z = (*value, 1, 1)[:3]
    if not type(x) is type(y) is type(z) is int:  # usually all are ints, and none needs a look of its own
        if not all(isinstance(n, (int, np.integer)) for n in value):
            raise ValueError(f"{name} takes one to three positive ints, got {value!r}")
        x, y, z = int(x), int(y), int(z)
    if x <= 0 or y <= 0 or z <= 0:
        raise ValueError(f"{name} takes one to three positive ints, got {value!r}")
    if x > limits[0] or y > limits[1] or z > limits[2]:
        raise LaunchError(
            f"{name} {(x, y, z)} is too large: the limits are {limits}"
            + (f", and {THREAD_LIMIT} threads in all" if name == "block" else "")
        )
    return x, y, z


def _require_architecture(name: str, needed: Architecture, device_index: int) -> None:
    found = architecture(device_index)
    if found < needed.number or (needed.exact and found != needed.number):
        raise LaunchError(
            f"{name} needs {needed}{' exactly' if needed.exact else ' or newer'}; "
            f"{torch.cuda.get_device_name(device_index)} is an sm_{found}"
        )


@functools.cache
def architecture(device_index: int) -> int:
    """Of a GPU, as compilers write it: 90 for sm_90."""
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
