"""What chapter 01's cells call: the figures that its pictures and guesses show in place of printed ones."""

import math

import pytest
import torch
from matplotlib.colors import to_hex

from course_utils.chapters.attention_basics import costs as counts
from course_utils.chapters.attention_basics import mistakes, nursery_rhyme, passes, vectors
from course_utils.emulator import profile
from course_utils.plots import look
from course_utils.widgets.heatmap import scores_and_weights


def written(figure):
    return [text.get_text().strip() for ax in figure.axes for text in ax.texts]


def test_it_looks_at_the_cat_and_a_little_at_the_milk():
    words, query, key, value = vectors.sentence()
    _, weights = scores_and_weights(query, key, scale=query.shape[1] ** -0.5, is_causal=False)
    row = [round(weight, 2) for weight in (weights @ value)[words.index("it")].tolist()]
    assert row == [0.04, 0.61, 0.04, 0.04, 0.09, 0.04, 0.04, 0.04, 0.04]


OTHER_SIZES = pytest.mark.exhaustive("another d: `make test` has one here, and the curves of all below")


@pytest.mark.parametrize("head_dim", [64, *(pytest.param(d, marks=OTHER_SIZES) for d in (16, 256, 1024))])
def test_the_variance_of_a_dot_product_is_d(head_dim):
    assert vectors.products(head_dim).var().item() == pytest.approx(head_dim, rel=0.05)


def test_divided_by_the_root_of_d_all_curves_are_as_wide(drawn):
    vectors.show_products()
    plain, scaled = drawn[0].axes

    def heights(ax):
        return [line.get_ydata().max() for line in ax.lines]

    assert heights(plain)[0] / heights(plain)[-1] == pytest.approx(8, rel=0.2)  # √(1024 / 16)
    assert heights(scaled) == pytest.approx([1 / math.sqrt(2 * math.pi)] * 4, rel=0.15)  # few components: a higher peak


@pytest.mark.parametrize(("power", "largest", "slope"), [(0.0, (0.9, 1), (0, 0.1)), (0.5, (0, 0.1), (0.9, 1))])
def test_without_the_factor_a_row_is_saturated(power, largest, slope):
    found = vectors.saturated(2048, power)
    for value, (low, high) in zip(found, (largest, slope), strict=True):
        assert low < value < high


def test_exp_overflows_above_these_scores(drawn):
    highest = {name: round(high, 1) for name, (_, high) in vectors.exponents().items()}
    assert highest == {"fp16": 11.1, "bf16": 88.7, "fp32": 88.7}
    low, high = vectors.exponents()["fp32"]
    assert torch.tensor([low + 1, high - 0.1]).exp().isfinite().all()
    assert (
        torch.tensor(low + 1).exp() > 0 and torch.tensor(low - 1).exp() == 0 and torch.tensor(high + 0.1).exp().isinf()
    )
    vectors.show_exponents(torch.tensor([[0.0, 50, 100]]))
    assert [label.get_text() for label in drawn[0].axes[0].get_yticklabels()][-1] == "0, 50, 100"


def test_sectors_are_those_that_hold_the_addresses():
    one, side_by_side, rows_apart = [28] * 32, [4 * lane for lane in range(32)], [256 * lane for lane in range(32)]
    assert [counts.sectors(addresses) for addresses in (one, side_by_side, rows_apart)] == [1, 4, 32]


def test_the_busy_line_of_the_first_kernel_asks_for_16_and_a_half_sectors_a_request():
    with profile() as counters:
        passes.scores_with(passes.kernel("scores_uncoalesced"), *(passes.random(1, 1, 64, 64, seed=n) for n in (1, 2)))
    (busy,) = counters.select("global", "load")
    assert (busy.line, busy.sectors / busy.requests) == (26, (1 + 32) / 2)


def test_the_three_ways_give_the_scores_of_torch_and_ask_so_much_of_memory(drawn):
    query, key = (passes.random(1, 2, 50, 64, seed=seed) for seed in (1, 2))
    for way in counts.WAYS:
        torch.testing.assert_close(counts.scores_of(way, query, key), query @ key.mT / 8, atol=1e-4, rtol=1e-4)
    counts.show_loads()
    shown = ["16,384", "16,384", "512", "270,336", "40,960", "2,048", "16.5", "2.5", "4"]
    assert written(drawn[0]) == shown


