"""Attention of sequences of any lengths, packed one behind another, by the kernels of ranges whose rows are two arrays
(kernels/04_sparse_patterns/range.cu and range_backward.cu, TABLE=1). Both arrays, and the columns of the backward pass,
are made on the device at each call: the host never waits for the lengths."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from course_utils.arguments import check_tensor, flag, integer
from course_utils.costs import ceil_div
from course_utils.cuda import LAID_OUT, ReadyLaunch
from course_utils.operators import hopper_launch, sparse_hopper_backward
from course_utils.operators.attention import MOST_COLUMNS, Backward, Call, Forward, gradient_of_sinks
from course_utils.operators.library import operator
from course_utils.operators.prepare import (
    autocast,
    check_call,
    check_ends,
    check_inputs,
    check_own_value_dim,
    check_sinks,
    checked_softcap,
    cut,
    dense,
    fake_gradients_and_of_sinks,
    fitting,
    for_kernels,
    gradients,
    has_own_value_dim,
    packed_outputs,
    padded,
    positive_factor,
    with_one_head_dim,
)
from course_utils.operators.sparse_launch import RANGE_BACKWARD_TILES, table_dk_dv, table_dq, table_launch
from course_utils.operators.tensor_core import (
    DTYPES,
    HEAD_DIMS,
    WIDE,
    TwoPasses,
    ready_backward,
    row_delta,
    takes_wgmma,
)
from course_utils.patterns import RowRanges
from course_utils.patterns.arguments import MAX_LENGTH

NO_WINDOW = 0
HEAD_DIMS_TAKEN = *HEAD_DIMS, WIDE


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    *,
    is_causal: bool = False,
    window: int | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention inside of each of n sequences, whose rows stand one behind another. The host does not wait for their
    lengths, and a CUDA graph that has captured a call follows them in place.

    Args:
        query: `[total_q, H, d]`, float16 or bfloat16, d up to 256, on the CPU (emulator) or a GPU.
        key, value: `[total_k, H_k, d]`, dtype and device of query; `H_k == H`, or with `enable_gqa` a divisor of H. The
            last dimension of value may be another, and is that of out. All rows must be finite, those behind the last
            sequence, too: a tile may have rows of two sequences, and 0 · NaN is NaN.
        cu_seq_q, cu_seq_k: int32 `[n + 1]` on the device of query: sequence s has the rows `cu_seq_q[s]` to
            `cu_seq_q[s + 1] - 1` of query, and the same of key and value. They begin with 0 and never fall; sequences
            may be empty, and n may be 0. Rows behind the last sequence see no key. On a GPU their values are not looked
            at: others give wrong results without an error.
        is_causal, window, sinks, softcap, scale, enable_gqa, return_lse: as for `flash_attention_v2`; causal and
            windows are bottom-right aligned in each sequence.

    Returns:
        out `[total_q, H, d]` in the dtype of query, differentiable once by autograd; zeros for a query that sees no
        key. With return_lse `(out, lse)`: lse `[H, total_q]`, float32, as of `sparse_attention`.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape, device or value; the message names it.

    Under `torch.use_deterministic_algorithms(True)` every run gives the same bits of the gradient of query, too, which
    then comes from a second pass, as for `flash_attention_v2`; on a Hopper GPU the backward pass is the portable one.
    """
    _check_packed(query, key, value)
    query, key, value = autocast(query, key, value)
    _check_sequences(query, cu_seq_q, cu_seq_k)
    check_ends("cu_seq_q", cu_seq_q, query.shape[0])
    check_ends("cu_seq_k", cu_seq_k, key.shape[0])
    numbers = flag("is_causal", is_causal), NO_WINDOW if window is None else integer("window", window, 1, MAX_LENGTH)
    has_own, columns = has_own_value_dim(query, value), value.shape[-1]
    checked = [_with_a_row(tensor) for tensor in (query, key, key if has_own else value)]
    factor = check_inputs(*checked, scale=scale, enable_gqa=enable_gqa, dtypes=DTYPES, head_dim=WIDE)
    check_sinks(sinks, checked[0])
    numbers = *numbers, checked_softcap(softcap), factor
    if has_own:
        check_own_value_dim(key, value, WIDE)
    if 0 in (query.shape[0], key.shape[0]):
        return _without_keys(query, key, value, sinks, return_lse)
    if has_own:
        query, key, value = with_one_head_dim(query, key, value)
    out, lse = _attention(query, key, value, sinks, cu_seq_q, cu_seq_k, *numbers)
    out = cut(out, columns) if has_own else out
    return (out, lse) if return_lse else out


def _with_a_row(packed: Tensor) -> Tensor:
    """`_heads_first`, for checks that take no tensor without rows."""
    return _heads_first(packed if packed.shape[0] else packed.new_empty(1, *packed.shape[1:]))


def _check_packed(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}; it must be a torch tensor [total, H, d]")
        if tensor.dim() != 3 or 0 in tensor.shape[1:]:
            raise ValueError(f"{name} has shape {list(tensor.shape)}; it must be [total, H, d], neither H nor d 0")


