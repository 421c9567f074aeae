"""A compiled kernel file, loaded into this process and ready to launch."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import NamedTuple

import torch
from elftools.elf.constants import SH_FLAGS
from elftools.elf.elffile import ELFFile

from course_utils.emulator import launch, report
from course_utils.emulator.compiler import build_kernels, build_runtime, find_compiler
from course_utils.emulator.debug_lines import DebugLines
from course_utils.emulator.memory import Array, DeviceMemory
from course_utils.emulator.translate import translate
from course_utils.errors import LaunchError
from course_utils.kernel_source import (
    INCLUDE,
    Architecture,
    KernelSource,
    find_kernels,
    required_architecture,
    source_name,
)

DEVICE = Architecture(80)
SHARED_LIMIT = 227 * 1024  # bytes per block, as on sm_90


@functools.cache
def _load_runtime(path: Path) -> ctypes.CDLL:
    ctypes.CDLL("libm.so.6", mode=ctypes.RTLD_GLOBAL)  # the libraries name no libm: see compiler._link
    runtime = ctypes.CDLL(str(path))
    runtime.emu_report_bytes.restype = ctypes.c_uint64
    assert runtime.emu_report_bytes() == ctypes.sizeof(report.Report), "report.py and report.h disagree"
    return runtime


def _host_options(options: tuple[str, ...]) -> list[str]:
    """Of NVRTC's options, those that mean something to a host compiler: -D, -U and -I."""
    kept: list[str] = []
    words = iter(options)
    for word in words:
        if word in ("-D", "-U", "-I"):
            kept.append(word + next(words, ""))
        elif word[:2] in ("-D", "-U", "-I"):
            kept.append(word)
        elif word.startswith(("--define-macro=", "--include-path=")):
            kept.append(("-D" if word.startswith("--d") else "-I") + word.split("=", 1)[1])
    return [
        word.replace("-I", "-I" + str(Path.cwd()) + "/", 1) if _is_relative_include(word) else word for word in kept
    ]


def _is_relative_include(word: str) -> bool:
    return word.startswith("-I") and not word[2:].startswith("/")


class _Symbol(NamedTuple):
    offset: int
    size: int
    kind: str
    writable: bool


