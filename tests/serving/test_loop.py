"""The loop: the same tokens however requests are batched, cut and sent back; first come, first served; no page lost."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_utils.serving import CacheFull, Loop, PagedCache


def small_cache(pages, page_size=4):
    """A key is one number: the token itself."""
    cache = PagedCache(pages, page_size, layers=1, kv_heads=1, head_dim=1)
    cache.key_pages.fill_(torch.nan)
    return cache


def weighed(cache, batch):
    """A model whose next token depends on every token before and on its place, as the cache has them."""
    for sequence, tokens in batch:
        end = cache.length(sequence)
        key = torch.tensor(tokens).half()[:, None, None]
        cache.write(0, torch.tensor(cache.slots(sequence, end - len(tokens), end)), key, key)
    found = []
    for sequence, _ in batch:
        slots = torch.tensor(cache.slots(sequence, 0, cache.length(sequence)))
        tokens = cache.key_pages[0].flatten()[slots].double()
        found.append(int((tokens * torch.arange(1, len(tokens) + 1)).sum().item()) % 97)
    return found


def expected(prompt, new_tokens):
    tokens = list(prompt)
    for _ in range(new_tokens):
        tokens.append(sum(n * token for n, token in enumerate(tokens, 1)) % 97)
    return tokens[len(prompt) :]


def oldest_unfinished(loop):
    return next((request for request in loop.requests if request in loop.waiting or request in loop.running), None)


def check_order(loop):
    """Those who are served came before those who wait, both in order; all pages are somebody's or free."""
    order = [request.number for request in [*loop.running, *loop.waiting]]
    assert order == sorted(order)
    assert all(request.sequence is None for request in loop.waiting)
    assert loop.cache.sequences == sorted(request.sequence for request in loop.running)


REQUESTS = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 14)), min_size=1, max_size=9)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    requests=REQUESTS,
    pages=st.integers(9, 20),
    chunk=st.integers(1, 30),
    most=st.sampled_from([None, 1, 3]),
    late=st.integers(0, 9),
)
def test_everybody_gets_their_tokens_in_turn(requests, pages, chunk, most, late):
    """Whatever comes when, and is cut how. The oldest who is left moves on in every step, and is never sent back: so
    nobody starves."""
    loop = Loop(weighed, small_cache(pages), chunk=chunk, most=most)
    coming = [([7 * n + j for j in range(length)], new) for n, (length, new) in enumerate(requests)]
    for prompt, new in coming[late:]:
        loop.submit(prompt, new)
    while loop.waiting or loop.running or coming[:late]:
        for prompt, new in coming[:late]:
            loop.submit(prompt, new)
        late = 0
        oldest = oldest_unfinished(loop)
        step = loop.step()
        check_order(loop)
        if oldest:
            assert oldest.number in dict(step.batch) and oldest.number not in step.preempted
        assert sum(count for _, count in step.batch if count > 1) <= chunk
        assert len(step.batch) <= (most or len(requests))
    for request in loop.requests:
        assert request.said == expected(request.prompt, request.new_tokens)
    assert loop.cache.free_pages == pages and not loop.cache.sequences


def crowded(pages=8, **options):
    """Three who fit into eight pages only at first."""
    loop = Loop(weighed, small_cache(pages), chunk=8, **options)
    for n in range(3):
        loop.submit([10 * n + 1, 2, 3], 20)
    return loop


def test_who_came_last_gives_way_and_goes_on_with_the_same_tokens():
    loop = crowded()
    loop.run()
    assert [request.preemptions > 0 for request in loop.requests] == [False, True, True]
    assert [request.said for request in loop.requests] == [expected(r.prompt, 20) for r in loop.requests]
    finished = [number for step in loop.history for number in step.finished]
    assert finished == [0, 1, 2]
    sent_back = next(step for step in loop.history if step.preempted)
    assert sent_back.preempted == [2] and sent_back.waiting == 1 and sent_back.usage.taken <= 8


def test_with_pages_reserved_nobody_is_sent_back_and_fewer_are_served():
    loop = crowded(reserve=23)
    loop.run()
    assert {len(step.batch) for step in loop.history} == {1} and not any(step.preempted for step in loop.history)
    assert [request.said for request in loop.requests] == [expected(r.prompt, 20) for r in loop.requests]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_after_a_failed_step_everybody_goes_on(error):
    calls = itertools.count()

    def failing(cache, batch):
        if next(calls) in (2, 9):
            raise error("in the middle")
        return weighed(cache, batch)

    loop = crowded()
    loop.next_tokens = failing
    for _ in range(2):
        with pytest.raises(error):
            loop.run()
        check_order(loop)
        assert loop.cache.free_pages == 8
    loop.run()
    assert [request.said for request in loop.requests] == [expected(r.prompt, 20) for r in loop.requests]


def test_text_is_not_taken_for_tokens():
    with pytest.raises(TypeError, match="prompt is a str; it must be the numbers of tokens, as from as_tokens"):
        Loop(weighed, small_cache(8)).submit("a b c", 3)


def test_pages_that_somebody_else_has_taken_are_missed_aloud():
    loop = crowded()
    loop.step()
    loop.cache.allocate(reserve=4 * loop.cache.free_pages)
    with pytest.raises(CacheFull, match="sequence 0 needs 1 pages, and 0 of 8 are free"):
        loop.run()


@pytest.mark.parametrize(
    ("options", "request_", "says"),
    [
        ({}, ([], 3), "prompt is empty; it must have at least one token"),
        ({}, ([1], 0), "new_tokens is 0; it must be an integer of at least 1"),
        ({}, ([1] * 20, 13), "prompt and new_tokens are 33 tokens together; a request may have 32 here"),
        ({"reserve": 16}, ([1] * 10, 7), "are 17 tokens together; a request may have 16 here"),
        ({"reserve": 33}, ([1], 1), "reserve is 33; it must be an integer from 1 to 32"),
        ({"chunk": 0}, ([1], 1), "chunk is 0"),
    ],
)
def test_what_can_never_be_served_is_refused(options, request_, says):
    with pytest.raises(ValueError, match=says):
        Loop(weighed, small_cache(8), **options).submit(*request_)