def _check_sequences(query: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, *_: object) -> None:
    for name, ends in (("cu_seq_q", cu_seq_q), ("cu_seq_k", cu_seq_k)):
        check_tensor(name, ends, ("n + 1",), (torch.int32,), like=("query", query))
    if cu_seq_q.shape != cu_seq_k.shape:
        raise ValueError(
            f"cu_seq_k has {cu_seq_k.shape[0]} elements; it must have {cu_seq_q.shape[0]}, as cu_seq_q has"
        )


def _without_keys(
    query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, return_lse: bool
) -> Tensor | tuple[Tensor, Tensor]:
    """The results where there is no query or no key at all."""
    inputs = [query, key, value, *(() if sinks is None else (sinks,))]
    nothing = sum(tensor[:0].float().sum() for tensor in inputs)  # has gradients of 0
    out = query.new_zeros(*query.shape[:2], value.shape[-1]) + nothing.to(query.dtype)
    lse = torch.full((query.shape[1], query.shape[0]), -torch.inf, device=query.device)
    if sinks is not None:
        lse = sinks.detach()[:, None].expand_as(lse).contiguous()
    return (out, lse) if return_lse else out


def rows_of_sequences(
    cu_seq_q: Tensor, cu_seq_k: Tensor, total_q: int, is_causal: bool, window: int = NO_WINDOW
) -> RowRanges:
    """The keys that each row of the packed queries sees; nothing waits for the device."""
    row = torch.arange(total_q, dtype=torch.int32, device=cu_seq_q.device)
    if len(cu_seq_q) == 1:
        return RowRanges(torch.zeros_like(row), torch.zeros_like(row))
    sequence = torch.searchsorted(cu_seq_q[1:].contiguous(), row, right=True)  # n for a row behind the last
    bounded = sequence.clamp(max=len(cu_seq_q) - 2)
    first, end = cu_seq_k[bounded], cu_seq_k[bounded + 1]
    first = torch.where(sequence == bounded, first, end)
    if not (is_causal or window):
        return RowRanges(first, end)
    # the last query of a sequence is at its last key
    past = row + 1 - cu_seq_q[bounded + 1] + end
    past = torch.where(sequence == bounded, torch.clamp(past, first, end), end)
    return RowRanges(torch.clamp(past - window, first) if window else first, past)


# ---------------------------------------------------------------------------------------------- the operator


def _heads_first(packed: Tensor) -> Tensor:
    """`[total, H, d]` as a batch of one `[1, H, total, d]`, without a copy; and back by `_packed`."""
    return packed.transpose(0, 1)[None]


def _packed(heads_first: Tensor) -> Tensor:
    return heads_first[0].transpose(0, 1)


def _laid_out(
    query: Tensor, key: Tensor, value: Tensor, scale: float, by_maps: bool
) -> tuple[Tensor, Tensor, Tensor, float]:
    """`[1, H, total, D]` and the factor, as `for_kernels`. by_maps: kernels that read through tensor maps take rows as
    they are packed, without a copy."""
    if not by_maps:
        return for_kernels(*map(_heads_first, (query, key, value)), scale, HEAD_DIMS_TAKEN)
    query, factor = positive_factor(query, scale)
    columns = next(d for d in HEAD_DIMS if d >= query.shape[-1])
    return *(_heads_first(padded(tensor, columns)) for tensor in (query, key, value)), factor


def _by_maps(query: Tensor) -> bool:
    return takes_wgmma(query.device) and query.shape[-1] <= MOST_COLUMNS


def _call(query: Tensor, key: Tensor, factor: float, softcap: float, sinks: Tensor | None) -> Call:
    return Call(query.shape, key.shape, query.dtype, query.device, factor, softcap, sinks is not None)


