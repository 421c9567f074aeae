"""The plots of the chapters say what they were given."""

import matplotlib.colors
import matplotlib.pyplot as plt
import pytest
import torch

from course_utils import plots
from course_utils.costs import Step
from course_utils.plots import look


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def texts(ax):
    return [text.get_text() for text in ax.texts]


def test_memory_levels_write_their_figures_in_megabytes_and_terabytes_per_second():
    sizes, rates = plots.memory_levels([("L2 cache", 60e6, 8.2e12), ("HBM", 150e9, 4.2e12)]).axes
    assert texts(sizes) == ["60", "150,000"]
    assert texts(rates) == ["8.2", "4.2"]


def test_two_lines_are_named_at_their_ends():
    ax = plots.two_lines({"predicted": {1: 1, 32: 8}, "measured": {1: 1, 32: 12.4}}, "stride", "times as long")
    assert texts(ax) == ["predicted", "measured"] and ax.texts[1].xy == (32, 12.4)


def test_a_curve_against_size_has_its_marks():
    ax = plots.against_size({1: 7.5, 64: 4.6}, {"L2": 60})
    assert texts(ax) == ["L2"] and ax.get_xscale() == "log" and ax.get_ylim()[0] == 0


def test_matmul_tiles_marks_one_tile_of_each_matrix():
    ax = plots.matmul_tiles(tiles=4, step=1, row=2, column=3)
    colours = [matplotlib.colors.to_hex(patch.get_facecolor()) for patch in ax.patches]
    assert colours.count(plots.ORANGE.lower()) == 2
    assert colours.count(plots.SKY.lower()) == 6
    assert colours.count(plots.GREEN.lower()) == 1


def test_traffic_bars_name_each_total_and_highlight_what_was_asked_for():
    steps = {"standard": [Step("S", 3_000_000, 1_000_000), Step("O", 0, 1_000_000)], "least": [Step("O", 0, 500_000)]}
    ax = plots.traffic_bars(steps, highlight=lambda name: name == "S")
    assert [label.get_text() for label in ax.get_yticklabels()] == ["standard", "least"]
    assert [text.strip() for text in texts(ax)] == ["5.0 MB", "0.5 MB"]
    vermilion = [patch for patch in ax.patches if matplotlib.colors.to_hex(patch.get_facecolor()) == look.RED]
    assert [patch.get_width() for patch in vermilion] == [4.0]


def test_loop_orders_visit_every_tile_once():
    by_column, by_row = plots.loop_orders(query_tiles=2, key_tiles=3).axes
    assert texts(by_column) == ["1", "3", "5", "2", "4", "6"]
    assert texts(by_row) == ["1", "2", "3", "4", "5", "6"]


def test_tiled_attention_colours_one_tile_of_each_matrix():
    ax = plots.tiled_attention(query_tiles=3, key_tiles=4, i=1, j=2)
    faces = [matplotlib.colors.to_hex(patch.get_facecolor()) for patch in ax.patches if patch.get_width() <= 1]
    expected = {look.MATRICES[name]: 1 for name in ("Q", "K", "V", "O", "pick")}
    assert {colour: faces.count(colour.lower()) for colour in expected} == expected


def test_tile_choice_marks_the_limits():
    ax = plots.tile_choice([16, 32], {"fp32": [1.0, 2.0]}, {"48 KB": 20.0})
    assert texts(ax) == ["48 KB"]


def test_time_and_memory_draws_a_line_per_name_in_order_of_length():
    rows = [
        {"name": name, "length": length, "median_ms": length / 100, "peak_mb": length / 10}
        for name in ("a", "b", "not asked for")
        for length in (1024, 512)
    ]
    time, memory = plots.time_and_memory(rows, ["a", "b"]).axes
    assert [line.get_label() for line in time.lines] == ["a", "b"]
    assert list(time.lines[0].get_xdata()) == [512, 1024]
    assert list(memory.lines[0].get_ydata()) == [51.2, 102.4]


