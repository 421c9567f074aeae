"""A launch beside NVIDIA's tools, where they are missing."""

import torch

from course_utils.launches import Launch
from course_utils.nvidia.comparison import side_by_side
from course_utils.nvidia.figures import FIGURES
from tests.helpers.nvidia_output import ADDITION, LAUNCH


def test_side_by_side_without_a_gpu_shows_the_emulators_column_and_says_why(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("course_utils.measured.measurement.FOLDER", tmp_path)
    overrun = Launch(**{**vars(LAUNCH), "grid": (2,)})
    shown = side_by_side(overrun)
    assert {row["by"] for row in shown.findings} == {"emulator"}
    assert {row["line"] for row in shown.findings} == {ADDITION}
    assert {row["figure"] for row in shown.counters} == {
        name for name in FIGURES if name.startswith(("global l", "global s"))
    }
    assert "not recorded" in shown.note and "compute-sanitizer needs an NVIDIA GPU" in shown.note