def _check(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> None:
    _check_packed(query, key, value)
    sinks, cu_seq_q, cu_seq_k, *_, softcap, scale = others
    heads_first = [_heads_first(tensor) for tensor in (query, key, value)]
    check_call(*heads_first, sinks, softcap, scale, dtypes=DTYPES, head_dim=WIDE, enable_gqa=True, takes_sinks=True)
    _check_sequences(query, cu_seq_q, cu_seq_k)


def _check_gradient(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, *others: Any
) -> None:
    _check(query, key, value, *others)
    for name, tensor in (("grad_out", grad_out), ("out", out)):
        check_tensor(name, tensor, tuple(query.shape), like=("query", query))
    check_tensor("lse", lse, (query.shape[1], query.shape[0]), (torch.float32,), like=("query", query))


def _flops(query: Tensor, key: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor) -> int:
    """FLOPs of the products of all pairs inside of the sequences, causal or not."""
    pairs = int((cu_seq_q.diff().long() * cu_seq_k.diff().long()).sum())
    return 4 * query.shape[1] * query.shape[2] * pairs


OF_SEQUENCES = (
    "Tensor? sinks, Tensor cu_seq_q, Tensor cu_seq_k, bool is_causal, SymInt window, float softcap, float scale"
)


@operator(
    f"varlen_attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, "
    f"{OF_SEQUENCES}) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_sinks)",
    fake=fake_gradients_and_of_sinks,
    check=_check_gradient,
    flops=lambda grad_out, query, key, value, out, lse, sinks, *others: _flops(query, key, *others[:2]) * 5 // 2,
    tags=("nondeterministic_bitwise",),
)
def _gradient(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, *others: Any
) -> tuple[Tensor, ...]:
    sinks, cu_seq_q, cu_seq_k, is_causal, window, softcap, scale = others
    deterministic = torch.are_deterministic_algorithms_enabled()
    q, k, v, factor = _laid_out(query, key, value, scale, _by_maps(query) and not deterministic)
    call, lse = _call(q, k, factor, softcap, sinks), dense(lse[None])
    out, grad_out = (padded(_heads_first(tensor), q.shape[-1]) for tensor in (out, grad_out))
    rows = rows_of_sequences(cu_seq_q, cu_seq_k, query.shape[0], is_causal, window)
    found = _backward(call, rows, deterministic)(q, k, v, out, lse, grad_out)
    of_sinks = gradient_of_sinks(sinks, lse, row_delta(call), out, grad_out)
    found = gradients(_heads_first(query), scale, *found)
    return *(_packed(grad).contiguous() for grad in found), of_sinks


@operator(
    f"varlen_attention(Tensor query, Tensor key, Tensor value, {OF_SEQUENCES}) -> (Tensor out, Tensor lse)",
    fake=lambda query, *_: packed_outputs(query),
    check=_check,
    flops=lambda query, key, value, sinks, *others: _flops(query, key, *others[:2]),
    gradient=_gradient,
    saves=lambda inputs, results: ((*inputs[:3], *results, *inputs[3:6]), inputs[6:]),
)
def _attention(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    sinks, cu_seq_q, cu_seq_k, is_causal, window, softcap, scale = others
    by_maps, columns = _by_maps(query), query.shape[-1]
    q, k, v, factor = _laid_out(query, key, value, scale, by_maps)
    out, lse = packed_outputs(_packed(q))
    written = _heads_first(out) if by_maps else q.new_empty(q.shape)
    launch = _ready_forward(_call(q, k, factor, softcap, sinks), by_maps)
    rows = rows_of_sequences(cu_seq_q, cu_seq_k, query.shape[0], is_causal, window)
    launch(q, k, v, written, lse[None], *rows, *(() if sinks is None else (dense(sinks),)))
    if not by_maps:
        out.copy_(_packed(written))
    return cut(out, columns), lse


def _backward(call: Call, rows: RowRanges, deterministic: bool) -> Backward:
    by_key = rows.by_key(call.key_shape[2])
    if takes_wgmma(call.device) and not (call.is_wide or deterministic):
        launch, items = _ready_hopper(call), sparse_hopper_backward.columns_in_one_piece(by_key, call)
        ready = hopper_launch.ready_backward(call, False, False)
        return ready._replace(backward=lambda *tensors: launch(*tensors, items, *by_key))
    items = columns_of_sequences(by_key, fitting(RANGE_BACKWARD_TILES[call.key_shape[3]], call.device).block_cols)
    ready = _ready_dk_dv(call, adds_dq=not deterministic)

    def dk_dv(*tensors: Tensor) -> None:
        ready(*tensors, items, *by_key)

    if not deterministic:
        return ready_backward(call, dk_dv)
    dq = _ready_dq(call)
    return TwoPasses(row_delta(call), dk_dv, lambda *tensors: dq(*tensors, *rows))


@functools.lru_cache(maxsize=1024)
def _ready_forward(call: Call, by_wgmma: bool) -> Forward:
    """by_wgmma: what `takes_wgmma` says now, which table_launch asks."""
    return table_launch(call, RowRanges(LAID_OUT, LAID_OUT))


_ready_hopper = functools.lru_cache(maxsize=1024)(sparse_hopper_backward.table_backward)


@functools.lru_cache(maxsize=1024)
def _ready_dk_dv(call: Call, *, adds_dq: bool) -> ReadyLaunch:
    tile = fitting(RANGE_BACKWARD_TILES[call.key_shape[3]], call.device)
    return table_dk_dv(call, ceil_div(call.key_shape[2], tile.block_cols), RowRanges(LAID_OUT, LAID_OUT), adds_dq)


@functools.lru_cache(maxsize=1024)
def _ready_dq(call: Call) -> ReadyLaunch:
    return table_dq(call, RowRanges(LAID_OUT, LAID_OUT))


def columns_of_sequences(by_key: RowRanges, block_cols: int) -> Tensor:
    """The items of table_dk_dv (kernels/include/key_columns.cuh), int32 `[n, 4]`: each tile of keys with all rows that
    see one of its keys, in one piece."""
    starts, ends = by_key.of_tiles(block_cols)
    tiles = torch.arange(len(starts), dtype=torch.int32, device=starts.device)
    return torch.stack((tiles, starts, torch.maximum(ends, starts), torch.full_like(starts, -1)), dim=1)
