"""Patterns in which a query sees only itself and what lies before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_utils.arguments import integer
from course_utils.patterns.arguments import MAX_LENGTH, integers
from course_utils.patterns.definition import Blocks, Definition, Mask, Shape, keep
from course_utils.patterns.pattern import Pattern, range_pattern, refuse_in_graph
from course_utils.patterns.ranges import UNBOUNDED, Ranges, define_ranges


def causal() -> Pattern:
    """Every key up to the query: j <= i."""
    return range_pattern("causal", {}, Ranges(left=UNBOUNDED, right=1))


def sliding_window(window: int) -> Pattern:
    """The last `window` keys, the query's own among them: 0 <= i - j < window.

    Mistral's text counts one key more, i - window to i; its picture agrees with this one.
    """
    window = integer("window", window, 1, MAX_LENGTH)
    return range_pattern("sliding_window", {"window": window}, Ranges(left=window - 1, right=1))


def dilated(window: int, dilation: int) -> Pattern:
    """Every dilation-th key, `window` of them: 0 <= i - j < window · dilation and (i - j) % dilation == 0.

    In a class of positions with the same i % dilation this is a sliding window.
    """
    window, dilation = integer("window", window, 1, MAX_LENGTH), integer("dilation", dilation, 1, MAX_LENGTH)
    ranges = Ranges(left=window - 1, right=1, dilation=dilation)

    parameters = {"window": window, "dilation": dilation}

    def define(shape: Shape) -> Definition:
        offsets = torch.arange(0, min(window * dilation, shape.L_k), dilation, device="cpu")
        definition = define_ranges(ranges, shape)
        return definition._replace(keys=_define_offsets(definition.mask, offsets, shape).keys, width=len(offsets))

    return range_pattern("dilated", parameters, ranges, define=define)


def streaming(sinks: int, window: int) -> Pattern:
    """StreamingLLM: the first `sinks` keys and the last `window`, never past the query: j < sinks or i - j < window."""
    sinks, window = integer("sinks", sinks, 0, MAX_LENGTH), integer("window", window, 1, MAX_LENGTH)
    return range_pattern("streaming", {"sinks": sinks, "window": window}, Ranges(sinks, window - 1, 1))


def power_of_two() -> Pattern:
    """LogSparse: the query's own key and those 1, 2, 4, 8 … before it."""

    def mask(i: Tensor, j: Tensor) -> Tensor:
        offset = i - j
        return (offset >= 0) & ((offset & (offset - 1)) == 0)

    def offsets(length: int) -> Tensor:
        return torch.tensor([0] + [2**n for n in range(31) if 2**n < length], device="cpu")

    return _offset_pattern("power_of_two", {}, mask, offsets)


