"""The emulator's tools held against NVIDIA's: what both say of the same launches, and why, where they differ.

ncu's counts and compute-sanitizer's findings are the recorded ones (`bench counters` and `bench sanitizer`, --record);
the emulator's are made here and now. A difference without an explanation, and an explanation without a difference, fail
a test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from course_utils import measured
from course_utils.emulator.sanitizer import Finding
from course_utils.launches import Launch
from course_utils.measured import Measurement, Row
from course_utils.nvidia import arithmetic, hopper
from course_utils.nvidia.comparison import emulated_findings
from course_utils.nvidia.figures import FIGURES, emulated_figures, ncu_figures
from course_utils.nvidia.measure import Case, counter_cases, sanitizer_cases

PAGE = Path(__file__).resolve().parents[2] / "docs" / "validation.md"

# ---- counters


class Explained(NamedTuple):
    """A reason why counts differ, and where it is at work: {launch: {name in FIGURES: (the emulator's, ncu's)}}."""

    why: str
    launches: dict[str, dict[str, tuple[int, int]]]


_LOADS, _LOAD_CONFLICTS = "shared load wavefronts", "shared load bank conflicts"
_STORES, _STORE_CONFLICTS = "shared store wavefronts", "shared store bank conflicts"
_SUMS, _REQUESTS, _SECTORS = "shared atomic wavefronts", "global load requests", "global load sectors"
_WRITES, _WRITTEN = "global store requests", "global store sectors"
_REDUCTIONS, _REDUCED = "global atomic requests", "global atomic sectors"
EXPLAINED = (
    Explained(
        "The source reads neighbouring floats one by one, the same for all lanes of a warp: 1 wavefront each. The "
        "compiler reads four of them by one instruction (LDS.128), which takes 2 wavefronts instead of 4.",
        {
            "matmul_tiled": {_LOADS: (131072, 98304)},
            "scores, L=128": {_LOADS: (131072, 98304)},
            "scores, L=128, causal": {_LOADS: (131072, 98304)},
            "softmax, L=128": {_LOADS: (32768, 16526)},
            "matmul_registers": {_LOADS: (32768, 24576)},
            "forward_plain, L=256": {_LOADS: (790528, 532480)},
            "forward_plain, L=256, causal": {_LOADS: (494080, 332800)},
            "forward_fa1_order, L=256": {_LOADS: (1069056, 937984)},
            "forward_fa1_order, L=256, causal": {_LOADS: (668160, 586240)},
            "deepseek mla_reprojected": {_LOADS: (816, 408)},
        },
    ),
    Explained(
        "A warp copies four rows by cp.async, of which some are not there and become zeros. That takes more wavefronts "
        "than four rows, or four times zeros. We found no rule for their number; the emulator counts four.",
        {
            "deepseek mla_dense, small": {_STORES: (921, 954)},
            "deepseek sparse_mla, small": {_STORES: (709, 738)},
        },
    ),
    Explained(
        "The source reads a number again for each column: LSE and delta of a query. The compiler reads it once, and "
        "two neighbours by one instruction (LDS.64).",
        {
            "v2 backward_dk_dv, d=64, L=200": {_LOADS: (35104, 28960)},
            "v2 backward_dk_dv, d=128, L=200": {_LOADS: (94784, 90863)},
            "sparse block_sparse_dk_dv, L=200": {_LOADS: (45472, 41888)},
        },
    ),
    Explained(
        "From sm_90 on, one instruction adds four neighbouring floats in global memory, and the kernel uses it. The "
        "emulated device is an sm_80, for which the kernel adds them one by one.",
        {
            "v2 backward_dk_dv, d=64, L=200": {_REDUCTIONS: (1600, 400), _REDUCED: (25600, 6400)},
            "v2 backward_dk_dv, d=128, L=200": {_REDUCTIONS: (3200, 800), _REDUCED: (51200, 12800)},
            "sparse block_sparse_dk_dv, L=200": {_REDUCTIONS: (2912, 728), _REDUCED: (46592, 11648)},
        },
    ),
    Explained(
        "The source names the parts of a float4 or float2 in global memory one by one; the compiler reads all of it by "
        "one instruction (LDG.128, LDG.64).",
        {
            "backward_delta, L=128": {_REQUESTS: (512, 128), _SECTORS: (16384, 4096)},
            "sparse merge_parts, L=200": {_REQUESTS: (1152, 896), _SECTORS: (4736, 2688)},
        },
    ),
    Explained(
        "The source writes two neighbouring floats of a part at once, as a float2. The compiler writes them one by one "
        "(STG.32).",
        {
            "sparse block_sparse_dk_dv, L=200": {_WRITES: (648, 1160), _WRITTEN: (6272, 10368)},
        },
    ),
    Explained(
        "The source reads a word of the bits of a partial block again for each pair; the compiler reads it once.",
        {
            "sparse block_sparse_dk_dv, L=200": {_REQUESTS: (4980, 3188), _SECTORS: (23708, 20124)},
        },
    ),
    Explained(
        "Several warps ask for shared memory at the same time, and some of them wait. ncu counts each wait as a "
        "wavefront and a bank conflict more (where only conflicts are named here, the wavefronts above hold them). The "
        "number can change from run to run; the emulator counts conflicts within a warp only.",
        {
            "softmax, L=128": {_LOAD_CONFLICTS: (0, 142)},
            "backward_dq, L=128": {_LOADS: (18688, 18719), _LOAD_CONFLICTS: (0, 31)},
            "forward, L=256": {_LOADS: (65536, 65641), _LOAD_CONFLICTS: (0, 105)},
            "forward, L=256, causal": {_LOADS: (49152, 49241), _LOAD_CONFLICTS: (0, 89)},
            "v2 step2_tensor_cores, d=64, L=200": {
                _LOADS: (163840, 163966),
                _LOAD_CONFLICTS: (143360, 143486),
            },
            "v2 step2_tensor_cores, d=64, L=200, causal": {
                _LOADS: (163840, 163964),
                _LOAD_CONFLICTS: (143360, 143484),
            },
            "v2 step3_swizzle, d=64, L=200": {_LOADS: (20480, 20593), _LOAD_CONFLICTS: (0, 113)},
            "v2 step3_swizzle, d=64, L=200, causal": {_LOADS: (20480, 20580), _LOAD_CONFLICTS: (0, 100)},
            "v2 step4_double_buffer, d=64, L=200": {_STORES: (6656, 6719), _STORE_CONFLICTS: (0, 63)},
            "v2 backward_dk_dv, d=64, L=200": {_STORES: (6720, 6725), _STORE_CONFLICTS: (0, 5)},
            "v2 forward, d=128, L=200": {_LOADS: (18720, 18732), _LOAD_CONFLICTS: (0, 12)},
            "v2 forward, d=128, L=200, causal": {_LOADS: (11040, 11053), _LOAD_CONFLICTS: (0, 13)},
            "v2 backward_dk_dv, d=128, L=200": {_LOAD_CONFLICTS: (0, 175)},
            "deepseek mla_dense, small": {_STORE_CONFLICTS: (0, 21)},
            "deepseek sparse_mla, small": {_STORE_CONFLICTS: (0, 1)},
        },
    ),
    Explained(
        "Shared memory can add integers, but not floats. For a float the compiler writes a loop: read the sum, add, "
        "store if nobody else has been faster (compare and swap), else again. A round is a read of 1 wavefront and a "
        "swap of 2, and threads with one address take a round each; with one address for all, warps "
        "disturb each other as well. The emulator counts one wavefront a round.",
        {
            "add_shared_float one address": {_LOADS: (32, 4203), _SUMS: (1024, 7824)},
            "add_shared_float neighbours": {_LOADS: (32, 64), _SUMS: (32, 64)},
            "add_shared_float pairs": {_LOADS: (32, 96), _SUMS: (64, 128)},
            "add_shared_float quads": {_LOADS: (32, 160), _SUMS: (128, 256)},
            "add_shared_float eighths": {_LOADS: (32, 288), _SUMS: (256, 512)},
            "add_shared_float pairs 16 apart": {_LOADS: (32, 96), _SUMS: (64, 128)},
            "add_shared_float every fourth": {_LOADS: (32, 288), _SUMS: (256, 512)},
            "add_shared_float one hot, others alone": {_LOADS: (32, 288), _SUMS: (256, 517)},
        },
    ),
    Explained(
        "cp.async.cg copies around L1. Where eight neighbouring lanes write to more than one line of 128 bytes, it "
        "takes more wavefronts than cp.async.ca, and ncu calls none of them a bank conflict. We found no rule for "
        "their number; the emulator counts it like cp.async.ca. (Sectors are equal: the emulator counts one for every "
        "32 bytes of shared memory in which the eight lanes write, if that is more.)",
        {
            "copy_async 16 cg, pitch 2": {_STORES: (256, 1024), _STORE_CONFLICTS: (128, 0)},
            "copy_async 16 cg, pairs apart": {_STORES: (256, 512), _STORE_CONFLICTS: (128, 0)},
            "copy_async 16 cg, padded rows of 8": {_STORES: (128, 336)},
            "copy_async 16 cg, padded rows of 16": {_STORES: (128, 336)},
        },
    ),
)


def explained_differences(launch: str) -> dict[str, tuple[int, int]]:
    """The figures of a launch that EXPLAINED expects to differ: {name in FIGURES: (the emulator's, ncu's)}."""
    return {figure: both for reason in EXPLAINED for figure, both in reason.launches.get(launch, {}).items()}


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
        different = differences(emulated_figures(cases[name].launch), ncu_figures(metrics))
        if not different:
            rows.append({"launch": name, "figure": "all", "why they differ": ""})
        for figure, (ours, ncus) in different.items():
            why = _why(name, figure, (ours, ncus))
            rows.append({"launch": name, "figure": figure, "emulator": ours, "ncu": ncus, "why they differ": why})
    return rows


def _why(launch: str, figure: str, both: tuple[int, int]) -> str:
    reasons = (reason.why for reason in EXPLAINED if reason.launches.get(launch, {}).get(figure) == both)
    return next(reasons, "NOT EXPLAINED")


def differences(ours: dict[str, int], ncus: dict[str, int]) -> dict[str, tuple[int, int]]:
    """The FIGURES that both have and that differ: (the emulator's, ncu's)."""
    return {name: (ours[name], ncus[name]) for name in FIGURES if name in ncus and ours[name] != ncus[name]}


# ---- findings

_STOPS = "The GPU stops the kernel at the faulty access, whatever tool runs; the emulator reports it under memcheck."
_HANGS = (
    "On the GPU the deadlock never ends, whatever tool runs, and is stopped from outside. The emulator sees that no "
    "thread can go on, and reports it under synccheck."
)
_GLOBAL_ONLY = "compute-sanitizer's initcheck sees global memory only; these are reads of shared memory."
_FIRST = (
    "compute-sanitizer stops the kernel at its first faulty instruction; the emulator goes on, and also names the "
    "later read of the same places."
)
_ASM = (
    "The accesses are inline PTX in functions of kernels/include. compute-sanitizer names the asm statement, the "
    "emulator the line that calls its function."
)
SANITIZER: dict[tuple[str, str], str] = {
    ("too_few_warp_slots", "memcheck"): _FIRST,
    ("small_shared", "memcheck"): _FIRST,
    **{("small_shared", tool): _STOPS for tool in ("racecheck", "initcheck", "synccheck")},
    ("top_scores_overrun", "memcheck"): "The compiler keeps this local array in registers, and leaves the store "
    "past its end out: to the language, anything may happen there. What is not executed cannot be out of bounds.",
    **{("misaligned_float4", tool): _STOPS for tool in ("racecheck", "initcheck", "synccheck")},
    ("dq_without_atomics", "racecheck"): "compute-sanitizer's racecheck sees shared memory only; blocks race for dQ in "
    "global memory.",
    ("barrier_in_branch", "racecheck"): "It follows from the barrier that only some threads reach, which both report "
    "under synccheck: warp 1 reads the sum while warp 0 still adds to it. compute-sanitizer's racecheck is silent.",
    ("barrier_in_branch", "synccheck"): "Half of the threads wait in the loop, the others behind it. compute-sanitizer "
    "names one of the two places, the emulator both.",
    **{("shuffle_in_branch", tool): _HANGS for tool in ("memcheck", "racecheck", "initcheck", "synccheck")},
    (
        "missing_sync_in_reduction",
        "racecheck",
    ): "The compiler reads the sums of four warps by one instruction, and gives "
    "it the line of the loop. In the source, the first of them is read one line above.",
    ("copy_before_barrier", "racecheck"): _ASM,
    ("wait_for_one_group_less", "racecheck"): _ASM,
    ("wrong_stride", "initcheck"): _GLOBAL_ONLY,
    ("no_zero_fill", "initcheck"): _GLOBAL_ONLY,
    (
        "histogram_without_barrier",
        "racecheck",
    ): "One side of the race is an atomic, of which compute-sanitizer's racecheck says nothing here.",
    ("index_past_the_end", "memcheck"): _ASM,
}

# Kernels that nothing is wrong with, of which compute-sanitizer's racecheck names lines all the same; and why.
FALSE_ALARMS = dict.fromkeys(
    (
        "sparse hopper block_sparse_forward, d=128, hard",
        "sparse hopper block_sparse_backward, d=128, hard",
        *(
            f"{kernel}, d={d}, hard{more}"
            for d in (64, 128)
            for kernel, more in (
                ("hopper step6_persistent", ""),
                ("hopper forward", ""),
                ("hopper forward_e4m3", ""),
                ("hopper backward", ""),
                ("hopper backward", ", in turns"),
                ("sparse hopper range_forward, streaming", ""),
                ("sparse hopper range_forward, dilated", ""),
                ("sparse hopper table_forward, documents", ""),
                ("sparse hopper range_backward, streaming", ""),
                ("sparse hopper range_backward, streaming in turns", ""),
                ("sparse hopper range_backward, dilated", ""),
                ("sparse hopper range_backward, dilated in turns", ""),
            )
        ),
    ),
    "One lane gives a buffer back for its warp: it arrives at an mbarrier, for which the producer waits before it "
    "fills the buffer again. A `__syncwarp` in front of the arrival, or a barrier of the warpgroup, makes sure that "
    "the other lanes have read by then. "
    "Likely racecheck takes an mbarrier for an order only of threads that arrive themselves: of `ring`, where each "
    "lane arrives, it says nothing. Changed so that one lane arrives for all, `ring` was named with and without a "
    "`__syncwarp` (tried by hand, NVIDIA H200, 2026-11-27). In `range_backward`, whose blocks stay, the place that dQ "
    "and dV share and what is known of an item are handed on in the same way.",
)

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


def verdicts(recorded: list[Row], findings: Callable[[Launch], list[Finding]] = emulated_findings) -> list[Verdict]:
    """One per launch and tool that was recorded. findings: what the emulator finds in a launch."""
    rows = {(row["name"], row["state"], row["tool"]): row for row in recorded}
    result = []
    for case in tqdm(sanitizer_cases(), desc="emulator", leave=False):
        found = findings(case.launch)
        for tool in case.tools:
            if row := rows.get((case.name, case.state, tool)):
                ours = _lines((f.line, f.other_line) for f in found if f.tool == tool)
                nvidias = _lines((f["line"], f["other_line"]) for f in row["findings"])
                result.append(Verdict(case.name, case.state, tool, ours, nvidias, row["failure"]))
    return result


def _lines(places: Iterable[tuple[int | None, int | None]]) -> Lines:
    return tuple(sorted({tuple(line for line in place if line is not None) for place in places}))


def sanitizer_table(results: list[Verdict]) -> list[Row]:
    """A row per broken kernel and verdict, with the tools that give it; and one for a kernel of which none says
    anything."""
    tools: dict[tuple[str, ...], list[str]] = {}  # by what the row says
    broken = [verdict for verdict in results if verdict.state == "broken"]
    for name in dict.fromkeys(verdict.name for verdict in broken):
        spoken = [v for v in broken if v.name == name and (v.ours or v.nvidias or v.failure)]
        for v in spoken:
            why = "" if v.agrees else SANITIZER.get((name, v.tool), "NOT EXPLAINED")
            nvidias = _text(v.nvidias) if v.nvidias or not v.failure else v.failure
            tools.setdefault((name, _text(v.ours), nvidias, why), []).append(v.tool)
        if not spoken:
            tools[name, "-", "-", ""] = ["all"]
    return [
        {
            "broken kernel": name,
            "tool": ", ".join(by),
            "ours (line)": ours,
            "compute-sanitizer (line)": nvidias,
            "why they differ": why,
        }
        for (name, ours, nvidias, why), by in tools.items()
    ]


def _text(lines: Lines) -> str:
    places = dict.fromkeys(" and ".join(map(str, sorted(set(place)))) for place in lines)
    return ", ".join(places) or "-"


def false_alarms(results: list[Verdict]) -> str:
    """How many launches of mended and clean kernels each side complains about, as a sentence."""
    clean = [verdict for verdict in results if verdict.state != "broken"]
    launches = {(v.name, v.state) for v in clean}
    ours = {(v.name, v.state) for v in clean if v.ours}
    nvidias = {(v.name, v.state) for v in clean if v.nvidias or v.failure}
    count = len(launches)
    return f"False alarms: ours {len(ours)} of {count} clean launches, compute-sanitizer {len(nvidias)} of {count}"


def false_alarm_table(results: list[Verdict]) -> list[Row]:
    """A row for each clean kernel, or several of the same lines, that compute-sanitizer complains about."""
    named: dict[tuple[str, str, str], list[str]] = {}
    for v in results:
        if v.state != "broken" and v.nvidias:
            why = FALSE_ALARMS.get(v.name, "NOT EXPLAINED") if v.tool == "racecheck" else "NOT EXPLAINED"
            named.setdefault((v.tool, _text(v.nvidias), why), []).append(v.name)
    return [
        {"clean kernel": "; ".join(names), "tool": tool, "compute-sanitizer (line)": lines, "why": why}
        for (tool, lines, why), names in named.items()
    ]


# ---- the page


def page(results: list[Verdict]) -> str:
    """docs/validation.md with its figures made anew, and where and when NVIDIA's side was recorded: each piece stands
    between `<!-- name -->` and `<!-- end of name -->`.

    Raises ValueError where the page lacks one of these marks.
    """
    text = PAGE.read_text(encoding="utf-8")
    for name, made in _pieces(results).items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->\n")
        if not (begin and end):
            raise ValueError(f"{PAGE} lacks the marks of {name!r}")
        text = f"{before}{begin}\n{made}\n\n{end}{after}"
    return text


def _pieces(results: list[Verdict]) -> dict[str, str]:
    """What the page shows of records and of the emulator, by the name of the piece."""
    names = ("sanitizer", "counters", "arithmetic", "silicon", "asynchronous", "compute_sanitizer_verdicts")
    sanitizer, counters, of_arithmetic, silicon, planted, verdicts = map(measured.load, names)
    alarms = f"{false_alarms(results)}. The clean launches are the same kernels mended, and the kernels of the course."
    return {
        "findings": _paragraphs(
            f"compute-sanitizer {_origin(sanitizer, 'compute-sanitizer')}.",
            *_with_notes(sanitizer_table(results), "why they differ"),
            alarms,
            *_with_notes(false_alarm_table(results), "why"),
        ),
        "what ours alone know": _with_origin(verdicts, verdicts.rows),
        "counters": _paragraphs(
            "\n".join(f"- {figure}" for figure in FIGURES),
            f"ncu {_origin(counters, 'ncu')}.",
            _markdown(_agreement()),
            _other_count(counters),
        ),
        "differences of counters": _paragraphs(
            *(part for reason in EXPLAINED for part in (reason.why, _markdown(_explained_rows(reason))))
        ),
        "arithmetic": _with_origin(of_arithmetic, arithmetic.counts()),
        "bytes on Hopper": _with_origin(silicon, hopper.groups(silicon)),
        "planted mistakes": _with_origin(planted, planted.rows),
    }


def _paragraphs(*parts: str) -> str:
    return "\n\n".join(parts)


def _with_origin(record: Measurement, rows: list[Row]) -> str:
    return _paragraphs(f"{_origin(record)}.", _markdown(rows))


def _origin(measurement: Measurement, program: str | None = None) -> str:
    return ", ".join([*([measurement.versions[program]] if program else []), measured.caption(measurement)])


def _group(case: Case) -> str:
    return Path(case.launch.source).stem if case.group == "micro" else "kernels of the course"


def _agreement() -> list[Row]:
    counted = [case for case in counter_cases() if case.group != "large"]
    explained = Counter(_group(case) for case in counted if explained_differences(case.name))
    return [
        {"kernels": group, "launches": n, "all figures equal": n - explained[group], "explained": explained[group]}
        for group, n in Counter(map(_group, counted)).items()
    ]


def _other_count(counters: Measurement) -> str:
    """What ncu's other wavefronts are, with one launch as the example."""
    name, metric = "read_float4 partners 1 and 1, 1", "pipe_lsu_wavefronts_mem_shared_op_ld"
    metrics = counters.select(name=name)[0]["metrics"]
    at_l1, per_instruction = metrics[f"l1tex__data_{metric}"], metrics[f"smsp__sass_l1tex_data_{metric}"]
    return (
        "ncu has two counts of wavefronts. The one named `l1tex__...` comes from the unit that holds shared memory, "
        "and is used here. The one named\n`smsp__sass_...` belongs to instructions, and is another count: for "
        f"`{name}` it says {per_instruction}, where `l1tex__...`\nand the emulator say {at_l1}. "
        "We use it only for the stores of cp.async, which have no other."
    )


def _explained_rows(reason: Explained) -> list[Row]:
    return [
        {"launch": launch, **{figure: f"{ours} / {ncus}" for figure, (ours, ncus) in figures.items()}}
        for launch, figures in reason.launches.items()
    ]


def _with_notes(rows: list[Row], key: str) -> tuple[str, str]:
    """A table whose long texts under `key` are replaced by numbers, and the numbered list of them."""
    notes = list(dict.fromkeys(row[key] for row in rows if row[key]))
    numbered = [{**row, key: f"({notes.index(row[key]) + 1})" if row[key] else ""} for row in rows]
    return _markdown(numbered), "\n".join(f"{n}. {note}" for n, note in enumerate(notes, 1))


def _markdown(rows: list[Row]) -> str:
    keys = list(dict.fromkeys(key for row in rows for key in row))
    lines = [keys, ["---"] * len(keys), *([str(row.get(key, "")) for key in keys] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
