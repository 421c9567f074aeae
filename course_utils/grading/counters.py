"""What the emulator's counters say of global memory: whether the threads of a warp access neighbours."""

from __future__ import annotations

from course_utils.emulator.profiler import CounterRow
from course_utils.grading.exercise import Outcome


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
