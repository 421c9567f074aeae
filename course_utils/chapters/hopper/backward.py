"""Chapter 07's backward pass: beside cuDNN, the cost of a fixed order, and a training step."""

from __future__ import annotations

import matplotlib.pyplot as plt

from course_utils import measured, plots, show
from course_utils.chapters.hopper import peers
from course_utils.chapters.hopper.peers import record
from course_utils.chapters.timed_ladder import ALL_CASES, title
from course_utils.measured import Row
from course_utils.measured.flash_attention_v2 import SDPA
from course_utils.measured.hopper import FLASH_FIXED, OURS, PORTABLE, TURNS


def mean(d: int = 128, is_causal: bool = False) -> Row:
    """Our recorded ratios to cuDNN and to FLASH over five lengths: geometric mean, lowest and highest."""
    return record().select(part="backward means", head_dim=d, is_causal=is_causal, name=OURS)[0]


def by_length() -> None:
    """Draws TFLOP/s of the backward pass against the length: ours, chapter 03's and PyTorch's kernels."""
    peers.by_length("backward")
    means = []
    for d, is_causal in ALL_CASES:
        row = mean(d, is_causal)
        ratios = {
            "in the mean": "ratio_to_cudnn",
            "lowest": "lowest_ratio_to_cudnn",
            "highest": "highest_ratio_to_cudnn",
        }
        means.append({"": title(d, is_causal)} | {words: f"{row[column]:.2f}" for words, column in ratios.items()})
    show.table(means, "how many times as fast as cuDNN, over the lengths; geometric mean", folded=True)


def cost_of_turns() -> float:
    """Draws how many times as long the backward pass takes if blocks add to dQ in a fixed order, by case and length.
    Returns the highest ratio."""
    panels = {}
    for d, is_causal in ALL_CASES:
        where = {"part": "backward", "head_dim": d, "is_causal": is_causal}
        times = [record().select(name=name, **where) for name in (OURS, TURNS)]
        panels[title(d, is_causal)] = [after["median_ms"] / row["median_ms"] for row, after in zip(*times, strict=True)]
    lengths = [row["length"] for row in record().select(part="backward", head_dim=64, is_causal=False, name=OURS)]
    plots.bars([f"L = {length}" for length in lengths], panels, alike=len(panels))
    plt.show()
    print(f"times as long as in any order; {measured.caption(record())}")
    return max(max(values) for values in panels.values())


def show_turns() -> None:
    """Shows our backward pass with a fixed order beside cuDNN's and FLASH's without one and FLASH's deterministic one:
    mean ratios, as a table."""
    rows = []
    for d, is_causal in ALL_CASES:
        where = {"part": "backward means", "head_dim": d, "is_causal": is_causal}
        turns, fixed = (record().select(name=name, **where)[0] for name in (TURNS, FLASH_FIXED))
        ratios = {
            "ours in turns : cuDNN": turns["ratio_to_cudnn"],
            "ours in turns : FLASH": turns["ratio_to_flash"],
            "FLASH, fixed order : FLASH": fixed["ratio_to_flash"],
            "ours in turns : FLASH, fixed order": turns["ratio_to_flash"] / fixed["ratio_to_flash"],
        }
        rows.append({"": title(d, is_causal)} | {words: f"{ratio:.2f}" for words, ratio in ratios.items()})
    show.table(rows, "times as fast, in the mean over the lengths")
    print(measured.caption(record()))


STEPS = {"SDPA's": SDPA, "ours": OURS, "chapter 03's": PORTABLE}


def training_step() -> str:
    """Shows the milliseconds of chapter 03's block, forward, backward and optimiser, compiled, with three attentions.
    Returns the fastest by its name in STEPS."""
    names = list(STEPS.values())
    rows = [record().select(part="step", name=name, way="compiled", batch=16)[0] for name in names]
    plots.bars(list(names), {"ms": [row["median_ms"] for row in rows]})
    plt.show()
    row = rows[0]
    print(f"batch {row['batch']}, L = {row['length']}, torch.compile, {measured.caption(record())}")
    return min(STEPS, key=lambda words: rows[names.index(STEPS[words])]["median_ms"])
