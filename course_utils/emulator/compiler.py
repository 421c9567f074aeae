"""Finds a host C++ compiler and keeps what it builds: the runtime once, each kernel once per source and options.

Any of g++, clang++ or the `ziglang` wheel will do; `COURSE_EMULATOR_CXX` (or `CXX`) names another.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from course_utils.emulator.cuda_headers import cuda_folder
from course_utils.emulator.exact import exact
from course_utils.toolchain.cache import cache_folder
from course_utils.toolchain.errors import CompileError
from course_utils.toolchain.source import INCLUDE_LINE

HERE = Path(__file__).resolve().parent
PRELUDE = "emu_prelude.h"  # what every kernel begins with
PRELUDE_FLOAT16 = "emu_prelude_float16.h"  # the same, precompiled with cuda_fp16.h and cuda_bf16.h
NVRTC_MACROS = "emu_nvrtc.h"  # and what follows it
OPTIONS = "emu_options.h"  # the macros of a kernel's options, and after them its first line
CUDA_HEADERS = "cuda_toolkit"  # what the folder of NVIDIA's headers is called in an #include of the emulator's own
_OF_FLOAT16 = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"](cuda_(fp|bf)16|cuda_fp[468]|mma)\.h', re.MULTILINE)
FOR_HOPPER = "-DEMU_HOPPER=1"  # the option of a kernel for sm_90a
RUNTIME_FILES = tuple(  # from low to high, as the head of worker.cpp says
    f"{name}.cpp"
    for name in (
        "fiber",
        "findings",
        "block",
        "heap",
        "undefined",
        "async_counters",
        "async_rules",
        "recorder",
        "barriers",
        "wgmma",
        "counters",
        "fences",
        "races",
        "trace",
        "async_copy",
        "bulk_copy",
        "worker",
    )
)


class HostRefusal(CompileError):
    """The host compiler does not take a kernel: its words are the message, and the `log`."""


class Build(Enum):
    """What a kernel is built for: to run; for the sanitizer and the profiler; to be recorded."""

    PLAIN = "plain"
    TRACED = "traced"
    RECORDED = "recorded"


@dataclass(frozen=True)
class Compiler:
    """`kind` is "gcc", "clang" or "zig"; `command` starts a compilation, `identity` tells two versions apart;
    `machine`: the processor that it builds for, in the words of platform.machine()."""

    kind: str
    command: tuple[str, ...]
    identity: str
    machine: str = platform.machine()

    @property
    def is_for_arm(self) -> bool:
        return self.machine in ("aarch64", "arm64")

    def describe(self) -> str:
        """For a person."""
        return f"{' '.join(self.command)} ({self.identity})"


def _zig() -> Compiler | None:
    if importlib.util.find_spec("ziglang") is None:
        return None
    from importlib.metadata import version

    return Compiler("zig", (sys.executable, "-m", "ziglang", "c++"), f"ziglang {version('ziglang')}")


def _on_path(command: str) -> Compiler | None:
    words = shlex.split(command)
    if words == ["zig"]:
        return _zig()
    if not words or shutil.which(words[0]) is None:
        return None
    try:
        said = subprocess.run([*words, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (subprocess.SubprocessError, OSError):
        return None
    kind = "clang" if "clang" in said else "gcc"
    return Compiler(kind, tuple(words), said.splitlines()[0] if said else words[0])


@functools.cache
def find_compiler(command: str | None = None) -> Compiler:
    """The compiler to use: `command` ("g++", "clang++", "zig"), or the first that this machine has.

    Raises CompileError where there is none.
    """
    if command is None:
        command = os.environ.get("COURSE_EMULATOR_CXX") or os.environ.get("CXX")
    if command:
        found = _on_path(command)
        if found is None:
            raise CompileError(
                f"the C++ compiler {command!r} (argument, COURSE_EMULATOR_CXX or CXX) was not found or does not run"
            )
        return found
    found = _on_path("g++") or _on_path("clang++") or _zig()
    if found is None:
        raise CompileError("the emulator needs a C++ compiler: install g++ or clang++, or `pip install ziglang`")
    return found


@functools.cache
def _processor() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return "".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))


@functools.cache
def _own_files() -> str:
    """The hash of all files that go into a build, besides the kernel. compiler.py is one: it has the linker's flags."""
    python = [HERE / "compiler.py", HERE / "exact.py"]
    headers = (file for file in HERE.glob("include/**/*") if file.is_file())
    files = sorted([*HERE.glob("runtime/*"), *headers, *python])
    parts = [part for file in files for part in (str(file.relative_to(HERE)).encode(), file.read_bytes())]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _key(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, (*parts, _processor(), _own_files()))).encode()).hexdigest()[:24]


