"""Dense, flash and sparse side by side: that each row is of what it says, and that running out of memory is a row."""

import json
import warnings

import pytest
import torch
from torch.nn.attention import SDPBackend
from torch.nn.attention.flex_attention import flex_attention

from course_utils import patterns, timing
from course_utils.bench import choosing as chapter
from course_utils.bench import flex, timed
from course_utils.bench.choosing import CUDNN, DENSE, FLASH, OURS, TORCHS_CHOICE

TINY = {"device": "cpu", "heads": 1, "window": 16, "recent": 8}
WINDOWS = ["sliding window of 16", "window of 16, FLASH", "window of 16, Flex"]
NAMES = [DENSE, OURS, FLASH, CUDNN, TORCHS_CHOICE, *WINDOWS, "streaming, 4 + 8", "streaming, 4 + 8, Flex"]
TIMES = (8.0, 2.0, 4.0, 2.5, 2.5, 1.0, 1.5, 0.8, 0.5, 0.4)

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")


@pytest.fixture
def on_cpu(monkeypatch, plain_varlen):
    """Timing without a clock: every function runs once, on the emulator; torch's kernels for GPUs are played by its
    plain one, and FlexAttention is not compiled."""
    times = dict(zip(NAMES, TIMES, strict=True))

    def compare(functions, **options):
        for fn in functions.values():
            fn()
        return {name: timing.Timing(times[name], 0.1) for name in functions}

    monkeypatch.setattr(timing, "compare", compare)
    monkeypatch.setattr(timing, "peak_memory", lambda fn: fn().nbytes)
    for name in ("FLASH_BACKEND", "CUDNN_BACKEND"):
        monkeypatch.setattr(chapter, name, SDPBackend.MATH)
    monkeypatch.setattr(flex, "compiled", lambda: flex_attention)
    monkeypatch.setattr("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)  # no tracing


def test_each_length_has_the_three_choices_and_their_peers(on_cpu):
    rows = chapter.choosing(lengths=(40, 72), **TINY)
    assert [(row["length"], row["name"]) for row in rows] == [(length, name) for length in (40, 72) for name in NAMES]
    assert [row["choice"] for row in rows[:10]] == ["dense"] + 4 * ["flash"] + 5 * ["sparse"]
    assert [row["speed_over_flash"] for row in rows[:10]] == [4 / time for time in TIMES]
    assert rows[10]["peak_extra_bytes"] == 72 * 128 * 2 and rows[10]["median_ms"] == 8
    assert all(row["why_not"] is None and row["asked_bytes"] is None for row in rows)
    json.dumps(rows)


def test_running_out_of_memory_is_a_row_with_the_bytes_that_were_asked_for(on_cpu, monkeypatch):
    def full(query, key, value):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 512.50 GiB. GPU 0 has a total capacity of")

    monkeypatch.setattr(chapter, "written_out", full)
    rows = chapter.choosing(lengths=(40,), **TINY)
    assert rows[0]["why_not"] == "out of memory" and rows[0]["asked_bytes"] == 512.5 * 2**30
    assert rows[0]["median_ms"] is rows[0]["peak_extra_bytes"] is rows[0]["speed_over_flash"] is None
    assert [row["median_ms"] for row in rows[1:]] == list(TIMES[1:])


def test_what_does_not_run_on_a_device_says_why_and_the_others_run(on_cpu, monkeypatch):
    monkeypatch.setattr(chapter, "FLASH_BACKEND", SDPBackend.CUDNN_ATTENTION)  # for GPUs only
    rows = chapter.choosing(lengths=(40,), **TINY)
    assert rows[2]["why_not"].startswith("does not run here: ") and rows[2]["median_ms"] is None
    assert [row["speed_over_flash"] for row in rows] == [None] * 10 and rows[0]["median_ms"] == 8


def test_a_length_that_would_take_too_long_is_not_tried(on_cpu):
    rows = chapter.choosing(lengths=(10, 20, 30), most_ms=20, **TINY)
    dense = [row for row in rows if row["name"] == DENSE]
    assert [row["median_ms"] for row in dense] == [8, None, None]
    assert dense[1]["why_not"] == "not tried: one run would take about 0.03 s here"
    assert [row["median_ms"] for row in rows[11:20]] == list(TIMES[1:])


def test_dense_is_dropped_if_it_does_not_fit_beside_the_others(on_cpu, monkeypatch):
    def compare(functions, **options):
        if DENSE in functions:
            raise torch.OutOfMemoryError("Tried to allocate 256.00 MiB.")
        return dict.fromkeys(functions, timing.Timing(2.0, 0.1))

    monkeypatch.setattr(timing, "compare", compare)
    rows = chapter.choosing(lengths=(40,), **TINY)
    assert (rows[0]["why_not"], rows[0]["asked_bytes"]) == ("out of memory", 2**28)
    assert [row["median_ms"] for row in rows] == [None] + 9 * [2]


def test_no_pattern_is_timed_right_after_dense_attention(on_cpu, monkeypatch):
    groups, compare = [], timing.compare
    monkeypatch.setattr(timing, "compare", lambda fns, **options: groups.append(list(fns)) or compare(fns, **options))
    chapter.choosing(lengths=(40,), **TINY)
    assert groups == [NAMES[:5], NAMES[5:]]


def test_a_wrong_output_is_not_timed(on_cpu, monkeypatch):
    monkeypatch.setattr(chapter, "written_out", lambda query, key, value: value)
    with pytest.raises(RuntimeError, match=r"dense, written out, causal.* is off by"):
        chapter.choosing(lengths=(40,), **TINY)


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ("Tried to allocate 34.00 GiB. GPU 0", 34 * 2**30),
        ("Tried to allocate 512.00 MiB.", 2**29),
        ("no figure", None),
    ],
)
def test_the_bytes_asked_for_are_read_from_torchs_message(message, found):
    assert chapter.asked_bytes(message) == found


