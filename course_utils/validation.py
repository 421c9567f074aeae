"""The emulator's tools held against NVIDIA's: what both say of the same launches, and why, where they differ.

ncu's counts and compute-sanitizer's findings are the recorded ones (`bench counters` and `bench sanitizer`, --record);
the emulator's are made here and now. A difference without an explanation, and an explanation without a difference, fail
a test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from course_utils import measured, nvidia_tools
from course_utils.bench_counters import Case, counter_cases, sanitizer_cases
from course_utils.measured import Measurement, Row
from course_utils.nvidia_tools import FIGURES

# ---- counters


class Explained(NamedTuple):
    """Why the figures of a launch differ, and both: {name in FIGURES: (the emulator's, ncu's)}."""

    why: str
    figures: dict[str, tuple[int, int]]


_WIDE = "The compiler reads four neighbouring floats, the same for all lanes, by one LDS.128: 2 wavefronts, not 4. "
_K_V = _WIDE + "Here those of K and V; the last float of a row of V it reads once more."
_WAVEFRONTS = "shared load wavefronts"
COUNTERS: dict[str, Explained] = {
    "copy_async 16 cg, pitch 2": Explained(
        "cp.async.cg goes around L1 and brings whole sectors of 32 bytes. Where the two copies of a sector go to "
        "places apart, each takes a sector and a wavefront of its own. The emulator counts it like cp.async.ca.",
        {
            "global load sectors": (640, 1152),
            "shared store wavefronts": (256, 1024),
            "shared store bank conflicts": (128, 0),
        },
    ),
    "matmul_tiled": Explained(_WIDE + "Here those of A.", {_WAVEFRONTS: (131072, 98304)}),
    "scores, L=128": Explained(_WIDE + "Here those of Q.", {_WAVEFRONTS: (131072, 98304)}),
    "scores, L=128, causal": Explained(_WIDE + "Here those of Q.", {_WAVEFRONTS: (131072, 98304)}),
    "softmax, L=128": Explained(_WIDE + "Here those of the warps.", {_WAVEFRONTS: (32768, 16384)}),
    "forward_plain, L=256": Explained(_K_V, {_WAVEFRONTS: (790528, 532480)}),
    "forward_plain, L=256, causal": Explained(_K_V, {_WAVEFRONTS: (494080, 332800)}),
    "forward_fa1_order, L=256": Explained(_WIDE + "Here those of K.", {_WAVEFRONTS: (1069056, 937984)}),
    "forward_fa1_order, L=256, causal": Explained(_WIDE + "Here those of K.", {_WAVEFRONTS: (668160, 586240)}),
    "backward_delta, L=128": Explained(
        "The source names .x, .y, .z and .w of each float4 one by one; the compiler reads all four by one LDG.128.",
        {"global load requests": (512, 128), "global load sectors": (16384, 4096)},
    ),
}


def compare_counters(recorded: list[Row]) -> list[Row]:
    """A row per figure that ncu and the emulator count differently, and one per launch where all are equal; for the
    large launches, HBM bytes beside the bytes of their tensors."""
    cases = {case.name: case for case in counter_cases()}
    rows: list[Row] = []
    for record in tqdm(recorded, desc="emulator", leave=False):
        metrics, name = record["metrics"], str(record["name"])
        if record["group"] == "large":
            rows += [
                {"launch": name, "figure": f"HBM bytes {way}", "tensors": record[tensors], "ncu": metrics.get(metric)}
                for way, tensors, metric in [
                    ("read", "bytes_only_read", "dram__bytes_read"),
                    ("written", "bytes_written", "dram__bytes_write"),
                ]
            ]
            continue
        if name not in cases:
            continue
        different = differences(nvidia_tools.emulated_figures(cases[name].launch), nvidia_tools.ncu_figures(metrics))
        if not different:
            rows.append({"launch": name, "figure": "all", "why they differ": ""})
        for figure, (ours, ncus) in different.items():
            known = name in COUNTERS and COUNTERS[name].figures.get(figure) == (ours, ncus)
            why = COUNTERS[name].why if known else "NOT EXPLAINED"
            rows.append({"launch": name, "figure": figure, "emulator": ours, "ncu": ncus, "why they differ": why})
    return rows


def differences(ours: dict[str, int], ncus: dict[str, int]) -> dict[str, tuple[int, int]]:
    """The FIGURES that both have and that differ: (the emulator's, ncu's)."""
    return {name: (ours[name], ncus[name]) for name in FIGURES if name in ncus and ours[name] != ncus[name]}


# ---- findings

_STOPS = "The GPU stops the kernel at the faulty access, whatever tool runs; the emulator reports it under memcheck."
_HANGS = "On the GPU the deadlock never ends, whatever tool runs; the emulator sees that nobody can go on: synccheck."
_GLOBAL_ONLY = "compute-sanitizer's initcheck sees global memory only; these are reads of shared memory."
_FIRST = (
    "compute-sanitizer stops the kernel at its first faulty instruction; the emulator goes on, and names the later "
)
SANITIZER: dict[tuple[str, str], str] = {
    ("too_few_warp_slots", "memcheck"): _FIRST + "read of the same places, too.",
    ("small_shared", "memcheck"): _FIRST + "read of the same places, too.",
    **{("small_shared", tool): _STOPS for tool in ("racecheck", "initcheck", "synccheck")},
    ("top_scores_overrun", "memcheck"): "The compiler keeps the array in registers: its code has no access to local "
    "memory (no LDL or STL), so none is out of bounds. The store past the end is undefined behaviour, and left out.",
    **{("misaligned_float4", tool): _STOPS for tool in ("racecheck", "initcheck", "synccheck")},
    ("dq_without_atomics", "racecheck"): "compute-sanitizer's racecheck sees shared memory only; blocks race for dQ in "
    "global memory.",
    ("barrier_in_branch", "racecheck"): "A result of the divergent barrier, which synccheck reports in both: warp 1 "
    "reads the sum while warp 0 still adds to it. compute-sanitizer's racecheck does not report it.",
    ("barrier_in_branch", "synccheck"): "One mistake has two places. compute-sanitizer stops at the threads that wait "
    "behind the loop while others are still in it; the emulator names both places.",
    **{("shuffle_in_branch", tool): _HANGS for tool in ("memcheck", "racecheck", "initcheck", "synccheck")},
    (
        "ragged_tail",
        "memcheck",
    ): "K ends where the next allocation begins, so the row past its end is valid memory of S.",
    ("missing_sync_in_reduction", "racecheck"): "The compiler reads the sums of four warps by one LDS.128 and gives "
    "it the line of the loop; in the source the first of them is read a line above.",
    ("wrong_stride", "initcheck"): _GLOBAL_ONLY,
    ("no_zero_fill", "initcheck"): _GLOBAL_ONLY,
}

Lines = tuple[tuple[int, ...], ...]  # of each finding: its line, and the other party's if it has one


class Verdict(NamedTuple):
    """What both say of a launch under one tool. failure: why the kernel did not end on the GPU, if it did not."""

    name: str
    state: str
    tool: str
    ours: Lines
    nvidias: Lines
    failure: str

    @property
    def agrees(self) -> bool:
        """Whether both name the same lines, as a set; a crash without a finding is no agreement."""
        return set(sum(self.ours, ())) == set(sum(self.nvidias, ())) and bool(self.nvidias or not self.failure)


def verdicts(recorded: list[Row]) -> list[Verdict]:
    """One per launch and tool that was recorded; the emulator runs every launch."""
    rows = {(row["name"], row["state"], row["tool"]): row for row in recorded}
    result = []
    for case in tqdm(sanitizer_cases(), desc="emulator", leave=False):
        found = nvidia_tools.emulated_findings(case.launch)
        for tool in case.tools:
            if row := rows.get((case.name, case.state, tool)):
                ours = _lines((f.line, f.other_line) for f in found if f.tool == tool)
                nvidias = _lines((f["line"], f["other_line"]) for f in row["findings"])
                result.append(Verdict(case.name, case.state, tool, ours, nvidias, row["failure"]))
    return result


def _lines(places: Iterable[tuple[int | None, int | None]]) -> Lines:
    return tuple(sorted({tuple(line for line in place if line is not None) for place in places}))


def sanitizer_table(results: list[Verdict]) -> list[Row]:
    """A row per broken kernel and tool that says something of it, and one for a kernel of which none does."""
    rows: list[Row] = []
    broken = [verdict for verdict in results if verdict.state == "broken"]
    for name in dict.fromkeys(verdict.name for verdict in broken):
        spoken = [v for v in broken if v.name == name and (v.ours or v.nvidias or v.failure)]
        for v in spoken:
            why = "" if v.agrees else SANITIZER.get((name, v.tool), "NOT EXPLAINED")
            nvidias = _text(v.nvidias) if v.nvidias or not v.failure else v.failure
            rows.append(
                {
                    "broken kernel": name,
                    "tool": v.tool,
                    "ours (line)": _text(v.ours),
                    "compute-sanitizer (line)": nvidias,
                    "why they differ": why,
                }
            )
        if not spoken:
            rows.append({"broken kernel": name, "tool": "all", "ours (line)": "-", "compute-sanitizer (line)": "-"})
    return rows


def _text(lines: Lines) -> str:
    return ", ".join(" and ".join(map(str, dict.fromkeys(place))) for place in lines) or "-"


def false_alarms(results: list[Verdict]) -> str:
    """How many launches of mended and clean kernels each side complains about, as a sentence."""
    clean = [verdict for verdict in results if verdict.state != "broken"]
    launches = {(v.name, v.state) for v in clean}
    ours = {(v.name, v.state) for v in clean if v.ours}
    nvidias = {(v.name, v.state) for v in clean if v.nvidias or v.failure}
    count = len(launches)
    return f"false alarms: ours {len(ours)} of {count} clean launches, compute-sanitizer {len(nvidias)} of {count}"


# ---- the page

_INTRODUCTION = """\
# The emulator's tools beside NVIDIA's

