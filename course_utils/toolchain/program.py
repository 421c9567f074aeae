"""What to say of a file with a program around its kernels, as most public files: `main`, `cudaMalloc`, `<<<...>>>`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from course_utils.toolchain.host_code import DevicePart, device_part, host_functions
from course_utils.toolchain.host_launches import python_lines, tensors
from course_utils.toolchain.source import (
    INCLUDE_LINE,
    KernelFunction,
    KernelSource,
    find_kernels,
    line_text,
    source_name,
)

_MOST_LISTED = 6  # kernels or cuts in a message


def about_program(code: str, options: Sequence[str] = (), log: str | None = None) -> str | None:
    """The message for a file with host code that NVRTC would compile, too; None for a file of kernels.

    log: what a compiler said of the file. Then its first error decides: it must stand in what `device_part` leaves out,
    so that host code under an `#if` that these options do not take is no matter.
    """
    functions = [f"{next(iter(d.names))}() in line {d.line}" for d in host_functions(code, options)]
    part = None
    if not functions:
        line = _first_error(log or "", source_name(code))
        part = device_part(code) if line else None
        if part is None or not any(cut.line <= line <= cut.last_line for cut in part.cuts):
            return None
        if all(INCLUDE_LINE.match(line_text(code, cut.line) or "") for cut in part.cuts):
            return _about_headers(code, line, part)
        functions = [f"{cut.reason} (line {cut.line})" for cut in part.cuts if cut.line <= line <= cut.last_line]
    return _message(code, functions, part or device_part(code))


def _first_error(log: str, name: str) -> int | None:
    """The line of the code at which the first error stands, as NVRTC and a host compiler write it."""
    error = re.search(rf"^{re.escape(name)}[(:](\d+)\b[^\n]*\berror\b", log, flags=re.MULTILINE)
    return int(error[1]) if error else None


def _about_headers(code: str, line: int, part: DevicePart) -> str:
    """The message for a file in which only includes are the host's, the first in this line."""
    return (
        f"{source_name(code)}:{line}: `{line_text(code, line)}` names a header of the host, which NVIDIA's compiler "
        "for kernels, NVRTC, does not have. Leave the line out, or use `device_part` (of course_utils.cuda), which "
        "puts a header of the device in its place where the kernels need one, as for uint32_t:\n\n"
        f"    module = RawModule(code=device_part({_source(code)}).code)\n\n"
        f"It leaves out here: {_cuts(part)}."
    )


def _source(code: str) -> str:
    """The Python expression for the code."""
    return f'read_kernel("{code.name}")' if isinstance(code, KernelSource) else "code"


def _cuts(part: DevicePart) -> str:
    return _listed([str(cut) for cut in part.cuts], "; ")


def _message(code: str, host: list[str], part: DevicePart) -> str:
    kernels = [kernel for kernel in find_kernels(code).values() if kernel.bodies]
    paragraphs = [
        f"{source_name(code)} is a program around its kernels: {_listed(host)}. That is host code, for nvcc; "
        "the course launches kernels from Python."
    ]
    if kernels:
        paragraphs += _launching(code, kernels)
    else:
        paragraphs.append("There is no kernel in this file itself: look into the headers that it includes.")
    paragraphs.append(
        "`device_part` (of course_utils.cuda) leaves the host's part out and marks each cut in the text; here: "
        f"{_cuts(part)}. Tensors take the place of what it allocates and copies."
    )
    return "\n\n".join(paragraphs)


def _launching(code: str, kernels: Sequence[KernelFunction]) -> list[str]:
    first = kernels[0]
    lines = python_lines(code, first, f"device_part({_source(code)}).code")
    has = [f"{k.name} (line {k.line}{', a template' if k.template else ''})" for k in kernels]
    takes = tensors(code, first)
    return [
        f"Its kernels: {_listed(has)}. Three lines launch {'it' if len(kernels) == 1 else 'the first'}, "
        "with names for what the file does not tell:",
        "\n".join(f"    {line}" for line in lines),
        *([f"Tensors: {'; '.join(takes)}."] if takes else []),
    ]


def _listed(items: Sequence[str], separator: str = ", ") -> str:
    more = f" and {len(items) - _MOST_LISTED} more" if len(items) > _MOST_LISTED else ""
    return separator.join(items[:_MOST_LISTED]) + more
