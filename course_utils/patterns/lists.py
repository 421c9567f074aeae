"""Block lists: which blocks of keys a block of queries visits, and for the partial ones which pairs count."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from course_utils.patterns.arguments import lengths
from course_utils.patterns.cache import Cache, wait_until_made, wait_until_read
from course_utils.patterns.definition import (
    Blocks,
    Definition,
    Shape,
    blocks_of,
    expand,
    row_chunks,
)

BLOCKS = (64, 128)


@dataclass(frozen=True, eq=False)
class BlockLists:
    """The blocks of a mask that hold a pair, row by row of blocks of `block` queries and `block` keys.

    Attributes:
        block: 64 or 128.
        L_q, L_k: numbers of queries and keys.
        indptr: int32 `[rows + 1]`; the entries of blocks of queries r are indptr[r] … indptr[r + 1] - 1.
        indices: int32 `[n]`, the block of keys of each entry, ascending in a row.
        bits_index: int32 `[n]`: -1 for a full block (every existing query sees all `block` keys, and they exist), else
            its number in `bits`.
        bits: int32 `[partial blocks, block, block // 32]`: bit k % 32 of word k // 32 of row q says whether query q of
            the block sees key k of the block. Queries and keys that do not exist have 0.
    """

    block: int
    L_q: int
    L_k: int
    indptr: Tensor
    indices: Tensor
    bits_index: Tensor
    bits: Tensor

    @property
    def device(self) -> torch.device:
        """Where the lists lie."""
        return self.indptr.device

    @property
    def rows(self) -> int:
        """Number of blocks of queries."""
        return len(self.indptr) - 1

    @property
    def columns(self) -> int:
        """Number of blocks of keys."""
        return -(-self.L_k // self.block)

    @functools.cached_property
    def cache(self) -> Cache:
        """The launches that operators have made for these lists."""
        return Cache()

    @functools.cached_property
    def entry_rows(self) -> Tensor:
        """The block of queries of each entry, int32 `[n]`."""
        counts = self.indptr.diff().long()
        rows = torch.arange(self.rows, dtype=torch.int32, device=self.device)
        return wait_until_made(torch.repeat_interleave(rows, counts), self.device)

    @functools.cached_property
    def _by_key(self) -> tuple[Tensor, Tensor, Tensor]:
        order = torch.argsort(self.indices, stable=True)
        counts = torch.bincount(self.indices, minlength=self.columns)
        return wait_until_made((_starts(counts), self.entry_rows[order], self.bits_index[order]), self.device)

    def by_key(self) -> tuple[Tensor, Tensor, Tensor]:
        """The same entries by block of keys: indptr int32 `[columns + 1]`, rows int32 `[n]`, ascending in a column, and
        bits_index int32 `[n]`."""
        return self._by_key

    def pairs(self) -> int:
        """The number of pairs that the lists keep."""
        full = self.entry_rows[self.bits_index < 0]
        queries = (self.L_q - full.long() * self.block).clamp_(max=self.block)
        return int(queries.sum()) * self.block + sum(int(part.sum()) for part in map(popcount, self._parts()))

    def _parts(self) -> tuple[Tensor, ...]:
        return self.bits.split(2**22 // self.block)

    def csr(self) -> tuple[Tensor, Tensor]:
        """The pairs by query: indptr int64 `[L_q + 1]`, and indices int32 `[pairs]`, ascending in a row."""
        block, rows = self.block, self.entry_rows.long()
        partial = self.bits_index >= 0
        counts = torch.full((len(rows), block), block, dtype=torch.int32, device=self.device)  # keys per entry, query
        if len(self.bits):
            counts[partial] = torch.cat([popcount(part) for part in self._parts()])[self.bits_index[partial].long()]
        query = rows[:, None] * block + torch.arange(block, device=self.device)
        counts *= query < self.L_q
        # Entries are ordered by block of queries, so that a column of this sum counts what lies before in the same row.
        before = counts.cumsum(0) - counts
        before -= before[self.indptr[rows].long()]
        length = torch.zeros(self.rows * block, dtype=torch.int64, device=self.device)
        length.scatter_add_(0, query.flatten(), counts.flatten().long())
        indptr = torch.cat([length.new_zeros(1), length[: self.L_q].cumsum(0)])
        indices = torch.empty(int(indptr[-1]), dtype=torch.int32, device=self.device)
        start = indptr[query.clamp(max=self.L_q - 1)] + before
        step = max(1, 2**24 // block**2)
        for first in range(0, len(rows), step):
            part = slice(first, first + step)
            dense = torch.ones(len(rows[part]), block, block, dtype=torch.bool, device=self.device)
            dense &= (query[part] < self.L_q)[:, :, None]
            chosen = partial[part]
            dense[chosen] = unpack(self.bits[self.bits_index[part][chosen].long()])
            entry, row, key = dense.nonzero(as_tuple=True)
            _, number = expand(counts[part].flatten().long())
            indices[start[part][entry, row] + number] = (self.indices[part][entry] * block + key).int()
        return wait_until_read((indptr, indices), self.device)

    def mask(self) -> Tensor:
        """The dense mask, bool `[L_q, L_k]`."""
        dense = torch.zeros(self.rows, self.columns, self.block, self.block, dtype=torch.bool, device=self.device)
        rows, columns = self.entry_rows.long(), self.indices.long()
        full = self.bits_index < 0
        dense[rows[full], columns[full]] = True
        dense[rows[~full], columns[~full]] = unpack(self.bits[self.bits_index[~full].long()])
        flat = dense.transpose(1, 2).reshape(self.rows * self.block, self.columns * self.block)
        return wait_until_read(flat[: self.L_q, : self.L_k], self.device)

    # ---- FlexAttention

    @classmethod
    def from_block_mask(cls, block_mask: Any, L_q: int | None = None, L_k: int | None = None) -> BlockLists:
        """The lists of a `torch.nn.attention.flex_attention.BlockMask` of one batch entry and one head.

        Its mask_mod gives the bits of the partial blocks. Blocks must be square, of 64 or 128. L_q and L_k default to
        the lengths that it was made for; entries past a row's count are never read.
        """
        from torch.nn.attention.flex_attention import BlockMask

        if not isinstance(block_mask, BlockMask):
            raise TypeError(f"block_mask is {block_mask!r}; it must be a FlexAttention BlockMask")
        sizes = tuple(block_mask.BLOCK_SIZE)
        if sizes not in [(size, size) for size in BLOCKS]:
            raise ValueError(f"block_mask has BLOCK_SIZE {sizes}; it must be (64, 64) or (128, 128)")
        block, counts = sizes[0], block_mask.kv_num_blocks
        if counts.shape[:-1].numel() != 1:
            raise ValueError(
                f"block_mask has B, H = {tuple(counts.shape[:-1])}; it must be 1, 1: the same mask for every head"
            )
        made_for = block_mask.seq_lengths
        shape = lengths(made_for[0] if L_q is None else L_q, made_for[1] if L_k is None else L_k, counts.device)
        rows, columns = shape.blocks(block)
        if counts.shape[-1] != rows:
            raise ValueError(
                f"block_mask has {counts.shape[-1]} blocks of {block} queries; L_q = {shape.L_q} takes {rows} of them"
            )
        partial = _listed(counts, block_mask.kv_indices, columns)
        full = partial[:0]
        if block_mask.full_kv_num_blocks is not None:
            full = _listed(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, columns)
        codes, order = torch.cat([partial, full]).sort()
        if (codes[1:] == codes[:-1]).any():
            raise ValueError("block_mask lists a block twice; each block of a row must be listed once")
        is_full = (order >= len(partial)) & ((codes % columns + 1) * block <= shape.L_k)
        ragged = torch.zeros(rows * columns, dtype=torch.bool, device=counts.device)
        ragged[full] = True

        def mask(i: Tensor, j: Tensor) -> Tensor:
            row, zero = i - shape.shift, torch.zeros((), dtype=torch.int32, device=counts.device)
            code = (row // block) * columns + j // block
            return block_mask.mask_mod(zero, zero, row, j) | ragged[code.long()]

        return from_blocks(Blocks(codes, is_full), Definition(mask), shape, block)

    def to_block_mask(self, mask_mod: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | None = None) -> Any:
        """A FlexAttention BlockMask with these lists.

        mask_mod(b, h, q_idx, kv_idx) with q_idx counted from row 0, as `Pattern.flex_mask_mod` gives it; None reads
        the bits.
        """
        from torch.nn.attention.flex_attention import BlockMask

        is_full = self.bits_index < 0
        block_mask = BlockMask.from_kv_blocks(
            *self._dense_lists(~is_full),
            *self._dense_lists(is_full),
            BLOCK_SIZE=(self.block, self.block),
            mask_mod=mask_mod or self._bits_mask_mod(),
            seq_lengths=(self.L_q, self.L_k),
        )
        return wait_until_read(block_mask, self.device)

    def _dense_lists(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = self.entry_rows[chosen].long(), self.indices[chosen]
        counts = torch.bincount(rows, minlength=self.rows)
        indices = torch.zeros(self.rows, self.columns, dtype=torch.int32, device=self.device)
        indices[rows, expand(counts)[1]] = columns
        return counts.int()[None, None], indices[None, None]

    def _bits_mask_mod(self) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        block, words = self.block, self.block // 32
        # Two more blocks stand for those that are full, and for those that hold no pair.
        ends = torch.tensor([-1, 0], dtype=torch.int32, device=self.device).view(2, 1, 1).expand(2, block, words)
        bits = torch.cat([self.bits, ends])
        number = torch.full((self.rows, self.columns), len(bits) - 1, dtype=torch.int32, device=self.device)
        number[self.entry_rows.long(), self.indices.long()] = self.bits_index.where(self.bits_index >= 0, len(bits) - 2)

        def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            word = bits[number[q_idx // block, kv_idx // block], q_idx % block, kv_idx % block // 32]
            return ((word >> (kv_idx % 32)) & 1) == 1

        return mask_mod


def _starts(counts: Tensor) -> Tensor:
    """int32 `[n + 1]` sums of counts, from 0."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int()


