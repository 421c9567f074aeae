"""Steps of chapter 07's ladder without their softmax, or without their products: what is left has a time of its own.

The calls of the part are left out of a copy of the kernel's text. Copies, waits and barriers stay, and no clock is in
it. Results are wrong on purpose.

kernel = build(LADDER[3], 64, torch.float16, "softmax")
run = ready(LADDER[3], query, key, value, out, lse, kernel=kernel)
"""

from __future__ import annotations

import torch

from course_utils.cuda import Kernel, KernelSource, RawModule, read_kernel
from course_utils.launches.hopper import Step
from course_utils.toolchain.source import statement_calls

PARTS = {
    "softmax": ("mask", "raise_maximum", "exponentials", "rescale"),
    "products": ("start_scores", "start_output"),
}


def without(source: KernelSource, part: str) -> KernelSource:
    """The kernel's text without the calls of a part; the semicolons stay, as statements that do nothing."""
    text = str(source)
    for call, end in reversed([*statement_calls(text, PARTS[part])]):
        text = text[: call.start()] + text[end:]
    return KernelSource(text, source.path, source.name)


def build(step: Step, head_dim: int, dtype: torch.dtype, part: str) -> Kernel:
    """The kernel of a step without a part, compiled at its first launch. Errors as for `Step.options`."""
    code = without(read_kernel(step.file), part)
    return RawModule(code=code, options=step.options(head_dim, dtype)).get_function(step.kernel)