class EmulatedModule:
    """The kernels of one source text.

    code: CUDA C++; options: as for NVRTC; name_expressions: which template instances to build, e.g. "scale<float, 4>".
    compiler: "g++", "clang++" or "zig"; None takes the first one there is. Raises CompileError or LaunchError.
    """

    def __init__(
        self,
        code: str,
        options: tuple[str, ...] = (),
        name_expressions: tuple[str, ...] = (),
        *,
        compiler: str | None = None,
    ) -> None:
        self.name = source_name(code)
        needed = required_architecture(code)
        if needed.exact or needed.number > DEVICE.number:
            raise LaunchError(
                f"{self.name} needs {needed}{' exactly' if needed.exact else ' or newer'}; "
                f"the CPU emulator is an {DEVICE}: run it with CUDA tensors on such a GPU"
            )
        host_options = _host_options(options)
        search_path = [code.path.parent] if isinstance(code, KernelSource) else []
        search_path += [Path(word[2:]) for word in host_options if word.startswith("-I")] + [INCLUDE]
        self._functions = (*[k.name for k in find_kernels(code).values() if not k.template], *name_expressions)
        translated = translate(code, self.name, search_path)
        entries = "".join(f"EMU_ENTRY({i}, {function})\n" for i, function in enumerate(self._functions))
        text = f'{translated.text}#line 1 "emulator"\n#include <emu_entry.h>\n{entries}'
        self._originals = translated.originals

        found = find_compiler(compiler)
        self._path = build_kernels(found, text, translated.headers, host_options, self.name)
        self._runtime = _load_runtime(build_runtime(found))
        self._library = ctypes.CDLL(str(self._path))
        self._load_address = self._address("emu_dynamic_shared_base") - self._symbols["emu_dynamic_shared_base"].offset

    # ---- looking things up

    def _address(self, symbol: str) -> int:
        address = ctypes.cast(getattr(self._library, symbol), ctypes.c_void_p).value
        assert address is not None
        return address

    @functools.cached_property
    def _symbols(self) -> dict[str, _Symbol]:
        """Everything defined in the library, by name."""
        with self._path.open("rb") as handle:
            elf = ELFFile(handle)
            writable = [bool(section["sh_flags"] & SH_FLAGS.SHF_WRITE) for section in elf.iter_sections()]
            return {
                symbol.name: _Symbol(
                    symbol["st_value"], symbol["st_size"], symbol["st_info"]["type"], writable[symbol["st_shndx"]]
                )
                for symbol in elf.get_section_by_name(".symtab").iter_symbols()
                if isinstance(symbol["st_shndx"], int)
            }

    @functools.cached_property
    def _globals(self) -> dict[str, tuple[int, int]]:
        """Name -> (address, bytes) of the __device__ and __constant__ variables."""
        return {
            name: (self._load_address + symbol.offset, symbol.size)
            for name, symbol in self._symbols.items()
            if symbol.kind == "STT_OBJECT" and symbol.writable and symbol.size and not name.startswith("_Z")
        }

    @functools.cached_property
    def _lines(self) -> DebugLines:
        return DebugLines(self._path, self._originals)

    def _locate(self, program_counter: int) -> tuple[str, int] | None:
        return self._lines.locate(program_counter - self._load_address)

    def _source_line(self, file: str, line: int) -> str | None:
        lines = self._originals.get(file, "").splitlines()
        return lines[line - 1].strip() if 0 < line <= len(lines) else None

    def global_variable(self, name: str) -> torch.Tensor:
        """The bytes of a __device__ or __constant__ variable, as a uint8 tensor that shares its memory."""
        if name not in self._globals:
            there_are = ", ".join(sorted(self._globals)) or "none"
            raise KeyError(f"{self.name} has no __device__ or __constant__ variable {name!r}; it has: {there_are}")
        address, size = self._globals[name]
        return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)

    @functools.cached_property
    def static_shared(self) -> int:
        """Bytes of all `__shared__` variables in the file: an upper bound for each of its kernels."""
        return sum(s.size for name, s in self._symbols.items() if s.kind == "STT_TLS" and name != "emu_dynamic_shared")

    def argument_sizes(self, function: str) -> list[int]:
        """The size in bytes of each parameter of a kernel, as the compiler sees it."""
        sizes = (ctypes.c_int * 256)()
        count = getattr(self._library, f"emu_argument_sizes_{self._functions.index(function)}")(sizes)
        return sizes[:count]

    # ---- launching

    def launch(
        self,
        function: str,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: list[Array | bytes],
        shared_mem: int = 0,
    ) -> None:
        """Runs a kernel. Arrays are copied to device memory and, where writable, back; a failed launch changes none of
        them.

        Raises KernelError for a kernel that crashes, deadlocks or runs out of time.
        """
        arrays = [argument for argument in arguments if isinstance(argument, Array)]
        with DeviceMemory(arrays) as memory:
            values = [
                memory.pointer(argument.tensor).to_bytes(8, "little") if isinstance(argument, Array) else argument
                for argument in arguments
            ]
            result, status = launch.run(
                self._runtime,
                kernel=self._address(f"emu_call_{self._functions.index(function)}"),
                dynamic_shared_base=self._address("emu_dynamic_shared_base"),
                global_variables=list(self._globals.values()),
                grid=grid,
                block=block,
                arguments=values,
                shared_mem=shared_mem,
            )
            if result.outcome != report.FINISHED:
                raise report.failure(
                    result,
                    kernel=function,
                    exit_status=status,
                    locate=self._locate,
                    source_line=self._source_line,
                    describe_address=memory.describe,
                )
            memory.copy_back()
