"""The loop: the same tokens however requests are batched, cut and sent back; first come, first served; no page lost."""

import itertools
import sys
from functools import partial

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
    killed=st.dictionaries(st.integers(0, 30), st.integers(0, 8), max_size=3),
)
def test_everybody_gets_their_tokens_in_turn(requests, pages, chunk, most, late, killed):
    """Whatever comes when, is cut how, and is killed in the middle. The oldest who is left moves on in every step, and
    is never sent back: so nobody starves."""
    loop = Loop(weighed, small_cache(pages), chunk=chunk, most=most)
    coming = [([7 * n + j for j in range(length)], new) for n, (length, new) in enumerate(requests)]
    cancelled = set()
    for prompt, new in coming[late:]:
        loop.submit(prompt, new)
    steps = 0
    while loop.waiting or loop.running or coming[:late]:
        for prompt, new in coming[:late]:
            loop.submit(prompt, new)
        late = 0
        if steps in killed and killed[steps] < len(loop.requests):
            victim = loop.requests[killed[steps]]
            loop.cancel(victim)
            cancelled |= set() if victim.finished else {victim}
            check_order(loop)
        oldest = oldest_unfinished(loop)
        step = loop.step()
        steps += 1
        check_order(loop)
        if oldest:
            assert oldest.number in dict(step.batch) and oldest.number not in step.preempted
        assert sum(count for _, count in step.batch if count > 1) <= chunk
        assert len(step.batch) <= (most or len(requests))
    for request in loop.requests:
        wanted = expected(request.prompt, request.new_tokens)
        assert request.said == (wanted[: len(request.said)] if request in cancelled else wanted)
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


def test_a_killed_request_leaves_no_page_behind():
    loop = crowded()
    for _ in range(4):
        loop.step()
    for request in loop.requests[::2]:
        loop.cancel(request)
    assert loop.cache.sequences == [loop.requests[1].sequence]
    loop.run()
    assert loop.requests[1].said == expected(loop.requests[1].prompt, 20)
    assert [len(loop.requests[n].said) for n in (0, 2)] == [4, 3] and loop.cache.free_pages == 8
    loop.cancel(loop.requests[1])  # has finished: nothing happens
    assert loop.cache.free_pages == 8


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


def test_an_interrupt_right_after_pages_are_taken_loses_none():
    loop = crowded(reserve=23)
    allocate = loop.cache.allocate

    def interrupted(reserve):
        allocate(reserve)
        raise KeyboardInterrupt

    loop.cache.allocate = interrupted
    with pytest.raises(KeyboardInterrupt):
        loop.step()
    check_order(loop)
    assert loop.cache.free_pages == 8
    loop.cache.allocate = allocate
    loop.run()
    assert [request.said for request in loop.requests] == [expected(r.prompt, 20) for r in loop.requests]


FINE = pytest.mark.exhaustive("every 499th instruction in `make test`, and the one where pages were lost")


@pytest.mark.parametrize(
    ("reserve", "apart"), [(None, 499), pytest.param(None, 31, marks=FINE), pytest.param(6, 31, marks=FINE)]
)
def test_wherever_it_is_interrupted_no_page_and_nobody_is_lost(reserve, apart):
    """At every so many instructions of the loop and of the cache's books, in steps that admit, grow and end."""
    for number in itertools.count(step=apart):
        loop = Loop(weighed, small_cache(5), chunk=3, reserve=reserve)
        for n in range(3):
            loop.submit([10 * n + 1, 2, 3], 3)
        interrupted = run_to(loop.run, number)
        check_order(loop)
        assert loop.cache.free_pages + sum(len(loop.cache.pages_of(r.sequence)) for r in loop.running) == 5
        loop.run()
        assert [request.said for request in loop.requests] == [expected(r.prompt, 3) for r in loop.requests]
        if not interrupted:
            return


def test_wherever_a_cancel_is_interrupted_no_page_is_lost():
    for number in itertools.count(step=17):
        loop = crowded()
        loop.step()
        victim = loop.requests[1]
        interrupted = run_to(partial(loop.cancel, victim), number)
        check_order(loop)
        loop.run()
        assert loop.cache.free_pages == 8
        assert all(r.said == expected(r.prompt, 20) for r in loop.requests if r is not victim)
        if not interrupted:
            return


TWICE = pytest.mark.exhaustive("a few pairs of instructions in `make test`")


@pytest.mark.parametrize(
    ("reserve", "apart", "again"),
    [(None, 1499, 61), pytest.param(None, 211, 7, marks=TWICE), pytest.param(6, 211, 7, marks=TWICE)],
)
def test_wherever_it_is_interrupted_twice_no_page_and_nobody_is_lost(reserve, apart, again):
    """The second time at every so many instructions of what follows from the first."""
    first = second = 0
    while True:
        loop = Loop(weighed, small_cache(5), chunk=3, reserve=reserve)
        for n in range(3):
            loop.submit([10 * n + 1, 2, 3], 3)
        restart, seconds = loop._restart_if_broken, []

        def interrupted(loop=loop, restart=restart, seconds=seconds, number=second):
            if loop._foreign is None:
                return restart()
            seconds.append(run_to(restart, number))
            if seconds[-1]:
                raise KeyboardInterrupt

        loop._restart_if_broken = interrupted
        if not run_to(loop.run, first):
            return
        loop._restart_if_broken = restart
        loop.submit([7], 2)
        loop.run()
        assert loop.cache.free_pages == 5
        assert [r.said for r in loop.requests] == [expected(r.prompt, r.new_tokens) for r in loop.requests]
        first, second = (first, second + again) if any(seconds) else (first + apart, 0)


def run_to(call, number):
    """Calls it, and interrupts it at instruction `number` of what changes the loop; whether there are so many."""
    left = itertools.count(number, -1)

    def trace(frame, event, _):
        if frame.f_code.co_filename not in (Loop.step.__code__.co_filename, PagedCache.free.__code__.co_filename):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and next(left) == 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


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