def _listed(counts: Tensor, indices: Tensor, columns: int) -> Tensor:
    """The codes (row · columns + column) that FlexAttention's lists name, in no order."""
    counts, indices = counts.reshape(-1).long(), indices.reshape(-1, indices.shape[-1])
    if counts.numel() and (counts.min() < 0 or counts.max() > indices.shape[-1]):
        raise ValueError(
            f"block_mask counts {int(counts.min())} to {int(counts.max())} blocks in a row; its lists have "
            f"{indices.shape[-1]} places"
        )
    row, number = expand(counts)
    column = indices[row, number].long()
    if len(column) and (column.min() < 0 or column.max() >= columns):
        raise ValueError(
            f"block_mask names blocks of keys {int(column.min())} to {int(column.max())}; there are {columns}"
        )
    return row * columns + column


# ---- bits


def pack(dense: Tensor) -> Tensor:
    """bool `[..., n]` as int32 `[..., n // 32]`: bit k % 32 of word k // 32."""
    # Eight bytes of 0 or 1 as one integer; the product moves byte k to bit 56 + k.
    eight = dense.contiguous().view(torch.int64)
    return ((eight * 0x0102040810204080) >> 56 & 255).to(torch.uint8).view(torch.int32)


def unpack(bits: Tensor) -> Tensor:
    """int32 `[..., n]` as bool `[..., 32 n]`."""
    place = torch.arange(32, dtype=torch.int32, device=bits.device)
    return (((bits[..., None] >> place) & 1) == 1).flatten(-2)


