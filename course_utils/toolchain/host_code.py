"""The host code of a CUDA file: `main`, allocations, launches, includes of the host's headers. `device_part` leaves it
out, because the course launches kernels from Python.

The rule is NVRTC's: a function or variable at namespace scope that is not marked for the device is host code, and NVRTC
refuses a file that has any.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from course_utils.toolchain.cache import cache_folder
from course_utils.toolchain.declarations import DEVICE_WORD, DIRECTIVE, Declaration, declarations
from course_utils.toolchain.source import INCLUDE, INCLUDE_LINE, KernelSource, own_folder, read_text

HOST_NAMES = INCLUDE / "host_names.cuh"
# Names that device code takes from the host's headers, by the header for the device that has them, too.
_INSTEAD = {
    HOST_NAMES.name: frozenset(
        "FLT_MAX FLT_MIN FLT_EPSILON DBL_MAX DBL_MIN DBL_EPSILON INFINITY NAN M_PI M_PI_2 M_E M_SQRT2 "
        "CHAR_BIT CHAR_MIN CHAR_MAX SCHAR_MIN SCHAR_MAX UCHAR_MAX SHRT_MIN SHRT_MAX USHRT_MAX INT_MIN INT_MAX UINT_MAX "
        "LONG_MIN LONG_MAX ULONG_MAX LLONG_MIN LLONG_MAX ULLONG_MAX uchar ushort uint ulong "
        "int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t intptr_t uintptr_t".split()
    ),
    "cuda_bf16.h": frozenset(("__nv_bfloat16", "nv_bfloat16", "__nv_bfloat162", "nv_bfloat162")),
    "cuda_fp16.h": frozenset(("half", "__half", "half2", "__half2")),
}

_C_HEADERS = (
    "assert complex ctype errno fenv float inttypes iso646 limits locale malloc math memory setjmp signal stdalign "
    "stdarg stdbool stddef stdint stdio stdlib string strings time uchar wchar wctype"
).split()
_CPP_HEADERS = (
    "algorithm any array atomic barrier bit bitset charconv chrono codecvt compare complex concepts condition_variable "
    "coroutine deque exception execution expected filesystem format forward_list fstream functional future "
    "initializer_list iomanip ios iosfwd iostream istream iterator latch limits list locale map memory memory_resource "
    "mutex new numbers numeric optional ostream print queue random ranges ratio regex scoped_allocator semaphore set "
    "shared_mutex source_location span sstream stack stdexcept stop_token streambuf string string_view strstream "
    "syncstream system_error thread tuple type_traits typeindex typeinfo unordered_map unordered_set utility valarray "
    "variant vector version"
).split()
_OF_THE_SYSTEM = (
    "conio dirent direct dlfcn fcntl getopt io process pthread sched semaphore unistd windows winsock2 omp mpi"
)
_HOST_HEADERS = frozenset(
    [f"{name}.h" for name in (*_C_HEADERS, *_OF_THE_SYSTEM.split())]
    + [f"c{name}" for name in _C_HEADERS if name not in ("malloc", "memory", "strings")]
    + _CPP_HEADERS
)
# How the headers of host libraries, and of the CUDA samples' helpers, begin.
_HOST_LIBRARIES = re.compile(
    r"(?:sys/|bits/|GL/|GLES\w*/|EGL/|GLUT/|OpenGL/|vulkan/|d3d\w*|torch/|ATen/|c10/|pybind11/|Python\.h|opencv|boost/|"
    r"gtest/|cublas|cufft|cusolver|cusparse|cudnn|cutensor|curand\.h|nccl|npp|nvml|nvrtc|nvjpeg|cudla|cudnn_frontend|"
    r"nvtx|nvToolsExt|helper_(?!math)\w*\.h|cuda\.h|cuda_profiler_api\.h|cuda\w*_interop\.h|cudaProfiler\.h|"
    r"cuda_\w*_gl\.h|drvapi_error)"
)
_DEVICE_LIBRARIES = re.compile(r"(thrust|cub)/")
# What only host code names: calls of the runtime, the driver, libraries and the standard library; a launch.
_HOST_WORD = re.compile(
    r"<<<|\bstd\s*::|\btorch\s*::|\bcuda(?!TextureObject|SurfaceObject|Array_t|Pos|TextureType|AddressMode|FilterMode)[A-Z]\w*"
    r"|\bcu(?:blas|fft|rand|solver|sparse|dnn|tensor)(?!_)\w*|\bcu(?:Device|Ctx|Mem|Stream|Module|Event|Launch|Init|Func)\w*"
    r"|\bCU(?:device|context|module|function|stream|event|result|deviceptr)\b"
    r"|\bpthread_\w+|\bpid_t\b|\bCU(?:tex|surf)\w+|\bFILE\b|\b(?:fprintf|fopen|fclose|fread|fwrite|exit|rand|srand|atoi|atof|getenv|calloc|realloc)\s*\("
)
_BY_ITS_FORM = re.compile(r"PYBIND11_\w+|TORCH_LIBRARY\w*|TEST(?:_\w+)?|BENCHMARK\w*|CUDART_CB|CUDAAPI|CUDA_CB|WINAPI")
_DEFAULT_DEVICE = re.compile(r"-{1,2}(?:default-device|device-as-default-execution-space)\b")


class Cut(NamedTuple):
    """A piece of host code that was left out: its lines, 1-based and inclusive, and why."""

    line: int
    last_line: int
    reason: str

    def __str__(self) -> str:
        lines = f"line {self.line}" if self.line == self.last_line else f"lines {self.line}-{self.last_line}"
        return f"{lines}: {self.reason}"


class DevicePart(NamedTuple):
    """What `device_part` returns. code: the text without host code, a `KernelSource` if it was given one; cuts: the
    pieces left out, in the order of the lines."""

    code: str
    cuts: tuple[Cut, ...]


def device_part(code: str, folders: Sequence[Path] = ()) -> DevicePart:
    """The code without its host code, for `RawModule(code=device_part(code).code)`.

    Left out are: functions and variables at namespace scope that are not marked for the device, unless something for
    the device names them; types, constants, macros and aliases that name something of the host and that nothing for the
    device names; includes of the host's headers, and of headers without anything for the device. Each cut becomes a
    comment that begins with the reason; lines keep their numbers. In doubt code stays, and the compiler decides.

    folders: where headers lie, besides the file's own folder and `kernels/include`. A header there with host and
    device code is included as a copy without the host code, in the course's cache. A header for the device may take the
    place of a header that is left out, for names that come from there (FLT_MAX, uint32_t).
    """
    text, cuts = _device_part(str(code), (*own_folder(code), *map(Path, folders), INCLUDE), frozenset())
    return DevicePart(KernelSource(text, code.path, code.name) if isinstance(code, KernelSource) else text, cuts)


def host_functions(code: str, options: Sequence[str] = ()) -> list[Declaration]:
    """The functions with a body that make the file a program around its kernels, outside of any `#if`: `main`, and
    functions that launch kernels or call the CUDA runtime. Empty if the options mark every function for the device."""
    if any(_DEFAULT_DEVICE.match(option) for option in options):
        return []
    return [found for found, conditional in _functions_of_the_host(code) if not conditional]


@functools.lru_cache(maxsize=64)
def _functions_of_the_host(code: str) -> tuple[tuple[Declaration, bool], ...]:
    if not re.search(r"\bmain\s*\(|<<<|\bcuda[A-Z]", code):
        return ()
    device = _device_macros(declarations(code))
    guards, found, depth = _include_guard(code), [], 0
    for declaration in declarations(code):
        word = re.match(r"#\s*(if|endif)", declaration.text)
        if declaration.kind == "directive" and word and declaration.line not in guards:
            depth += 1 if word[1] == "if" else -1
        elif _is_host_function(declaration, device) and declaration.head < declaration.end:
            body = declaration.text[declaration.head - declaration.start :]
            if "main" in declaration.names or re.search(r"<<<|\bcuda[A-Z]\w*\s*\(", body):
                found.append((declaration, depth > 0))
    return tuple(found)


def _include_guard(code: str) -> set[int]:
    """The lines of an include guard's #ifndef, #define and #endif."""
    found = [d for d in declarations(code) if d.kind in ("directive", "define")]
    if len(found) < 3 or not (name := re.match(r"#\s*ifndef\s+(\w+)", found[0].text)):
        return set()
    return {found[0].line, found[1].line, found[-1].line} if found[1].names == {name[1]} else set()


