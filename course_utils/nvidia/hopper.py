"""What docs/validation.md says of the emulated sm_90a beside a Hopper GPU."""

from __future__ import annotations

from collections import Counter

from course_utils.measured import Measurement, Row

# By group and name the cases in which the emulator does something else than the GPU did; docs/validation.md says why.
EXPLAINED = {("others", "try_wait gives up")}
GROUPS = {
    "products": "wgmma with small integers: each width, type and sign, A in shared memory or registers, K-major and "
    "MN-major, each swizzle, several steps",
    "layouts": "which bytes a descriptor of wgmma leads to: offsets, starts inside of a tile, base offsets",
    "sums": "wgmma with random numbers, with few large and many small ones, with infinities",
    "copies": "cp.async.bulk and tensor maps of 1 to 5 dimensions: loads, stores and sums into memory, each swizzle, "
    "boxes over the edge",
    "others": "mbarriers and what they return, named barriers, ldmatrix, stmatrix, elect.sync, setmaxnreg, hints, "
    "integer intrinsics",
    "clusters": "2, 4 and 8 blocks: each other's shared memory, remote arrivals, multicast",
    "maps": "the 128 bytes of a tensor map, beside the driver's",
}


def groups(record: Measurement) -> list[Row]:
    """What ran, how many cases of it, and how many differ for a reason."""
    cases, explained = Counter(str(row["group"]) for row in record.rows), Counter(group for group, _ in EXPLAINED)
    return [
        {"what ran": text, "cases": cases[group], "explained differences": explained[group]}
        for group, text in GROUPS.items()
        if cases[group]
    ]
