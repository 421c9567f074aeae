"""From CUDA C++ to C++ that a host compiler takes. Headers do nearly all of it; four things need the text changed:

- `extern __shared__ T name[];` becomes a pointer into the block's dynamic shared memory;
- inline `asm` becomes calls of functions;
- `return;` in a kernel's own body tells the runtime that the thread left early, and did not run past a barrier;
- `#include "..."` names the translated copy of that header.

Lines keep their numbers, and `#line` keeps the file's name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from course_utils.emulator import ptx
from course_utils.errors import CompileError
from course_utils.kernel_source import blank_comments, closing, find_kernels, split_outside_brackets


@dataclass
class Translation:
    """The translated text, the headers it includes by their new file names, and every original text by its name."""

    text: str
    headers: dict[str, str] = field(default_factory=dict)
    originals: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Edit:
    start: int
    end: int
    text: str


def translate(code: str, name: str, search_path: list[Path]) -> Translation:
    """Translates a kernel file and, through it, the local headers that it includes. Raises CompileError."""
    result = Translation("")
    result.text = _translate_file(code, name, search_path, result)
    return result


def _translate_file(code: str, name: str, search_path: list[Path], result: Translation) -> str:
    result.originals[name] = code
    plain = blank_comments(code)
    edits = [
        *_shared_declarations(code, plain, name),
        *_inline_asm(code, plain, name),
        *_early_returns(code, plain),
        *_includes(code, search_path, result),
    ]
    pieces, position = [], 0
    for edit in sorted(edits, key=lambda e: e.start):
        lines = code.count("\n", edit.start, edit.end) - edit.text.count("\n")
        pieces += [code[position : edit.start], edit.text, "\n" * lines]
        position = edit.end
    return f'#line 1 "{name}"\n' + "".join(pieces) + code[position:] + "\n"


def _line(code: str, index: int) -> int:
    return code.count("\n", 0, index) + 1


def _shared_declarations(code: str, plain: str, name: str) -> list[_Edit]:
    edits = []
    for match in re.finditer(r"\bextern\s+__shared__\b([^;]*);", plain):
        declared = re.sub(r"__align__\s*\([^)]*\)|alignas\s*\([^)]*\)|__attribute__\s*\(\(.*?\)\)", " ", match[1])
        parts = re.fullmatch(r"\s*(.*?)\s*\b(\w+)\s*\[\s*\]\s*", declared, flags=re.DOTALL)
        if not parts:
            raise CompileError(
                f"{name}:{_line(code, match.start())}: the emulator takes dynamic shared memory as "
                f"`extern __shared__ T name[];`, got `{' '.join(match.group().split())}`"
            )
        element, array = parts.groups()
        inside_function = plain.count("{", 0, match.start()) > plain.count("}", 0, match.start())
        if inside_function:
            text = f"{element}* const {array} = ({element}*)emu_dynamic_shared;"
        else:
            text = f"static emu::dynamic_shared_array<{element}> {array};"
        edits.append(_Edit(match.start(), match.end(), text))
    return edits


def _inline_asm(code: str, plain: str, name: str) -> list[_Edit]:
    edits = []
    for match in re.finditer(r"\b(?:asm|__asm__|__asm)\b\s*(?:volatile\b|__volatile__\b)?\s*\(", plain):
        end = closing(plain, match.end() - 1)
        sections = split_outside_brackets(blank_comments(code, strings=False)[match.end() : end], ":")
        text = "".join(re.findall(r'"((?:\\.|[^"\\])*)"', sections[0]))
        text = text.replace("\\n", " ").replace("\\t", " ")
        operands = []
        for operand in (o for section in sections[1:3] for o in split_outside_brackets(section)):
            parts = re.fullmatch(r'\s*"[^"]*"\s*\((.*)\)\s*', operand, flags=re.DOTALL)
            if parts:
                operands.append(" ".join(parts[1].split()))
        try:
            statements = ptx.translate(text, operands)
        except ptx.UnknownInstruction as unknown:
            line = _line(code, match.start())
            raise CompileError(f"{name}:{line}: the emulator does not know this PTX instruction: {unknown}") from None
        edits.append(_Edit(match.start(), end + 1, f"do {{ {statements}; }} while (0)"))
    return edits


def _early_returns(code: str, plain: str) -> list[_Edit]:
    edits = []
    for kernel in find_kernels(code).values():
        for match in re.compile(r"\breturn(?=\s*;)").finditer(plain, *kernel.body):
            edits.append(_Edit(match.start(), match.end(), "return emu_leave()"))
    return edits


def _includes(code: str, search_path: list[Path], result: Translation) -> list[_Edit]:
    edits = []
    for match in re.finditer(
        r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', blank_comments(code, strings=False), flags=re.MULTILINE
    ):
        path = next((folder / match[1] for folder in search_path if (folder / match[1]).is_file()), None)
        if path is None:
            continue  # one of the emulator's own headers, or the compiler says what is missing
        copy = re.sub(r"\W", "_", match[1]) + ".h"
        if copy not in result.headers:
            result.headers[copy] = ""  # a header that includes itself meets this, and its own #pragma once
            header = path.read_text(encoding="utf-8")
            result.headers[copy] = "#pragma once\n" + _translate_file(
                header, match[1], [path.parent, *search_path], result
            )
        edits.append(_Edit(match.start(), match.end(), f'#include "{copy}"'))
    return edits
