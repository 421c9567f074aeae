"""What docs/validation.md says of the emulated sm_90a beside a Hopper GPU."""

from __future__ import annotations

from collections import Counter

from course_utils.measured import Measurement, Row

# Cases in which the emulator does something else than the GPU did, and why.
TRY_WAIT = (
    "A try_wait for a phase that cannot come gives up after a while on a GPU, and would be asked again for ever. "
    "The emulator says that it is a deadlock."
)
EXPLAINED = {("others", "try_wait gives up"): TRY_WAIT}
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
INTRODUCTION = """\
Kernels for sm_90a run on the emulator, too. Small ones ran on a GPU, one for each form of each instruction, and on the
emulator. Compared are all bytes that they leave. Where sums are exact, nothing else could be right; where they are
rounded, the emulator rounds as the GPU does. Where the GPU stops with an error, so does the emulator.
`python -m tests.nvidia.silicon` runs them on a Hopper GPU; without a GPU it compares the record with the emulator.
"""
SUMS = """\
wgmma adds the products of one instruction, and D before it, as one sum. NVIDIA does not say how. On the GPU, all bits
of all sums of the record are those of this rule. The exponent of a product is the sum of its factors' exponents. Each
term is cut, toward zero, at a number of bits behind the greatest exponent of all terms. The rest is added exactly, and
the sum is cut, toward zero again. Of fp16 and bf16, 25 bits behind the greatest exponent count, and 24 bits of the sum
stay, as many as fp32 has. Of E4M3 and E5M2, only 13 bits count, and 14 stay: a long sum in FP8 needs a second
accumulator. `emulator.configure(exact_sums=True)` adds exactly instead.
"""
NOT_CHECKED = """\
Not checked on a GPU: when an asynchronous copy or product is done (the emulator does each as late as the rules allow);
which kernels hang (none that might was launched); clusters of more than 8 blocks; the profiler's counters of products,
copies and waits, which ncu was not asked for; compute-sanitizer on planted mistakes that never end, or stop the GPU
with an error.

Some rules of PTX no bytes can show: a GPU may keep a promise that PTX does not make. The emulator keeps only what PTX
promises, where it can.

- A bulk store that was waited for with `wait_group.read` has read its source, and no more. The emulator keeps its
  bytes from global memory until a `wait_group` without `.read`, or the end of the block; with
  `configure(order="early")` it does not. A kernel that reads them back before sees the old ones; on a GPU the new
  ones may be there.
- setmaxnreg is counted for each thread: a thread that asks for more waits until threads of its block have given back
  as many. A GPU gives registers to whole warps. The emulator assumes that a block has begun with as many registers a
  thread as fit into a multiprocessor; ptxas may have chosen fewer.
- What `.relaxed`, `.acquire`, scopes (`.cta`, `.cluster`) and fences order. A plain launch orders all of it: the
  threads of a block take turns. asynccheck looks at `.relaxed` of an arrival at an mbarrier, and at fences, but not
  at scopes.
"""
PLANTED = """\
Mistakes are planted in correct kernels for sm_90a, one at a time. The table has the kernels as they are, and those
mistakes that were expected to end by themselves on a GPU. "ours" is the tool and the line that it names. In the columns
of compute-sanitizer are the lines that it names; "-" is silence. It does not watch what wgmma reads, and when: what it
finds are races of ordinary accesses and of cp.async. racecheck also names lines of the correct
`cluster_softmax`, which mbarriers put in order, and of the correct `forward`, where blocks fetch a second item: the
false alarms explained above. asynccheck is silent there. Under memcheck the process of
`cluster_softmax` ends with or without a mistake, and under the other tools it does not: we do not know why. It is asked
again by `{command}`.
"""


def section(measurement: Measurement, origin: str, planted: Measurement, its_origin: str, table: object) -> str:
    """The section, in Markdown. planted: compute-sanitizer's verdicts; table: makes one of rows."""
    recorded = Counter(str(row["group"]) for row in measurement.rows)
    explained = Counter(group for group, _ in EXPLAINED)
    rows: list[Row] = [
        {"what ran": text, "cases": recorded[group], "explained differences": explained[group]}
        for group, text in GROUPS.items()
        if recorded[group]
    ]
    reasons: dict[str, list[str]] = {}
    for (_, name), reason in EXPLAINED.items():
        reasons.setdefault(reason, []).append(name)
    listed = [f"- {reason} ({', '.join(names)})" for reason, names in reasons.items()]
    parts = [
        "## Hopper: the bytes that a GPU leaves\n",
        INTRODUCTION,
        f"{origin}.\n",
        table(rows),  # type: ignore[operator]
        "\n### What differs, and why\n",
        *listed,
        "\n### How a tensor core adds\n",
        SUMS,
        "### Where compute-sanitizer is silent\n",
        PLANTED.format(command=planted.command),
        f"{its_origin}.\n",
        table(planted.rows),  # type: ignore[operator]
        "\n### What was not checked\n",
        NOT_CHECKED,
    ]
    return "\n".join(parts)
