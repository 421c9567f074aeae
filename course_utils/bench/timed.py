"""Timed functions: functions without arguments, of our kernels and of their peers, after a check of their outputs.

Peers and own kernels run interleaved in one process; see `timing.compare`. Times are medians with the interquartile
range as spread, TFLOP/s follow the conventions of `costs`, and peak memory is what torch's allocator held beyond the
inputs.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from tqdm import tqdm

from course_utils import costs, timing
from course_utils.cuda import Kernel, RawModule, read_kernel
from course_utils.measured import Row
from course_utils.patterns import Pattern
from course_utils.timing import Timing
from course_utils.toolchain import nvrtc

KERNELS = Path(__file__).parent / "kernels"  # kernels that only a benchmark launches
BATCH, HEADS, HEAD_DIM = 16, 12, 64  # the shape of the timings in chapters 01 and 02
MAX_ERROR = 1e-3  # an fp32 kernel further than this from torch is wrong, and its time means nothing
MAX_HALF_ERROR = {torch.float16: 2e-2, torch.bfloat16: 8e-2}  # between two right kernels

Function = Callable[[], object]


# ---------------------------------------------------------------------------------------------- a chapter


def all_parts(parts: Iterable[Callable[[], list[Row]]]) -> list[Row]:
    """The rows of every part of a chapter; prints how long each took."""
    rows: list[Row] = []
    for part in tqdm(parts, desc="parts"):
        start = time.perf_counter()
        rows += part()
        tqdm.write(f"{part.__name__}: {time.perf_counter() - start:.0f} s")
        torch.cuda.empty_cache()
    return rows


def compile_ahead(modules: Iterable[RawModule], device: str) -> None:
    """Compiles modules for a device, several at a time: one alone takes NVRTC seconds."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda module: module.compile(device), modules))


# ---------------------------------------------------------------------------------------------- functions


def build_kernel(file: str | Path, name: str, options: tuple[str, ...] = ()) -> Kernel:
    """A kernel of a file, as for `read_kernel`, compiled at its first launch."""
    return RawModule(code=read_kernel(file), options=options).get_function(name)


def by_kernel(backend: SDPBackend) -> Callable[..., Tensor]:
    """One of torch's own kernels, called as `scaled_dot_product_attention` is."""

    def attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(query, key, value, **options)

    return attention


def sdpa(backend: SDPBackend, *inputs: Tensor, **options: Any) -> Function:
    """A function without arguments that runs one of torch's own kernels on query, key and value."""
    return functools.partial(by_kernel(backend), *inputs, **options)


def call_ms(backend: SDPBackend, *inputs: Tensor, **options: Any) -> float:
    """Milliseconds of a call of one of torch's own kernels when many follow one another, without the choice of the
    kernel, which takes the host as long as launching it."""
    with sdpa_kernel(backend):
        return timing.time_calls(functools.partial(scaled_dot_product_attention, *inputs, **options))


