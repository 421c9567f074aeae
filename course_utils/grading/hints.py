"""Hints from a look at a kernel's text: what no test can reach, and costs no points."""

from __future__ import annotations

import re

from course_utils.toolchain.source import KernelFunction, blank_comments, closing, find_kernels

WIDE = r"long long|size_t|ptrdiff_t|u?int64_t"


def hints(kernel: str) -> tuple[str, ...]:
    """One line for each line of the text that a reviewer would ask about."""
    lines = {}
    for function in find_kernels(kernel).values():
        for line in _narrow_offsets(kernel, function):
            lines[line] = (
                f"line {line}: this offset is a product of ints. Past 2³¹ elements it overflows, which no test here is "
                "large enough to show: start it with (long long)"
            )
    return tuple(text for _, text in sorted(lines.items()))


def _narrow_offsets(kernel: str, function: KernelFunction) -> list[int]:
    """Lines with an offset into an argument that multiplies a size of the kernel, all of it in 32 bits."""
    code = blank_comments(kernel)
    pointers = [p.name for p in function.parameters if p.pointer]
    sizes = {p.name for p in function.parameters if not p.pointer}
    if not pointers or not sizes:
        return []
    wide = set(re.findall(rf"\b(?:{WIDE})\s+(\w+)", code))
    lines = []
    for begin, end in function.bodies:
        for match in re.finditer(rf"\b(?:{'|'.join(map(re.escape, pointers))})\s*(\[|\+=|\+)", code[begin:end]):
            start = begin + match.end()
            stop = closing(code, start - 1) if match[1] == "[" else _end_of(code, start)
            offset = code[start:stop]
            words = set(re.findall(r"\w+", offset))
            if "*" in offset and words & sizes and not words & wide and not re.search(WIDE, offset):
                lines.append(code.count("\n", 0, start) + 1)
    return lines


def _end_of(code: str, start: int) -> int:
    """Where a summand ends: at a comma, a semicolon or a bracket that was open before it."""
    depth = 0
    for i in range(start, len(code)):
        depth += (code[i] in "([") - (code[i] in ")]")
        if depth < 0 or (depth == 0 and code[i] in ",;"):
            return i
    return len(code)
