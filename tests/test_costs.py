"""Every figure the course quotes, recomputed; and the traffic formulas against a plain walk over the loops."""

import pytest

from course_utils import costs

# ---- figures of the course that are arithmetic ----


def test_flops_of_one_head_at_32k_are_five_hundred_billion_not_one_billion():
    assert 32768**2 == pytest.approx(1.07e9, rel=5e-3)
    assert costs.attention_flops(1, 1, 32768, 32768, 128) == pytest.approx(5.50e11, rel=5e-3)
    assert costs.attention_flops(1, 1, 32768, 32768, 128, is_causal=True) == pytest.approx(2.75e11, rel=5e-3)


def test_flops_per_token_at_32k():
    assert costs.attention_flops(1, 1, 1, 32768, 128) == pytest.approx(16.8e6, rel=5e-3)
    assert costs.attention_flops(1, 1, 1, 512, 128) == pytest.approx(0.262e6, rel=5e-3)


def test_512_keys_per_query_at_32k_are_64_times_cheaper():
    sparse = costs.attention_flops(1, 1, 32768, 512, 128)
    assert sparse == pytest.approx(8.59e9, rel=5e-3)
    assert costs.attention_flops(1, 1, 32768, 32768, 128) == 64 * sparse
    kept = 512 * 32768 - 512 * 511 // 2  # the first rows see fewer than 512 keys
    assert costs.attended_pairs(32768, 32768, is_causal=True) / kept == pytest.approx(32.25, abs=0.01)


def test_scores_of_128k_tokens_take_34_gb_per_head_in_fp16():
    assert costs.score_matrix_bytes(1, 1, 131072, 131072, 2) == pytest.approx(34.4e9, rel=5e-3)


def test_a_32_times_longer_input_costs_1024_times_as_much():
    assert costs.attention_flops(1, 1, 32 * 512, 32 * 512, 64) == 1024 * costs.attention_flops(1, 1, 512, 512, 64)


