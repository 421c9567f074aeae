"""Pictures of chapter 00's first notebook: one query's attention, where kernels run, and mistakes in a launch."""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_utils.plots.look import (
    BLUE,
    GREEN,
    GREY,
    GROUND,
    INK,
    ON_MARK,
    ORANGE,
    PALE,
    SKY,
    VERMILION,
    YELLOW,
)


def one_query(tokens: int = 8, head_dim: int = 6) -> Figure:
    """One query among `tokens` keys, of random numbers: its scores, the weights that softmax makes of them, and the
    mixture of values."""
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(head_dim, generator=generator)
    K, V = torch.randn(2, tokens, head_dim, generator=generator)
    scores = K @ q / head_dim**0.5
    weights = torch.softmax(scores, dim=0)
    figure, panels = plt.subplots(1, 5, figsize=(7.5, 4.0), width_ratios=(1, 2.2, 2, 2, 2.4))
    parts = (q[None], K, None, None, V)
    names = ("query", "keys", "scores", "weights", "values")
    for ax, name, part in zip(panels, names, parts, strict=True):
        ax.set_title(name, fontsize=10)
        if part is not None:
            ax.imshow(part, cmap="PuOr", vmin=-2.5, vmax=2.5, aspect="auto", extent=(0, head_dim, len(part), 0))
        ax.set(xticks=[], yticks=[])
    for ax, values, colour in ((panels[2], scores, ORANGE), (panels[3], weights, GREEN)):
        ax.barh([row + 0.5 for row in range(tokens)], values.tolist(), color=colour, height=0.7)
        ax.axvline(0, color=GREY, linewidth=0.8)
        ax.set_ylim(tokens, 0)
    panels[0].set_anchor("N")
    panels[0].set_box_aspect(0.35)
    panels[1].set_yticks([row + 0.5 for row in range(tokens)], [f"token {row}" for row in range(tokens)], fontsize=8)
    for ax, words in zip(
        panels[1:], ("each key · query", "times 1/√d", "add up to 1", "weights · values = O"), strict=True
    ):
        ax.set_xlabel(words, fontsize=9)
    return figure


def where_kernels_run() -> Axes:
    """One kernel file and the two ways to run it: by CuPy on a GPU, by a C++ compiler on the emulator."""
    ax = plt.figure(figsize=(7.5, 3.3)).subplots()

    def box(x: float, y: float, width: float, colour: str, text: str) -> None:
        ax.add_patch(Rectangle((x, y), width, 1, facecolor=colour, edgecolor=GREY, alpha=0.45))
        ax.text(x + width / 2, y + 0.5, text, ha="center", va="center", fontsize=9)

    box(0, 1.1, 2.6, YELLOW, "kernels/…/name.cu")
    ways = (
        (2.2, "tensors on cuda", BLUE, "CuPy, NVIDIA's NVRTC", GREEN, "the GPU:\nresults and times"),
        (0, "tensors on cpu", SKY, "a C++ compiler", ORANGE, "the emulator: results,\nfindings, counts; no times"),
    )
    for y, on, colour, compiler, end_colour, end in ways:
        ax.annotate("", (4.1, y + 0.5), (2.65, 1.6), arrowprops={"arrowstyle": "->", "color": GREY})
        ax.text(4.15, y + 1.12, on, fontsize=8.5, color=GREY)
        box(4.15, y, 3.2, colour, compiler)
        ax.annotate("", (8.3, y + 0.5), (7.4, y + 0.5), arrowprops={"arrowstyle": "->", "color": GREY})
        box(8.35, y, 3.6, end_colour, end)
    ax.set(xlim=(-0.1, 12.05), ylim=(-0.2, 3.6))
    ax.axis("off")
    return ax


