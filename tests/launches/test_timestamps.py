"""Clocks in the kernels of chapter 07: they change no result, and what they note is in order."""

import itertools

import pytest
import torch

from course_utils.cuda import KernelSource
from course_utils.launches import timestamps
from course_utils.launches.hopper import LADDER, launch, ready
from course_utils.launches.timestamps import Moment, Site, with_clocks

TILES = 3
OTHER = pytest.mark.exhaustive("`make test` has the step without a producer, and the last, which has all ideas")
STEPS = [step if step in (LADDER[0], LADDER[-1]) else pytest.param(step, marks=OTHER) for step in LADDER]
by_name = pytest.mark.parametrize("step", STEPS, ids=lambda step: step.kernel)
KERNEL = """// name.cu
#include "tile_ring.cuh"

__device__ inline void fill(float* tile, int n) {
    wait_for(&gate, n);
}

__device__ inline void consume(
        float* S) {
    for (int t = 0; t < 3; t++) { start_scores(S, f(t, 1)); wait_for_product<1>(S); }
    refill(S);
    if (fill_is_due()) ring.fill(S);
}
"""


def inputs():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, 128 * TILES - 40, 64, generator=generator).half() for _ in range(3)]


def test_calls_of_verbs_are_wrapped_and_nothing_else_is():
    code, sites = with_clocks(KernelSource(KERNEL, "folder/name.cu", "name.cu"))
    assert sites == [Site("wait_for", "&gate", 5), Site("start_scores", "S", 10), Site("wait_for_product", "S", 10)]
    text = str(code)
    assert text.startswith('// name.cu\n#include "tile_ring.cuh"\n#include "timestamps.cuh"\n')
    assert "{ const int before = clock(); start_scores(S, f(t, 1)); note(next_note, before, 1); }" in text
    assert "{ const int before = clock(); wait_for_product<1>(S); note(next_note, before, 2); }" in text
    assert text.count("int next_note = first_note();") == 2  # once for each function with a call
    assert "float* S) { int next_note" in text and "ring.fill(S);\n}" in text and "    refill(S);\n" in text
    assert (code.path, code.name) == ("folder/name.cu", "name.cu") and text.endswith(timestamps.READ)


def test_a_bracket_that_does_not_close_is_named():
    with pytest.raises(ValueError, match="a bracket that does not close in '.S;"):
        with_clocks(KernelSource(KERNEL + "void f() { start_scores(S; }", None, "name.cu"))


@by_name
def test_a_step_computes_the_same_with_clocks_in_it(step):
    """To the bit, and with nothing noted for another block than the first."""
    query, key, value = inputs()
    expected, expected_lse = launch(step, query, key, value)
    out, lse = torch.full_like(expected, torch.nan), torch.full_like(expected_lse, torch.nan)
    kernel, _ = timestamps.build(step, 64, torch.float16)
    ready(step, query, key, value, out, lse, kernel=kernel)()
    assert torch.equal(out, expected) and torch.equal(lse, expected_lse)


@by_name
def test_what_a_step_notes_is_in_order_and_complete(step):
    noted = timestamps.record(step, *inputs())
    assert [moment.begin for moment in noted] == sorted(moment.begin for moment in noted)
    by_leader = {leader: [m for m in noted if m.leader == leader] for leader in {m.leader for m in noted}}
    consumers = step.rows(64) // 64
    assert sorted(by_leader) == list(range(consumers + step.producer))
    for mine in by_leader.values():
        assert all(moment.begin < moment.end for moment in mine)
        assert all(before.end <= after.begin for before, after in itertools.pairwise(mine))
    items = len(starts(by_leader[0], "start_scores")) // TILES
    assert items >= 1
    for leader in range(consumers):
        mine = by_leader[leader]
        for verb in ("start_scores", "start_output"):
            started = starts(mine, verb)
            results = {moment.site.argument for moment in started}
            waited = [m for m in mine if m.site.verb == "wait_for_product" and m.site.argument in results]
            assert len(started) == len(waited) == items * TILES
            assert all(one.end <= other.begin for one, other in zip(started, waited, strict=True))
    if step.producer:
        asked = [m for m in by_leader[consumers] if m.site.verb == "fill" and "shared.K" in m.site.argument]
        assert len(asked) == items * TILES


def starts(mine: list[Moment], verb: str) -> list[Moment]:
    return [moment for moment in mine if moment.site.verb == verb]


def test_a_second_recording_begins_anew():
    first, again = (timestamps.record(LADDER[0], *inputs()) for _ in range(2))
    assert [(m.site, m.leader) for m in first] == [(m.site, m.leader) for m in again]


def test_moments_come_back_from_their_text_and_begin_at_0():
    sites = Site("fill", "shared.K[buffer]", 59), Site("wait_for_copies", "", 72)
    noted = [Moment(sites[0], 2, 40, 55), Moment(sites[1], 0, 41, 90), Moment(sites[0], 2, 60, 61)]
    text = timestamps.to_text(noted)
    assert text == {"sites": "fill 59 shared.K[buffer];wait_for_copies 72 ", "moments": "0 2 0 15;1 0 1 50;0 2 20 21"}
    assert timestamps.from_text(**text) == [
        moment._replace(begin=moment.begin - 40, end=moment.end - 40) for moment in noted
    ]


@pytest.mark.parametrize("origin", [5, 2**31 - 10, -(2**31)])
def test_a_clock_of_32_bits_may_begin_anew(origin):
    def clock(time: int) -> int:
        """As an int of 32 bits."""
        return (origin + time + 2**31) % 2**32 - 2**31

    assert [timestamps._since(clock(time), clock(0)) for time in (0, 30_000, -7)] == [0, 30_000, -7]


@pytest.mark.gpu
def test_a_step_is_recorded_on_a_hopper():
    from course_utils.operators.tensor_core import takes_wgmma

    if not takes_wgmma(torch.device("cuda")):
        pytest.skip("this GPU is no Hopper")
    noted = timestamps.record(LADDER[-1], *(x.cuda() for x in inputs()))
    assert noted and all(0 < moment.end - moment.begin < 10**6 for moment in noted)
