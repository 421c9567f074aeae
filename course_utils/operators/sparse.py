"""Attention under a pattern, by the kernel that suits it (kernels/04_sparse_patterns), in fp16 and bf16.

What a call of `sparse_attention` or `block_sparse_attention` needs beside its inputs, block lists, CSR rows and the
order of the work, is built by its first call and kept with the pattern or the lists, for each of the last lengths and
devices: later calls pay nothing. Nothing of size L² is ever stored.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from course_utils.operators.attention import Attention, Backward, Call, Forward
from course_utils.operators.library import needs_gradient
from course_utils.operators.prepare import autocast, check_inputs
from course_utils.operators.sparse_choice import check_pattern
from course_utils.operators.sparse_launch import CsrMask, ListMask, Mask, backward_of, mask_of
from course_utils.operators.tensor_core import DTYPES, HEAD_DIMS, WIDE, row_delta, takes_wgmma
from course_utils.patterns import BlockLists, Pattern
from course_utils.patterns.graphs import refuse_tracing, register, registered

GIVEN_BY_CALL = (
    "block_sparse_attention and csr_attention are given their lists call by call, which no compiled graph can hold: "
    "take sparse_attention, with a pattern"
)


def sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: Pattern,
    *,
    sinks: Tensor | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale · Q Kᵀ) V over the pairs that a pattern keeps, by the kernel of `choose_kernel`.

    With sinks, a softcap or d above 128 it is the range kernel where rows are ranges of keys, else the block kernel.

    The first call with a pattern, its lengths and a device builds lists, which takes longer; they are kept with the
    pattern, so keep the pattern. Any stream may use them, at once. What a CUDA graph has captured of them stays until
    the process ends. Under torch.compile the pattern is made outside of what is compiled; the lengths are checked
    against it when the graph runs.

    Args:
        query: `[B, H, L_q, d]`, float16 or bfloat16, d up to 128, and to 256 where rows are ranges of keys, on the CPU
            (emulator) or a GPU; strided inputs are copied, and d is filled up with zeros to 64, 128 or 256.
        key, value: `[B, H_k, L_k, d]`, dtype and device of query; `H_k == H`, or with `enable_gqa` a divisor of H. The
            last dimension of value may be another, and is that of out.
        pattern: a Pattern of `course_utils.patterns`, the same for every batch and head. Query r has position
            `r + L_k - L_q`.
        sinks: float32 `[H]`, differentiable: a logit for each query head in the sum of a row's exponentials, without a
            value (gpt-oss, arXiv 2508.10925).
        softcap: cap · tanh(S / cap) in place of the scaled scores S, before the mask (Gemma 2, arXiv 2408.00118); from
            10^-3 to 10^4.
        scale: factor of the scores; None means `1 / sqrt(d)`. Scaled scores beyond some 10^8 are too coarse in
            fp32, and rows can come out wrong.
        enable_gqa: grouped-query attention: query head h reads key head `h // (H / H_k)`.
        return_lse: also return the log-sum-exp of each row of scores.

    Returns:
        out `[B, H, L_q, d]` in the dtype of query, differentiable once by autograd; zeros for a query that sees no
        key. With return_lse `(out, lse)`: lse `[B, H, L_q]`, float32, natural logarithm, not differentiable, of the
        scores and the sink; minus infinity for a query that sees no key, if there are no sinks.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape, device or value; the message names it.
        NotImplementedError: d above 128 where rows are not ranges of keys.

    Every run gives the same bits, but for the gradient of query: blocks work on tiles of keys and add their shares of
    dQ by atomics, in an order of chance. Under `torch.use_deterministic_algorithms(True)` it does, too. Where the rows
    are ranges and the GPU is a Hopper, blocks then take turns (dilated by n, if n divides L_q and L_k, and L_q is at
    least 64 n); elsewhere dQ comes from a second pass, in which blocks work on tiles of queries, and two of the five
    matrix products are done again.

    Where one key has most of a row's weight, the gradient of query is only as exact as the 16 bits of out; see
    `flash_attention_v2`.
    """
    check_pattern(pattern)
    return _attention(
        query,
        key,
        value,
        pattern.number,
        sinks=sinks,
        softcap=softcap,
        scale=scale,
        enable_gqa=enable_gqa,
        return_lse=return_lse,
    )


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
    """`sparse_attention` by block_sparse.cu, or on a Hopper GPU, where d is above 64, by block_sparse_hopper.cu; its
    gradients by block_sparse_backward.cu, or there by block_sparse_backward_hopper.cu.

    block_lists: those of a pattern, `pattern.block_lists(L_q, L_k)`, or of FlexAttention's BlockMask,
    `BlockLists.from_block_mask(...)`; for the lengths and on the device of query and key. For eager mode:
    lists that are given call by call are an error of a full graph.
    """
    if not isinstance(block_lists, BlockLists):
        raise TypeError(
            f"block_lists is a {type(block_lists).__name__}; it must be a BlockLists: pattern.block_lists(L_q, L_k) "
            "or BlockLists.from_block_mask(block_mask)"
        )
    query, key, value = autocast(query, key, value)
    check_inputs(query, key, value, scale=scale, enable_gqa=enable_gqa, **_attention.limits)
    lengths, device = (query.shape[2], key.shape[2]), query.device
    if (block_lists.L_q, block_lists.L_k) != lengths:
        wanted = f"those of query and key, {lengths[0]} and {lengths[1]}"
        raise ValueError(f"block_lists has L_q {block_lists.L_q} and L_k {block_lists.L_k}; they must be {wanted}")
    if block_lists.device != device:
        raise ValueError(f"block_lists is on {block_lists.device}; it must be on {device}, like query")
    mask = ListMask(block_lists)
    return attend_masked(query, key, value, mask, scale=scale, enable_gqa=enable_gqa, return_lse=return_lse)


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
    twice. Both on the device of query. They are checked by every call, which takes a pass over them. For eager mode.
    Raises RuntimeError where a gradient is asked for.
    """
    refuse_tracing(GIVEN_BY_CALL)  # before the checks of the lists, which no compiler can trace
    query, key, value = autocast(query, key, value)
    check_inputs(query, key, value, scale=scale, enable_gqa=enable_gqa, **_attention.limits)
    _check_csr(indptr, indices, query.shape[2], key.shape[2], query.device)
    if needs_gradient(query, key, value):
        raise RuntimeError(
            "csr_attention has no backward pass: call it under torch.no_grad(), or take sparse_attention or "
            "block_sparse_attention"
        )
    mask = CsrMask(indptr, indices)
    return attend_masked(query, key, value, mask, scale=scale, enable_gqa=enable_gqa, return_lse=return_lse)


def attend_masked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention under a mask's kernels, differentiable; the mask is for the lengths and on the device of query and
    key."""
    refuse_tracing(GIVEN_BY_CALL)
    of_call = _MaskOfCall(mask)
    return _attention(query, key, value, of_call.number, scale=scale, enable_gqa=enable_gqa, return_lse=return_lse)


