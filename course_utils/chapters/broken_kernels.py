"""Broken kernels, compared with float64 and run under the sanitizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from course_utils import checks, measured, plots, show
from course_utils.emulator import sanitize
from course_utils.launches.broken import BROKEN, BrokenKernel, attention_reports
from course_utils.launches.launch import Launch
from course_utils.measured import Row


def of_folder(folder: str) -> dict[str, BrokenKernel]:
    """The broken kernels with a source below a folder such as "02_flash_attention_minimal/broken", by name."""
    return {name: case for name, case in BROKEN.items() if case.launch().source.startswith(f"{folder}/")}


def found_on_gpu(name: str) -> str:
    """The compute-sanitizer tools that found something in a broken kernel on a GPU, or "silent", or "not recorded"."""
    rows = measured.load("sanitizer").select(name=name, state="broken")
    tools = dict.fromkeys(row["tool"] for row in rows if row["findings"])
    return ", ".join(tools) or ("silent" if rows else "not recorded")


def watched(case: BrokenKernel) -> tuple[str, Launch, list[Tensor]]:
    """The tools of the sanitizer that find something in a launch of a broken kernel, or "silent"; the launch, and what
    it returned."""
    with sanitize() as report:
        launch = case.launch()
        results = launch.run()
    return ", ".join(dict.fromkeys(finding.tool for finding in report.findings)) or "silent", launch, results


def caption() -> str:
    """Where the verdicts of a table come from."""
    return f"compute-sanitizer: {measured.caption(measured.load('sanitizer'))}; all else: the emulator"


def show_rows(rows: Sequence[Row]) -> None:
    """Draws what detects each broken kernel, and shows the rows with the lessons. The first column names the kernel."""
    plots.what_shows_it(rows)
    plt.show()
    table = [row | {"lesson": BROKEN[str(next(iter(row.values())))].lesson} for row in rows]
    show.table(table, f"each with its lesson; {caption()}", folded=True)


def results(folder: str) -> list[Row]:
    """Runs each broken kernel of a folder without a tool and under the sanitizer, and compares its results with
    float64.

    Columns: broken kernel, wrong, wrong when watched, sanitizer, and compute-sanitizer (recorded on a GPU).
    """
    rows: list[Row] = []
    for name, case in of_folder(folder).items():
        alone = case.launch()
        wrong = wrong_results(alone, alone.run())
        found, *when_watched = watched(case)
        rows.append(
            {
                "broken kernel": name,
                "wrong": wrong or "-",
                "wrong when watched": wrong_results(*when_watched) or "-",
                "sanitizer": found,
                "compute-sanitizer": found_on_gpu(name),
            }
        )
    return rows


def mended_are_right(folder: str) -> bool:
    """Whether the mended forms of a folder's broken kernels are right, without a finding of the sanitizer."""
    with sanitize() as report:
        mended = [case.mended() for case in of_folder(folder).values()]
        right = all(passes(launch, launch.run()) for launch in mended)
    return right and not report.findings


def passes(launch: Launch, results: Sequence[Tensor]) -> bool:
    """Whether all results of a launch are right."""
    return all(report.passed for report in attention_reports(launch, results))


def wrong_results(launch: Launch, results: list[Tensor]) -> str:
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
