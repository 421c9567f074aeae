"""What chapter 07's cells call: the ladder, by its rows alone."""

import pytest

from course_utils.bench.hopper import CUDNN, FLASH
from course_utils.chapters import hopper_steps as steps
from course_utils.chapters.timed_ladder import ALL_CASES
from course_utils.launches.hopper import LADDER
from course_utils.measured import Measurement


@pytest.fixture(autouse=True)
def figures(monkeypatch):
    """Each step 100 TFLOP/s faster than the one before it; causal, and at another length, all are slower."""
    names = {CUDNN: 250.0, FLASH: 150.0} | {step.title: 100.0 * n for n, step in enumerate(LADDER, 1)}
    rows = [
        {"part": "rungs", "head_dim": d, "is_causal": c, "length": length, "name": name, "tflop_per_s": speed / slower}
        for d, c in ALL_CASES
        for length, slower in ((2048, 4), (steps.LENGTH, 1 + c))
        for name, speed in names.items()
    ]
    versions = {"torch": "2.11.0", "cuda": "13.0"}
    figures = Measurement("07_hopper", "NVIDIA H200", "1", versions, "2026-11-26", "a command", rows)
    monkeypatch.setitem(vars(steps.TIMED), "timed", figures)


def test_the_ladder_is_drawn_up_to_a_step_and_what_it_gained_is_said(drawn, capsys):
    steps.climb("3", (128, True))
    (ax,) = drawn[0].axes
    assert [text.get_text() for text in ax.texts] == ["50", "100", "150", CUDNN, FLASH, "you are here"]
    said = capsys.readouterr().out
    assert "d = 128, causal    : 1.50 times as fast as step 2, 150 TFLOP/s" in said
    assert f"(L = {steps.LENGTH}, B · L = 16384, H · d = 2048, fp16, NVIDIA H200, 2026-11-26" in said


def test_the_whole_ladder_says_shares_of_cudnn(drawn):
    steps.whole_ladder()
    panels = {ax.get_title(loc="left"): ax for ax in drawn[0].axes}
    assert list(panels) == ["d = 64", "d = 64, causal", "d = 128", "d = 128, causal"]
    for ax in panels.values():
        assert [text.get_text() for text in ax.texts] == [f" {40 * n}%" for n in range(1, len(LADDER) + 1)]
