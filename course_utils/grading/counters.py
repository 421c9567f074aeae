"""What the emulator's counters say of global memory: whether the threads of a warp access neighbours."""

from __future__ import annotations

from dataclasses import replace

from course_utils.emulator.profiler import CounterRow
from course_utils.grading.exercise import Case, Diagnosis, Outcome


def scattered(outcome: Outcome, operation: str, allowed: float = 1.0) -> CounterRow | None:
    """The line whose accesses to global memory touch the most sectors too many; None where no line has more than
    `allowed` times those that hold its bytes. operation: "load" or "store"; an atomic function does both."""
    rows = [row for row in outcome.counters if row.space == "global" and row.operation in (operation, "atomic")]
    rows = [row for row in rows if row.sectors > allowed * row.ideal_sectors]
    return max(rows, key=lambda row: row.sectors - row.ideal_sectors, default=None)


def sectors(row: CounterRow) -> str:
    """The evidence against such a line, for `Diagnosis.detail`."""
    return (
        f"line {row.line}: {row.sectors / row.requests:.4g} sectors per request, where "
        f"{row.ideal_sectors / row.requests:.4g} would hold the numbers; neighbouring threads (threadIdx.x) should "
        f"have neighbouring addresses here\n{row.line:6d} | {row.source}"
    )


def counters_only(case: Case, where: str) -> Case:
    """The same launch, judged by its counters alone: its values are the business of other parts.

    where: goes before the name of what the review finds ("where tiles are cut off").
    """

    def reviewed(case: Case, outcome: Outcome) -> Diagnosis | None:
        found = review(case, outcome)
        return found and replace(found, name=f"{where}, {found.name}")

    review = case.review
    outputs = {name: replace(output, kind="scratch") for name, output in case.outputs.items()}
    return replace(case, outputs=outputs, must_be_clean=False, compare=None, review=reviewed)
