"""Compile kernels with NVIDIA's own compiler, on any machine: neither a GPU nor a driver is needed.

NVRTC and the CUDA headers come from NVIDIA's pip wheels. The result says what the hardware will be asked for
(registers, spills, shared memory), and `occupancy` turns that into how many blocks an SM holds at a time. Nothing is
run here.
"""

import base64
import contextlib
import ctypes
import hashlib
import importlib.metadata
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from cuda.bindings import nvrtc as _nvrtc
from cuda.pathfinder import find_nvidia_header_directory

from course_utils.toolchain import ptx_lines
from course_utils.toolchain.cache import cache_folder
from course_utils.toolchain.errors import CompileError
from course_utils.toolchain.serialized import refuse_serialized
from course_utils.toolchain.source import (
    INCLUDE,
    include_folders,
    included_files,
    own_folder,
    required_architecture,
    source_name,
)

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
"""Compute capabilities, times ten, that every kernel compiles for unless its header says otherwise."""


class NvrtcFailure(CompileError):
    """NVRTC itself failed, as where a part of it is not installed: this says nothing of the kernel."""


class Resources(NamedTuple):
    """What one kernel takes, as `ptxas -v` reports it. Bytes, except `registers` and `barriers`."""

    registers: int  # per thread
    static_shared: int  # per block; dynamic shared memory is chosen at the launch
    spill_stores: int  # per thread: registers that did not fit and went to local memory
    spill_loads: int  # per thread
    stack_frame: int  # per thread: local arrays that could not live in registers
    constant: int  # parameters and constants; 0 where ptxas does not report it
    barriers: int  # per block


class Compiled(NamedTuple):
    """What `compile_kernel` returns."""

    arch: str
    cubin: bytes
    log: str
    resources: Mapping[str, Resources]  # by kernel name, or by the name expression of a template


class SmLimits(NamedTuple):
    """What one streaming multiprocessor (SM) holds at a time."""

    warps: int
    blocks: int
    shared: int  # bytes of shared memory per SM
    shared_per_block: int  # bytes one block may ask for
    shared_reserved: int  # bytes the system takes from each block's share
    shared_granularity: int  # shared memory is handed out in multiples of this many bytes
    registers: int = 65536


SM_LIMITS: Mapping[int, SmLimits] = {
    75: SmLimits(32, 16, 64 << 10, 64 << 10, 0, 256),
    80: SmLimits(64, 32, 164 << 10, 163 << 10, 1024, 128),
    86: SmLimits(48, 16, 100 << 10, 99 << 10, 1024, 128),
    89: SmLimits(48, 24, 100 << 10, 99 << 10, 1024, 128),
    90: SmLimits(64, 32, 228 << 10, 227 << 10, 1024, 128),
    100: SmLimits(64, 32, 228 << 10, 227 << 10, 1024, 128),
    120: SmLimits(48, 24, 100 << 10, 99 << 10, 1024, 128),
}
"""By compute capability times ten. Source: CUDA C++ Programming Guide, "Technical Specifications per Compute
Capability"; granularities and the limit of blocks from `cuda_occupancy.h` of CUDA 13."""

MAX_THREADS_PER_BLOCK = 1024
_WARP = 32
_REGISTER_GRANULARITY = 256  # registers are handed out to a warp in multiples of this many
_SM_PARTITIONS = 4  # each with a quarter of the SM's registers


class Occupancy(NamedTuple):
    """How many copies of one block an SM holds at a time, and what stops it from holding more."""

    blocks: int  # per SM; 0 means that the launch is impossible
    warps: int  # per SM
    max_warps: int  # that the SM could hold
    limited_by: str  # "warps", "blocks", "registers", "shared memory", or several: "registers and shared memory"

    @property
    def fraction(self) -> float:
        """Resident warps as a share of what the SM could hold: what NVIDIA's tools call occupancy."""
        return self.warps / self.max_warps


def compile_kernel(
    code: str, arch: str = "sm_90", options: Sequence[str] = (), name_expressions: Sequence[str] = ()
) -> Compiled:
    """Compile CUDA C++ source to machine code for one architecture.

    Args:
        code: the source; what `read_kernel` returns is named by its file in messages.
        arch: "sm_75" … "sm_120", also "sm_90a" and the like.
        options: NVRTC options such as "-DD=64". `-std=c++17`, `-I kernels/include` and the CUDA headers are given
            anyway.
        name_expressions: templates to instantiate, such as "scores<64>"; not needed for `extern "C"` kernels.

    Raises:
        CompileError: with NVRTC's messages, which name file and line, also as `.log`; for "sm_90a" also where ptxas
            serializes products of a warpgroup.
        ValueError: `arch` is not of the form sm_NN.
    """
    request = _request(code, arch, options, name_expressions)
    found = _cached_compilation(request, f"{request.name} does not compile for {arch} with options {tuple(options)}")
    if arch.endswith("a"):
        refuse_serialized(request.name, found["log"])
    return Compiled(
        arch,
        base64.b64decode(found["cubin"]),
        found["log"],
        {found["expressions"].get(kernel, kernel): of for kernel, of in _parse_ptxas(found["log"]).items()},
    )


