"""A batch of size 0, or no heads: empty results and gradients of 0, as torch's scaled_dot_product_attention gives."""

import pytest
import torch

from course_utils import patterns
from course_utils.operators import (
    flash_attention_hopper,
    flash_attention_minimal,
    flash_attention_v2,
    naive_attention,
    sparse_attention,
)
from course_utils.operators.loop_orders import flash_fa1_order, flash_plain
from course_utils.operators.sparse import block_sparse_attention, csr_attention

HALF, E4M3 = torch.float16, torch.float8_e4m3fn
PATTERN = patterns.streaming(2, 3) | patterns.global_tokens([4])
SHAPES = (0, 2, 5, 8), (3, 0, 5, 8), (0, 0, 5, 8)


def sparse(query, key, value, **options):
    return sparse_attention(query, key, value, PATTERN, **options)


def with_sinks(query, key, value, **options):
    return flash_attention_v2(query, key, value, window=3, softcap=2.0, **options)


TRAINED = [
    (flash_attention_minimal, torch.float32),
    (flash_attention_v2, HALF),
    (flash_attention_hopper, HALF),
    (with_sinks, HALF),
    (sparse, HALF),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("attention, dtype", TRAINED)
def test_forward_and_backward_are_those_of_sdpa(attention, dtype, shape, device):
    """Not beside it: on a GPU torch 2.11 has no gradient of them, and of no heads it ends the process on a CPU."""
    inputs = [torch.zeros(shape, dtype=dtype, device=device, requires_grad=True) for _ in range(3)]
    out, lse = attention(*inputs, return_lse=True)
    assert out.shape == shape and out.dtype == dtype and lse.shape == shape[:3]
    gradients = torch.autograd.grad(out.sum(), inputs)
    assert [(grad.shape, grad.dtype) for grad in gradients] == 3 * [(shape, dtype)]
    with torch.no_grad():
        assert attention(*inputs).shape == shape


def test_few_key_heads_and_sinks_have_gradients_of_0(device):
    query, key, value = (torch.zeros(0, heads, 5, 8, dtype=HALF, device=device) for heads in (4, 2, 2))
    sinks = torch.ones(4, device=device, requires_grad=True)
    out = flash_attention_v2(query.requires_grad_(), key, value, sinks=sinks, enable_gqa=True)
    out.sum().backward()
    assert torch.equal(sinks.grad, torch.zeros(4, device=device)) and query.grad.shape == query.shape


@pytest.mark.parametrize("shape", SHAPES)
def test_operators_without_a_gradient_give_empty_results(shape, device):
    query = torch.zeros(shape, device=device)
    for attention in (naive_attention, flash_plain, flash_fa1_order):
        assert attention(query, query, query).shape == shape
    half = query.half()
    assert block_sparse_attention(half, half, half, PATTERN.block_lists(5, device=device)).shape == shape
    assert csr_attention(half, half, half, *PATTERN.csr(5, device=device)).shape == shape
    eight, scale = query.to(E4M3), torch.zeros(shape[:2], device=device)
    out = flash_attention_hopper(eight, eight, eight, q_scale=scale, k_scale=scale, v_scale=scale)
    assert out.shape == shape and out.dtype == torch.bfloat16


def test_torch_knows_the_empty_results_of_an_operator_by_their_shapes_and_strides():
    inputs = [torch.zeros(0, 5, 2, 8, dtype=HALF).transpose(1, 2).requires_grad_() for _ in range(3)]
    operator = torch.ops.attention_course.flash_attention_v2.default
    torch.library.opcheck(operator, (*inputs, True, 0.5), test_utils=("test_schema", "test_faketensor"))
    compiled = torch.compile(flash_attention_v2, backend="aot_eager", fullgraph=True)
    compiled(*inputs, is_causal=True).sum().backward()
    assert inputs[0].grad.shape == (0, 2, 5, 8)


@pytest.mark.parametrize("shape", [(1, 2, 0, 8), (1, 2, 5, 0)])
def test_no_queries_and_no_columns_are_refused(shape):
    empty = torch.zeros(shape)
    with pytest.raises(ValueError, match="it must be .B, H, L, d., with L and d of at least 1"):
        flash_attention_minimal(empty, empty, empty)


def test_key_heads_of_0_do_not_divide():
    query, key = torch.zeros(1, 2, 5, 8, dtype=HALF), torch.zeros(1, 0, 5, 8, dtype=HALF)
    with pytest.raises(ValueError, match="key has 0 heads; with enable_gqa that must divide the 2 heads of query"):
        flash_attention_v2(query, key, key, enable_gqa=True)
