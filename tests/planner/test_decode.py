"""The planner on decode: bytes and floor, the splits that the operator takes, and the nearest record."""

import pytest
import torch

from course_utils import costs, measured, planner
from course_utils.operators import serving_choice, tensor_core
from course_utils.planner import devices
from course_utils.planner.decode import (
    LARGEST_HEAD_DIM,
    SHORTEST_IN_PAIRS,
    SHORTEST_PIECE,
    TILE_ROWS,
    TWO_SHARE,
    decode,
)
from course_utils.toolchain import nvrtc

LLAMA = {"heads": 32, "kv_heads": 8}


def test_a_step_reads_the_cache_once_at_the_datasheets_speed():
    found = decode(planner.plan(8192, 4, device="A100 80 GB", **LLAMA))
    assert found.bytes == costs.kv_cache_bytes(8192, 8, 128, batch=4)
    assert found.seconds == found.bytes / 2039e9 and found.fits
    assert not decode(planner.plan(2**20, 128, heads=128)).fits


def test_its_limits_are_the_operators():
    assert (SHORTEST_PIECE, SHORTEST_IN_PAIRS) == (serving_choice.SHORTEST_PIECE, serving_choice.SHORTEST_IN_PAIRS)
    assert LARGEST_HEAD_DIM == max(tensor_core.HEAD_DIMS)
    assert TILE_ROWS == max(rows for _, rows, _ in serving_choice.TILES)
    (row,) = measured.load("00_start_here").select(name="streaming multiprocessors")
    assert devices.DEVICES["H200"].multiprocessors == row["count"] == serving_choice.EMULATED_MULTIPROCESSORS


def test_two_blocks_share_a_multiprocessor_where_shared_memory_lasts_for_two():
    two = {
        sizes: 2 * (tiles.in_pairs.shared_bytes + serving_choice.RESERVED_SHARED)
        for sizes, tiles in serving_choice.TILES.items()
    }
    for device in devices.DEVICES.values():
        shared = nvrtc.SM_LIMITS[10 * device.capability[0] + device.capability[1]].shared
        assert {needed <= shared for needed in two.values()} == {device.capability in TWO_SHARE}


@pytest.mark.parametrize(
    ("batch", "length", "heads", "kv_heads"),
    [
        (1, 4096, 32, 8),
        (1, 65536, 32, 8),
        (8, 8192, 32, 8),
        (64, 4096, 32, 8),
        (1, 2048, 64, 1),
        (3, 512, 128, 16),
        (12, 8192, 32, 32),
        (17, 2048, 32, 8),
        (17, 8192, 32, 8),
        (24, 4096, 32, 8),
        (40, 8192, 32, 8),
        (48, 8192, 32, 8),
    ],
)
def test_it_takes_as_many_splits_as_the_operator(batch, length, heads, kv_heads):
    blocks = costs.ceil_div(heads // kv_heads, serving_choice.block_rows(heads // kv_heads)) * kv_heads
    tile = serving_choice.decode_tile(heads // kv_heads, batch * blocks, 128, 2, torch.device("cpu"))
    cut = serving_choice.cut_keys(batch, blocks, length, False, 0, 0, tile, torch.device("cpu"))
    assert cut.size == costs.ceil_div(length, decode(planner.plan(length, batch, heads, kv_heads=kv_heads)).splits)


def test_it_quotes_the_record_of_the_nearest_size():
    small, large = (decode(planner.plan(length, 8, **LLAMA)) for length in (512, 65536))
    rows = measured.load("06_serving").select(part="contiguous", name="decode_attention")
    shares = {(row["batch"], row["length"]): row["share"] for row in rows}
    assert small.contiguous == shares[1, 4096] and large.contiguous == shares[8, 65536]
    assert [one.near for one in (small, large)] == [costs.kv_cache_bytes(n, 8, 128) for n in (4096, 8 * 65536)]
    assert 0.9 < large.paged / large.contiguous < 1
    assert "2.15 GB on an H200" in large.words and f"{large.contiguous:.0%} of the speed of a sum" in large.words
    assert "into 2 pieces." in large.words and "does not cut" in decode(planner.plan(4096, 64, **LLAMA)).words


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ({"dtype": "float32"}, "take 16 bits"),
        ({"head_dim": 256}, "take d up to 128"),
        ({"device": "T4"}, "need compute capability 8.0"),
        ({"batch": 128, "length": 2**20}, "do not fit in memory"),
    ],
)
def test_it_says_what_the_kernels_do_not_take(setting, why):
    assert why in decode(planner.plan(**({"length": 4096} | setting))).words