def backward_pass(forward: Callable[..., Tensor], *tensors: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """The backward pass alone of `forward(*inputs)`, which runs once, here: returns the gradient of each input.

    tensors: the inputs, and the gradient of the output.
    """
    *inputs, grad_output = tensors
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    out = forward(*leaves)
    return lambda: torch.autograd.grad(out, leaves, grad_output, retain_graph=True)


def that_run(made: dict[str, Callable[[], Function]], where: str) -> dict[str, Function]:
    """The functions that can be made and run on this machine; for the others the reason is printed."""
    functions: dict[str, Function] = {}
    for name, make in made.items():
        try:
            function = make()
            function()
        except Exception as error:  # torch.compile lets errors of Triton and of the C compiler through
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            print(f"{name} is left out at {where}: {reason}")
        else:
            functions[name] = function
    return functions


# ---------------------------------------------------------------------------------------------- inputs


def random_inputs(
    shape: tuple[int, ...], device: str, dtype: torch.dtype = torch.float16, *, count: int = 3
) -> tuple[Tensor, ...]:
    """Random normal query, key and value, or `count` tensors; zeros would run faster than real data."""
    return tuple(torch.randn(shape, device=device, dtype=dtype) for _ in range(count))


def fitting(lengths: tuple[int, ...], batch: int, heads: int, device: str) -> list[int]:
    """The lengths whose score matrices, at most eight at a time, fit in the free memory."""
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else math.inf
    needed = {length: 8 * costs.score_matrix_bytes(batch, heads, length, length, 4) for length in lengths}
    for length, count in needed.items():
        if count > free:
            print(f"L = {length} is left out: it takes up to {count / 1e9:.0f} GB, and {free / 1e9:.0f} GB are free")
    return [length for length, count in needed.items() if count <= free]


# ---------------------------------------------------------------------------------------------- times


def interleaved(
    functions: dict[str, Function], base: str, runs: int, *, once: tuple[str, ...] = (), **options: float
) -> dict[str, tuple[Timing, list[float]]]:
    """By function the median time over the runs, and in each run how many times as fast as `base` it is; functions
    named in `once` take part in the first run only. options: for `timing.compare`."""
    times: dict[str, list[Timing]] = {name: [] for name in functions}
    ratios: dict[str, list[float]] = {name: [] for name in functions}
    for run in range(runs):
        taking_part = {name: fn for name, fn in functions.items() if run == 0 or name not in once}
        found = timing.compare(taking_part, **options)
        for name, time_of in found.items():
            times[name].append(time_of)
            ratios[name].append(found[base].median / time_of.median)
    return {name: (median_of(of_name), ratios[name]) for name, of_name in times.items()}


# ---------------------------------------------------------------------------------------------- rows


def columns(taken: Timing) -> Row:
    """The columns of a time."""
    return {"median_ms": taken.median, "spread_ms": taken.spread}


def median_of(times: Sequence[Timing]) -> Timing:
    """The median of each figure of several runs."""
    return Timing(*(statistics.median(figures) for figures in zip(*times, strict=True)))


class Launched(NamedTuple):
    """A kernel of a source, how it is compiled, and threads and bytes of dynamic shared memory of its blocks."""

    source: str
    kernel: str
    options: tuple[str, ...]
    threads: int
    shared_bytes: int


def resources(launched: Mapping[Hashable, Launched], arch: str) -> dict[Hashable, Row]:
    """By key: columns of a kernel's resources, as the compiler reports them, and how many of its blocks fit on a
    multiprocessor."""

    def of_one(one: Launched) -> Row:
        found = nvrtc.compile_kernel(one.source, arch, one.options).resources[one.kernel]
        occupancy = nvrtc.occupancy(found, one.threads, one.shared_bytes, arch)
        return {
            "registers": found.registers,
            "spill_bytes": found.spill_stores + found.spill_loads,
            "shared_bytes": found.static_shared + one.shared_bytes,
            "blocks_per_sm": occupancy.blocks,
            "occupancy": occupancy.fraction,
            "limited_by": occupancy.limited_by,
        }

    with ThreadPoolExecutor(8) as pool:
        return dict(zip(launched, pool.map(of_one, launched.values()), strict=True))


# ---------------------------------------------------------------------------------------------- right or not timed


def require_close(name: str, out: Tensor, expected: Tensor, *, at_most: float = MAX_ERROR) -> None:
    """Raises RuntimeError unless the output is right; `checks` tests more closely."""
    error = (out - expected).abs().max().item()
    if not error <= at_most:
        raise RuntimeError(f"{name} is off by {error:.2e} from plain torch (at most {at_most}): not timed")


def require_right(name: str, out: Tensor, query: Tensor, key: Tensor, value: Tensor, pattern: Pattern) -> None:
    """Raises RuntimeError unless 32 rows of the output, the first and last among them, equal fp32 torch."""
    rows, expected = some_rows(query, key, value, pattern)
    require_close(f"{name}, {pattern.name}", out[:, :, rows], expected, at_most=MAX_HALF_ERROR[query.dtype])


def some_rows(query: Tensor, key: Tensor, value: Tensor, pattern: Pattern) -> tuple[Tensor, Tensor]:
    """32 rows, the first and last among them, and their output by fp32 torch. Query heads may share key heads."""
    query_length, key_length, device = query.shape[2], key.shape[2], query.device
    group = query.shape[1] // key.shape[1]
    key, value = (tensor.float().repeat_interleave(group, dim=1) for tensor in (key, value))
    rows = torch.linspace(0, query_length - 1, min(query_length, 32)).long().to(device)
    head = torch.zeros((), dtype=torch.long, device=device)
    mask_mod = pattern.flex_mask_mod(query_length, key_length, device)
    keep = mask_mod(head, head, rows[:, None], torch.arange(key_length, device=device)[None])
    scores = query[:, :, rows].float() @ key.mT * query.shape[-1] ** -0.5
    weights = scores.masked_fill(~keep, -torch.inf).softmax(-1).nan_to_num(0)  # a row without a key: 0
    return rows, weights @ value
