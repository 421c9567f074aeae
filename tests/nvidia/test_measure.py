"""The record of NVIDIA's tools: what fails or comes too late is left out, and the rest is kept."""

from course_utils.launches import Launch
from course_utils.launches.chapters import course_launches
from course_utils.nvidia import measure, tools
from course_utils.nvidia.output import parse_sanitizer
from course_utils.nvidia.tools import ToolError
from tests.helpers.nvidia_output import ADDITION, LAUNCH, MEMCHECK


def test_launches_of_a_failed_ncu_process_are_left_out_and_the_others_kept(monkeypatch, capsys):
    def run_ncu(launches, timeout):
        if launches[0].kernel == "load_float":
            raise ToolError("ncu failed")
        return [{"dram__bytes_read": 1}] * len(launches)

    cases = measure.counter_cases()
    monkeypatch.setattr(measure, "counter_cases", lambda: cases)  # which takes half a second each time
    monkeypatch.setattr(tools, "run_ncu", run_ncu)
    rows = measure.measure_counters()
    lost = measure.NCU_LAUNCHES
    assert len(rows) == len(cases) - lost
    assert "load_float stride 1 ... " in capsys.readouterr().out
    large = next(row for row in rows if row["name"] == "scores, L=1024")
    assert (large["bytes_only_read"], large["bytes_written"]) == (2 * 4 * 1024 * 64 * 4, 4 * 1024 * 1024 * 4)


def test_sanitizer_runs_that_fail_or_come_too_late_are_left_out_and_the_others_kept(monkeypatch, capsys):
    def run(launch, tool):
        if launch.kernel == "copy":
            raise ToolError("no such kernel")
        found = parse_sanitizer(MEMCHECK, tool, launch) if launch.grid == (2,) else []
        return tools.SanitizerRun(found, "", "hangs: stopped after 9 s" if tool == "synccheck" else "")

    def is_silent(launches, tool):
        together.append(([launch.kernel for launch in launches], tool))
        return tool == "racecheck"

    together = []
    copy = course_launches()["copy"]
    cases = [
        measure.SanitizerCase("overrun", "broken", Launch(**{**vars(LAUNCH), "grid": (2,)}), "memcheck"),
        measure.SanitizerCase("overrun", "mended", LAUNCH, "memcheck"),
        measure.SanitizerCase("copy", "clean", copy),
        measure.SanitizerCase("sum", "clean", LAUNCH),
    ]
    monkeypatch.setattr(tools, "run_compute_sanitizer", run)
    monkeypatch.setattr(tools, "compute_sanitizer_is_silent", is_silent)
    monkeypatch.setattr(measure, "sanitizer_cases", lambda: cases)
    rows = measure.measure_sanitizer()
    assert [(row["name"], row["state"], row["tool"]) for row in rows] == [
        *(("overrun", "broken", tool) for tool in ("memcheck", "racecheck", "initcheck", "synccheck")),
        ("overrun", "mended", "memcheck"),
        ("copy", "clean", "racecheck"),
        *(("sum", "clean", tool) for tool in ("memcheck", "racecheck", "initcheck", "synccheck")),
    ]
    assert rows[0]["findings"][0]["line"] == ADDITION and rows[3]["failure"] == "hangs: stopped after 9 s"
    assert not rows[5]["findings"]
    assert "no such kernel" in capsys.readouterr().out
    right = ["vector_add", "copy", "vector_add"]
    assert sorted(together) == sorted(
        [(right, "memcheck"), *((right[1:], tool) for tool in ("racecheck", "initcheck", "synccheck"))]
    )
    monkeypatch.setattr(measure, "SANITIZER_BUDGET", -1)
    assert measure.measure_sanitizer() == []
