"""Operators on query, key and value: the checks, the layout of the tensors and the gradient, which are the same for
FlashAttention in fp32, on tensor cores and on Hopper, and for sparse attention."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from course_utils.operators.library import Operator, operator
from course_utils.operators.prepare import (
    autocast,
    check_call,
    check_gradient_call,
    check_inputs,
    cut,
    dense,
    empty_outputs,
    fake_attention,
    fake_gradients,
    for_kernels,
    forward_flops,
    gradients,
    padded,
)


class Call(NamedTuple):
    """What the launches of a call depend on; shapes are `[B, H, L, d]` as the kernels take them."""

    query_shape: torch.Size
    key_shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    factor: float  # of the scores

    @property
    def scalars(self) -> tuple[np.generic, ...]:
        """L_q, L_k, the query heads of a key head, and the factor, as the tensor-core kernels and csr_gather take
        them."""
        (_, heads, query_length, _), (_, kv_heads, key_length, _) = self.query_shape, self.key_shape
        return *int_scalars(query_length, key_length, heads // kv_heads), np.float32(self.factor)


def int_scalars(*numbers: int) -> tuple[np.int32, ...]:
    """The numbers as kernels take them."""
    return tuple(map(np.int32, numbers))


Forward = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]  # query, key, value; writes out and lse
# query, key, value, out, lse, the gradient of out: returns the gradients of query, key and value
Backward = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


class Attention:
    """An operator of query, key, value and more arguments, with its gradient.

    `operator` is torch's; an `Attention` is called with the arguments of the public function."""

    def __init__(
        self,
        name: str,
        more: str,
        forward: Callable[..., Forward],
        backward: Callable[..., Backward],
        *,
        without_gradient: Callable[..., Forward] | None = None,
        dtypes: tuple[torch.dtype, ...],
        head_dims: tuple[int, ...],
        grouped: bool = True,
        flops: Callable[..., int] = forward_flops,
        hold: Callable[..., object] | None = None,
        tags: tuple[str, ...] = (),
        gradient_tags: tuple[str, ...] = (),
    ) -> None:
        """more: the schema of the arguments between value and scale, such as "bool is_causal". forward, backward: of a
        `Call` and these arguments, return the launches, which take dense tensors whose d is one of `head_dims`
        (ascending). without_gradient: forward for calls that ask for no gradient, if it launches other kernels for
        them. grouped: whether several query heads may share a key head. flops: of query, key and the arguments behind
        value. hold, tags: as for `library.operator`."""
        self.limits = {"dtypes": dtypes, "head_dim": head_dims[-1]}
        by_name = {**self.limits, "enable_gqa": grouped}

        @operator(
            f"{name}_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, {more}, "
            "float scale) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)",
            fake=fake_gradients,
            check=functools.partial(check_gradient_call, **by_name),
            flops=lambda grad_out, query, key, value, out, lse, *others: flops(query, key, *others) * 5 // 2,
            tags=gradient_tags,
        )
        def gradient(
            grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, *others: Any
        ) -> tuple[Tensor, ...]:
            *chosen, scale = others
            q, k, v, factor = for_kernels(query, key, value, scale, head_dims)
            launch, columns = backward(Call(q.shape, k.shape, q.dtype, q.device, factor), *chosen), q.shape[-1]
            found = launch(q, k, v, padded(out, columns), dense(lse), padded(grad_out, columns))
            return gradients(query, scale, *found)

        def attend_by(forward: Callable[..., Forward]) -> Callable[..., tuple[Tensor, Tensor]]:
            def attend(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
                *chosen, scale = others
                q, k, v, factor = for_kernels(query, key, value, scale, head_dims)
                out, lse = empty_outputs(q)
                forward(Call(q.shape, k.shape, q.dtype, q.device, factor), *chosen)(q, k, v, out, lse)
                return cut(out, query.shape[-1]), lse

            return attend

        make_operator = operator(
            f"{name}(Tensor query, Tensor key, Tensor value, {more}, float scale) -> (Tensor out, Tensor lse)",
            fake=fake_attention,
            check=functools.partial(check_call, **by_name),
            flops=lambda query, key, value, *others: flops(query, key, *others),
            gradient=gradient,
            saves=lambda inputs, results: ((*inputs[:3], *results), inputs[3:]),
            hold=hold,
            without_gradient=attend_by(without_gradient) if without_gradient else None,
            tags=tags,
        )
        self.operator: Operator = make_operator(attend_by(forward))

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *more: Any,
        scale: float | None,
        enable_gqa: bool = False,
        return_lse: bool,
        casts_to: torch.dtype | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Casts the tensors under autocast (to `casts_to`, or None for autocast's own dtype), checks them, and returns
        out, or with return_lse `(out, lse)`."""
        query, key, value = autocast(query, key, value, dtype=casts_to)
        factor = check_inputs(query, key, value, scale=scale, enable_gqa=enable_gqa, **self.limits)
        out, lse = self.operator(query, key, value, *more, factor)
        return (out, lse) if return_lse else out
