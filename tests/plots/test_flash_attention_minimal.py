"""The pictures of chapter 02 have the figures that its cells printed before they drew."""

import matplotlib.colors
import matplotlib.pyplot as plt
import pytest
import torch

from course_utils import plots
from course_utils.checks import ErrorReport


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def texts(ax):
    return [text.get_text().strip() for text in ax.texts]


def filled(ax, colour):
    return [patch for patch in ax.patches if matplotlib.colors.same_color(patch.get_facecolor()[:3], colour)]


def test_standard_attention_moves_65_times_the_least():
    assert texts(plots.standard_and_least()) == ["272.6 MB", "4.2 MB"]


def test_what_fa1_saves_at_a_quarter_a_half_and_all_of_200_kib():
    assert texts(plots.fa1_savings()) == ["2.0", "3.9", "7.1", "1.0", "2.0", "3.9"]


def test_rows_of_a_query_tile_mark_where_shared_memory_ends():
    ax = plots.rows_of_a_query_tile({"48 KiB": 48 << 10, "99 KiB": 99 << 10, "227 KiB": 227 << 10})
    where = [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == "--"]
    assert [int(at) // 32 * 32 for at in where] == [32, 128, 384]


def test_causal_tiles_count_those_computed_and_those_masked():
    panels = plots.causal_tiles((64, 256, 1024, 4096)).axes
    assert [ax.get_xlabel() for ax in panels] == [
        "1 of 1 computed\n(100%), 1 masked",
        "10 of 16 computed\n(62%), 4 masked",
        "136 of 256 computed\n(53%), 16 masked",
        "2,080 of 4,096 computed\n(51%), 64 masked",
    ]


def test_shared_memory_feeds_an_eighth_of_the_peak_with_one_score_and_all_with_8_by_8():
    ax = plots.fed_by_shared_memory([(1, 1), (2, 2), (4, 4), (8, 4), (8, 8)])
    assert texts(ax) == ["12.5 %", "25.0 %", "50.0 %", "66.7 %", "100.0 %"]


def test_a_register_piece_has_a_cell_for_each_multiply_add_and_each_number_read():
    ax = plots.register_piece(rows=4, columns=3)
    assert (len(ax.patches), len(filled(ax, plots.ORANGE))) == (4 * 3 + 4 + 3, 12)
    assert "does 12 multiply-adds" in texts(ax)


def test_blocks_fill_no_more_multiprocessors_than_there_are():
    few, many = plots.blocks_at_work({"FA1": 12, "FA2": 768}, multiprocessors=132).axes
    assert len(filled(few, plots.VERMILION)) == 12 and len(filled(many, plots.BLUE)) == 132
    assert few.get_title("left") == "FA1: 12 blocks, 9% at work"


def test_relative_speeds_are_their_time_over_ours():
    rows = [
        {"name": name, "length": length, "pass": which, "median_ms": ms}
        for (name, which, ms) in (("ours", "forward", 2.0), ("torch", "forward", 3.0), ("torch", "backward", 9.0))
        for length in (64, 32)
    ]
    ax = plots.relative_speeds(rows, "ours", {"torch": "PyTorch"})
    assert texts(ax) == ["1.50", "1.50"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["L = 32", "L = 64"]


def test_requested_bytes_end_at_the_formula_where_both_agree():
    sizes = {"B_r": 64, "B_c": 64, "length": 256, "is_causal": False}
    counts = {"read": 3e6, "written": 1e6, "read, by formula": 3e6, "written, by formula": 1e6}
    ax = plots.requested_bytes([{"order": order} | sizes | counts for order in ("FA1", "FA2")])
    tops = {patch.get_y() + patch.get_height() for patch in ax.patches}
    assert max(tops) == 4 and [line.get_ydata()[0] for line in ax.lines] == [4, 4]


def test_an_error_above_what_is_allowed_lies_right_of_the_line():
    reports = [ErrorReport("out", 1e-6, None, 1e-5, ""), ErrorReport("out", 2e-5, None, 1e-5, "too large")]
    shares = sorted(plots.errors(reports).lines[0].get_xdata())
    assert shares == pytest.approx([0.1, 2])


def test_what_shows_a_mistake_is_coloured_and_silence_is_not():
    ax = plots.what_shows_it(
        [{"kernel": "a", "numbers": "O", "tool": "silent"}, {"kernel": "b", "numbers": "-", "tool": 2}]
    )
    assert [patch.get_facecolor()[3] > 0 for patch in ax.patches] == [True, False, False, True]
    assert texts(ax) == ["O", "silent", "right", "2"]


def test_the_weights_grow_to_hundreds_of_gigabytes_and_the_log_sum_exp_does_not():
    said = texts(plots.stored_for_backward(16, 12, (1024, 4096, 16384)))
    assert said == ["0.8 GB", "12.9 GB", "206.2 GB", "0.8 MB", "3.1 MB", "12.6 MB"]


def test_products_are_counted_against_the_two_of_the_forward_pass():
    counted = [text for text in texts(plots.products()) if "products" in text]
    assert counted == [f"{n} products, {n / 2} × forward" for n in (2, 5, 7)]


def test_the_gradients_of_a_row_of_scores_add_up_to_nothing():
    generator = torch.Generator().manual_seed(0)
    P = torch.softmax(torch.randn(4, 6, generator=generator, dtype=torch.float64), dim=1)
    sums = plots.score_gradients(P, torch.randn(4, 6, generator=generator, dtype=torch.float64)).axes[3]
    assert [bar.get_width() for bar in sums.patches] == pytest.approx([0] * 4, abs=1e-12)


def test_gradient_errors_are_shares_of_the_largest_entry():
    right = [torch.tensor([1.0, 4.0])] * 3
    ax = plots.gradient_errors({"ours": [right[0], right[0] + 1, right[0] * 2]}, right)
    assert [bar.get_height() for bar in ax.patches] == pytest.approx([2e-17, 0.25, 1])


def test_the_two_walks_mark_a_column_and_a_row_of_tiles():
    by_key, by_query = plots.backward_walks(query_tiles=4, key_tiles=5, i=1, j=2).axes
    assert [len(filled(ax, plots.SKY)) for ax in (by_key, by_query)] == [3, 4]