class _MaskOfCall:
    """A mask in place of a pattern, for one call. The launches of block lists are kept with the lists."""

    def __init__(self, mask: Mask) -> None:
        self.mask, self.number = mask, register(self)


# ---------------------------------------------------------------------------------------------- the operator


Ready = TypeVar("Ready")


def _forward(call: Call, pattern: int, *, differentiable: bool = True) -> Forward:
    """pattern: its number. differentiable: whether a gradient may be asked for, which not every kernel has."""
    return forward_under(registered(pattern), call, differentiable)


def _backward(call: Call, pattern: int) -> Backward:
    return backward_under(registered(pattern), call)


def forward_under(owner: Pattern | _MaskOfCall, call: Call, differentiable: bool = True) -> Forward:
    """The launches of a forward pass. differentiable: as for `_forward`."""
    return _ready(owner, call, differentiable, lambda mask: mask.forward(call), "forward")


def backward_under(owner: Pattern | _MaskOfCall, call: Call) -> Backward:
    """The launches of a backward pass; with torch.use_deterministic_algorithms, one that gives the same bits in every
    run."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    direction = "deterministic backward" if deterministic else "backward"
    return _ready(owner, call, True, lambda mask: backward_of(mask, call, deterministic), direction)


def _ready(
    owner: Pattern | _MaskOfCall, call: Call, differentiable: bool, make: Callable[[Mask], Ready], direction: str
) -> Ready:
    """The launches for a call, from the cache of its pattern or block lists; a mask that is given call by call has
    none."""
    key = direction, differentiable, call, takes_wgmma(call.device)
    if isinstance(owner, Pattern):
        return owner.cache.get(key, lambda: make(mask_of(owner, call, differentiable)), call.device)
    if isinstance(owner.mask, ListMask):
        return owner.mask.lists.cache.get(key, lambda: make(owner.mask), call.device)
    return make(owner.mask)


def _flops(query: Tensor, key: Tensor, _: Tensor | None, pattern: int, *__: float) -> int:
    """FLOPs of the products of the pairs that the pattern keeps; of all pairs if lists are given call by call."""
    (batch, heads, query_length, head_dim), key_length = query.shape, key.shape[2]
    owner, pairs = registered(pattern), query_length * key_length
    if isinstance(owner, Pattern):
        pairs = owner.pairs(query_length, key_length, device=query.device)
    return 4 * batch * heads * head_dim * pairs


_attention = Attention(
    "sparse_attention",
    "SymInt pattern",
    _forward,
    _backward,
    without_gradient=functools.partial(_forward, differentiable=False),
    dtypes=DTYPES,
    head_dims=(*HEAD_DIMS, WIDE),
    flops=_flops,
    # While a graph is made the number may be open: then there is no pattern to hold.
    hold=lambda query, key, value, sinks, pattern, *_: registered(pattern) if isinstance(pattern, int) else None,
    tags=("cudagraph_unsafe",),  # the first call at some lengths makes lists; see `Cache`
    gradient_tags=("nondeterministic_bitwise", "cudagraph_unsafe"),
    row_delta=row_delta,
)


# ---------------------------------------------------------------------------------------------- checks


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
