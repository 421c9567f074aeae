"""Blocks drawn by a hash that Python and JavaScript compute alike, and BigBird, which draws some."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from course_utils.arguments import integer
from course_utils.patterns.arguments import MAX_LENGTH
from course_utils.patterns.definition import Blocks, Definition, Shape, rectangle_blocks
from course_utils.patterns.pattern import Pattern

Number = TypeVar("Number", int, np.ndarray)
_LOW = 0xFFFFFFFF


def random_block_hash(seed: int, row: Number, n: Number) -> Number:
    """Draw n of a row of blocks as a number below 2^32 (the draw is the block of that number modulo all blocks).

    All modulo 2^32; the last five steps are MurmurHash3's finaliser:

        x = seed ^ (row · 0x9E3779B1) ^ (n · 0x85EBCA77)
        x ^= x >> 16;   x *= 0x85EBCA6B;   x ^= x >> 13;   x *= 0xC2B2AE35;   x ^= x >> 16

    row, n: Python integers, or arrays of int64.
    """
    x = (seed ^ (row * 0x9E3779B1) ^ (n * 0x85EBCA77)) & _LOW
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & _LOW
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & _LOW
    return x ^ (x >> 16)


def random_blocks(block: int, per_row: int, seed: int) -> Pattern:
    """Each row of blocks of `block` queries sees `per_row` blocks of `block` keys, drawn by `random_block_hash`.

    The draws n = 0, 1, 2 … of row i // block are taken until `per_row` different blocks are found, or all.
    """
    block, per_row = integer("block", block, 1, MAX_LENGTH), integer("per_row", per_row, 1, MAX_LENGTH)
    seed = integer("seed", seed, 0, _LOW)
    parameters = {"block": block, "per_row": per_row, "seed": seed}
    return _block_pattern("random_blocks", parameters, block, 0, None, per_row, seed)


def bigbird(
    block: int = 64, global_blocks: int = 2, window_blocks: int = 3, random_blocks: int = 3, seed: int = 0
) -> Pattern:
    """BigBird in blocks: the first `global_blocks` rows and columns of blocks, a window of `window_blocks` (odd), and
    `random_blocks` more in each row, drawn like those of `random_blocks` among the rest.

    With r = i // block and c = j // block: |r - c| <= window_blocks // 2, or c < global_blocks, or
    0 <= r < global_blocks, or c drawn for r.
    """
    block, window_blocks = (
        integer("block", block, 1, MAX_LENGTH),
        integer("window_blocks", window_blocks, 1, MAX_LENGTH),
    )
    if window_blocks % 2 == 0:
        raise ValueError(f"window_blocks is {window_blocks}; it must be odd, the row's own block in the middle")
    global_blocks = integer("global_blocks", global_blocks, 0, MAX_LENGTH)
    random_blocks = integer("random_blocks", random_blocks, 0, MAX_LENGTH)
    seed = integer("seed", seed, 0, _LOW)
    parameters = {
        "block": block,
        "global_blocks": global_blocks,
        "window_blocks": window_blocks,
        "random_blocks": random_blocks,
        "seed": seed,
    }
    return _block_pattern("bigbird", parameters, block, global_blocks, window_blocks // 2, random_blocks, seed)


def _block_pattern(
    kind: str, parameters: dict[str, Any], block: int, global_blocks: int, reach: int | None, per_row: int, seed: int
) -> Pattern:
    """reach: blocks of the window on each side of a row's own; None for no window."""

    def always(row: Any, column: Any) -> Any:
        kept = (column < global_blocks) | ((row >= 0) & (row < global_blocks))
        return kept if reach is None else kept | (abs(row - column) <= reach)

    def define(shape: Shape) -> Definition:
        blocks_of_keys = -(-shape.L_k // block)
        drawn = draw_blocks(blocks_of_keys, per_row, seed, global_blocks, reach)
        table = torch.from_numpy(drawn).to(shape.device)

        def mask(i: Tensor, j: Tensor) -> Tensor:
            row, column, draws = i // block, j // block, table.to(i.device)
            kept = always(row, column)
            for n in range(draws.shape[1]):
                kept = kept | ((draws[:, n][row.clamp(min=0)] == column) & (row >= 0))
            return kept

        def blocks(size: int) -> Blocks:
            first = shape.shift // block
            row = torch.arange(first, blocks_of_keys, device=shape.device)[:, None]
            column = torch.arange(blocks_of_keys, device=shape.device)
            whole, drawing = row[(row[:, 0] >= 0) & (row[:, 0] < global_blocks)], row[row[:, 0] >= 0]
            seen = [(whole, column), (row, column[:global_blocks]), (drawing, table.long()[drawing[:, 0]])]
            if reach is not None:
                seen.append((row, row + torch.arange(-reach, reach + 1, device=shape.device)))
            found = []
            for rows, columns in seen:
                codes = (rows - first) * blocks_of_keys + columns
                found.append(codes[((columns >= 0) & (columns < blocks_of_keys)).expand_as(codes)])
            codes = torch.unique(torch.cat(found))
            row, column = codes // blocks_of_keys + first, codes % blocks_of_keys
            rows, keys = (row * block, (row + 1) * block), (column * block, (column + 1) * block)
            return rectangle_blocks(shape, size, rows, keys)

        return Definition(mask, blocks, grain=block)

    return Pattern(kind, parameters, define)


def draw_blocks(blocks: int, per_row: int, seed: int, global_blocks: int = 0, reach: int | None = None) -> np.ndarray:
    """The drawn blocks of each row of blocks, int32 `[blocks, at most per_row]`, in the order of the draws; -1: none.

    Draws of a block that the row sees anyway (global, or in the window) or has drawn are dropped. Global rows draw
    none.
    """
    row = np.arange(blocks)
    seen = np.full(blocks, min(global_blocks, blocks))
    if reach is not None:  # and the blocks of the window that are not global
        left, right = np.maximum(row - reach, min(global_blocks, blocks)), np.minimum(row + reach, blocks - 1)
        seen += np.maximum(right - left + 1, 0)
    wanted = np.where(row < global_blocks, 0, np.minimum(blocks - seen, per_row))
    drawn = np.full((blocks, wanted.max(initial=0)), -1, dtype=np.int32)
    found = np.zeros(blocks, dtype=np.int64)
    rest = row[wanted > 0]
    n = 0
    while len(rest):
        column = random_block_hash(seed, rest, n) % blocks
        new = (column >= global_blocks) & (drawn[rest] != column[:, None]).all(1)
        if reach is not None:
            new &= np.abs(rest - column) > reach
        drawn[rest[new], found[rest[new]]] = column[new]
        found[rest[new]] += 1
        rest = rest[found[rest] < wanted[rest]]
        n += 1
    return drawn
