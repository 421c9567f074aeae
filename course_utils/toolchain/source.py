"""What can be read off a `.cu` file without compiling it: its text, its kernels and their parameters, its header.

Each kernel of `kernels/NN_slug/` begins with what its reader needs:

    // scores.cu — S = scale · Q Kᵀ, one thread per score: what it teaches, in a line or two.
    //
    // grid   (ceil(L_k / 16), ceil(L_q / 16), B · H)      block  (16, 16)
    // layout Q [B, H, L_q, D], K [B, H, L_k, D], S [B, H, L_q, L_k], fp32, contiguous
    // shared 0 bytes
    // limits D a multiple of 4
    // options: -DD=64 | -DD=128
    // arch: sm_80
    // paper  Attention Is All You Need (arXiv 1706.03762), §3.2.1

`options:` lists the ways it is compiled, separated by `|`; a kernel that is compiled in one way, without options, has
no such line. `arch:` names the lowest architecture (`sm_80`), or the only one (`sm_90a only`); without it the kernel
compiles for all of sm_75, 80, 86, 89, 90, 100 and 120. tests/toolchain/test_nvrtc.py finds each kernel and compiles it
so, without a GPU. Prefer `extern "C"` and `-D` constants to templates. NVRTC has no headers of the host: no `<cmath>`,
no `INFINITY`. A kernel handles every length, not only multiples of its tile. What several kernels share is in
`kernels/include/`.
"""

from __future__ import annotations

import difflib
import functools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from course_utils.course import ROOT
from course_utils.toolchain.unified_diff import apply_diff, changed_file

KERNELS = Path(os.environ.get("COURSE_KERNELS") or ROOT / "kernels")
INCLUDE = KERNELS / "include"


class KernelSource(str):
    """The text of a `.cu` file that remembers where it came from: `path` on disk, `name` for messages.

    A broken kernel is a right one with a diff applied: its `path` is the diff's.
    """

    path: Path
    name: str

    def __new__(cls, text: str, path: Path, name: str) -> KernelSource:
        source = super().__new__(cls, text)
        source.path = path
        source.name = name
        return source

    def __getnewargs__(self) -> tuple[str, Path, str]:  # type: ignore[override]  # for pickle and copy
        return str(self), self.path, self.name


def read_text(path: Path) -> str:
    """The text of a kernel or header, without a byte order mark; bytes that are not UTF-8, as in old comments, become
    U+FFFD."""
    return path.read_text(encoding="utf-8-sig", errors="replace")


def read_kernel(name: str | os.PathLike[str]) -> KernelSource:
    """Reads a kernel file: "NN_slug/file.cu" below `kernels/`, or the path of a file elsewhere (an exercise).

    Where "file.cu" is not there but "file.diff" is, the text is the kernel that the diff names with the diff applied.
    Raises FileNotFoundError, which lists the files with the most similar names, and ValueError where a diff no longer
    applies.
    """
    name = os.fspath(name)
    for path in (KERNELS / name, Path(name)):
        if path.is_file():
            return KernelSource(read_text(path), path.resolve(), name)
        if path.suffix == ".cu" and path.with_suffix(".diff").is_file():
            return _read_changed(path.with_suffix(".diff").resolve(), name)
    there_are = kernel_names()
    close = difflib.get_close_matches(name, there_are, n=3, cutoff=0.4) or there_are
    raise FileNotFoundError(
        f"no kernel file {name!r} below {KERNELS}; did you mean one of {', '.join(close) or 'none'}?"
    )


def kernel_names() -> list[str]:
    """All that `read_kernel` finds below `kernels/`, as "NN_slug/file.cu", sorted."""
    files = [*KERNELS.rglob("*.cu"), *(diff.with_suffix(".cu") for diff in KERNELS.rglob("*.diff"))]
    return sorted(file.relative_to(KERNELS).as_posix() for file in files)


