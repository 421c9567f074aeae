"""`python -m course_utils bench`: its tables, its plot, and what it says to options that do not belong together."""

import dataclasses

import pytest
import torch

from course_utils import measured, patterns
from course_utils.bench import flex, one_pattern
from course_utils.bench.subjects import ALIASES, SUBJECTS, View, parts
from course_utils.commands import bench
from tests.helpers.commands import bench_command

ROWS = [
    {"name": "naive torch", "pass": "forward", "length": 512, "median_ms": 2.0, "peak_mb": 12.5},
    {"name": "naive torch", "pass": "forward", "length": 1024, "median_ms": 8.0, "peak_mb": 50.0},
    {"name": "ours", "pass": "forward", "length": 512, "median_ms": 1.0, "peak_mb": None},
    {"name": "ours", "pass": "backward", "length": 512, "median_ms": 3.0},
]


@pytest.fixture(autouse=True)
def cudnn_version(monkeypatch):
    """torch for CUDA asks a GPU for it, and these tests only pretend to have one."""
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91900)


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """One recorded chapter, on a machine without a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("course_utils.measured.measurement.FOLDER", tmp_path)
    versions = {"torch": "2.11.0+cu130", "cuda": "13.0", "cupy": "14.2.0", "python": "3.12.3"}
    measurement = measured.Measurement(
        "02_flash_attention_minimal", "NVIDIA H200", "580.1", versions, "2026-11-21", "bench", ROWS
    )
    measured.write(measurement)
    return measurement


def measures(monkeypatch, name, rows):
    """Has a subject measure these rows."""
    monkeypatch.setitem(SUBJECTS, name, dataclasses.replace(SUBJECTS[name], measure=lambda **options: rows))


# ---------------------------------------------------------------------------------------------- table and command line


def test_table_aligns_numbers_right_and_leaves_missing_cells_empty():
    rows = [{"name": "a", "ms": 1.23456}, {"name": "long", "ms": 12345.6, "mb": 3}, {"name": "c", "ms": None}]
    assert bench.table(rows).splitlines() == [
        "name     ms  mb",
        "----  -----  --",
        "a     1.235",
        "long  12346   3",
        "c",
    ]


def test_without_a_gpu_the_recorded_figures_are_shown_and_labelled(recorded, capsys):
    assert bench_command("02_flash_attention_minimal") == 0
    printed = capsys.readouterr().out
    assert "no usable NVIDIA GPU" in printed and "recorded figures" in printed
    assert "NVIDIA H200, 2026-11-21, torch 2.11.0, CUDA 13.0" in printed and "naive torch" in printed


def test_json_and_plot_are_written(recorded, tmp_path, capsys):
    json_file, plot_file = tmp_path / "out" / "figures.json", tmp_path / "figures.png"
    assert bench_command("02_flash_attention_minimal", "--json", json_file, "--plot", plot_file) == 0
    assert measured.load("any", json_file) == recorded
    assert plot_file.stat().st_size > 1000


def test_plot_has_a_panel_per_pass_and_a_line_per_implementation(recorded):
    figure = bench.plot(recorded)
    assert [axes.get_title("left") for axes in figure.axes] == ["forward", "backward"]
    assert [line.get_label() for line in figure.axes[0].lines] == ["naive torch", "ours"]


def test_lines_of_a_panel_have_colours_of_their_own(recorded):
    rows = [
        {"panel": panel, "name": f"{panel} {n}", "length": 512, "median_ms": 1.0} for panel in "ab" for n in range(5)
    ]
    figure = bench.plot(dataclasses.replace(recorded, rows=rows + [rows[0] | {"panel": "b"}]))
    assert [axes.get_title("left") for axes in figure.axes] == ["a", "b"]
    assert [len({line.get_color() for line in axes.lines}) for axes in figure.axes] == [5, 5]


def test_plot_of_rows_without_length_is_bars():
    rows = [{"name": "copy", "median_ms": 1.0, "gb_per_s": 4000.0}, {"name": "L2 cache", "bytes": 50}]
    versions = {"torch": "2.11.0", "cuda": "13.0"}
    figure = bench.plot(measured.Measurement("00_start_here", "GPU", "1", versions, "2026-11-21", "bench", rows))
    assert len(figure.axes[0].patches) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["01_attention_basics"], "no figures are recorded for '01_attention_basics'"),
        (["02_flash_attention_minimal", "--record"], "--record needs a GPU"),
        (
            ["02_flash_attention_minimal", "--window", 8],
            "does not take --window, an option of sliding_window, dilated, ",
        ),
        (["02_flash_attention_minimal", "--markdown", "x.md"], "--markdown, an option of sanitizer; it takes --json"),
        (["counters", "--plot", "x.png"], "counters does not take --plot, an option of 00_start_here, "),
        (["counters", "--backward"], "does not take --backward"),
        (["sanitizer", "--markdown", "nowhere/x.md"], "there is no folder nowhere"),
        (["sanitizer", "--markdown", "x.md", "--record"], "--record only measures"),
        (["counters", "--record"], "ncu needs an NVIDIA GPU"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_status_1(recorded, capsys, words, message):
    assert bench_command(*words) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_with_a_gpu_the_chapter_is_measured_and_recorded(recorded, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "another GPU")
    measures(monkeypatch, "02_flash_attention_minimal", [{"median_ms": 7.0}])
    assert bench_command("02_flash_attention_minimal") == 0
    assert measured.load("02_flash_attention_minimal") == recorded  # nothing kept without --record
    assert bench_command("02_flash_attention_minimal", "--record") == 0
    kept = measured.load("02_flash_attention_minimal")
    assert kept.device == "another GPU" and kept.rows == [{"median_ms": 7.0}]
    assert kept.command == "python -m course_utils bench 02_flash_attention_minimal"


def test_an_operator_stands_for_its_chapter(recorded, capsys):
    assert bench_command("flash_attention_v2") == 1
    assert "no figures are recorded for '03_flash_attention_v2'" in capsys.readouterr().err


def test_parts_of_a_chapter_are_tables_of_their_own_and_the_first_is_drawn(recorded):
    rows = [
        {"part": "lengths", "pass": "forward", "head_dim": 64, "is_causal": c, "length": 8, "name": "a", "median_ms": 1}
        for c in (False, True)
    ]
    rows.append({"part": "summary", "geometric_mean": 1.0})
    assert list(map(len, parts(rows).tables)) == [2, 1] and parts(ROWS).tables == [ROWS]
    figure = bench.plot(dataclasses.replace(recorded, rows=rows))
    assert [axes.get_title("left") for axes in figure.axes] == ["forward, d=64", "forward, d=64, causal"]


# ---------------------------------------------------------------------------------------------- bench PATTERN


@pytest.fixture
def recorded_patterns(tmp_path, monkeypatch):
    """One row of chapter 04, on a machine without a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("course_utils.measured.measurement.FOLDER", tmp_path)
    rows = [
        {"part": part, "pattern": f"{kind}(window=8)", "length": 512, "name": flex.OURS, "median_ms": 1.25}
        for part, kind in (("scaling", "sliding_window"), ("small", "sliding_window"), ("peers", "dilated"))
    ]
    versions = {"torch": "2.11.0", "cuda": "13.0", "cupy": "14.2.0", "python": "3.12.3"}
    measurement = measured.Measurement("04_sparse_patterns", "NVIDIA H200", "1", versions, "2026-11-21", "bench", rows)
    measured.write(measurement)
    return measurement