def exact_compiler(compiler: Compiler) -> Compiler:
    """What builds kernels in which a float that does not fit into an integer, and a shift by too many bits, become what
    they become on a GPU: clang, by exact.py. g++ only finds them.

    Raises CompileError where there is none.
    """
    if compiler.kind != "gcc":
        return compiler
    found = _on_path("clang++") or _zig()
    if found is None:
        raise CompileError(
            "a float became an integer that it does not fit into, or a shift was by too many bits. A GPU defines what "
            "this gives, and C++ does not: for the emulator to give the same, `pip install ziglang`, or install clang++"
        )
    return found


def _kernel_flags(compiler: Compiler, build: Build) -> list[str]:
    """The flags of the runtime, and those that only kernels need."""
    flags = _flags(compiler, build)
    if compiler.is_for_arm:  # which goes on from a division by zero, where x86 stops: runtime/undefined.cpp
        by_zero = "integer-divide-by-zero"
        flags += [f"-fsanitize={by_zero}", f"-fno-sanitize-recover={by_zero}"]
        flags += [f"-fno-sanitize-trap={by_zero}"] if compiler.kind != "gcc" else []
    if compiler.kind != "gcc":
        return [*flags, "-fno-strict-float-cast-overflow"]  # exact.py
    undefined = "float-cast-overflow,shift-exponent"
    return [*flags, f"-fsanitize={undefined}", f"-fno-sanitize-recover={undefined}"]  # runtime/undefined.cpp


def _flags(compiler: Compiler, build: Build = Build.PLAIN) -> list[str]:
    # No contraction to FMA and no type-based aliasing: a kernel gives the same bits with every compiler, and may
    # reinterpret floats as CUDA code does. Integers wrap, as PTX says. Endless loops stay endless (C++ would let the
    # compiler delete them).
    flags = ["-std=c++17", "-O2", "-fPIC", "-fno-exceptions", "-fno-rtti", "-w", "-gdwarf-4"]
    flags += ["-march=native"] if compiler.machine == platform.machine() else []
    # A function of libgcc would choose between an ARM's two kinds of atomic instructions: nothing links libgcc.
    flags += ["-mno-outline-atomics"] if compiler.is_for_arm else []
    flags += [
        "-ffp-contract=off",
        "-fsigned-char",
        "-fno-strict-aliasing",
        "-fwrapv",
        "-fno-finite-loops",
        "-fno-threadsafe-statics",
    ]
    # A local array larger than a page must not reach over the guard page below a stack. Without sibling calls, a crash
    # in a function of libc finds the line that called it.
    flags += ["-fstack-clash-protection", "-fno-optimize-sibling-calls"]
    # g++ for ARM takes that page for 64 KiB.
    if compiler.is_for_arm and compiler.kind == "gcc":
        flags += ["--param=stack-clash-protection-guard-size=12"]
    # Without stubs for calls into the runtime: the time limit may end a kernel there, and a stub has no line.
    flags += ["-fno-plt"]
    # g++ would let functions that do the same share their code, and with it their line; and all libraries the shared
    # variables of an inline function or a template of one name.
    flags += ["-g1", "-fno-ipa-icf", "-fno-gnu-unique"] if compiler.kind == "gcc" else ["-gline-tables-only"]
    # zig checks for undefined behaviour unasked, and takes asserts out of what it optimizes.
    flags += ["-fno-sanitize=undefined", "-UNDEBUG"] if compiler.kind == "zig" else []
    if build is Build.PLAIN:
        return flags
    if build is Build.TRACED:
        return flags + _traced_flags(compiler)
    return [*flags, "-DEMU_RECORDED=1", *(_recorded_flags if compiler.kind == "gcc" else _traced_flags)(compiler)]


def _recorded_flags(compiler: Compiler) -> list[str]:
    """For a build in which each variable of the source is in memory, at a place of its own, for the whole of its life,
    and of which the runtime hears where functions begin and end: g++ alone is asked for that."""
    flags = ["-DEMU_TRACED=1", "-fsanitize=thread", "--param=tsan-distinguish-volatile=1", "-O0", "-g2"]
    flags += ["-fno-omit-frame-pointer"]
    # g++ leaves out functions that touch no memory and call none, unless somebody else wants to hear of these, too.
    flags += ["-finstrument-functions", "-finstrument-functions-exclude-file-list=/emulator/include/"]
    # From version 12 on it fills arrays with the widest stores that there are. The stack is not aligned for those, and
    # in a function that could need it variables are counted from the stack's end, not from the frame's register.
    version = re.search(r"\) (\d+)\.", compiler.identity)
    if compiler.machine in ("x86_64", "AMD64") and version and int(version[1]) >= 12:
        flags += ["-mmove-max=128", "-mstore-max=128"]
    return flags


