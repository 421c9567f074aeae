"""Attention under a pattern, by the kernel that suits it (kernels/04_sparse_patterns), in fp16 and bf16.

What a call needs beside its inputs, block lists, CSR rows and the order of the work, is built by its first call and
kept with the pattern or the lists, for each of the last lengths and devices: later calls pay nothing. Nothing of size
L² is ever stored.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from course_utils.costs import ceil_div
from course_utils.cuda import OPEN, RawModule, ReadyLaunch
from course_utils.operators.library import AUTOCAST, operator
from course_utils.operators.prepare import (
    MAX_GRID,
    check_inputs,
    cut,
    dense,
    empty_outputs,
    fake_attention,
    fake_gradients,
    fitting,
    for_kernels,
    gradients,
    not_deterministic,
    padded,
)
from course_utils.operators.tensor_core import (
    BACKWARD_TENSORS,
    BACKWARD_TILES,
    DTYPES,
    FORWARD_TENSORS,
    HEAD_DIMS,
    BackwardTile,
    Call,
    DkDv,
    ForwardTile,
    ReadyBackward,
    check_forward,
    check_gradients,
    defines,
    dense_dk_dv,
    dense_forward,
    int_scalars,
    kernel,
    module,
    ready_backward,
)
from course_utils.patterns import UNBOUNDED, BlockLists, Pattern, Ranges, RowRanges, captured
from course_utils.patterns.definition import Shape
from course_utils.patterns.kept import Kept, not_compiled, number_of, numbered
from course_utils.patterns.ranges import define_ranges

FOLDER = "04_sparse_patterns"
BLOCK = 64  # of the block lists that sparse_attention asks a pattern for
# What a row costs csr_gather beside its pairs, and what a block costs block_sparse, in pairs of csr_gather: measured on
# an H200 with d = 128 (part "csr" of the chapter's figures).
CSR_ROW_COST, CSR_BLOCK_COST = 25, 155
CSR_LONGEST = 4096  # keys: a row is the work of one warp, and a longer one would set the time of the whole
CSR_WARPS = 4
MERGED_ROWS = 4  # rows per block of merge_parts
MAX_DILATION = 2**17  # of range.cu
# Blocks of so many rows, or a multiple, are a batch of dense attention: a tile of queries then lies in one block. On
# the same tiles the dense kernel takes a few percent less time than range.cu (H200, part "dense_way").
DENSE_ROWS = 128
SLOTS = {64: 512, 128: 256}  # blocks of threads that a large GPU runs at a time, by the size of a block of the lists
SHORTEST_PART = 1024  # keys, or queries: below, to split a row or a column and merge it again costs more than it saves
BACKWARD_WARPS = 1056  # that a large GPU runs at a time, of warps with all the registers that a thread can have
GIVEN_BY_CALL = (
    "range_attention, block_sparse_attention and csr_attention are given their lists call by call, which no compiled "
    "graph can hold: take sparse_attention, with a pattern"
)
NEAR_MEMORY = 2**25  # bytes: what blocks of a backward pass that run at a time can share in the L2 cache of a large GPU


class RangeTile(ForwardTile):
    """Options of range.cu, but for DILATED: those of 03_flash_attention_v2/forward.cu, and every tile that no row sees
    is skipped."""

    @property
    def options(self) -> tuple[str, ...]:
        return *super().options, "-DSKIP=1"

    @property
    def shared_bytes(self) -> int:
        """Besides Q, K and V, the first and the last key of each row."""
        return super().shared_bytes + 8 * self.block_rows


class BlockTile(NamedTuple):
    """Options of block_sparse.cu: blocks of the lists, of which B_c keys at a time are in shared memory."""

    head_dim: int
    block: int
    block_cols: int
    warps: int

    @property
    def options(self) -> tuple[str, ...]:
        return defines(D=self.head_dim, BLOCK=self.block, B_C=self.block_cols, WARPS=self.warps)

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def shared_bytes(self) -> int:
        """Q, and two tiles each of K and V."""
        return 2 * self.head_dim * (self.block + 4 * self.block_cols)


UNDILATED, DILATED = "-DDILATED=0", "-DDILATED=1"  # options of range.cu
TABLE = UNDILATED, "-DTABLE=1"  # options of range.cu for rows whose ends are in two arrays
# As in flash_attention_v2: the fastest tiles on an H200 first, then smaller ones for GPUs with less shared memory.
RANGE_TILES = {64: (RangeTile(64, 128, 128, 4),), 128: (RangeTile(128, 128, 64, 4),)}
RANGE_BACKWARD_TILES = BACKWARD_TILES
BLOCK_TILES = {  # by (head dimension, block)
    (64, 64): (BlockTile(64, 64, 64, 2),),
    (64, 128): (BlockTile(64, 128, 128, 4),),
    (128, 64): (BlockTile(128, 64, 32, 2),),
    (128, 128): (BlockTile(128, 128, 64, 4),),
}
BLOCK_BACKWARD_TILES = {
    (64, 64): (BackwardTile(64, 4, 16, 64),),
    (64, 128): (BackwardTile(64, 4, 32, 64),),
    (128, 64): (BackwardTile(128, 4, 16, 32),),
    (128, 128): (BackwardTile(128, 8, 16, 64), BackwardTile(128, 4, 16, 32)),
}

# ---------------------------------------------------------------------------------------------- the operator


class Choice(NamedTuple):
    """Which kernel sparse_attention takes, "dense", "range", "block_sparse" or "csr_gather", and why, in words."""

    kernel: str
    why: str


def sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: Pattern,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale · Q Kᵀ) V over the pairs that a pattern keeps, by the kernel of `choose_kernel`.

    The first call with a pattern, its lengths and a device builds lists, which takes longer; they are kept with the
    pattern, so keep the pattern. Any stream may use them, at once. A CUDA graph that has captured them holds them as
    long as it lives, with or without the pattern. Under torch.compile the pattern is made outside of what is compiled;
    the lengths are checked against it when the graph runs.

    Args:
        query: `[B, H, L_q, d]`, float16 or bfloat16, d up to 128, on the CPU (emulator) or a GPU; strided inputs are
            copied, and d is filled up with zeros to 64 or 128.
        key, value: `[B, H_k, L_k, d]`, dtype and device of query; `H_k == H`, or with `enable_gqa` a divisor of H.
        pattern: a Pattern of `course_utils.patterns`, the same for every batch and head. Query r has position
            `r + L_k - L_q`.
        scale: factor of the scores; None means `1 / sqrt(d)`. Scaled scores beyond some 10^8 are too coarse in
            fp32, and rows can come out wrong.
        enable_gqa: grouped-query attention: query head h reads key head `h // (H / H_k)`.
        return_lse: also return the log-sum-exp of each row of scores.

    Returns:
        out `[B, H, L_q, d]` in the dtype of query, differentiable once by autograd; zeros for a query that sees no
        key. With return_lse `(out, lse)`: lse `[B, H, L_q]`, float32, natural logarithm, not differentiable; minus
        infinity for a query that sees no key.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape, device or value; the message names it.
        RuntimeError: in the backward pass under `torch.use_deterministic_algorithms(True)`: blocks add their shares of
            dQ by atomics, in no fixed order.

    Where one key has most of a row's weight, the gradient of query is only as exact as the 16 bits of out; see
    `flash_attention_v2`.
    """
    _check_pattern(pattern)
    query, key, value = _attention.autocast(query, key, value)
    factor = _checked(query, key, value, scale, enable_gqa)
    out, lse = _attention(query, key, value, pattern.number, _needs_gradient(query, key, value), factor)
    return (out, lse) if return_lse else out


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
    tile that it shares with another. "range" where the rows are ranges of keys. Else "block_sparse", unless so few
    pairs of the visited blocks are kept that gathering the keys of each row costs less (a block as much as 155 keys, a
    row as 25 more): then "csr_gather", if no row has more than 4096 keys, and no gradient is asked for.

    differentiable: whether gradients will be asked for. grouped: whether several query heads share a key head. device:
    where the lists are built and kept.
    """
    _check_pattern(pattern)
    shape = pattern.shape(query_length, key_length, device)
    key = "choice", shape, differentiable, grouped
    return _kept(pattern, key, functools.partial(_choose, pattern, *shape, differentiable, grouped))


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
    if pattern.ranges is not None and _dilation(pattern.ranges, query_length, key_length) <= MAX_DILATION:
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
    longest = int(_csr(pattern, query_length, key_length, device)[0].diff().max())
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


def _csr(pattern: Pattern, query_length: int, key_length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    key = "csr", query_length, key_length, str(device)
    return _kept(pattern, key, lambda: pattern.csr(query_length, key_length, device=device), device)


# ---------------------------------------------------------------------------------------------- the kernels by name


def range_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    ranges: Ranges,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`sparse_attention` by range.cu. ranges: a Ranges of `course_utils.patterns`, such as `pattern.ranges`."""
    factor = _checked(query, key, value, scale, enable_gqa)
    _check_ranges(ranges, query.shape[2], key.shape[2])
    return attend_masked(query, key, value, RangeMask(ranges), factor, return_lse)


