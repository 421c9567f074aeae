"""From CUDA C++ to C++ that a host compiler takes. Headers do nearly all of it; a few things need the text changed:

- `extern __shared__ T name[];` becomes a pointer into the block's dynamic shared memory, or another name for it;
- `__shared__ alignas(n)` changes places, since in C++ such attributes stand in front of a declaration;
- inline `asm` becomes calls of functions;
- `return;` in a kernel's own body tells the runtime that the thread left early, and did not run past a barrier;
- `#include` names the translated copy of a header on the search path;
- behind each kernel stands the function that calls it.

Lines keep their numbers, and `#line` keeps the file's name.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from course_utils.emulator import ptx
from course_utils.emulator.cuda_headers import (
    AS_NVIDIA_WROTE_IT,
    BUILT_IN,
    NAMES_OF_THE_RUNTIME,
    RUNTIME_TYPES,
    cuda_folder,
    plain_types,
)
from course_utils.emulator.macros import text_macros, variants
from course_utils.toolchain.errors import CompileError
from course_utils.toolchain.source import (
    HOPPER,
    INCLUDE_LINE,
    MACRO,
    blank_comments,
    closing,
    find_kernels,
    included_files,
    read_text,
    required_architecture,
    split_outside_brackets,
)

# Up to the bracket that opens its body. A [ behind a name or a bracket is an index.
_LAMBDA = re.compile(r"(?<![\w)\]])\[[^\[\]]*\]\s*(?:\([^()]*\)\s*)?(?:\w+\s*|->[^{;]*)*\{")
ASM = re.compile(r"\b(?:asm|__asm__|__asm)\b\s*(?:volatile\b|__volatile__\b)?\s*\(")


@dataclass
class Translation:
    """The translated text, the headers it includes by their new file names, and every original text by its name.

    `entries`: the kernels and template instances that can be called, at their index in the names of `EMU_ENTRY`.
    `wrapped`: the lines, by file, of inline PTX where a function stands for an instruction: in headers, and in a kernel
        for sm_90a.
    """

    text: str
    entries: tuple[str, ...]
    headers: dict[str, str] = field(default_factory=dict)
    originals: dict[str, str] = field(default_factory=dict)
    copies: dict[Path, str] = field(default_factory=dict)  # header on disk -> its new file name
    wrapped: set[tuple[str, int]] = field(default_factory=set)
    hopper: bool = False  # whether the kernel is for sm_90a


@dataclass(frozen=True)
class _Edit:
    start: int
    end: int
    text: str


def translate(code: str, name: str, search_path: list[Path], name_expressions: tuple[str, ...] = ()) -> Translation:
    """Translates a kernel file and, through it, the headers that it includes from `search_path`.

    Raises CompileError.
    """
    kernels = [kernel for kernel in find_kernels(code).values() if kernel.bodies and not kernel.template]
    hopper = required_architecture(code) == HOPPER
    entries = (*[kernel.name for kernel in kernels], *name_expressions)
    result = Translation("", entries, hopper=hopper)
    plain = blank_comments(code)
    called = [
        _Edit(end + 1, end + 1, f" EMU_ENTRY({index}, {kernel.name}){_cluster(plain, start, index)}")
        for index, kernel in enumerate(kernels)
        for start, end in kernel.bodies
        if end < len(code)  # else a brace is missing, and the compiler says so
    ]
    result.text = _translate_file(code, name, search_path, result, called)
    if re.search(NAMES_OF_THE_RUNTIME, plain):
        copy = _copy(cuda_folder() / RUNTIME_TYPES, RUNTIME_TYPES, search_path, result)
        result.text = f'#include "{copy}"\n{result.text}'
    if name_expressions:
        instances = [f"EMU_ENTRY({i}, {entries[i]})\n" for i in range(len(kernels), len(entries))]
        result.text += "".join(['#line 1 "name_expressions"\n', *instances])
    return result


def _cluster(plain: str, body: int, index: int) -> str:
    """What says how many blocks a cluster of the kernel has, if its declaration does."""
    declared = plain[max(plain.rfind(end, 0, body) for end in ";}") + 1 : body]
    dims = re.search(r"__cluster_dims__\s*\(", declared)
    if not dims:
        return ""
    return f" EMU_CLUSTER({index}, {declared[dims.end() : closing(declared, dims.end() - 1)].strip()})"


def _translate_file(
    code: str, name: str, search_path: list[Path], result: Translation, more_edits: Sequence[_Edit] = ()
) -> str:
    result.originals[name] = code
    included = tuple(included_files(code, search_path).values()) if ASM.search(code) else ()
    own = _own_edits(code, name, included, result.hopper)
    result.wrapped |= {(name, line) for line in own.inlined_lines}
    if name != next(iter(result.originals)):
        result.wrapped |= {(name, line) for line in own.lines_of_instructions}
    edits = [*own.edits, *_includes(code, search_path, result), *more_edits]
    pieces, position = [], 0
    for edit in sorted(edits, key=lambda e: e.start):
        old = code[edit.start : edit.end]
        end_of_line = "\\\n" if "\\\n" in old else "\n"  # the definition of a macro goes on
        pieces += [code[position : edit.start], edit.text, end_of_line * (old.count("\n") - edit.text.count("\n"))]
        position = edit.end
    return f'#line 1 "{name}"\n' + "".join(pieces) + code[position:] + "\n"


class _OwnEdits(NamedTuple):
    """What the text of a file asks for, but for its includes; the lines of its inline PTX, and those of them that stand
    in a function that is inlined."""

    edits: tuple[_Edit, ...]
    lines_of_instructions: frozenset[int]
    inlined_lines: frozenset[int]


@functools.lru_cache(maxsize=256)
def _own_edits(code: str, name: str, included: tuple[str, ...], hopper: bool) -> _OwnEdits:
    """Kept: every kernel is built with several options, and many include the same headers. included: the texts of the
    headers, whose macros inline PTX may use; empty where there is no inline PTX."""
    plain = blank_comments(code)
    instructions = _inline_asm(code, plain, name, included, hopper)
    inlined, lines, inlined_lines = set(), set(), set()
    for edit in instructions:
        function = _function_of_instructions(plain, edit, instructions) if hopper else None
        here = range(_line(code, edit.start), _line(code, edit.end) + 1)
        lines.update(here)
        if function is not None:
            inlined.add(_Edit(function, function, " __attribute__((always_inline)) "))
            inlined_lines.update(here)
    edits = (*inlined, *_shared_declarations(code, plain, name), *instructions, *_early_returns(code, plain))
    return _OwnEdits(edits, frozenset(lines), frozenset(inlined_lines))


def _line(code: str, index: int) -> int:
    return code.count("\n", 0, index) + 1


def _function_of_instructions(plain: str, asm: _Edit, instructions: list[_Edit]) -> int | None:
    """The index behind the `__device__` of the function around an `asm`, if the function has nothing else but loops
    around it and variables for its operands. It is inlined, so that a finding can name the line that calls it."""
    start, depth = None, 0
    for match in re.finditer(r"[{}]", plain[: asm.start]):
        if depth == 0 and match[0] == "{" and plain[: match.start()].rstrip().endswith(")"):
            start = match.start()
        if start is not None:
            depth += 1 if match[0] == "{" else -1
    declared = plain.rfind("__device__", 0, start) if depth else -1
    if declared < 0 or re.search(r"[;{}]", plain[declared:start]):
        return None
    end, rest = closing(plain, start), ""
    position = start + 1
    for edit in (e for e in instructions if start < e.start < end):
        rest += plain[position : edit.start]
        position = edit.end
    rest = re.sub(r"\bfor\s*\([^()]*\)|#pragma.*", "", rest + plain[position:end])
    is_all = all(re.fullmatch(r"(return )?[\w\s:<>]*", statement.strip()) for statement in re.split("[;{}]", rest))
    return declared + len("__device__") if is_all else None


_ATTRIBUTE = (  # of alignment and the like; its brackets may hold two levels of others
    r"(?:alignas|__align__|__attribute__)\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|\[\[[^\]]*\]\]"
)
_SPECIFIERS = rf"((?:\s+(?:{_ATTRIBUTE}|[\w:]+(?![\w:])))*?)\s+"  # whole words: there is one way to read them
_DYNAMIC = re.compile(rf"\b(?:extern{_SPECIFIERS}__shared__|__shared__{_SPECIFIERS}extern)\b(?P<declared>[^;{{}}]*)")
_DECLARATOR = re.compile(
    r"\s*(?P<type>.*?)(?P<stars>[*\s]*)\(?\s*\b(?P<name>\w+)\s*\)?\s*(?P<sizes>(?:\[[^]]*\]\s*)*)", flags=re.DOTALL
)


def _shared_declarations(code: str, plain: str, name: str) -> list[_Edit]:
    edits, macros = [], [macro.span() for macro in MACRO.finditer(plain)]
    for match in _DYNAMIC.finditer(plain):
        end = next((end for start, end in macros if start < match.start() < end < match.end()), match.end())
        declared = "".join(filter(None, match.groups()[:2])) + plain[match.start("declared") : end]
        found = _dynamic_arrays(declared.replace("\\\n", " "))
        if not found:
            raise CompileError(
                f"{name}:{_line(code, match.start())}: the emulator takes dynamic shared memory as "
                f"`extern __shared__ T name[];`, got `{' '.join(code[match.start() : end].split())};`"
            )
        kind = _local_name if _inside_function(plain[: match.start()]) else _global_name
        edits.append(_Edit(match.start(), end, "; ".join(kind(*one) for one in found)))
    for match in re.finditer(rf"\b__shared__(\s+)({_ATTRIBUTE})(?=\s+\w)", plain):
        if any(edit.start <= match.start() < edit.end for edit in edits):
            continue
        edits.append(_Edit(match.start(), match.end(), f"{match[2]}{match[1]}__shared__"))
    return edits


def _dynamic_arrays(declared: str) -> list[tuple[str, str, str]]:
    """Type of an element, name and `[]` with what follows it (none: not an array) of all that is declared; nothing
    where it is no such declaration."""
    plain = re.sub(rf"{_ATTRIBUTE}|\bstatic\b", " ", declared)
    first, *others = split_outside_brackets(plain, brackets="()[]{}<>")
    match = _DECLARATOR.fullmatch(first)
    of_type = match["type"] if match else ""
    found = [match, *(_DECLARATOR.fullmatch(f"{of_type} {other}") for other in others)]
    if not of_type or "(*" in of_type or not all(found):
        return []
    return [(f"{' '.join(of_type.split())}{one['stars'].strip()}", one["name"], one["sizes"].strip()) for one in found]


def _local_name(element: str, name: str, sizes: str) -> str:
    """In a function: in a template, g++ would forget the asm label of `_global_name`."""
    rows = re.sub(r"^\[[^]]*\]", "", sizes)
    if not sizes:
        return f"{element}& {name} = *({element}*)emu_dynamic_shared"
    if not rows:
        return f"{element}* const {name} = ({element}*)emu_dynamic_shared"
    return f"{element} (* const {name}){rows} = ({element} (*){rows})emu_dynamic_shared"


def _global_name(element: str, name: str, sizes: str) -> str:
    return f'extern __thread {element} {name}{sizes} __asm__("emu_dynamic_shared")'


def _inside_function(before: str) -> bool:
    """Whether the code before a place opens a brace that is not just a namespace or `extern "C"`."""
    opened: list[bool] = []
    for brace in re.finditer(r"[{}]", before):
        if brace.group() == "{":
            opened.append(not re.search(r"(\bnamespace\b[\s\w:]*|\bextern\s*)$", before[: brace.start()][-200:]))
        elif opened:
            opened.pop()
    return any(opened)


def _inline_asm(code: str, plain: str, name: str, included: tuple[str, ...], hopper: bool) -> list[_Edit]:
    places = [*ASM.finditer(plain)]
    if not places:
        return []
    macros = text_macros([*included, code])
    uncommented, edits = blank_comments(code, strings=False), []
    for match in places:
        end = closing(plain, match.end() - 1)
        body = uncommented[match.end() : end].replace("\\\n", " ")
        line = _line(code, match.start())
        found = [
            (condition, _statements(text, name, line, len(edits), hopper)) for condition, text in variants(body, macros)
        ]
        (_, statements), *others = found
        if others:  # which of them holds, the preprocessor says
            here = f'\n#line {line} "{name}"\n'
            alternatives = "".join(f"\n#{'elif' if n else 'if'} {c}{here}{s};" for n, (c, s) in enumerate(found))
            statements = f'{alternatives}\n#endif\n#line {_line(code, end)} "{name}"\n'
        edits.append(_Edit(match.start(), end + 1, f"do {{ {statements}; }} while (0)"))
    return edits


def _statements(asm: str, name: str, line: int, number: int, hopper: bool) -> str:
    """What an `asm` with this body does, in C++; it is the file's `number`-th."""
    sections = split_outside_brackets(asm, ":")
    text = "".join(re.findall(r'"((?:\\.|[^"\\])*)"', sections[0])).replace("\\n", "\n").replace("\\t", " ")
    operands = []
    for section in sections[1:3]:
        at = 0
        while rest := section[at:].strip(", \t\n"):
            start = re.compile(r'[,\s]*"[^"]*"\s*\(').match(section, at)  # NVRTC asks for no comma between two
            if not start:
                raise CompileError(f'{name}:{line}: the emulator takes operands of asm as "r"(x), got `{rest}`')
            at = closing(section, start.end() - 1) + 1
            operands.append(" ".join(section[start.end() : at - 1].split()))
    try:
        return ptx.translate(text.replace("%=", str(number)), operands, number=number, hopper=hopper)
    except ptx.UnknownInstruction as unknown:  # an error only where the preprocessor leaves it in
        message = str(unknown).replace("\\", "\\\\").replace('"', '\\"')
        return f'static_assert(false, "the emulator does not know this PTX instruction: {message}")'