def popcount(bits: Tensor) -> Tensor:
    """The number of ones in each row of int32 `[..., words]`, as int32 `[...]`."""
    # Each two bits become their sum, then each four, each eight; the product adds up the bytes in the highest one.
    twos = bits - (bits >> 1 & 0x55555555)
    fours = (twos & 0x33333333) + (twos >> 2 & 0x33333333)
    eights = fours + (fours >> 4) & 0x0F0F0F0F
    return (eights * 0x01010101 >> 24).sum(-1, dtype=torch.int32)


# ---- building

EMPTY, FULL, PARTIAL = 0, 1, 2  # kinds of blocks


def build(definition: Definition, shape: Shape, block: int) -> BlockLists:
    """The lists of a definition, without anything of L_q times L_k."""
    if definition.keys and not definition.blocks:
        return _from_keys(definition, shape, block)
    return from_blocks(blocks_of(definition, shape, block), definition, shape, block)


def from_blocks(blocks: Blocks, definition: Definition, shape: Shape, block: int) -> BlockLists:
    """The lists, from blocks that can hold a pair; the mask decides about blocks that are not marked full."""
    unsure = (~blocks.full).nonzero()[:, 0]
    codes, number = blocks.codes[unsure], None
    if definition.shift_invariant:
        # Blocks equally far from the diagonal are the same, but for those that reach past the last query or key.
        row, column = codes // shape.blocks(block)[1], codes % shape.blocks(block)[1]
        whole = ((row + 1) * block <= shape.L_q) & ((column + 1) * block <= shape.L_k)
        distance, number = torch.unique(torch.where(whole, row - column, len(row) + codes), return_inverse=True)
        codes = torch.empty_like(distance).index_put_((number,), codes)
    kinds, found = [unsure[:0]], [_no_bits(shape, block)]
    at_once = 2**21 if shape.device.type == "cpu" else 2**26  # pairs: about what fits the caches of a CPU
    for part in codes.split(max(1, at_once // block**2)):
        bits, kind = _evaluate(part, definition, shape, block)
        kinds.append(kind)
        found.append(bits[kind == PARTIAL])
    kind, bits = torch.cat(kinds), torch.cat(found)
    if number is not None:
        place = (kind == PARTIAL).cumsum(0) - 1
        kind = kind[number]
        bits = bits[place[number][kind == PARTIAL]]
    every_kind = torch.where(blocks.full, FULL, EMPTY).index_put_((unsure,), kind)
    return _assemble(blocks.codes, every_kind, bits, shape, block)


def _evaluate(codes: Tensor, definition: Definition, shape: Shape, block: int) -> tuple[Tensor, Tensor]:
    """The bits of some blocks, and their kinds."""
    columns = shape.blocks(block)[1]
    inside = torch.arange(block, dtype=torch.int32, device=shape.device)
    query = ((codes // columns).int() * block)[:, None] + inside
    key = ((codes % columns).int() * block)[:, None] + inside
    # The mask is called only for queries and keys that exist, because its tables may end there.
    i, j = query.clamp(max=shape.L_q - 1) + shape.shift, key.clamp(max=shape.L_k - 1)
    grain = math.gcd(definition.grain, block, shape.shift)
    cells = definition.mask(i[:, ::grain, None], j[:, None, ::grain]).expand(len(codes), block // grain, block // grain)
    bits = pack(_repeat(cells, grain, 2)) & pack(key < shape.L_k)[:, None, :]
    exists = (query < shape.L_q)[:, :, None]
    bits = _repeat(bits, grain, 1) * exists
    some = (bits != 0).flatten(1).any(1)
    all_ = ((bits == -1) | ~exists).flatten(1).all(1) & (key[:, -1] < shape.L_k)
    return bits, torch.where(all_, FULL, torch.where(some, PARTIAL, EMPTY))


def _from_keys(definition: Definition, shape: Shape, block: int) -> BlockLists:
    """The lists of a definition that knows the keys of its rows: every pair sets its bit."""
    columns = shape.blocks(block)[1]
    all_codes, kinds, found = [], [], [_no_bits(shape, block)]
    for rows, keys in row_chunks(definition, shape, block):
        codes, number = torch.unique(rows // block * columns + keys // block, return_inverse=True)
        bits = torch.zeros(len(codes) * block * block // 32, dtype=torch.int32, device=shape.device)
        word = (number * block + rows % block) * (block // 32) + keys % block // 32
        bits.scatter_add_(0, word, torch.bitwise_left_shift(1, (keys % 32).int()))
        bits = bits.view(len(codes), block, block // 32)
        queries = (shape.L_q - codes // columns * block).clamp_(max=block)
        kind = torch.where(torch.bincount(number, minlength=len(codes)) == queries * block, FULL, PARTIAL)
        all_codes.append(codes)
        kinds.append(kind)
        found.append(bits[kind == PARTIAL])
    return _assemble(torch.cat(all_codes), torch.cat(kinds), torch.cat(found), shape, block)


def _repeat(tensor: Tensor, times: int, dim: int) -> Tensor:
    """Each entry along a dimension `times` times."""
    return (
        tensor.unsqueeze(dim + 1)
        .expand(*tensor.shape[: dim + 1], times, *tensor.shape[dim + 1 :])
        .flatten(dim, dim + 1)
    )


def _assemble(codes: Tensor, kind: Tensor, bits: Tensor, shape: Shape, block: int) -> BlockLists:
    rows, columns = shape.blocks(block)
    codes, kind = codes[kind != EMPTY], kind[kind != EMPTY]
    partial = kind == PARTIAL
    bits_index = torch.where(partial, partial.cumsum(0) - 1, -1).int()
    indptr = _starts(torch.bincount(codes // columns, minlength=rows))
    return BlockLists(block, shape.L_q, shape.L_k, indptr, (codes % columns).int(), bits_index, bits)


def _no_bits(shape: Shape, block: int) -> Tensor:
    return torch.zeros(0, block, block // 32, dtype=torch.int32, device=shape.device)
