"""Streams: lists that were made on one are read on others, and their memory is not given away while one still reads."""

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from course_utils import patterns
from course_utils.cuda import PASSED, ReadyLaunch
from course_utils.operators import block_sparse_attention, sparse_attention, sparse_launch
from course_utils.patterns import cache
from tests.helpers import tensors

GPU = torch.device("cuda", 0)


class Streams:
    """Stands for torch's: `now` is the current one, and `events` what was asked of them, in order."""

    def __init__(self, monkeypatch):
        self.now, self.events = 1, []
        monkeypatch.setattr(torch.cuda, "current_stream", self.current)

    def current(self, device):
        number = self.now
        return SimpleNamespace(cuda_stream=number, synchronize=lambda: self.events.append(f"wait for {number}"))


@pytest.fixture
def streams(monkeypatch):
    return Streams(monkeypatch)


def test_what_is_made_on_a_gpu_is_there_before_anyone_gets_it(streams):
    store = cache.Cache()

    def make():
        streams.events.append(f"made on {streams.now}")
        return "lists"

    for streams.now in (2, 3, 2):
        store.get("key", make, GPU)
    store.get("on the CPU", make, torch.device("cpu"))
    assert streams.events == ["made on 2", "wait for 2", "made on 2"]


class Held(torch.Tensor):
    """A tensor that says which streams were given it."""

    def record_stream(self, stream):
        self.streams = [*getattr(self, "streams", []), stream.cuda_stream]


def test_a_ready_launch_gives_its_own_tensors_to_each_stream_once(streams):
    lists, bits = (torch.zeros(8).as_subclass(Held) for _ in range(2))
    # the CPU stands for a GPU
    gpu = SimpleNamespace(device=lists.device, stream=lambda: streams.now, launch=lambda *_: None)
    kernel = SimpleNamespace(name="kernel", _launch=lambda *_: gpu)
    launch, plain, other = ReadyLaunch(kernel, (1,), (1,), (PASSED, lists, np.int32(8), bits)), *torch.zeros(2, 8)
    for streams.now in (4, 4, 4, 5, 5, 4, 6):
        launch(plain)
    assert launch._again  # it has gone the short way, for which all is laid out
    streams.now = 7
    launch(other.as_subclass(Held))  # the long one
    assert lists.streams == bits.streams == [4, 5, 6, 7]


def test_launches_with_block_lists_are_made_once(monkeypatch):
    """So that each call need not give them to its stream."""
    made = []
    monkeypatch.setattr(sparse_launch, "ReadyLaunch", lambda *args: made.append(ReadyLaunch(*args)) or made[-1])
    inputs = [tensors.random(1, 1, 70, 64, dtype=torch.float16, seed=seed) for seed in range(3)]
    lists = patterns.streaming(1, 2).block_lists(70)
    for _ in range(3):
        block_sparse_attention(*inputs, lists)
    assert len(made) == 1


SOME, KEYS, DRAWN = patterns.streaming(1, 2) | patterns.global_tokens([5]), patterns.power_of_two(), patterns.bigbird()
# What reads from what a pattern keeps, and leaves the result to the caller.
READS = {
    "mask": lambda device: SOME.mask(300, device=device),
    "mask_mod": lambda device: DRAWN.mask_mod(
        None, None, torch.arange(300, device=device)[:, None], torch.arange(300, device=device)
    ),
    "mask of lists": lambda device: SOME.block_lists(300, device=device).mask(),
    "csr": lambda device: SOME.csr(300, device=device),
    "csr of keys": lambda device: KEYS.csr(300, device=device),
    "to_block_mask": lambda device: SOME.block_lists(300, device=device).to_block_mask(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_what_is_read_from_what_is_kept_is_waited_for(read, monkeypatch):
    """Since others may then push that out. On the CPU, where it is asked at the end whether to wait."""
    asked, device = [], torch.device("cpu")
    read(device)  # makes what is kept
    monkeypatch.setattr(cache, "wait_until_made", lambda *what: (asked.append(what), what[0])[1])
    found = read(device)
    (waited,) = asked
    assert waited[0] is found and waited[1] == device


@pytest.mark.gpu
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_what_a_stream_reads_from_what_is_kept_is_there_at_once(read):
    device = torch.device("cuda", 0)
    read(device)
    with torch.cuda.stream(stream := torch.cuda.Stream()):
        torch.cuda._sleep(10**8)
        read(device)
        assert stream.query()


@pytest.mark.gpu
def test_a_mask_may_be_computed_while_a_graph_is_captured():
    expected, graph = SOME.mask(300, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = SOME.mask(300, device="cuda")
    graph.replay()
    assert torch.equal(found, expected)


@pytest.mark.gpu
def test_lists_are_read_on_another_stream_than_they_were_made_on():
    made_on, read_on = torch.cuda.Stream(), torch.cuda.Stream()
    inputs = [tensors.random(1, 8, 4096, 128, device="cuda", dtype=torch.float16, seed=seed) for seed in range(3)]
    sparse_attention(*inputs, patterns.bigbird(seed=1))  # compiles
    torch.cuda.synchronize()
    for seed in range(2, 20):
        pattern = patterns.bigbird(seed=seed)
        with torch.cuda.stream(made_on):
            torch.cuda._sleep(10**7)
            one = sparse_attention(*inputs, pattern)
        with torch.cuda.stream(read_on):
            two = sparse_attention(*inputs, pattern)
        torch.cuda.synchronize()
        assert torch.equal(one, two), seed


@pytest.mark.gpu
def test_lists_are_not_taken_for_others_while_a_stream_reads_them():
    made_on, read_on, read = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Event()
    # 64 columns: for 128 a Hopper GPU has a kernel that reads lists made from these
    inputs = [tensors.random(1, 8, 4096, 64, device="cuda", dtype=torch.float16, seed=seed) for seed in range(3)]
    expected = sparse_attention(*inputs, patterns.bigbird(seed=1))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    pattern = patterns.bigbird(seed=1)
    with torch.cuda.stream(made_on):
        sparse_attention(*inputs, pattern)
        lists = pattern.block_lists(4096, device=inputs[0].device)
    with torch.cuda.stream(read_on):
        torch.cuda._sleep(3 * 10**9)
        found = sparse_attention(*inputs, pattern)
        read.record()
    places, size = {lists.indices.data_ptr(), lists.bits_index.data_ptr()}, lists.indices.nbytes
    died = weakref.ref(lists)
    del pattern, lists
    gc.collect()
    assert died() is None
    with torch.cuda.stream(made_on):
        reserved, others, reading = torch.cuda.memory_reserved(), [], True
        while torch.cuda.memory_reserved() == reserved:  # until all that is free has been taken
            reading = not read.query()
            others.append(torch.empty(size, dtype=torch.uint8, device="cuda"))  # no kernel: to load one may wait
    assert reading, "the lists were read before they could be taken"
    assert not places & {other.data_ptr() + offset for other in others for offset in range(0, size, 512)}
    torch.cuda.synchronize()
    assert torch.equal(found, expected)
