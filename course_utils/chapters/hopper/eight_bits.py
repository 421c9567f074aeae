"""Chapter 07 in 8 bits: speed and error beside 16 bits, and what sums with 14 bits lose."""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch

from course_utils import measured, plots, show
from course_utils.chapters.hopper.peers import draw_speeds, record
from course_utils.chapters.hopper.steps import device
from course_utils.chapters.timed_ladder import ALL_CASES, title
from course_utils.launches.hopper import EIGHT_BITS, ONE_LEVEL
from course_utils.measured import Row
from course_utils.measured.hopper import FLOPS_OF_A_CLOCK, LONGEST, OURS, OURS_E4M3, ROUNDED
from course_utils.operators.tensor_core import HEAD_DIMS

EXPONENTIALS_OF_A_CLOCK = 16  # of a multiprocessor (CUDA C++ Programming Guide, throughput of instructions)
BITS = {OURS: "16 bits", OURS_E4M3: "E4M3"}
SUMS = {
    ONE_LEVEL.title: "one sum for all keys",
    EIGHT_BITS.title: "a sum for each tile",
    ROUNDED: "torch, fp32 sums, weights rounded",
}


def row(name: str = OURS_E4M3, d: int = 128, is_causal: bool = False, length: int = 16384) -> Row:
    """The recorded times and the error of one kernel."""
    return record().select(part="8 bits", name=name, head_dim=d, is_causal=is_causal, length=length)[0]


def gain(d: int = 128, is_causal: bool = False, length: int = 16384) -> float:
    """How many times as fast as 16 bits E4M3 is, as recorded."""
    return row(d=d, is_causal=is_causal, length=length)["ratio_to_16_bits"]


def speeds() -> None:
    """Draws TFLOP/s in 8 and in 16 bits against the length, and shows the errors."""
    draw_speeds("8 bits", BITS)
    errors = []
    for d, is_causal in ALL_CASES:
        for one in record().select(part="8 bits", name=OURS_E4M3, head_dim=d, is_causal=is_causal):
            length = one["length"]
            found = {f"error in {BITS[name]}, %": 100 * row(name, d, is_causal, length)["error"] for name in BITS}
            errors.append({"": title(d, is_causal), "L": length} | {name: f"{e:.2g}" for name, e in found.items()})
    show.table(errors, "root of the mean square, % of the output; against float64 of the 16-bit inputs", folded=True)
    found = ", ".join(f"{words} {100 * row(name)['error']:.2g} %" for name, words in BITS.items())
    print(f"error of the output, d = 128, L = 16384, random inputs: {found}")
    longest = row()
    low, high = longest["low"], longest["high"]
    print(f"d = 128, L = 16384: {longest['ratio_to_16_bits']:.2f} times as fast; in three runs {low:.2f} to {high:.2f}")
    print(f"forward, {measured.caption(record())}")


def error_by_length() -> float:
    """Draws the error of both ways to sum against the number of keys. Returns the error of one long sum at the greatest
    length, in %."""
    lines = {
        words: {row["length"]: 100 * row["error"] for row in record().select(part="error by length", name=name)}
        for name, words in SUMS.items()
    }
    plots.by_length(lines, "error, % of the output")
    plt.show()
    print("d = 128, values with a mean of 1; against float64 of the same 8-bit numbers: the error of the sums alone")
    print(measured.caption(record()))
    return lines[SUMS[ONE_LEVEL.title]][LONGEST]


def error_here(length: int = 1024) -> None:
    """Prints the errors at a short length, computed here: the emulator keeps as many bits as a Hopper does."""
    from course_utils.bench.hopper import error_by_length

    where = device()
    with torch.random.fork_rng(devices=[where] if where.type == "cuda" else []):
        torch.manual_seed(0)
        rows = error_by_length(device=where.type, lengths=(length,))
    for row in rows:
        print(f"L = {length}, {SUMS[row['name']]:34} error {100 * row['error']:.2f} %")


def clocks(head_dim: int) -> dict[str, float]:
    """Clocks that a multiprocessor needs for both products of 1,000 scores, in 16 and in 8 bits, and for their
    exponentials."""
    flop = 1000 * 4 * head_dim
    products = {"products, 16 bits": flop / FLOPS_OF_A_CLOCK, "products, E4M3": flop / FLOPS_OF_A_CLOCK / 2}
    return products | {"exponentials": 1000 / EXPONENTIALS_OF_A_CLOCK}


def show_clocks() -> None:
    """Draws `clocks` for both head dimensions."""
    panels = {f"d = {d}": clocks(d) for d in HEAD_DIMS}
    plots.bars(list(clocks(64)), {name: list(found.values()) for name, found in panels.items()}, alike=len(panels))
    plt.show()
    print("clocks of a multiprocessor for 1,000 scores")
