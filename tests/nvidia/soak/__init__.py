"""Shapes that are launched again and again in an order of chance, and how often one differs from its first launch.

`dense` and `sparse` make the shapes. In two of three there are more items than an H100 or H200 has multiprocessors, so
that blocks fetch a second item, and where there are MANY_ITEMS a third.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from course_utils import measured
from course_utils.checks import AttentionCase
from course_utils.costs import ceil_div
from course_utils.operators.hopper_launch import E4M3_TILES, TILES

SEED = 7
MANY_ITEMS = 300  # more than twice the 132 multiprocessors of an H100 or H200
BLOCK_ROWS = max(tile.block_rows for tiles in (*TILES.values(), E4M3_TILES.values()) for tile in tiles)


class Shape(NamedTuple):
    """columns: what its row says of it. launch: on inputs made once. first: what the launch gave that was compared with
    float64."""

    columns: measured.Row
    launch: Callable[[], tuple[Tensor, ...]]
    first: tuple[Tensor, ...]


def fewest_items(case: AttentionCase) -> int:
    """Of the largest blocks, how many cover its queries: it has so many items, or more."""
    return case.batch * case.heads * ceil_div(case.query_length, BLOCK_ROWS)


def batch_of_many_items(heads: int, query_length: int, items: int = MANY_ITEMS) -> int:
    """The least batch that gives a case so many items."""
    return ceil_div(items, heads * ceil_div(query_length, BLOCK_ROWS))


def columns(case: AttentionCase, dtype: torch.dtype) -> measured.Row:
    """The columns of a case's dtype and shapes."""
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "query": [case.batch, case.heads, case.query_length, case.head_dim],
        "key": [case.batch, case.kv_heads, case.key_length, case.head_dim],
    }


def soak(launches: int, shapes: Sequence[Shape]) -> list[measured.Row]:
    """A row for each shape: its launches after the first, and how many of them differ from it in a bit."""
    differ = torch.zeros(len(shapes), dtype=torch.int64, device=shapes[0].first[0].device)
    order = random.Random(SEED).choices(range(len(shapes)), k=launches)
    for n in tqdm(order, desc="launches"):
        same = [
            torch.eq(a.view(torch.uint8), b.view(torch.uint8)).all()
            for a, b in zip(shapes[n].launch(), shapes[n].first, strict=True)
        ]
        differ[n] += ~functools.reduce(torch.logical_and, same)
    return [shape.columns | {"launches": order.count(n), "differ": int(differ[n])} for n, shape in enumerate(shapes)]
