"""From CUDA C++ to C++ that a host compiler takes. Headers do nearly all of it; a few things need the text changed:

- `extern __shared__ T name[];` becomes a pointer into the block's dynamic shared memory, or another name for it;
- `__shared__ alignas(n)` changes places, since `__shared__` is not one word in C++;
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
    required_architecture,
    split_outside_brackets,
)

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
    if name_expressions:
        instances = [f"EMU_ENTRY({i}, {entries[i]})\n" for i in range(len(kernels), len(entries))]
        result.text += "".join(['#line 1 "name_expressions"\n', *instances])
    return result


def _cluster(plain: str, body: int, index: int) -> str:
    """What says how many blocks a cluster of the kernel has, if its declaration does."""
    before = plain[:body]
    declared = before[before.rfind("__global__") :]
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
    """Behind the `__device__` of the function around an `asm`, if that does nothing else, but for loops around it and
    variables for its operands. It is inlined, so that a finding can name the line that calls it."""
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


def _shared_declarations(code: str, plain: str, name: str) -> list[_Edit]:
    edits = []
    for match in re.finditer(r"\bextern\s+__shared__\b([^;]*);", plain):
        declared = re.sub(r"__align__\s*\([^)]*\)|alignas\s*\([^)]*\)|__attribute__\s*\(\(.*?\)\)", " ", match[1])
        parts = re.fullmatch(r"\s*(.*?)\s*\b(\w+)\s*\[\s*\]\s*", declared, flags=re.DOTALL)
        if not parts or "[" in parts[1]:
            raise CompileError(
                f"{name}:{_line(code, match.start())}: the emulator takes dynamic shared memory as "
                f"`extern __shared__ T name[];`, got `{' '.join(match.group().split())}`"
            )
        element, array = parts.groups()
        if _inside_function(plain[: match.start()]):  # not the other way: in a template, g++ forgets the asm label
            text = f"{element}* const {array} = ({element}*)emu_dynamic_shared;"
        else:
            text = f'extern __thread {element} {array}[] __asm__("emu_dynamic_shared");'
        edits.append(_Edit(match.start(), match.end(), text))
    for match in re.finditer(r"\b__shared__(\s+)(alignas\s*\([^;{]*?\))(?=\s+\w)", plain):
        edits.append(_Edit(match.start(), match.end(), f"{match[2]}{match[1]}__shared__"))
    return edits


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
    text = "".join(re.findall(r'"((?:\\.|[^"\\])*)"', sections[0])).replace("\\n", " ").replace("\\t", " ")
    operands = []
    for operand in (o for section in sections[1:3] for o in split_outside_brackets(section) if o.strip()):
        parts = re.fullmatch(r'\s*"[^"]*"\s*\((.*)\)\s*', operand, flags=re.DOTALL)
        if not parts:
            raise CompileError(f'{name}:{line}: the emulator takes operands of asm as "r"(x), got `{operand.strip()}`')
        operands.append(" ".join(parts[1].split()))
    try:
        return ptx.translate(text, operands, number=number, hopper=hopper)
    except ptx.UnknownInstruction as unknown:  # an error only where the preprocessor leaves it in
        message = str(unknown).replace("\\", "\\\\").replace('"', '\\"')
        return f'static_assert(false, "the emulator does not know this PTX instruction: {message}")'


def _early_returns(code: str, plain: str) -> list[_Edit]:
    edits = []
    bodies = [body for kernel in find_kernels(code).values() for body in kernel.bodies]
    macros = [macro.span() for macro in MACRO.finditer(plain)]  # such as #define GUARD if (i >= n) return
    for place in (*bodies, *(m for m in macros if not any(start < m[0] < end for start, end in bodies))):
        for match in re.compile(r"\breturn(?=\s*(?:;|\Z))").finditer(plain[: place[1]], *place):
            if place in bodies and not plain[match.end() : place[1]].strip("; \t\n"):
                continue  # the last statement: the thread has run to the end
            edits.append(_Edit(match.start(), match.end(), "return emu_leave()"))
    return edits


def _includes(code: str, search_path: list[Path], result: Translation) -> list[_Edit]:
    edits = []
    for match in INCLUDE_LINE.finditer(blank_comments(code, strings=False)):
        path = next((folder / match[1] for folder in search_path if (folder / match[1]).is_file()), None)
        if path is None:
            continue  # one of the emulator's own headers, or the compiler says what is missing
        path = path.resolve()
        if path not in result.copies:
            copy = f"{len(result.copies)}_{path.name}"
            result.copies[path] = copy  # before its text is there: a header may include itself
            header = path.read_text(encoding="utf-8")
            result.headers[copy] = _translate_file(header, match[1], [path.parent, *search_path], result)
        edits.append(_Edit(match.start(), match.end(), f'#include "{result.copies[path]}"'))
    return edits
