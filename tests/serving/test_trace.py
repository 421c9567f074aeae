"""The trace of requests, and what pages are worth on it: counted with the books alone."""

import statistics

import pytest

from course_utils.serving import lengths, prompts, simulate, summary
from course_utils.serving.trace import LONGEST, REQUESTS, SHORTEST


@pytest.fixture(scope="module")
def loops():
    """The same 200 requests in the same memory: in pages, and with pages reserved for the longest that may come."""
    return simulate(lengths(), pages=256), simulate(lengths(), pages=256, reserve=2 * LONGEST)


def test_lengths_have_a_heavy_tail_and_are_the_same_for_a_seed():
    drawn = [n for one in lengths(5000) for n in one]
    assert lengths(7) == lengths()[:7] and len(lengths()) == REQUESTS and lengths(7, seed=1) != lengths(7)
    assert min(drawn) == SHORTEST and max(drawn) == LONGEST
    for n in (32, 64, 128):
        assert sum(x >= n for x in drawn) / len(drawn) == pytest.approx((SHORTEST / n) ** 1.1, rel=0.1)
    assert statistics.mean(drawn) > 2 * statistics.median(drawn)


def test_prompts_are_pieces_of_the_text():
    trace = lengths(30, longest=40)
    drawn = prompts(trace, "abcdefghij", seed=3)
    assert [len(prompt) for prompt in drawn] == [one.prompt for one in trace]
    assert all(bytes(prompt).decode() in "abcdefghij" * 6 for prompt in drawn) and len({p[0] for p in drawn}) > 3


def test_in_pages_at_least_twice_the_sequences_fit_into_the_same_memory(loops):
    paged, reserved = map(summary, loops)
    assert [[request.said for request in loop.requests] for loop in loops].count(
        [[len_ for len_ in range(one.prompt, one.prompt + one.new)] for one in lengths()]
    ) == 2  # the same tokens
    assert paged["at_once"] > 2 * reserved["at_once"] and paged["most_at_once"] > 2 * reserved["most_at_once"]
    assert paged["steps"] < reserved["steps"] / 2
    assert reserved["most_at_once"] == 256 * 16 // (2 * LONGEST)
    assert paged["waste"] < 0.1 and reserved["waste"] > 0.6 and reserved["preempted"] == 0


def test_the_summary_counts_what_the_steps_say(loops):
    paged = summary(loops[0])
    assert paged["tokens"] == sum(one.new for one in lengths()) and paged["steps"] == len(loops[0].history)
    assert paged["preempted"] == sum(len(step.preempted) for step in loops[0].history) > 0
    computed = sum(count for step in loops[0].history for _, count in step.batch)
    assert computed * (1 - paged["again"]) == pytest.approx(sum(a + b - 1 for a, b in lengths()))
    assert 0 < paged["again"] < 0.1


def test_pages_of_one_token_waste_nothing_and_large_ones_more():
    waste = [summary(simulate(lengths(10), pages=4096 // size, page_size=size))["waste"] for size in (1, 16, 128)]
    assert waste[0] == 0 and waste[0] < waste[1] < waste[2]
