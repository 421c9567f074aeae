"""What a handed-in kernel may not contain. A courtesy, not a wall: the wall is the sandbox.

The emulator compiles a kernel for the CPU, where code could do what no GPU lets it do. NVIDIA's compiler refuses most
of that, and these rules name the rest, so that a student reads why instead of a puzzling error.
"""

from __future__ import annotations

import re

from course_utils.toolchain.source import INCLUDE, blank_comments

# A test compiles each on both machines. NVRTC has no host headers, <stdint.h> included.
SYSTEM_HEADERS = ("cuda_runtime.h", "cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "math_constants.h")

_RULES = (
    (r"\b(?:__attribute__|__attribute|_Pragma|__builtin_\w+|__asm\w*)\b", "{} is not taken here"),
    (r"^\s*#\s*pragma\s+(?!unroll\b|nounroll\b|once\b)\w*", "only #pragma unroll is taken here, not {}"),
    (
        r"\b(?:EMU_\w+|emu_\w+|__CUDACC\w*|__GNUC__|__clang__|__linux__|__x86_64__|__has_include|__INCLUDE_LEVEL__)\b",
        "{} tells compilers apart: the kernel must be the same for all",
    ),
    (r"\b(?:system|fork|vfork|exec[lv]\w*|syscall|dlopen|dlsym|mmap|popen|fopen|getenv)\s*\(", "no GPU has {}"),
)


def broken_rule(code: str, *, assembly: bool = False) -> tuple[str, int] | None:
    """The first rule that the code breaks and its line; None where it keeps them all."""
    text = blank_comments(re.sub(r"\\\r?\n", "  \n", code), strings=False)
    for match in re.finditer(r"^[ \t]*#[ \t]*include(.*)$", text, flags=re.MULTILINE):
        name = match[1].strip()
        known = name.strip('"<>') in SYSTEM_HEADERS or (
            re.fullmatch(r'"[\w]+\.cuh"', name) and (INCLUDE / name.strip('"')).is_file()
        )
        if not known:
            line = text.count("\n", 0, match.start()) + 1
            there_are = ", ".join(SYSTEM_HEADERS)
            words = f"the math functions need no header; there are {there_are}, and those of kernels/include"
            return f"#include {name} is not taken: {words}", line
    without_strings = blank_comments(text)
    rules = _RULES if assembly else (*_RULES, (r"\basm\b", "{} is not needed in this exercise"))
    for pattern, words in rules:
        match = re.search(pattern, without_strings, flags=re.MULTILINE)
        if match:
            return words.format(match[0].strip()), without_strings.count("\n", 0, match.start()) + 1
    return None
