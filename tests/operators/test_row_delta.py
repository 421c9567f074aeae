"""Δ = rowsum(dO ∘ O), from the 16 bits of O: the gradient rule holds where dO, K and V have large common parts."""

import pytest
import torch

from course_utils import checks, patterns, reference
from course_utils.operators import flash_attention_v2, sparse_attention

HALF, BF16 = torch.float16, torch.bfloat16
LENGTH = 130
EVERY = pytest.mark.exhaustive("`make test` has each operator with each dtype, and each offset, once")
OPERATORS = {
    "flash_attention_v2": lambda *inputs: flash_attention_v2(*inputs, is_causal=True),
    "sparse_attention": lambda *inputs: sparse_attention(*inputs, patterns.causal()),
}


def reports(operator, dtype, of_grad, of_key, of_value):
    """Of dq, dk and dv, where these numbers are added to all of dO, K and V; d = 64."""
    generator = torch.Generator().manual_seed(0)
    offsets = 0, of_key, of_value, of_grad
    query, key, value, grad_out = (
        (offset + torch.randn(1, 1, LENGTH, 64, generator=generator)).to(dtype) for offset in offsets
    )
    inputs = [tensor.requires_grad_() for tensor in (query, key, value)]
    ours = torch.autograd.grad(operator(*inputs), inputs, grad_out)
    tensors, options = [tensor.detach() for tensor in (*inputs, grad_out)], {"is_causal": True}
    exact = reference.attention_gradients(*tensors, **options)
    of_torch = reference.attention_gradients(*tensors, **options, dtype=dtype)
    return [
        checks.error_report(*three, factor=checks.GRADIENT_FACTOR, name=name)
        for name, *three in zip(("dq", "dk", "dv"), ours, exact, of_torch, strict=True)
    ]


# A shift of Δ moves a row of dQ by that times the mean of the keys that it sees: not at all where their mean is 0.
@pytest.mark.parametrize(
    ("name", "dtype", "of_grad", "of_key", "of_value"),
    [
        pytest.param(name, dtype, *parts, marks=() if (n + m) % 3 == k else EVERY)
        for n, name in enumerate(OPERATORS)
        for m, dtype in enumerate((HALF, BF16))
        for k, parts in enumerate([(100, 8, 4), (100, 8, 0), (100, 0, 0)])
    ],
)
def test_large_common_parts_break_no_gradient(name, dtype, of_grad, of_key, of_value):
    for report in reports(OPERATORS[name], dtype, of_grad, of_key, of_value):
        assert report.passed, str(report)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("e < 8; e++) sum", "e < 7; e++) sum"),  # a column of eight is lost
        ("sum += (float)O_i[e]", "sum += truncf(16 * (float)O_i[e]) / 16"),  # of O only four bits behind the point
    ],
)
def test_a_coarser_delta_is_seen(break_kernel, right, wrong):
    break_kernel("03_flash_attention_v2/backward.cu", right, wrong)
    with pytest.raises(AssertionError, match="dq: WRONG"):
        for report in reports(OPERATORS["sparse_attention"], HALF, 100, 8, 0):
            assert report.passed, str(report)
