"""PagedCache against a plain model: a list of numbers for each sequence, and nothing else."""

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from course_utils import reference
from course_utils.operators import paged_attention
from course_utils.operators.serving_choice import E4M3
from course_utils.serving import CacheFull, PagedCache, Usage
from tests.helpers import tensors

PAGES, LAYERS = 9, 2
SIZES = {"layers": LAYERS, "kv_heads": 2, "head_dim": 2}


def numbers(first, count):
    """Keys of so many tokens [layers, tokens, kv_heads, head_dim], all different; values are their negatives."""
    per_layer = torch.arange(first, first + count)[:, None, None] + 1000 * torch.arange(LAYERS)[:, None, None, None]
    return per_layer.expand(LAYERS, count, 2, 2).half()


def held(cache, sequence):
    """Keys of a sequence as the kernels read them: by the block table and the lengths."""
    table, length = cache.block_table(cache.sequences), cache.seq_lens(cache.sequences)
    row = cache.sequences.index(sequence)
    j = torch.arange(int(length[row]))
    place = table[row, j // cache.page_size].long(), j % cache.page_size
    found = [
        torch.stack([pages[place] for pages in layer]) for layer in zip(*map(cache.layer, range(LAYERS)), strict=True)
    ]
    assert torch.equal(found[0], -found[1])
    return found[0]


def books(cache):
    """All that a failed call must leave as it was."""
    held_pages = {s: (cache.pages_of(s), cache.length(s)) for s in cache.sequences}
    return held_pages, cache.free_pages, [cache.users(page) for page in range(cache.pages)], cache.usage()


class AgainstLists(RuleBasedStateMachine):
    """`lists` has the numbers of each sequence, and `reserved` how many tokens it has pages for at least."""

    def __init__(self):
        super().__init__()
        self.lists, self.reserved, self.written = {}, {}, 0

    @initialize(page_size=st.sampled_from([4, 3, 1]), length=st.integers(0, 9))
    def begin(self, page_size, length):
        """With one sequence and a fork of it."""
        self.cache = PagedCache(PAGES, page_size, **SIZES)
        for pages in (self.cache.key_pages, self.cache.value_pages):
            pages.fill_(torch.nan)
        key = numbers(0, length)
        self.cache.append(self.cache.allocate(), key, -key)
        self.cache.fork(0)
        self.lists, self.reserved = {n: list(range(length)) for n in (0, 1)}, {0: 0, 1: 0}
        self.written = length

    def pages(self, tokens):
        return -(-tokens // self.cache.page_size)

    @rule(reserve=st.integers(0, 12))
    def allocate(self, reserve):
        if (needed := self.pages(reserve)) > self.cache.free_pages:
            before = books(self.cache)
            with pytest.raises(CacheFull, match=f"a new sequence needs {needed} pages, and {before[1]} of {PAGES} are"):
                self.cache.allocate(reserve)
            assert books(self.cache) == before
            return
        number = self.cache.allocate(reserve)
        assert number not in self.lists
        self.lists[number], self.reserved[number] = [], reserve

    @precondition(lambda self: self.lists)
    @rule(data=st.data(), count=st.integers(0, 9))
    def append(self, data, count):
        sequence = data.draw(st.sampled_from(sorted(self.lists)))
        key, before = numbers(self.written, count), books(self.cache)
        mine = self.cache.pages_of(sequence)
        length = len(self.lists[sequence])
        needed = max(self.pages(length + count), len(mine)) - len(mine)
        is_partial = count and length % self.cache.page_size
        needed += bool(is_partial and self.cache.users(mine[length // self.cache.page_size]) > 1)
        assert self.cache.needed(sequence, count) == needed
        if needed > self.cache.free_pages:
            with pytest.raises(CacheFull, match=f"sequence {sequence} needs {needed} pages, and"):
                self.cache.append(sequence, key, -key)
            assert books(self.cache) == before
        else:
            self.cache.append(sequence, key, -key)
            assert self.cache.free_pages == before[1] - needed
            self.lists[sequence] += range(self.written, self.written + count)
            self.written += count

    @precondition(lambda self: self.lists)
    @rule(data=st.data(), of_all=st.booleans())
    def fork(self, data, of_all):
        sequence = data.draw(st.sampled_from(sorted(self.lists)))
        tokens = None if of_all else data.draw(st.integers(0, len(self.lists[sequence])))
        free = self.cache.free_pages
        number = self.cache.fork(sequence, tokens)
        assert self.cache.free_pages == free and number not in self.lists
        self.lists[number], self.reserved[number] = self.lists[sequence][:tokens], 0

    @precondition(lambda self: self.lists)
    @rule(data=st.data())
    def free(self, data):
        sequence = data.draw(st.sampled_from(sorted(self.lists)))
        self.cache.free(sequence)
        del self.lists[sequence]
        with pytest.raises(KeyError, match=f"sequence {sequence} is not in the cache"):
            self.cache.free(sequence)

    @invariant()
    def contents_are_right(self):
        for sequence, tokens in self.lists.items():
            assert self.cache.length(sequence) == len(tokens)
            expected = torch.tensor(tokens) + 1000 * torch.arange(LAYERS)[:, None]
            assert torch.equal(held(self.cache, sequence)[..., 1, 0], expected.half())

    @invariant()
    def no_page_is_lost(self):
        assert sorted(self.cache.sequences) == sorted(self.lists)
        users = [0] * PAGES
        for sequence, tokens in self.lists.items():
            pages = self.cache.pages_of(sequence)
            assert len(pages) == len(set(pages)) >= self.pages(max(len(tokens), self.reserved[sequence]))
            for page in pages:
                users[page] += 1
        assert [self.cache.users(page) for page in range(PAGES)] == users
        assert self.cache.free_pages == users.count(0)
        usage = self.cache.usage()
        assert (usage.taken, usage.shared) == (PAGES - users.count(0), sum(n > 1 for n in users))
        rows = {slot for s, tokens in self.lists.items() for slot in self.cache.slots(s, 0, len(tokens))}
        assert (usage.tokens, usage.filled) == (sum(map(len, self.lists.values())), len(rows))


def test_it_does_what_lists_do():
    """No page is lost, none is written while others have it, and what does not fit changes nothing."""
    settings_ = settings(
        max_examples=15,
        stateful_step_count=20,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.filter_too_much],
    )
    run_state_machine_as_test(AgainstLists, settings=settings_)


def filled(*lengths, pages=8, page_size=4, **more):
    """A cache with sequences of these lengths, and their numbers."""
    cache = PagedCache(pages, page_size, **SIZES, **more)
    sequences = [cache.allocate() for _ in lengths]
    for n, (sequence, length) in enumerate(zip(sequences, lengths, strict=True)):
        key = numbers(100 * n, length)
        cache.append(sequence, key, -key)
    return cache, *sequences


def test_a_fork_shares_pages_until_one_of_the_two_writes():
    cache, first = filled(6)
    second = cache.fork(first)
    cache.extend(second, 0)
    assert cache.pages_of(first) == cache.pages_of(second) and cache.usage().shared == 2
    cache.append(second, key := numbers(500, 4), -key)
    (whole, own), (same, copy, new) = cache.pages_of(first), cache.pages_of(second)
    assert whole == same and own != copy and [cache.users(page) for page in (whole, own, copy, new)] == [2, 1, 1, 1]
    cache.append(first, key := numbers(600, 1), -key)  # alone with its page: no copy
    assert cache.pages_of(first) == [whole, own]
    for layer in range(LAYERS):
        for sequence, more in ((first, [600]), (second, [500, 501, 502, 503])):
            expected = torch.tensor([0, 1, 2, 3, 4, 5, *more]) + 1000 * layer
            assert torch.equal(held(cache, sequence)[layer, :, 0, 0], expected.half())


def test_the_copy_of_a_shared_page_counts_when_the_cache_is_full():
    cache, first = filled(6, pages=2)
    second = cache.fork(first)
    with pytest.raises(CacheFull, match="sequence 1 needs 1 pages, and 0 of 2 are free"):
        cache.append(second, key := numbers(0, 1), -key)
    cache.free(first)
    cache.append(second, key, -key)


def test_reserved_pages_are_taken_at_once_and_used_later():
    cache = PagedCache(4, 4, **SIZES)
    sequence = cache.allocate(reserve=13)
    assert cache.free_pages == 0 and cache.usage().waste == 1.0
    cache.append(sequence, key := numbers(0, 16), -key)
    assert cache.usage().waste == 0.0
    with pytest.raises(CacheFull):
        cache.extend(sequence, 1)


def test_waste_is_what_taken_pages_hold_no_token_in():
    cache, first = filled(5)
    cache.fork(first)
    assert cache.usage() == Usage(pages=8, page_size=4, taken=2, shared=2, tokens=10, filled=5)
    assert cache.usage().waste == 3 / 8 and PagedCache(3, 4).usage().waste == 0.0


def test_books_alone_need_no_memory():
    cache = PagedCache(10**5, 16)
    sequence = cache.allocate()
    cache.extend(sequence, 1000)
    assert cache.key_pages.numel() == 0 and len(cache.pages_of(sequence)) == 63


def test_what_it_gives_is_what_paged_attention_takes(device):
    cache = PagedCache(12, 5, layers=2, kv_heads=2, head_dim=64, device=device)
    for pages in (cache.key_pages, cache.value_pages):
        pages.fill_(torch.nan)
    sequences, expected = [], []
    query = tensors.random(3, 4, 1, 64, device=device, dtype=torch.float16, seed=9)
    for n, length in enumerate((17, 0, 11)):
        sequence = cache.allocate()
        key, value = (tensors.random(2, length, 2, 64, device=device, dtype=torch.float16, seed=s) for s in (n, 10 + n))
        for cut in (slice(0, 3), slice(3, length)):
            cache.append(sequence, key[:, cut], value[:, cut])
        sequences.append(sequence)
        row = query[n : n + 1], *(x[1].transpose(0, 1)[None] for x in (key, value))
        expected.append(reference.decode_attention(*row) if length else torch.zeros_like(query[:1]).double())
    found = paged_attention(query, *cache.layer(1), cache.block_table(sequences), cache.seq_lens(sequences))
    torch.testing.assert_close(found.double(), torch.cat(expected), atol=2e-3, rtol=0)


def test_in_e4m3_what_is_appended_is_divided_by_the_scales_and_rounded(device):
    scales = {"k_scale": torch.tensor([[0.5, 2.0]]), "v_scale": torch.tensor([[0.01, 0.02]])}
    cache = PagedCache(
        3, 4, layers=1, kv_heads=2, head_dim=64, device=device, **{k: v.to(device) for k, v in scales.items()}
    )
    sequence = cache.allocate()
    key, value = (tensors.random(1, 7, 2, 64, device=device, seed=seed, factor=2.0) for seed in (0, 1))
    key[0, 2, 0, 3] = 1e6  # becomes the largest number
    cache.append(sequence, key, value)
    fork = cache.fork(sequence)
    cache.append(fork, key[:, :1], value[:, :1])  # copies a page
    slots = torch.tensor(cache.slots(fork, 0, 8), device=device)
    for pages, given, scale in zip(cache.layer(0), (key, value), scales.values(), strict=True):
        kept = pages.view(torch.uint8).flatten(0, 1)[slots].view(E4M3).float()
        given = torch.cat((given, given[:, :1]), dim=1)[0]
        assert torch.equal(kept, (given / scale[0].to(device)[:, None]).clamp(-448, 448).to(E4M3).float())
    assert torch.equal(cache.scales(0, 3)["v_scale"].cpu(), scales["v_scale"].expand(3, -1))
    query = tensors.random(1, 4, 1, 64, device=device, dtype=torch.float16, seed=2)
    where = cache.block_table([sequence]), cache.seq_lens([sequence])
    found = paged_attention(query, *cache.layer(0), *where, **cache.scales(0, 1))
    expected = reference.paged_attention(query, *cache.layer(0), *where, **cache.scales(0, 1))
    torch.testing.assert_close(found.double(), expected, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: PagedCache(0), ValueError, "pages is 0; it must be an integer of at least 1"),
        (lambda: PagedCache(4, 257), ValueError, "page_size is 257; it must be an integer from 1 to 256"),
        (lambda: PagedCache(4, dtype=torch.float32), TypeError, "dtype is torch.float32; it must be torch.float16 or"),
        (lambda: PagedCache(4, layers=1, k_scale=torch.ones(1, 1)), ValueError, "v_scale is None; with the other"),
        (
            lambda: PagedCache(4, layers=1, k_scale=torch.ones(1, 1), v_scale=torch.zeros(1, 1)),
            ValueError,
            "v_scale goes down to 0.0",
        ),
        (lambda: filled(3)[0].length(7), KeyError, r"sequence 7 is not in the cache; it has \[0\]"),
        (lambda: filled(3)[0].fork(0, 4), ValueError, "tokens is 4; it must be an integer from 0 to 3"),
        (lambda: filled(3)[0].extend(0, -1), ValueError, "tokens is -1"),
        (
            lambda: filled(3)[0].append(0, numbers(0, 2)[:1], numbers(0, 2)[:1]),
            ValueError,
            r"key has shape \[1, 2, 2, 2\]",
        ),
    ],
)
def test_what_does_not_fit_is_named(call, error, says):
    with pytest.raises(error, match=says):
        call()
