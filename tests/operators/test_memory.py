"""Calls with lengths that change do not add up: neither in the process, nor on the GPU, nor in what patterns keep."""

import ctypes
import gc
import random
import time
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cuda.bindings.driver import CUhostFn

from course_utils import patterns
from course_utils.operators import (
    append_paged,
    choose_kernel,
    csr_attention,
    decode_attention,
    flash_attention_v2,
    paged_attention,
    select_topk,
    sparse_attention,
)
from course_utils.patterns import BlockLists, captured, kept
from tests.helpers import tensors

CALLS = {"cpu": 40, "cuda": 10_000}
LONGEST = {"cpu": 40, "cuda": 1000}
EVERY = {"cpu": 1, "cuda": 10}  # so many calls for one with a pattern, whose lists take longer than the kernels there
GROWTH = 32 << 20  # bytes that the process, and what torch has allocated on the GPU, may grow by
PAGE = 4096


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
    monkeypatch.setattr(kept, "MOST", 12)  # the lists of so many lengths are made in no time
    pattern = patterns.streaming(1, 2) | patterns.global_tokens([3])
    of_others = lists_alive()
    kept_lists = [pattern.block_lists(length) for length in range(4, 8)]
    assert all(pattern.block_lists(length) is lists for length, lists in zip(range(4, 8), kept_lists, strict=True))
    del kept_lists
    for length in range(8, 8 + 2 * kept.MOST):
        pattern.block_lists(length)
        choose_kernel(pattern, length)
    assert lists_alive() - of_others <= kept.MOST


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
    store = kept.Kept()
    for key in range(kept.MOST):
        store.get(key, object)
    first = store.get(0, object)
    store.get("one more", object)
    assert len(store) == kept.MOST and store.get(0, object) is first
    assert store.get(1, lambda: "made again") == "made again"


# ---------------------------------------------------------------------------------------------- CUDA graphs


class Driver:
    """Stands for CUDA's: graphs that hold user objects, and one of them captured at a time."""

    CUhostFn = CUhostFn

    def __init__(self):
        self.capture, self.graphs, self.objects = 7, {}, []

    def cuStreamGetCaptureInfo(self, stream):
        return 0, 1 if self.capture else 2, self.capture, f"graph {self.capture}", [], [], 0

    def cuUserObjectCreate(self, pointer, destroy, count, flags):
        assert (count, flags) == (1, 1)
        self.objects.append((pointer, ctypes.CFUNCTYPE(None, ctypes.c_void_p)(int(destroy))))
        return 0, len(self.objects) - 1

    def cuGraphRetainUserObject(self, graph, held, count, flags):
        assert (count, flags) == (1, 1)
        self.graphs.setdefault(graph, []).append(held)
        return (0,)

    def end(self, graph):
        """Of the graph, of what is instantiated from it, and of the last replay."""
        for held in self.graphs.pop(f"graph {graph}"):
            pointer, destroy = self.objects[held]
            destroy(pointer)


@pytest.fixture
def driver(monkeypatch):
    """With it, a graph is being captured whenever `driver.capture` is not None."""
    driver = Driver()
    monkeypatch.setattr(captured, "_driver", lambda: driver)
    monkeypatch.setattr(captured, "_graphs", {})
    monkeypatch.setattr(captured, "_for_good", {})
    monkeypatch.setattr(captured, "capturing", lambda: driver.capture is not None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=1))
    return driver


class Thing:
    """What can be referred to weakly."""


def test_what_a_graph_has_captured_lives_as_long_as_the_graph(driver):
    store = kept.Kept()
    driver.capture = None
    alive = [weakref.ref(store.get(key, Thing)) for key in ("in both", "in one", "in none")]
    for driver.capture, keys in ((7, ("in both", "in one", "in both")), (8, ("in both",))):
        for key in keys:
            store.get(key, Thing)
    assert [len(objects) for objects in driver.graphs.values()] == [1, 1]  # one for a graph, whatever it holds
    driver.capture = None
    for key in range(2 * kept.MOST):
        store.get(key, Thing)
    del store
    assert [thing() is not None for thing in alive] == [True, True, False]
    driver.end(7)
    captured.forget()
    assert [thing() is not None for thing in alive] == [True, False, False]
    driver.end(8)
    kept.Kept().get("something new", Thing)
    assert alive[0]() is None and not captured._graphs and not captured._for_good


def test_nothing_is_made_while_a_graph_is_captured(driver):
    with pytest.raises(RuntimeError, match="call the operator once before, with the same shapes"):
        kept.Kept().get("lists", Thing)


def test_where_the_driver_does_not_say_when_a_graph_ends_its_lists_stay(driver, monkeypatch):
    monkeypatch.setattr(driver, "cuUserObjectCreate", lambda *_: (1, None))
    captured.keep(thing := Thing())
    assert list(captured._for_good.values()) == [thing] and not captured._graphs


def test_a_capture_that_has_failed_holds_nothing(driver):
    driver.capture = 0
    captured.keep(Thing())
    assert not captured._for_good and not captured._graphs


def test_what_is_given_call_by_call_is_captured_too(driver):
    inputs = [tensors.random(1, 1, 9, 64, dtype=torch.float16, seed=seed) for seed in range(3)]
    indptr, indices = torch.arange(10), torch.arange(9, dtype=torch.int32)
    csr_attention(*inputs, indptr, indices)
    launches = driver.graphs and captured._graphs[7].things.values()
    assert any(indices is held for launch in launches for held in launch._tensors)


@pytest.mark.gpu
def test_a_graph_may_outlive_its_pattern():
    inputs = [tensors.random(1, 2, 300, 64, device="cuda", dtype=torch.float16, seed=seed) for seed in range(3)]
    captured.forget()
    of_others = len(captured._graphs)
    pattern = patterns.streaming(1, 70) | patterns.global_tokens([200])
    expected = sparse_attention(*inputs, pattern)
    before = torch.cuda.memory_allocated()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = sparse_attention(*inputs, pattern)
    del pattern
    gc.collect()
    others = [torch.full((2**n,), -1, dtype=torch.int32, device="cuda") for n in range(20) for _ in range(8)]
    found.zero_()
    graph.replay()
    assert torch.equal(found, expected)
    assert len(captured._graphs) == of_others + 1 and not captured._for_good
    del graph, found, others
    torch.cuda.synchronize()
    until = time.monotonic() + 10
    while len(captured._graphs) > of_others and time.monotonic() < until:  # a thread of the driver says so
        captured.forget()
    assert len(captured._graphs) == of_others
    assert torch.cuda.memory_allocated() < before
