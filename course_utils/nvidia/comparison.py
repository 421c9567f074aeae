"""One launch on the emulator and under NVIDIA's tools, as tables for a notebook."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import torch

from course_utils.emulator import sanitize
from course_utils.emulator.sanitizer import TOOLS, Finding
from course_utils.launches import Launch
from course_utils.measured import Row
from course_utils.nvidia.figures import FIGURES, emulated_figures, ncu_figures, recorded_figures
from course_utils.nvidia.tools import run_compute_sanitizer, run_ncu, why_unavailable
from course_utils.toolchain.errors import KernelError


class SideBySide(NamedTuple):
    """Tables of a launch for `show.table`, and where NVIDIA's figures come from, or why there are none."""

    counters: list[Row]
    findings: list[Row]
    note: str


def side_by_side(launch: Launch) -> SideBySide:
    """What the emulator and NVIDIA's tools say of a launch.

    Without a GPU, ncu's figures are the recorded ones if this very launch was recorded, and compute-sanitizer's column
    is empty; the note says so.
    """
    ours, nvidias, notes = emulated_figures(launch), {}, []
    if reason := why_unavailable("ncu"):
        recorded = recorded_figures(launch)
        nvidias = recorded[0] if recorded else {}
        notes.append(f"ncu: recorded on {recorded[1]}" if recorded else f"{reason}; this launch is not recorded")
    else:
        nvidias = ncu_figures(run_ncu([launch])[0])
        notes.append(f"ncu: measured now on {torch.cuda.get_device_name()}")
    counters: list[Row] = [
        {"figure": name, "emulator": ours[name], "ncu": nvidias.get(name, "")}
        for name in FIGURES
        if ours[name] or nvidias.get(name)
    ]
    findings = [_finding_row("emulator", finding) for finding in emulated_findings(launch)]
    if reason := why_unavailable("compute-sanitizer"):
        notes.append(reason)
    else:
        for tool in TOOLS:
            run = run_compute_sanitizer(launch, tool)
            findings += [_finding_row("compute-sanitizer", finding) for finding in run.findings]
            if run.failure:
                findings.append({"by": "compute-sanitizer", "tool": tool, "line": "", "message": run.failure})
    return SideBySide(counters, findings, "\n".join(notes))


def _finding_row(who: str, finding: Finding) -> Row:
    return {"by": who, "tool": finding.tool, "line": finding.line or "", "message": finding.message}


def emulated_findings(launch: Launch) -> list[Finding]:
    """What the emulator's sanitizer finds in a launch, also in one that crashes or hangs."""
    with sanitize() as report, contextlib.suppress(KernelError):
        launch.run("cpu")
    return report.findings
