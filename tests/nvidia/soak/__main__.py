"""python -m tests.nvidia.soak [sparse] [LAUNCHES]: many launches of a forward pass, or of sparse attention both ways.

A hundred thousand launches of chapter 07's forward pass, or ten thousand of `sparse_attention` with its backward pass,
on a Hopper GPU. The first launch of each shape is compared with float64, and every later one with that launch's
results, bit for bit. Writes course_utils/measured/hopper_soak.json, or sparse_soak.json.
"""

from __future__ import annotations

import sys
import time

from course_utils import measured
from tests.nvidia.soak import dense, soak, sparse


def main() -> None:
    kind = sparse if "sparse" in sys.argv[1:] else dense
    (launches,) = [int(word) for word in sys.argv[1:] if word != "sparse"] or [kind.LAUNCHES]
    started = time.monotonic()
    rows = soak(launches, kind.shapes())
    wrong = sum(row["differ"] for row in rows)
    seconds = time.monotonic() - started
    print(f"{launches:,} launches of {len(rows)} shapes in {seconds:.0f} s: {wrong} differ from the first")
    measured.save(kind.RECORD, rows, kind.COMMAND)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
