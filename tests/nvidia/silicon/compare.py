"""The emulator beside the record."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable

import numpy as np

from course_utils.cuda import CompileError, KernelError, LaunchError
from course_utils.measured import Row
from tests.nvidia.silicon.case import Case, results_of
from tests.nvidia.silicon.cases import cases


def compare(rows: Iterable[Row], chosen: Iterable[Case] | None = None) -> list[Row]:
    """A row for each case (None: all) that is recorded: whether the emulator leaves the same, and if not, what is
    different."""
    recorded = {(row["group"], row["name"]): row for row in rows}
    found: list[Row] = []
    for case in cases() if chosen is None else chosen:
        row = recorded.get((case.group, case.name))
        if row is None:
            continue
        found.append({"group": case.group, "case": case.name, "difference": _difference(case, row)})
    return found


def _difference(case: Case, row: Row) -> str:
    try:
        ours = results_of(case, case.run("cpu"))
    except KernelError as error:
        return "" if "error" in row else f"emulator: {str(error).splitlines()[0]}"
    except (CompileError, LaunchError) as error:
        return f"emulator: {str(error).splitlines()[0]}"
    if "error" in row:
        return f"silicon: {row['error']}"
    if all(row[key] == value for key, value in ours.items()):
        return ""
    if not case.sums:
        return "other bytes"
    a, b = (np.frombuffer(base64.b64decode(str(one["bytes"])), dtype=np.float32) for one in (ours, row))
    with np.errstate(all="ignore"):
        apart = np.abs(a.astype(np.float64) - b) / np.spacing(np.abs(b))
    return f"{int((a.view(np.int32) != b.view(np.int32)).sum())} of {a.size} sums, up to {np.nanmax(apart):.0f} ulps"


def summary(rows: Iterable[Row]) -> list[Row]:
    """How many cases of each group agree."""
    rows = list(rows)
    all_, same = Counter(row["group"] for row in rows), Counter(row["group"] for row in rows if not row["difference"])
    return [{"group": group, "cases": n, "the same bytes": same[group]} for group, n in all_.items()]
