"""Bytes that the kernels of chapters 01 and 02 request, counted by the profiler, against the formulas of `costs`."""

import numpy as np
import pytest
import torch

from course_utils import costs, measured
from course_utils.emulator import profile
from course_utils.emulator.profiler import Counters
from course_utils.launches import Launch
from course_utils.operators import flash_attention_minimal, naive_attention
from course_utils.operators.minimal import FORWARD_TILES

FLOAT = 4
NAIVE, FLASH = "01_attention_basics", "02_flash_attention_minimal"
LENGTHS = [(64, 64), (128, 96), (70, 80), (33, 200), (200, 33), (1, 65), (65, 1)]  # whole tiles and ragged ones
EVERY = pytest.mark.exhaustive("the formula is per tile and head: `make test` has each length, mask and tile once")


def combinations(*others):
    """Each length, with and without the mask and the others in turn; what is left of the product is exhaustive."""
    return [
        pytest.param(lengths, is_causal, other, marks=() if (n % 2, n // 2 % len(others)) == (is_causal, m) else EVERY)
        for n, lengths in enumerate(LENGTHS)
        for is_causal in (False, True)
        for m, other in enumerate(others)
    ]


SOME_LENGTHS = pytest.mark.parametrize(
    "lengths", [pytest.param(lengths, marks=() if n % 2 else EVERY) for n, lengths in enumerate(LENGTHS)]
)


def inputs(batch: int, heads: int, query_length: int, key_length: int, d: int) -> list[torch.Tensor]:
    return [torch.ones(batch, heads, length, d) for length in (query_length, key_length, key_length)]


def requested(counters: Counters, kernel: str | None = None) -> tuple[int, int]:
    """Global bytes loaded and stored, by one kernel or by all."""
    rows = [row for row in counters.rows if row.space == "global" and kernel in (None, row.kernel)]
    read, written = (sum(row.bytes for row in rows if row.operation == way) for way in ("load", "store"))
    return read, written


def expected(steps: list[costs.Step]) -> tuple[int, int]:
    return sum(step.bytes_read for step in steps), sum(step.bytes_written for step in steps)


def flash_counters(
    kernel: str, shape: tuple[int, int, int, int, int], tile: tuple[int, int], is_causal: bool
) -> Counters:
    """Counters of forward_plain.cu or forward_fa1_order.cu with tiles (B_r, B_c)."""
    (batch, heads, L_q, L_k, d), (rows, cols) = shape, tile
    query, key, value = inputs(*shape)
    plain = kernel == "forward_plain"
    row = torch.zeros(batch, heads, L_q)
    scalars = np.int32(L_q), np.int32(L_k), np.float32(1), np.int32(is_causal)
    launch = Launch(
        source=f"{FLASH}/{kernel}.cu",
        kernel=kernel,
        grid=(costs.ceil_div(L_q, rows) if plain else 1, heads, batch),
        block=(rows,),
        args=(query, key, value, torch.zeros_like(query), *([row] if plain else [row, row.clone()]), *scalars),
        options=(f"-DD={d}", f"-DB_R={rows}", f"-DB_C={cols}"),
        shared_mem=FLOAT * ((1 if plain else 2) * rows * (d + 1) + 2 * cols * d + rows * (cols + 1)),
    )
    with profile() as counters:
        launch.run()
    return counters


# ---------------------------------------------------------------------------------------------- chapter 01


@pytest.mark.parametrize(("lengths", "is_causal", "sizes"), combinations((1, 1, 32), (2, 1, 40)))
def test_three_kernels_request_what_the_formula_says(lengths, is_causal, sizes):
    batch, heads, d = sizes
    shape = batch, heads, *lengths, d
    with profile() as counters:
        naive_attention(*inputs(*shape), is_causal=is_causal)
    for kernel, step in zip(("scores", "softmax", "output"), costs.naive_requested(*shape), strict=True):
        assert requested(counters, kernel) == (step.bytes_read, step.bytes_written), step.name


@SOME_LENGTHS
def test_three_kernels_touch_what_standard_attention_moves(lengths):
    """The distinct bytes are the algorithm's traffic: each matrix read once and written once, step by step."""
    shape = 1, 2, *lengths, 40
    with profile() as counters:
        naive_attention(*inputs(*shape))
    for kernel, step in zip(("scores", "softmax", "output"), costs.naive_traffic(*shape, FLOAT), strict=True):
        touched = [entry for entry in counters.footprint if entry.kernel == kernel]
        distinct = sum(entry.bytes_read for entry in touched), sum(entry.bytes_written for entry in touched)
        assert distinct == (step.bytes_read, step.bytes_written), step.name


@SOME_LENGTHS
def test_uncoalesced_scores_request_two_floats_for_each_multiply_add(lengths):
    (L_q, L_k), d, heads = lengths, 40, 3
    query, key, _ = inputs(1, heads, L_q, L_k, d)
    name, sizes = "scores_uncoalesced", (np.int32(L_q), np.int32(L_k), np.int32(d))
    grid = costs.ceil_div(L_q, 32) * costs.ceil_div(L_k, 32), heads, 1
    args = query, key, torch.zeros(1, heads, L_q, L_k), *sizes, np.float32(1), np.int32(0)
    with profile() as counters:
        Launch(f"{NAIVE}/{name}.cu", name, grid, (32, 32), args).run()
    step = costs.naive_requested(1, heads, L_q, L_k, d, coalesced=False)[0]
    assert requested(counters) == (step.bytes_read, step.bytes_written)


# ---------------------------------------------------------------------------------------------- chapter 02

TILES = [(32, 16), (64, 32), (16, 64)]
ORDERS = {"forward_plain": costs.fa2_traffic, "forward_fa1_order": costs.fa1_traffic}


@pytest.mark.parametrize(("kernel", "formula"), list(ORDERS.items()))
@pytest.mark.parametrize(("lengths", "is_causal", "tile"), combinations(*TILES))
def test_each_loop_order_requests_the_traffic_of_its_formula(kernel, formula, tile, lengths, is_causal):
    shape = 1, 2, *lengths, 32
    traffic = formula(*shape, block_rows=tile[0], block_cols=tile[1], element_bytes=FLOAT, is_causal=is_causal)
    assert requested(flash_counters(kernel, shape, tile, is_causal)) == expected(traffic)


@pytest.mark.parametrize(("lengths", "is_causal", "head_dim"), combinations(*FORWARD_TILES))
def test_fast_forward_requests_the_traffic_of_fa2s_order(head_dim, lengths, is_causal):
    shape, tile = (1, 2, *lengths, head_dim), FORWARD_TILES[head_dim][0]
    with profile() as counters:
        flash_attention_minimal(*inputs(*shape), is_causal=is_causal)
    traffic = costs.fa2_traffic(
        *shape, block_rows=tile.block_rows, block_cols=tile.block_cols, element_bytes=FLOAT, is_causal=is_causal
    )
    assert requested(counters) == expected(traffic)


@pytest.mark.parametrize("lengths", [pytest.param((64, 64), marks=EVERY), (70, 80)])
def test_distinct_bytes_of_both_orders_are_the_least(lengths):
    """Each of Q, K, V read once, O and the row statistics written once; FA1's order also reads back what it wrote."""
    shape = 2, 3, *lengths, 32
    read, written = (FLOAT * 6 * 32 * n for n in (lengths[0] + 2 * lengths[1], lengths[0]))
    row = costs.lse_bytes(2, 3, lengths[0])
    for kernel, statistics, read_back in (("forward_plain", row, 0), ("forward_fa1_order", 2 * row, written + 2 * row)):
        footprint = flash_counters(kernel, shape, (64, 32), is_causal=False).footprint
        assert sum(entry.bytes_written for entry in footprint) == written + statistics
        assert sum(entry.bytes_read for entry in footprint) == read + read_back


@pytest.mark.parametrize("length", [1024, 2048])
@pytest.mark.parametrize(
    ("kernel", "formula", "tile"),
    [
        ("forward_plain", costs.fa2_traffic, (64, 32)),
        ("forward_fa1_order", costs.fa1_traffic, (64, 32)),
        ("forward", costs.fa2_traffic, (128, 64)),
    ],
)
def test_ncu_counted_the_same_loads_on_a_gpu(kernel, formula, tile, length):
    """Coalesced loads of whole sectors: 32 bytes for each sector of ncu are the bytes requested."""
    recorded = {row["name"]: row["metrics"] for row in measured.load("counters").rows}
    traffic = formula(1, 4, length, length, 64, block_rows=tile[0], block_cols=tile[1], element_bytes=FLOAT)
    sectors = recorded[f"{kernel}, L={length}"]["l1tex__t_sectors_pipe_lsu_mem_global_op_ld"]
    assert 32 * sectors == expected(traffic)[0]


def test_one_load_more_is_noticed():
    """A formula for other tiles than the kernel's fails: the comparison is not of numbers that always agree."""
    shape = 1, 1, 128, 128, 32
    counted = requested(flash_counters("forward_plain", shape, (32, 16), False))
    assert counted != expected(costs.fa2_traffic(*shape, block_rows=64, block_cols=16, element_bytes=FLOAT))
    assert counted == expected(costs.fa2_traffic(*shape, block_rows=32, block_cols=64, element_bytes=FLOAT))
