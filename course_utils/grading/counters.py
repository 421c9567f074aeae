"""What the emulator's counters say: whether the threads of a warp access neighbours in global memory, whether it is
read again and again, and whether they meet in the banks of shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from course_utils.emulator.profiler import CounterRow
from course_utils.grading.exercise import Case, Diagnosis, Outcome

FLOATS = 8  # numbers of a sector


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


def loaded_again(outcome: Outcome, needed: int, allowed: float, read_again: str) -> Diagnosis | None:
    """What is wrong where all loads of Q and K touch more than `allowed` times the sectors `needed`; else None.

    Where a warp takes one number for all lanes (a broadcast), it serves 32 results at once and is no sector.
    """
    rows = [row for row in outcome.counters if row.space == "global" and row.operation != "store"]
    sectors_of = {row: row.sectors / FLOATS if 2 * row.sectors <= row.ideal_sectors else row.sectors for row in rows}
    loaded = sum(sectors_of.values())
    if loaded <= allowed * needed:
        return None
    worst = max(rows, key=lambda row: sectors_of[row])
    return Diagnosis(
        "a block loads the same numbers of Q or K several times",
        f"The loads touch {loaded:,.0f} sectors in all; tiles that are loaded once need {needed:,} "
        f"({loaded / needed:.1f} times). Most of them here:\n{worst.line:6d} | {worst.source}",
        read_again,
    )


def bank_conflicts(outcome: Outcome, hints: Mapping[float, str], otherwise: str, read_again: str) -> Diagnosis | None:
    """What is wrong where a line's requests to shared memory take more wavefronts than they need; else None.

    hints: by how many threads meet in a bank; otherwise: for other numbers of them.
    """
    shared = [row for row in outcome.counters if row.space == "shared"]
    row = max(shared, key=lambda row: row.bank_conflicts, default=None)
    if row is None or not row.bank_conflicts:
        return None
    ways = row.wavefronts / row.ideal_wavefronts
    side = "read" if row.operation == "load" else "written"
    return Diagnosis(
        f"the tile is {side} with {ways:.3g}-way bank conflicts",
        f"Line {row.line}: {row.requests:,} requests take {row.wavefronts:,} wavefronts; {row.ideal_wavefronts:,} "
        f"would do. {hints.get(ways, otherwise)}\n{row.line:6d} | {row.source}",
        read_again,
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
