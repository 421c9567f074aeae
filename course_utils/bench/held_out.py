"""What `bench held_out` measures: sliding windows at sizes for which no kernel was tuned, each beside a neighbour.

Odd windows, lengths that fill no tile, query heads that share key heads, and fewer queries than keys. The neighbour has
a window and a length that are powers of two, as many query heads, and about as much work (the size has up to a third
more), since with less work a GPU is less busy. `of_neighbour` is the efficiency as a multiple of the neighbour's:
useful FLOPs, those of the pairs that the window keeps, by the time. Outputs and gradients are checked before they are
timed, as in `best_peers`; times are of the GPU alone, with a cold L2 cache, taken by turns.
"""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from course_utils import patterns
from course_utils.bench.best_peers import require_gradients, require_outputs
from course_utils.bench.timed import Function, backward_pass, columns, interleaved
from course_utils.measured import Row
from course_utils.measured.sparse_patterns import HEADS, OURS
from course_utils.operators import sparse_attention
from course_utils.operators.tensor_core import HEAD_DIMS

RUNS = 3
TIMES = {"budget_ms": 12.5, "head_start_us": 600.0}  # for each function in each run; longer than the host takes
WINDOWS = {256: (250, 300), 1024: (1000, 1100), 4096: (4000, 4500)}  # a neighbour's window: those held out
NEIGHBOUR = "neighbour"
FLOPS = {"forward": 4, "backward": 10}  # of a pair, for each column of a head: two products, and five


class Size(NamedTuple):
    """A window on a batch of one. Queries are the last of the positions."""

    window: int
    heads: int
    kv_heads: int
    queries: int
    keys: int


def held_out(
    *,
    device: str = "cuda",
    heads: int = HEADS,
    length: int = 16384,
    ragged: int = 8300,
    windows: Mapping[int, Sequence[int]] = WINDOWS,
    head_dims: Sequence[int] = HEAD_DIMS,
) -> list[Row]:
    """A row for each size and pass; the neighbours', too. ragged: a length that fills no tile.

    Raises:
        RuntimeError: an output or a gradient is wrong.
    """
    rows: list[Row] = []
    for head_dim, (window, odd) in itertools.product(head_dims, windows.items()):
        long = Size(window, heads, heads, length, length)
        short = long._replace(queries=length // 2, keys=length // 2)
        grouped = short._replace(heads=2 * heads, kv_heads=heads // 2)
        beside_long = {f"window of {one}": long._replace(window=one) for one in odd}
        beside_long |= {f"L = {n}": long._replace(queries=n, keys=n) for n in (length - 1, length + 1)}
        beside_short = {
            f"L = {ragged}": long._replace(queries=ragged, keys=ragged),
            f"L_q = {short.queries}, L_k = {length}": short._replace(keys=length),
        }
        name = f"GQA {grouped.heads}/{grouped.kv_heads}, L = {grouped.keys}"
        rows += _rows({NEIGHBOUR: long} | beside_long, head_dim, device)
        rows += _rows({NEIGHBOUR: short} | beside_short, head_dim, device)
        rows += _rows({NEIGHBOUR: grouped._replace(kv_heads=grouped.heads), name: grouped}, head_dim, device)
    return rows


def _rows(sizes: Mapping[str, Size], head_dim: int, device: str) -> list[Row]:
    """The rows of sizes that are timed by turns; the neighbour is one of them."""
    functions: dict[str, dict[str, Function]] = {which: {} for which in FLOPS}
    pairs: dict[str, int] = {}  # that all heads keep
    for name, size in sizes.items():
        what, pattern = f"d = {head_dim}, {name}", patterns.sliding_window(size.window)
        *inputs, grad_output = _inputs(size, head_dim, device)
        attend = functools.partial(sparse_attention, pattern=pattern, enable_gqa=True)
        forward = functions["forward"][name] = functools.partial(attend, *inputs)
        backward = functions["backward"][name] = backward_pass(attend, *inputs, grad_output)
        require_outputs(what, {OURS: forward}, inputs, pattern)
        require_gradients(what, {OURS: backward}, inputs, grad_output, pattern)
        pairs[name] = size.heads * pattern.pairs(size.queries, size.keys, device=device)
    rows: list[Row] = []
    for which, of_pass in functions.items():
        for name, (taken, ratios) in interleaved(of_pass, NEIGHBOUR, RUNS, **TIMES).items():
            neighbour = sizes[NEIGHBOUR]
            row: Row = {"part": which, "head_dim": head_dim, "name": name, "of": neighbour.window}
            row |= {"neighbour_heads": neighbour.heads, "neighbour_length": neighbour.keys}
            row |= {"pairs": pairs[name], **columns(taken)}
            row["useful_tflop_per_s"] = FLOPS[which] * head_dim * pairs[name] / taken.median / 1e9
            work = pairs[name] / pairs[NEIGHBOUR]
            row["of_neighbour"] = work * statistics.median(ratios)
            rows.append(row | {"low": work * min(ratios), "high": work * max(ratios)})
    return rows


def _inputs(size: Size, head_dim: int, device: str) -> tuple[Tensor, ...]:
    """Query, key, value and the gradient of the output, random, in fp16."""
    shapes = (size.heads, size.queries), *2 * ((size.kv_heads, size.keys),), (size.heads, size.queries)
    return tuple(torch.randn(1, *shape, head_dim, device=device, dtype=torch.float16) for shape in shapes)
