"""At 131072 positions, or half as many, where a dense mask would take 17 or 4 GB."""

import random
import time

import pytest

from course_utils import patterns
from tests.helpers.fresh_process import run_without_the_course

LENGTH = 131072
SECONDS = 10  # an idle machine takes well under one


def documents():
    draw, lengths = random.Random(0), []
    while sum(lengths) < LENGTH:
        lengths.append(min(draw.randrange(100, 4000), LENGTH - sum(lengths)))
    return patterns.document(lengths)


def bushy_tree(length):
    draw = random.Random(0)
    return patterns.tree([-1] + [draw.randrange(n) for n in range(1, length)])


BOTH = pytest.mark.exhaustive("documents alone are built below; test_lists.py has both together, shorter")
AS_MANY = pytest.mark.exhaustive("as many entries as the window, which is built below; test_lists.py has it shorter")
CHAIN = pytest.mark.exhaustive("as many entries as the causal pattern, which is built below; a bushy tree in both")


@pytest.mark.parametrize(
    "pattern, entries",
    [
        (patterns.sliding_window(4096), 131040),
        (patterns.streaming(4, 1024), 36711),
        pytest.param(patterns.dilated(512, 8), 131040, marks=AS_MANY),
        (patterns.bigbird(64), 20462),
        (patterns.random_blocks(64, 3, 0), 6144),
        (documents(), None),
        pytest.param(documents() & patterns.causal(), None, marks=BOTH),
        pytest.param(patterns.tree(range(-1, LENGTH - 1)), 2048 * 2049 // 2, marks=CHAIN),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_block_lists_are_built_in_seconds(pattern, entries):
    start = time.perf_counter()
    lists = pattern.block_lists(LENGTH)
    assert time.perf_counter() - start < SECONDS
    assert entries in (None, len(lists.indices))
    assert lists.pairs() == pattern.pairs(LENGTH)


def test_lists_of_a_bushy_tree_are_built_in_seconds(request):
    length = LENGTH if request.config.getoption("--exhaustive") else LENGTH // 8
    start = time.perf_counter()
    lists = bushy_tree(length).block_lists(length)
    assert time.perf_counter() - start < SECONDS
    assert lists.pairs() == bushy_tree(length).pairs(length)


def test_nothing_of_length_times_length_is_stored():
    code = """
import resource
import torch
from course_utils import patterns
torch.set_num_threads(1)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
patterns.bigbird(32).block_lists(4096)
before = peak()
for pattern in (patterns.sliding_window(4096), patterns.streaming(4, 1024), patterns.causal(), patterns.bigbird()):
    pattern.block_lists(65536), pattern.density(65536)
patterns.power_of_two().csr(65536)
print((peak() - before) / 1024)
"""
    assert float(run_without_the_course(code)) < 350  # MB; a dense mask has 4096