def _is_host_function(declaration: Declaration, device_macros: set[str]) -> bool:
    return declaration.kind == "function" and not _for_device(declaration, device_macros)


# ---- what is the device's, what the host's


def _device_macros(found: Iterable[Declaration]) -> set[str]:
    """The macros that mark something for the device, themselves or through another."""
    defined = [(next(iter(d.names)), d) for d in found if d.kind == "define" and d.names]
    macros = {name for name, d in defined if DEVICE_WORD.search(d.text)}
    while True:
        more = {name for name, d in defined if name not in macros and d.words & macros}
        if not more:
            return macros
        macros |= more


def _for_device(declaration: Declaration, device_macros: set[str]) -> bool:
    """Whether the declaration is marked for the device."""
    text = declaration.text if declaration.kind == "type" else declaration.declared
    return bool(DEVICE_WORD.search(text)) or not device_macros.isdisjoint(re.findall(r"\w+", text))


@functools.lru_cache(maxsize=64)
def _device_part(code: str, folders: tuple[Path, ...], wanted: frozenset[str]) -> tuple[str, tuple[Cut, ...]]:
    """wanted: the names that a file which includes this one uses for the device."""
    texts = {path: read_text(path) for path in _included(code, folders)}
    needed = _needed([*declarations(code), *(d for text in texts.values() for d in declarations(text))], wanted)
    cut = _host_part(code, folders, texts, needed)
    edits = [(d.start, d.end, _commented(code, d, reason)) for d, reason in cut]
    gone = {d.start for d, _ in cut}
    for declaration in declarations(code):
        if declaration.kind == "include" and declaration.start not in gone:
            path = _header(code, declaration, folders)
            if (
                path in texts
                and path.parent != INCLUDE
                and (copy := _copy_without_host(path, texts[path], folders, needed.words))
            ):
                edits.append((declaration.start, declaration.end, f'#include "{copy}"'))
    edits = _with_device_headers(code, [d for d, _ in cut if d.kind == "include"], edits, needed.words)
    pieces, position = [], 0
    for start, end, text in sorted(edits):
        pieces += [code[position:start], text]
        position = end
    return "".join(pieces) + code[position:], tuple(Cut(d.line, d.last_line, reason) for d, reason in cut)


