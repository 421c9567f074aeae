"""What `bench compiled_step` measures: a training step of chapter 03's block, eager and compiled, with our operator and
with SDPA.

The block is compiled in one graph, loss and optimiser are not. With a large batch the GPU's time dominates, with a
small one the host's.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from course_utils import timing
from course_utils.bench.flash_attention_v2 import (
    ATTENTIONS,
    BUDGET_MS,
    MAX_ERROR,
    OURS,
    STEP_HEAD_START_US,
    Block,
    step_of,
)
from course_utils.bench.timed import columns, random_inputs, require_close, that_run
from course_utils.measured import Row
from course_utils.measured.flash_attention_v2 import COMPILED, EAGER, SDPA

SIZES = (16, 2048), (1, 512)  # batch and length


def compiled_step(
    *,
    device: str = "cuda",
    sizes: Sequence[tuple[int, int]] = SIZES,
    width: int = 768,
    heads: int = 12,
    backend: str = "inductor",
    attentions: Mapping[str, Callable[..., Tensor]] | None = None,
) -> list[Row]:
    """A row for each size, attention and way: the block's step in fp16 (forward, backward, SGD), all interleaved.

    `median_ms` is the step with the host's share, `gpu_ms` the GPU's time alone; `peak_mb` is the step's memory beyond
    the weights. backend: torch.compile's. attentions: by name, SDPA among them; None: chapter 03's and SDPA. A block
    that this machine cannot compile is printed and left out.

    Raises RuntimeError if the output or a gradient of a block differs from SDPA's in eager mode.
    """
    attentions = attentions or {name: ATTENTIONS[name] for name in (OURS, SDPA)}
    return [row for size in sizes for row in _of_size(*size, width, heads, device, backend, attentions)]


def _of_size(
    batch: int,
    length: int,
    width: int,
    heads: int,
    device: str,
    backend: str,
    attentions: Mapping[str, Callable[..., Tensor]],
) -> list[Row]:
    torch.compiler.reset()  # what was compiled for another size counts towards a limit
    models = _models(width, heads, device, backend, attentions)
    inputs = random_inputs((batch, length, width), device, count=2)
    made = {of: lambda model=model: functools.partial(_results, model, *inputs) for of, model in models.items()}
    found = that_run(made, f"B = {batch}, L = {length}")
    _require_alike({of: results() for of, results in found.items()})
    steps = {of: functools.partial(step_of(models[of], length, width, device), batch) for of in found}
    times = timing.compare(steps)
    on_gpu = timing.compare(steps, budget_ms=10 * BUDGET_MS, head_start_us=STEP_HEAD_START_US)
    rows: list[Row] = []
    for of, step in steps.items():
        name, way = of.split(", ")
        row: Row = {"part": "step", "batch": batch, "length": length, "name": name, "way": way}
        row |= columns(times[of]) | {"gpu_ms": on_gpu[of].median}
        rows.append(row | {"peak_mb": timing.peak_memory(step) / 1e6})
    return rows


def _require_alike(results: dict[str, dict[str, Tensor]]) -> None:
    """Raises RuntimeError unless all blocks agree with SDPA's in eager mode."""
    for of, found in results.items():
        for name, expected in results[f"{SDPA}, {EAGER}"].items():
            at_most = MAX_ERROR * expected.abs().max().item()
            require_close(f"{name} of the block, {of},", found[name], expected, at_most=at_most)


def _models(
    width: int, heads: int, device: str, backend: str, attentions: Mapping[str, Callable[..., Tensor]]
) -> dict[str, nn.Module]:
    """The block by attention and way, such as "SDPA, eager", each with the same weights."""
    torch.manual_seed(0)
    first = Block(attentions[SDPA], width, heads).to(device, torch.float16)
    models: dict[str, nn.Module] = {}
    for name, attention in attentions.items():
        for way in (EAGER, COMPILED):
            block = copy.deepcopy(first)
            block.attention = attention
            if way == COMPILED:
                block.compile(backend=backend, fullgraph=True, dynamic=False)
            models[f"{name}, {way}"] = block
    return models


def _results(model: nn.Module, x: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    """The output, and the gradient of each parameter, by name."""
    out = model(x)
    of_out = gradient / math.sqrt(gradient[..., 0].numel())  # that of a mean would be 0 in 16 bits
    names, parameters = zip(*model.named_parameters(), strict=True)
    return {"out": out.detach()} | dict(zip(names, torch.autograd.grad(out, parameters, of_out), strict=True))
