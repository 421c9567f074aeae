"""What every operator does with arguments that are unusual, or wrong in the same way for all."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from course_utils import operators, patterns, reference

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


@pytest.mark.parametrize("wrong", ["no", 1])
def test_enable_gqa_takes_a_bool(wrong):
    tensor = torch.zeros(1, 1, 2, 64, dtype=torch.float16)
    for call in (operators.flash_attention_v2, partial(operators.sparse_attention, pattern=patterns.full())):
        with pytest.raises(TypeError, match=f"enable_gqa is {wrong!r}; it must be True or False"):
            call(tensor, tensor, tensor, enable_gqa=wrong)


def test_a_scale_in_half_precision_is_the_number_that_it_is():
    tensor = torch.randn(1, 1, 9, 64).half()
    scaled = [operators.flash_attention_v2(tensor, tensor, tensor, scale=scale) for scale in (np.float16(0.25), 0.25)]
    assert torch.equal(*scaled)
    with pytest.raises(ValueError, match="scale is inf; it must be a finite number"):
        operators.flash_attention_v2(tensor, tensor, tensor, scale=np.float16("inf"))


def test_numbers_too_long_for_torch_count_where_it_watches_too():
    """There the dispatcher takes them, as integers of 64 bits."""
    tensor, weights = torch.randn(1, 1, 9, 64).half(), torch.ones(9, 1)
    calls = [
        lambda: operators.decode_attention(tensor[:, :, :1], tensor, tensor, split_size=2**70),
        lambda: operators.lightning_indexer(tensor[0].swapaxes(0, 1), tensor[0, 0], weights, q_start=2**70),
        lambda: operators.lightning_indexer(tensor[0].swapaxes(0, 1), tensor[0, 0], weights, q_start=-(2**70)),
    ]
    for call in calls:
        with FlopCounterMode(display=False):
            watched = call()
        assert torch.equal(watched, call())
