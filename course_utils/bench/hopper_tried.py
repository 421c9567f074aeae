"""What `bench hopper_tried` measures: what was tried to make chapter 07's last kernel faster, beside that kernel.

`ratio` says how many times as fast as it a variant is; the kernel runs twice, and what it gains on itself is the noise.
Times are taken by turns, as in `bench.hopper`.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

import torch
from torch import Tensor

from course_utils import costs
from course_utils.bench import hopper
from course_utils.bench.timed import columns, compile_ahead, interleaved, random_inputs, sdpa
from course_utils.launches.hopper_tried import TRIED, Variant, build, require_right
from course_utils.measured import Row
from course_utils.operators.tensor_core import HEAD_DIMS, takes_wgmma

SHIPPED = Variant("the kernel", "")
AGAIN = f"{SHIPPED.name} again"
RUNS = 5


def hopper_tried(
    *,
    device: str = "cuda",
    tokens: int = hopper.TOKENS,
    width: int = hopper.WIDTH,
    lengths: Sequence[int] = (2048, 16384),
    head_dims: Sequence[int] = HEAD_DIMS,
    tried: Sequence[Variant] = TRIED,
) -> list[Row]:
    """Rows of the kernel, of each variant and of cuDNN, in fp16, with B · L and H · d fixed. A variant that is wrong is
    not timed: it is compared with float64 at small lengths, and with fp32 torch at these.

    Raises:
        AssertionError, RuntimeError: a variant is wrong, or the GPU is no Hopper.
    """
    if device == "cuda" and not takes_wgmma(torch.device(device)):
        raise RuntimeError(f"hopper_tried needs a Hopper GPU (sm_90), and this is {torch.cuda.get_device_name()}")
    all_of = {d: [SHIPPED, *(variant for variant in tried if d in variant.head_dims)] for d in head_dims}
    kernels = [build(variant, d, torch.float16) for d, variants in all_of.items() for variant in variants]
    compile_ahead([kernel.module for kernel in kernels], device)
    rows: list[Row] = []
    for d, variants in all_of.items():
        for variant in variants:
            require_right(variant, d, device)
        for is_causal, length in itertools.product((False, True), lengths):
            inputs = random_inputs((tokens // length, width // d, length, d), device)
            there = [variant for variant in variants if is_causal in variant.masks]
            rows += _race(there, *inputs, is_causal)
    return rows


def _race(variants: list[Variant], query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> list[Row]:
    inputs = query, key, value
    kernels = {variant: build(variant, query.shape[-1], query.dtype) for variant in variants}
    functions = {of.name: hopper.step_function(of.step, *inputs, is_causal, kernel) for of, kernel in kernels.items()}
    functions[AGAIN] = functions[SHIPPED.name]
    functions[hopper.CUDNN] = sdpa(hopper.BACKENDS[hopper.CUDNN], *inputs, is_causal=is_causal)
    hopper.require_as_right_as_cudnn(functions, *inputs, is_causal)
    options = {"budget_ms": hopper.BUDGET_MS, "head_start_us": hopper.HEAD_START_US}
    batch, heads, length, d = query.shape
    where: Row = {"head_dim": d, "is_causal": is_causal, "batch": batch, "heads": heads, "length": length}
    flops = costs.attention_flops(batch, heads, length, length, d, is_causal)
    rows: list[Row] = []
    for name, (time, ratios) in interleaved(functions, SHIPPED.name, RUNS, **options).items():
        speed: Row = {"tflop_per_s": flops / time.median / 1e9, "ratio": statistics.median(ratios)}
        rows.append(where | {"name": name, **columns(time), **speed, "low": min(ratios), "high": max(ratios)})
    return rows
