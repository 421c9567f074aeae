"""What the pipeline viewer of chapter 07 shows, by moments written by hand, and of the record."""

import pytest

from course_utils import measured
from course_utils.chapters.hopper.blocks import (
    Span,
    blocks,
    consumers,
    cycles_of_a_tile,
    lanes,
    share_of_roof,
)
from course_utils.launches.hopper import LADDER
from course_utils.launches.timestamps import Moment, Site
from course_utils.operators.tensor_core import HEAD_DIMS


def noted(*moments):
    """From (verb, first argument, leader, begin, end)."""
    return [Moment(Site(verb, argument, 1), leader, begin, end) for verb, argument, leader, begin, end in moments]


RING = noted(
    ("fill", "shared.K[buffer]", 1, 0, 5),
    ("wait_until_full", "shared.gate_K[buffer]", 0, 2, 30),
    ("fill", "shared.V[buffer]", 1, 6, 10),
    ("fill", "shared.K[buffer]", 1, 11, 20),
    ("start_scores", "S", 0, 31, 33),
    ("wait_for_product", "S", 0, 34, 60),
    ("wait_until_full", "shared.gate_V[buffer]", 0, 80, 82),
    ("start_output", "O", 0, 82, 84),
    ("wait_until_full", "shared.gate_K[next]", 0, 84, 85),
    ("start_scores", "S", 0, 86, 88),
    ("wait_for_product", "O", 0, 90, 120),
    ("wait_for_product", "S", 0, 121, 125),
)


def test_a_tile_lasts_from_asked_for_to_seen_and_a_product_from_its_start_to_the_end_of_its_wait():
    of = {lane.name: lane.spans for lane in lanes(RING)}
    assert [*of] == ["tiles of K", "tiles of V", "products of warpgroup 0", "warpgroup 0", "producer"]
    assert of["tiles of K"] == (Span(5, 30, "K"), Span(20, 85, "K")) and of["tiles of V"] == (Span(10, 82, "V"),)
    assert of["products of warpgroup 0"] == (Span(31, 60, "S"), Span(82, 120, "PV"), Span(86, 125, "S"))


def test_what_lies_between_the_calls_of_a_warpgroup_is_computation():
    of = {lane.name: lane.spans for lane in lanes(RING)}
    assert of["producer"][:2] == (Span(0, 5, "asks"), Span(5, 6, "computes"))
    assert of["warpgroup 0"][:6] == (
        Span(2, 30, "waits"),
        Span(30, 31, "computes"),
        Span(31, 33, "computes"),
        Span(33, 34, "computes"),
        Span(34, 60, "waits"),
        Span(60, 80, "computes"),
    )
    for spans in (of["producer"], of["warpgroup 0"]):
        assert all(before.end == after.begin for before, after in zip(spans, spans[1:], strict=False))


def test_a_tile_that_two_consumers_wait_for_is_seen_by_the_first_and_one_that_all_copy_counts_once():
    two = noted(
        ("load_tile_async", "shared.K[0]", 0, 0, 10),
        ("load_tile_async", "shared.K[0]", 1, 1, 12),
        ("load_tile_async", "shared.V[0]", 0, 10, 14),
        ("wait_for_copies", "", 1, 20, 29),
        ("wait_for_copies", "", 0, 21, 31),
        ("start_scores", "S", 0, 40, 41),
        ("start_scores", "S", 1, 40, 41),
    )
    tiles_of_k, tiles_of_v, *_ = lanes(two)
    assert tiles_of_k.spans == (Span(10, 29, "K"),) and tiles_of_v.spans == (Span(14, 29, "V"),)
    assert consumers(two) == [0, 1]
    full = noted(("load_box", "shared.K[0]", 0, 0, 1), ("wait_for", "&shared.full[0]", 0, 2, 9))
    full += noted(("wait_for", "&shared.full_Q", 0, 0, 1), ("start_scores", "S", 0, 9, 10))
    assert lanes(full)[0].spans == (Span(1, 9, "K"),)


def test_cycles_are_the_median_without_the_first_tile_and_the_share_is_of_all_consumers():
    starts = [0, 1000, 1512, 2024, 2600]
    moments = noted(*(("start_scores", "S", leader, begin, begin + 1) for begin in starts for leader in (0, 1)))
    assert cycles_of_a_tile(moments) == 512
    assert share_of_roof(moments, 128) == pytest.approx(2 * (2 * 2 * 64 * 128 * 128) / (512 * 4096))


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_the_recorded_blocks_are_those_of_the_ladder_and_say_a_possible_share(head_dim):
    found = blocks(head_dim)
    assert [(block["number"], block["title"]) for block in found] == [(step.number, step.title) for step in LADDER]
    slower = {row["name"]: row["slower"] for row in measured.load("pipeline").select(head_dim=head_dim)}
    for block, step in zip(found, LADDER, strict=True):
        names = [lane["name"] for lane in block["lanes"]]
        workers = [f"warpgroup {n}" for n in range(step.rows(head_dim) // 64)]
        producer = ["producer"] * step.producer
        assert names == ["tiles of K", "tiles of V", *(f"products of {name}" for name in workers), *workers, *producer]
        assert all(lane["spans"] == sorted(lane["spans"], key=lambda span: span[0]) for lane in block["lanes"])
        assert 0 < block["share"] < 1 and block["slower"] == pytest.approx(slower[step.title], abs=0.005)


def test_another_head_dimension_is_refused():
    with pytest.raises(ValueError, match="head_dim: got 96, of which pipeline has no record"):
        blocks(96)
