"""Chapter 03's ladder: what each step requests of memory, how fast it is, what it changes and what it costs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor

from course_utils import checks, measured, plots, reference, show
from course_utils.chapters import broken_kernels
from course_utils.chapters.ceilings import BY_MMA, ceilings, peak
from course_utils.chapters.tensors import is_right, normal
from course_utils.chapters.timed_ladder import ALL_CASES, TimedLadder, title
from course_utils.cuda import read_kernel
from course_utils.emulator import profile
from course_utils.launches.ladder import FORWARD, LADDER, TUNING, Step, launch
from course_utils.measured import Row
from course_utils.measured.flash_attention_v2 import TOKENS, WIDTH
from course_utils.operators import flash_attention_v2
from course_utils.toolchain import nvrtc

CHAPTER = "03_flash_attention_v2"
BROKEN_FOLDER = f"{CHAPTER}/broken"
LENGTH = 8192  # of the timed ladder
PEERS = ("torch FLASH", "torch cuDNN")


def _ladder() -> list[Row]:
    """The ladder's rows, measured on this GPU."""
    from course_utils.bench.flash_attention_v2 import ladder

    return ladder(lengths=(LENGTH,))


TIMED = TimedLadder(
    functools.partial(measured.live_or_recorded, CHAPTER, _ladder),
    "ladder",
    LADDER,
    PEERS,
    LENGTH,
    f"B · L = {TOKENS}, H · d = {WIDTH}, fp16",
)
rung, speed, gain, climb, whole_ladder = TIMED.rung, TIMED.speed, TIMED.gain, TIMED.climb, TIMED.whole_ladder


def check_all() -> None:
    """Runs each step once, causal, with GQA, on lengths that no tile divides, and prints whether it is right
    (float64)."""
    inputs = normal(1, 4, 100, 64), normal(1, 2, 130, 64, seed=1), normal(1, 2, 130, 64, seed=2)
    expected = reference.attention(*inputs, is_causal=True, enable_gqa=True, return_lse=True)
    for step in LADDER:
        print(f"{step.title:15} right: {is_right(launch(step, *inputs, is_causal=True), expected)}")


def check(dtype: torch.dtype, head_dims: tuple[int, ...] = (64,), longest: int = 70, **options: object) -> str:
    """How many comparisons of the operator with float64 pass; options as for `check_attention`."""
    cases = checks.attention_cases(head_dims=head_dims, enable_gqa=options.get("enable_gqa", False))
    cases = [case for case in cases if max(case.query_length, case.key_length) <= longest]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    reports = checks.check_attention(flash_attention_v2, device=device, dtype=dtype, cases=cases, seed=0, **options)
    return f"{len(cases)} cases, {len(reports)} comparisons, all passed: {all(report.passed for report in reports)}"


def mistakes() -> None:
    """Shows the ladder's broken kernels: the sanitizer's verdicts here and on a GPU, and what is wrong in the
    result."""
    table = []
    for name, case in broken_kernels.of_folder(BROKEN_FOLDER).items():
        found, *of_launch = broken_kernels.watched(case)
        assert found == ("silent" if case.tool == "check" else case.tool)
        wrong = broken_kernels.wrong_results(*of_launch)
        row = {"broken kernel": name, "sanitizer": found, "wrong": wrong or "-"}
        table.append(row | {"compute-sanitizer": broken_kernels.found_on_gpu(name), "lesson": case.lesson})
    show.table(table, f"all four; wrong: against float64. {broken_kernels.caption()}", folded=True)
    print(f"mended, all right: {broken_kernels.mended_are_right(BROKEN_FOLDER)}")


# ---- counted


def counts(name: str, file: str, run: Callable[[], object]) -> dict[str, object]:
    """The memory requests of a launch, counted on the emulator, and the number of barriers in the kernel's loop over
    tiles."""
    with profile() as counters:
        run()
    lines = read_kernel(file).splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(("    for (int j0", "    for (; j >= 0")))
    loop = lines[start : lines.index("    }", start)]
    names = ("requests", "wavefronts", "bank_conflicts")
    row: dict[str, object] = {"": name} | {one.replace("_", " "): counters.total(one, "shared") for one in names}
    row["shared KiB"] = counters.total("bytes", "shared") / 1024
    row["global KiB"] = counters.total("bytes", "global") / 1024
    return row | {"barriers per tile": sum("__syncthreads();" in line for line in loop)}


def counted(step: Step, length: int = 256) -> dict[str, object]:
    """`counts` of a step, for one head of d = 64."""
    return counts(step.title, step.file, lambda: launch(step, *_one_head(length)))


def call(number: str, length: int = 64) -> Callable[[], object]:
    """A call that launches a step, for one head of d = 64, as `widgets.scene` records it."""
    step = rung(number)[1]
    return functools.partial(launch, step, *_one_head(length))


def requests_saved(number: str) -> float:
    """How many times fewer requests to shared memory a step makes than the step before it."""
    before, now = (counted(step)["requests"] for step in rung(number))
    return before / now