def _with_device_headers(
    code: str, left_out: Sequence[Declaration], edits: list[tuple[int, int, str]], words: frozenset[str]
) -> list[tuple[int, int, str]]:
    """The edits with the device's headers in the place of some that are left out, for the names that come from them."""
    included = {_name_of_header(d, code) for d in declarations(code) if d.kind == "include"}
    headers = [name for name, names in _INSTEAD.items() if name not in included and not names.isdisjoint(words)]
    instead = dict(zip((d.start for d in left_out), headers, strict=False))
    return [
        (start, end, f'#include "{instead[start]}"  // in place of {" ".join(code[start:end].split())}')
        if start in instead
        else (start, end, text)
        for start, end, text in edits
    ]


class _Needed(NamedTuple):
    """What the code for the device needs. words: all names in it, and in what these names stand for. device_names:
    functions declared for the device; macros: that mark something for the device; defined: all macros."""

    words: frozenset[str]
    device_names: frozenset[str]
    macros: frozenset[str]
    defined: frozenset[str]


def _needed(found: Sequence[Declaration], wanted: frozenset[str]) -> _Needed:
    macros = _device_macros(found)
    device = [d for d in found if d.kind in ("directive", "call") or _for_device(d, macros)]
    device_names = frozenset(name for d in device if d.kind == "function" for name in d.names)
    by_name: dict[str, list[Declaration]] = {}
    for d in found:
        for name in d.names:
            by_name.setdefault(name, []).append(d)
    words, waiting = set(wanted), set(wanted)
    for d in device:
        waiting |= d.words
    while waiting:
        words |= waiting
        named = [d for word in waiting if word not in device_names for d in by_name.get(word, ())]
        waiting = {word for d in named for word in d.words} - words
    defined = frozenset(name for d in found if d.kind == "define" for name in d.names)
    return _Needed(frozenset(words), device_names, frozenset(macros), defined)


