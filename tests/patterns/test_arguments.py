"""Bad input: the message names the argument, what it got and what it takes."""

import re

import numpy as np
import pytest
import torch

from course_utils import patterns
from tests.helpers.all_of import all_of

BAD = [
    (lambda: patterns.sliding_window(0), ValueError, "window is 0; it must be an integer from 1"),
    (lambda: patterns.sliding_window(2.0), TypeError, "window is 2.0; it must be an integer"),
    (lambda: patterns.sliding_window(True), TypeError, "window is True; it must be an integer"),
    (lambda: patterns.dilated(4, 0), ValueError, "dilation is 0"),
    (lambda: patterns.dilated(0, 4), ValueError, "window is 0"),
    (lambda: patterns.streaming(-1, 4), ValueError, "sinks is -1"),
    (lambda: patterns.strided(0), ValueError, "stride is 0"),
    (lambda: patterns.fixed(8, 9), ValueError, "columns is 9; it must be an integer from 1 to 8"),
    (lambda: patterns.local(-1), ValueError, "radius is -1"),
    (lambda: patterns.local_2d(0, 4, 1), ValueError, "height is 0"),
    (lambda: patterns.local_2d(4, 4, 1).mask(15), ValueError, "height · width is 4 · 4 = 16; L_k is 15"),
    (lambda: patterns.block_diagonal("16"), TypeError, "block is '16'"),
    (lambda: patterns.document([]), ValueError, "lengths is empty"),
    (lambda: patterns.document([3, 0]), ValueError, "lengths[1] is 0"),
    (lambda: patterns.document([3, True]), TypeError, "lengths[1] is True"),
    (lambda: patterns.document(7), TypeError, "lengths is 7; it must be a sequence of integers"),
    (lambda: patterns.document([3, 4]).csr(8), ValueError, "lengths has the sum 7; L_k is 8"),
    (lambda: patterns.global_tokens([4, -1]), ValueError, "positions has -1"),
    (lambda: patterns.global_tokens([]), ValueError, "positions is empty"),
    (lambda: patterns.global_tokens(torch.rand(3)), TypeError, "positions has shape (3,) and dtype float32"),
    (lambda: patterns.tree([-1, 1]), ValueError, "parents[1] is 1; it must be from -1 (a root) to 0"),
    (lambda: patterns.tree([0]), ValueError, "parents[0] is 0; it must be from -1 (a root) to -1"),
    (lambda: patterns.tree([-1, -2]), ValueError, "parents[1] is -2"),
    (lambda: patterns.tree([-1, 0]).block_lists(3), ValueError, "parents has 2 tokens; L_k is 3"),
    (lambda: patterns.random_blocks(16, 0, 1), ValueError, "per_row is 0"),
    (lambda: patterns.random_blocks(16, 1, -1), ValueError, "seed is -1"),
    (lambda: patterns.random_blocks(16, 1, 2**32), ValueError, "seed is 4294967296"),
    (lambda: patterns.bigbird(window_blocks=2), ValueError, "window_blocks is 2; it must be odd"),
    (lambda: patterns.bigbird(global_blocks=-1), ValueError, "global_blocks is -1"),
    (lambda: patterns.from_csr([0, 2, 1, 3], [0, 1, 2]), ValueError, "indptr falls from 2 to 1 at row 1"),
    (lambda: patterns.from_csr([0, 2], [0, 1, 2]), ValueError, "indptr has 2 entries, 0 … 2; it must have L_q + 1"),
    (lambda: patterns.from_csr([], []), ValueError, "indptr has 0 entries"),
    (lambda: patterns.from_csr([0, 1], [-1]), ValueError, "indices has -1"),
    (lambda: patterns.from_csr([0, 1], [0.5]), TypeError, "indices[0] is 0.5"),
    (lambda: patterns.from_csr([0, 1], [7]).mask(1, 7), ValueError, "indices has key 7; it must be below L_k = 7"),
    (lambda: patterns.from_csr([0, 1], [7]).mask(2, 9), ValueError, "indptr is for L_q = 1; L_q is 2"),
    (lambda: patterns.from_mask_mod(3), TypeError, "fn is 3; it must be a function"),
    (lambda: patterns.from_mask_mod(lambda b, h, i, j: i - j), TypeError, "fn gives torch.int64"),
    (lambda: patterns.from_mask_mod(lambda b, h, i, j: True), TypeError, "fn gives bool"),
    (lambda: patterns.from_mask_mod(lambda b, h, i, j: i - j <= 64 * (h + 1)), ValueError, "fn depends on"),
    (lambda: patterns.from_mask_mod(lambda b, h, i, j: i - j < 5000 + 1000 * h), ValueError, "fn depends on the batch"),
    (
        lambda: patterns.from_mask_mod(lambda b, h, i, j: torch.ones(3).bool()),
        TypeError,
        "fn gives torch.bool of shape (3,)",
    ),
    (lambda: patterns.from_mask_mod(lambda b, h, i, j: i >= j + b), ValueError, "fn depends on the batch entry"),
    (lambda: patterns.from_mask_mod(lambda b, h, i, j: (i >= j) & (h != 3)), ValueError, "b, h = 3, 3 and 0, 0 differ"),
    (
        lambda: patterns.from_mask_mod(lambda b, h, i, j: torch.arange(3)[b] + i >= j),
        ValueError,
        "depends on the batch entry",
    ),
    (lambda: patterns.from_mask_mod(lambda b, h, i, j: torch.ones(1, 9, 9).bool()[b, i, j]), ValueError, "depends on"),
    (
        lambda: patterns.from_mask_mod(lambda i, j: i >= j),
        ValueError,
        "fn fails for b = h = 0 and position 0: TypeError",
    ),
    (lambda: patterns.causal().mask(0), ValueError, "L_q is 0"),
    (lambda: patterns.causal().mask(4, 2.0), TypeError, "L_k is 2.0"),
    (lambda: patterns.causal().block_lists(64, block=32), ValueError, "block is 32; it must be 64 or 128"),
    (lambda: patterns.causal().draw(64, tile=0), ValueError, "tile is 0"),
    (lambda: patterns.causal().draw(131072), ValueError, "L is 131072; it must be an integer from 1 to 4096"),
    (lambda: patterns.causal() & 3, TypeError, "unsupported operand"),
]


@all_of("bad", BAD)
def test_bad_input_is_named(bad):
    call, error, message = bad
    with pytest.raises(error, match=re.escape(message)):
        call()


def test_numbers_may_come_from_numpy_and_torch():
    assert patterns.sliding_window(np.int64(4)).parameters == {"window": 4}
    expected = patterns.document([3, 4]).mask(7)
    for lengths in ((3, 4), np.array([3, 4]), torch.tensor([3, 4], dtype=torch.int32)):
        assert torch.equal(patterns.document(lengths).mask(7), expected)


def test_a_mask_mod_may_look_up_tables_shorter_than_what_is_tried_first():
    number = torch.tensor([0, 0, 1, 1, 1])
    pattern = patterns.from_mask_mod(lambda b, h, i, j: number[i] == number[j])
    assert torch.equal(pattern.mask(5), patterns.document([2, 3]).mask(5))
    assert torch.equal(pattern.block_lists(5).mask(), patterns.document([2, 3]).mask(5))
