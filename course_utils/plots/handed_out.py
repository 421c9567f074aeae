"""Pictures that chapter 00's widgets of launches, sectors and banks have taken the place of: notebooks that learners
have from before still draw them."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_utils.plots.look import BLUE, GREY, GROUND, ORANGE, PALE, SKY, YELLOW


def launch_grid(n: int, threads: int) -> Axes:
    """The blocks of a launch over `n` elements, one per line; warps alternate in colour, idle threads are grey."""
    blocks = -(-n // threads)
    ax = plt.figure(figsize=(7.5, 0.9 + 0.35 * blocks)).subplots()
    for block in range(blocks):
        for first in range(0, threads, 32):
            busy = max(0, min(32, n - block * threads - first))
            colour = (BLUE, SKY)[first // 32 % 2]
            ax.add_patch(Rectangle((first, block + 0.12), busy, 0.76, facecolor=colour, edgecolor=GROUND))
            if busy < 32:
                place = (first + busy, block + 0.12)
                ax.add_patch(Rectangle(place, 32 - busy, 0.76, facecolor=PALE, edgecolor=GROUND))
    ax.set(xlim=(0, threads), ylim=(blocks, 0), xlabel="threadIdx.x")
    ax.set_xticks(range(0, threads + 1, 32))
    ax.set_yticks([block + 0.5 for block in range(blocks)], [f"block {block}" for block in range(blocks)])
    ax.tick_params(axis="y", length=0)
    return ax


def warp_sectors(strides: Sequence[int]) -> Axes:
    """A load of one warp, a line per stride: the 32-byte sectors that move in light, the words asked for in dark."""
    ax = plt.figure(figsize=(7.5, 0.9 + 0.4 * len(strides))).subplots()
    for line, stride in enumerate(strides):
        words = [lane * stride for lane in range(32)]
        for sector in {word // 8 for word in words}:
            ax.add_patch(Rectangle((8 * sector, line + 0.15), 8, 0.7, facecolor=ORANGE, edgecolor=GROUND, alpha=0.5))
        for word in words:
            ax.add_patch(Rectangle((word, line + 0.15), 1, 0.7, facecolor=BLUE, edgecolor=GROUND, linewidth=0.3))
    last = 31 * max(strides) + 1
    ax.set(xlim=(0, 8 * -(-last // 8)), ylim=(len(strides), 0), xlabel="word (4 bytes) in memory")
    ax.set_yticks([line + 0.5 for line in range(len(strides))], [f"stride {stride}" for stride in strides])
    ax.tick_params(axis="y", length=0)
    return ax


def bank_map(pitches: Sequence[int], column: int = 0) -> Figure:
    """A 32 × 32 tile for each row pitch, coloured by bank; the words of one column are framed."""
    figure, axes = plt.subplots(1, len(pitches), figsize=(7.5, 3.6), sharey=True, squeeze=False)
    image = None
    for ax, pitch in zip(axes[0], pitches, strict=True):
        banks = [[(row * pitch + x) % 32 for x in range(pitch)] for row in range(32)]
        image = ax.imshow(banks, cmap="twilight_shifted", vmin=0, vmax=31, extent=(0, pitch, 32, 0))
        ax.add_patch(Rectangle((column, 0), 1, 32, facecolor="none", edgecolor=YELLOW, linewidth=2))
        if pitch > 32:
            ax.add_patch(Rectangle((32, 0), pitch - 32, 32, facecolor=GROUND, edgecolor=GREY, hatch="////"))
        ax.set(title=f"rows of {pitch} words", xlabel="column", xticks=range(0, 33, 8), yticks=range(0, 33, 8))
    axes[0][0].set_ylabel("row")
    figure.colorbar(image, ax=axes[0], label="bank", ticks=range(0, 32, 8))
    return figure
