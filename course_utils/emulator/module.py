"""A compiled kernel file, loaded into this process and ready to launch."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from course_utils.emulator import launch, report, watching
from course_utils.emulator.compiler import (
    FOR_HOPPER,
    Build,
    Compiler,
    HostRefusal,
    build_kernels,
    build_runtime,
    exact_compiler,
    find_compiler,
)
from course_utils.emulator.debug_lines import DebugLines
from course_utils.emulator.frames import Function, functions, shared_variables
from course_utils.emulator.library_tables import Symbol, asked_for, symbols
from course_utils.emulator.memory import Array, DeviceMemory, Mapped
from course_utils.emulator.raw_recording import RECORDING_BYTES
from course_utils.emulator.sanitizer import Finding
from course_utils.emulator.shortfalls import shortfall
from course_utils.emulator.struct_members import Member
from course_utils.emulator.trace_results import RESULTS_BYTES
from course_utils.emulator.tracing import Sanitizer
from course_utils.emulator.translate import Translation, translate
from course_utils.emulator.watching import LaunchTrace, Watch
from course_utils.toolchain.errors import CompileError, KernelError, LaunchError
from course_utils.toolchain.source import (
    HOPPER,
    INCLUDE,
    Architecture,
    find_kernels,
    own_folder,
    required_architecture,
    source_name,
)
from course_utils.toolchain.verdict import Verdict

DEVICE = Architecture(80)  # for all kernels but those for HOPPER
KNOWN = Architecture(89)  # kernels up to here run too: of what they add, it knows the products of E4M3
MOST_IN_A_CLUSTER = 8
LONG_OPTIONS = {"--define-macro": "-D", "--undefine-macro": "-U", "--include-path": "-I"}
_OF_MBARRIERS = re.compile(r"^\s*#\s*include\s*<cuda(/barrier|/pipeline|_awbarrier|_pipeline)", re.MULTILINE)
_OF_ARITHMETIC = re.compile(r"--?(use_fast_math|ftz=true|prec-(div|sqrt)=false)$")  # what only a GPU follows
SHARED_LIMIT = 227 * 1024  # bytes per block, as on sm_90


@functools.cache
def _load_runtime(path: Path) -> None:
    """Loads the runtime, without which this process cannot load a kernel library to look into it."""
    ctypes.CDLL("libm.so.6", mode=ctypes.RTLD_GLOBAL)  # the libraries name no libm: see compiler._link
    runtime = ctypes.CDLL(str(path))
    for bytes_of in (runtime.emu_report_bytes, runtime.emu_trace_results_bytes, runtime.emu_recording_bytes):
        bytes_of.restype = ctypes.c_uint64
    assert runtime.emu_report_bytes() == report.REPORT_BYTES, "report.py and report.h disagree"
    assert runtime.emu_trace_results_bytes() == RESULTS_BYTES, "trace_results.py and trace_results.h disagree"
    assert runtime.emu_recording_bytes() == RECORDING_BYTES, "raw_recording.py and recording.h disagree"


def _load(library: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(library))


def _host_options(options: tuple[str, ...]) -> list[str]:
    """The options of NVRTC that mean something to a host compiler: -D, -U and -I."""
    kept: list[str] = []
    words = iter(options)
    for word in words:
        if word in ("-D", "-U", "-I"):
            kept.append(word + next(words, ""))
        elif word[:2] in ("-D", "-U", "-I"):
            kept.append(word)
        elif (long := word.partition("="))[0] in LONG_OPTIONS:
            kept.append(LONG_OPTIONS[long[0]] + long[2])
    return [
        word.replace("-I", "-I" + str(Path.cwd()) + "/", 1) if _is_relative_include(word) else word for word in kept
    ]


def _is_relative_include(word: str) -> bool:
    return word.startswith("-I") and not word[2:].startswith("/")


def presented_architecture(code: str) -> Architecture:
    """As what the emulated device presents itself to a kernel."""
    needed = required_architecture(code)
    return needed if needed.exact or needed.number > DEVICE.number else DEVICE


def _architectures(presented: Architecture) -> list[str]:
    """For which of them a kernel must compile, one at least: where its header does not name the only one, it may use
    what newer ones have, and either the emulator knows that, too, or it says that it does not."""
    newer = () if presented.exact else (KNOWN.number, HOPPER.number)
    return [str(presented), *(f"sm_{number}" for number in newer if number > presented.number)]


def _index(block: int, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    """(x, y, z) of a block's number in the grid."""
    return block % grid[0], block // grid[0] % grid[1], block // (grid[0] * grid[1])


