"""A pattern at given lengths: its mask, and cheap ways to find the blocks and the keys of a query."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

Mask = Callable[[Tensor, Tensor], Tensor]  # (i, j) -> bool: does the query at position i see key j?


class Shape(NamedTuple):
    """L_q queries and L_k keys; `device` is where tables and results lie. Query row r has position r + shift."""

    L_q: int
    L_k: int
    device: torch.device

    @property
    def shift(self) -> int:
        """L_k - L_q: the position of the first query."""
        return self.L_k - self.L_q

    def blocks(self, block: int) -> tuple[int, int]:
        """The numbers of blocks of queries and of keys."""
        return -(-self.L_q // block), -(-self.L_k // block)


class Blocks(NamedTuple):
    """Blocks that can hold a pair: `codes`, int64 `[n]`, row of blocks · blocks of keys + column, ascending, each once;
    `full`, bool `[n]`: True only if all queries see all keys, and all keys exist. Every other block holds no pair."""

    codes: Tensor
    full: Tensor


class RowRanges(NamedTuple):
    """Query row r sees the keys starts[r] <= j < ends[r]; int32 `[L_q]`, from 0 to L_k, neither ever decreases."""

    starts: Tensor
    ends: Tensor

    def by_key(self, L_k: int) -> RowRanges:
        """The same pairs by key: query rows starts[j] <= r < ends[j] see key j, int32 `[L_k]`."""
        keys = torch.arange(L_k, dtype=torch.int32, device=self.starts.device)
        first, end = (torch.searchsorted(edge, keys, right=True, out_int32=True) for edge in (self.ends, self.starts))
        return RowRanges(first, end)

    def of_tiles(self, size: int) -> RowRanges:
        """The range of each tile of `size` neighbours, from the first row's start to the end of the last to end."""
        first = torch.arange(0, len(self.starts), size, device=self.starts.device)
        last = (first + size).clamp(max=len(self.starts)) - 1
        return RowRanges(self.starts[first], torch.maximum(self.ends[first], self.ends[last]))

    def pairs(self) -> int:
        """The number of pairs."""
        return int((self.ends - self.starts).clamp(min=0).sum(dtype=torch.int64))


class Definition(NamedTuple):
    """A pattern at a Shape. `mask` is the definition; all others are optional short cuts to the same.

    Attributes:
        blocks: blocks(block) gives the blocks that can hold a pair.
        keys: keys(first, end) gives the pairs of query rows first to end - 1, ordered: (rows, keys), int64 `[n]` each.
        pairs: pairs() gives their number.
        rows: rows() gives the keys of each query as one range, if they are one and neither end ever decreases.
        width: the most keys of a row, or more than that; None for L_k.
        shift_invariant: the mask depends on i - j only.
        grain: the mask is the same for all pairs of floor(i / grain) and floor(j / grain).
    """

    mask: Mask
    blocks: Callable[[int], Blocks] | None = None
    keys: Callable[[int, int], tuple[Tensor, Tensor]] | None = None
    pairs: Callable[[], int] | None = None
    rows: Callable[[], RowRanges] | None = None
    width: int | None = None
    shift_invariant: bool = False
    grain: int = 1


# ---- blocks


def all_blocks(shape: Shape, block: int) -> Blocks:
    """Every block, none of them marked full."""
    rows, columns = shape.blocks(block)
    codes = torch.arange(rows * columns, device=shape.device)
    return Blocks(codes, torch.zeros_like(codes, dtype=torch.bool))


def unite(*parts: Blocks) -> Blocks:
    """The blocks of all parts; a block is full if it is full in one part."""
    codes, number = torch.unique(torch.cat([part.codes for part in parts]), return_inverse=True)
    full = torch.zeros_like(codes, dtype=torch.bool)
    full[number[torch.cat([part.full for part in parts])]] = True
    return Blocks(codes, full)


def intersect(a: Blocks, b: Blocks) -> Blocks:
    """The blocks that are in both; a block is full if it is full in both."""
    if not len(b.codes):
        return b
    place = torch.searchsorted(b.codes, a.codes).clamp_(max=len(b.codes) - 1)
    both = b.codes[place] == a.codes
    return Blocks(a.codes[both], a.full[both] & b.full[place[both]])


def expand(counts: Tensor) -> tuple[Tensor, Tensor]:
    """For each n, counts[n] entries: their n, and their number 0 … counts[n] - 1 within it."""
    entry = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    first = counts.cumsum(0) - counts
    return entry, torch.arange(len(entry), device=counts.device) - first[entry]


def row_positions(shape: Shape, block: int) -> tuple[Tensor, Tensor]:
    """The positions of the first and the last query of each block of queries, int64."""
    first = torch.arange(0, shape.L_q, block, device=shape.device)
    return first + shape.shift, (first + block).clamp_(max=shape.L_q) - 1 + shape.shift


