"""The benchmark of the emulator."""

import pytest
import torch

from course_utils.bench import emulator


def test_three_kernels_are_timed_plain_profiled_and_sanitized():
    rows = emulator.measure(length=64, repeats=1)
    modes = ("plain", "profile", "sanitize")
    kernels = ("naive.cu", "flash_half.cu", "flash_mma.cu")
    assert [(row["name"], row["mode"]) for row in rows] == [(k, m) for k in kernels for m in modes]
    assert all(row["median_ms"] > 0 for row in rows)


def test_a_wrong_result_is_not_timed(monkeypatch):
    monkeypatch.setattr(emulator.reference, "attention", lambda query, key, value: torch.ones_like(value).float())
    with pytest.raises(RuntimeError, match=r"naive.cu on the emulator is off by .*: not timed"):
        emulator.measure(length=64, repeats=1)