def test_traffic_ratios_at_4096_and_head_dim_64():
    """65 times less only if K and V are read once; FA1's own order gives 3.9 (fp16) and 2.0 (fp32) at M = 100 KB."""
    naive = costs.total_bytes(costs.naive_traffic(1, 1, 4096, 4096, 64, 2))
    assert naive / costs.least_bytes(1, 1, 4096, 4096, 64, 2) == 65
    ratios = []
    for element_bytes in (2, 4):
        block_rows, block_cols = costs.fa1_block_sizes(100 * 1024 // element_bytes, 64)
        flash = costs.total_bytes(
            costs.fa1_traffic(
                1, 1, 4096, 4096, 64, block_rows=block_rows, block_cols=block_cols, element_bytes=element_bytes
            )
        )
        ratios.append(costs.total_bytes(costs.naive_traffic(1, 1, 4096, 4096, 64, element_bytes)) / flash)
    assert [round(ratio, 1) for ratio in ratios] == [3.9, 2.0]


def test_cache_bytes_per_token_of_mla_mha_and_gqa():
    mla, mha, gqa = costs.mla_cache_bytes(1), costs.kv_cache_bytes(1, 128, 128), costs.kv_cache_bytes(1, 8, 128)
    assert (mla, mha, gqa) == (1152, 65536, 4096)
    assert round(mha / mla, 1) == 56.9 and round(gqa / mla, 1) == 3.6
    fp8 = {"element_bytes": 1, "rope_bytes": 2, "scale_bytes": 16}
    assert costs.mla_cache_bytes(1, **fp8) == 512 + 64 * 2 + 4 * 4 == 656  # as FlashMLA says
    assert costs.mla_cache_bytes(3, layers=2, **fp8) == 6 * 656 and costs.mla_cache_bytes(1, element_bytes=1) == 576


# ---- DeepSeek: figures of the papers, and sums against a walk over the queries ----


def test_flops_of_a_pair_in_mla_and_in_the_indexer():
    assert costs.mla_pair_flops() == 2 * (576 + 512) * 128 == 278_528
    assert costs.mla_pair_flops(backward=True) == 2 * (3 * 576 + 2 * 512) * 128 == 704_512
    assert costs.indexer_pair_flops() == 2 * 64 * 128 == 16_384
    assert costs.mla_pair_flops() / costs.indexer_pair_flops() == 17
    assert costs.mha_pair_flops() == 2 * (192 + 128) * 128 == 81_920


def test_rebuilding_k_and_v_for_each_pair_costs_262144_flop_where_512_are_wanted():
    per_head = costs.reprojected_pair_flops() / 128
    assert costs.rebuild_flops(1) / 128 == 2 * 512 * (128 + 128) == 262_144
    assert per_head == 262_144 + 512 + 2 * 64
    assert costs.reprojected_flops(4, 9) / costs.mla_flops(4, 9) == pytest.approx(120.8, abs=0.05)
    assert costs.mha_flops(3, 5) == (3 + 4 + 5) * 81_920 + 5 * costs.rebuild_flops(1)


def test_last_token_at_128k_takes_2_72_gflop_instead_of_36_5():
    assert costs.mla_flops(1, 131072) == pytest.approx(36.5e9, rel=1e-3)
    assert costs.dsa_flops(1, 131072) == pytest.approx(2.72e9, rel=1e-3)
    assert costs.dsa_flops(1, 131072) == 131072 * 16_384 + 2048 * 278_528


def test_indexer_equals_the_sparse_core_near_35k_keys():
    assert costs.indexer_core_crossover() == 34_816
    assert costs.indexer_flops(1, 34_816) == costs.sparse_mla_flops(1, 34_816)
    assert costs.indexer_core_crossover(index_speed=2) == 69_632
    assert costs.indexer_core_crossover(1024) == 17_408


def test_dsa_saves_flops_from_2176_keys_on():
    assert costs.dsa_dense_crossover() == 2176
    assert costs.dsa_flops(1, 2176) == costs.mla_flops(1, 2176)
    assert costs.dsa_flops(1, 2000) > costs.mla_flops(1, 2000)  # every key is selected, and was scored before
    prefill = costs.dsa_dense_crossover(dense_pair_flops=costs.mha_pair_flops())
    assert prefill == 8704 and 8704 * 81_920 == costs.dsa_flops(1, 8704)
    assert costs.dsa_dense_crossover(dense_pair_flops=16_384) == float("inf")


@pytest.mark.parametrize("sizes", [(1, 1, 1), (5, 5, 3), (3, 9, 4), (3, 9, 20), (9, 3, 2), (7, 7, 7)])
def test_flops_of_a_layer_are_sums_over_its_queries(sizes):
    query_length, key_length, top_k = sizes
    seen = [max(0, t + 1 + key_length - query_length) for t in range(query_length)]
    selected = sum(min(top_k, keys) for keys in seen)
    assert costs.selected_pairs(*sizes) == selected
    assert costs.sparse_mla_flops(*sizes) == selected * 278_528
    assert costs.mla_flops(query_length, key_length) == sum(seen) * 278_528
    assert costs.dsa_flops(*sizes) == sum(seen) * 16_384 + selected * 278_528


def test_projections_are_those_of_the_layer():
    found = costs.projection_flops(3)
    indexer = sum(flops for name, flops in found.items() if name.startswith("indexer"))
    assert indexer == 3 * 2 * (1536 * 64 * 128 + 7168 * 128 + 7168 * 64)
    dense = 7168 * (1536 + 576) + 1536 * 128 * 192 + 2 * 128 * 128 * 512 + 128 * 128 * 7168
    assert sum(found.values()) - indexer == 3 * 2 * dense


def test_caches_of_the_indexer_and_what_the_core_gathers():
    assert costs.index_cache_bytes(1) == 132 and costs.index_cache_bytes(1, element_bytes=2, scale_bytes=0) == 256
    assert costs.gathered_bytes(1, 131072) == 2048 * 1152
    assert costs.gathered_bytes(2, 3, 8) == (2 + 3) * 1152
    assert costs.logits_bytes(4096, 32768) == 512 * 2**20


@pytest.mark.parametrize(
    "call",
    [
        lambda: costs.projection_flops(-3),
        lambda: costs.rebuild_flops(-1),
        lambda: costs.mla_flops(2.5, 3),
        lambda: costs.dsa_flops(2, 3, 0),
    ],
)
def test_flops_of_what_cannot_be_are_an_error(call):
    with pytest.raises(ValueError, match="must be a positive integer"):
        call()


def test_work_of_a_step_is_its_flops_and_each_tensor_once():
    indexer, top_k, core = costs.dsa_work(2, 10, 4)
    assert (indexer.flops, top_k.flops, core.flops) == (19 * 16_384, 0, 8 * 278_528)
    assert indexer.bytes_moved == 2 * 64 * (128 + 4 + 4) + 10 * 132 + 2 * 10 * 4
    assert top_k.bytes_moved == 2 * 10 * 4 + 2 * 4 * 4
    dense = costs.mla_work(2, 10)
    assert dense.bytes_moved == 2 * 128 * (576 * 2 + 512 * 2 + 4) + 10 * 1152
    assert core.bytes_moved == dense.bytes_moved - (10 - 4) * 1152 + 2 * 4 * 4  # both queries may select the same 4
    assert costs.dsa_work(2, 3, 4)[2].bytes_moved == costs.mla_work(2, 3).bytes_moved + 2 * 4 * 4
    assert costs.dsa_work(2, 10, 4, index_bytes=2)[0].bytes_moved == 2 * 64 * (256 + 4) + 10 * 256 + 2 * 10 * 4
    assert dense.time_floor(peak_flops=dense.flops, bandwidth=1e12) == 1.0


# ---- conventions ----


def test_causal_is_half_and_backward_two_and_a_half():
    forward = costs.attention_flops(2, 3, 128, 128, 64)
    assert forward == 2 * 3 * 4 * 128 * 128 * 64
    assert costs.attention_flops(2, 3, 128, 128, 64, is_causal=True) * 2 == forward
    assert costs.attention_flops(2, 3, 128, 128, 64, backward=True) * 2 == forward * 5


@pytest.mark.parametrize("lengths", [(1, 1), (5, 5), (3, 8), (8, 3), (1, 9)])
def test_attended_pairs_counts_the_mask(lengths):
    query_length, key_length = lengths
    kept = sum(j <= i + key_length - query_length for i in range(query_length) for j in range(key_length))
    assert costs.attended_pairs(query_length, key_length, is_causal=True) == kept
    assert costs.attended_pairs(query_length, key_length) == query_length * key_length
    # The FLOP convention is the area under the diagonal: it leaves out half a pair per row that sees a key.
    area = kept - min(lengths) / 2
    assert costs.attention_flops(1, 1, query_length, key_length, 1, is_causal=True) == 4 * area


def test_least_bytes_forward_backward_and_gqa():
    assert costs.least_bytes(2, 4, 10, 20, 8, 2) == 2 * 4 * 8 * 2 * (10 + 20 + 20 + 10)
    assert costs.least_bytes(2, 4, 10, 20, 8, 2, kv_heads=1) == 2 * 8 * 2 * (4 * 10 + 20 + 20 + 4 * 10)
    assert costs.least_bytes(2, 4, 10, 20, 8, 2, backward=True) == 2 * 4 * (8 * 2 * (4 * 10 + 4 * 20) + 4 * 10)


def test_score_matrix_and_lse_bytes():
    assert costs.score_matrix_bytes(16, 12, 2048, 2048, 4, matrices=2) == 2 * 16 * 12 * 2048 * 2048 * 4
    assert costs.lse_bytes(16, 12, 2048) == 16 * 12 * 2048 * 4


def test_time_floor_is_the_larger_of_the_two_times():
    assert costs.time_floor(flops=10e12, bytes_moved=1e9, peak_flops=100e12, bandwidth=1e12) == pytest.approx(0.1)
    assert costs.time_floor(flops=1e9, bytes_moved=4e12, peak_flops=100e12, bandwidth=2e12) == pytest.approx(2.0)
    assert costs.ridge_point(100e12, 4e12) == 25
    assert costs.arithmetic_intensity(100, 4) == 25


def test_shared_bytes_of_a_tile():
    assert costs.tile_shared_bytes(32, 32, 64, 4) == (32 + 2 * 32) * 64 * 4
    full = costs.tile_shared_bytes(64, 32, 64, 2, kv_buffers=2, score_tile=True, output_tile=True, row_padding=8)
    assert full == 2 * (64 * 72 + 2 * 2 * 32 * 72 + 64 * 40 + 64 * 72)


# ---- traffic against a plain walk over the loops ----

SHAPES = [(1, 1, 4, 4), (8, 8, 4, 4), (10, 13, 4, 3), (13, 10, 3, 4), (5, 64, 16, 8), (64, 5, 8, 16)]


def walk(query_length, key_length, block_rows, block_cols, is_causal):
    """Tiles (rows, columns, whether masked inside) that hold a kept pair, by looking at every pair."""
    for i0 in range(0, query_length, block_rows):
        for j0 in range(0, key_length, block_cols):
            rows = range(i0, min(query_length, i0 + block_rows))
            columns = range(j0, min(key_length, j0 + block_cols))
            kept = [not is_causal or j <= i + key_length - query_length for i in rows for j in columns]
            if any(kept):
                yield len(rows), len(columns), not all(kept)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("is_causal", [False, True])
def test_fa1_traffic_equals_a_walk_over_its_loops(shape, is_causal):
    query_length, key_length, block_rows, block_cols = shape
    d, size, statistic = 8, 2, 4
    read = written = 0
    written += query_length * (d * size + 2 * statistic)
    read += 2 * key_length * d * size
    for rows, _, _ in walk(*shape, is_causal):
        read += rows * (2 * d * size + 2 * statistic)
        written += rows * (d * size + 2 * statistic)
    steps = costs.fa1_traffic(
        2,
        3,
        query_length,
        key_length,
        d,
        block_rows=block_rows,
        block_cols=block_cols,
        element_bytes=size,
        statistics_bytes=statistic,
        is_causal=is_causal,
    )
    assert sum(step.bytes_read for step in steps) == 6 * read
    assert sum(step.bytes_written for step in steps) == 6 * written


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("is_causal", [False, True])
def test_fa2_traffic_equals_a_walk_over_its_loops(shape, is_causal):
    query_length, key_length, block_rows, block_cols = shape
    d, size = 8, 2
    read = query_length * d * size + sum(2 * columns * d * size for _, columns, _ in walk(*shape, is_causal))
    steps = costs.fa2_traffic(
        2,
        3,
        query_length,
        key_length,
        d,
        block_rows=block_rows,
        block_cols=block_cols,
        element_bytes=size,
        is_causal=is_causal,
    )
    assert sum(step.bytes_read for step in steps) == 6 * read
    assert sum(step.bytes_written for step in steps) == 6 * query_length * (d * size + 4)


def test_waves():
    assert costs.wave_efficiency(264, 264) == costs.wave_efficiency(528, 264) == 1
    assert costs.wave_efficiency(265, 264) == 265 / 528
    assert costs.wave_efficiency(8, 264) == pytest.approx(8 / 264)


def test_the_fewest_splits_that_fill_the_gpu_well_enough():
    assert costs.splits_by_waves(64, 264, 512) == 4  # 256 of 264
    assert costs.splits_by_waves(64, 264, 3) == 3
    assert costs.splits_by_waves(8, 264, 512) == 32 and costs.splits_by_waves(8, 264, 512, share=1.0) == 33
    assert costs.splits_by_waves(264, 264, 512) == costs.splits_by_waves(5000, 264, 512) == 1
    with pytest.raises(ValueError, match="most"):
        costs.splits_by_waves(8, 264, 0)


@pytest.mark.parametrize("shape", SHAPES)
def test_tiles_visited_and_masked(shape):
    tiles = list(walk(*shape, True))
    assert len(list(costs.visited_tiles(*shape, is_causal=True))) == len(tiles)
    assert costs.masked_tiles(*shape) == sum(masked for _, _, masked in tiles)


def test_naive_traffic_step_by_step():
    steps = costs.naive_traffic(1, 1, 10, 20, 8, 4)
    assert [(step.bytes_read, step.bytes_written) for step in steps] == [
        (4 * (80 + 160), 4 * 200),
        (4 * 200, 4 * 200),
        (4 * (200 + 160), 4 * 80),
    ]
    assert costs.total_bytes(steps) == 4 * (2 * 80 + 2 * 160 + 4 * 200)


def test_the_counted_traffic_of_fa1_follows_theorem_2():
    """Theta(N^2 d^2 / M): twice the length costs four times, twice the memory half."""

    def counted(length, sram):
        block_rows, block_cols = costs.fa1_block_sizes(sram, 64)
        return costs.total_bytes(
            costs.fa1_traffic(1, 1, length, length, 64, block_rows=block_rows, block_cols=block_cols, element_bytes=1)
        )

    assert counted(8192, 16384) / counted(4096, 16384) == pytest.approx(4, rel=0.05)
    assert counted(8192, 16384) / counted(8192, 32768) == pytest.approx(2, rel=0.05)


def test_bad_input_names_the_argument():
    with pytest.raises(ValueError, match="head_dim is 0"):
        costs.attention_flops(1, 1, 4, 4, 0)
    with pytest.raises(ValueError, match="block_cols is -1"):
        list(costs.visited_tiles(4, 4, 4, -1))
    with pytest.raises(ValueError, match="sram_elements is 0"):
        costs.fa1_block_sizes(0, 64)
    with pytest.raises(ValueError, match="top_k is 0"):
        costs.sparse_mla_flops(4, 4, 0)


# ---- windows


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(("length", "window"), [(1, 1), (7, 1), (7, 3), (7, 7), (7, 50), (200, 64)])
def test_pairs_of_a_window_are_those_of_its_mask(length, window, is_causal):
    kept = [abs(i - j) < window and (j <= i or not is_causal) for i in range(length) for j in range(length)]
    assert costs.window_pairs(length, window, is_causal) == sum(kept)


def test_a_window_of_no_keys_is_named():
    with pytest.raises(ValueError, match="window is 0"):
        costs.window_pairs(8, 0)


def test_fa1_needs_half_the_traffic_with_twice_the_memory():
    ratios = [costs.fa1_ratio(kibibytes, element_bytes=2) for kibibytes in (50, 100, 200)]
    assert [round(ratio, 1) for ratio in ratios] == [2.0, 3.9, 7.1]
    assert round(costs.fa1_ratio(100, element_bytes=4), 1) == 2.0


@pytest.mark.parametrize("kibibytes, rows", [(48, 32), (99, 128), (227, 384), (1, 0)])
def test_the_largest_query_tile_fits_and_the_next_one_does_not(kibibytes, rows):
    assert costs.largest_block_rows(kibibytes << 10, 64, 64, 4) == rows
    assert not rows or costs.tile_shared_bytes(rows, 64, 64, 4, score_tile=True) <= kibibytes << 10
    assert costs.tile_shared_bytes(rows + 32, 64, 64, 4, score_tile=True) > kibibytes << 10


def test_the_gigabytes_that_chapter_00_begins_with():
    """One head, d = 64, fp32: megabytes of the scores, and of Q, K, V and O."""
    lengths = 2048, 8192, 32768
    scores = [f"{costs.score_matrix_bytes(1, 1, L, L, 4) / 1e6:.1f}" for L in lengths]
    least = [f"{costs.least_bytes(1, 1, L, L, 64, 4) / 1e6:.1f}" for L in lengths]
    assert (scores, least) == (["16.8", "268.4", "4295.0"], ["2.1", "8.4", "33.6"])
