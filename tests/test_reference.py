"""The float64 reference against torch's own attention, and its gradients against autograd."""

import pytest
import torch
import torch.nn.functional as F

from course_utils import reference


def tensors(batch=2, heads=3, query_length=5, key_length=7, head_dim=4, kv_heads=None, dtype=torch.float64):
    shape = (batch, kv_heads or heads, key_length, head_dim)
    query = torch.randn(batch, heads, query_length, head_dim, dtype=dtype)
    return query, torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)


@pytest.mark.parametrize("lengths", [(1, 1), (5, 7), (7, 7), (1, 9)])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention_equals_torch_sdpa_in_float64(lengths, is_causal, scale):
    query, key, value = tensors(query_length=lengths[0], key_length=lengths[1])
    mask = reference.causal_mask(*lengths) if is_causal else None
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    torch.testing.assert_close(reference.attention(query, key, value, is_causal=is_causal, scale=scale), expected)


def test_causal_mask_is_the_lower_right_one_of_torch():
    from torch.nn.attention.bias import causal_lower_right

    query, key, value = tensors(query_length=3, key_length=8)
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=causal_lower_right(3, 8))
    torch.testing.assert_close(reference.attention(query, key, value, is_causal=True), expected)


def test_gqa_equals_torch_sdpa():
    query, key, value = tensors(heads=6, kv_heads=2)
    expected = F.scaled_dot_product_attention(query, key, value, enable_gqa=True)
    torch.testing.assert_close(reference.attention(query, key, value, enable_gqa=True), expected)


def test_rows_without_keys_are_zero_with_lse_minus_infinity():
    query, key, value = tensors(query_length=6, key_length=2)
    out, lse = reference.attention(query, key, value, is_causal=True, return_lse=True)
    assert (out[:, :, :4] == 0).all() and (lse[:, :, :4] == -torch.inf).all()
    assert (out[:, :, 4:] != 0).all() and torch.isfinite(lse[:, :, 4:]).all()


def test_lse_is_the_natural_logarithm_and_survives_huge_scores():
    query, key, value = tensors()
    query = query * 1e4
    _, lse = reference.attention(query, key, value, return_lse=True)
    torch.testing.assert_close(lse, torch.logsumexp(query @ key.mT * 0.5, dim=-1))


@pytest.mark.parametrize("lengths", [(5, 7), (7, 5)])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kv_heads", [2, 6])
def test_closed_gradient_formulas_equal_autograd(lengths, is_causal, kv_heads):
    query, key, value = tensors(heads=6, kv_heads=kv_heads, query_length=lengths[0], key_length=lengths[1])
    inputs = [tensor.requires_grad_() for tensor in (query, key, value)]
    grad_output = torch.randn_like(query)
    out = reference.attention(*inputs, is_causal=is_causal, enable_gqa=True)
    expected = torch.autograd.grad(out, inputs, grad_output)
    result = reference.attention_gradients(query, key, value, grad_output, is_causal=is_causal, enable_gqa=True)
    for ours, autograd in zip(result, expected, strict=True):
        torch.testing.assert_close(ours.detach(), autograd)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_reference_is_float64_and_torch_attention_keeps_the_dtype(dtype):
    query, key, value = tensors(query_length=6, key_length=3, dtype=dtype)
    expected = reference.attention(query, key, value, is_causal=True)
    result = reference.torch_attention(query, key, value, is_causal=True)
    assert expected.dtype == torch.float64 and result.dtype == dtype
    torch.testing.assert_close(result.double(), expected, atol=2e-2, rtol=0)


def test_full_float32_restores_the_setting():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with reference.full_float32():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda q, k, v: (q[0], k, v), ValueError, "query has shape"),
        (lambda q, k, v: (q, k[:, :, :0], v), ValueError, "key has shape"),
        (lambda q, k, v: (q, k, v[:, :, :2]), ValueError, "value has shape"),
        (lambda q, k, v: (q, k[:, :1], v[:, :1]), ValueError, "enable_gqa"),
        (lambda q, k, v: (q, k.float(), v), TypeError, "key has dtype"),
        (lambda q, k, v: (q.long(), k, v), TypeError, "query has dtype"),
        (lambda q, k, v: (q, k, [1.0]), TypeError, "value is a list"),
    ],
)
def test_bad_input_names_the_argument(change, error, words):
    with pytest.raises(error, match=words):
        reference.attention(*change(*tensors()))


def test_gradient_of_the_wrong_shape_is_refused():
    query, key, value = tensors()
    with pytest.raises(ValueError, match="grad_output has shape"):
        reference.attention_gradients(query, key, value, key)


def test_a_mask_hides_pairs_also_from_the_gradients():
    query, key, value = (tensor.requires_grad_() for tensor in tensors())
    mask, grad = torch.rand(5, 7) < 0.5, torch.randn(2, 3, 5, 4, dtype=torch.float64)
    mask[2] = False
    out = reference.attention(query, key, value, attn_mask=mask)
    wanted = F.scaled_dot_product_attention(query, key, value, attn_mask=mask | ~mask.any(1, keepdim=True))
    torch.testing.assert_close(out[:, :, mask.any(1)], wanted[:, :, mask.any(1)])
    assert (out[:, :, 2] == 0).all()
    torch.testing.assert_close(reference.torch_attention(query, key, value, attn_mask=mask), out)
    ours = reference.attention_gradients(query, key, value, grad, attn_mask=mask)
    for gradient, expected in zip(ours, torch.autograd.grad(out, (query, key, value), grad), strict=True):
        torch.testing.assert_close(gradient, expected)


def test_a_mask_of_the_wrong_kind_is_named():
    with pytest.raises(ValueError, match=r"attn_mask is torch.float32 \[5, 7\]; it must be torch.bool \[L_q, L_k\]"):
        reference.attention(*tensors(), attn_mask=torch.ones(5, 7))
