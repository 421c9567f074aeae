"""Patterns from elsewhere: a FlexAttention mask_mod, and CSR."""

from __future__ import annotations

import itertools
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from course_utils.patterns.arguments import integers
from course_utils.patterns.definition import Definition, Shape
from course_utils.patterns.pattern import MaskMod, Pattern, refuse_in_graph

_LENGTHS = (131072, 8192, 1024, 256, 64, 16, 4, 1)  # a mask_mod is tried at the largest that its tables take
_HEADS = [(n, n) for n in range(1, 32)] + [(1, 0), (0, 1), (3, 64), (64, 3)]  # (b, h) that must give what (0, 0) gives


def from_mask_mod(fn: MaskMod) -> Pattern:
    """A FlexAttention mask_mod: fn(b, h, i, j) -> bool for one pair, integer tensors without dimensions.

    As by FlexAttention, fn is written for one pair and evaluated for many by `torch.vmap`, so that `i.max()` is i. In
    place of `and`, `or`, `not` and `if` it takes &, |, ~ and torch.where.

    i is the query's POSITION, as in every pattern: query row r has i = r + L_k - L_q, below 0 for the first rows if
    L_q > L_k. FlexAttention's q_idx is r. Both are the same where L_q == L_k; for other lengths, a function of q_idx is
    `from_mask_mod(lambda b, h, i, j: fn(b, h, i - (L_k - L_q), j))`. The other way `flex_mask_mod(L_q, L_k)` gives
    FlexAttention a function of q_idx, and the block lists' `to_block_mask()` counts from 0, too.

    fn must give the same for every b and h, which is tried for some, and the same at each call. Nothing is known of it
    but its values, so that block lists evaluate all L_q · L_k pairs, a part at a time: the time is quadratic, the
    memory is not. Combined by & with a pattern that knows its blocks, fn is evaluated in those only. Tensors that fn
    looks up must lie on the device that it is used on.

    Raises TypeError or ValueError, which says what to write instead, for a function that is no such mask_mod.
    """
    refuse_in_graph("from_mask_mod()")
    if not callable(fn):
        raise TypeError(f"fn is {fn!r}; it must be a function fn(b, h, i, j) -> bool tensor")
    _probe(fn)

    def mask(i: Tensor, j: Tensor) -> Tensor:
        zero = torch.zeros((), dtype=torch.int32, device=i.device)
        return _of_pairs(fn, zero, zero, i, j)

    return Pattern("from_mask_mod", {"fn": fn}, lambda shape: Definition(mask), mask=mask)


class _IndexByTensors(TorchFunctionMode):
    """table[i] by torch's operator of that name, which does not ask for the value of i."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            indices = args[1] if isinstance(args[1], tuple) else (args[1],)
            if all(isinstance(index, Tensor) for index in indices):
                return torch.ops.aten.index(args[0], list(indices))
        return func(*args, **(kwargs or {}))


def _indexing() -> AbstractContextManager[Any]:
    """In which `torch.vmap` takes a mask_mod that looks up table[i]. Versions of torch after 2.9 do so."""
    table = torch.zeros(1, dtype=torch.int64)
    try:
        torch.vmap(lambda i: table[i])(table)
    except RuntimeError:
        return _IndexByTensors()
    return nullcontext()


_INDEXING = _indexing()  # here, and not where a compiler traces it


class NoMask(TypeError):
    """fn gives something else than a bool for a pair."""


def _of_pairs(fn: MaskMod, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """fn of each pair of what i and j broadcast to; fn sees numbers without dimensions."""

    def of_pair(i: Tensor, j: Tensor) -> Tensor:
        with _INDEXING:
            sees = fn(b, h, i, j)
        if not isinstance(sees, Tensor):
            raise NoMask(f"fn gives {type(sees).__name__}; it must give a bool tensor, as a comparison of i and j does")
        if sees.is_floating_point():
            raise NoMask(
                f"fn gives {sees.dtype}, as a score_mod does; a mask_mod gives a bool tensor, whether the query sees "
                "the key: write only that, as a comparison"
            )
        if sees.dtype != torch.bool or sees.dim():
            raise NoMask(
                f"fn gives {sees.dtype} of shape {tuple(sees.shape)} for one pair; it must give one bool, as a "
                "comparison of i and j does"
            )
        return sees

    # Along each dimension: does i vary, does j? Where only one does, the other is not repeated.
    dims = max(i.dim(), j.dim())
    i, j = (index.reshape((1,) * (dims - index.dim()) + index.shape) for index in (i, j))
    varies = [(n != 1 or m == 1, m != 1 or n == 1) for n, m in zip(i.shape, j.shape, strict=True)]
    of_pairs = of_pair
    for i_varies, j_varies in reversed(varies):
        of_pairs = torch.vmap(of_pairs, (0 if i_varies else None, 0 if j_varies else None))
    return of_pairs(
        i.squeeze([at for at, (i_varies, _) in enumerate(varies) if not i_varies]),
        j.squeeze([at for at, (_, j_varies) in enumerate(varies) if not j_varies]),
    )


def _probe(fn: MaskMod) -> None:
    """Raises unless fn gives a bool for each pair that does not depend on b and h."""
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    for device, length in itertools.product(devices, _LENGTHS):
        # All of the first positions, and some of the others.
        near = torch.arange(min(length, 256), device="cpu")
        far = torch.arange(256, max(length, 256), length // 256 or 1, device="cpu")
        i = torch.cat([near, far]).to(device)[:, None]
        j, zero = i.T, torch.tensor(0, device=device)
        try:
            expected = _of_pairs(fn, zero, zero, i, j)
            break
        except NoMask:
            raise
        except Exception as error:  # what fn raises is the caller's to read; fewer positions may be within its tables
            why = _what_to_do(error)
    else:
        raise ValueError(f"fn fails for b = h = 0 and position 0: {why}")
    for b, h in _HEADS:
        why = f"b, h = {b}, {h} and 0, 0 differ"
        try:
            same = torch.equal(_of_pairs(fn, zero + b, zero + h, i, j), expected)
        except Exception as error:
            same, why = False, f"with b, h = {b}, {h} it raises {type(error).__name__}: {error}"
        if not same:
            raise ValueError(
                f"fn depends on the batch entry or the head: {why}. A pattern is the same for all of them; make one "
                "for each, with from_mask_mod(lambda b, h, i, j: fn(entry, head, i, j)), and call the operator with "
                "their part of query, key and value"
            )


def _what_to_do(error: Exception) -> str:
    """What fn raised; where that is known to be no mask_mod of FlexAttention's kind, what to write instead."""
    said = f"{type(error).__name__}: {error}"
    if "data-dependent control flow" in said or "calling .item()" in said:
        return (
            "it asks for the value of a tensor, as `and`, `or`, `not`, `if`, `in`, `a < b < c` and int() do, and is "
            "evaluated for many pairs at once; write &, |, ~ with each comparison in parentheses, and torch.where"
        )
    if isinstance(error, TypeError) and "positional argument" in said:
        return f"{said}; it must take b, h, i and j: a score_mod, which takes a score before them, is no mask"
    return said


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