def _read_changed(diff: Path, name: str) -> KernelSource:
    """Reads NN_slug/broken/file.diff, which changes the file that it calls "kernels/NN_slug/....cu"."""
    changes, kernels = diff.read_text(encoding="utf-8"), diff.parents[2]
    original = kernels.joinpath(*PurePosixPath(changed_file(changes, str(diff))).parts[1:])
    if not original.is_file():
        raise FileNotFoundError(f"{diff} changes {original}, and there is no such file")
    return KernelSource(apply_diff(changes, original.read_text(encoding="utf-8"), str(diff)), diff, name)


def with_headers(code: str) -> str:
    """The code with each of the course's headers in place of its first `#include`."""
    included: set[str] = set()

    def text(match: re.Match[str]) -> str:
        if match[1] is None or match[1] in included:
            return ""
        included.add(match[1])
        return re.sub(pattern, text, (INCLUDE / match[1]).read_text(encoding="utf-8"))

    pattern = r'#include "([^"]+)"|#pragma once'
    return re.sub(pattern, text, code)


INCLUDE_LINE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">]+)[">]', flags=re.MULTILINE)


def included_files(code: str, search_path: Sequence[Path]) -> dict[Path, str]:
    """The text of each header that the code includes from `search_path`, itself or through another header.

    A header looks into its own folder first. What lies in none of the folders (the compiler's headers) is left out.
    """
    found: dict[Path, str] = {}
    seen: set[str] = set()
    folders_of_all = [str(folder) for folder in search_path]

    def search(text: str, folders: Sequence[str]) -> None:
        for name in _included_names(text):
            path = next((path for folder in folders if os.path.isfile(path := os.path.join(folder, name))), None)
            if path is None or path in seen:
                continue
            seen.add(path)
            resolved = Path(path).resolve()
            if resolved not in found:
                found[resolved] = header = read_text(resolved)
                search(header, [str(resolved.parent), *folders_of_all])

    search(code, folders_of_all)
    return found


def include_folders(options: Sequence[str]) -> list[Path]:
    """The folders that -I and --include-path= name, also as two words."""
    words = " ".join(options)
    return [Path(folder) for folder in re.findall(r"(?:^|\s)(?:-I\s?|--include-path[=\s])(\S+)", words)]


@functools.lru_cache(maxsize=256)  # of each header of each module that is made
def _included_names(code: str) -> tuple[str, ...]:
    """What stands between the quotes or brackets of each `#include`."""
    return tuple(line[1] for line in INCLUDE_LINE.finditer(blank_comments(code, strings=False)))


def own_folder(code: str) -> list[Path]:
    """The folder of the code's file, in which its includes are looked for first; none for code without a file."""
    return [code.path.parent] if isinstance(code, KernelSource) else []


def source_name(code: str) -> str:
    """The name under which messages speak of this code."""
    return code.name if isinstance(code, KernelSource) else "kernel.cu"


def line_text(code: str, line: int | None) -> str | None:
    """A line of the code (1-based) without the space around it; None where there is no such line."""
    lines = _split(code)
    return lines[line - 1].strip() if line and 0 < line <= len(lines) else None


@functools.lru_cache(maxsize=16)  # asked for thousands of lines of a few files
def _split(code: str) -> list[str]:
    return code.splitlines()


@functools.lru_cache(maxsize=128)  # a kernel, its headers: asked several times on the way to a launch
def blank_comments(code: str, *, strings: bool = True) -> str:
    """The code with comments (and string literals) turned into spaces: same length, same lines."""
    raw = r'\b(?:u8|[uUL])?R"(?P<mark>[^()\\\s]*)\(.*?\)(?P=mark)"'
    string = r'"(?:\\.|[^"\\\n])*"|(?<!\d)\'(?:\\.|[^\'\\\n])*\''  # 1'000 has no string in it

    def blank(match: re.Match[str]) -> str:
        text = match.group()
        if not strings and text[0] != "/":
            return text
        return re.sub(r"[^\n]", " ", text)

    return re.sub(rf"//[^\n]*|/\*.*?\*/|{raw}|{string}", blank, code, flags=re.DOTALL)