def _host_part(
    code: str, folders: Sequence[Path], texts: dict[Path, str], needed: _Needed
) -> list[tuple[Declaration, str]]:
    """The declarations that are the host's alone, with the reason, in their order."""
    found = declarations(code)
    cut: dict[Declaration, str] = {}
    for d in found:
        if d.kind == "include":
            reason = _why_not_included(code, d, folders, texts, needed)
        elif d.kind in ("function", "variable") and not _for_device(d, needed.macros):
            reason = _why_host(d, needed)
        else:
            reason = ""
        if reason and _is_whole(d):
            cut[d] = reason
    while True:  # a declaration that names something left out is left out, too
        names = {name for d in cut for name in d.names}
        more = {
            d: f"{_title(d)}, which only host code uses"
            for d in found
            if d not in cut and _serves_host(d, names, needed) and _is_whole(d)
        }
        if not more:
            return sorted(cut.items(), key=lambda item: item[0].start)
        cut |= more


def _why_host(d: Declaration, needed: _Needed) -> str:
    """Why a function or a variable that is not marked for the device is left out; "" if it stays."""
    if _is_constant(d):
        return ""  # a constant is left out only if it names something of the host
    if not d.names or "operator" in d.names or not (needed.words & d.names <= needed.device_names):
        return ""  # code for the device names it: the compiler says what it lacks
    unknown = set(re.findall(r"\b[A-Z][A-Z0-9_]+\b", _before_name(d))) - needed.defined
    if unknown and not _HOST_WORD.search(d.text) and not any(_BY_ITS_FORM.fullmatch(word) for word in unknown):
        return ""  # a macro from elsewhere may mark it for the device
    return f"{_title(d)}, host code"


def _is_constant(d: Declaration) -> bool:
    """Whether NVRTC takes the variable as a constant: what a pointer points to being constant is not enough."""
    declared = re.split(r"[={(]", d.declared)[0]
    return d.kind == "variable" and bool(re.search(r"\bconstexpr\b|\bconst\b[^*]*$", declared))


def _before_name(d: Declaration) -> str:
    """What stands before the name of a function or variable, where it could be marked."""
    name = min((m.start() for name in d.names for m in re.finditer(rf"\b{name}\b", d.declared)), default=0)
    return re.sub(r"template\s*<[^>]*>", "", d.declared[:name]) if name else d.declared.split("(")[0]


def _serves_host(d: Declaration, names: set[str], needed: _Needed) -> bool:
    """Whether a type, constant, alias or macro names something of the host or something left out, and no code for the
    device names it."""
    if d.kind in ("include", "directive", "function") or _for_device(d, needed.macros):
        return False
    if d.kind == "variable" and not _is_constant(d):
        return False
    if not needed.words.isdisjoint(d.names) or (d.kind == "other" and not d.words & names):
        return False
    has_functions = d.kind == "type" and re.search(r"\)\s*(?:const\b|noexcept\b|override\b|\s)*[{;:]", d.text)
    return bool(_HOST_WORD.search(d.text) or not names.isdisjoint(d.words) or has_functions)


def _title(d: Declaration) -> str:
    name = next(iter(sorted(d.names)), "")
    if d.kind == "function":
        return f"{name}()"
    return name or d.kind