def test_score_bytes_are_those_that_the_guess_is_compared_with(drawn):
    expected = {2048: (0.008, 0.54, 0.067), 8192: (0.134, 8.59, 0.268)}
    expected |= {32_768: (2.147, 137.44, 1.074), 131_072: (34.36, 2199.02, 4.295)}
    for length, row in expected.items():
        assert list(counts.score_bytes(length).values()) == pytest.approx(row, abs=0.005)
    assert counts.show_score_bytes() == pytest.approx(34.36, abs=0.005)
    lines = [line.get_ydata() for line in drawn[0].axes[0].lines]
    for n in range(3):
        assert list(lines[n]) == pytest.approx([row[n] for row in expected.values()], abs=0.005)


def test_the_traffic_is_33_times_the_least(capsys):
    assert counts.show_traffic() == pytest.approx(1 + 2048 / 64)
    assert capsys.readouterr().out.splitlines() == [
        "S = scale · Q Kᵀ   reads  0.20 GB, writes  3.22 GB",
        "P = softmax(S)     reads  3.22 GB, writes  3.22 GB",
        "O = P V            reads  3.32 GB, writes  0.10 GB",
        "together 13.29 GB; the least is 0.40 GB",
        "ratio 33.0 = 1 + L / d = 33.0",
    ]


def test_each_time_is_above_its_floor_and_both_are_drawn(drawn):
    timings, speeds = counts.timings(), counts.ceilings()
    rows = counts.rates(timings, speeds).values()
    assert all(row["floor, ms"] < row["ms"] for row in rows)
    counts.show_floors(timings, speeds)
    heights = [bar.get_height() for bar in drawn[0].axes[0].patches]
    assert heights == pytest.approx([row["floor, ms"] for row in rows] + [row["ms"] for row in rows])


def test_reads_at_hbm_are_the_footprint():
    for row in counts.counts_at(2048)["read"].values():
        assert row["HBM"] == pytest.approx(row["footprint"], rel=0.01)
        assert row["requested"] > row["footprint"]


@pytest.mark.usefixtures("drawn")
def test_hbm_delivers_the_footprint():
    assert counts.show_counts() == "the footprint"


def test_a_finding_comes_with_right_numbers_or_with_wrong_ones(monkeypatch):
    shown = []
    monkeypatch.setattr(mistakes, "display", shown.append)
    assert mistakes.show_finding("ragged_tail") == "right"
    assert mistakes.show_finding("missing_sync_in_reduction") == "wrong"
    assert [len(report.findings) for report in shown] == [1, 2]


VERDICTS = {
    "off by one": ["passes", "fails", "passes"],
    "wrong stride": ["passes", "passes", "fails"],
    "right": ["passes"] * 3,
    "zeros": ["passes", "fails", "fails"],
}
ALL_OPERATORS = pytest.mark.exhaustive("two more mistakes in the picture, which chapter 01 draws in `make test`")


@pytest.mark.parametrize("names", [("right", "zeros"), pytest.param(tuple(VERDICTS), marks=ALL_OPERATORS)])
def test_each_test_passes_and_fails_whom_the_chapter_says(drawn, monkeypatch, names):
    operators = {name: operator for name, operator in mistakes.operators().items() if name in names}
    monkeypatch.setattr(mistakes, "operators", lambda: operators)
    mistakes.show_tests()
    (ax,) = drawn[0].axes
    assert [label.get_text() for label in ax.get_yticklabels()] == list(names)
    assert written(drawn[0]) == [word for name in names for word in VERDICTS[name]]
    right = [word == ("passes" if name == "right" else "fails") for name in names for word in VERDICTS[name]]
    assert [to_hex(patch.get_facecolor()) == look.PASS for patch in ax.patches] == right


def test_each_tool_sees_a_mistake_of_its_own(drawn):
    mistakes.show_tools()
    words = written(drawn[0])
    assert words[:4] == ["sees nothing", "memcheck", "memcheck", "1.0 × ideal sectors"]
    assert words[4:8] == ["wrong numbers", "racecheck", "racecheck", "1.0 × ideal sectors"]
    assert words[8:] == ["sees nothing"] * 3 + ["4.1 × ideal sectors"]


@pytest.mark.parametrize("is_causal", [True, False])
def test_a_letter_looks_at_later_ones_only_without_the_mask(is_causal):
    torch.manual_seed(0)
    weights = nursery_rhyme.looks_at(nursery_rhyme.TinyModel(is_causal), "twinkle")
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(7))
    assert bool(weights.triu(1).any()) != is_causal


def test_training_is_the_same_each_time_and_learns():
    (_, first), (_, second) = (nursery_rhyme.train(True, steps=5) for _ in range(2))
    assert first == second and first[-1] < first[0]