def test_training_draws_both_losses_and_the_weights():
    loss, picture, _ = plots.training([2.0, 1.0], [2.0, 1.1], torch.eye(4)).axes
    assert len(loss.lines) == 2
    assert picture.images[0].get_array().shape == (4, 4)


def test_warp_shares_give_each_warp_columns_of_fa1_and_rows_of_fa2():
    for ax, shape in zip(plots.warp_shares().axes, [(1, 4), (4, 1)], strict=True):
        assert sum((patch.get_width(), patch.get_height()) == shape for patch in ax.patches) == 4


def test_packed_heads_fill_the_rows_of_one_tile_that_were_spread_over_four():
    for ax, tiles in zip(plots.packed_heads(heads=4, queries=2).axes, [4, 1], strict=True):
        rows = [text for text in ax.texts if text.get_text().startswith("head")]
        assert (len(ax.patches), len(rows)) == (tiles + 8, 8)
    assert [text.get_text() for text in rows[1:3]] == ["head 0, query 1", "head 1, query 0"]


def test_copy_and_compute_ends_earlier_with_two_buffers():
    one, two = plots.copy_and_compute(tiles=5).axes
    assert max(p.get_x() for p in two.patches) < max(p.get_x() for p in one.patches)
    assert len(one.patches) == len(two.patches) == 10


def test_ladder_writes_the_share_of_the_first_kernel_beside_each_step_and_draws_a_line_for_each():
    peers = {"d = 64": {"FLASH": 100, "cuDNN": 150}, "d = 128": {"FLASH": 200, "cuDNN": 300}}
    figure = plots.ladder(["1", "2"], {"d = 64": [50.0, 120.0], "d = 128": [100.0, 100.0]}, peers)
    assert [[text.strip() for text in texts(ax)] for ax in figure.axes] == [["50%", "120%"], ["50%", "50%"]]
    for ax, title in zip(figure.axes, peers, strict=True):
        assert {line.get_label(): line.get_xdata()[0] for line in ax.lines} == peers[title]
        assert ax.get_xlim()[1] > peers[title]["cuDNN"]


def test_speed_by_length_draws_a_panel_per_title_and_a_line_per_name():
    panels = {title: {"ours": {512: 3.0, 1024: 4.0}, "theirs": {512: 2.0}} for title in ("a", "b", "c")}
    figure = plots.speed_by_length(panels)
    assert [ax.get_title(loc="left") for ax in figure.axes if ax.lines] == ["a", "b", "c"]
    assert [len(ax.lines) for ax in figure.axes] == [2, 2, 2, 0]


def test_speed_by_length_has_room_for_the_fastest_of_any_panel():
    figure = plots.speed_by_length({"slow": {"ours": {512: 3.0}}, "fast": {"ours": {512: 90.0}}})
    assert all(ax.get_ylim()[0] == 0 and ax.get_ylim()[1] > 90 for ax in figure.axes)


def test_magnitudes_mark_both_limits():
    ax = plots.magnitudes({"dQ": torch.tensor([0.0, 2.0**-20, 2.0**-10])}, {"smallest": 2.0**-24, "normal": 2.0**-14})
    assert texts(ax) == ["smallest", "normal"]
    assert [line.get_xdata()[0] for line in ax.lines] == [-24, -14]


def scaling_row(pattern, kernel, length, milliseconds):
    return {"pattern": pattern, "name": "x", "kernel": kernel, "length": length, "median_ms": milliseconds}


def test_scaling_has_a_panel_per_kernel_and_dense_attention_in_each():
    rows = [scaling_row("dense", None, length, length / 100) for length in (2048, 1024)]
    rows += [scaling_row(name, "range", length, length / 1000) for name in ("a", "b") for length in (1024, 2048)]
    rows += [scaling_row("c", kernel, length, 1.0) for length, kernel in ((1024, "block_sparse"), (2048, "csr_gather"))]
    figure = plots.scaling(rows)
    lines = {ax.get_title(loc="left"): [line.get_label() for line in ax.lines] for ax in figure.axes}
    assert lines == {"range": ["causal, x", "a", "b"], "csr_gather": ["causal, x", "c"]}
    assert list(figure.axes[0].lines[0].get_xdata()) == [1024, 2048]