def _is_whole(d: Declaration) -> bool:
    """Whether the declaration may be cut out: it holds all branches of an `#if`, or none."""
    if d.kind in ("include", "define"):
        return True
    depth = 0
    for line in DIRECTIVE.findall(d.text):
        word = re.match(r"\s*#\s*(\w*)", line)[1]
        depth += word in ("if", "ifdef", "ifndef")
        if depth == 0 and word in ("else", "elif", "endif"):
            return False
        depth -= word == "endif"
    return depth == 0


def _commented(code: str, d: Declaration, reason: str) -> str:
    """The declaration as a comment that begins with the reason; as many lines as before."""
    text = code[d.start : d.end]
    line_end = code.find("\n", d.end)
    behind = code[d.end : line_end if line_end >= 0 else len(code)]
    if not behind.strip() or (behind.lstrip().startswith("//") and not behind.endswith("\\")):
        first, *others = text.split("\n")
        return "\n".join([f"// left out ({reason}): {first}", *(f"// {line}".rstrip() for line in others)])
    return f"/* left out ({reason}) */" + "\n" * text.count("\n")


# ---- includes


def _name_of_header(d: Declaration, code: str) -> str:
    match = INCLUDE_LINE.match(code[d.start : d.end])
    return match[1].strip() if match else ""


def _header(code: str, d: Declaration, folders: Sequence[Path]) -> Path | None:
    name = _name_of_header(d, code)
    return next(((folder / name).resolve() for folder in folders if name and (folder / name).is_file()), None)


def _included(code: str, folders: Sequence[Path]) -> list[Path]:
    """The headers that the code includes from the folders, itself or through another header."""
    found: list[Path] = []

    def search(text: str, searched: Sequence[Path]) -> None:
        for d in declarations(text):
            if d.kind == "include" and not _is_of_host(_name_of_header(d, text)):
                path = _header(text, d, searched)
                if path is not None and path not in found:
                    found.append(path)
                    search(read_text(path), [path.parent, *folders])

    search(code, folders)
    return found


def _is_of_host(name: str) -> bool:
    return name in _HOST_HEADERS


def _why_not_included(
    code: str, d: Declaration, folders: Sequence[Path], texts: dict[Path, str], needed: _Needed
) -> str:
    name = _name_of_header(d, code)
    if _is_of_host(name):
        return f"{name} is the host's"
    if library := _DEVICE_LIBRARIES.match(name):
        return "" if library[1] in needed.words else f"nothing for the device uses {library[1]}"
    path = _header(code, d, folders)
    if path is not None:
        return "" if _has_device_part(path, folders, texts, needed, ()) else f"{name} has nothing for the device"
    return f"{name} is the host's" if _HOST_LIBRARIES.match(name) else ""


def _has_device_part(
    path: Path, folders: Sequence[Path], texts: dict[Path, str], needed: _Needed, above: tuple[Path, ...]
) -> bool:
    if path in above:
        return False
    text = texts[path]
    inner, guard = [path.parent, *folders], _include_guard(text)
    for d in declarations(text):
        if d.line in guard:
            continue
        if d.kind == "include":
            header = _header(text, d, inner)
            if header is None:
                name = _name_of_header(d, text)
                if not (_is_of_host(name) or _HOST_LIBRARIES.match(name) or _DEVICE_LIBRARIES.match(name)):
                    return True
            elif header in texts and _has_device_part(header, folders, texts, needed, (*above, path)):
                return True
        elif d.kind == "call" or _for_device(d, needed.macros) or not needed.words.isdisjoint(d.names):
            return True
    return False


def _copy_without_host(path: Path, text: str, folders: Sequence[Path], wanted: frozenset[str]) -> Path | None:
    """A copy of a header without the host's part, in the folder of what is compiled; None where it has no such part."""
    code, cuts = _device_part(text, (path.parent, *folders), wanted)
    if code == text:
        return None
    key = hashlib.sha256(code.encode()).hexdigest()[:16]
    copy = cache_folder() / "headers" / key / path.name
    if not copy.is_file():
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(code, encoding="utf-8")
    return copy
