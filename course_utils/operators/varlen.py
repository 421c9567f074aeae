"""Attention of sequences of any lengths, packed one behind another, by the kernels of ranges whose rows are two arrays
(kernels/04_sparse_patterns/range.cu and range_backward.cu, TABLE=1). Both arrays, and the columns of the backward pass,
are made on the device at each call: the host never waits for the lengths."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from course_utils.arguments import check_tensor, flag, integer
from course_utils.costs import ceil_div
from course_utils.cuda import LAID_OUT, ReadyLaunch
from course_utils.operators import hopper_launch, sparse_hopper_backward
from course_utils.operators.attention import Attention, Backward, Call, Forward
from course_utils.operators.prepare import fitting, not_deterministic
from course_utils.operators.sparse_launch import RANGE_BACKWARD_TILES, table_dk_dv, table_launch
from course_utils.operators.tensor_core import DTYPES, HEAD_DIMS, WIDE, ready_backward, row_delta, takes_wgmma
from course_utils.patterns import RowRanges
from course_utils.patterns.arguments import MAX_LENGTH

NO_WINDOW = 0


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
            last dimension of value may be another, and is that of out.
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
        RuntimeError: in the backward pass under `torch.use_deterministic_algorithms(True)`: blocks add their shares of
            dQ by atomics, in no fixed order.
    """
    _check_packed(query, key, value)
    _check_sequences(query, cu_seq_q, cu_seq_k)
    _check_ends("cu_seq_q", cu_seq_q, query.shape[0])
    _check_ends("cu_seq_k", cu_seq_k, key.shape[0])
    window = NO_WINDOW if window is None else integer("window", window, 1, MAX_LENGTH)
    if 0 in (query.shape[0], key.shape[0]):
        return _without_keys(query, key, value, sinks, return_lse)
    out, lse = _attention(
        *(tensor.transpose(0, 1)[None] for tensor in (query, key, value)),
        cu_seq_q,
        cu_seq_k,
        flag("is_causal", is_causal),
        window,
        sinks=sinks,
        softcap=softcap,
        scale=scale,
        enable_gqa=enable_gqa,
        return_lse=True,
    )
    out = out[0].transpose(0, 1).contiguous()
    return (out, lse[0]) if return_lse else out


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


def _check_ends(name: str, ends: Tensor, rows: int) -> None:
    """On a GPU the host would have to wait for the numbers."""
    if ends.device.type != "cpu" or torch.compiler.is_compiling():
        return
    if ends[0] != 0 or (ends.diff() < 0).any() or ends[-1] > rows:
        raise ValueError(f"{name} is {ends.tolist()}; it must begin with 0, never fall, and end at {rows} or before")


def _without_keys(
    query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, return_lse: bool
) -> Tensor | tuple[Tensor, Tensor]:
    """The results where there is no query or no key at all."""
    out = query.new_zeros(*query.shape[:2], value.shape[-1]) + sum(
        tensor[:0].sum() for tensor in (query, key, value)
    )  # of nothing, with gradients
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


def _forward(call: Call, cu_seq_q: Tensor, cu_seq_k: Tensor, is_causal: bool, window: int) -> Forward:
    launch = _ready_forward(call, takes_wgmma(call.device))
    rows = rows_of_sequences(cu_seq_q, cu_seq_k, call.query_shape[2], is_causal, window)
    return lambda query, key, value, out, lse, *sinks: launch(query, key, value, out, lse, *rows, *sinks)


@functools.lru_cache(maxsize=1024)
def _ready_forward(call: Call, by_wgmma: bool) -> Forward:
    """by_wgmma: what `takes_wgmma` says now, which table_launch asks."""
    return table_launch(call, RowRanges(LAID_OUT, LAID_OUT))


def _backward(call: Call, cu_seq_q: Tensor, cu_seq_k: Tensor, is_causal: bool, window: int) -> Backward:
    not_deterministic("varlen_attention", "dQ")
    by_key = rows_of_sequences(cu_seq_q, cu_seq_k, call.query_shape[2], is_causal, window).by_key(call.key_shape[2])
    if takes_wgmma(call.device) and not call.is_wide:
        launch, items = _ready_hopper(call), sparse_hopper_backward.columns_in_one_piece(by_key, call)
        ready = hopper_launch.ready_backward(call, False, False)
        return ready._replace(backward=lambda *tensors: launch(*tensors, items, *by_key))
    items = columns_of_sequences(by_key, fitting(RANGE_BACKWARD_TILES[call.key_shape[3]], call.device).block_cols)
    dk_dv = _ready_dk_dv(call)
    return ready_backward(call, lambda *tensors: dk_dv(*tensors, items, *by_key))


_ready_hopper = functools.lru_cache(maxsize=1024)(sparse_hopper_backward.table_backward)


@functools.lru_cache(maxsize=1024)
def _ready_dk_dv(call: Call) -> ReadyLaunch:
    tile = fitting(RANGE_BACKWARD_TILES[call.key_shape[3]], call.device)
    return table_dk_dv(call, ceil_div(call.key_shape[2], tile.block_cols), RowRanges(LAID_OUT, LAID_OUT))


def columns_of_sequences(by_key: RowRanges, block_cols: int) -> Tensor:
    """The items of table_dk_dv (kernels/include/key_columns.cuh), int32 `[n, 4]`: each tile of keys with all rows that
    see one of its keys, in one piece."""
    first = torch.arange(0, len(by_key.starts), block_cols, device=by_key.starts.device)
    last = (first + block_cols).clamp(max=len(by_key.starts)) - 1
    starts = by_key.starts[first]
    ends = torch.maximum(by_key.ends[last], starts)
    return torch.stack(((first // block_cols).int(), starts, ends, torch.full_like(starts, -1)), dim=1)


def _flops(query: Tensor, key: Tensor, sinks: Tensor | None, cu_seq_q: Tensor, cu_seq_k: Tensor, *_: object) -> int:
    """FLOPs of the products of all pairs inside of the sequences, causal or not."""
    _, heads, _, head_dim = query.shape
    return 4 * heads * head_dim * int((cu_seq_q.diff().long() * cu_seq_k.diff().long()).sum())


_attention = Attention(
    "varlen_attention",
    "Tensor cu_seq_q, Tensor cu_seq_k, bool is_causal, SymInt window",
    _forward,
    _backward,
    dtypes=DTYPES,
    head_dims=(*HEAD_DIMS, WIDE),
    flops=_flops,
    gradient_tags=("nondeterministic_bitwise",),
    row_delta=row_delta,
    check_more=_check_sequences,
)