@pytest.mark.parametrize("subject", ["sliding_window", "window"])
def test_without_a_gpu_a_pattern_is_counted_and_the_record_shown(recorded_patterns, subject, tmp_path, capsys):
    files = tmp_path / "w.json", tmp_path / "w.png"
    assert bench_command(subject, "--window", 64, "--seq-len", 512, 1024, "--json", files[0], "--plot", files[1]) == 0
    printed = capsys.readouterr().out
    assert "sliding_window(window=64)" in printed and str(patterns.sliding_window(64).pairs(1024)) in printed
    assert "no usable NVIDIA GPU" in printed and "NVIDIA H200, 2026-11-21" in printed
    assert measured.load("any", files[0]).rows == recorded_patterns.rows[:1] and files[1].stat().st_size > 1000


def test_an_image_has_its_own_length(recorded_patterns, capsys):
    assert bench_command("local_2d", "--height", 8, "--width", 16, "--radius", 2) == 1  # nothing is recorded of it
    assert str(patterns.local_2d(8, 16, 2).pairs(128)) in capsys.readouterr().out


def test_with_a_gpu_a_pattern_is_timed_as_the_options_say(recorded_patterns, monkeypatch, capsys):
    asked = []

    def race(pattern, shape, **options):
        asked.append((pattern.name, shape, options))
        return [{"pattern": pattern.name, "length": shape[2], "name": flex.OURS, "median_ms": 7.0}]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(flex, "race", race)
    monkeypatch.setattr(one_pattern, "counts", lambda *_: [{"density": 0.5}])
    options = "--sinks 4 --window 60 --heads 2 --head-dim 64 --dtype bfloat16 --backward --seq-len 128 192"
    assert bench_command("streaming", *options.split()) == 0
    name, how = "streaming(sinks=4, window=60)", {"dtype": torch.bfloat16, "backward": True, "others": {}}
    assert asked == [(name, (1, 2, length, 64), how) for length in (128, 192)]
    assert "a GPU, " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["streaming", "--window", 8], "streaming needs --sinks; it takes --sinks, --window"),
        (
            ["sliding_window", "--window", 8, "--block", 64],
            "sliding_window does not take --block, an option of ",
        ),
        (["causal", "--window", 8], "causal does not take --window, an option of sliding_window, "),
        (["sliding_window", "--window", 0], "window"),
        (["sliding_window", "--window", 8, "--seq-len", 0], "--seq-len is 0; it must be at least 1"),
        (["sliding_window", "--window", 8, "--record"], "sliding_window does not take --record, an option of 00_start"),
        (["causal", "--seq-len", 64], "no figures are recorded for causal"),
    ],
)
def test_what_a_pattern_does_not_take_is_one_line_that_names_the_option(recorded_patterns, capsys, words, message):
    assert bench_command(*words) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_every_chapter_is_a_subject_by_its_own_name_and_aliases_lead_to_subjects():
    chapters = [name for name in SUBJECTS if name[:2].isdigit()]
    assert set(ALIASES.values()) < set(SUBJECTS) and "05_deepseek_sparse" in chapters
    for name in chapters:
        assert SUBJECTS[name].measure.__module__ == f"course_utils.bench.{name[3:]}"