def closing(code: str, opening: int) -> int:
    """The index of the bracket that closes the one at `opening`; the end of the code if none does."""
    pairs = {"(": ")", "[": "]", "{": "}"}
    start, depth = code[opening], 0
    for i in range(opening, len(code)):
        if code[i] == start:
            depth += 1
        elif code[i] == pairs[start]:
            depth -= 1
            if depth == 0:
                return i
    return len(code)


def statement_calls(code: str, names: Iterable[str]) -> Iterator[tuple[re.Match[str], int]]:
    """The calls of these functions that are statements of their own: the match of the call up to its opening bracket,
    with the function's name as group 1, and the index of the semicolon. Raises ValueError where a bracket does not
    close."""
    for call in re.finditer(rf"(?<![\w:.])({'|'.join(names)})(<[^<>;]*>)?\(", code):
        opening = call.end() - 1
        end = closing(code, opening) + 1
        if end > len(code):
            raise ValueError(f"a bracket that does not close in {code[opening : opening + 40]!r}")
        if code[end : end + 1] == ";":
            yield call, end


def split_outside_brackets(text: str, separator: str = ",", *, brackets: str = "()[]{}") -> list[str]:
    """Splits at separators that stand in no bracket and no string."""
    parts, depth, start, quote = [], 0, 0, ""
    for i, c in enumerate(text):
        if quote:
            quote = "" if c == quote and text[i - 1] != "\\" else quote
        elif c in "\"'":
            quote = c
        elif c in brackets:
            depth += 1 if brackets.index(c) % 2 == 0 else -1
        elif c == separator and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]


MACRO = re.compile(r"^[ \t]*#[ \t]*define\b(?:[^\n\\]|\\[\s\S])*", flags=re.MULTILINE)  # a whole #define


# ---- kernels and their parameters


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel: `type` without qualifiers ("float"); `pointer`: it is a pointer to that type."""

    name: str
    type: str
    pointer: bool
    const: bool

    def __str__(self) -> str:
        return f"{'const ' if self.const else ''}{self.type}{'* ' if self.pointer else ' '}{self.name}".strip()


@dataclass(frozen=True)
class KernelFunction:
    """A `__global__` function: its name, its parameters, and where its bodies lie in the code.

    There are several `bodies` where the preprocessor chooses one. `parameters` belong to the last;
    `other_line` is the line of another definition with different parameters (None: they agree).
    """

    name: str
    parameters: tuple[Parameter, ...]
    template: bool
    line: int
    bodies: tuple[tuple[int, int], ...]  # indices of { and }; none for a mere declaration
    other_line: int | None = None


def _parse_parameter(text: str) -> Parameter:
    text = re.sub(
        r"__restrict__|__restrict|restrict|__grid_constant__|volatile|\b(?:struct|typename)\b", " ", text.split("=")[0]
    )
    match = re.fullmatch(r"\s*(.*?)([\w$]*)\s*((?:\[[^\]]*\])?)\s*", text, flags=re.DOTALL)
    declared, name, array = match.groups() if match else (text, "", "")
    if not declared.strip():  # a type without a name
        declared, name = name, ""
    pointer = declared.count("*") + bool(array) == 1 and "(" not in declared
    pointee = declared.split("*")[0] if pointer else declared  # a const behind the * is the pointer's own
    const = bool(re.search(r"\bconst\b", pointee))
    return Parameter(name, " ".join(re.sub(r"\bconst\b", " ", pointee).split()), pointer, const)


def _parse_parameters(text: str) -> tuple[Parameter, ...]:
    if text.strip() in ("", "void"):
        return ()
    return tuple(_parse_parameter(part) for part in split_outside_brackets(text, brackets="()[]{}<>"))


@functools.lru_cache(maxsize=128)
def find_kernels(code: str) -> dict[str, KernelFunction]:
    """Every `__global__` function of the code, by name, also where that word is a macro's; but see `macro_kernels`."""
    plain = _blank_macros(blank_comments(code))
    words = "|".join(("__global__", *_global_macros(code, whole=False)))
    kernels: dict[str, KernelFunction] = {}
    for match in re.finditer(rf"\b(?:{words})\b", plain):
        at = match.end()
        while True:  # over void, attributes and __launch_bounds__(...) to the name before the parameter list
            word = re.compile(r"[^\w({;]*(\w+)\s*(\(?)").match(plain, at)
            if not word:
                break
            if not word.group(2):
                at = word.end()
            elif word.group(1) in (
                "__launch_bounds__",
                "__attribute__",
                "__align__",
                "__cluster_dims__",
                "__maxnreg__",
            ):
                at = closing(plain, word.end() - 1) + 1
            else:
                end = closing(plain, word.end() - 1)
                parameters = _parse_parameters(plain[word.end() : end])
                brace = re.compile(r"\s*\{").match(plain, end + 1)
                bodies = ((brace.end() - 1, closing(plain, brace.end() - 1)),) if brace else ()
                template = bool(re.search(r"template\s*<[^;{}]*>\s*(?:(?:static|inline)\s+)*$", plain[: match.start()]))
                line = code.count("\n", 0, word.start(1)) + 1
                found = KernelFunction(word.group(1), parameters, template, line, bodies)
                before = kernels.get(found.name)
                kernels[found.name] = _merge(before, found) if before else found
                break
    return kernels


