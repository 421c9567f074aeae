"""A mask_mod of FlexAttention's gives the mask that FlexAttention makes of it, or an error that says what to write."""

import re

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, create_mask

from course_utils import patterns
from tests.helpers.all_of import all_of

NUMBER = torch.arange(300) // 37
BLOCKS_VISIBLE = torch.rand(5, 5, generator=torch.Generator().manual_seed(0)) < 0.5
MASK_MODS = {
    "causal": lambda b, h, i, j: i >= j,
    "window and sinks": lambda b, h, i, j: (i >= j) & ((i - j < 20) | (j < 3)),
    "documents": lambda b, h, i, j: (NUMBER[i] == NUMBER[j]) & (i >= j),
    "looked up": lambda b, h, i, j: BLOCKS_VISIBLE[i // 64, j // 64],
    "not": lambda b, h, i, j: ~(i == j),
    "where": lambda b, h, i, j: torch.where(i > 70, i - j < 9, j % 2 == 0),
    "keys alone": lambda b, h, i, j: j % 3 == 0,
    "queries alone": lambda b, h, i, j: i % 3 == 0,
    "all": lambda b, h, i, j: i.new_ones((), dtype=torch.bool),
    # Of one pair there is one i, one j and one bool.
    "max": lambda b, h, i, j: i.max() >= j,
    "min of keys": lambda b, h, i, j: j.min() + 30 > i,
    "all of the pairs": lambda b, h, i, j: (i >= j).all(),
    "any of the pairs": lambda b, h, i, j: (i - j == 5).any() | (i == j),
    "sum": lambda b, h, i, j: (i - j).sum() % 7 == 0,
    "mean": lambda b, h, i, j: i.float().mean() > j,
    "a stack": lambda b, h, i, j: torch.stack([i >= j, i - j < 20]).all(),
}


def made_by_flex(fn, L_q, L_k):
    return create_mask(fn, None, None, L_q, L_k, device="cpu")[0, 0]


@pytest.mark.parametrize("name", MASK_MODS)
def test_the_mask_is_that_of_flex_attention(name, check_lists):
    fn = MASK_MODS[name]
    expected, pattern = made_by_flex(fn, 130, 130), patterns.from_mask_mod(fn)
    check_lists(pattern, 130, 130, expected)
    i, j = torch.arange(130)[:, None], torch.arange(130)
    assert torch.equal(pattern.mask(130), expected)
    assert torch.equal(pattern.mask_mod(None, None, i, j), expected)
    assert torch.equal(made_by_flex(pattern.mask_mod, 130, 130), expected)


@pytest.mark.parametrize("name", ["max", "all of the pairs", "causal"])
def test_combinations_evaluate_pair_by_pair_too(name, check_lists):
    fn = MASK_MODS[name]
    expected, pattern = made_by_flex(fn, 130, 130), patterns.from_mask_mod(fn)
    for other in (patterns.sliding_window(70), patterns.strided(7), patterns.document([65, 1, 64])):
        check_lists(pattern & other, 130, 130, expected & other.mask(130))
        check_lists(pattern | other, 130, 130, expected | other.mask(130))


@pytest.mark.parametrize("L_q, L_k", [(70, 200), (200, 70)])
def test_i_is_the_position_whatever_the_lengths_and_wherever_it_is_asked(check_lists, L_q, L_k):
    def fn(b, h, i, j):
        return (i - 2 * j < 30) & (i.max() >= j)

    shift = L_k - L_q
    of_positions, of_rows = (
        made_by_flex(lambda b, h, q, k: fn(b, h, q + shift, k), L_q, L_k),
        made_by_flex(fn, L_q, L_k),
    )
    assert not torch.equal(of_positions, of_rows)
    for expected, pattern in (
        (of_positions, patterns.from_mask_mod(fn)),
        # What the docstring says for a function of q_idx.
        (of_rows, patterns.from_mask_mod(lambda b, h, i, j: fn(b, h, i - (L_k - L_q), j))),
    ):
        check_lists(pattern, L_q, L_k, expected)
        assert torch.equal(pattern.mask(L_q, L_k), expected)
        i, j = torch.arange(L_q)[:, None] + shift, torch.arange(L_k)
        assert torch.equal(pattern.mask_mod(None, None, i, j), expected)
        assert torch.equal(made_by_flex(pattern.flex_mask_mod(L_q, L_k), L_q, L_k), expected)
        lists = pattern.block_lists(L_q, L_k)
        for block_mask in (
            lists.to_block_mask(),
            lists.to_block_mask(pattern.flex_mask_mod(L_q, L_k)),
            create_block_mask(pattern.flex_mask_mod(L_q, L_k), None, None, L_q, L_k, device="cpu", BLOCK_SIZE=64),
        ):
            assert torch.equal(made_by_flex(block_mask.mask_mod, L_q, L_k), expected)
            assert torch.equal(patterns.BlockLists.from_block_mask(block_mask).mask(), expected)


def test_a_compiler_traces_the_mask_mod():
    pattern = patterns.from_mask_mod(MASK_MODS["all of the pairs"])
    i, j = torch.arange(65)[:, None], torch.arange(65)[None, :]
    compiled = torch.compile(pattern.mask_mod, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.tensor(0), torch.tensor(0), i, j), patterns.causal().mask(65))


