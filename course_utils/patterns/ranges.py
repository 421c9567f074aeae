"""Patterns whose keys are a range that moves with the query: tiles from arithmetic, nothing to look up."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from course_utils.patterns.definition import (
    Blocks,
    Definition,
    RowRanges,
    Shape,
    row_positions,
    span_blocks,
    unite,
)

UNBOUNDED = 2**30  # an open end of a range


class Ranges(NamedTuple):
    """The query at position i sees key j iff (i - j) % dilation == 0 and, with i' = floor(i / dilation),
    j' = floor(j / dilation), base = floor(i' / step) · step:

        base - left <= j' < base + right    or    j' < sinks and j' < base + right

    for every i, also below 0. UNBOUNDED stands for an open end. sinks > 0 only with dilation and step 1.
    """

    sinks: int = 0
    left: int = UNBOUNDED
    right: int = UNBOUNDED
    step: int = 1
    dilation: int = 1


def define_ranges(ranges: Ranges, shape: Shape) -> Definition:
    """The pattern of some ranges."""
    sinks, left, right, step, dilation = ranges

    # With step 1 no division is needed: in one residue class, i' - j' = (i - j) / dilation.
    scale = dilation if step == 1 else 1
    most, least = min(left * scale, UNBOUNDED), max(-right * scale, -UNBOUNDED)

    def mask(i: Tensor, j: Tensor) -> Tensor:
        behind = i - j if step == 1 else i // dilation // step * step - j // dilation
        near = behind <= most
        kept = (behind > least) & (near | (j < sinks) if sinks else near)
        return kept & ((i - j) % dilation == 0) if dilation > 1 else kept

    def bounds(i: Tensor) -> tuple[Tensor, Tensor]:  # in keys; of the same residue class only, where dilation > 1
        base = i // dilation // step * step
        return (base - left) * dilation, (base + right) * dilation

    def blocks(block: int) -> Blocks:
        first, last = row_positions(shape, block)
        (low, least_end), (greatest_low, end) = bounds(first), bounds(last)
        found = span_blocks(shape, block, (low, end), (greatest_low, least_end) if dilation == 1 else None)
        if not sinks:
            return found
        zero = torch.zeros_like(low)
        return unite(found, span_blocks(shape, block, (zero, end.clamp(max=sinks)), (zero, least_end.clamp(max=sinks))))

    def pairs() -> int:
        i = torch.arange(shape.shift, shape.L_k, device=shape.device)
        base, residue = i // dilation // step * step, i % dilation
        keys = (shape.L_k - residue + dilation - 1) // dilation  # keys of that residue class
        low, end = (base - left).clamp(min=0), torch.minimum(base + right, keys)
        return int((end - low).clamp(min=0).sum() + torch.minimum(low, end).clamp(0, sinks).sum())

    def rows() -> RowRanges:
        low, end = bounds(torch.arange(shape.shift, shape.L_k, device=shape.device))
        return RowRanges(low.clamp(0, shape.L_k).int(), end.clamp(0, shape.L_k).int())

    one_range = dilation == 1 and not sinks
    return Definition(
        mask, blocks, pairs=pairs, rows=rows if one_range else None, shift_invariant=step == 1 and not sinks
    )
