"""What is seen in wrong values, in words: for a kernel whose mistake nobody knows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from course_utils.grading.exercise import Diagnosis

MOST_RANGES = 4
PRESENT = 1e-3  # a weight that is expected to be larger than this must be there
AGREES = 0.02  # how far a weight may be from what is expected, relative to it
EXACT = 1e-3  # likewise, of a weight that stands in another place
OF_A_RATIO = 0.005  # how far got over expected may be from what it is meant to be
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


def wrong_columns(ratio: Tensor) -> str | None:
    """Which columns of Q and K a dot product leaves out or counts twice, in words; None where that is not what is seen.

    ratio: `[queries, columns]`, got over expected of scores where key j has nothing but a 1 in column j.
    """
    for value, how in ((0.0, "not multiplied"), (2.0, "counted twice")):
        columns = ((ratio - value).abs() < OF_A_RATIO).all(dim=0)
        if 0 < columns.sum() < len(columns):
            return f"{places(columns, ('column',))} of Q and K: {how}"
    return None


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


def wrong_weights(got: Tensor, expected: Tensor, axes: tuple[str, str] = ("query", "key")) -> Diagnosis | None:
    """What is wrong with the weights `[L_q, L_k]` of the keys; None where no key stands out.

    axes: what rows and columns are called, where they are not queries and keys.

    Weights that are all off by the same factor in a row are left alone: a kernel that leaves out a key raises
    the other weights. A number below 0 is no weight: then something else was read.
    """
    got, expected = got.double(), expected.double()
    if not torch.isfinite(got).all() or (got < -PRESENT).any():
        return None
    if moved := _moved_weights(got, expected, axes):
        return moved
    there = expected > PRESENT
    lost = there & (got < PRESENT * expected)
    added = (expected == 0) & (got.abs() > PRESENT)
    ratio = torch.where(there & ~lost, got / expected, torch.nan)
    ratio = ratio / ratio.nanmedian(dim=1, keepdim=True).values
    odd = there & ~lost & ((ratio - 1).abs() > AGREES)
    twice = odd & ((ratio - 2).abs() < 2 * AGREES)
    if not torch.equal(twice, odd):
        twice = torch.zeros_like(odd)  # among weights that are wrong in other ways some are twice as large by chance
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
            who = "" if same_for_all else f"for {axes[0]} {query}, "
            name = f"{who}{_named(axes[1], keys, where.shape[1])} {verb if len(keys) == 1 else verbs}"
            rows, columns = map(_plural, axes)
            count = f"; {int(where.any(dim=1).sum())} of {len(where)} {rows} have such {columns}"
            return Diagnosis(name, f"weight of {first_of(where, got, expected, axes)}{count}")
    return None


def _moved_weights(got: Tensor, expected: Tensor, axes: tuple[str, str]) -> Diagnosis | None:
    """How the weights have moved, if they are right but stand at other keys."""
    count = expected.shape[1]
    places, keys = torch.arange(count), _plural(axes[1])
    if _are_those_of(got, expected, places):
        return None
    pairs, whole = places ^ 1, count - count % 2
    for name, order, end in (
        (f"neighbouring {keys} are swapped: 0 with 1, 2 with 3, …", pairs, whole),
        (f"each {axes[1]} has the weight of the next one", places.roll(-1), count),
        (f"each {axes[1]} has the weight of the next one", (places + 1).clamp(max=count - 1), count),
        (f"each {axes[1]} has the weight of the one before", places.roll(1), count),
        (f"each {axes[1]} has the weight of the one before", (places - 1).clamp(min=0), count),
        (f"the {keys} have their weights in the opposite order", places.flip(0), count),
    ):
        if count > 2 and _are_those_of(got[:, :end], expected, order[:end]):
            rest = f"; {axes[1]} {end} has {_of_itself(got[:, end], expected[:, end])}" if end < count else ""
            return Diagnosis(name, _first_moved(got, expected, order[:end], axes) + rest)
    direction = torch.rand(len(got), generator=torch.Generator().manual_seed(0)).double()
    order = torch.empty_like(places)
    order[(direction @ got).argsort()] = (direction @ expected).argsort()
    if not _are_those_of(got, expected, order):
        return None
    moved = (order != places).nonzero().flatten().tolist()
    name = f"{_named(axes[1], moved, count)} have each other's weights"
    return Diagnosis(name, _first_moved(got, expected, order, axes))


def _are_those_of(got: Tensor, expected: Tensor, order: Tensor) -> bool:
    """Whether each column of got is that of expected which order names, but for a factor in each row.

    Not where a row has more weights that way, or fewer: then its keys are other ones, and have not changed places.
    """
    wanted, at_home = expected[:, order], expected[:, : len(order)]
    there, was = (x > PRESENT * x.amax(dim=1, keepdim=True) for x in (wanted, at_home))
    if not torch.equal(there.sum(dim=1), was.sum(dim=1)):
        return False
    ratio = torch.where(there, got / wanted, torch.nan)
    factor = ratio.nanmedian(dim=1, keepdim=True).values.nan_to_num(nan=1.0)
    near = (got - factor * wanted).abs() <= EXACT * factor.abs() * wanted.amax(dim=1, keepdim=True)
    near &= ~there | ((ratio - factor).abs() <= EXACT * factor.abs())
    return bool((near & (factor > 0)).all())


def _of_itself(got: Tensor, expected: Tensor) -> str:
    if (got.abs() <= PRESENT * expected).all():
        return "no weight"
    return "its own weight" if torch.allclose(got, expected, rtol=AGREES, atol=PRESENT * PRESENT) else "a wrong weight"


def _first_moved(got: Tensor, expected: Tensor, order: Tensor, axes: tuple[str, str]) -> str:
    """What stands at the first place that has another one's weight."""
    moved = (order != torch.arange(len(order))).expand(len(got), -1) & (got[:, : len(order)] > PRESENT)
    where = torch.zeros_like(got, dtype=torch.bool)
    where[:, : len(order)] = moved
    if not where.any():
        return ""
    key = int(where.nonzero()[0, 1])
    return f"weight of {first_of(where, got, expected, axes)}, which is that of {axes[1]} {int(order[key])}"
