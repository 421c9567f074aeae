"""FlashAttention-3 for Hopper: forward in fp16, bf16 and E4M3, backward in 16 bits (kernels/07_hopper)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from course_utils.arguments import check_tensor, flag, kind
from course_utils.operators.attention import Attention, Backward, Call
from course_utils.operators.hopper_launch import E4M3, forward_launch, ready_backward
from course_utils.operators.library import operator, refuse_gradient
from course_utils.operators.prepare import check_call, check_inputs, cut, dense, forward_flops, is_empty, padded
from course_utils.operators.tensor_core import DTYPES, HEAD_DIMS
from course_utils.operators.windowed import is_plain, windowed_attention

E4M3_LIMITS = {"dtypes": (E4M3,), "head_dim": HEAD_DIMS[-1]}
IN_16_BITS = "query, key and value in 16 bits"  # what has a gradient


def flash_attention_hopper(
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
    q_scale: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale · Q Kᵀ) V by FlashAttention-3 (arXiv 2407.08608): wgmma, the copy engine, a producer and consumers.

    Args:
        query: `[B, H, L_q, d]`, float16, bfloat16 or float8_e4m3fn, d up to 256 (E4M3: 128), on the CPU (emulator) or a
            Hopper GPU (sm_90); strided inputs are copied, and d is filled up with zeros to 64, 128 or 256.
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
        enable_gqa: grouped-query attention: query head h reads key head `h // (H / H_k)`.
        return_lse: also return the log-sum-exp of each row of scores.
        q_scale, k_scale, v_scale: float32 `[B, H]`, `[B, H_k]` and `[B, H_k]`, with inputs in E4M3 and only then: the
            queries of a head are `query.float() · q_scale`, and so on; q_scale and k_scale positive and finite. On a
            GPU their values are not looked at, which would have to wait for them: out and lse of a head where one is
            negative, infinite or NaN are wrong, without an error. The weights of a row are rounded to E4M3, too: from
            2^-14 of the largest on each is off by at most a sixteenth; a smaller one by at most 2^-18 of the largest,
            and below that it is 0.

    Returns:
        out `[B, H, L_q, d]` in the dtype of query, differentiable once by autograd; of E4M3 in bfloat16, and an input
        that requires a gradient is an error. Zeros for a query that sees no key. With return_lse `(out, lse)`: lse
        `[B, H, L_q]`, float32, natural logarithm, not differentiable; minus infinity for a query that sees no key.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape, device or value; the message names it.
        NotImplementedError: an input in E4M3 requires a gradient.
        LaunchError: the GPU is no Hopper.

    Where one key has most of a row's weight, the gradient of query is only as exact as the 16 bits of out, as with
    `flash_attention_v2`.

    Every run gives the same bits, but for the gradient of query: blocks work on tiles of keys, and their shares of
    dQ are added in an order of chance. Under `torch.use_deterministic_algorithms(True)` they take turns, and the bits
    are the same each time; on an H200 the backward pass then takes 1.1 to 1.5 times as long.

    With a window, sinks, a softcap or wide heads the kernels are those of `sparse_attention`, on any GPU.
    """
    is_causal, scales = flag("is_causal", is_causal), (q_scale, k_scale, v_scale)
    dtype = kind("query", query)[1]
    if dtype == E4M3:
        if not window is sinks is softcap is None:
            raise ValueError(f"query is {E4M3}; window, sinks and softcap go with float16 and bfloat16 alone")
        factor = check_inputs(query, key, value, scale=scale, enable_gqa=enable_gqa, **E4M3_LIMITS)
        _check_scales(query, key, *scales)
        refuse_gradient(f"flash_attention_hopper in {E4M3}", IN_16_BITS, query, key, value, *scales)
        out, lse = _e4m3_attention(query, key, value, *scales, is_causal, factor)
        return (out, lse) if return_lse else out
    if not q_scale is k_scale is v_scale is None:
        raise ValueError(f"q_scale, k_scale or v_scale is given, and query is {dtype}; they go with {E4M3} alone")
    options = {"scale": scale, "enable_gqa": enable_gqa, "return_lse": return_lse}
    if not is_plain(query, value, window, sinks, softcap):
        return windowed_attention(query, key, value, is_causal, window, sinks=sinks, softcap=softcap, **options)
    return _attention(query, key, value, is_causal, **options)


def _check_scales(
    query: Tensor, key: Tensor, q_scale: Tensor | None, k_scale: Tensor | None, v_scale: Tensor | None
) -> None:
    of = ("q_scale", q_scale, "query", query), ("k_scale", k_scale, "key", key), ("v_scale", v_scale, "key", key)
    for name, scale, like, tensor in of:
        shape = tuple(tensor.shape[:2])
        if scale is None:
            raise ValueError(
                f"{name} is None; with query in {E4M3} it must be float32 {list(shape)}, one for each head"
            )
        check_tensor(name, scale, shape, (torch.float32,), like=(like, tensor))


def _backward(call: Call, is_causal: bool) -> Backward:
    return ready_backward(call, is_causal, torch.are_deterministic_algorithms_enabled())


_attention = Attention(
    "flash_attention_hopper",
    "bool is_causal",
    forward_launch,
    _backward,
    dtypes=DTYPES,
    head_dims=HEAD_DIMS,
    gradient_tags=("nondeterministic_bitwise",),  # unless torch is told to be deterministic
)


def _check_e4m3_call(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> None:
    *scales, _, scale = others
    check_call(query, key, value, scale, enable_gqa=True, **E4M3_LIMITS)
    _check_scales(query, key, *scales)


def _empty_e4m3_outputs(query: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    """out in bf16, and the log-sum-exp."""
    out = query.new_empty(query.shape, dtype=torch.bfloat16)
    return out, query.new_empty(query.shape[:3], dtype=torch.float32)


@operator(
    "flash_attention_hopper_e4m3(Tensor query, Tensor key, Tensor value, Tensor q_scale, Tensor k_scale, "
    "Tensor v_scale, bool is_causal, float scale) -> (Tensor out, Tensor lse)",
    fake=_empty_e4m3_outputs,
    check=_check_e4m3_call,
    flops=forward_flops,
    instead=IN_16_BITS,
)
def _e4m3_attention(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    q_scale, k_scale, v_scale, is_causal, scale = others
    if is_empty(query):
        return _empty_e4m3_outputs(query)
    if query.device.type == "cpu":  # on a GPU it would have to wait for the numbers
        for name, given in (("q_scale", q_scale), ("k_scale", k_scale)):
            low, high = given.min().item(), given.max().item()
            if not 0 < low <= high < math.inf:
                raise ValueError(f"{name} has numbers from {low} to {high}; all must be positive and finite")
    columns = next(d for d in HEAD_DIMS if d >= query.shape[-1])
    q, k, v = (padded(tensor.view(torch.uint8), columns) for tensor in (query, key, value))
    if scale < 0:
        q, scale = q ^ 0x80, -scale  # the sign of each number
    elif scale == 0:
        q, scale = torch.zeros_like(q), 1.0
    out, lse = _empty_e4m3_outputs(q)
    call = Call(q.shape, k.shape, E4M3, q.device, scale)
    forward_launch(call, is_causal)(q, k, v, out, *map(dense, (q_scale, k_scale, v_scale)), lse)
    return cut(out, query.shape[-1]), lse