def macro_kernels(code: str) -> list[str]:
    """The macros that write a kernel or its head with arguments: `find_kernels` does not know these kernels."""
    return _global_macros(code, whole=True)


def _global_macros(code: str, *, whole: bool) -> list[str]:
    """The macros with `__global__` in them, also through another macro. whole: the macros that write a kernel or its
    head; else those that stand for a few words in front of a kernel."""
    macros = [macro[0] for macro in MACRO.finditer(blank_comments(code))]
    defined = [re.match(r"\s*#\s*define\s+(\w+)(\(?)(.*)", macro, flags=re.DOTALL) for macro in macros]
    found = {"__global__": False}
    while True:
        more = {
            one[1]: bool(one[2]) or "{" in one[3] or any(found.get(word) for word in re.findall(r"\w+", one[3]))
            for one in defined
            if one and one[1] not in found and not found.keys().isdisjoint(re.findall(r"\w+", one[3]))
        }
        if not more:
            return [name for name, writes in found.items() if writes == whole and name != "__global__"]
        found |= more


def _merge(before: KernelFunction, found: KernelFunction) -> KernelFunction:
    if not found.bodies:
        return before
    types = [[(p.type, p.pointer) for p in kernel.parameters] for kernel in (before, found)]
    differs = bool(before.bodies) and types[0] != types[1]
    return replace(found, bodies=before.bodies + found.bodies, other_line=before.line if differs else before.other_line)


def _blank_macros(plain: str) -> str:
    return MACRO.sub(lambda macro: re.sub(r"[^\n]", " ", macro.group()), plain)


# ---- the header


@dataclass(frozen=True)
class Architecture:
    """The compute capability that a kernel asks for; an `exact` one ("arch: sm_90a only") runs on no other."""

    number: int
    suffix: str = ""
    exact: bool = False

    def __str__(self) -> str:
        return f"sm_{self.number}{self.suffix}"


LOWEST_ARCHITECTURE = Architecture(75)
HOPPER = Architecture(90, "a", exact=True)


def required_architecture(code: str) -> Architecture:
    """Reads `// arch: sm_80` (that one or newer) or `// arch: sm_90a only` from the header; sm_75 without one."""
    match = re.search(r"^\s*(?://|\*)\s*arch:?\s+sm_(\d+)([a-z]?)\s*(only)?", code, flags=re.MULTILINE)
    return Architecture(int(match[1]), match[2], bool(match[3])) if match else LOWEST_ARCHITECTURE


def compile_options(code: str) -> list[tuple[str, ...]]:
    """The option sets of the header's line `// options: -DD=32 | -DD=64`; one empty set where there is none."""
    match = re.search(r"^\s*(?://|\*)\s*options:?\s+(.*)$", code, flags=re.MULTILINE)
    return [tuple(alternative.split()) for alternative in match[1].split("|")] if match else [()]
