"""What chapter 07 says of 8 bits: times and errors as recorded, the loss of one long sum, and counted clocks."""

import re

from course_utils import measured
from course_utils.chapters.hopper import eight_bits
from course_utils.measured.hopper import OURS, OURS_E4M3


def row(**where):
    (only,) = measured.load("07_hopper").select(part="8 bits", **where)
    return only


def test_the_gain_is_that_of_the_times():
    where = {"head_dim": 128, "is_causal": True, "length": 4096}
    ratio = row(name=OURS, **where)["median_ms"] / row(name=OURS_E4M3, **where)["median_ms"]
    assert abs(eight_bits.gain(128, True, 4096) / ratio - 1) < 0.02  # the median of ratios, not the ratio of medians


def test_speeds_are_drawn_and_the_error_is_said(drawn, capsys):
    eight_bits.speeds()
    assert [ax.get_title() or ax.get_title(loc="left") for ax in drawn[0].axes][2] == "d = 128"
    assert [line.get_label() for line in drawn[0].axes[0].lines] == ["16 bits", "E4M3"]
    said = re.search(r"random inputs: 16 bits (\S+) %, E4M3 (\S+) %", capsys.readouterr().out)
    recorded = [100 * row(name=name, head_dim=128, is_causal=False, length=16384)["error"] for name in eight_bits.BITS]
    assert [float(one) for one in said.groups()] == [float(f"{error:.2g}") for error in recorded]


def test_one_long_sum_loses_more_with_each_length_and_a_sum_for_each_tile_does_not(drawn):
    worst = eight_bits.error_by_length()
    lines = {line.get_label(): list(line.get_ydata()) for line in drawn[0].axes[0].lines}
    long, tiles, exact = (lines[name] for name in eight_bits.SUMS.values())
    assert worst == long[-1] > 50 and long == sorted(long)
    assert all(tile < 1.1 * right for tile, right in zip(tiles, exact, strict=True))


def test_the_emulator_shows_the_loss_too(capsys):
    eight_bits.error_here(512)
    found = {
        name: float(error) for name, error in re.findall(r"L = 512, (.*?) +error (\S+) %", capsys.readouterr().out)
    }
    assert found["one sum for all keys"] > 1.1 * found["a sum for each tile"]


def test_clocks_are_counted_from_the_rates_of_a_multiprocessor(drawn):
    assert eight_bits.clocks(128) == {"products, 16 bits": 125, "products, E4M3": 62.5, "exponentials": 62.5}
    assert eight_bits.clocks(64)["products, E4M3"] == eight_bits.clocks(64)["exponentials"] / 2
    eight_bits.show_clocks()
    assert len(drawn[0].axes) == 2
