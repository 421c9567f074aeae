"""What every operator does with arguments that are unusual, or wrong in the same way for all."""

import pytest
import torch

from course_utils import operators, reference

OPERATORS = [operators.naive_attention, operators.flash_attention_minimal, operators.flash_plain]


@pytest.mark.parametrize("operator", OPERATORS)
def test_views_that_are_negated_when_read_count_as_negated(operator, device):
    query, key, value = torch.randn(3, 1, 2, 9, 32, device=device)
    out = operator(torch._neg_view(query), key, value)
    assert torch.allclose(out.double(), reference.attention(-query, key, value), atol=1e-5)


@pytest.mark.parametrize("wrong", ["no", 1])
@pytest.mark.parametrize("operator", OPERATORS)
def test_is_causal_takes_a_bool(operator, wrong):
    tensor = torch.zeros(1, 1, 2, 32)
    with pytest.raises(TypeError, match=f"is_causal is {wrong!r}; it must be True or False"):
        operator(tensor, tensor, tensor, is_causal=wrong)