def block_sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block_lists: BlockLists,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`sparse_attention` by block_sparse.cu. block_lists: those of a pattern, `pattern.block_lists(L_q, L_k)`, or of
    FlexAttention's BlockMask, `BlockLists.from_block_mask(...)`; for the lengths and on the device of query and key.
    """
    if not isinstance(block_lists, BlockLists):
        raise TypeError(
            f"block_lists is a {type(block_lists).__name__}; it must be a BlockLists: pattern.block_lists(L_q, L_k) "
            "or BlockLists.from_block_mask(block_mask)"
        )
    factor = _checked(query, key, value, scale, enable_gqa)
    lengths, device = (query.shape[2], key.shape[2]), query.device
    if (block_lists.L_q, block_lists.L_k) != lengths:
        wanted = f"those of query and key, {lengths[0]} and {lengths[1]}"
        raise ValueError(f"block_lists has L_q {block_lists.L_q} and L_k {block_lists.L_k}; they must be {wanted}")
    if block_lists.device != device:
        raise ValueError(f"block_lists is on {block_lists.device}; it must be on {device}, like query")
    return attend_masked(query, key, value, ListMask(block_lists), factor, return_lse)


def csr_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    indptr: Tensor,
    indices: Tensor,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`sparse_attention` by csr_gather.cu, without gradients: row i sees keys `indices[indptr[i]:indptr[i + 1]]`.

    indptr: int64 `[L_q + 1]`; indices: int32 `[indptr[-1]]`, each at least 0 and less than L_k, one named twice counts
    twice. Both on the device of query. They are checked by every call, which takes a pass over them.
    Raises RuntimeError where a gradient is asked for.
    """
    not_compiled(GIVEN_BY_CALL)  # before the checks of the lists, which no compiler can trace
    factor = _checked(query, key, value, scale, enable_gqa)
    _check_csr(indptr, indices, query.shape[2], key.shape[2], query.device)
    if _needs_gradient(query, key, value):
        raise RuntimeError(
            "csr_attention has no backward pass: call it under torch.no_grad(), or take sparse_attention or "
            "block_sparse_attention"
        )
    return attend_masked(query, key, value, CsrMask(indptr, indices), factor, return_lse)