def test_dense_keeps_the_pairs_of_the_causal_pattern():
    query, key, value = (torch.randn(1, 2, 33, 16) for _ in range(3))
    out = chapter.written_out(query, key, value)
    weights = (query @ key.mT / 4).masked_fill(~patterns.causal().mask(33, 33), -torch.inf).softmax(-1)
    torch.testing.assert_close(out, weights @ value)


def test_torchs_reason_is_the_one_of_the_backend_asked_for(monkeypatch):
    def refuses(*_, **__):
        for text in (
            "Memory efficient kernel not used because:",
            "it is off",
            "Flash attention kernel not used because:",
        ):
            warnings.warn(text, stacklevel=1)
        warnings.warn("Expected Half but got Float (Triggered internally at sdp_utils.cpp:1.)", stacklevel=1)
        raise RuntimeError("No available kernel. Aborting execution.")

    monkeypatch.setattr(timed, "scaled_dot_product_attention", refuses)
    reason = chapter.why_not_taken(SDPBackend.FLASH_ATTENTION, *torch.zeros(3, 1, 1, 1, 1))
    assert reason == "Expected Half but got Float"
    assert chapter.why_not_taken(SDPBackend.MATH, *torch.zeros(3, 1, 1, 1, 1)).startswith("No available kernel")


def test_of_each_case_every_backend_says_whether_it_runs_and_one_is_chosen(one_run_each):
    rows = chapter.backends(device="cpu", heads=1, length=8)
    for case in chapter.sdpa_cases("cpu", 1, 8):
        of_case = [row for row in rows if row["case"] == case]
        assert [row["backend"] for row in of_case] == [backend.name for backend in chapter.BACKENDS]
        (chosen,) = (row for row in of_case if row["chosen"])
        assert chosen["runs"] and all((row["why_not"] is None) == row["runs"] for row in of_case)
        assert not next(row for row in of_case if row["backend"] == "CUDNN_ATTENTION")["runs"]  # for GPUs only
        assert all((row["median_ms"] == 2) == bool(row["right"]) == row["runs"] for row in of_case)
    json.dumps(rows)


def test_a_kernel_with_a_wrong_output_says_so_and_is_not_timed(one_run_each, monkeypatch):
    monkeypatch.setattr(timed, "scaled_dot_product_attention", lambda query, *_, **__: torch.zeros_like(query))
    rows = chapter.backends(device="cpu", heads=1, length=16)
    assert {(row["runs"], row["right"], row["median_ms"]) for row in rows} == {(True, False, None)}


def test_the_mask_of_torchs_is_causal_is_top_left():
    query, (key, value) = torch.randn(1, 1, 8, 64), torch.randn(2, 1, 1, 16, 64)
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    assert chapter.is_right(out, query, key, value) and not chapter.is_right(out.flip(2), query, key, value)