def is_known_to_compile(
    code: str, architectures: Sequence[str], options: Sequence[str] = (), name_expressions: Sequence[str] = ()
) -> bool:
    """Whether `compile_kernel` or `check_kernel` has taken this before, for one of the architectures. NVRTC is not even
    loaded for it."""
    kept = (_cache_file(_request(code, arch, options, name_expressions)) for arch in architectures)
    return any(file.exists() or file.with_suffix(_TAKEN).exists() for file in kept)


def check_kernel(
    code: str, architectures: Sequence[str], options: Sequence[str] = (), name_expressions: Sequence[str] = ()
) -> None:
    """Raises what `compile_kernel` raises for the first architecture where NVRTC refuses a kernel for all of them.

    A kernel that it takes needs a sixth to two thirds of that function's time: little is optimized, and ptxas sees only
    what it could refuse. Such kernels are remembered. Products of a warpgroup that ptxas serializes are no error here.
    """
    requests = [_request(code, arch, options, name_expressions) for arch in architectures]
    for request in requests:
        with contextlib.suppress(CompileError):
            if _has_inline_ptx(request) or _is_for_ptxas(_ptx(request)):
                _compile(request, _FAST, request.name)
            _cache_file(request).with_suffix(_TAKEN).touch()
            return
    _cached_compilation(requests[0], requests[0].name)  # what counts, and is quoted, is what is said of it for a GPU


_TAKEN = ".taken"  # of the empty file that remembers it


class _Request(NamedTuple):
    """What NVRTC is asked to compile."""

    code: str
    name: str
    headers: Mapping[Path, str]  # that the code includes, but for CUDA's own
    folders: tuple[Path, ...]  # in which NVRTC looks for these, too
    flags: tuple[str, ...]
    name_expressions: tuple[str, ...]


def _request(code: str, arch: str, options: Sequence[str], name_expressions: Sequence[str]) -> _Request:
    _capability(arch)
    if isinstance(options, str) or isinstance(name_expressions, str):
        raise TypeError('options and name_expressions take a tuple of strings, such as ("-DD=64",), and got one string')
    folders = (*own_folder(code), INCLUDE)
    flags = (
        f"--gpu-architecture={arch}",
        "-std=c++17",
        "-lineinfo",
        "--ptxas-options=-v",
        "--no-cache",  # with a driver, NVRTC keeps what it compiled, and then says nothing of its resources
        *options,
    )
    headers = included_files(code, [*folders, *include_folders(options)])
    return _Request(code, source_name(code), headers, folders, flags, tuple(name_expressions))


_FAST = ("--Ofast-compile=max",)
_MOST = {"shared": 48 << 10, "const": 64 << 10}  # bytes that a kernel may declare
_DECLARED = re.compile(r"^.*\.(shared|const) \.align \d+ \.[a-z](\d+) [^\[;\n]+(?:\[(\d+)\])?", re.MULTILINE)


def _has_inline_ptx(request: _Request) -> bool:
    """Whether a kernel or one of its headers has PTX of its own, which ptxas alone reads."""
    return any(re.search(r"\basm\b|\b__asm", text) for text in (request.code, *request.headers.values()))


def _is_for_ptxas(ptx: str) -> bool:
    """Whether ptxas may refuse this PTX: for a function without a definition, or for more memory than there is."""
    declared = dict.fromkeys(_MOST, 0)
    for space, bits, count in _DECLARED.findall(ptx):
        declared[space] += int(bits) // 8 * int(count or 1)
    return ".extern .func" in ptx or any(declared[space] > most for space, most in _MOST.items())