def more_or_fewer(number: str) -> str:
    """Whether a step makes "more", "fewer" or "the same" requests to shared memory compared with the step before it."""
    saved = requests_saved(number)
    return "the same" if saved == 1 else "fewer" if saved > 1 else "more"


def compare(number: str) -> None:
    """Shows the counts of a step beside those of the step before it, as a picture and a table."""
    _show_counts([counted(step) for step in rung(number)])


def _one_head(length: int) -> list[Tensor]:
    return [normal(1, 1, length, 64, seed=seed) for seed in range(3)]


def _show_counts(rows: list[dict[str, object]]) -> None:
    panels = {name: [row[name] for row in rows] for name in ("requests", "wavefronts", "shared KiB", "global KiB")}
    conflicts = {"wavefronts": [row["bank conflicts"] for row in rows]}
    plots.bars([str(row[""]) for row in rows], panels, wasted=conflicts)
    plt.show()
    show.table(rows, "one head, L = 256, d = 64, counted; hatched above: bank conflicts", folded=True)


def conflicts(number: str) -> None:
    """Shows the lines of a step with bank conflicts in shared memory, if there are any."""
    step = rung(number)[1]
    with profile() as counters:
        launch(step, *_one_head(256))
    table = []
    for row in counters.select("shared"):
        if row.bank_conflicts:
            line = {"line": row.line, "": row.source.strip(), "wavefronts per request": row.wavefronts / row.requests}
            table.append(line | {"without conflicts": row.ideal_wavefronts / row.requests})
    if table:
        show.table(table, step.file)
    else:
        print(f"{step.file}: no bank conflicts")


def changes(number: str) -> None:
    """Shows the lines in which a step differs from the step before it."""
    show.difference(*(read_kernel(step.file) for step in rung(number)), context=0, skip_header=True)


def tiles_loaded(number: str, length: int = 512) -> int:
    """Tiles of keys that a causal launch of a step loads, computed from the bytes it reads. Q is read once."""
    with profile() as counters:
        launch(rung(number)[1], *_one_head(length), is_causal=True)
    return (counters.total("bytes", "global", "load") - 2 * 64 * length) // (2 * 2 * 64 * 64)


# ---- step 7 and what a step costs


def clocks_per_s() -> float:
    """Clocks per second of all multiprocessors together, at the highest clock rate."""
    chip = ceilings()
    return chip["clock, at most"]["mhz"] * 1e6 * chip["streaming multiprocessors"]["count"]


def shared_memory_roof(queries: int, bytes_per_clock: int = 128) -> float:
    """The TFLOP/s that shared memory allows if each 16 × 16 fragment of K or V serves this many queries."""
    fragment = 16 * 16  # numbers, of 2 bytes; a multiply-add each for every query
    return clocks_per_s() * bytes_per_clock / (2 * fragment) * 2 * queries * fragment / 1e12


def show_roofs() -> None:
    """Prints the roof of shared memory for 16, 32 and 64 queries per warp, and the roof of the tensor cores."""
    for queries in (16, 32, 64):
        print(f"{queries} queries per warp: at most {shared_memory_roof(queries):5.0f} TFLOP/s at the highest clock")
    print(f"the tensor cores by mma.sync: {peak(BY_MMA):.0f} TFLOP/s, measured in chapter 00")


