"""The emulator's sanitizer against compute-sanitizer (course_utils/measured/sanitizer.json), for the broken kernels
of the course, the same mended, and kernels that nothing is wrong with. They name the same lines, or the difference is
explained; ours does not complain about a clean kernel, and where NVIDIA's does, it is said why."""

from pathlib import Path

import numpy as np
import pytest
import torch

from course_utils import measured
from course_utils.cuda import KernelSource, RawModule, read_kernel
from course_utils.emulator import sanitize
from course_utils.emulator.sanitizer import Finding
from course_utils.launches import Launch
from course_utils.launches.broken import BROKEN
from course_utils.launches.chapters import course_launches, hard_launches
from course_utils.nvidia import validation
from course_utils.nvidia.comparison import emulated_findings
from course_utils.nvidia.measure import sanitizer_cases
from course_utils.nvidia.validation import FALSE_ALARMS, SANITIZER, Verdict

PAGE = Path(__file__).parents[2] / "docs" / "validation.md"


CHAPTERS = {launch.describe() for launch in (course_launches() | hard_launches()).values()}
WRONG_IN_NUMBERS = {kernel.launch().describe() for kernel in BROKEN.values() if kernel.tool == "check"}


@pytest.fixture(scope="module")
def verdicts() -> list[Verdict]:
    """The emulator finds nothing in the kernels of the chapters: tests/kernels/test_chapter_kernels_are_clean.py; nor
    in those whose numbers alone are wrong: test_broken_kernels.py there."""

    def findings(launch: Launch) -> list[Finding]:
        return [] if launch.describe() in CHAPTERS | WRONG_IN_NUMBERS else emulated_findings(launch)

    return validation.verdicts(measured.load("sanitizer").rows, findings)


def test_every_launch_is_recorded_under_every_tool(verdicts):
    recorded = {(v.name, v.state, v.tool) for v in verdicts}
    assert recorded == {(case.name, case.state, tool) for case in sanitizer_cases() for tool in case.tools}


def test_exactly_the_differences_on_broken_kernels_are_explained(verdicts):
    differences = {(v.name, v.tool) for v in verdicts if v.state == "broken" and not v.agrees}
    assert differences == set(SANITIZER)


def test_no_false_alarm_of_ours_and_exactly_the_explained_ones_of_nvidias(verdicts):
    clean = [v for v in verdicts if v.state != "broken"]
    assert [v for v in clean if v.ours or v.failure] == []
    assert {(v.name, v.tool) for v in clean if v.nvidias} == {(name, "racecheck") for name in FALSE_ALARMS}
    count = len([case for case in sanitizer_cases() if case.state != "broken"])
    assert validation.false_alarms(verdicts) == (
        f"False alarms: ours 0 of {count} clean launches, compute-sanitizer {len(FALSE_ALARMS)} of {count}"
    )
    assert all(row["why"] != "NOT EXPLAINED" for row in validation.false_alarm_table(verdicts))


def test_a_lane_that_gives_back_for_its_warp_is_told_from_one_that_does_so_too_early():
    """What compute-sanitizer's racecheck cannot tell apart (FALSE_ALARMS)."""
    source = read_kernel("07_hopper/puzzles/ring.cu")
    text = source.replace("initialize(&empty[threadIdx.x], 32)", "initialize(&empty[threadIdx.x], 1)")

    def found(arrival: str) -> list[Finding]:
        changed = text.replace("            arrive(&empty[buffer]);", arrival)
        assert changed != text != source
        ring = RawModule(code=KernelSource(changed, source.path, source.name)).get_function("ring")
        with sanitize() as report:
            ring((1,), (64,), (torch.ones(12, 32), torch.zeros(32), np.int32(12)))
        return report.findings

    assert [finding.tool for finding in found("if (threadIdx.x == 0) arrive(&empty[buffer]);")] == ["asynccheck"]
    assert not found("__syncwarp(); if (threadIdx.x == 0) arrive(&empty[buffer]);")


def test_the_page_says_what_the_command_writes(verdicts):
    assert PAGE.read_text(encoding="utf-8") == validation.page(verdicts)


@pytest.mark.exhaustive("the emulator runs every launch, also those of test_chapter_kernels_are_clean.py")
def test_the_page_says_what_the_command_writes_when_the_emulator_runs_every_launch():
    assert PAGE.read_text(encoding="utf-8") == validation.page(validation.verdicts(measured.load("sanitizer").rows))


def test_a_false_alarm_and_a_missing_explanation_are_seen():
    silent = Verdict("x", "clean", "memcheck", (), (), "")
    assert silent.agrees and "ours 0 of 1" in validation.false_alarms([silent])
    assert "ours 1 of 1 clean launches, compute-sanitizer 0" in validation.false_alarms([silent._replace(ours=((3,),))])
    broken = silent._replace(state="broken", ours=((3, 4),))
    assert broken._replace(nvidias=((4, 3),)).agrees
    assert not broken.agrees and not broken._replace(ours=(), failure="hangs: stopped after 12 s").agrees
    (row,) = validation.sanitizer_table([broken])
    assert (row["ours (line)"], row["why they differ"]) == ("3 and 4", "NOT EXPLAINED")


def test_tools_with_one_verdict_share_a_row_and_silent_ones_have_none():
    stopped = Verdict("x", "broken", "racecheck", (), (), "launch failed: CUDA error: misaligned address")
    found = stopped._replace(tool="memcheck", ours=((7,),), nvidias=((7,),))
    silent = stopped._replace(failure="")
    results = [found, stopped, stopped._replace(tool="initcheck"), silent._replace(tool="synccheck")]
    assert [row["tool"] for row in validation.sanitizer_table(results)] == ["memcheck", "racecheck, initcheck"]
    (row,) = validation.sanitizer_table([silent])
    assert (row["tool"], row["why they differ"]) == ("all", "")
