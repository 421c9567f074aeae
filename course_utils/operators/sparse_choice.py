"""Which kernel of kernels/04_sparse_patterns suits a pattern: chosen from lengths, device and pattern alone, before
anything is launched."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from course_utils.operators.prepare import MAX_GRID
from course_utils.patterns import Pattern, Ranges

BLOCK = 64  # of the block lists that sparse_attention asks a pattern for
# What a row costs csr_gather beside its pairs, and what a block of the lists costs, in pairs of csr_gather: measured on
# an H200 with d = 128. A block costs block_sparse.cu 155, and block_sparse_hopper.cu 112 to 125 (part "csr" of the
# chapter's figures); the choice is the same on all devices, and so takes a number between.
CSR_ROW_COST, CSR_BLOCK_COST = 25, 130
CSR_LONGEST = 4096  # keys: a row is the work of one warp, and a longer one would set the time of the whole
MAX_DILATION = 2**17  # of range.cu
# Blocks of so many rows, or a multiple, are a batch of dense attention: a tile of queries then lies in one block. On
# the same tiles the dense kernel takes a few percent less time than the kernel of ranges (H200, part "dense_way").
DENSE_ROWS = 128


class Choice(NamedTuple):
    """Which kernel sparse_attention takes, "dense", "range", "block_sparse" or "csr_gather", and why, in words."""

    kernel: str
    why: str


def choose_kernel(
    pattern: Pattern,
    query_length: int,
    key_length: int | None = None,
    *,
    differentiable: bool = False,
    grouped: bool = False,
    device: torch.device | str = "cpu",
) -> Choice:
    """Which kernel `sparse_attention` takes for a pattern at these lengths, and why.

    "dense" where the pattern is equal blocks on the diagonal, each a sequence of its own to the dense kernel, with no
    tile that it shares with another (on a Hopper GPU, the kernel of ranges if blocks would not fill a tile). "range"
    where the rows are ranges of keys. Else "block_sparse", unless so few pairs of the visited blocks are kept that
    gathering the keys of each row costs less (a block as much as 130 keys, a row as 25 more): then "csr_gather", if no
    row has more than 4096 keys, and no gradient is asked for.

    differentiable: whether gradients will be asked for. grouped: whether several query heads share a key head. device:
    where the lists are built and kept.
    """
    check_pattern(pattern)
    shape = pattern.shape(query_length, key_length, device)
    key = "choice", shape, differentiable, grouped
    choose = functools.partial(_choose, pattern, *shape, differentiable, grouped)
    return pattern.cache.get(key, choose, shape.device)


def _choose(
    pattern: Pattern,
    query_length: int,
    key_length: int,
    device: torch.device,
    differentiable: bool,
    grouped: bool,
) -> Choice:
    if not grouped and _is_batch_of_dense(pattern.ranges, query_length, key_length):
        blocks, length = key_length // pattern.ranges.step, pattern.ranges.step
        return Choice("dense", f"{blocks} blocks of {length} that do not meet: a batch of dense attention, on a view")
    if pattern.ranges is not None and dilation_at(pattern.ranges, query_length, key_length) <= MAX_DILATION:
        classes = pattern.ranges.dilation
        where = "" if classes == 1 else f", in each of {classes} residue classes"
        return Choice("range", f"the rows are ranges of keys{where}: which tiles to visit is arithmetic")
    if pattern.row_ranges(query_length, key_length, device=device):
        return Choice("range", "the rows are ranges of keys: two arrays say where each starts and ends")
    pairs, visited = pattern.work(query_length, key_length, block=BLOCK, device=device)
    if not visited:
        return Choice("block_sparse", "no query sees a key: the lists are empty")
    kept = f"{pairs / (visited * BLOCK**2):.2%} of the pairs in the {BLOCK} × {BLOCK} blocks visited are kept"
    gather, blocks = pairs + CSR_ROW_COST * query_length, CSR_BLOCK_COST * visited
    if gather >= blocks:
        more = gather / blocks
        return Choice(
            "block_sparse", f"{kept}: to gather the keys of each row would cost about {more:.1f} times as much"
        )
    if differentiable:
        return Choice("block_sparse", f"{kept}: few, but csr_gather has no backward pass")
    longest = int(rows_of_keys(pattern, query_length, key_length, device)[0].diff().max())
    if longest > CSR_LONGEST:
        return Choice("block_sparse", f"{kept}: few, but one row of {longest} keys would be the work of one warp")
    more = blocks / gather
    return Choice("csr_gather", f"{kept}: all of these blocks would cost about {more:.1f} times as much as their keys")


def _is_batch_of_dense(ranges: Ranges | None, query_length: int, key_length: int) -> bool:
    """Whether the ranges are equal blocks on the diagonal that fill the sequence, each of whole tiles of the dense
    kernel: then it visits the tiles that range.cu visits, without the arithmetic."""
    if ranges is None or query_length != key_length or key_length % ranges.step:
        return False
    if key_length // ranges.step > MAX_GRID:
        return False
    return ranges == Ranges(left=0, right=ranges.step, step=ranges.step) and ranges.step % DENSE_ROWS == 0


def rows_of_keys(pattern: Pattern, query_length: int, key_length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """`pattern.csr`, from the pattern's cache."""
    key = "csr", query_length, key_length, device
    return pattern.cache.get(key, lambda: pattern.csr(query_length, key_length, device=device), device)


def dilation_at(ranges: Ranges, query_length: int, key_length: int) -> int:
    """The dilation, but at most the number of positions: with as many classes each query sees at most its own key, and
    more classes would be empty."""
    return min(ranges.dilation, max(query_length, key_length))


def check_pattern(pattern: Pattern) -> None:
    """Raises TypeError unless it is a Pattern."""
    if not isinstance(pattern, Pattern):
        raise TypeError(
            f"pattern is a {type(pattern).__name__}; it must be a Pattern of course_utils.patterns. "
            "patterns.from_mask_mod(fn) makes one of a mask function, patterns.from_csr(indptr, indices) of rows of "
            "keys; a BlockMask of FlexAttention goes to block_sparse_attention by BlockLists.from_block_mask"
        )