class _Library:
    """A compiled kernel file, loaded into this process."""

    def __init__(
        self,
        translated: Translation,
        options: list[str],
        name: str,
        runtime_path: Path,
        compiler: Compiler,
        build: Build,
    ) -> None:
        self._translated = translated
        self._name = name
        self._is_of_gcc = compiler.kind == "gcc"
        self.path = build_kernels(
            compiler, translated.text, translated.headers, options, name, build, runtime=runtime_path
        )
        self.runtime_path = runtime_path
        _load_runtime(self.runtime_path)
        try:
            self.functions = _load(self.path)
        except OSError as error:
            missing = re.search(r"undefined symbol: (\S+)", str(error))
            if missing is None:
                raise
            raise CompileError(f"{name} uses {missing[1]}, which is declared but defined nowhere") from None

    def entry(self, prefix: str, function: str) -> str:
        """The name of the C function behind a kernel. Raises LookupError where the preprocessor left the kernel out."""
        entries = self._translated.entries
        index = entries.index(function if function in entries else function.split("::")[-1])
        symbol = f"{prefix}_{index}"
        if symbol not in self.symbols:
            raise LookupError(f"{self._name}: the preprocessor leaves {function}() out with these options")
        return symbol

    @property
    def symbols(self) -> dict[str, Symbol]:
        return symbols(self.path)

    @property
    def has_fences(self) -> bool:
        """Whether something in it calls a fence, or releases by st.release."""
        return "emu_fence" in asked_for(self.path)

    def first_bytes(self, variable: Symbol) -> bytearray:
        """What a __device__ or __constant__ variable starts with in this process."""
        here = ctypes.cast(self.functions.emu_dynamic_shared_base, ctypes.c_void_p).value
        load_address = here - self.symbols["emu_dynamic_shared_base"].offset
        return bytearray(ctypes.string_at(load_address + variable.offset, variable.size))

    @functools.cached_property
    def statics(self) -> list[tuple[int, int, bool]]:
        """(offset in shared memory, bytes, is_guard) of each __shared__ variable.

        A guard is a word by which g++ remembers that it has set up an array of class type.
        """
        return [(symbol.offset, symbol.size, name.startswith("_ZGV")) for name, symbol in self._static_symbols]

    @property
    def named_statics(self) -> list[tuple[str, int, Member | None]]:
        """The name in the source, the bytes, and if known the members or elements of each of the `statics`."""
        of_offset = shared_variables(self.path)
        found = []
        for name, symbol in self._static_symbols:
            local = re.search(r"E(\d+)([A-Za-z_]\w*)$", name)  # the Itanium ABI's _ZZ ... E <length> <variable>
            found.append((local[2][: int(local[1])] if local else name, symbol.size, of_offset.get(symbol.offset)))
        return found

    @functools.cached_property
    def recorded_functions(self) -> list[Function]:
        """Whose variables a recording has: only a library that is built for it says where they are."""
        return functions(self.path)

    @functools.cached_property
    def statements(self) -> list[int]:
        """Where the code of another line or column begins, ascending, for a recording: only g++ makes it ask."""
        return [row.low for row in self.lines.rows] if self._is_of_gcc else []

    @property
    def _static_symbols(self) -> list[tuple[str, Symbol]]:
        return [
            (name, symbol)
            for name, symbol in self.symbols.items()
            if symbol.kind == "STT_TLS" and symbol.size and name != "emu_dynamic_shared"
        ]

    @property
    def entry_code(self) -> list[tuple[int, int]]:
        """From where to where the functions behind the kernels go."""
        entries = [symbol for name, symbol in self.symbols.items() if name.startswith("emu_call_")]
        return [(symbol.offset, symbol.offset + symbol.size) for symbol in entries]

    @functools.cached_property
    def lines(self) -> DebugLines:
        return DebugLines(self.path, self._translated.originals, self._translated.wrapped)


