"""What `bench hopper_ablations` measures: steps of chapter 07's ladder beside the same step with one thing changed.

Part "copies": step 1 requests the next tiles before its first product, and after it; step 2 is beside them. Part
"ablations": the steps with a producer whole, without their softmax and without their products (`launches.ablations`).
No kernel has a clock in it. Times are of the GPU alone, with a cold L2 cache, taken by turns.
"""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Sequence

import torch
from torch import Tensor

from course_utils import costs
from course_utils.bench.hopper import (
    BACKENDS,
    BUDGET_MS,
    HEAD_START_US,
    RUNS,
    require_as_right_as_cudnn,
    step_function,
)
from course_utils.bench.timed import Function, all_parts, columns, compile_ahead, interleaved, random_inputs, sdpa
from course_utils.cuda import Kernel
from course_utils.launches import ablations
from course_utils.launches.hopper import COPIES_AFTER, LADDER, Step, build
from course_utils.measured import Row
from course_utils.measured.hopper import CUDNN, TOKENS, WHOLE, WIDTH
from course_utils.operators.tensor_core import HEAD_DIMS

ORDERS = (LADDER[0], COPIES_AFTER, LADDER[1])
# Steps 1 and 2 without a part need so few registers at D = 64 that a multiprocessor has room for two of their blocks.
PRODUCERS = tuple(step for step in LADDER if step.producer)


def hopper_ablations() -> list[Row]:
    """Every figure of `bench hopper_ablations`."""
    kernels = [build(step, head_dim, torch.float16) for head_dim, step in itertools.product(HEAD_DIMS, ORDERS)]
    for head_dim, step in itertools.product(HEAD_DIMS, PRODUCERS):
        kernels += _kernels(step.title, head_dim).values()
    compile_ahead([kernel.module for kernel in kernels], "cuda")
    return all_parts((order_of_copies, without_a_part))


def order_of_copies(
    *,
    device: str = "cuda",
    tokens: int = TOKENS,
    width: int = WIDTH,
    lengths: Sequence[int] = (2048, 16384),
    head_dims: Sequence[int] = HEAD_DIMS,
) -> list[Row]:
    """Step 1 with its requests before and after the first product, and step 2, fp16. ratio: times as fast as step 1 as
    it is, the median of the runs; low and high are the extreme runs."""
    rows: list[Row] = []
    for head_dim, is_causal, length in itertools.product(head_dims, (False, True), lengths):
        inputs = random_inputs((tokens // length, width // head_dim, length, head_dim), device)
        functions = {step.title: step_function(step, *inputs, is_causal) for step in ORDERS}
        _require_right(functions, *inputs, is_causal=is_causal)
        where = {"part": "copies", "head_dim": head_dim, "is_causal": is_causal, "length": length}
        flops = costs.attention_flops(*inputs[0].shape[:2], length, length, head_dim, is_causal)
        times = interleaved(functions, LADDER[0].title, RUNS, budget_ms=BUDGET_MS, head_start_us=HEAD_START_US)
        for name, (time, ratios) in times.items():
            row = where | {"name": name, **columns(time), "tflop_per_s": flops / time.median / 1e9}
            rows.append(row | {"ratio": statistics.median(ratios), "low": min(ratios), "high": max(ratios)})
    return rows


def without_a_part(
    *,
    device: str = "cuda",
    tokens: int = TOKENS,
    width: int = WIDTH,
    length: int = 16384,
    head_dims: Sequence[int] = HEAD_DIMS,
    steps: Sequence[Step] = PRODUCERS,
) -> list[Row]:
    """Each step whole, without its softmax and without its products, fp16, not causal. share: of the whole step's time,
    the median of the runs; low and high are the extreme runs."""
    rows: list[Row] = []
    for head_dim, step in itertools.product(head_dims, steps):
        inputs = random_inputs((tokens // length, width // head_dim, length, head_dim), device)
        kernels = _kernels(step.title, head_dim)
        functions = {left_out: step_function(step, *inputs, False, kernel) for left_out, kernel in kernels.items()}
        _require_right({WHOLE: functions[WHOLE]}, *inputs, is_causal=False)
        times = interleaved(functions, WHOLE, RUNS, budget_ms=BUDGET_MS, head_start_us=HEAD_START_US)
        for left_out, (time, ratios) in times.items():
            shares = [1 / ratio for ratio in ratios]
            row = {"part": "ablations", "head_dim": head_dim, "length": length, "name": step.title}
            row |= {"without": left_out, **columns(time), "share": statistics.median(shares)}
            rows.append(row | {"low": min(shares), "high": max(shares)})
    return rows


@functools.cache  # what is compiled ahead is what is timed
def _kernels(title: str, head_dim: int) -> dict[str, Kernel]:
    """The kernels of a step of the ladder by what is left out."""
    (step,) = (step for step in LADDER if step.title == title)
    parts = {part: ablations.build(step, head_dim, torch.float16, part) for part in ablations.PARTS}
    return {WHOLE: build(step, head_dim, torch.float16)} | parts


def _require_right(functions: dict[str, Function], *inputs: Tensor, is_causal: bool) -> None:
    """Raises RuntimeError unless each output is as right as `require_as_right_as_cudnn` asks."""
    of_cudnn = {CUDNN: sdpa(BACKENDS[CUDNN], *inputs, is_causal=is_causal)}
    require_as_right_as_cudnn(of_cudnn | functions, *inputs, is_causal)
