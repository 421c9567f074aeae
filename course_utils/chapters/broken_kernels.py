"""The broken kernels of a chapter, compared with float64 and run under the sanitizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from course_utils import checks, measured
from course_utils.emulator import sanitize
from course_utils.launches.broken import BROKEN, BrokenKernel, attention_reports
from course_utils.launches.launch import Launch
from course_utils.measured import Row


def results(chapter: str) -> list[Row]:
    """Runs each broken kernel of a chapter without a tool and under the sanitizer, and compares its results with
    float64.

    Columns: broken kernel, wrong, wrong when watched, sanitizer, and compute-sanitizer (recorded on a GPU).
    """
    theirs = measured.load("sanitizer")
    rows: list[Row] = []
    for name, case in _of(chapter).items():
        alone = case.launch()
        wrong = _wrong(alone, alone.run())
        with sanitize() as report:
            watched = case.launch()
            wrong_watched = _wrong(watched, watched.run())
        found = dict.fromkeys(finding.tool for finding in report.findings)
        on_gpu = dict.fromkeys(r["tool"] for r in theirs.select(name=name, state="broken") if r["findings"])
        rows.append(
            {
                "broken kernel": name,
                "wrong": wrong or "-",
                "wrong when watched": wrong_watched or "-",
                "sanitizer": ", ".join(found) or "silent",
                "compute-sanitizer": ", ".join(on_gpu) or "silent",
            }
        )
    return rows


def mended_are_right(chapter: str) -> bool:
    """Whether the mended forms of a chapter's broken kernels are right, without a finding of the sanitizer."""
    with sanitize() as report:
        mended = [case.mended() for case in _of(chapter).values()]
        right = not any(_wrong(launch, launch.run()) for launch in mended)
    return right and not report.findings


def _of(chapter: str) -> dict[str, BrokenKernel]:
    return {name: case for name, case in BROKEN.items() if case.launch().source.startswith(f"{chapter}/broken")}


def _wrong(launch: Launch, results: list[Tensor]) -> str:
    """Which results are wrong, such as "O and LSE"; "" if all are right."""
    reports = attention_reports(launch, results)
    return " and ".join(what for what, report in zip(("O", "LSE"), reports, strict=True) if not report.passed)


def wrong_by_kind(operators: Mapping[str, Callable[..., Tensor]], device: torch.device) -> list[Row]:
    """How many cases of each kind of input (`checks.KINDS`) each operator fails. Each kind has two cases of 113 queries
    and keys."""
    cases = [
        case
        for case in checks.attention_cases(full=True, head_dims=(32,))
        if case.query_length == case.key_length == 113
    ]
    rows: list[Row] = []
    for name, operator in operators.items():
        failed = dict.fromkeys(checks.KINDS, 0)
        for case in cases:
            report, *_ = checks.check_case(operator, case, device=device, seed=1)
            failed[case.kind] += not report.passed
        rows.append({"kernel": name, **failed})
    return rows
