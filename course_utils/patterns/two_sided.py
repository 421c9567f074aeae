"""Patterns in which a query also sees later keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_utils.arguments import integer
from course_utils.patterns.arguments import MAX_LENGTH, integers
from course_utils.patterns.definition import (
    Blocks,
    Definition,
    RowRanges,
    Shape,
    expand,
    rectangle_blocks,
    row_positions,
    span_blocks,
    unite,
)
from course_utils.patterns.pattern import Pattern, range_pattern, refuse_in_graph
from course_utils.patterns.ranges import Ranges


def full() -> Pattern:
    """Every key."""
    return range_pattern("full", {}, Ranges())


def local(radius: int) -> Pattern:
    """The keys on both sides: |i - j| <= radius. Longformer's w is 2 · radius."""
    radius = integer("radius", radius, 0, MAX_LENGTH - 1)
    return range_pattern("local", {"radius": radius}, Ranges(left=radius, right=radius + 1))


def block_diagonal(block: int) -> Pattern:
    """The keys of the query's own block of `block`: floor(i / block) == floor(j / block)."""
    block = integer("block", block, 1, MAX_LENGTH)
    return range_pattern("block_diagonal", {"block": block}, Ranges(left=0, right=block, step=block))


def local_2d(height: int, width: int, radius: int) -> Pattern:
    """Patches of an image, row by row: a patch sees those at most `radius` rows and `radius` columns away.

    Chebyshev distance: max(|y_i - y_j|, |x_i - x_j|) <= radius, with y = i // width, x = i % width. L_k must be
    height · width.
    """
    height, width = integer("height", height, 1, MAX_LENGTH), integer("width", width, 1, MAX_LENGTH)
    radius = integer("radius", radius, 0, MAX_LENGTH - 1)

    def mask(i: Tensor, j: Tensor) -> Tensor:
        dy, dx = i // width - j // width, i % width - j % width
        return (dy.abs() <= radius) & (dx.abs() <= radius) & (i >= 0)

    def define(shape: Shape) -> Definition:
        if shape.L_k != height * width:
            raise ValueError(
                f"height · width is {height} · {width} = {height * width}; L_k is {shape.L_k}, and both must be equal"
            )

        def blocks(block: int) -> Blocks:
            # One span of keys for each row of the image that lies at most `radius` away.
            first, last = row_positions(shape, block)
            exists, reach, wide = last >= 0, min(radius, height - 1), min(radius, width - 1)
            spans = [
                span_blocks(
                    shape,
                    block,
                    (first.clamp(min=0) + dy * width - wide, torch.where(exists, last + dy * width + wide + 1, 0)),
                    None,
                )
                for dy in range(-reach, reach + 1)
            ]
            return unite(*spans)

        return Definition(mask, blocks)

    return Pattern("local_2d", {"height": height, "width": width, "radius": radius}, define, mask=mask)


