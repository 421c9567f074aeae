"""Patterns from elsewhere: a FlexAttention mask_mod, and CSR."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course_utils.patterns.arguments import integers
from course_utils.patterns.definition import Definition, Shape
from course_utils.patterns.pattern import Pattern, refuse_in_graph

_LENGTHS = (131072, 8192, 1024, 256, 64, 16, 4, 1)  # a mask_mod is tried at the largest that its tables take
_HEADS = [(n, n) for n in range(1, 32)] + [(1, 0), (0, 1), (3, 64), (64, 3)]  # (b, h) that must give what (0, 0) gives


def from_mask_mod(fn: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> Pattern:
    """A FlexAttention mask_mod: fn(b, h, i, j) -> bool for integer tensors that broadcast; i is the query's POSITION.

    fn must give the same for every b and h, which is tried for some, and the same at each call. Nothing is known of it
    but its values, so that block lists evaluate all L_q · L_k pairs, a part at a time: the time is quadratic, the
    memory is not. Combined by & with a pattern that knows its blocks, fn is evaluated in those only. Tensors that fn
    looks up must lie on the device that it is used on.
    """
    refuse_in_graph("from_mask_mod()")
    if not callable(fn):
        raise TypeError(f"fn is {fn!r}; it must be a function fn(b, h, i, j) -> bool tensor")
    _probe(fn)

    def mask(i: Tensor, j: Tensor) -> Tensor:
        zero = torch.zeros((), dtype=torch.int32, device=i.device)
        return fn(zero, zero, i, j)

    return Pattern("from_mask_mod", {"fn": fn}, lambda shape: Definition(mask), mask=mask)


def _probe(fn: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> None:
    """Raises unless fn gives bool tensors of the right shape that do not depend on b and h."""
    first_error = None
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    for device, length in itertools.product(devices, _LENGTHS):
        # All of the first positions, and some of the others.
        near = torch.arange(min(length, 256), device="cpu")
        far = torch.arange(256, max(length, 256), length // 256 or 1, device="cpu")
        i = torch.cat([near, far]).to(device)[:, None]
        j, zero = i.T, torch.tensor(0, device=device)
        try:
            expected = fn(zero, zero, i, j)
            break
        except Exception as error:  # what fn raises is the caller's to read; fewer positions may be within its tables
            first_error = error
    else:
        raise ValueError(f"fn fails for b = h = 0 and position 0: {type(first_error).__name__}: {first_error}")
    if not isinstance(expected, Tensor) or expected.dtype != torch.bool:
        got = expected.dtype if isinstance(expected, Tensor) else type(expected).__name__
        raise TypeError(f"fn gives {got}; it must give a bool tensor")
    try:
        expected = expected.expand(len(i), len(i))
    except RuntimeError:
        raise ValueError(
            f"fn gives shape {tuple(expected.shape)} for i of shape {tuple(i.shape)} and j of shape {tuple(j.shape)}; "
            "it must be what the two broadcast to"
        ) from None
    for b, h in _HEADS:
        why = f"b, h = {b}, {h} and 0, 0 differ"
        try:
            same = torch.equal(fn(zero + b, zero + h, i, j).expand(len(i), len(i)), expected)
        except Exception as error:
            same, why = False, f"with b, h = {b}, {h} it raises {type(error).__name__}: {error}"
        if not same:
            raise ValueError(
                f"fn depends on the batch entry or the head: {why}. A pattern is the same for all of them; make one "
                "for each"
            )


def from_csr(indptr: Any, indices: Any) -> Pattern:
    """Query row r sees the keys indices[indptr[r]] … indices[indptr[r + 1] - 1]; L_q is len(indptr) - 1.

    int32 or int64, in any order within a row; a key given twice counts once. A key past L_k is an error.
    """
    refuse_in_graph("from_csr()")
    starts, keys = (
        torch.from_numpy(integers(name, given)) for name, given in (("indptr", indptr), ("indices", indices))
    )
    if len(starts) < 2 or starts[0] != 0 or starts[-1] != len(keys):
        ends = f"{int(starts[0])} … {int(starts[-1])}" if len(starts) else "nothing"
        raise ValueError(
            f"indptr has {len(starts)} entries, {ends}; it must have L_q + 1, from 0 to len(indices) = {len(keys)}"
        )
    if (starts.diff() < 0).any():
        row = int((starts.diff() < 0).nonzero()[0])
        raise ValueError(f"indptr falls from {starts[row]} to {starts[row + 1]} at row {row}; it must never fall")
    if len(keys) and keys.min() < 0:
        raise ValueError(f"indices has {int(keys.min())}; a key is at least 0")
    queries, needed = len(starts) - 1, int(keys.max()) + 1 if len(keys) else 0
    # In order, each once.
    codes = torch.unique(
        torch.repeat_interleave(torch.arange(queries, device=starts.device), starts.diff()) * max(needed, 1) + keys
    )
    rows, keys = codes // max(needed, 1), codes % max(needed, 1)
    starts = torch.cat([starts[:1], torch.bincount(rows, minlength=queries).cumsum(0)])

    def define(shape: Shape) -> Definition:
        if shape.L_q != queries:
            raise ValueError(f"indptr is for L_q = {queries}; L_q is {shape.L_q}, and both must be equal")
        if needed > shape.L_k:
            raise ValueError(f"indices has key {needed - 1}; it must be below L_k = {shape.L_k}")
        return _define_csr(*(table.to(shape.device) for table in (starts, rows, keys)), shape)

    return Pattern("from_csr", {"indptr": starts, "indices": keys}, define)


def _define_csr(starts: Tensor, rows: Tensor, keys: Tensor, shape: Shape) -> Definition:
    longest = int(starts.diff().max())
    steps = [2**n for n in reversed(range(longest.bit_length()))]
    # Pairs as ascending numbers; those behind the last are greater than all, so that no step leads past the end.
    pairs = torch.cat([rows * shape.L_k + keys, keys.new_full((sum(steps) + 1,), 2**62)])

    def mask(i: Tensor, j: Tensor) -> Tensor:
        # Binary search among the pairs of the query, the same steps for all.
        first, listed = starts.to(i.device), pairs.to(i.device)
        row = i - shape.shift
        wanted = row.long() * shape.L_k + j
        place = first[row] + 0 * j
        for step in steps:
            place = place + step * (listed[place + step - 1] < wanted)
        return listed[place] == wanted

    def pairs_of(first: int, end: int) -> tuple[Tensor, Tensor]:
        part = slice(int(starts[first]), int(starts[end]))
        return rows[part], keys[part]

    return Definition(mask, keys=pairs_of, pairs=lambda: len(keys), width=max(longest, 1))
