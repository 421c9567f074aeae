"""Patterns are made on the CPU, whatever torch's default device is where a module makes them."""

import pytest
import torch

from course_utils import patterns

CPU = torch.device("cpu")
MAKERS = {
    "dilated": lambda: patterns.dilated(3, 2),
    "power_of_two": patterns.power_of_two,
    "strided": lambda: patterns.strided(7),
    "tree": lambda: patterns.tree([-1, *range(62), 7]),
    "document": lambda: patterns.document([20, 11, 33]),
    "global_tokens": lambda: patterns.global_tokens([3, 40]),
    "random_blocks": lambda: patterns.random_blocks(8, 2, seed=5),
    "bigbird": lambda: patterns.bigbird(block=8, seed=3),
    "from_mask_mod": lambda: patterns.from_mask_mod(lambda b, h, i, j: (i - j) % 2 == 0),
    "from_csr": lambda: patterns.from_csr(torch.arange(65, device=CPU), torch.arange(64, device=CPU) * 13 % 64),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_pattern_is_the_same_under_another_default_device(make):
    with torch.device("meta"):
        made = make()
        mask = made.mask(64, 64)
    assert mask.device == CPU and torch.equal(mask, make().mask(64, 64))
