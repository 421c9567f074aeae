"""Calls with lengths that change do not add up: neither in the process, nor on the GPU, nor in what patterns keep."""

import gc
import random
import weakref
from pathlib import Path

import pytest
import torch

from course_utils import patterns
from course_utils.operators import choose_kernel, flash_attention_v2, select_topk, sparse_attention
from course_utils.patterns import BlockLists, kept
from tests.helpers import tensors

CALLS = {"cpu": 40, "cuda": 10_000}
LONGEST = {"cpu": 40, "cuda": 1000}
EVERY = {"cpu": 1, "cuda": 10}  # so many calls for one with a pattern, whose lists take longer than the kernels there
GROWTH = 32 << 20  # bytes that the process, and what torch has allocated on the GPU, may grow by
PAGE = 4096


def resident():
    return PAGE * int(Path("/proc/self/statm").read_text().split()[1])


def test_many_calls_with_other_lengths_take_no_more_memory(device):
    pattern, draw = patterns.streaming(1, 2) | patterns.global_tokens([3]), random.Random(0)

    def call(number):
        length = draw.randrange(4, LONGEST[device.type])
        query, key, value = (
            tensors.random(1, 1, length, 64, device=device, dtype=torch.float16, seed=seed) for seed in range(3)
        )
        query.requires_grad_()
        out = flash_attention_v2(query, key, value)
        if number % EVERY[device.type] == 0:
            out = out + sparse_attention(query, key, value, pattern)
        out.sum().backward()
        select_topk(key[0, 0].float(), 3)

    def held():
        gc.collect()
        return resident(), torch.cuda.memory_allocated() if device.type == "cuda" else 0

    for number in range(CALLS[device.type] // 4):  # compiles kernels, fills what is kept
        call(number)
    before = held()
    for number in range(CALLS[device.type]):
        call(number)
    for name, was, now in zip(("process", "GPU"), before, held(), strict=True):
        assert now - was < GROWTH, f"{name}: {(now - was) / 2**20:.1f} MiB more after {CALLS[device.type]} calls"


def test_a_pattern_keeps_the_lists_of_its_last_lengths():
    pattern = patterns.streaming(1, 2) | patterns.global_tokens([3])
    of_others = lists_alive()
    kept_lists = [pattern.block_lists(length) for length in range(4, 24)]
    assert all(pattern.block_lists(length) is lists for length, lists in zip(range(4, 24), kept_lists, strict=True))
    del kept_lists
    for length in range(24, 24 + 2 * kept.MOST):
        pattern.block_lists(length)
        choose_kernel(pattern, length)
    assert lists_alive() - of_others <= kept.MOST


@pytest.mark.parametrize(
    ("make", "length"),
    [
        (lambda: patterns.sliding_window(3), 9),
        (lambda: patterns.causal() & patterns.document([3, 6]), 9),
        (lambda: patterns.streaming(1, 2) | patterns.global_tokens([3]), 9),
        (lambda: patterns.block_diagonal(128), 256),
    ],
    ids=["five numbers", "rows", "lists", "dense"],
)
def test_a_pattern_dies_with_its_last_user(make, length, device):
    pattern = make()
    inputs = [tensors.random(1, 1, length, 64, device=device, dtype=torch.float16, seed=seed) for seed in range(3)]
    sparse_attention(*inputs, pattern)
    inputs[0].requires_grad_()
    sparse_attention(*inputs, pattern).sum().backward()
    died = weakref.ref(pattern)
    del pattern
    gc.collect()
    assert died() is None


def lists_alive():
    """Of this process, in which other tests have run."""
    gc.collect()
    return sum(isinstance(thing, BlockLists) for thing in gc.get_objects())


def test_the_least_recently_used_goes_first():
    store = kept.Kept()
    for key in range(kept.MOST):
        store.get(key, object)
    first = store.get(0, object)
    store.get("one more", object)
    assert len(store) == kept.MOST and store.get(0, object) is first
    assert store.get(1, lambda: "made again") == "made again"


def test_what_a_graph_has_captured_stays(monkeypatch):
    store, capturing = kept.Kept(), [False]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    held = store.get("lists", object)
    capturing[0] = True
    assert store.get("lists", object) is held
    with pytest.raises(RuntimeError, match="call the operator once before, with the same shapes"):
        store.get("others", object)
    capturing[0] = False
    for key in range(2 * kept.MOST):
        store.get(key, object)
    assert store.get("lists", object) is held and len(store) == kept.MOST + 1
