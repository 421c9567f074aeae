"""What limits a kernel, by ncu: which units of a multiprocessor are busy, and what its warps wait for.

`bench bottlenecks` measures it on a GPU; the record is kept with the course. A stated bound is a count over a rate: the
wavefronts that the compiled kernel really makes, not the words that its source mentions, because the compiler merges
reads of neighbouring words.
"""

from __future__ import annotations

from collections.abc import Sequence

from course_utils import measured
from course_utils.launches.chapters import busy_launches
from course_utils.measured import Row
from course_utils.nvidia import tools

# Shares of what a unit can do at most, in percent. One wavefront a clock is the most that the data path of L1 gives,
# which global loads, local memory and shared memory share.
UNITS = {
    "L1 and shared memory": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
    "of it shared memory": "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed",
    "issue slots": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "fp32": "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "special functions": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_elapsed",
    "tensor cores": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "HBM": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
}
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts"
FMAS = "smsp__sass_thread_inst_executed_op_ffma_pred_on"
WARPS = "smsp__warps_active.avg.per_cycle_active"
_WAITS = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
# NVIDIA's names of what a warp waits for (Nsight Compute, Profiling Guide, "Warp Stall Reasons"), in plain words.
WAITS = {
    "long_scoreboard": "data from global or local memory",
    "short_scoreboard": "data from shared memory, or a special function",
    "mio_throttle": "a place in the queue to shared memory",
    "lg_throttle": "a place in the queue to global memory",
    "math_pipe_throttle": "a busy arithmetic unit",
    "gmma": "a product of a warpgroup",
    "barrier": "a barrier",
    "wait": "the fixed time of an instruction",
    "dispatch_stall": "the dispatcher",
    "no_instruction": "its next instruction",
    "branch_resolving": "a branch",
    "not_selected": "its turn: another warp was chosen",
    "sleeping": "a sleep",
    "membar": "a memory fence",
    "drain": "its last stores",
    "imc_miss": "a constant",
    "tex_throttle": "the texture queue",
    "misc": "something else",
}
METRICS = (
    *UNITS.values(),
    WARPS,
    WAVEFRONTS,
    f"{WAVEFRONTS}_mem_shared",
    FMAS,
    *map(_WAITS.format, WAITS),
)


def measure_bottlenecks() -> list[Row]:
    """UNITS, WAITS and counts of every launch that fills the GPU (`busy_launches`), on this machine's GPU.

    flops: what the algorithm needs, by the formula of the chapter. units: percent. waits: warps of a scheduler that
    wait for each reason while one instruction is issued; together with the one that issues they are `warps` over the
    share of busy issue slots. Raises ToolError if ncu cannot be used here.
    """
    launches = busy_launches()
    counted = tools.run_ncu([launch for launch, _ in launches.values()], METRICS)
    return [
        {
            "name": name,
            "launch": launch.describe(),
            "flops": flops,
            "units": {unit: found[metric] for unit, metric in UNITS.items() if metric in found},
            "warps": found[WARPS],
            "waits": {why: found[_WAITS.format(why)] for why in WAITS if _WAITS.format(why) in found},
            "wavefronts": found[WAVEFRONTS],
            "shared_wavefronts": found[f"{WAVEFRONTS}_mem_shared"],
            "fp32_fmas": found[FMAS],
        }
        for (name, (launch, flops)), found in zip(launches.items(), counted, strict=True)
    ]


def wavefronts_per_fma(row: Row) -> float:
    """Wavefronts of L1 and shared memory for each fp32 multiply-add of a warp, of one recorded row."""
    return row["wavefronts"] / (row["fp32_fmas"] / 32)


def allowed_tflops(row: Row) -> float:
    """TFLOP/s that the data path of L1 and shared memory allows, one wavefront a clock, at the highest clock: the
    kernel's own wavefronts over that rate. No recorded speed of the kernel may pass it."""
    chip = {found["name"]: found for found in measured.load("00_start_here").rows}
    rate = chip["streaming multiprocessors"]["count"] * chip["clock, at most"]["mhz"] * 1e6
    return row["flops"] / (row["wavefronts"] / rate) / 1e12


def waits_for(row: Row, most: int = 2) -> str:
    """What the warps of one recorded row wait for most, in words, the longest wait first: `most` reasons, and those
    that are as long as the last of these within 5 %."""
    waits = row["waits"]
    ranked = sorted(waits, key=lambda why: -waits[why])
    least = 0.95 * waits[ranked[most - 1]]
    return "; ".join(f"{WAITS[why]} ({why})" for why in ranked if waits[why] >= least)


def table(rows: Sequence[Row]) -> list[Row]:
    """Recorded rows as a table: busy units in percent, warps a scheduler, and what the warps wait for."""
    units = [unit for unit in UNITS if any(row["units"].get(unit, 0) >= 10 for row in rows)]
    return [
        {
            "kernel": row["name"],
            **{f"{unit}, %": row["units"][unit] for unit in units},
            "warps a scheduler": row["warps"],
            "a warp waits most for": waits_for(row, most=1),
        }
        for row in rows
    ]