def sees_if(b, h, i, j):
    if i >= j:
        return j < 9
    return j == i


def by_sequence(b, h, i, j):
    return (i >= j) & (j < torch.arange(40, 100)[b])


ONE_TRUTH = "asks for the value of a tensor, as `and`, `or`, `not`, `if`, `in`, `a < b < c` and int() do"
REFUSED = [
    *[
        (fn, ValueError, part)
        for fn in (
            lambda b, h, i, j: i >= j and i - j < 9,
            lambda b, h, i, j: i == j or j < 3,
            lambda b, h, i, j: not i < j,
            lambda b, h, i, j: 0 <= i - j < 9,
            lambda b, h, i, j: j in (1, 2),
            lambda b, h, i, j: torch.tensor(int(i) >= 3),
            sees_if,
        )
        for part in (ONE_TRUTH, "write &, |, ~ with each comparison in parentheses, and torch.where")
    ],
    (
        lambda b, h, i, j: (j - i) * 0.5,
        TypeError,
        "fn gives torch.float32, as a score_mod does; a mask_mod gives a bool",
    ),
    (lambda b, h, i, j: torch.where(i >= j, 0.0, -torch.inf), TypeError, "write only that, as a comparison"),
    (
        lambda score, b, h, i, j: score,
        ValueError,
        "it must take b, h, i and j: a score_mod, which takes a score before",
    ),
    (by_sequence, ValueError, "fn depends on the batch entry or the head: b, h = 1, 1 and 0, 0 differ"),
    (by_sequence, ValueError, "make one for each, with from_mask_mod(lambda b, h, i, j: fn(entry, head, i, j))"),
    (
        lambda b, h, i, j: (i + b + h).max() >= j,
        ValueError,
        "call the operator with their part of query, key and value",
    ),
]


@all_of("refused", REFUSED)
def test_another_function_is_refused_by_what_to_write(refused):
    fn, error, message = refused
    with pytest.raises(error, match=re.escape(message)):
        patterns.from_mask_mod(fn)


def test_what_the_errors_say_to_write_is_taken():
    for entry in (0, 7):
        one = patterns.from_mask_mod(lambda b, h, i, j, entry=entry: by_sequence(entry, 0, i, j))
        assert torch.equal(one.mask(90), torch.ones(90, 90).tril().bool() & (torch.arange(90) < 40 + entry))
    expected = torch.tensor([[j < 9 if i >= j else j == i for j in range(20)] for i in range(20)])
    assert torch.equal(patterns.from_mask_mod(lambda b, h, i, j: torch.where(i >= j, j < 9, j == i)).mask(20), expected)