`sanitize()` and `profile()` run kernels on a CPU. This page holds what they say against what compute-sanitizer and ncu
say of the same launches on a GPU. Tests repeat the comparison, so that a model that drifts is noticed.
This page is written by

    python -m course_utils bench sanitizer --markdown docs/validation.md
"""


def page(results: list[Verdict]) -> str:
    """docs/validation.md: both comparisons, with where and when NVIDIA's side was recorded."""
    sanitizer, counters = measured.load("sanitizer"), measured.load("counters")
    return "\n".join(
        [
            _INTRODUCTION,
            "## Findings\n",
            f"compute-sanitizer {_origin(sanitizer, 'compute-sanitizer')}. Each kernel has one planted mistake, or a "
            "mistake that only a\ncomparison of numbers or the profiler shows: those take no finding. A race has two "
            "lines.\n",
            _markdown(sanitizer_table(results)),
            f"\n{false_alarms(results)}. The clean launches are the same kernels mended, and the kernels of the "
            "course.\n",
            "## Counters\n",
            f"ncu {_origin(counters, 'ncu')}. Compared are, per launch: {', '.join(FIGURES)}.\n",
            _markdown(_agreement()),
            "\nWhere they differ, the compiler or the hardware does something that the source does not say:\n",
            _markdown(_explained_counters()),
            "",
        ]
    )


def _origin(measurement: Measurement, program: str) -> str:
    return f"{measurement.versions[program]}, {measured.caption(measurement)}"


def _group(case: Case) -> str:
    return Path(case.launch.source).stem if case.group == "micro" else "kernels of the course"


def _agreement() -> list[Row]:
    counted = [case for case in counter_cases() if case.group != "large"]
    launches, explained = Counter(map(_group, counted)), Counter(_group(c) for c in counted if c.name in COUNTERS)
    return [
        {"kernels": group, "launches": n, "all figures equal": n - explained[group], "explained": explained[group]}
        for group, n in launches.items()
    ]


def _explained_counters() -> list[Row]:
    return [
        {"launch": name, "figure": figure, "emulator": ours, "ncu": ncus, "why they differ": explained.why}
        for name, explained in COUNTERS.items()
        for figure, (ours, ncus) in explained.figures.items()
    ]


def _markdown(rows: list[Row]) -> str:
    keys = list(dict.fromkeys(key for row in rows for key in row))
    lines = [keys, ["---"] * len(keys), *([str(row.get(key, "")) for key in keys] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