def _traced_flags(compiler: Compiler) -> list[str]:
    """For a build that reports its memory accesses to runtime/trace.cpp, each as wide as the source has it."""
    flags = ["-DEMU_TRACED=1", "-fsanitize=thread"]
    if compiler.kind == "gcc":
        # -O2 would cut a store of `inside ? x : 0` in two, one in each branch: two requests of a warp, where nvcc makes
        # one; and large kernels would take longer to build. With these two of its steps -O1 runs as many instructions,
        # as a rule within 2 %. What the headers do unseen, such as products, has -O2 (EMU_UNSEEN).
        flags += ["-O1", "-fcaller-saves", "-fgcse"]
        flags += ["-fsanitize=bounds-strict,alignment", "-fsanitize-recover=all"]
        flags += ["-fno-tree-vectorize", "-fno-tree-slp-vectorize", "-fno-store-merging"]
        return [*flags, "--param=tsan-instrument-func-entry-exit=0", "--param=tsan-distinguish-volatile=1"]
    checks = "array-bounds,alignment"
    flags += [f"-fsanitize={checks}", "-fno-sanitize-trap=all", f"-fsanitize-recover={checks}"]
    flags += ["-fno-vectorize", "-fno-slp-vectorize"]
    for setting in ("func-entry-exit=0", "read-before-write=1", "atomics=0"):
        flags += ["-mllvm", f"-tsan-instrument-{setting}"]
    return [*flags, "-mllvm", "-tsan-distinguish-volatile=1"]


def _run(command: list[str], what: str, folder: Path) -> None:
    zig_cache = str(cache_folder() / "zig")
    environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": zig_cache, "ZIG_LOCAL_CACHE_DIR": zig_cache, "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    if done.returncode:
        raise CompileError(f"{what} did not compile:\n{done.stderr.strip()}", done.stderr)


def _link(compiler: Compiler, output: str, objects: list[str], folder: Path) -> None:
    # Nothing but libc and libm is needed, and Python has both loaded. zig would build its own copies first: 50 s.
    linker = ["cc" if compiler.kind == "zig" and word == "c++" else word for word in compiler.command]
    # A kernel may be called index or time: -Bsymbolic keeps libc's functions of these names out of its way.
    command = [*linker, "-shared", "-nostdlib", "-Wl,-Bsymbolic", f"-Wl,-soname,{output}", "-o", output, *objects]
    _run(command, "a shared library", folder)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Lets one process build what all need on a new machine, while the other processes wait."""
    with open(cache_folder() / "lock", "w") as file:
        with contextlib.suppress(OSError):  # a file system without locks: then each builds it
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build_runtime(compiler: Compiler) -> Path:
    """The shared library of the runtime, built at the first use (a few seconds)."""
    library = cache_folder() / f"runtime-{_key(compiler, _flags(compiler))}.so"
    if library.exists():
        return library
    with _alone(), tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
        if library.exists():
            return library
        objects = []
        for name in RUNTIME_FILES:
            objects.append(f"{name}.o")
            source = str(HERE / "runtime" / name)
            command = [*compiler.command, *_flags(compiler), "-pthread", "-c", source, "-o", objects[-1]]
            _run(command, "the emulator's runtime", Path(folder))
        _link(compiler, library.name, objects, Path(folder))
        os.replace(Path(folder) / library.name, library)
    return library


def _build_prelude(compiler: Compiler, flags: list[str], prelude: str) -> Path:
    """A prelude as g++ has read it with these flags. Its folder comes first on the search path: where g++ cannot take
    it, as with an option that defines a name of the prelude, it goes on to the text."""
    built = cache_folder() / f"prelude-{_key(compiler, flags)}" / f"{prelude}.gch"
    if built.exists():
        return built
    with _alone(), tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
        if not built.exists():
            source = str(HERE / "include" / prelude)
            with_flags = [*compiler.command, *flags, "-x"]
            _run([*with_flags, "c++-header", source, "-o", built.name], "the emulator's headers", Path(folder))
            try:
                use = [*with_flags, "c++", "-fsyntax-only", "-I.", "-include", prelude, os.devnull]
                _run(use, "the emulator's headers", Path(folder))
            except CompileError:  # g++ wants it at the same address again, which not every machine has free
                (Path(folder) / built.name).write_bytes(b"")  # then it reads the text
            built.parent.mkdir(exist_ok=True)
            os.replace(Path(folder) / built.name, built)
    return built


def shared_builds(compiler: Compiler) -> list[Path]:
    """What all kernels up to sm_80 share, built where it is not yet: for a process that cannot keep what it builds.

    Raises CompileError.
    """
    built = [build_runtime(compiler)]
    if compiler.kind == "gcc":
        built += [
            _build_prelude(compiler, _kernel_flags(compiler, build), prelude)
            for build in (Build.PLAIN, Build.TRACED)
            for prelude in (PRELUDE, PRELUDE_FLOAT16)
        ]
    return built


def _compile(compiler: Compiler, flags: list[str], prelude: list[str], name: str, folder: Path) -> None:
    """kernels.o of kernels.cpp: by clang with a GPU's conversions and shifts."""
    command = [*compiler.command, *flags]
    if compiler.kind == "gcc":
        _run([*command, *prelude, "-c", "kernels.cpp", "-o", "kernels.o"], name, folder)
        return
    ir = folder / "kernels.ll"
    _run(
        [*command, *prelude, *"-Xclang -disable-llvm-passes -S -emit-llvm kernels.cpp -o".split(), ir.name],
        name,
        folder,
    )
    ir.write_text(exact(ir.read_text(encoding="utf-8")), encoding="utf-8")
    _run([*command, "-c", ir.name, "-o", "kernels.o"], name, folder)