def test_scaling_draws_the_fastest_other_way_to_a_pattern_in_its_colour():
    rows = [scaling_row("a", kernel, 1024, 1.0) for kernel in ("range", "dense")]
    rows += [
        scaling_row("a", None, 1024, milliseconds) | {"name": f"{milliseconds}"} for milliseconds in (3.0, 2.0, 4.0)
    ]
    (ax,) = plots.scaling([scaling_row("dense", None, 1024, 5.0), *rows]).axes
    _, ours, other = ax.lines
    assert list(other.get_ydata()) == [2.0] and other.get_color() == ours.get_color()
    assert ax.get_title(loc="left") == "range, dense"


def test_break_even_writes_the_ratio_at_its_length_and_density():
    rows = [
        {"name": "ours", "length": 2048, "density": 1 / 32, "ratio_to_dense": 3.0},
        {"name": "ours", "length": 1024, "density": 1.0, "ratio_to_dense": 0.5},
        {"name": "theirs", "length": 1024, "density": 1.0, "ratio_to_dense": 0.25},
    ]
    ours, theirs = plots.break_even(rows, ["ours", "theirs"]).axes[:2]
    assert {text.get_text(): text.get_position() for text in ours.texts} == {"3": (1, 0), "0.5": (0, 1)}
    assert texts(theirs) == ["0.25"]
    assert [label.get_text() for label in ours.get_yticklabels()] == ["1/32", "1"]


def test_short_sequences_draw_the_gpu_and_the_call_of_each_name():
    rows = [
        {"pattern": pattern, "name": name, "length": length, "median_ms": 0.01, "call_ms": 0.05}
        for pattern in ("a", "b")
        for name in ("ours", "dense")
        for length in (128, 256)
    ]
    for ax in plots.short_sequences(rows).axes:
        assert [line.get_label() for line in ax.lines] == ["ours, GPU", "ours, call", "dense, GPU", "dense, call"]
        assert list(ax.lines[0].get_ydata()) == pytest.approx([10, 10])


def test_radix_digits_finds_the_kth_greatest():
    scores = torch.randn(5000, generator=torch.Generator().manual_seed(0))
    scores[:300] = 0.0
    for k in (1, 500, 2600, 4999):
        first, second = plots.radix_digits(scores, k, bars=2048).axes
        least = scores.sort(descending=True).values[k - 1]
        counts = []
        for ax in (first, second):
            colours = [matplotlib.colors.to_hex(bar.get_facecolor()) for bar in ax.patches]
            assert colours.count(plots.ORANGE.lower()) == 1
            assert colours == sorted(colours, key=[plots.BLUE.lower(), plots.ORANGE.lower(), look.PALE].index)
            counts.append(
                {c: sum(b.get_height() for b, d in zip(ax.patches, colours, strict=True) if c == d) for c in colours}
            )
        above, here = counts[0].get(plots.BLUE.lower(), 0), counts[0][plots.ORANGE.lower()]
        assert above < k <= above + here and sum(counts[0].values()) == 5000
        assert above <= int((scores > least).sum()) < above + here
        assert sum(counts[1].values()) == here


def test_token_costs_draws_each_line_in_gflop_and_each_mark():
    ax = plots.token_costs([1024, 2048], {"dense": [1e9, 2e9], "DSA": [1e9, 1e9]}, {"here": 1500})
    lines = {line.get_label(): list(line.get_ydata()) for line in ax.lines}
    assert (lines["dense"], lines["DSA"]) == ([1, 2], [1, 1])
    assert texts(ax) == ["here"] and [label.get_text() for label in ax.get_xticklabels()] == ["1 K", "2 K"]


def test_gathered_tile_shows_the_chosen_rows_twice():
    ax = plots.gathered_tile(chosen=(0, 3), tokens=5).axes[0]
    colours = [matplotlib.colors.to_hex(patch.get_facecolor()) for patch in ax.patches if hasattr(patch, "get_width")]
    assert (colours.count(plots.ORANGE.lower()), colours.count(look.PALE)) == (4, 3)