def attend_masked(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask, factor: float, return_lse: bool
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention under a mask's kernels, differentiable; arguments are checked. factor: of the scores."""
    given = _Given(mask)
    out, lse = _attention(query, key, value, given.number, _needs_gradient(query, key, value), factor)
    return (out, lse) if return_lse else out


class _Given:
    """A mask in place of a pattern, for one call."""

    def __init__(self, mask: Mask) -> None:
        self.mask = mask
        not_compiled(GIVEN_BY_CALL)
        self.number = number_of(self)

    def pairs(self, query_length: int, key_length: int, *, device: object) -> int:
        """As of a pattern."""
        return self.mask.pairs(query_length, key_length)


@operator(
    "sparse_attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, "
    "SymInt pattern, float scale) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)",
    fake=fake_gradients,
    check=check_gradients,
    flops=lambda _, query, key, value, out, lse, pattern, *more: _flops(query, key, pattern) * 5 // 2,
    is_gradient=True,
    tags=("nondeterministic_bitwise", "cudagraph_unsafe"),
)
def _gradient(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    pattern: int,
    scale: float,
) -> tuple[Tensor, ...]:
    not_deterministic("sparse_attention", "dQ")
    q, k, v, factor = for_kernels(query, key, value, scale, HEAD_DIMS)
    # A graph that was made without gradients may be differentiated all the same: not by the kernel of its forward pass.
    backward, columns = _ready(numbered(pattern), _backward, q, k, factor, differentiable=True), q.shape[-1]
    return gradients(query, scale, *backward(q, k, v, padded(out, columns), dense(lse), padded(grad_out, columns)))


@operator(
    "sparse_attention(Tensor query, Tensor key, Tensor value, SymInt pattern, bool differentiable, float scale) "
    "-> (Tensor out, Tensor lse)",
    fake=fake_attention,
    check=check_forward,
    flops=lambda query, key, value, pattern, *more: _flops(query, key, pattern),
    casts=dict.fromkeys(("query", "key", "value"), AUTOCAST),
    gradient=_gradient,
    # While a graph is made the number may be open: then there is no pattern to keep.
    keeps=lambda query, key, value, pattern, *_: numbered(pattern) if isinstance(pattern, int) else None,
    tags=("cudagraph_unsafe",),  # the first call at some lengths makes lists; see `Kept`
)
def _attention(
    query: Tensor, key: Tensor, value: Tensor, pattern: int, differentiable: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """pattern: its number. differentiable: whether a gradient may be asked for, which not every kernel has."""
    q, k, v, factor = for_kernels(query, key, value, scale, HEAD_DIMS)
    out, lse = empty_outputs(q)
    _ready(numbered(pattern), _forward, q, k, factor, differentiable)(q, k, v, out, lse)
    return cut(out, query.shape[-1]), lse


def _flops(query: Tensor, key: Tensor, pattern: int) -> int:
    """Of the products of the pairs that the pattern keeps. The tensors may be fake."""
    batch, heads, query_length, head_dim = query.shape
    with _disable_current_modes():
        device = query.device if type(query) is Tensor else "cpu"
        pairs = numbered(pattern).pairs(query_length, key.shape[2], device=device)
    return 4 * batch * heads * head_dim * pairs


Ready = TypeVar("Ready")


def _ready(
    owner: Pattern | _Given,
    make: Callable[[Mask, Call], Ready],
    query: Tensor,
    key: Tensor,
    factor: float,
    differentiable: bool,
) -> Ready:
    """make(mask, call) for the tensors of a call, as the kernels take them; kept with a pattern or block lists."""
    settled = query.shape, key.shape, query.dtype, query.device, factor
    given = owner.mask if isinstance(owner, _Given) else None
    if given and not isinstance(given, ListMask):
        ready = make(given, Call(*settled))
        if captured.capturing():
            captured.keep(ready)
        return ready

    def for_owner() -> Ready:
        call = Call(*settled)
        return make(given or _mask(owner, call, differentiable), call)

    return _kept(given.lists if given else owner, (make, differentiable, settled), for_owner)


def _forward(mask: Mask, call: Call) -> Forward:
    return mask.forward(call)


def _backward(mask: Mask, call: Call) -> ReadyBackward:
    return ready_backward(call, mask.dk_dv(call))


def _mask(pattern: Pattern, call: Call, differentiable: bool) -> Mask:
    """The launches for the pattern, by the kernel of `choose_kernel`."""
    (batch, heads, query_length, _), (_, kv_heads, key_length, _) = call.query_shape, call.key_shape
    fits_grid, grouped, device = batch * heads <= MAX_GRID, heads != kv_heads, call.device

    def make() -> Mask:
        chosen = choose_kernel(
            pattern, query_length, key_length, differentiable=differentiable, grouped=grouped, device=device
        )
        if chosen.kernel == "dense" and fits_grid:
            return DenseMask(pattern.ranges.step)
        if chosen.kernel in ("dense", "range"):
            return range_mask(pattern, query_length, key_length, device)
        if chosen.kernel == "block_sparse":
            return ListMask(pattern.block_lists(query_length, key_length, block=BLOCK, device=device))
        return CsrMask(*_csr(pattern, query_length, key_length, device))

    return _kept(pattern, ("mask", query_length, key_length, device, fits_grid, grouped, differentiable), make)


# ---------------------------------------------------------------------------------------------- the launches

Forward = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]  # query, key, value; writes out and lse


class DenseMask(NamedTuple):
    """Launches of the dense kernels of chapter 03: blocks of `length` rows are sequences of their own, in a view of
    the tensors `[B · H, L / length, length, d]`, since a head's rows lie one behind the other. L is a multiple of
    length, for queries and keys alike, and each head has keys of its own."""

    length: int

    def forward(self, call: Call) -> Forward:
        return dense_forward(self._of_blocks(call), False)

    def dk_dv(self, call: Call) -> DkDv:
        return dense_dk_dv(self._of_blocks(call), False)

    def pairs(self, query_length: int, key_length: int) -> int:
        """How many it keeps; of every mask."""
        return query_length * self.length

    def _of_blocks(self, call: Call) -> Call:
        return call._replace(query_shape=self._view(call.query_shape), key_shape=self._view(call.key_shape))

    def _view(self, shape: torch.Size) -> torch.Size:
        batch, heads, rows, head_dim = shape
        return torch.Size((batch * heads, rows // self.length, self.length, head_dim))


def range_mask(pattern: Pattern, query_length: int, key_length: int, device: torch.device) -> RangeMask | RowMask:
    """Of a pattern whose rows are ranges: its five numbers where these say it, else an array for each end."""
    if pattern.ranges is not None and _dilation(pattern.ranges, query_length, key_length) <= MAX_DILATION:
        return RangeMask(pattern.ranges)
    rows = pattern.row_ranges(query_length, key_length, device=device)
    by_key = ("by key", query_length, key_length, str(device))
    return RowMask(rows, _kept(pattern, by_key, functools.partial(rows.by_key, key_length), device), Kept())


class RowMask(NamedTuple):
    """Launches of range.cu and range_backward.cu with -DTABLE=1. by_key: `rows.by_key(L_k)`, for gradients; columns:
    those of backward passes. It does not name its pattern, which would then keep itself."""

    rows: RowRanges
    by_key: RowRanges
    columns: Kept

    def forward(self, call: Call) -> Forward:
        batch, heads, query_length, head_dim = call.query_shape
        tile = fitting(RANGE_TILES[head_dim], call.device)
        return ReadyLaunch(
            kernel(f"{FOLDER}/range.cu", (*tile.options, *TABLE), call.dtype, "table_forward"),
            (ceil_div(query_length, tile.block_rows), heads, batch),
            (tile.threads,),
            (*FORWARD_TENSORS, *call.scalars, *self.rows),
            tile.shared_bytes,
        )

    def dk_dv(self, call: Call) -> DkDv:
        tile, sizes = fitting(RANGE_BACKWARD_TILES[call.key_shape[3]], call.device), (call.query_shape, call.key_shape)
        columns = self.columns.get((tile, *sizes), lambda: self._columns(tile, *sizes), call.device)
        files = module(f"{FOLDER}/range_backward.cu", (*tile.options, "-DTABLE=1"), call.dtype)
        return by_columns(files, "table_dk_dv", tile, columns, call, tuple(self.by_key))

    def pairs(self, query_length: int, key_length: int) -> int:
        return self.rows.pairs()

    def _columns(self, tile: BackwardTile, query_shape: torch.Size, key_shape: torch.Size) -> Columns:
        starts, ends = self.by_key
        first = torch.arange(0, len(starts), tile.block_cols, device=starts.device)
        last = (first + tile.block_cols).clamp(max=len(starts)) - 1
        return columns_of(torch.arange(len(first)), starts[first], ends[last], tile, query_shape, key_shape)


class RangeMask(NamedTuple):
    """Launches of range.cu and range_backward.cu."""

    ranges: Ranges

    def forward(self, call: Call) -> Forward:
        batch, heads, query_length, head_dim = call.query_shape
        tile = fitting(RANGE_TILES[head_dim], call.device)
        ranges = _numbers(self.ranges, query_length, call.key_shape[2])
        options = *tile.options, DILATED if ranges[-1] > 1 else UNDILATED
        return ReadyLaunch(
            kernel(f"{FOLDER}/range.cu", options, call.dtype, "range_forward"),
            (_class_tiles(query_length, ranges[-1], tile.block_rows), heads, batch),
            (tile.threads,),
            (*FORWARD_TENSORS, *call.scalars, *int_scalars(*ranges)),
            tile.shared_bytes,
        )

    def dk_dv(self, call: Call) -> DkDv:
        tile = fitting(RANGE_BACKWARD_TILES[call.key_shape[3]], call.device)
        ranges = Ranges(*_numbers(self.ranges, call.query_shape[2], call.key_shape[2]))
        what = ranges, tile, call.query_shape, call.key_shape, call.device
        columns = _RANGE_COLUMNS.get(what, lambda: range_columns(*what), call.device)
        options = *tile.options, f"-DDILATED={int(ranges.dilation > 1)}"
        files = module(f"{FOLDER}/range_backward.cu", options, call.dtype)
        return by_columns(files, "range_dk_dv", tile, columns, call, int_scalars(*ranges))

    def pairs(self, query_length: int, key_length: int) -> int:
        return define_ranges(self.ranges, Shape(query_length, key_length, torch.device("cpu"))).pairs()


def _numbers(ranges: Ranges, query_length: int, key_length: int) -> tuple[int, ...]:
    *others, _ = ranges
    return *others, _dilation(ranges, query_length, key_length)


def _dilation(ranges: Ranges, query_length: int, key_length: int) -> int:
    """The dilation, at most as many classes as there are positions: then each query sees at most its own key, and more
    classes, which would be empty blocks, change nothing."""
    return min(ranges.dilation, max(query_length, key_length))


def _class_tiles(length: int, dilation: int, rows: int) -> int:
    return dilation * ceil_div(ceil_div(length, dilation), rows)


class ListMask(NamedTuple):
    """Launches of block_sparse.cu and block_sparse_backward.cu."""

    lists: BlockLists

    def forward(self, call: Call) -> Forward:
        lists, (batch, heads, _, head_dim) = self.lists, call.query_shape
        tile = fitting(BLOCK_TILES[head_dim, lists.block], call.device)
        work = _kept(lists, ("work", batch * heads), lambda: work_items(lists, batch * heads), lists.device)
        kernels = module(f"{FOLDER}/block_sparse.cu", tile.options, call.dtype)
        tables, parts = (work.items, lists.indices, lists.bits_index, lists.bits), 2 * (_parts(work),)
        attend = ReadyLaunch(
            kernels.get_function("block_sparse_forward"),
            (len(work.items), heads, batch),
            (tile.threads,),
            (*FORWARD_TENSORS, *tables, *parts, *call.scalars),
            tile.shared_bytes,
        )
        if not work.parts:
            return attend
        merge = ReadyLaunch(
            kernels.get_function("merge_parts"),
            (len(work.split_rows) * lists.block // MERGED_ROWS, heads, batch),
            (32 * MERGED_ROWS,),
            (OPEN, OPEN, work.split_rows, OPEN, OPEN, call.scalars[0]),
        )
        return _SplitRows(attend, merge, (work.parts, batch, heads, lists.block, head_dim))

    def dk_dv(self, call: Call) -> DkDv:
        lists, sizes = self.lists, (call.query_shape, call.key_shape)
        tile = fitting(BLOCK_BACKWARD_TILES[call.key_shape[3], lists.block], call.device)
        columns = _kept(lists, ("columns", tile, *sizes), lambda: self.columns(tile, *sizes), lists.device)
        options = *tile.options, f"-DBLOCK={lists.block}"
        files = module(f"{FOLDER}/block_sparse_backward.cu", options, call.dtype)
        _, rows, bits_index = lists.by_key()
        return by_columns(files, "block_sparse_dk_dv", tile, columns, call, (rows, bits_index, lists.bits))

    def pairs(self, query_length: int, key_length: int) -> int:
        return self.lists.pairs()

    def columns(self, tile: BackwardTile, query_shape: torch.Size, key_shape: torch.Size) -> Columns:
        """What the blocks of threads of block_sparse_backward.cu do."""
        lists, (indptr, *_) = self.lists, self.lists.by_key()
        tiles = torch.arange(ceil_div(lists.L_k, tile.block_cols), device=lists.device)
        column = tiles * tile.block_cols // lists.block
        return columns_of(
            tiles, indptr[column], indptr[column + 1], tile, query_shape, key_shape, rows_of_entry=lists.block
        )


def _parts(work: Work | Columns) -> object:
    """What a kernel takes for the results of parts: memory of the call; none where no row or column is split."""
    return OPEN if work.parts else work.items.new_empty(0, dtype=torch.float32)


class _SplitRows(NamedTuple):
    """The launches of block_sparse.cu and of merge_parts. shape: of the parts, made by each call."""

    attend: ReadyLaunch
    merge: ReadyLaunch
    shape: tuple[int, ...]

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor) -> None:
        parts = query.new_empty(self.shape, dtype=torch.float32)
        lse_parts = parts.new_empty(self.shape[:-1])
        self.attend(query, key, value, out, lse, parts, lse_parts)
        self.merge(parts, lse_parts, out, lse)


class CsrMask(NamedTuple):
    """The launch of csr_gather.cu."""

    indptr: Tensor
    indices: Tensor

    def forward(self, call: Call) -> Forward:
        batch, heads, query_length, head_dim = call.query_shape
        options = f"-DD={head_dim}", f"-DWARPS={CSR_WARPS}"
        return ReadyLaunch(
            kernel(f"{FOLDER}/csr_gather.cu", options, call.dtype, "csr_gather"),
            (ceil_div(query_length, CSR_WARPS), heads, batch),
            (32 * CSR_WARPS,),
            (*FORWARD_TENSORS, self.indptr, self.indices, *call.scalars),
        )

    def pairs(self, query_length: int, key_length: int) -> int:
        return len(self.indices)


Mask = DenseMask | RangeMask | RowMask | ListMask | CsrMask


class Work(NamedTuple):
    """What the blocks of threads of block_sparse.cu do.

    items: int32 `[n, 4]`, (block row, first entry of the lists, end entry, part, or -1 for a row in one piece), longest
    first. split_rows: int32 `[m, 4]`, (block row, first part, end part, 0). parts: how many there are of all rows.
    """

    items: Tensor
    split_rows: Tensor
    parts: int


def work_items(lists: BlockLists, heads: int) -> Work:
    """The rows of the lists as pieces of work for `heads` heads (of the whole batch), long rows split evenly.

    A row is split where it would keep one multiprocessor at work while the others are done: where it is longer than
    an eighth of what each gets, unless most rows are about as long, or there are too few of them to go round. So the
    parts of all heads take at most some 100 MB, whatever the length, and most patterns have none.
    """
    counts, share = lists.indptr.diff().long(), len(lists.indices) * heads / SLOTS[lists.block]
    typical = 2 * len(lists.indices) / len(counts)
    pieces = split_evenly(counts, int(max(SHORTEST_PART / lists.block, min(typical, share), share / 8)))
    items, split_rows = pieces.items, pieces.split_rows
    items[:, 1:3] += lists.indptr[items[:, :1]]
    longest_first = torch.argsort(items[:, 2] - items[:, 1], descending=True, stable=True)
    return Work(items[longest_first].int().contiguous(), split_rows.int().contiguous(), pieces.parts)


def split_evenly(counts: Tensor, limit: int) -> Work:
    """Rows of so many entries, int64 `[n]`, as pieces of at most `limit` entries, row by row; int64, and the first and
    the end entry of a piece count from its row's first."""
    pieces = ((counts + limit - 1) // limit).clamp_(min=1)
    first_piece = pieces.cumsum(0) - pieces

    row = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), pieces)
    number = torch.arange(len(row), device=counts.device) - first_piece[row]
    start, end = (counts[row] * n // pieces[row] for n in (number, number + 1))
    is_part = pieces[row] > 1
    part = torch.where(is_part, is_part.cumsum(0) - 1, -1)

    split = (pieces > 1).nonzero().squeeze(1)
    end_part = pieces[split].cumsum(0)
    split_rows = torch.stack((split, end_part - pieces[split], end_part, torch.zeros_like(split)), dim=1)
    return Work(torch.stack((row, start, end, part), dim=1), split_rows, int(pieces[split].sum()))


class Columns(NamedTuple):
    """What the blocks of threads of a backward pass do (kernels/include/key_columns.cuh).

    items: int32 `[n, 4]`, (tile of keys, first, end, part or -1), where first to end - 1 are queries or entries of the
    lists. split: int32 `[m, 4]`, (tile of keys, first part, end part, 0). parts: how many there are of all columns.
    heads: key heads that are worked on side by side.
    """

    items: Tensor
    split: Tensor
    parts: int
    heads: int


def columns_of(
    tiles: Tensor,
    starts: Tensor,
    ends: Tensor,
    tile: BackwardTile,
    query_shape: torch.Size,
    key_shape: torch.Size,
    *,
    rows_of_entry: int = 1,
) -> Columns:
    """The columns of tiles of keys, `[n]`, that meet `starts` to `ends - 1`, int32 `[n]`: rows, or entries of so many
    rows. A column is split where it is longer than an eighth of what a block of threads gets, unless it is at most four
    times as long as most, or half of what one gets.

    Pieces that differ by less than an eighth of what a block of threads gets stay in their order: neighbours read the
    same queries. Others are sorted, the longest first, so that none of them is left for the end. Heads are side by
    side as far as the L2 cache has room for the queries that their blocks share.
    """
    (batch, _, query_length, head_dim), kv_heads = query_shape, key_shape[1]
    step = max(1, tile.block_rows // rows_of_entry)  # a tile of queries, in rows; or an entry
    starts, lengths = starts.long(), (ends - starts).long().clamp_(min=0)
    counts = (lengths + step - 1) // step
    share = int(counts.sum()) * batch * kv_heads * tile.warps / BACKWARD_WARPS
    typical, shortest = 4 * int(counts.sum()) / len(counts), SHORTEST_PART / (step * rows_of_entry)
    pieces = split_evenly(counts, int(max(shortest, min(typical, share / 2), share / 8)))
    row, first, end, part = pieces.items.unbind(1)
    of_item = torch.stack((tiles.to(row.device)[row], starts[row] + first * step), dim=1)
    last = starts[row] + torch.minimum(end * step, lengths[row])
    order = torch.argsort((end - first) // max(1, int(share / 8)), descending=True, stable=True)
    items = torch.cat((of_item, last[:, None], part[:, None]), dim=1)[order]
    split = pieces.split_rows
    split[:, 0] = tiles.to(row.device)[split[:, 0]]

    rows = query_length if rows_of_entry > 1 else max(1, int((end - first).max()) * step)
    room = NEAR_MEMORY // (8 * head_dim * rows * (query_shape[1] // kv_heads))  # 8 bytes: Q and dO, and dQ in fp32
    heads = max(n for n in range(1, kv_heads + 1) if kv_heads % n == 0 and n <= max(1, room))
    return Columns(items.int().contiguous(), split.int().contiguous(), pieces.parts, heads)


_RANGE_COLUMNS = Kept()


def range_columns(
    ranges: Ranges, tile: BackwardTile, query_shape: torch.Size, key_shape: torch.Size, device: torch.device
) -> Columns:
    """The columns of range_backward.cu. A residue class has its own tiles of keys: of tile n of class c the number is
    c + dilation · n."""
    sinks, left, right, step, dilation = ranges
    L_q, L_k = query_shape[2], key_shape[2]
    tiles = torch.arange(_class_tiles(L_k, dilation, tile.block_cols))
    of_class, j = tiles % dilation, tiles // dilation * tile.block_cols
    first = of_class - (L_k - L_q)
    query = first % dilation  # as residue_class of ranges.cuh
    keys, queries = (L_k - of_class + dilation - 1) // dilation, (L_q - query + dilation - 1) // dilation
    shift = (query - first) // dilation
    exists = j < keys

    def end_of(j: Tensor) -> Tensor:
        end = (j + left) // step * step + step - shift
        return torch.where(j < sinks, queries, torch.minimum(end, queries))

    starts = ((j - right + step) // step * step - shift).clamp_(min=0)
    ends = torch.maximum(end_of(j), end_of(torch.minimum(j + tile.block_cols, keys) - 1))
    tiles, starts, ends = (of_tile[exists].to(device) for of_tile in (tiles, starts, ends))
    return columns_of(tiles, starts, ends, tile, query_shape, key_shape)


def by_columns(
    kernels: RawModule, name: str, tile: BackwardTile, columns: Columns, call: Call, more: tuple[object, ...]
) -> DkDv:
    """The launch of a kernel of key_columns.cuh, and of merge_gradients where columns are split. more: what the kernel
    takes behind the columns."""
    batch, kv_heads, key_length, head_dim = call.key_shape
    dk_dv = ReadyLaunch(
        kernels.get_function(name),
        (len(columns.items) * columns.heads, kv_heads // columns.heads, batch),
        (tile.threads,),
        (*BACKWARD_TENSORS, *call.scalars, columns.items, np.int32(columns.heads), _parts(columns), *more),
        tile.shared_bytes,
    )
    if not columns.parts:
        return dk_dv
    merge = ReadyLaunch(
        kernels.get_function("merge_gradients"),
        (len(columns.split) * tile.block_cols * head_dim // (4 * tile.threads), kv_heads, batch),
        (tile.threads,),
        (OPEN, columns.split, OPEN, OPEN, np.int32(key_length), np.float32(call.factor)),
    )
    return _SplitColumns(dk_dv, merge, (columns.parts, 2, batch, kv_heads, tile.block_cols, head_dim))


class _SplitColumns(NamedTuple):
    """The launches of a kernel of key_columns.cuh and of merge_gradients. shape: of the parts, made by each call."""

    dk_dv: ReadyLaunch
    merge: ReadyLaunch
    shape: tuple[int, ...]

    def __call__(self, query: Tensor, *tensors: Tensor) -> None:
        """With the tensors of a `DkDv`."""
        parts = query.new_empty(self.shape, dtype=torch.float32)
        self.dk_dv(query, *tensors, parts)
        self.merge(parts, *tensors[-2:])


def modules(dtype: torch.dtype, device: torch.device) -> list[RawModule]:
    """What the operators launch for tensors of this dtype and device, to be compiled ahead of time."""
    options = [("csr_gather", (f"-DD={head_dim}", f"-DWARPS={CSR_WARPS}")) for head_dim in HEAD_DIMS]
    options += [
        ("range", (*fitting(tiles, device).options, f"-DDILATED={dilated}"))
        for tiles in RANGE_TILES.values()
        for dilated in (0, 1)
    ]
    options += [("range", (*fitting(tiles, device).options, *TABLE)) for tiles in RANGE_TILES.values()]
    options += [
        ("range_backward", (*fitting(tiles, device).options, kind))
        for tiles in RANGE_BACKWARD_TILES.values()
        for kind in ("-DDILATED=0", "-DDILATED=1", "-DTABLE=1")
    ]
    options += [("block_sparse", fitting(tiles, device).options) for tiles in BLOCK_TILES.values()]
    options += [
        ("block_sparse_backward", (*fitting(tiles, device).options, f"-DBLOCK={block}"))
        for (_, block), tiles in BLOCK_BACKWARD_TILES.items()
    ]
    return [module(f"{FOLDER}/{file}.cu", of_file, dtype) for file, of_file in options]


Made = TypeVar("Made")
_MADE: WeakKeyDictionary[object, Kept] = WeakKeyDictionary()


def _kept(owner: object, what: object, make: Callable[[], Made], device: torch.device | None = None) -> Made:
    """`Kept.get`, of what is kept as long as `owner` lives."""
    made = _MADE.get(owner)
    if made is None:
        made = _MADE[owner] = Kept()
    return made.get(what, make, device)


# ---------------------------------------------------------------------------------------------- checks


def _checked(query: Tensor, key: Tensor, value: Tensor, scale: float | None, enable_gqa: bool) -> float:
    """The factor of the scores, once the tensors fit the kernels."""
    return check_inputs(
        query,
        key,
        value,
        is_causal=False,
        scale=scale,
        dtypes=DTYPES,
        head_dim=HEAD_DIMS[-1],
        enable_gqa=enable_gqa,
    )


def _needs_gradient(query: Tensor, key: Tensor, value: Tensor) -> bool:
    return torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)


def _check_pattern(pattern: Pattern) -> None:
    if not isinstance(pattern, Pattern):
        raise TypeError(
            f"pattern is a {type(pattern).__name__}; it must be a Pattern of course_utils.patterns. "
            "patterns.from_mask_mod(fn) makes one of a mask function, patterns.from_csr(indptr, indices) of rows of "
            "keys; a BlockMask of FlexAttention goes to block_sparse_attention by BlockLists.from_block_mask"
        )


def _check_ranges(ranges: Ranges, query_length: int, key_length: int) -> None:
    if not isinstance(ranges, Ranges):
        raise TypeError(f"ranges is a {type(ranges).__name__}; it must be a Ranges, such as pattern.ranges")
    bounds = {"sinks": (0, UNBOUNDED), "left": (0, UNBOUNDED), "right": (0, UNBOUNDED)}
    bounds |= {"step": (1, UNBOUNDED // 2), "dilation": (1, UNBOUNDED)}
    for name, (least, most) in bounds.items():
        number = getattr(ranges, name)
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
            raise ValueError(f"ranges.{name} is {number!r}; it must be an int from {least} to {most}")
    if ranges.sinks and (ranges.step > 1 or ranges.dilation > 1):
        raise ValueError(f"ranges is {ranges}; with sinks, step and dilation must be 1")
    if _dilation(ranges, query_length, key_length) > MAX_DILATION:
        raise ValueError(
            f"ranges.dilation is {ranges.dilation}; range.cu takes at most {MAX_DILATION} at such a length"
        )


def _check_csr(indptr: Tensor, indices: Tensor, query_length: int, key_length: int, device: torch.device) -> None:
    for name, tensor, dtype in (("indptr", indptr, torch.int64), ("indices", indices, torch.int32)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}; it must be a torch tensor of {dtype}")
        if tensor.dtype != dtype or tensor.dim() != 1:
            raise TypeError(f"{name} is {tensor.dtype} {list(tensor.shape)}; it must be {dtype}, with one dimension")
        if tensor.device != device:
            raise ValueError(f"{name} is on {tensor.device}; it must be on {device}, like query")
    if len(indptr) != query_length + 1:
        raise ValueError(f"indptr has {len(indptr)} elements; it must have L_q + 1 = {query_length + 1}")
    if indptr[0] != 0 or indptr[-1] != len(indices) or (indptr.diff() < 0).any():
        raise ValueError(f"indptr must ascend from 0 to the number of indices, {len(indices)}")
    if len(indices) and not 0 <= indices.min() <= indices.max() < key_length:
        found = f"from {int(indices.min())} to {int(indices.max())}"
        raise ValueError(f"indices goes {found}; each must be at least 0 and less than L_k = {key_length}")