def strided(stride: int) -> Pattern:
    """Sparse Transformer, strided: the keys i - stride to i, and every stride-th before: (i - j) % stride == 0.

    The first part holds stride + 1 keys, as the paper writes it.
    """
    stride = integer("stride", stride, 1, MAX_LENGTH)

    def mask(i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & ((i - j <= stride) | ((i - j) % stride == 0))

    def offsets(length: int) -> Tensor:
        offset = torch.arange(length, device="cpu")
        return offset[(offset <= stride) | (offset % stride == 0)]

    return _offset_pattern("strided", {"stride": stride}, mask, offsets)


def fixed(stride: int, columns: int) -> Pattern:
    """Sparse Transformer, fixed: the keys of the query's own block of `stride`, and the last `columns` of each block.

    j <= i, and floor(j / stride) == floor(i / stride) or j % stride >= stride - columns.
    """
    stride = integer("stride", stride, 1, MAX_LENGTH)
    columns = integer("columns", columns, 1, stride)

    def mask(i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & ((i // stride == j // stride) | (j % stride >= stride - columns))

    def define(shape: Shape) -> Definition:
        j = torch.arange(shape.L_k, device=shape.device)
        summaries, inside = j[j % stride >= stride - columns], j[:stride]

        def keys(first: int, end: int) -> tuple[Tensor, Tensor]:
            i = torch.arange(first, end, device=shape.device)[:, None] + shape.shift
            start = i // stride * stride
            own = start + inside
            earlier = summaries.expand(end - first, -1)
            return keep(torch.cat([earlier, own], 1), first, torch.cat([earlier < start, own <= i], 1) & (i >= 0))

        return Definition(mask, keys=keys, width=len(summaries) + len(inside))

    return Pattern("fixed", {"stride": stride, "columns": columns}, define, mask=mask)


def tree(parents: Any) -> Pattern:
    """Speculative decoding: each token sees itself, its parent, the parent's parent, and so on.

    parents: for each of the L_k tokens the number of an earlier token, or -1 for a root.
    """
    refuse_in_graph("tree()")
    parent = integers("parents", parents)
    if not len(parent):
        raise ValueError("parents is empty; it must have an entry for each token")
    wrong = np.flatnonzero((parent < -1) | (parent >= np.arange(len(parent))))
    if len(wrong):
        n = wrong[0]
        raise ValueError(f"parents[{n}] is {parent[n]}; it must be from -1 (a root) to {n - 1} (an earlier token)")
    entered, left = _tour(parent.tolist())
    depths = torch.from_numpy(_depths(parent.tolist()))

    def define(shape: Shape) -> Definition:
        if shape.L_k != len(parent):
            raise ValueError(f"parents has {len(parent)} tokens; L_k is {shape.L_k}, and both must be equal")
        return _define_tree(torch.from_numpy(parent), entered, left, depths, shape)

    any_shape = Shape(len(parent), len(parent), torch.device("cpu"))
    return Pattern("tree", {"parents": tuple(parent.tolist())}, define, mask=define(any_shape).mask)


def _define_tree(parent: Tensor, entered: Tensor, left: Tensor, depths: Tensor, shape: Shape) -> Definition:
    parent, entered, left = (table.to(shape.device) for table in (parent, entered, left))

    def mask(i: Tensor, j: Tensor) -> Tensor:
        # j is above i in the tree iff the tour is inside j's subtree when it enters i.
        at, start, end = (table.to(i.device) for table in (entered, entered, left))
        when = at[i.clamp(min=0)]
        return (start[j] <= when) & (when < end[j]) & (i >= 0)

    def blocks(block: int) -> Blocks:
        rows, columns = shape.blocks(block)
        # From each block of queries, climb until there is no token left: within a block of keys at once, to the first
        # ancestor outside of it.
        token = torch.arange(shape.L_k, device=shape.device)
        out = parent
        while (inside := (out >= 0) & (out // block == token // block)).any():
            out = torch.where(inside, out[out.clamp(min=0)], out)
        query = token[max(shape.shift, 0) :]
        row, token = (query - shape.shift) // block, query
        found = [row[:0]]
        while len(token):
            found.append(torch.unique(row * columns + token // block))
            row, token = row[out[token] >= 0], out[token][out[token] >= 0]
            both = torch.unique(row * shape.L_k + token)
            row, token = both // shape.L_k, both % shape.L_k
        codes = torch.unique(torch.cat(found))
        # All keys of a block are above all queries of another iff their subtrees' common part holds all those queries.
        padding = columns * block - shape.L_k
        latest = torch.nn.functional.pad(entered, (0, padding), value=shape.L_k).view(columns, block).amax(1)
        earliest = torch.nn.functional.pad(left, (0, padding), value=0).view(columns, block).amin(1)
        query = torch.arange(rows * block, device=shape.device).clamp(max=shape.L_q - 1) + shape.shift
        when = torch.where(query >= 0, entered[query.clamp(min=0)], -1).view(rows, block)
        row, column = codes // columns, codes % columns
        return Blocks(codes, (latest[column] <= when.amin(1)[row]) & (when.amax(1)[row] < earliest[column]))

    def keys(first: int, end: int) -> tuple[Tensor, Tensor]:
        node = torch.arange(first, end, device=shape.device) + shape.shift
        path = [node]
        while (node >= 0).any():
            node = torch.where(node >= 0, parent[node.clamp(min=0)], -1)
            path.append(node)
        table = torch.stack(path[::-1], 1)
        return keep(table, first, table >= 0)

    def pairs() -> int:
        return int(depths[max(shape.shift, 0) :].sum())

    # A bushy tree has few keys a row, in almost as many blocks: there, the keys lead to the blocks.
    bushy = len(depths) * 256 > int(depths.sum())
    return Definition(mask, None if bushy else blocks, keys, pairs, width=int(depths.max()))


def _tour(parents: list[int]) -> tuple[Tensor, Tensor]:
    """When a walk through the tree enters each token, and the first time after it has left its subtree, int32 `[n]`."""
    sizes = [1] * len(parents)
    for token in range(len(parents) - 1, -1, -1):
        if parents[token] >= 0:
            sizes[parents[token]] += sizes[token]
    entered, free, roots = [0] * len(parents), [0] * len(parents), 0
    for token, parent in enumerate(parents):
        if parent < 0:
            entered[token], roots = roots, roots + sizes[token]
        else:
            entered[token], free[parent] = free[parent], free[parent] + sizes[token]
        free[token] = entered[token] + 1
    start = torch.tensor(entered, dtype=torch.int32, device="cpu")
    return start, start + torch.tensor(sizes, dtype=torch.int32, device="cpu")


def _depths(parents: list[int]) -> np.ndarray:
    """The number of tokens from each token up to its root, both counted."""
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return np.array(depths)


# ---- patterns of i - j only


def _define_offsets(mask: Mask, offsets: Tensor, shape: Shape) -> Definition:
    """offsets: the kept i - j below L_k, ascending."""
    kept = offsets.to(shape.device)

    def blocks(block: int) -> Blocks:
        # Offset d lies in blocks whose row minus column is floor((d - shift) / block), or one more.
        rows, columns = shape.blocks(block)
        least = (kept - shape.shift) // block
        distance = torch.unique(torch.cat([least, least + 1]))
        row = torch.arange(rows, device=shape.device)[:, None]
        column = row - distance.flip(0)
        codes = (row * columns + column)[(column >= 0) & (column < columns)]
        return Blocks(codes, torch.zeros_like(codes, dtype=torch.bool))

    def keys(first: int, end: int) -> tuple[Tensor, Tensor]:
        table = torch.arange(first, end, device=shape.device)[:, None] + shape.shift - kept.flip(0)
        return keep(table, first, table >= 0)

    def pairs() -> int:
        # Offset d keeps the positions i from max(d, first position) to L_k - 1.
        return int((shape.L_k - kept.clamp(min=max(shape.shift, 0))).clamp(min=0).sum())

    return Definition(mask, blocks, keys, pairs, width=len(kept), shift_invariant=True)


def _offset_pattern(kind: str, parameters: dict[str, Any], mask: Mask, offsets: Callable[[int], Tensor]) -> Pattern:
    """offsets(length): the kept i - j below length, ascending."""
    return Pattern(kind, parameters, lambda shape: _define_offsets(mask, offsets(shape.L_k), shape), mask=mask)
