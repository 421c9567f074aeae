"""What chapter 04's cells call: what a launch loads, what is useful of it, and pictures of the recorded times."""

import math
import re

import pytest
import torch

from course_utils import costs, measured, patterns, show
from course_utils.chapters.sparse_patterns import masks, runs, times
from course_utils.cuda import read_kernel
from course_utils.emulator import sanitize
from course_utils.measured.sparse_patterns import DENSE, HEADS
from course_utils.plots.sparse_patterns import FULL, NOT_LOADED, PARTLY


@pytest.fixture(autouse=True)
def tables(monkeypatch):
    """The plain text of the tables that are shown, and whether they are folded."""
    found = []
    monkeypatch.setattr(show, "display", lambda data, raw: found.append((data["text/plain"], data["text/html"])))
    return found


def points(ax) -> set[float]:
    return {float(x) for line in ax.lines for x in line.get_xdata()}


def test_a_window_that_only_masks_loads_all_tiles_and_one_that_skips_those_of_its_band(drawn, tables, capsys):
    assert runs.masked_or_skipped(patterns.sliding_window(64)) == 15
    ((text, html),) = tables
    lines = [line.split() for line in text.splitlines()[2:]]
    assert [line[-2:] for line in lines] == [["64", "1,088"], ["15", "304"]]
    assert html.startswith("<details>") and capsys.readouterr().out == "the same output: True\n"
    colours = [[patch.get_facecolor() for patch in ax.patches] for ax in drawn[0].axes]
    assert [len(set(one)) for one in colours] == [2, 2] and [len(one) for one in colours] == [64, 64]
    assert [ax.get_title("left") for ax in drawn[0].axes] == ["only masked: 64 tiles", "tiles skipped: 15 tiles"]


def test_the_states_of_tiles_are_those_of_a_loop():
    pattern = patterns.local(64) | patterns.global_tokens([7])
    mask, found = pattern.mask(320), masks.states(pattern, 320)
    for row in range(5):
        for column in range(5):
            tile = mask[64 * row : 64 * row + 64, 64 * column : 64 * column + 64]
            expected = FULL if tile.all() else PARTLY if tile.any() else NOT_LOADED
            assert found[row, column] == expected
    assert masks.visited(pattern, 320) == len(pattern.block_lists(320).indices) == 19


def test_blocks_of_16_use_a_quarter_of_their_tiles():
    of_all, of_visited = masks.useful(patterns.block_diagonal(16))
    assert (of_all, of_visited) == (64 / 16384, 0.25)


def test_the_picture_of_what_is_useful_has_a_dot_for_each_pattern(drawn):
    masks.show_useful()
    shares = {100 * masks.useful(pattern)[1] for pattern in masks.EDGES}
    assert points(drawn[0].axes[0]) == {*shares, 100}  # and the line at 100


def test_gathering_reads_each_key_for_each_pair():
    gathered, blocks = runs.gather_or_blocks()
    assert gathered["bytes per pair kept"] == 2 * 2 * runs.D and gathered["right"] and blocks["right"]
    assert blocks["KiB of K and V read"] == 1024  # every tile of 8 rows of 8


def test_reach_counts_layers_as_a_walk_does():
    pattern, seen = patterns.streaming(4, 13), torch.zeros(256, dtype=torch.bool)
    seen[-1] = True
    for layers in range(1, 5):
        seen = pattern.mask(256)[seen].any(0)
        assert masks.reached(pattern, layers) == pytest.approx(seen.float().mean().item())


def test_every_pattern_has_a_dot_in_the_colour_of_its_kernel(drawn):
    masks.show_complexity()
    (ax,) = drawn[0].axes
    by_kernel = {line.get_label(): len(line.get_xdata()) for line in ax.lines}
    assert sum(by_kernel.values()) == len(masks.COMPLEXITY) and by_kernel["dense, on a view"] == 1
    assert 100 * patterns.causal().density(masks.L_OF_ALL) in points(ax)


# ---- recorded times


def peers(length):
    return measured.load("04_sparse_patterns").select(part="peers", length=length)


def test_the_first_picture_has_ours_and_the_fastest_of_the_others(drawn, tables):
    times.first_figures()
    (ax,) = drawn[0].axes
    for row in (row for row in peers(131072) if row["name"] == "sparse_attention"):
        same = [other for other in peers(131072) if other["pattern"] == row["pattern"]]
        others = [other["median_ms"] for other in same if other["name"] not in ("sparse_attention", *DENSE)]
        assert row["median_ms"] in points(ax)
        best = times.best_other(row["pattern"], 131072)["median_ms"]
        assert best <= min(others) and best in points(ax)


def test_one_pattern_has_a_line_for_each_length_and_several_a_panel(drawn):
    times.show_peers("dilated")
    times.show_peers("sliding_window", "streaming")
    one, several = drawn
    assert [text.get_text() for text in one.axes[0].get_yticklabels()] == [
        times.kilo(length) for length in (4096, 16384, 131072)
    ]
    assert [ax.get_title("left") for ax in several.axes] == [times.kilo(length) for length in (4096, 16384, 131072)]