def document(lengths: Any) -> Pattern:
    """Documents of these lengths, one behind the other: a query sees the keys of its own. Their sum must be L_k.

    A row is a range of keys, from the start of its document to the end: two arrays of L_q numbers, and no lists. The
    same holds for `document(...) & causal()`, and with a window in place of `causal()`.
    """
    refuse_in_graph("document()")
    sizes = integers("lengths", lengths)
    if not len(sizes):
        raise ValueError("lengths is empty; it must have the length of at least one document")
    if sizes.min() < 1:
        n = int(np.flatnonzero(sizes < 1)[0])
        raise ValueError(f"lengths[{n}] is {sizes[n]}; a document has at least 1 token")
    total = int(sizes.sum())
    integer("the sum of lengths", total, 1, MAX_LENGTH)
    # Position -1, before the first document, has the number -1.
    numbers = torch.from_numpy(np.repeat(np.arange(-1, len(sizes)), [1, *sizes])).int()

    def define(shape: Shape) -> Definition:
        if shape.L_k != total:
            raise ValueError(f"lengths has the sum {total}; L_k is {shape.L_k}, and both must be equal")
        table = numbers.to(shape.device)

        def mask(i: Tensor, j: Tensor) -> Tensor:
            document_of = table.to(i.device)
            return document_of[i.clamp(min=-1) + 1] == document_of[j + 1]

        def blocks(block: int) -> Blocks:
            end = torch.from_numpy(sizes.cumsum()).to(shape.device)
            start = end - torch.from_numpy(sizes).to(shape.device)
            return rectangle_blocks(shape, block, (start, end), (start, end))

        def rows() -> RowRanges:
            ends = torch.from_numpy(np.concatenate([[0], sizes.cumsum()])).int().to(shape.device)
            # Behind each document's number, its start and its end; before the first one there are no keys.
            of_row = table[torch.arange(shape.shift, shape.L_k, device=shape.device).clamp(min=-1) + 1].long()
            return RowRanges(ends[of_row.clamp(min=0)], ends[of_row + 1])

        return Definition(mask, blocks, pairs=lambda: rows().pairs(), rows=rows)

    any_shape = Shape(total, total, torch.device("cpu"))
    return Pattern("document", {"lengths": tuple(sizes.tolist())}, define, mask=define(any_shape).mask)


def global_tokens(positions: Any) -> Pattern:
    """Longformer's global tokens, both ways: i or j is one of `positions`. Those past the last key have no effect."""
    refuse_in_graph("global_tokens()")
    chosen = np.unique(integers("positions", positions))
    if not len(chosen):
        raise ValueError("positions is empty; it must have at least one position")
    if chosen[0] < 0 or chosen[-1] >= MAX_LENGTH:
        wrong = chosen[0] if chosen[0] < 0 else chosen[-1]
        raise ValueError(f"positions has {wrong}; a position is from 0 to {MAX_LENGTH - 1}")

    def define(shape: Shape) -> Definition:
        positions = torch.from_numpy(chosen).to(shape.device)
        # Entry 0 stands for positions before the first key, the last for those behind the last chosen one.
        is_global = torch.zeros(int(chosen[-1]) + 3, dtype=torch.bool, device=shape.device)
        is_global[positions + 1] = True
        within = positions[positions < shape.L_k]

        def mask(i: Tensor, j: Tensor) -> Tensor:
            table = is_global.to(i.device)
            return table[(i + 1).clamp(0, len(table) - 1)] | table[(j + 1).clamp(0, len(table) - 1)]

        def blocks(block: int) -> Blocks:
            rows, columns = shape.blocks(block)
            every_row = torch.arange(rows, device=shape.device)[:, None]
            every_column = torch.arange(columns, device=shape.device)
            some_rows = torch.unique((within[within >= shape.shift] - shape.shift) // block)[:, None]
            some_columns = torch.unique(within // block)
            codes = [(some_rows * columns + every_column).flatten(), (every_row * columns + some_columns).flatten()]
            codes = torch.unique(torch.cat(codes))
            return Blocks(codes, torch.zeros_like(codes, dtype=torch.bool))

        def keys(first: int, end: int) -> tuple[Tensor, Tensor]:
            position = torch.arange(first, end, device=shape.device) + shape.shift
            whole = is_global[(position + 1).clamp(0, len(is_global) - 1)]
            row, number = expand(torch.where(whole, shape.L_k, len(within)))
            some = within if len(within) else within.new_zeros(1)
            key = torch.where(whole[row], number, some[number.clamp(max=len(some) - 1)])
            return row + first, key

        def pairs() -> int:
            whole = int((within >= shape.shift).sum())
            return whole * shape.L_k + (shape.L_q - whole) * len(within)

        return Definition(mask, blocks, keys, pairs)

    any_shape = Shape(1, 1, torch.device("cpu"))
    return Pattern("global_tokens", {"positions": tuple(chosen.tolist())}, define, mask=define(any_shape).mask)
