"""What is seen in wrong values, in words: for a kernel whose mistake nobody knows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from course_utils.grading.exercise import Diagnosis

MOST_RANGES = 4
PRESENT = 1e-3  # a weight that is expected to be larger than this must be there
AGREES = 0.02  # how far a weight may be from what is expected, relative to it
PLURALS = {"query": "queries", "key": "keys", "entry": "entries"}


def places(wrong: Tensor, axes: Sequence[str] = ()) -> str:
    """Where a mask is true: "heads 1 and 2; queries 16 to 47; all columns". axes: names, one for each dimension."""
    words = []
    for axis, size in enumerate(wrong.shape):
        others = [other for other in range(wrong.dim()) if other != axis]
        indices = (wrong.any(dim=others) if others else wrong).nonzero().flatten().tolist()
        name = axes[axis] if axes else f"axis {axis}"
        if size > 1:
            words.append(f"all {_plural(name)}" if len(indices) == size else _named(name, indices, size))
    return "; ".join(words)


def first_of(wrong: Tensor, got: Tensor, expected: Tensor, axes: Sequence[str] = ()) -> str:
    """Expected and got at the first place where a mask is true: "head 1, query 16: expected 0.25, got 0.5"."""
    index = tuple(wrong.nonzero()[0].tolist())
    names = axes or [f"axis {axis}" for axis in range(wrong.dim())]
    shown = [f"{name} {i}" for name, i, size in zip(names, index, wrong.shape, strict=True) if size > 1]
    values = f"expected {expected[index].item():.6g}, got {got[index].item():.6g}"
    return f"{', '.join(shown)}: {values}" if shown else values


def _plural(name: str) -> str:
    return PLURALS.get(name, f"{name}s")


def _named(name: str, indices: Sequence[int], size: int) -> str:
    """ "key 5", "keys 128 and later", "keys 0 to 3 and 7"."""
    ranges: list[list[int]] = []
    for i in sorted(indices):
        if ranges and ranges[-1][1] == i - 1:
            ranges[-1][1] = i
        else:
            ranges.append([i, i])
    if len(indices) == 1:
        return f"{name} {indices[0]}"
    if len(ranges) > MOST_RANGES:
        return f"{len(indices)} of {size} {_plural(name)}, from {ranges[0][0]} to {ranges[-1][1]}"
    if len(ranges) == 1 and ranges[0][1] == size - 1:
        return f"{_plural(name)} {ranges[0][0]} and later"
    parts = [str(first) if first == last else f"{first} to {last}" for first, last in ranges]
    return f"{_plural(name)} {', '.join(parts[:-1])}{' and ' if parts[:-1] else ''}{parts[-1]}"


# ---- weights, read off the output


def one_hot_values(keys: int, columns: int) -> Tensor:
    """V `[1, H, keys, columns]`, fp32, with as many heads as it takes that each key has a column of its own in one.

    Where all heads have the same Q and K, the outputs of all heads together are the weights: `weights_in`.
    """
    heads = -(-keys // columns)
    V = torch.zeros(1, heads, keys, columns)
    key = torch.arange(keys)
    V[0, key // columns, key, key % columns] = 1
    return V


def weights_in(output: Tensor, keys: int) -> Tensor:
    """The weights `[L_q, keys]` that an output `[1, H, L_q, columns]` for `one_hot_values` is made of."""
    return output[0].movedim(0, 1).flatten(1)[:, :keys]


def wrong_weights(got: Tensor, expected: Tensor, what: str = "key") -> Diagnosis | None:
    """What is wrong with the weights `[L_q, L_k]` of the keys; None where no key stands out.

    what: the columns are: "key", or "entry" (of a list). Weights that are all off by the same factor in a row are left
    alone: whoever leaves out a key raises the others.
    """
    got, expected = got.double(), expected.double()
    if not torch.isfinite(got).all():
        return None
    there = expected > PRESENT
    lost = there & (got < PRESENT * expected)
    added = (expected == 0) & (got.abs() > PRESENT)
    ratio = torch.where(there & ~lost, got / expected, torch.nan)
    ratio = ratio / ratio.nanmedian(dim=1, keepdim=True).values
    odd = there & ~lost & ((ratio - 1).abs() > AGREES)
    twice = odd & ((ratio - 2).abs() < 2 * AGREES)
    for where, possible, verb, verbs in (
        (added, expected == 0, "has a weight, and must have none", "have a weight, and must have none"),
        (lost, there, "has no weight", "have no weight"),
        (twice, there & ~lost, "counts twice", "count twice"),
        (odd, there & ~lost, "has a wrong weight", "have wrong weights"),
    ):
        if where.any():
            of_all = where.any(dim=0)
            same_for_all = bool((where == (of_all & possible)).all())
            query = int(where.any(dim=1).nonzero()[0])
            keys = (of_all if same_for_all else where[query]).nonzero().flatten().tolist()
            who = "" if same_for_all else f"for query {query}, "
            name = f"{who}{_named(what, keys, where.shape[1])} {verb if len(keys) == 1 else verbs}"
            count = f"; {int(where.any(dim=1).sum())} of {len(where)} queries have such {_plural(what)}"
            return Diagnosis(name, f"weight of {first_of(where, got, expected, ('query', what))}{count}")
    return None
