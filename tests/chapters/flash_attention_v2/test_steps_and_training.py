"""What chapter 03's cells call: counted figures, the growing ladder, and what a guess is compared with."""

import pytest

from course_utils import measured
from course_utils.chapters.flash_attention_v2 import peers, steps, training
from course_utils.launches.ladder import LADDER

COUNTED = ("requests", "wavefronts", "bank conflicts", "shared KiB", "global KiB", "barriers per tile")


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("1", (18752, 19712, 0, 4384.0, 193.0, 2)),
        ("2", (4160, 92416, 78848, 1696.0, 321.0, 2)),
        ("3b", (4160, 13568, 0, 1696.0, 321.0, 2)),
        ("4", (4160, 13568, 0, 1696.0, 321.0, 1)),
        ("5", (2880, 11520, 0, 1440.0, 321.0, 1)),
    ],
)
def test_steps_ask_of_memory_what_the_guesses_of_steps_2_4_and_5_are_about(step, expected):
    row = steps.counted(next(one for one in LADDER if one.number == step))
    assert tuple(row[name] for name in COUNTED) == expected


def test_step_2_makes_so_many_times_fewer_requests():
    assert steps.requests_saved("2") == pytest.approx(18752 / 4160)


def test_a_second_buffer_asks_for_the_same_and_registers_for_fewer():
    assert [steps.more_or_fewer(number) for number in ("4", "5")] == ["the same", "fewer"]


@pytest.mark.parametrize("number", ["", "1", "4", "7"])
def test_the_ladder_shows_the_figures_of_the_steps_so_far_alone(number, drawn):
    steps.climb(number)
    (ax,) = drawn[0].axes
    numbers = [step.number for step in LADDER]
    reached = numbers.index(number) + 1 if number else 0
    assert len(ax.patches) == len(LADDER) and [bar.get_fill() for bar in ax.patches].count(True) >= reached
    shown = {text.get_text() for text in ax.texts}
    figures = [f"{steps.speed(step.title):.0f}" for step in LADDER]
    assert [figure for figure in figures if figure in shown] == figures[:reached]
    assert ("you are here" in shown) == bool(reached)
    assert len(ax.get_yticks()) > 1  # a scale, before the first step, too


def test_a_gain_is_the_quotient_of_two_speeds(capsys):
    assert steps.gain("3") == pytest.approx(steps.speed("swizzle") / steps.speed("tensor cores"))
    steps.climb("3b", (64, False), (128, False))
    said = capsys.readouterr().out
    for d in (64, 128):
        assert f"d = {d:3}, not causal: {steps.gain('3b', d):.2f} times as fast as step 3" in said


def test_a_causal_step_6_visits_the_tiles_up_to_the_diagonal():
    assert (steps.tiles_loaded("5b"), steps.tiles_loaded("6")) == (64, 36)


def test_twice_the_queries_double_the_roof_of_shared_memory():
    assert steps.shared_memory_roof(32) == pytest.approx(2 * steps.shared_memory_roof(16))


def test_the_share_of_places_grows_with_batch_and_length():
    one = peers.share_of_places(1, 512)
    assert 0 < one < 1 and peers.share_of_places(16, 512) == pytest.approx(16 * one)


def test_gains_of_training_are_more_than_one():
    assert training.recompute_gain() > 1 and training.larger_batch() > 1


@pytest.mark.usefixtures("drawn")
def test_what_guesses_are_compared_with_is_what_the_pictures_beside_them_show(capsys):
    assert steps.tiles_compared() == 64
    assert not steps.what_steps_cost(64) and not steps.what_steps_cost(128)
    assert peers.naive_traffic() == pytest.approx((4984 + 4796) / 201, rel=0.01)
    assert peers.gain_of_both(1, 65_536) == pytest.approx(14.66, abs=0.005)
    assert training.recompute_or_read(128, 8192) == pytest.approx(9.19 / 9.7, rel=0.01)
    assert training.size_of_dO() == pytest.approx(3.0e-7 / 6.0e-8, rel=0.05)
    capsys.readouterr()
    assert training.products() == 7
    assert capsys.readouterr().out.splitlines() == [
        "forward                  2 products (S O): 1.0 × forward",
        "backward, dQ by atomics  5 products (S dP dV dK dQ): 2.5 × forward",
        "backward, second pass    7 products (S dP dV dK, S dP dQ): 3.5 × forward",
    ]


def test_the_floors_say_of_which_gpu_and_when_their_rates_are(drawn, capsys):
    peers.show_floors()
    assert measured.caption(measured.load("00_start_here")) in capsys.readouterr().out