def _early_returns(code: str, plain: str) -> list[_Edit]:
    edits = []
    bodies = [body for kernel in find_kernels(code).values() for body in kernel.bodies]
    macros = [macro.span() for macro in MACRO.finditer(plain)]  # such as #define GUARD if (i >= n) return
    lambdas = [(found.end() - 1, closing(plain, found.end() - 1)) for found in _LAMBDA.finditer(plain)]
    for place in (*bodies, *(m for m in macros if not any(start < m[0] < end for start, end in bodies))):
        for match in re.compile(r"\breturn(?=\s*(?:;|\Z))").finditer(plain[: place[1]], *place):
            if place in bodies and not plain[match.end() : place[1]].strip("; \t\n"):
                continue  # the last statement: the thread has run to the end
            if any(start < match.start() < end for start, end in lambdas):
                continue  # it leaves the lambda
            edits.append(_Edit(match.start(), match.end(), "return emu_leave()"))
    return edits


def _includes(code: str, search_path: list[Path], result: Translation) -> list[_Edit]:
    edits = []
    for match in INCLUDE_LINE.finditer(blank_comments(code, strings=False)):
        if match[1] in BUILT_IN:
            edits.append(_Edit(match.start(), match.end(), ""))
            continue
        folders = [*search_path, *([cuda_folder()] if match[1] in AS_NVIDIA_WROTE_IT else [])]
        path = next((folder / match[1] for folder in folders if (folder / match[1]).is_file()), None)
        if path is None:
            continue  # one of the emulator's own headers, or the compiler says what is missing
        edits.append(_Edit(match.start(), match.end(), f'#include "{_copy(path, match[1], search_path, result)}"'))
    return edits


def _copy(header: Path, name: str, search_path: list[Path], result: Translation) -> str:
    """The file name of a header's translated copy."""
    path = header.resolve()
    if path not in result.copies:
        copy = f"{len(result.copies)}_{path.name}"
        result.copies[path] = copy  # before its text is there: a header may include itself
        text = read_text(path)
        if name in AS_NVIDIA_WROTE_IT and path.parent == cuda_folder().resolve():
            text = plain_types(text)
        result.headers[copy] = _translate_file(text, name, [path.parent, *search_path], result)
    return result.copies[path]
