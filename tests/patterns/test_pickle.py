"""Patterns go to other processes, as to the workers of a DataLoader, and into files, as those of torch.save."""

import io
import pickle

import pytest
import torch

from course_utils import patterns
from course_utils.patterns.pattern import Pattern
from tests.helpers.fresh_process import run_without_the_course

CAUSAL, DOCUMENTS = patterns.causal(), patterns.document([20, 11, 33])


def even(b, h, i, j):
    return (i - j) % 2 == 0


PATTERNS = {
    "causal": CAUSAL,
    "sliding_window": patterns.sliding_window(5),
    "dilated": patterns.dilated(3, 2),
    "power_of_two": patterns.power_of_two(),
    "strided": patterns.strided(7),
    "fixed": patterns.fixed(8, 2),
    "streaming": patterns.streaming(2, 9),
    "tree": patterns.tree([-1, *range(62), 7]),
    "full": patterns.full(),
    "local": patterns.local(3),
    "local_2d": patterns.local_2d(8, 8, 1),
    "block_diagonal": patterns.block_diagonal(16),
    "document": DOCUMENTS,
    "global_tokens": patterns.global_tokens([3, 40]),
    "random_blocks": patterns.random_blocks(8, 2, seed=5),
    "bigbird": patterns.bigbird(block=8, seed=3),
    "from_mask_mod": patterns.from_mask_mod(even),
    "from_csr": patterns.from_csr(torch.arange(65), torch.arange(64) * 13 % 64),
    "and": CAUSAL & DOCUMENTS,
    "or": patterns.streaming(1, 4) | patterns.global_tokens([7]) & CAUSAL,
}


def test_every_function_that_makes_a_pattern_has_an_example():
    makers = [name for name in patterns.__all__ if name[0].islower() and name != "random_block_hash"]
    assert set(makers) <= set(PATTERNS)


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_comes_back_as_it_was(name):
    pattern = PATTERNS[name]
    back = pickle.loads(pickle.dumps(pattern))
    assert isinstance(back, Pattern)
    assert (back.name, back.kind, back.ranges) == (pattern.name, pattern.kind, pattern.ranges)
    assert back.number != pattern.number
    assert torch.equal(back.mask(64), pattern.mask(64))
    assert back.block_lists(64).pairs() == pattern.block_lists(64).pairs()


def test_a_pattern_is_saved_with_its_module():
    module, file = torch.nn.Linear(2, 2), io.BytesIO()
    module.pattern = PATTERNS["and"]
    module.pattern.block_lists(64)
    torch.save(module, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False).pattern.mask(64), module.pattern.mask(64))


def test_another_process_makes_the_pattern_again():
    there = f"import pickle; print(pickle.loads({pickle.dumps(PATTERNS['or'])!r}).pairs(64))"
    assert run_without_the_course(there).strip() == str(PATTERNS["or"].pairs(64))


def test_a_function_without_a_name_is_named_in_the_error():
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(patterns.from_mask_mod(lambda b, h, i, j: i >= j))
