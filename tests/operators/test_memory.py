"""Calls with lengths that change do not add up: neither in the process, nor on the GPU, nor in what patterns keep."""

import gc
import random
import weakref
from functools import partial
from pathlib import Path

import pytest
import torch

from course_utils import patterns
from course_utils.operators import (
    append_paged,
    block_sparse_attention,
    choose_kernel,
    decode_attention,
    flash_attention_v2,
    paged_attention,
    select_topk,
    sparse_attention,
)
from course_utils.patterns import BlockLists, cache
from tests.helpers import tensors

CALLS = {"cpu": 40, "cuda": 10_000}
LONGEST = {"cpu": 40, "cuda": 1000}
EVERY = {"cpu": 1, "cuda": 10}  # so many calls for one with a pattern, whose lists take longer than the kernels there
GROWTH = 32 << 20  # bytes that the process, and what torch has allocated on the GPU, may grow by
PAGE, CPU = 4096, torch.device("cpu")


def resident():
    return PAGE * int(Path("/proc/self/statm").read_text().split()[1])


@pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=pytest.mark.exhaustive("small calls: in make test what is kept is counted, below")),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ],
)
def test_many_calls_with_other_lengths_take_no_more_memory(device):
    device = torch.device(device)
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
        decode_attention(query[:, :, :1].detach(), key, value)
        pages = [cache.view(length, 1, 1, 64) for cache in (key, value)]
        table = torch.arange(length, dtype=torch.int32, device=device)[None]
        lengths = torch.full((1,), length, dtype=torch.int32, device=device)
        append_paged(*(cache[:1] for cache in pages), *pages, table, lengths)
        paged_attention(query[:, :, :1].detach(), *pages, table, lengths)

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


def test_a_pattern_keeps_the_lists_of_its_last_lengths(monkeypatch):
    monkeypatch.setattr(cache, "MOST", 12)  # the lists of so many lengths are made in no time
    pattern = patterns.streaming(1, 2) | patterns.global_tokens([3])
    of_others = lists_alive()
    kept_lists = [pattern.block_lists(length) for length in range(4, 8)]
    assert all(pattern.block_lists(length) is lists for length, lists in zip(range(4, 8), kept_lists, strict=True))
    del kept_lists
    for length in range(8, 8 + 2 * cache.MOST):
        pattern.block_lists(length)
        choose_kernel(pattern, length)
    assert lists_alive() - of_others <= cache.MOST


def test_a_pattern_dies_with_its_last_user(device):
    """Whether five numbers say it, two arrays, or lists, or it is dense attention on a view."""
    used = {
        "five numbers": (patterns.sliding_window(3), 9),
        "rows": (patterns.causal() & patterns.document([3, 6]), 9),
        "lists": (patterns.streaming(1, 2) | patterns.global_tokens([3]), 9),
        "dense": (patterns.block_diagonal(128), 256),
    }
    for pattern, length in used.values():
        inputs = [tensors.random(1, 1, length, 64, device=device, dtype=torch.float16, seed=seed) for seed in range(3)]
        sparse_attention(*inputs, pattern)
        inputs[0].requires_grad_()
        sparse_attention(*inputs, pattern).sum().backward()
    died = {name: weakref.ref(pattern) for name, (pattern, _) in used.items()}
    del pattern, used
    gc.collect()
    assert not [name for name, pattern in died.items() if pattern() is not None]


def lists_alive():
    """Of this process, in which other tests have run."""
    gc.collect()
    return sum(isinstance(thing, BlockLists) for thing in gc.get_objects())


def test_the_least_recently_used_goes_first():
    store = cache.Cache()
    for key in range(cache.MOST):
        store.get(key, object, CPU)
    first = store.get(0, object, CPU)
    store.get("one more", object, CPU)
    assert len(store) == cache.MOST and store.get(0, object, CPU) is first
    assert store.get(1, lambda: "made again", CPU) == "made again"


# ---------------------------------------------------------------------------------------------- CUDA graphs


@pytest.fixture
def capture(monkeypatch):
    """capture(True) and capture(False): whether a CUDA graph is being captured."""
    monkeypatch.setattr(cache, "_captured", {})
    return lambda now: monkeypatch.setattr(cache, "is_capturing", lambda device: now)


class Thing:
    """What can be referred to weakly."""


def test_what_a_graph_has_captured_stays(capture):
    """It is read by each replay; what has not been captured goes with the pattern, or when newer things push it out."""
    store = cache.Cache()
    alive = [weakref.ref(store.get(key, Thing, CPU)) for key in ("captured", "not captured")]
    capture(True)
    for _ in range(2):
        store.get("captured", Thing, CPU)
    capture(False)
    for key in range(2 * cache.MOST):
        store.get(key, Thing, CPU)
    assert [thing() is not None for thing in alive] == [True, False] and len(cache._captured) == 1
    del store
    assert alive[0]() is not None


def test_nothing_is_made_while_a_graph_is_captured(capture):
    capture(True)
    with pytest.raises(RuntimeError, match="call the operator once before, with the same shapes"):
        cache.Cache().get("lists", Thing, CPU)


@pytest.mark.parametrize("of_lists", [False, True], ids=["pattern", "lists"])
def test_what_a_captured_call_reads_stays_when_pattern_and_lists_are_gone(capture, of_lists):
    inputs = [tensors.random(1, 1, 70, 64, dtype=torch.float16, seed=seed) for seed in range(3)]
    pattern = patterns.streaming(1, 2) | patterns.global_tokens([5])
    lists = pattern.block_lists(70)
    call = partial(block_sparse_attention, *inputs, lists) if of_lists else partial(sparse_attention, *inputs, pattern)
    call()
    tables = [weakref.ref(table) for table in (lists.indices, lists.bits_index, lists.bits)]
    capture(True)
    call()
    capture(False)
    del pattern, lists, call
    gc.collect()
    assert all(table() is not None for table in tables)
    cache._captured.clear()
    gc.collect()
    assert not any(table() is not None for table in tables)


@pytest.mark.gpu
def test_a_graph_may_outlive_its_pattern():
    inputs = [tensors.random(1, 2, 300, 64, device="cuda", dtype=torch.float16, seed=seed) for seed in range(3)]
    pattern = patterns.streaming(1, 70) | patterns.global_tokens([200])
    expected = sparse_attention(*inputs, pattern)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = sparse_attention(*inputs, pattern)
    del pattern
    gc.collect()
    others = [torch.full((2**n,), -1, dtype=torch.int32, device="cuda") for n in range(20) for _ in range(8)]
    found.zero_()
    graph.replay()
    assert torch.equal(found, expected)
    del others
