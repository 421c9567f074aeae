"""What `bench pipeline` measures: when the steps of chapter 07's kernels begin and end in one block, for its viewer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from course_utils import timing
from course_utils.bench.timed import random_inputs
from course_utils.launches import timestamps
from course_utils.launches.hopper import LADDER, Step, ready
from course_utils.measured import Row
from course_utils.operators.tensor_core import HEAD_DIMS

LENGTH, BATCH, WIDTH = 4096, 4, 2048  # every multiprocessor has work for several rounds
CYCLES = 30_000  # that are kept, from the first moment on


def pipeline(
    *,
    device: str = "cuda",
    batch: int = BATCH,
    width: int = WIDTH,
    length: int = LENGTH,
    head_dims: Sequence[int] = HEAD_DIMS,
    steps: Sequence[Step] = LADDER,
) -> list[Row]:
    """A row for each step of the ladder and head dimension, fp16, not causal.

    sites, moments: as `timestamps.to_text` writes them; of the block's first 30,000 cycles. slower: how many times as
    long the kernel takes with the notes; None on the emulator.
    """
    rows: list[Row] = []
    for head_dim, step in itertools.product(head_dims, steps):
        inputs = random_inputs((batch, width // head_dim, length, head_dim), device)
        found = timestamps.record(step, *inputs)
        first = min(moment.begin for moment in found)
        early = [moment for moment in found if moment.begin < first + CYCLES]
        columns = {"part": "pipeline", "name": step.title, "head_dim": head_dim, "length": length}
        rows.append(columns | {"slower": _slower(step, *inputs), **timestamps.to_text(early)})
    return rows


def _slower(step: Step, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> float | None:
    if not query.is_cuda:
        return None
    out, lse = torch.empty_like(query), query.new_empty(query.shape[:3], dtype=torch.float32)
    kernels = {"plain": None, "noted": timestamps.build(step, query.shape[-1], query.dtype)[0]}
    functions = {name: ready(step, query, key, value, out, lse, kernel=kernel) for name, kernel in kernels.items()}
    times = timing.compare(functions, budget_ms=100)
    return times["noted"].median / times["plain"].median