class EmulatedModule:
    """The kernels of one source text.

    code: CUDA C++; options: as for NVRTC; name_expressions: which template instances to build, e.g. "scale<float, 4>".
    compiler: "g++", "clang++" or "zig"; None takes the first one there is. Raises LaunchError, and CompileError: in the
    words of NVIDIA's compiler for what is no CUDA, where NVRTC is installed; else it says what the emulator lacks.
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
        presented = presented_architecture(code)
        hopper = presented == HOPPER
        if not hopper and (presented.exact or presented.number > KNOWN.number):
            raise LaunchError(
                f"{self.name} needs {presented}{' exactly' if presented.exact else ' or newer'}; "
                f"the CPU emulator is an {DEVICE}: run it with CUDA tensors on such a GPU"
            )
        if ignored := " ".join(filter(_OF_ARITHMETIC.match, options)):
            message = (
                f"{self.name}: the emulator does not follow {ignored}, a GPU does: digits and denormals may differ"
            )
            warnings.warn(message, stacklevel=2)
        host_options = [*_host_options(options), *([FOR_HOPPER] if hopper else [])]
        search_path = own_folder(code) + [Path(word[2:]) for word in host_options if word.startswith("-I")] + [INCLUDE]
        self._kernels = find_kernels(code)
        self._libraries: dict[tuple[Compiler, Build], _Library] = {}
        self._hopper = hopper
        self._verdict = Verdict(code, _architectures(presented), options, name_expressions)
        try:
            translated = translate(code, self.name, search_path, name_expressions)
            self._originals = translated.originals
            self._uses_mbarriers = any(_OF_MBARRIERS.search(text) for text in translated.originals.values())
            self._compiler = find_compiler(compiler)
            runtime = build_runtime(self._compiler)
            self._build = functools.partial(_Library, translated, host_options, self.name, runtime)
            # The one that a launch would take here and now: many a module is only ever watched, or never.
            self._first = self._library(Build.TRACED if watching.active() else Build.PLAIN)
        except CompileError:
            self._verdict.is_taken()  # else NVRTC's words are the ones
            raise
        self._verdict.is_taken()

    def _library(self, build: Build) -> _Library:
        """For launches that are watched like that; built at the first of them."""
        key = self._compiler, build
        if key not in self._libraries:
            try:
                self._libraries[key] = self._build(*key)
            except HostRefusal as refused:
                if not self._verdict.is_taken():  # whose fault it is nobody can say: there is no NVRTC
                    raise
                raise CompileError(shortfall(refused.log, self._originals, self.name), refused.log) from None
        return self._libraries[key]

    # ---- looking things up

    @functools.cached_property
    def _globals(self) -> dict[str, launch.Global]:
        """The __device__ and __constant__ variables. Their values belong to this module.

        In the library itself they keep their first values: another module may have loaded the same file.
        """
        found = {}
        for name, symbol in self._first.symbols.items():
            in_section = re.match(r"\.l?(data|bss)\b(?!\.rel\.ro)", symbol.section)
            if in_section and symbol.kind == "STT_OBJECT" and symbol.size:
                first = torch.frombuffer(self._first.first_bytes(symbol), dtype=torch.uint8)
                found[name] = launch.Global(name, first.clone(), first)
        return found

    def global_variables(self) -> list[str]:
        """The names of all __device__ and __constant__ variables."""
        return list(self._globals)

    def global_variable(self, name: str) -> torch.Tensor:
        """The bytes of a __device__ or __constant__ variable, as a uint8 tensor that shares its memory."""
        if name not in self._globals:
            there_are = ", ".join(sorted(n for n in self._globals if not n.startswith("_Z"))) or "none"
            raise KeyError(f"{self.name} has no __device__ or __constant__ variable {name!r}; it has: {there_are}")
        return self._globals[name].value

    def static_shared(self, function: str) -> int:
        """Bytes of `__shared__` variables: the kernel's own, and those of the __device__ functions in the file.

        An upper bound: not every kernel calls every function. For a template, that of its largest instance.
        """
        name = function.split("<")[0].strip()
        instances: dict[str, int] = {}
        for_all = 0
        for symbol, (_, size, kind, _) in self._first.symbols.items():
            if kind != "STT_TLS" or symbol == "emu_dynamic_shared":
                continue
            local = re.match(r"_ZZ(\d+)(\w+)", symbol)  # the Itanium ABI's _ZZ <length> <function> ... E <variable>
            owner = local[2][: int(local[1])] if local else ""
            if owner not in self._kernels:
                for_all += size
            elif owner == name:
                instance = re.sub(r"E\d+[A-Za-z_]\w*$", "", symbol)
                instances[instance] = instances.get(instance, 0) + size
        return for_all + max(instances.values(), default=0)

    def argument_sizes(self, function: str) -> list[int]:
        """The size in bytes of each parameter of a kernel, as the compiler sees it.

        Raises LookupError where the preprocessor left the kernel out.
        """
        sizes = (ctypes.c_int * 256)()
        count = getattr(self._first.functions, self._first.entry("emu_argument_sizes", function))(sizes)
        return sizes[:count]

    def cluster(self, function: str) -> tuple[int, int, int]:
        """How many blocks of a cluster there are in each direction: what `__cluster_dims__` says, or one."""
        sizes = (ctypes.c_uint * 3)(1, 1, 1)
        symbol = f"emu_cluster_{self._first.entry('emu_call', function).removeprefix('emu_call_')}"
        if symbol in self._first.symbols:
            getattr(self._first.functions, symbol)(sizes)
        return sizes[0], sizes[1], sizes[2]

    def _checked_cluster(self, function: str, grid: tuple[int, int, int]) -> tuple[int, int, int]:
        cluster = self.cluster(function)
        if math.prod(cluster) > 1 and not self._hopper:
            raise LaunchError(
                f"{function}: the emulator runs clusters of kernels whose header says `arch: {HOPPER} only`"
            )
        if not 1 <= math.prod(cluster) <= MOST_IN_A_CLUSTER:
            raise LaunchError(f"{function}: a cluster has 1 to {MOST_IN_A_CLUSTER} blocks, got {cluster}")
        if any(blocks % size for blocks, size in zip(grid, cluster, strict=True)):
            raise LaunchError(f"{function}: a grid of {grid} is no multiple of the cluster's {cluster} blocks")
        return cluster

    # ---- launching

    def launch(
        self,
        function: str,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: list[Array | Mapped | bytes],
        shared_mem: int = 0,
    ) -> None:
        """Runs a kernel. Arrays are copied to device memory and, where writable, back; a failed launch changes none of
        them. Inside sanitize() or profile() it is watched, inside record() recorded.

        Raises KernelError for a kernel that crashes, deadlocks or runs out of time.
        """
        watch = watching.watch(grid, function)
        asked = launch.Launch(function, grid, block, self._checked_cluster(function, grid), arguments, shared_mem)
        if watch and self._hopper:
            for client in watch.clients:
                if why := client.refusal(watch):
                    raise LaunchError(f"{self.name} is for {HOPPER}: {why}")
            watch = replace(watch, hopper=True)
        elif watch and watch.sanitize and self._uses_mbarriers:
            watch = replace(watch, hopper=True)  # only asynccheck knows what these order
        if watch and watch.record:
            of_block = _index(watch.blocks[0], grid)
            sanitizer = Sanitizer()
            sanitized = replace(watch, sanitize=True, blocks=(), record=0, preferred=of_block, clients=(sanitizer,))

            def find(time_limit: float | None) -> tuple[Finding, ...]:
                with launch.configure(time_limit=time_limit), contextlib.suppress(KernelError):
                    self._run(asked, sanitized, keep=False)
                return tuple(sanitizer.report.findings)

            self._run(asked, watch, find=find)
        else:
            self._run(asked, watch)

    def _run(
        self,
        asked: launch.Launch,
        watch: Watch | None,
        *,
        keep: bool = True,
        find: Callable[[float | None], tuple[Finding, ...]] = lambda time_limit: (),
    ) -> None:
        """One run of a launch. keep: what it writes; find: runs the same launch for its findings, for a recording,
        which a kernel that does not end has not. It takes a time limit: where this run has failed, that one may not
        end."""
        library = self._library(Build.PLAIN if not watch else Build.RECORDED if watch.record else Build.TRACED)
        again = functools.partial(self._run, asked, watch, keep=keep, find=find)
        if watch and watch.sanitize:
            watch = replace(watch, fences=library.has_fences)
        arrays = [a.array if isinstance(a, Mapped) else a for a in asked.arguments if not isinstance(a, bytes)]
        # A compiler may leave out a variable that nothing uses.
        global_variables = [variable for name, variable in self._globals.items() if name in library.symbols]
        on_a_gpu = watch is not None and not watch.record
        with DeviceMemory(arrays, launch.front_bytes(global_variables, watch), as_on_a_gpu=on_a_gpu) as memory:
            ended = launch.run(
                library.runtime_path,
                library.path,
                asked,
                kernel=library.symbols[library.entry("emu_call", asked.kernel)].offset,
                dynamic_shared_base=library.symbols["emu_dynamic_shared_base"].offset,
                global_variables=global_variables,
                global_offsets=[library.symbols[variable.name].offset for variable in global_variables],
                memory=memory,
                watch=watch,
                statics=library.statics if watch else [],
                functions=library.recorded_functions if watch and watch.record else (),
                statements=library.statements if watch and watch.record else (),
            )
            if ended.report.outcome == report.UNDEFINED:
                self._compiler = exact_compiler(self._compiler)
                return again()
            is_endless = ended.report.outcome == report.TIME_LIMIT or (
                ended.recorded is not None and ended.recorded.full
            )
            has_failed = ended.report.outcome != report.FINISHED
            findings = () if is_endless else find(2 * launch.patience() if has_failed else None)
            if keep:
                launch.keep(ended.report, memory, global_variables)
            for client in watch.clients if watch else ():
                client.take(self._trace(asked, watch, library, memory, ended, findings))
            if ended.report.outcome != report.FINISHED:
                raise report.failure(
                    ended.report,
                    kernel=asked.kernel,
                    exit_status=ended.exit_status,
                    places=lambda program_counter: library.lines.places(program_counter - ended.load_address),
                    source=lambda file: self._originals.get(file, ""),
                    nearest=memory.nearest,
                )
            if keep:
                memory.copy_back()

    def _trace(
        self,
        asked: launch.Launch,
        watch: Watch,
        library: _Library,
        memory: DeviceMemory,
        ended: launch.Ended,
        findings: tuple[Finding, ...],
    ) -> LaunchTrace:
        """What clients take of a launch."""
        trace = LaunchTrace(
            kernel=asked.kernel,
            file=self.name,
            grid=asked.grid,
            block=asked.block,
            shared_mem=asked.shared_mem,
            watch=watch,
            results=ended.traced,
            memory=memory,
            lines=library.lines,
            sources=self._originals,
        )
        if not watch.record:
            return trace
        return replace(
            trace,
            recorded=ended.recorded,
            statics=library.named_statics,
            functions=library.recorded_functions,
            entries=library.entry_code,
            findings=findings,
        )
