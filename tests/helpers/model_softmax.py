"""Attention whose softmax has a softcap and sinks (kernels/include/model_softmax.cuh), compared with float64."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from course_utils import checks, reference

CAP = 2.0  # low enough that what is hidden shows where it is capped, too


def sinks_of(heads: int, device: torch.device | str = "cpu") -> Tensor:
    """A sink for each head, fp32: from below all scores that are capped at CAP to far above them."""
    return torch.linspace(-3, 5, heads, device=device)


def exact(inputs: Sequence[Tensor], **options: object) -> tuple[Tensor, Tensor]:
    """out and lse in float64. inputs: query, key, value, and the sinks if there are some; options: attn_mask, softcap,
    as `reference.attention` takes them."""
    return _attend(reference.attention, *(tensor.detach().double() for tensor in inputs), return_lse=True, **options)


def reports(
    found: Mapping[str, Tensor], inputs: Sequence[Tensor], grad_out: Tensor, **options: object
) -> Iterator[checks.ErrorReport]:
    """Of what a kernel gave as out, dq, dk, dv, dsinks, against float64, as SPEC's rule has it. The gradient of the
    sinks counts in the dtype of the inputs: it comes from Δ, which is as exact as the 16 bits of out."""
    dtype = inputs[0].dtype
    right = _results(reference.attention, inputs, grad_out, torch.float64, **options)
    in_torch = _results(reference.torch_attention, inputs, grad_out, dtype, **options)
    for name, tensor in found.items():
        factor = checks.OUTPUT_FACTOR if name == "out" else checks.GRADIENT_FACTOR
        yield checks.error_report(tensor.to(dtype), right[name], in_torch[name], factor=factor, name=name)


def _results(
    attention: Callable[..., Tensor], inputs: Sequence[Tensor], grad_out: Tensor, dtype: torch.dtype, **options: object
) -> dict[str, Tensor]:
    """out, and the gradients by autograd, computed in `dtype`, sinks at least in fp32."""
    dtypes = [dtype] * 3 + [torch.promote_types(dtype, torch.float32)]
    leaves = [tensor.detach().to(to).requires_grad_() for tensor, to in zip(inputs, dtypes, strict=False)]
    out = _attend(attention, *leaves, **options)
    found = torch.autograd.grad(out, leaves, grad_out.to(out.dtype))
    return {"out": out.detach(), **dict(zip(("dq", "dk", "dv", "dsinks"), found, strict=False))}


def _attend(
    attention: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None = None, **options
) -> Tensor:
    return attention(query, key, value, sinks=sinks, enable_gqa=True, **options)
