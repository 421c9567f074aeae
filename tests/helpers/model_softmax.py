"""Attention whose softmax has a softcap and sinks (kernels/include/model_softmax.cuh), by the definition."""

import functools
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from course_utils import checks

CAP = 2.0  # low enough that what is hidden shows where it is capped, too


def sinks_of(heads: int, device: torch.device | str = "cpu") -> Tensor:
    """A sink for each head, fp32: from below all scores that are capped at CAP to far above them."""
    return torch.linspace(-3, 5, heads, device=device)


def attention(
    query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None = None, *, mask: Tensor, softcap: float = 0
) -> tuple[Tensor, Tensor]:
    """out and lse in the dtype of the inputs; out is differentiable. mask: bool `[L_q, L_k]`, True where query i sees
    key j. A row without keys and sinks has zeros and −∞."""
    heads = query.shape[1]
    key, value = (tensor.repeat_interleave(heads // tensor.shape[1], 1) for tensor in (key, value))
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~mask, -torch.inf)
    logits = scores.new_full((heads, 1, 1), -torch.inf) if sinks is None else sinks[:, None, None]
    highest = torch.maximum(scores.amax(-1, keepdim=True), logits).detach()
    highest = highest.masked_fill(highest == -torch.inf, 0)
    weights = torch.exp(scores - highest)
    total = weights.sum(-1, keepdim=True) + torch.exp(logits - highest)
    out = weights @ value / total.masked_fill(total == 0, 1)
    return out, (highest + torch.log(total.detach())).squeeze(-1)


def results(
    inputs: tuple[Tensor, ...], grad_out: Tensor, dtype: torch.dtype = torch.float64, **options: object
) -> dict[str, Tensor]:
    """out, and the gradients by autograd, computed in `dtype`. inputs: query, key, value, and the sinks if there are
    some; options: of `attention`."""
    leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in inputs]
    out, _ = attention(*leaves, **options)
    found = torch.autograd.grad(out, leaves, grad_out.to(dtype))
    return {"out": out.detach(), **dict(zip(("dq", "dk", "dv", "dsinks"), found, strict=False))}


def reports(
    found: Mapping[str, Tensor], inputs: tuple[Tensor, ...], grad_out: Tensor, **options: object
) -> Iterator[checks.ErrorReport]:
    """Of what a kernel gave, by the names of `results`, against float64, as SPEC's rule has it."""
    exact = results(inputs, grad_out, **options)
    same_dtype = functools.cache(lambda: results(inputs, grad_out, inputs[0].dtype, **options))
    for name, tensor in found.items():
        runs = (run()[name] for run in [same_dtype])  # made where it is asked for
        factor = checks.OUTPUT_FACTOR if name == "out" else checks.GRADIENT_FACTOR
        yield checks.error_report(tensor, exact[name], runs, factor=factor, name=name)