def _cached_compilation(request: _Request, failure: str) -> dict[str, Any]:
    """The result of `_compile`, from the cache if it is there."""
    kept = _cache_file(request)
    try:
        return json.loads(kept.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not there, or not whole
        found = _compile(request, (), failure)
        with tempfile.NamedTemporaryFile("w", dir=kept.parent, delete=False, encoding="utf-8") as file:
            json.dump(found, file)
        os.replace(file.name, kept)
        return found


def _cache_file(request: _Request) -> Path:
    """The cache's file for this code with its headers.

    Its name does not depend on where the headers lie: another clone of the course finds what this one has compiled.
    """
    texts = (text for path, found in sorted(request.headers.items()) for text in (path.name, found))
    parts = _identity(), request.code, *texts, request.name, *request.flags, *request.name_expressions
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    return cache_folder() / f"nvrtc-{key}.json"


@cache
def _identity() -> str:
    """Tells two versions of NVRTC and of CUDA's headers apart: their packages do, in less time than it takes to load
    it."""
    packages = ("nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-cuda-cccl", "nvidia-cuda-crt")
    try:
        return " ".join(importlib.metadata.version(package) for package in packages)
    except importlib.metadata.PackageNotFoundError:
        return version()


def _compile(request: _Request, more: Sequence[str], failure: str) -> dict[str, Any]:
    """The result of a compilation: the machine code, NVRTC's log, and the name expression of each template."""
    with _program(request, (*request.flags, *more), failure) as (program, log):
        cubin = bytearray(_call(_nvrtc.nvrtcGetCUBINSize, program))
        _call(_nvrtc.nvrtcGetCUBIN, program, cubin)
        return {
            "cubin": base64.b64encode(cubin).decode(),
            "log": log,
            "expressions": {
                _call(_nvrtc.nvrtcGetLoweredName, program, expression.encode()).decode(): expression
                for expression in request.name_expressions
            },
        }


def _ptx(request: _Request) -> str:
    """The PTX that ptxas would get. Raises as `_compile`."""
    real, *flags = request.flags
    with _program(request, (real.replace("=sm_", "=compute_"), *flags, *_FAST), request.name) as (program, _):
        return _ptx_of(program)


def _ptx_of(program: Any) -> str:
    ptx = bytearray(_call(_nvrtc.nvrtcGetPTXSize, program))
    _call(_nvrtc.nvrtcGetPTX, program, ptx)
    return ptx.decode(errors="replace")


@contextlib.contextmanager
def _program(request: _Request, flags: Sequence[str], failure: str) -> Iterator[tuple[Any, str]]:
    """A compiled program of NVRTC's, and its log. `failure` begins the message of a CompileError."""
    if request.name_expressions:
        # NVRTC ends the process where a name expression meets a template whose parameters it cannot read. So it first
        # reads the file alone, which no instance makes long, and raises there.
        with _program(request._replace(name_expressions=()), flags, failure):
            pass
    searched = [*(f"-I{folder}" for folder in request.folders), *_cuda_include_flags()]
    words = [flag.encode() for flag in (*searched, *flags)]
    program = _call(_nvrtc.nvrtcCreateProgram, request.code.encode(), request.name.encode(), 0, [], [])
    try:
        for expression in request.name_expressions:
            _call(_nvrtc.nvrtcAddNameExpression, program, expression.encode())
        (status,) = _nvrtc.nvrtcCompileProgram(program, len(words), words)
        log = bytearray(_call(_nvrtc.nvrtcGetProgramLogSize, program))
        _call(_nvrtc.nvrtcGetProgramLog, program, log)
        text = log.replace(b"\0", b"").decode(errors="replace").strip()
        if ptx_lines.ERROR.search(text):
            text = ptx_lines.with_source_lines(text, _ptx_of(program))
        if status != _nvrtc.nvrtcResult.NVRTC_SUCCESS:
            kind = CompileError if status in _REFUSALS else NvrtcFailure
            raise kind(f"{failure}:\n{text or status.name}", text)
        yield program, text
    finally:
        _nvrtc.nvrtcDestroyProgram(program)


_REFUSALS = (_nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION, _nvrtc.nvrtcResult.NVRTC_ERROR_INVALID_OPTION)


def architectures(code: str) -> list[str]:
    """The architectures a kernel is meant for: all of `ARCHITECTURES`, unless its header has a line
    `// arch: sm_80` (that one and every later one) or `// arch: sm_90a only`.
    """
    required = required_architecture(code)
    if required.exact:
        return [str(required)]
    return [f"sm_{capability}" for capability in ARCHITECTURES if capability >= required.number]


def occupancy(resources: Resources, block_threads: int, dynamic_shared: int = 0, arch: str = "sm_90") -> Occupancy:
    """How many blocks of `block_threads` threads one SM holds at a time.

    The arithmetic of NVIDIA's `cuda_occupancy.h`, with the shared-memory carve-out at its largest.

    Args:
        resources: of the kernel, from `compile_kernel(...).resources`.
        block_threads: threads per block, 1 to 1024.
        dynamic_shared: bytes of dynamic shared memory per block, on top of the static.
        arch: as in `compile_kernel`; must be one of `ARCHITECTURES` (a trailing letter is allowed).
    """
    capability = _capability(arch)
    if capability not in SM_LIMITS:
        raise ValueError(f"arch: no table of SM limits for {arch!r}; known: {', '.join(f'sm_{a}' for a in SM_LIMITS)}")
    if not 1 <= block_threads <= MAX_THREADS_PER_BLOCK:
        raise ValueError(f"block_threads takes 1 to {MAX_THREADS_PER_BLOCK} and got {block_threads}")
    if dynamic_shared < 0:
        raise ValueError(f"dynamic_shared takes a number of bytes, 0 or more, and got {dynamic_shared}")
    limits = SM_LIMITS[capability]
    block_warps = -(-block_threads // _WARP)

    warp_registers = _round_up(max(resources.registers, 1) * _WARP, _REGISTER_GRANULARITY)
    partition_warps = limits.registers // _SM_PARTITIONS // warp_registers

    asked = resources.static_shared + dynamic_shared
    block_shared = _round_up(asked + limits.shared_reserved, limits.shared_granularity)

    room = {
        "warps": limits.warps // block_warps,
        "blocks": limits.blocks,
        "registers": partition_warps * _SM_PARTITIONS // block_warps,
        "shared memory": limits.shared // max(block_shared, 1) if asked <= limits.shared_per_block else 0,
    }
    # The hardware checks a block's registers as if its warps filled all four partitions evenly.
    if warp_registers * _round_up(block_warps, _SM_PARTITIONS) > limits.registers:
        room["registers"] = 0
    blocks = min(room.values())
    limited_by = " and ".join(name for name, fits in room.items() if fits == blocks)
    return Occupancy(blocks, blocks * block_warps, limits.warps, limited_by)


def version() -> str:
    """Version of the NVRTC found, such as "13.0"."""
    major, minor = _call(_nvrtc.nvrtcVersion)
    return f"{major}.{minor}"


_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(.*)")


def _parse_ptxas(log: str) -> dict[str, Resources]:
    """Resources of each kernel from the output of `ptxas -v`."""
    _, *parts = _ENTRY.split(log)
    return {kernel: _parse_figures(figures) for kernel, figures in zip(parts[::2], parts[1::2], strict=True)}


def _parse_figures(text: str) -> Resources:
    # Device functions that were not inlined report a stack of their own, after the kernel's: take the first.
    stack_frame, spill_stores, spill_loads = map(int, _STACK.search(text).groups())
    used = _USED.search(text)
    return Resources(
        registers=int(used[1]),
        static_shared=_total(r"(\d+) bytes smem", used[2]),
        spill_stores=spill_stores,
        spill_loads=spill_loads,
        stack_frame=stack_frame,
        constant=_total(r"(\d+) bytes cmem", used[2]),
        barriers=_total(r"used (\d+) barriers", used[2]),
    )


def _total(pattern: str, text: str) -> int:
    return sum(int(number) for number in re.findall(pattern, text))


@cache
def _cuda_include_flags() -> tuple[str, ...]:
    """`-I` flags for the CUDA headers of the pip wheels: cuda_fp16.h and its like, and CCCL's cuda/std."""
    folders = [find_nvidia_header_directory(library) for library in ("cudart", "cccl")]
    return tuple(f"-I{folder}" for folder in folders if folder)


def _capability(arch: str) -> int:
    match = re.fullmatch(r"sm_(\d+)[a-z]?", arch)
    if not match:
        raise ValueError(f'arch takes a name such as "sm_90" and got {arch!r}')
    return int(match[1])


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


@cache
def _load_nvrtc() -> None:
    """Loads the NVRTC that fits the course's CUDA headers, so that cuda.bindings finds it.

    It takes an NVRTC that is loaded already, and a PyTorch built for CUDA 12 brings an older one. NVRTC looks for its
    builtins by their name alone.
    """
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("nvidia-cuda-nvrtc") or ():
            if re.fullmatch(r"libnvrtc(-builtins)?\.so\.[\d.]+", file.name):
                ctypes.CDLL(str(file.locate()))


def _call(function, *args):
    """Call NVRTC, raise on any status but success, return its one result (several: a tuple; none: None)."""
    _load_nvrtc()
    status, *results = function(*args)
    if status != _nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"{function.__name__} failed: {status.name}")
    return results[0] if len(results) == 1 else tuple(results) or None
