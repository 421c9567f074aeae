"""Chapter 07's kernel beside PyTorch's: under the roofline, by length, for long sequences, and under sustained load."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import matplotlib.pyplot as plt

from course_utils import measured, plots, show
from course_utils.chapters.ceilings import BY_MMA, peak
from course_utils.chapters.hopper.steps import CHAPTER, LENGTH
from course_utils.chapters.timed_ladder import ALL_CASES, title
from course_utils.measured import Measurement
from course_utils.measured.hopper import CUDNN, FLASH, OURS, PORTABLE, PRODUCT

ON_H100 = f"{CHAPTER}_h100"  # the same bench on another GPU
NAMES = (OURS, CUDNN, FLASH, PORTABLE)


@functools.cache
def record() -> Measurement:
    """The recording of the chapter."""
    return measured.load(CHAPTER)


def summary() -> None:
    """Prints the ratios of the forward pass to cuDNN and FLASH, over six lengths."""
    print(f"{OURS}, fp16, six lengths from 512 to 16,384 ({measured.caption(record())}):")
    for d, is_causal in ALL_CASES:
        (row,) = record().select(part="means", head_dim=d, is_causal=is_causal, name=OURS)
        lowest, highest = row["lowest_ratio_to_cudnn"], row["highest_ratio_to_cudnn"]
        cudnn = f"{row['ratio_to_cudnn']:.2f} times as fast as cuDNN in the mean, {lowest:.2f} to {highest:.2f}"
        print(f"{title(d, is_causal):15} {cudnn}; {row['ratio_to_flash']:.2f} times as fast as FLASH")


def speed_of(name: str, d: int = 128, is_causal: bool = False, length: int = LENGTH) -> float:
    """TFLOP/s of a forward pass in fp16, ours or another library's, as recorded."""
    where = {"part": "forward", "dtype": "float16", "head_dim": d, "is_causal": is_causal, "length": length}
    return record().select(name=name, **where)[0]["tflop_per_s"]


def roof(name: str) -> float:
    """TFLOP/s of a recorded roof."""
    return record().select(part="roofs", name=name)[0]["tflop_per_s"]


def show_roofs() -> None:
    """Draws the peaks of both kinds of tensor-core instructions and the kernels that use them, at d = 128."""
    bars = {
        "wgmma: the peak at the highest clock": roof("tensor cores"),
        "wgmma: a large product by cuBLAS": roof(PRODUCT),
        "mma.sync and nothing else": peak(BY_MMA),
        "cuDNN's attention": speed_of(CUDNN),
        "flash_attention_v2, chapter 03": speed_of(PORTABLE),
    }
    plots.bars(list(bars), {"TFLOP/s": list(bars.values())})
    plt.show()
    of_mma = measured.load("00_start_here")
    print(f"d = 128, L = {LENGTH}, not causal, {measured.caption(record())}")
    print(f"mma.sync: chapter 00, {measured.caption(of_mma)}")


def draw_speeds(part: str, names: Mapping[str, str]) -> None:
    """Draws TFLOP/s against the length for one part of the record, a panel for each case. names: row name → name in the
    picture."""
    panels = {}
    for d, is_causal in ALL_CASES:
        where = {"part": part, "dtype": "float16", "head_dim": d, "is_causal": is_causal}
        found = {words: record().select(name=name, **where) for name, words in names.items()}
        panels[title(d, is_causal)] = {
            words: {row["length"]: row["tflop_per_s"] for row in rows} for words, rows in found.items()
        }
    plots.speed_by_length(panels)
    plt.show()


def by_length(part: str = "forward") -> None:
    """Draws TFLOP/s of the forward or backward pass against the length: ours, chapter 03's and PyTorch's kernels."""
    draw_speeds(part, {name: name for name in NAMES})
    print(f"{part}, fp16, {measured.caption(record())}")


def show_other_gpu() -> None:
    """Shows the mean, lowest and highest ratio to cuDNN of both passes on both GPUs that were measured."""
    of_gpus = record(), measured.load(ON_H100)
    rows = []
    for words, part in {"forward": "means", "backward": "backward means"}.items():
        for d, is_causal in ALL_CASES:
            found = {"": f"{words}, {title(d, is_causal)}"}
            for recorded in of_gpus:
                (row,) = recorded.select(part=part, head_dim=d, is_causal=is_causal, name=OURS)
                lowest, highest = row["lowest_ratio_to_cudnn"], row["highest_ratio_to_cudnn"]
                mean = f"{row['ratio_to_cudnn']:.3f} ({lowest:.3f} to {highest:.3f})"
                found[" ".join(recorded.device.split()[:2])] = mean
            rows.append(found)
    where = "; ".join(map(measured.caption, of_gpus))
    show.table(rows, f"times as fast as cuDNN in the mean (lowest to highest); {where}", folded=True)


def show_other_shapes() -> None:
    """Shows ours beside cuDNN where heads share keys, and for one long sequence: ratios, and our TFLOP/s."""
    parts = {"grouped heads": "32 heads, 8 of keys", "long": "one sequence"}
    rows = []
    for d, is_causal in ALL_CASES:
        found = {"": title(d, is_causal)}
        for part, words in parts.items():
            for row in record().select(part=part, head_dim=d, is_causal=is_causal, name=OURS):
                found[f"{words}, L = {row['length']}"] = f"{row['ratio_to_cudnn']:.2f} ({row['tflop_per_s']:.0f})"
        rows.append(found)
    show.table(rows, f"times as fast as cuDNN (TFLOP/s); {measured.caption(record())}", folded=True)


def ratio(part: str, d: int, is_causal: bool, length: int) -> float:
    """How many times as fast as cuDNN ours is in a part of the record, such as "sustained"."""
    where = {"part": part, "head_dim": d, "is_causal": is_causal, "length": length}
    return record().select(name=OURS, **where)[0]["ratio_to_cudnn"]


def show_sustained() -> float:
    """Shows ratios to cuDNN when both are timed in turns, and when each runs alone for most of a second. Returns the
    lowest ratio of the second kind."""
    rows, lowest = [], []
    for d, is_causal in ALL_CASES:
        for length in (2048, 16384):
            alone = ratio("sustained", d, is_causal, length)
            turns = speed_of(OURS, d, is_causal, length) / speed_of(CUDNN, d, is_causal, length)
            rows.append({"": f"{title(d, is_causal)}, L = {length}", "by turns": turns, "alone": alone})
            lowest.append(alone)
    panels = {name: [row[name] for row in rows] for name in ("by turns", "alone")}
    plots.bars([row[""] for row in rows], panels, base=1, alike=2)
    plt.show()
    shown = [row | {name: f"{row[name]:.2f}" for name in panels} for row in rows]
    show.table(shown, f"times as fast as cuDNN; {measured.caption(record())}", folded=True)
    return min(lowest)