def tiles_compared() -> int:
    """Shows registers, spills and shared memory of the last step with four tile sizes. Returns the queries per warp of
    the tile that spills most."""
    table = []
    for block_rows, block_cols, warps in ((128, 128, 8), (128, 64, 4), (128, 128, 4), (256, 128, 4)):
        step = replace(FORWARD, tiles={64: {"B_R": block_rows, "B_C": block_cols, "WARPS": warps}})
        used = compiled(step)
        row = {"queries per warp": block_rows // warps, "B_r": block_rows, "B_c": block_cols, "warps": warps}
        row |= {"registers": used.registers, "spilled bytes": used.spill_stores}
        table.append(row | {"wavefronts": counted(step)["wavefronts"]})
    names = [f"{row['queries per warp']} queries per warp, B_c = {row['B_c']}" for row in table]
    panels = {name: [row[name] for row in table] for name in ("registers", "spilled bytes", "wavefronts")}
    plots.bars(names, panels)
    plt.show()
    how = "compiled for sm_90; wavefronts in shared memory counted at L = 256"
    show.table(table, f"forward.cu, d = 64, fp16, {how}", folded=True)
    return max(table, key=lambda row: row["spilled bytes"])["queries per warp"]


def compiled(step: Step) -> nvrtc.Resources:
    """Registers and shared memory of a step at d = 64 in fp16, compiled for sm_90."""
    kernel = nvrtc.compile_kernel(read_kernel(step.file), arch="sm_90", options=step.options(64, torch.float16))
    return kernel.resources[step.kernel]


def blocks_that_fit() -> nvrtc.Occupancy:
    """How many blocks of the last step, d = 64, a multiprocessor of sm_90 holds."""
    return nvrtc.occupancy(compiled(FORWARD), FORWARD.threads(64), FORWARD.shared_bytes(64), arch="sm_90")


def show_occupancy() -> None:
    """Shows the resources of a block of the last step, and how many of its warps fit on a multiprocessor."""
    used, fits, limits = compiled(FORWARD), blocks_that_fit(), nvrtc.SM_LIMITS[90]
    print(f"a multiprocessor (sm_90): {limits.registers:,} registers, {limits.shared // 1024} KiB of shared memory")
    print(f"forward.cu, d = 64: {used.registers} registers per thread, {used.spill_stores} bytes spilled")
    print(f"{FORWARD.shared_bytes(64) / 1024:.0f} KiB of shared memory per block of {FORWARD.threads(64)} threads")
    print(f"{fits.blocks} blocks fit: {fits.warps} of {fits.max_warps} warps, limited by {fits.limited_by}")


def what_steps_cost(d: int) -> bool:
    """Shows registers, shared memory, occupancy and speed of each step, not causal. Returns whether the fastest step
    also has the highest occupancy."""
    table, occupancy = [], {}
    for step in LADDER:
        found = TIMED.row(step.title, d)
        tflops = speed(step.title, d)
        occupancy[tflops] = found["occupancy"]
        row = {"step": f"{step.number} {step.title}", "registers": found["registers"]}
        row |= {"shared KiB": found["shared_bytes"] / 1024, "blocks": found["blocks_per_sm"]}
        row |= {"occupancy": f"{found['occupancy']:.0%}", "TFLOP/s": tflops}
        row["limited by"] = found["limited_by"].replace(" memory", "").replace(" and", ",")
        table.append(row | {f"% of {name[6:]}": round(100 * tflops / speed(name, d)) for name in PEERS})
    panels = {name: [row[name] for row in table] for name in ("registers", "shared KiB", "blocks", "TFLOP/s")}
    plots.bars([str(row["step"]) for row in table], panels)
    plt.show()
    show.table(table, f"d = {d}, not causal, blocks of a multiprocessor; {TIMED.caption()}", folded=True)
    return occupancy[max(occupancy)] == max(occupancy.values())


def worth(step: Step, d: int, is_causal: bool) -> float:
    """How many times as long the last step takes without one of its ideas (`TUNING`), as recorded."""
    where = {"part": "tuning", "head_dim": d, "is_causal": is_causal, "length": LENGTH}
    record = measured.load(CHAPTER)
    whole, without = (record.select(name=name, **where)[0]["median_ms"] for name in ("tuned", step.title))
    return without / whole


def show_worth() -> None:
    """Draws `worth` of each idea on its own, for both head dimensions, with and without a mask."""
    panels = {title(*case): [worth(step, *case) for step in TUNING] for case in ALL_CASES}
    plots.bars([step.title for step in TUNING], panels, base=1, alike=len(panels))
    plt.show()
    rows = []
    for n, step in enumerate(TUNING):
        rows.append({"instead": step.title} | {name: f"{values[n]:.2f}" for name, values in panels.items()})
    where = f"L = {LENGTH}, {measured.caption(measured.load(CHAPTER))}"
    show.table(rows, f"time without the idea ÷ time with it; {where}", folded=True)


def show_rescaling() -> None:
    """Shows how often random scores raise a row's maximum from tile to tile, and how often by more than 8 powers of
    two."""
    generator = torch.Generator().manual_seed(3)
    query, key = torch.randn(32, 64, generator=generator), torch.randn(4096, 64, generator=generator)
    for sharpness in (1, 4, 16):
        scores = sharpness * query @ key.T / 8 * np.log2(np.e)  # logits in powers of two
        always, lazily = _rescales(scores), _rescales(scores, slack=8.0)
        tiles = f"scores × {sharpness:2}: of {4096 // 128 - 1} tiles"
        print(f"{tiles} {always:2} raise a maximum, {lazily:2} by more than 8 (a weight above 2^8)")


def _rescales(scores: Tensor, keys: int = 128, slack: float = 0.0) -> int:
    """Tiles after the first in which some row of a warp exceeds its m by more than slack (log2)."""
    m, count = torch.full(scores.shape[:1], -torch.inf), 0
    for tile in scores.split(keys, dim=1):
        if (tile.amax(dim=1) > m + slack).any():
            m, count = torch.maximum(m, tile.amax(dim=1)), count + 1
    return count - 1


def lines_of_code() -> None:
    """Prints the lines of code of the last step and of its headers, without comments and empty lines."""
    headers = ("attention_tile", "fragment_rows", "tile_products", "swizzled_tile", "async_copy", "tensor_core")
    lengths = {}
    for name in (FORWARD.file, *(f"include/{header}.cuh" for header in headers)):
        lines = [line.strip() for line in read_kernel(name).splitlines()]
        lengths[name] = sum(bool(line) and not line.startswith("//") for line in lines)
        print(f"{name:32} {lengths[name]:3} lines of code")
    print(f"together {sum(lengths.values())}")