def past_the_end(elements: int = 1000, threads: int = 1024, granule: int = 512) -> Axes:
    """Memory behind a tensor of `elements` floats: how far `threads` reach, the multiple of `granule` bytes that
    PyTorch allocates, and the memory after it."""
    end, reached = 4 * elements, 4 * threads
    handed_out = -(-end // granule) * granule
    first = end - granule // 2
    ax = plt.figure(figsize=(7.5, 2.6)).subplots()
    parts = ((first, end, BLUE, "a, b or c"), (end, handed_out, PALE, "padding"))
    for begin, stop, colour, name in (
        *parts,
        (handed_out, handed_out + granule // 2, ORANGE, "perhaps another tensor"),
    ):
        ax.add_patch(Rectangle((begin, 0), stop - begin, 1, facecolor=colour, edgecolor=GROUND, alpha=0.8))
        ink = INK if colour == PALE else ON_MARK
        ax.text((begin + stop) / 2, 0.5, name, ha="center", va="center", fontsize=9, color=ink)
    ax.annotate("", (first, 1.25), (reached, 1.25), arrowprops={"arrowstyle": "<-", "color": VERMILION})
    words = f"what {threads:,} threads read of a and b, and write to c"
    ax.text(first, 1.32, words, color=VERMILION, fontsize=9, va="bottom")
    ax.set(xlim=(first, handed_out + granule // 2), ylim=(0, 1.6), xlabel="byte", yticks=[])
    ax.set_xticks([first, end, handed_out], [f"{byte:,}" for byte in (first, end, handed_out)])
    ax.spines["left"].set_visible(False)
    return ax


def two_barriers(first: int = 100, threads: int = 256) -> Axes:
    """A block whose threads wait at two different barriers, the first threads at one and the rest at the other,
    forever."""
    ax = plt.figure(figsize=(7.5, 3.1)).subplots()
    for begin, stop, y, colour, words in (
        (0, first, 1.2, BLUE, f"threads 0 to {first - 1} wait at this barrier"),
        (first, threads, 0.3, ORANGE, f"threads {first} to {threads - 1} wait at the other"),
    ):
        ax.add_patch(Rectangle((begin, 0), stop - begin, y, facecolor=colour, alpha=0.35))
        ax.plot((begin, stop), (y, y), color=VERMILION, linewidth=3)
        ax.text((begin + stop) / 2, y + 0.08, words, ha="center", va="bottom", fontsize=9)
    ax.set(xlim=(0, threads), ylim=(0, 1.45), xlabel="threadIdx.x", yticks=[])
    ax.set_xticks(range(0, threads + 1, 32))
    ax.spines["left"].set_visible(False)
    return ax


def grid_to_thread() -> Axes:
    """From the grid of a launch to one of its blocks, one of the block's warps, and one of the warp's threads."""
    ax = plt.figure(figsize=(7.5, 3.7)).subplots()
    levels = (
        ("grid: 4 blocks", 4, 1, BLUE, "blockIdx.x"),
        ("block: 8 warps, 256 threads", 8, 2, SKY, "runs on one multiprocessor"),
        ("warp: 32 threads", 32, 9, GREEN, "one instruction for all"),
    )
    for row, (name, count, chosen, colour, words) in enumerate(levels):
        y, width = -1.5 * row, 12 / count
        for part in range(count):
            face = colour if part == chosen else PALE
            ax.add_patch(Rectangle((part * width, y), width, 0.7, facecolor=face, edgecolor=GROUND))
        ax.text(-0.2, y + 0.35, name, ha="right", va="center", fontsize=9)
        ax.text(12.2, y + 0.35, words, va="center", fontsize=9, color=GREY)
        for x, end in ((chosen * width, 0), ((chosen + 1) * width, 12)):
            if row < 2:
                ax.plot((x, end), (y, y - 0.8), color=GREY, linewidth=0.8)
    at = 9.5 * 12 / 32
    look = {"arrowstyle": "->", "color": GREY}
    ax.annotate("thread 9 of its warp: one element", (at, -3), (at, -3.9), ha="center", fontsize=9, arrowprops=look)
    ax.set(xlim=(-5, 17), ylim=(-4.1, 0.9))
    ax.axis("off")
    return ax