def _own_headers(texts: Iterable[str]) -> list[str]:
    """CUDA's headers that these texts include and that are the emulator's own: their names may be a kernel's macros."""
    include = HERE / "include"
    own = {file.relative_to(include).as_posix() for file in include.rglob("*.h")}  # no name that leads out of here
    named = {name for text in texts for name in INCLUDE_LINE.findall(text)}
    return sorted(name for name in named & own if not name.startswith(("emu_", "cuda/")))


def _definitions(options: list[str]) -> tuple[list[str], str]:
    """The options for the compiler, and the other macros as text: -DT=4 must not reach the headers. NDEBUG, and names
    that begin with two underscores, are meant for them."""
    flags, lines = [], []
    for option in options:
        macro = re.fullmatch(r"-([DU])([A-Za-z]\w*|_[A-Za-z]\w*)(\(.*?\))?(?:=(.*))?", option, re.DOTALL)
        if not macro or option == FOR_HOPPER or macro[2] == "NDEBUG":
            flags.append(option)
        elif macro[1] == "D":
            lines.append(f"#define {macro[2]}{macro[3] or ''} {'1' if macro[4] is None else macro[4]}\n")
        else:
            lines.append(f"#undef {macro[2]}\n")
    return flags, "".join(lines)


def build_kernels(
    compiler: Compiler,
    text: str,
    headers: dict[str, str],
    options: list[str],
    name: str,
    build: Build,
    runtime: Path,
) -> Path:
    """The shared library of a translated kernel file. runtime: what it calls.

    Raises HostRefusal with the compiler's log.
    """
    of_prelude = [*_kernel_flags(compiler, build), *(option for option in options if option == FOR_HOPPER)]
    for_compiler, definitions = _definitions(options)
    flags = [*_kernel_flags(compiler, build), *for_compiler]
    parts = flags, definitions, runtime.name, text, sorted(headers.items())
    library = cache_folder() / f"kernels-{_key(compiler, *parts)}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
            for header, content in headers.items():
                (Path(folder) / header).write_text(content, encoding="utf-8")
            (Path(folder) / "kernels.cpp").write_text(text, encoding="utf-8")
            (Path(folder) / OPTIONS).write_text(definitions, encoding="utf-8")
            (Path(folder) / CUDA_HEADERS).symlink_to(cuda_folder())
            begins_with, places = PRELUDE, []
            if compiler.kind == "gcc":
                if any(_OF_FLOAT16.search(each) for each in (text, *headers.values())):
                    begins_with = PRELUDE_FLOAT16
                places = [_build_prelude(compiler, of_prelude, begins_with).parent]
            first = begins_with, NVRTC_MACROS, *_own_headers((text, *headers.values())), OPTIONS
            prelude = [word for header in first for word in ("-include", header)]
            prelude += [f"-I{place}" for place in (*places, ".", HERE / "include")]
            prelude += ["-isystem", f"{CUDA_HEADERS}/cccl"]
            try:
                _compile(compiler, flags, prelude, name, Path(folder))
            except CompileError as error:
                raise HostRefusal(str(error), error.log) from None
            _link(compiler, library.name, ["kernels.o", str(runtime)], Path(folder))
            os.replace(Path(folder) / library.name, library)
    return library