def test_kept_by_fp8_draws_two_bars_for_each_case():
    ax = plots.chosen_by_fp8({"in q": (97, 96), "in q and k": (83, 95)}).axes[0]
    assert [bar.get_width() for bar in ax.patches] == [97, 83, 96, 95] and texts(ax) == ["97", "83", "96", "95"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["in q", "in q and k"]


def test_dsa_layer_names_its_steps():
    words = " ".join(texts(plots.dsa_layer().axes[0]))
    assert all(step in words for step in ("lightning indexer", "top-k", "sparse core", "cache"))


def test_three_choices_mark_where_memory_ran_out():
    def row(name, length, ms, peak, asked=None):
        return {"name": name, "length": length, "median_ms": ms, "peak_extra_bytes": peak, "asked_bytes": asked}

    rows = [row("dense", 512, 1.0, 10), row("dense", 1024, None, None, 400), row("flash", 512, 0.5, 5)]
    time, memory = plots.three_choices(rows, memory_bytes=100).axes
    assert [line.get_label() for line in time.lines] == ["dense", "flash"]
    assert list(time.lines[0].get_xdata()) == [512]
    (cross,) = (line for line in memory.lines if line.get_marker() == "x")
    assert (list(cross.get_xdata()), list(cross.get_ydata())) == ([1024], [400])


def test_first_wins_are_from_the_shortest_length_after_the_last_that_was_lost():
    ms = {  # length → ours, dense A, dense B, another
        128: (3, 4, 2, 9),
        256: (1, 2, 2, 9),
        512: (1, 2, 4, 1),
        1024: (1, 2, 4, 2),
    }
    names = ("sparse_attention", "A", "B", "other")
    rows = [
        {"pattern": "p", "length": length, "name": name, "median_ms": one, "call_ms": 5 - one}
        for length, times in ms.items()
        for name, one in zip(names, times, strict=True)
    ]
    calls, gpu = plots.first_wins(rows, ["A", "B"])
    assert gpu == {
        "pattern": "p",
        "time": "the GPU's part",
        "faster than dense from": 256,
        "faster than all others from": 1024,
    }
    assert calls["faster than dense from"] == calls["faster than all others from"] == "never"


def test_tree_times_take_the_faster_of_two_ways_with_one_name():
    case = {"context": 0, "tokens": 32, "density": 0.25}
    times = {"sparse_attention": 2.0, "bools": 4.0, "numbers": 3.0}
    rows = [case | {"name": name, "median_ms": ms, "call_ms": 2 * ms} for name, ms in times.items()]
    names = {"sparse_attention": "ours", "bools": "SDPA", "numbers": "SDPA", "flex": "Flex"}
    (line,) = plots.tree_times(rows, names)
    assert (line["tree"], line["density"], line["ours, GPU"], line["SDPA, GPU"]) == (32, "25%", 2000, 3000)
    assert (line["SDPA, call"], line["Flex, GPU"]) == (6000, "-")


def test_dots_have_the_colour_of_their_way_and_a_scale_that_begins_at_0_unless_it_is_logarithmic():
    rows = {"a": {"ours": 2.0, "dense cuDNN": 40.0}, "b & c": {"ours": 3.0}}
    (log,) = plots.dots({"": rows}, "ms").axes
    assert [line.get_color() for line in log.lines] == [look.OURS, look.CUDNN]
    assert [list(line.get_xdata()) for line in log.lines] == [[2.0, 3.0], [40.0]]
    assert [label.get_text() for label in log.get_yticklabels()] == ["a", "b\n& c"]
    assert log.get_xscale() == "log"
    left, right = plots.dots({"one": rows, "two": rows}, "%", log=False, mark=100).axes
    assert (left.get_title("left"), right.get_title("left")) == ("one", "two")
    assert left.get_xlim()[0] == 0 and 100 in left.lines[-1].get_xdata()


def test_the_figures_below_a_panel_of_less_than_a_decade_are_few():
    rows = {"a": {"ours": 0.12, "dense FLASH": 0.86}}
    figure = plots.dots({"one": rows, "two": rows}, "ms")
    figure.canvas.draw()
    for ax in figure.axes:
        low, high = ax.get_xlim()
        assert [f"{tick:g}" for tick in ax.get_xticks() if low <= tick <= high] == ["0.2", "0.5"]


def test_blocks_are_named_beside_their_mask():
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0], [1, 0, 1, 1], [1, 0, 1, 1]], dtype=torch.bool)
    left, right = plots.mask_and_blocks(mask, torch.tensor([[2, 0], [1, 2]])).axes
    assert texts(right) == ["full", "", "partial", "full"]
    assert left.images[0].get_array().sum() == mask.sum()


