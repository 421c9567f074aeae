"""What chapter 07 says of the backward pass: the recorded times, the price of turns, and who is fastest in a step."""

import statistics

import pytest

from course_utils import measured
from course_utils.chapters.hopper import backward, peers
from course_utils.chapters.timed_ladder import ALL_CASES
from course_utils.measured.hopper import CUDNN, FLASH, FLASH_FIXED, OURS, TURNS
from course_utils.operators import flash_attention_hopper


def times(name, d, is_causal, recording="07_hopper"):
    rows = measured.load(recording).select(part="backward", name=name, head_dim=d, is_causal=is_causal)
    return [row["median_ms"] for row in rows]


def test_means_are_those_of_the_rows():
    rows = measured.load("07_hopper").select(part="backward", name=OURS, head_dim=64, is_causal=True)
    ratios = [row["ratio_to_cudnn"] for row in rows]
    assert backward.mean(64, True)["ratio_to_cudnn"] == pytest.approx(statistics.geometric_mean(ratios))


def test_each_case_is_drawn_with_four_kernels(drawn, capsys):
    backward.by_length()
    assert len(drawn[0].axes) == len(ALL_CASES) and len(drawn[0].axes[0].lines) == len(peers.NAMES)
    assert "backward, fp16, NVIDIA" in capsys.readouterr().out


def test_turns_cost_what_was_measured(drawn):
    most = max(
        turn / own for case in ALL_CASES for turn, own in zip(times(TURNS, *case), times(OURS, *case), strict=True)
    )
    assert backward.cost_of_turns() == pytest.approx(most)
    assert len(drawn[0].axes) == len(ALL_CASES)


def test_turns_are_shown_beside_cudnn_flash_and_flash_in_a_fixed_order(monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(backward.show, "table", lambda rows, _: shown.extend(rows))
    backward.show_turns()
    ways = (CUDNN, TURNS), (FLASH, TURNS), (FLASH, FLASH_FIXED), (FLASH_FIXED, TURNS)
    for case, (_, *ratios) in zip(ALL_CASES, (row.values() for row in shown), strict=True):
        for (slow, fast), ratio in zip(ways, ratios, strict=True):
            both = zip(times(slow, *case), times(fast, *case), strict=True)
            assert float(ratio) == pytest.approx(statistics.geometric_mean(a / b for a, b in both), abs=0.02)
    assert "NVIDIA H200, 2026-11-30" in capsys.readouterr().out


def test_the_operators_docstring_says_what_turns_cost():
    ratios = [
        turn / own for case in ALL_CASES for turn, own in zip(times(TURNS, *case), times(OURS, *case), strict=True)
    ]
    said = f"on an H200 the backward pass then takes {min(ratios):.1f} to {max(ratios):.1f} times as long"
    assert said in " ".join(flash_attention_hopper.__doc__.split())


def test_the_record_of_the_h200_is_as_fast_beside_cudnn_as_was_agreed():
    rows = peers.record().select(part="backward", name=OURS)
    assert peers.record().device == "NVIDIA H200" and {row["length"] for row in rows} == {2**n for n in range(10, 15)}
    assert len(rows) == 20 and statistics.geometric_mean(row["ratio_to_cudnn"] for row in rows) >= 0.85


def test_the_fastest_step_is_named(drawn):
    where = {"part": "step", "way": "compiled", "batch": 16}
    recorded = {row["name"]: row["median_ms"] for row in measured.load("07_hopper").select(**where)}
    assert recorded[backward.STEPS[backward.training_step()]] == min(recorded.values())