def span_blocks(shape: Shape, block: int, some: tuple[Tensor, Tensor], all_: tuple[Tensor, Tensor] | None) -> Blocks:
    """Blocks from one span of keys [first, end) per block of queries: those that some query of it sees (or a superset),
    and those that all queries see (None: unknown)."""
    first, end = some[0].clamp(min=0), some[1].clamp(max=shape.L_k)
    first_block = first // block
    counts = torch.where(end > first, (end + block - 1) // block - first_block, 0)
    row, number = expand(counts)
    column = first_block[row] + number
    full = torch.zeros_like(column, dtype=torch.bool)
    if all_ is not None:
        full = (column * block >= all_[0][row]) & ((column + 1) * block <= all_[1].clamp(max=shape.L_k)[row])
    return Blocks(row * shape.blocks(block)[1] + column, full)


def rectangle_blocks(shape: Shape, block: int, rows: tuple[Tensor, Tensor], keys: tuple[Tensor, Tensor]) -> Blocks:
    """Blocks from disjoint rectangles of kept pairs: positions [first, end) times keys [first, end); `full` exact."""
    top, bottom = (rows[0] - shape.shift).clamp(0, shape.L_q), (rows[1] - shape.shift).clamp(0, shape.L_q)
    left, right = keys[0].clamp(0, shape.L_k), keys[1].clamp(0, shape.L_k)
    tall = torch.where(bottom > top, (bottom - 1) // block - top // block + 1, 0)
    wide = torch.where(right > left, (right - 1) // block - left // block + 1, 0)
    n, number = expand(tall * wide)
    row, column = top[n] // block + number // wide[n], left[n] // block + number % wide[n]
    height = torch.minimum(bottom[n], (row + 1) * block) - torch.maximum(top[n], row * block)
    width = torch.minimum(right[n], (column + 1) * block) - torch.maximum(left[n], column * block)
    columns = shape.blocks(block)[1]
    codes, place = torch.unique(row * columns + column, return_inverse=True)
    pairs = torch.zeros_like(codes).scatter_add_(0, place, height * width)
    queries = (shape.L_q - codes // columns * block).clamp_(max=block)
    return Blocks(codes, pairs == queries * block)


def key_blocks(definition: Definition, shape: Shape, block: int) -> Blocks:
    """The blocks of a definition that knows the keys of its rows."""
    columns = shape.blocks(block)[1]
    found = [
        torch.unique(rows // block * columns + keys // block) for rows, keys in row_chunks(definition, shape, block)
    ]
    codes = torch.unique(torch.cat(found))
    return Blocks(codes, torch.zeros_like(codes, dtype=torch.bool))


def blocks_of(definition: Definition, shape: Shape, block: int) -> Blocks:
    """The blocks that can hold a pair, from what the definition offers."""
    if definition.blocks:
        return definition.blocks(block)
    return key_blocks(definition, shape, block) if definition.keys else all_blocks(shape, block)


# ---- keys

PAIRS_AT_ONCE = 2**24  # at most so many pairs of a chunk of rows


def row_chunks(definition: Definition, shape: Shape, block: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
    """The pairs in chunks of rows, each a multiple of `block` rows: (rows, keys)."""
    step = max(1, PAIRS_AT_ONCE // min(definition.width or shape.L_k, shape.L_k) // block) * block
    for first in range(0, shape.L_q, step):
        yield definition.keys(first, min(first + step, shape.L_q))


def keep(table: Tensor, first: int, valid: Tensor) -> tuple[Tensor, Tensor]:
    """The valid pairs of a table of keys, `[rows, width]`, whose first row is query row `first`."""
    rows = valid.nonzero()[:, 0]
    return rows + first, table[valid].long()


# ---- combinations


def both(a: Definition, b: Definition, shape: Shape) -> Definition:
    """The pairs of a and of b. Where one of them knows the keys of a row, the other's mask filters them."""
    known, other = (a, b) if a.keys else (b, a)

    def blocks(block: int) -> Blocks:
        if a.blocks and b.blocks:
            return intersect(a.blocks(block), b.blocks(block))
        codes = (a.blocks or b.blocks)(block).codes
        return Blocks(codes, torch.zeros_like(codes, dtype=torch.bool))

    def keys(first: int, end: int) -> tuple[Tensor, Tensor]:
        rows, columns = known.keys(first, end)
        kept = other.mask((rows + shape.shift).int(), columns.int())
        return rows[kept], columns[kept]

    def rows() -> RowRanges:
        one, two = a.rows(), b.rows()
        return RowRanges(torch.maximum(one.starts, two.starts), torch.minimum(one.ends, two.ends))

    has_keys = known.keys is not None
    has_blocks = bool(a.blocks and b.blocks) or (bool(a.blocks or b.blocks) and not has_keys)
    has_rows = bool(a.rows and b.rows)
    return Definition(
        lambda i, j: a.mask(i, j) & b.mask(i, j),
        blocks if has_blocks else None,
        keys if has_keys else None,
        pairs=(lambda: rows().pairs()) if has_rows else None,
        rows=rows if has_rows else None,
        width=known.width,
        shift_invariant=a.shift_invariant and b.shift_invariant,
        grain=math.gcd(a.grain, b.grain),
    )


def either(a: Definition, b: Definition, shape: Shape) -> Definition:
    """The pairs of a or of b. Keys only where both know them; blocks unless one of them knows nothing."""

    def blocks(block: int) -> Blocks:
        return unite(blocks_of(a, shape, block), blocks_of(b, shape, block))

    def keys(first: int, end: int) -> tuple[Tensor, Tensor]:
        codes = [rows * shape.L_k + columns for rows, columns in (a.keys(first, end), b.keys(first, end))]
        united = torch.unique(torch.cat(codes))
        return united // shape.L_k, united % shape.L_k

    has_keys = bool(a.keys and b.keys)
    has_blocks = bool(a.blocks or b.blocks) and all(part.blocks or part.keys for part in (a, b))
    return Definition(
        lambda i, j: a.mask(i, j) | b.mask(i, j),
        blocks if has_blocks else None,
        keys if has_keys else None,
        width=a.width + b.width if a.width and b.width else None,
        shift_invariant=a.shift_invariant and b.shift_invariant,
        grain=math.gcd(a.grain, b.grain),
    )
