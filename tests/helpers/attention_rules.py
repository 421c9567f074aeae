"""What holds of every attention operator, whatever its kernels are."""

from collections.abc import Callable

import torch
from torch import Tensor


def check_rows_without_keys(attention: Callable[..., Tensor], inputs: tuple[Tensor, Tensor, Tensor]) -> None:
    """Of more queries than keys, under the causal mask, the first see no key: zeros, an LSE of -∞, and no gradient."""
    query, key, value = (tensor.requires_grad_() for tensor in inputs)
    empty = query.shape[2] - key.shape[2]
    out, lse = attention(query, key, value, is_causal=True, return_lse=True)
    grad_query, grad_key, grad_value = torch.autograd.grad(out.sum(), (query, key, value))
    assert (out[:, :, :empty] == 0).all() and (out[:, :, empty:] != 0).all()
    assert (lse[:, :, :empty] == -torch.inf).all() and lse[:, :, empty:].isfinite().all()
    assert (grad_query[:, :, :empty] == 0).all()
    assert grad_key.isfinite().all() and grad_value.isfinite().all()


def check_strided_and_misaligned(attention: Callable[..., Tensor], flat: Tensor, head_dim: int) -> None:
    """Inputs with strides, or one number past an aligned address, give what their copies give.

    flat: 3 · 20 · 2 · head_dim numbers and one more.
    """
    query, key, value = flat[1:].view(3, 1, 20, 2, head_dim).transpose(2, 3)
    assert query.data_ptr() % 16 and not query.is_contiguous()
    copies = (tensor.contiguous().clone() for tensor in (query, key, value))
    assert torch.equal(attention(query, key, value), attention(*copies))
    contiguous = flat[1 : 1 + 20 * head_dim].view(1, 1, 20, head_dim)
    assert contiguous.is_contiguous() and contiguous.data_ptr() % 16
    out = attention(contiguous, contiguous, contiguous)
    assert torch.equal(out, attention(*[contiguous.clone()] * 3))