def test_what_nvidias_tools_say_is_measured_for_the_record_and_not_shown(recorded, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(bench.tools, "version", lambda program: f"{program} 1")
    measures(monkeypatch, "counters", [{"name": "a launch"}])
    assert bench_command("counters", "--record") == 0
    kept = measured.load("counters")
    assert kept.versions["ncu"] == "ncu 1" and kept.command == "python -m course_utils bench counters --record"
    assert capsys.readouterr().out.startswith("1 rows recorded in ")


def test_the_record_of_a_tool_is_shown_by_its_view_with_its_version_even_on_a_gpu(
    recorded, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    versions = recorded.versions | {"compute-sanitizer": "2025.3"}
    measured.write(dataclasses.replace(recorded, name="sanitizer", versions=versions))
    view = View([[{"broken kernel": "no_sync"}]], "False alarms: none", "# The page")
    monkeypatch.setitem(SUBJECTS, "sanitizer", dataclasses.replace(SUBJECTS["sanitizer"], view=lambda rows: view))
    assert bench_command("sanitizer", "--markdown", tmp_path / "page.md") == 0
    printed = capsys.readouterr().out
    assert "no_sync" in printed and "False alarms: none" in printed
    assert printed.endswith("compute-sanitizer 2025.3: NVIDIA H200, 2026-11-21, torch 2.11.0, CUDA 13.0\n")
    assert (tmp_path / "page.md").read_text() == "# The page"
