"""FlashAttention-2 on tensor cores, in fp16 and bf16, forward and backward (kernels/03_flash_attention_v2)."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from course_utils.arguments import flag
from course_utils.cuda import RawModule
from course_utils.operators.attention import Attention, Backward, Call
from course_utils.operators.prepare import fitting
from course_utils.operators.tensor_core import (
    BACKWARD,
    BACKWARD_TILES,
    DTYPES,
    FORWARD,
    FORWARD_TILES,
    HEAD_DIMS,
    PACKED_TILES,
    ReadyBackward,
    TwoPasses,
    dense_dk_dv,
    dense_dq,
    dense_forward,
    module,
    ready_backward,
    row_delta,
)
from course_utils.operators.windowed import is_plain, windowed_attention

FOLDER = "03_flash_attention_v2"


def flash_attention_v2(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = False,
    window: int | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale · Q Kᵀ) V by FlashAttention-2 (arXiv 2307.08691) on tensor cores: products of 16-bit numbers,
    sums in fp32, nothing of size L² stored, nor for the gradients.

    Args:
        query: `[B, H, L_q, d]`, float16 or bfloat16, d up to 256, on the CPU (emulator) or a GPU; strided inputs are
            copied, and d is filled up with zeros to 64, 128 or 256.
        key, value: `[B, H_k, L_k, d]`, dtype and device of query; `H_k == H`, or with `enable_gqa` a divisor of H. The
            last dimension of value may be another, up to 256, and is that of out.
        is_causal: bottom-right aligned: query i sees key j when `j <= i + L_k - L_q`.
        window: query i sees the last `window` keys up to its own, as under `is_causal`, which it implies:
            `0 <= i + L_k - L_q - j < window`. None: no window.
        sinks: float32 `[H]`, differentiable: a logit for each query head in the sum of a row's exponentials, without a
            value (gpt-oss, arXiv 2508.10925).
        softcap: cap · tanh(S / cap) in place of the scaled scores S, before the mask (Gemma 2, arXiv 2408.00118); from
            10^-3 to 10^4.
        scale: factor of the scores; None means `1 / sqrt(d)`. Scaled scores beyond some 10^8 are too coarse in
            fp32, and rows can come out wrong.
        enable_gqa: grouped-query attention: query head h reads key head `h // (H / H_k)`. With few queries the heads
            of a group share tiles (`tensor_core.forward_tile`).
        return_lse: also return the log-sum-exp of each row of scores.

    Returns:
        out `[B, H, L_q, d]` in the dtype of query, differentiable once by autograd; zeros for a query that sees no
        key. With return_lse `(out, lse)`: lse `[B, H, L_q]`, float32, natural logarithm, not differentiable; minus
        infinity for a query that sees no key.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape, device or value; the message names it.

    Where one key has most of a row's weight, the gradient of query is a small difference of larger numbers, and only
    as exact as the 16 bits of out, from which the backward pass takes Δ = rowsum(dO ∘ O), as FlashAttention-2 does.

    Every run gives the same bits, but for the gradient of query: blocks work on tiles of keys and add their shares of
    dQ by atomics, in an order of chance. Under `torch.use_deterministic_algorithms(True)` dQ comes from a second pass,
    in which blocks work on tiles of queries: two of the five matrix products are done again, and the bits are the same
    each time.

    With a window, sinks, a softcap, d above 128 or values of their own width, the kernels are those of
    `sparse_attention`, and what it says of gradients holds.
    """
    is_causal = flag("is_causal", is_causal)
    options = {"scale": scale, "enable_gqa": enable_gqa, "return_lse": return_lse}
    if not is_plain(query, value, window, sinks, softcap):
        return windowed_attention(query, key, value, is_causal, window, sinks=sinks, softcap=softcap, **options)
    return _attention(query, key, value, is_causal, **options)


def _backward(call: Call, is_causal: bool) -> Backward:
    return ready_backward_of(call, is_causal, torch.are_deterministic_algorithms_enabled())


@functools.lru_cache(maxsize=1024)
def ready_backward_of(call: Call, is_causal: bool, deterministic: bool) -> ReadyBackward | TwoPasses:
    """The launches of a backward pass."""
    if not deterministic:
        return ready_backward(call, dense_dk_dv(call, is_causal))
    return TwoPasses(row_delta(call), dense_dk_dv(call, is_causal, adds_dq=False), dense_dq(call, is_causal))


_attention = Attention(
    "flash_attention_v2",
    "bool is_causal",
    dense_forward,
    _backward,
    dtypes=DTYPES,
    head_dims=HEAD_DIMS,
    gradient_tags=("nondeterministic_bitwise",),  # unless torch is told to be deterministic
)


def modules(dtype: torch.dtype, device: torch.device) -> list[RawModule]:
    """What the operator launches for tensors of this dtype and device, to be compiled ahead of time."""
    forward = [(FORWARD, fitting(tiles, device)) for tiles in FORWARD_TILES.values()]
    forward += [(FORWARD, tile) for tiles in PACKED_TILES.values() for tile in tiles]
    backward = [(BACKWARD, fitting(BACKWARD_TILES[head_dim], device)) for head_dim in HEAD_DIMS]
    return [module(file, tile.options, dtype) for file, tile in forward + backward]
