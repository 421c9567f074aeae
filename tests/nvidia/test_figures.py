"""The figures that ncu and the emulator both count: out of ncu's metrics, and out of the record."""

from course_utils import measured
from course_utils.nvidia.figures import FIGURES, ncu_figures, recorded_figures
from tests.helpers.nvidia_output import LAUNCH


def test_a_figure_is_the_sum_of_the_metrics_that_there_are():
    atom, red = FIGURES["global atomic sectors"].metrics
    assert ncu_figures({atom: 3, red: 4, "dram__bytes_read": 5}) == {"global atomic sectors": 7}


def test_shared_memory_is_counted_at_l1_and_only_the_stores_of_cp_async_by_their_instructions():
    name = "pipe_lsu_wavefronts_mem_shared_op"
    metrics = {f"l1tex__data_{name}_{op}": n for op, n in [("ld", 16), ("st", 4), ("atom", 2)]}
    metrics |= {f"smsp__sass_l1tex_data_{name}_{op}": n for op, n in [("ld", 28), ("st", 5), ("ldgsts", 8)]}
    assert ncu_figures(metrics) == {
        "shared load wavefronts": 16,
        "shared store wavefronts": 12,
        "shared atomic wavefronts": 2,
    }


def test_recorded_figures_are_found_by_the_launch(tmp_path, monkeypatch):
    monkeypatch.setattr("course_utils.measured.measurement.FOLDER", tmp_path)
    assert recorded_figures(LAUNCH) is None
    metric = FIGURES["global load sectors"].metrics[0]
    rows = [{"name": "add", "launch": LAUNCH.describe(), "metrics": {metric: 64}}]
    versions = {"torch": "2.11.0", "cuda": "13.0"}
    measured.write(measured.Measurement("counters", "NVIDIA H200", "1", versions, "2026-11-21", "bench", rows))
    figures, caption = recorded_figures(LAUNCH)
    assert figures == {"global load sectors": 64} and "NVIDIA H200" in caption
