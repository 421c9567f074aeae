"""Chapter 07's ladder: what each step changes, whether it is right, how fast it is, and which units wait for which."""

from __future__ import annotations

import functools
from collections.abc import Callable

import matplotlib.pyplot as plt
import torch

from course_utils import measured, plots, reference, show
from course_utils.chapters.tensors import is_right, normal
from course_utils.chapters.timed_ladder import ALL_CASES, TimedLadder, title
from course_utils.launches.hopper import EIGHT_BITS, LADDER, launch
from course_utils.measured import Measurement
from course_utils.measured.hopper import CUDNN, FLASH, TOKENS, WIDTH
from course_utils.nvidia import bottlenecks
from course_utils.operators.tensor_core import takes_wgmma

CHAPTER = "07_hopper"
LENGTH = 16384  # of the timed ladder


def device() -> torch.device:
    """The device of the chapter's launches: a Hopper GPU, else the CPU, because these kernels run on no other GPU."""
    found = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return found if takes_wgmma(found) else torch.device("cpu")


def figures() -> Measurement:
    """The times of the ladder, measured here on a Hopper GPU and recorded elsewhere."""
    if device().type == "cuda":
        from course_utils.bench.hopper import rungs

        return measured.live_or_recorded(CHAPTER, functools.partial(rungs, lengths=(LENGTH,)))
    return measured.load(CHAPTER)


TIMED = TimedLadder(
    figures,
    "rungs",
    LADDER,
    (CUDNN, FLASH),
    LENGTH,
    f"B · L = {TOKENS}, H · d = {WIDTH}, fp16",
)
speed, gain, climb, whole_ladder = TIMED.speed, TIMED.gain, TIMED.climb, TIMED.whole_ladder


def call(number: str, keys: int = 384) -> Callable[[], object]:
    """A call that launches a step, for 128 queries of one head of d = 64, as `widgets.scene` records it."""
    step = next(step for step in LADDER if step.number == number)
    inputs = [normal(1, 1, length, 64, seed=seed).to(device()) for seed, length in enumerate((128, keys, keys))]
    return functools.partial(launch, step, *inputs)


def check_all() -> None:
    """Runs each step once, causal, with GQA, on lengths that no tile divides, and prints whether it is right
    (float64)."""
    inputs = [normal(1, heads, length, 64, seed=heads + length).to(device()) for heads, length in _SHAPES]
    expected = reference.attention(*inputs, is_causal=True, enable_gqa=True, return_lse=True)
    for step in LADDER:
        print(f"{step.number} {step.title:24} right: {is_right(launch(step, *inputs, is_causal=True), expected)}")


_SHAPES = (4, 100), (2, 230), (2, 230)  # heads and length of query, key and value


def table_of_steps() -> None:
    """Shows the seven steps and their ideas."""
    show.table([{"step": step.number, "": step.title, "the idea": step.idea} for step in LADDER], "seven steps")


def chunks_of_a_tile(head_dim: int = 128, keys: int = 128) -> int:
    """How many 16-byte copies, each requested by a thread, a tile of K takes in step 1."""
    return 2 * head_dim * keys // 16


def faster_or_slower(number: str, d: int) -> str:
    """Whether a step is "faster" than the step before it, "slower", or "within 2 %" of it, not causal."""
    gained = gain(number, d)
    return "within 2 %" if abs(gained - 1) <= 0.02 else "faster" if gained > 1 else "slower"


def gains_by_length(number: str) -> None:
    """Shows how many times as fast as the step before it a step is, at the recorded lengths, in each case."""
    recorded, (before, step) = measured.load(CHAPTER), TIMED.rung(number)
    panels: dict[str, dict[int, float]] = {}
    for d, is_causal in ALL_CASES:
        where = {"part": "rungs", "head_dim": d, "is_causal": is_causal}
        slow, fast = (recorded.select(name=one.title, **where) for one in (before, step))
        panels[title(d, is_causal)] = {
            row["length"]: slower["median_ms"] / row["median_ms"] for slower, row in zip(slow, fast, strict=True)
        }
    lengths = list(next(iter(panels.values())))
    values = {name: list(found.values()) for name, found in panels.items()}
    plots.bars([f"L = {length}" for length in lengths], values, alike=len(panels))
    plt.show()
    print(f"times as fast as step {before.number}; {measured.caption(recorded)}")


def show_taken(d: int = 128) -> None:
    """Shows the resources of a block of each step, and the step's share of the tensor cores' peak."""
    rows = []
    for step in LADDER:
        row = TIMED.row(step.title, d)
        taken = {"registers at the launch": row["registers"], "shared KiB": row["shared_bytes"] / 1024}
        taken["blocks"] = row["blocks_per_sm"]
        rows.append({"step": f"{step.number} {step.title}"} | taken | {"of the peak": f"{row['share_of_peak']:.0%}"})
    show.table(rows, f"d = {d}, not causal, blocks of a multiprocessor; {TIMED.caption()}", folded=True)


def show_busy(d: int = 128) -> None:
    """Shows how busy ncu found the units in each step and in the 8-bit kernel, and what warps wait for."""
    by_ncu = measured.load("bottlenecks")
    names = {f"{step.number} {step.title}": step for step in LADDER} | {"in 8 bits": EIGHT_BITS}
    rows = {name: by_ncu.select(name=f"hopper {step.kernel}, d={d}, L={LENGTH}")[0] for name, step in names.items()}
    units = {"tensor cores": "tensor cores", "exponentials": "special functions"}
    panels = {f"{words}, % of the time": [row["units"][unit] for row in rows.values()] for words, unit in units.items()}
    plots.bars(list(rows), panels, alike=len(panels))
    plt.show()
    table = [
        {
            "step": step,
            **{f"{words}, %": f"{row['units'][unit]:.0f}" for words, unit in units.items()},
            "warps a scheduler": row["warps"],
            "a warp waits most for": bottlenecks.waits_for(row),
        }
        for step, row in rows.items()
    ]
    show.table(table, f"d = {d}, L = {LENGTH}, not causal; ncu, {measured.caption(by_ncu)}", folded=True)
