"""Operators on query, key and value: the checks, the layout of the tensors and the gradient, which are the same for
FlashAttention in fp32, on tensor cores and on Hopper, and for sparse attention."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from course_utils.cuda import LAID_OUT, ReadyLaunch
from course_utils.operators.library import Operator, operator
from course_utils.operators.prepare import (
    autocast,
    check_call,
    check_gradient_call,
    check_inputs,
    check_own_value_dim,
    check_sinks,
    checked_softcap,
    cut,
    dense,
    empty_outputs,
    fake_attention,
    fake_gradients,
    fake_gradients_and_of_sinks,
    for_kernels,
    forward_flops,
    gradients,
    has_own_value_dim,
    is_empty,
    padded,
    with_one_head_dim,
)

MOST_COLUMNS = 128  # of a head, in most kernels


class Call(NamedTuple):
    """What the launches of a call depend on; shapes are `[B, H, L, d]` as the kernels take them."""

    query_shape: torch.Size
    key_shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    factor: float  # of the scores
    softcap: float = 0  # 0: none
    has_sinks: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the softmax is that of the scores, without a softcap or sinks."""
        return not (self.softcap or self.has_sinks)

    @property
    def is_wide(self) -> bool:
        """Whether its heads are wider than the tiles of most kernels."""
        return self.query_shape[-1] > MOST_COLUMNS

    @property
    def softmax_options(self) -> tuple[str, ...]:
        """Options of a forward kernel for what its softmax has besides (kernels/include/model_softmax.cuh)."""
        return *self.softcap_option, *(("-DSINKS=1",) if self.has_sinks else ())

    @property
    def softcap_option(self) -> tuple[str, ...]:
        """Options of a backward kernel. It needs none for sinks, because LSE contains them."""
        return ("-DSOFTCAP=1",) if self.softcap else ()

    @property
    def softmax_arguments(self) -> tuple[object, ...]:
        """What a forward kernel takes for these options: the softcap, and the sinks, which the call brings if it has
        some."""
        no_sinks = torch.empty(0, dtype=torch.float32, device=self.device)
        return np.float32(self.softcap), LAID_OUT if self.has_sinks else no_sinks

    @property
    def scalars(self) -> tuple[np.generic, ...]:
        """L_q, L_k, the query heads of a key head, and the factor, as the tensor-core kernels and csr_gather take
        them."""
        (_, heads, query_length, _), (_, kv_heads, key_length, _) = self.query_shape, self.key_shape
        return *int_scalars(query_length, key_length, heads // kv_heads), np.float32(self.factor)


def int_scalars(*numbers: int) -> tuple[np.int32, ...]:
    """The numbers as kernels take them."""
    return tuple(map(np.int32, numbers))


Forward = Callable[..., None]  # query, key, value; out and lse, which it writes; the sinks, if the call has some
# query, key, value, out, lse, the gradient of out: returns the gradients of query, key and value
Backward = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
RowDelta = Callable[[Call], ReadyLaunch]  # of out, its gradient, and delta, which it writes


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
        row_delta: RowDelta | None = None,
    ) -> None:
        """more: the schema of the arguments between value and scale, such as "bool is_causal", tensors first. forward,
        backward: of a `Call` and these arguments, return the launches, which take dense tensors whose d is one of
        `head_dims` (ascending). without_gradient: forward for calls that ask for no gradient, if it launches other
        kernels for them. grouped: whether several query heads may share a key head. flops: of query, key and the
        arguments behind value. hold, tags: as for `library.operator`. row_delta: for an operator that takes sinks and a
        softcap, one in front of `more` and one behind it: the launch of Δ, from which the sinks' gradient comes."""
        self.limits = {"dtypes": dtypes, "head_dim": head_dims[-1]}
        self._takes_sinks = row_delta is not None
        by_name = {**self.limits, "enable_gqa": grouped, "takes_sinks": self._takes_sinks}
        if self._takes_sinks:
            more = f"Tensor? sinks, {more}, float softcap"
        of_sinks = ", Tensor grad_sinks" if self._takes_sinks else ""
        new_gradients = fake_gradients_and_of_sinks if self._takes_sinks else fake_gradients

        @operator(
            f"{name}_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, {more}, "
            f"float scale) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value{of_sinks})",
            fake=new_gradients,
            check=functools.partial(check_gradient_call, **by_name),
            flops=lambda grad_out, query, key, value, out, lse, *others: flops(query, key, *others) * 5 // 2,
            tags=gradient_tags,
        )
        def gradient(
            grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, *others: Any
        ) -> tuple[Tensor, ...]:
            if is_empty(query):
                return tuple([found.zero_() for found in new_gradients(grad_out, query, key, value, out, lse, *others)])
            sinks, chosen, softcap, scale = self._parts(others)
            q, k, v, factor = for_kernels(query, key, value, scale, head_dims)
            call = Call(q.shape, k.shape, q.dtype, q.device, factor, softcap, sinks is not None)
            of_out = padded(out, q.shape[-1]), padded(grad_out, q.shape[-1])
            found = backward(call, *chosen)(q, k, v, of_out[0], dense(lse), of_out[1])
            found = gradients(query, scale, *found)
            return (*found, gradient_of_sinks(sinks, lse, row_delta(call), *of_out)) if row_delta else found

        def attend_by(forward: Callable[..., Forward]) -> Callable[..., tuple[Tensor, Tensor]]:
            def attend(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
                if is_empty(query):
                    return empty_outputs(query)
                sinks, chosen, softcap, scale = self._parts(others)
                q, k, v, factor = for_kernels(query, key, value, scale, head_dims)
                out, lse = empty_outputs(q)
                launch = forward(Call(q.shape, k.shape, q.dtype, q.device, factor, softcap, sinks is not None), *chosen)
                launch(q, k, v, out, lse, *(() if sinks is None else (dense(sinks),)))
                return cut(out, query.shape[-1]), lse

            return attend

        at = 3 + more.count("Tensor")  # the tensors come first
        make_operator = operator(
            f"{name}(Tensor query, Tensor key, Tensor value, {more}, float scale) -> (Tensor out, Tensor lse)",
            fake=fake_attention,
            check=functools.partial(check_call, **by_name),
            flops=lambda query, key, value, *others: flops(query, key, *others),
            gradient=gradient,
            saves=lambda inputs, results: ((*inputs[:3], *results, *inputs[3:at]), inputs[at:]),
            hold=hold,
            without_gradient=attend_by(without_gradient) if without_gradient else None,
            tags=tags,
        )
        self.operator: Operator = make_operator(attend_by(forward))

    def _parts(self, others: Sequence[Any]) -> tuple[Tensor | None, Sequence[Any], float, float]:
        """The sinks, the arguments of `more`, the softcap (0: none) and the scale, out of those behind value."""
        if not self._takes_sinks:
            return None, others[:-1], 0, others[-1]
        sinks, *chosen, softcap, scale = others
        return sinks, chosen, softcap, scale

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
        sinks: Tensor | None = None,
        softcap: float | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Casts the tensors under autocast (to `casts_to`, or None for autocast's own dtype), checks them, and returns
        out, or with return_lse `(out, lse)`. sinks, softcap: of an operator that takes them; its values may have
        another head dimension than keys."""
        query, key, value = autocast(query, key, value, dtype=casts_to)
        has_own = self._takes_sinks and has_own_value_dim(query, value)
        factor = check_inputs(query, key, key if has_own else value, scale=scale, enable_gqa=enable_gqa, **self.limits)
        columns = value.shape[-1]
        if has_own:
            check_own_value_dim(key, value, self.limits["head_dim"])
            query, key, value = with_one_head_dim(query, key, value)
        if self._takes_sinks:
            check_sinks(sinks, query)
            more = sinks, *more, checked_softcap(softcap)
        out, lse = self.operator(query, key, value, *more, factor)
        out = cut(out, columns) if has_own else out
        return (out, lse) if return_lse else out


def gradient_of_sinks(
    sinks: Tensor | None, lse: Tensor, row_delta: ReadyLaunch, out: Tensor, grad_out: Tensor
) -> Tensor:
    """A sink has the weight exp(sink − lse) and a value of 0: its score's gradient is −Δ times that, in each row."""
    if sinks is None:
        return lse.new_empty(0)
    delta = torch.empty_like(lse)
    row_delta(out, grad_out, delta)
    weight = torch.exp(sinks[:, None] - lse).masked_fill_(lse == -math.inf, 0)
    return -(weight * delta).sum((0, 2))