def test_pieces_of_work_end_at_the_longest():
    before, after = plots.pieces_of_work({"whole": [8, 2, 2], "split": [4, 4, 2, 2]}).axes
    assert [list(ax.lines[0].get_xdata())[0] for ax in (before, after)] == [8, 4]
    assert sum(bar.get_width() for bar in before.patches) == sum(bar.get_width() for bar in after.patches) == 12


def test_recall_marks_two_layers_larger():
    row = {"name": "window 8", "keys_per_question": 8, "accuracy": 0.5}
    (ax,) = plots.recall([row | {"layers": 1}, row | {"layers": 2}], guessing=25).axes
    small, large = ax.collections[0].get_sizes()
    assert large == 2 * small and ax.lines[0].get_ydata()[0] == 25


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (plots.grid_to_thread, "warp: 32 threads"),
        (plots.path_taken, "never run:\nnothing is known"),
        (plots.race, "here a second barrier is missing"),
        (plots.two_barriers, "threads 0 to 99 wait at this barrier"),
        (plots.way_through_the_caches, "not in L2:\nHBM bytes"),
        (plots.where_kernels_run, "tensors on cuda"),
    ],
)
def test_a_drawing_says_what_it_is_about(draw, words):
    assert words in texts(draw())


def test_a_piece_in_registers_is_counted():
    assert "16 multiply-adds\nfor 8 words read:\n0.5 words for each." in texts(plots.product_piece(4))[-1]


def test_what_lies_past_the_end_is_where_it_lies():
    ax = plots.past_the_end(elements=1000, threads=1024)
    assert "a, b or c" in texts(ax) and "what 1,024 threads read of a and b, and write to c" in texts(ax)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["3,744", "4,000", "4,096"]


def test_half_of_the_bytes_under_way_is_half_as_fast():
    whole, half = plots.under_way(latency_ns=500, rate=2e12).patches
    assert (whole.get_width(), whole.get_height(), half.get_height()) == (500, 2000, 1000)


def test_a_warp_that_agrees_goes_one_way():
    ax = plots.ways_of_a_warp([1, 32])
    assert texts(ax) == ["one way", "the other", "one way", "the other: skipped"]


def test_one_query_has_a_weight_for_each_key():
    panels = plots.one_query(tokens=8).axes
    assert sum(patch.get_width() for patch in panels[3].patches) == pytest.approx(1)


def test_the_way_of_a_transpose_is_drawn_for_both_kernels():
    titles = [ax.get_title() for ax in plots.way_of_a_transpose().axes]
    assert titles.count("in: 4 sectors") == 2 and "out: 32 sectors" in titles


def test_a_warp_of_scores_reads_one_query_and_as_many_keys_as_it_has_threads():
    ax = plots.warp_of_scores(length=80, tile=32)
    warp, keys = (
        [patch for patch in ax.patches if patch.get_width() == 32 and patch.get_height() == height]
        for height in (1.5, 10)
    )
    assert len(warp) == len(keys) == 1
    assert warp[0].get_x() == keys[0].get_x()


def test_the_turned_corner_writes_a_row_and_reads_a_column_in_different_banks():
    figure = plots.corner_turning(lanes=8)
    for ax in figure.axes:
        marked = [matplotlib.colors.to_hex(patch.get_facecolor()) == look.ORANGE for patch in ax.patches]
        banks = [text for text, chosen in zip(texts(ax), marked, strict=True) if chosen]
        assert sorted(banks) == list("01234567")