def test_the_speeds_are_ratios_to_the_fastest_other_way(tables):
    times.show_speeds()
    ((text, _),) = tables
    lines = text.splitlines()[2:]
    assert len(lines) == 6
    dilated, bigbird = (next(line for line in lines if name in line) for name in ("dilated", "bigbird"))
    assert len(re.findall(r"\d\.\d\d", dilated)) == 3  # it has no backward rows
    (row,) = measured.load("04_sparse_patterns").select(
        part="backward", name="sparse_attention", pattern=patterns.bigbird(64).name, length=65536
    )
    assert bigbird.endswith(f"{row['ratio_to_best']:.2f}")


def test_as_many_squares_are_filled_as_blocks_run(drawn):
    times.show_idle()
    count = next(r["count"] for r in measured.load("00_start_here").rows if r["name"] == "streaming multiprocessors")
    for ax, length in zip(drawn[0].axes, (128, 512, 1024, 4096), strict=True):
        filled = [patch for patch in ax.patches if patch.get_facecolor()[3]]
        assert len(ax.patches) == count
        assert len(filled) == min(count, HEADS * costs.ceil_div(length, 128))


def test_the_largest_tree_is_where_ours_takes_less_of_the_gpus_time(drawn, capsys):
    largest = times.show_trees()
    said = re.search(r"context 4096, GPU : ours is faster than SDPA for trees of (.*)", capsys.readouterr().out)[1]
    assert str(largest) == said.split(", ")[-1] and largest in times.tree_sizes()
    assert len(drawn[0].axes) == 2


@pytest.mark.parametrize("draw", [masks.show_sorted, times.show_csr])
def test_what_a_cell_shows_is_one_picture_with_its_figures_folded(draw, drawn, tables):
    draw()
    assert len(drawn) == 1 and all(html.startswith("<details>") for _, html in tables)


def test_the_backward_pass_has_a_row_for_each_pattern_and_length_and_says_their_mean(drawn, tables, capsys):
    times.show_backward()
    rows = measured.load("04_sparse_patterns").select(part="backward")
    lengths, shown = sorted({row["length"] for row in rows}), {masks.short(row["pattern"]) for row in rows}
    assert [ax.get_title("left") for ax in drawn[0].axes] == [times.kilo(length) for length in lengths]
    assert {label.get_text().replace("\n", " ") for label in drawn[0].axes[0].get_yticklabels()} == shown
    window = [row for row in rows if (row["pattern"], row["length"]) == ("sliding_window(window=4096)", lengths[0])]
    assert {row["median_ms"] for row in window} <= points(drawn[0].axes[0])
    ratios = [row["ratio_to_flex"] for row in rows if row["name"] == "sparse_attention"]
    ((text, _),) = tables
    assert len(text.splitlines()) == 2 + len(ratios) == 2 + len(lengths) * len(shown)
    mean = math.prod(ratios) ** (1 / len(ratios))
    assert capsys.readouterr().out.endswith(f"{max(ratios):.2f} times Flex, geometric mean {mean:.2f}\n")


def test_the_record_is_as_fast_beside_flex_attention_as_was_agreed():
    found = measured.load("04_sparse_patterns")
    backward = {
        (row["pattern"].partition("(")[0], row["length"]): row["ratio_to_flex"]
        for row in found.select(part="backward", name="sparse_attention")
    }
    assert math.prod(backward.values()) ** (1 / len(backward)) >= 0.85
    assert min(backward.values()) >= 0.75 and backward["bigbird", 16384] >= 0.95
    for row in found.select(part="peers", name="sparse_attention", length=4096):
        if row["pattern"].startswith(("block_diagonal", "bigbird")):
            assert row["ratio_to_flex"] >= 1, row["pattern"]


def test_growth_is_the_ratio_of_two_recorded_times():
    found = measured.load("04_sparse_patterns").select(part="scaling", pattern="strided(√L)", name="sparse_attention")
    ms = {row["length"]: row["median_ms"] for row in found}
    assert times.growth("strided(√L)", 32768, 131072) == pytest.approx(ms[131072] / ms[32768])


@pytest.mark.parametrize(
    ("end", "rows"),
    [
        ("end = item.z * TILES,", "no row"),
        ("end = (item.z + 1) * TILES,", "the last row"),
        ("end = (item.z + 10) * TILES,", "every row"),
    ],
)
def test_rows_that_read_outside_of_their_lists_are_named(end, rows):
    source = read_kernel("04_sparse_patterns/block_sparse.cu").replace("end = item.z * TILES,", end)
    pattern, tensors = patterns.local(20) | patterns.global_tokens([7]), [torch.zeros(1, 1, 200, 64).half()] * 3
    with sanitize() as report:
        runs.run_blocks(source, pattern, tensors)
    assert runs.rows_named(report, pattern, 200) == rows
