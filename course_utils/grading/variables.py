"""Local variables in a kernel's text: which is added to before it has a value, and which hides a parameter."""

from __future__ import annotations

import re
from collections.abc import Iterator

from course_utils.toolchain.source import blank_comments, find_kernels, split_outside_brackets

TYPE = r"(?:\b(?:float|double|int|unsigned|long|short|char|bool|auto|__half|half|size_t)\d?\b[\s*&]*)+"
DECLARATION = re.compile(rf"(?P<before>\w*)\s*\b{TYPE}(?<=[\s*&])(?P<names>\w[^;]*)")
NAME = re.compile(r"\s*[*&\s]*(?P<name>\w+)\s*(?P<sizes>(?:\[[^\]]*\]\s*)*)(?P<more>\S?)")


def added_to_unset(kernel: str) -> str:
    """The first local variable of a kernel's text that is changed by its own value before it has one ("float sum;",
    then "sum += …" or "sum = sum + …"), in a sentence, or nothing. NVIDIA's compiler says nothing of it in a loop.
    """
    code = blank_comments(kernel)
    for begin, end in _bodies(code):
        for name, is_set, _, after in _declared(code, begin, end):
            use = None if is_set else re.compile(rf"\b{name}\b(?P<rest>[^;]*)").search(code, after, end)
            if use and re.match(
                rf"(\s*\[[^\]]*\])*\s*([-+*/%&|^]=|\+\+|--|=(?!=).*\b{name}\b)", use["rest"], re.DOTALL
            ):
                return f"{name} is used before its value is set (line {code.count(chr(10), 0, use.start()) + 1})"
    return ""


def line_that_hides(kernel: str, parameter: str) -> int | None:
    """The line that declares a variable of the same name as a kernel's pointer: what it holds goes nowhere."""
    code = blank_comments(kernel)
    for function in find_kernels(kernel).values():
        if parameter in {p.name for p in function.parameters if p.pointer}:
            for begin, end in function.bodies:
                for name, _, at, _ in _declared(code, begin, end):
                    if name == parameter:
                        return code.count("\n", 0, at) + 1
    return None


def _bodies(code: str) -> Iterator[tuple[int, int]]:
    for function in find_kernels(code).values():
        yield from function.bodies


def _declared(code: str, begin: int, end: int) -> Iterator[tuple[str, bool, int, int]]:
    """The name of each local variable, whether it has a value from the start, where it stands, where its statement
    ends. Shared, extern and static variables are left out.
    """
    for found in DECLARATION.finditer(code, begin, end):
        if found["before"] in ("__shared__", "extern", "static"):
            continue
        at = found.start("names")
        for piece in split_outside_brackets(found["names"]):
            if named := NAME.match(piece):
                yield named["name"], named["more"] != "", at + named.start("name"), found.end()
            at += len(piece) + 1
