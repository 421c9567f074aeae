"""Chapter 00's first notebook: a check of the reader's ten lines of attention, and a kernel broken in three ways."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from course_utils import checks, emulator, reference, show
from course_utils.costs import ceil_div
from course_utils.cuda import RawModule, read_kernel

ELEMENTS, THREADS = 1000, 256
TIME_LIMIT = 2  # seconds
_GUARD, _SUM = "    if (i < n) ", "        c[i] = a[i] + b[i];"
_FIRST = "// my element\n"
# Each mistake: pieces of vector_add.cu, and what stands there in their place.
MISTAKES = {
    "no bounds check": {_GUARD: "    // if (i < n) "},
    "endless loop": {_GUARD: "    while (i < n) ", _SUM: f"{_SUM}   // i += ... forgotten"},
    "divergent barrier": {
        _FIRST: f"{_FIRST}    if (threadIdx.x < 100) __syncthreads();                // some wait here ...\n"
        "    else                   __syncthreads();                // ... and the others there\n"
    },
}


def check_attention(attention: Callable[..., Tensor], device: torch.device) -> None:
    """Prints whether attention(query, key, value, is_causal) is right: as near to float64 as PyTorch's own."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 65, 32, generator=generator).to(device) for _ in range(3))
    for is_causal in (False, True):
        ours, theirs = attention(q, k, v, is_causal), F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        report = checks.error_report(ours, reference.attention(q, k, v, is_causal=is_causal), theirs)
        print(f"is_causal={is_causal}: correct = {report.passed}")


def broken(mistake: str) -> str:
    """vector_add.cu with one of `MISTAKES`. Raises LookupError for another name, ValueError if the text to replace is
    not in the file."""
    code = read_kernel("00_start_here/vector_add.cu")
    for before, after in MISTAKES[mistake].items():
        if code.count(before) != 1:
            raise ValueError(f"vector_add.cu: has {before!r} {code.count(before)} times, not once")
        code = code.replace(before, after)
    return code


def break_it(mistake: str) -> None:
    """Shows the change in vector_add.cu, and the error of a launch on CPU tensors."""
    code = broken(mistake)
    show.difference(read_kernel("00_start_here/vector_add.cu"), code, context=1)
    kernel = RawModule(code=code).get_function("vector_add")
    x, y, z = (torch.zeros(ELEMENTS) for _ in range(3))
    with show.expected_error(), emulator.configure(time_limit=TIME_LIMIT):
        kernel((ceil_div(ELEMENTS, THREADS),), (THREADS,), (x, y, z, np.int32(ELEMENTS)))