def test_all_lanes_are_added_up_into_lane_0():
    ax = plots.added_by_shuffles(lanes=32)
    blue = [line.get_xdata() for line in ax.lines if matplotlib.colors.to_hex(line.get_color()) == look.BLUE]
    assert len(blue) == 2 * (16 + 8 + 4 + 2 + 1)
    assert texts(ax) == ["⊕ 16", "⊕ 8", "⊕ 4", "⊕ 2", "⊕ 1"]


def test_three_counts_write_each_figure_and_name_each_count_once():
    reads = {"scores": {"requested": 268.4, "footprint": 4.19, "HBM": 4.2}}
    figure = plots.three_counts({"read": reads, "written": reads})
    assert [texts(ax) for ax in figure.axes] == [["268", "4.19", "4.2"]] * 2
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["requested", "footprint", "HBM"]


def test_score_squares_have_sides_in_proportion_to_the_length():
    ax = plots.score_squares({4096: 67.1, 8192: 268.4})
    small, large = (patch.get_width() for patch in ax.patches)
    assert large == 2 * small
    assert texts(ax)[::2] == ["67 MB", "268 MB"]


def test_the_room_of_sequences_has_a_place_for_each_row_and_a_frame_for_each_page():
    figure = plots.room_of_sequences({"reserved": [("a", [[0, 0, None]])], "pages": [("a", [[0], [0, -1]])]})
    left, right = figure.axes
    assert [len(ax.patches) for ax in (left, right)] == [1 + 3, 2 + 3]
    assert [bool(patch.get_hatch()) for patch in right.patches].count(True) == 1


def test_each_entry_of_a_table_has_an_arrow_to_its_page_and_a_shared_page_the_colours_of_both():
    ax = plots.table_and_pages([[0, 2], [2]], pages=4)
    assert [text.xy[0] - 0.46 for text in ax.texts if getattr(text, "arrow_patch", None)] == [0, 2, 2]
    below = [(patch.get_x(), matplotlib.colors.to_hex(patch.get_facecolor())) for patch in ax.patches[3:]]
    first, second = (matplotlib.colors.to_hex(patch.get_facecolor()) for patch in (ax.patches[0], ax.patches[2]))
    assert below == [(0, first), (1, look.PALE), (2, first), (2, second), (3, look.PALE)] and first != second
    upper, lower = ax.patches[5], ax.patches[6]
    assert lower.get_y() == 0 and upper.get_y() == lower.get_height() == upper.get_height()


def test_pieces_have_the_colour_of_their_sequence_and_a_line_at_the_longest():
    (ax,) = plots.pieces_of_sequences({"pieces": [(0, 4), (0, 2), (1, 3)]}, "keys").axes
    first, second, third = (patch.get_facecolor() for patch in ax.patches)
    assert first == second != third and ax.lines[0].get_xdata()[0] == 4


def test_a_tree_has_a_line_to_each_parent_and_its_mask_a_square_for_each_pair():
    seen = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool)
    tree, mask = plots.tree_and_mask([-1, 0, 0], seen, ["a", "b", "c"]).axes
    assert texts(tree) == ["0: a", "1: b", "2: c"] and len(tree.lines) == 2 and len(mask.patches) == 9


def test_steps_sweeps_and_lengths_have_a_panel_for_each_title():
    assert len(plots.over_steps({"x": {"a": [1, 2]}, "y": {"a": [2, 1]}}).axes) == 2
    (ax,) = plots.sweeps({"x": {1: 5.0, 4: 9.0}}, {"x": 4}, "splits", "%").axes
    assert (float(ax.lines[1].get_xdata()[0]), float(ax.lines[1].get_ydata()[0])) == (4, 9)
    (ax,) = plots.lines_by_length({"x": {"ours": {1024: 2.0}, "floor": {1024: 1.0}}}, "ms").axes
    assert [line.get_linestyle() for line in ax.lines] == ["-", "--"]
