"""Pictures of chapter 00."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_utils import costs
from course_utils.plots.look import (
    BLUE,
    CYCLIC,
    GREEN,
    GREY,
    GROUND,
    HBM,
    INK,
    L2,
    ON_MARK,
    ORANGE,
    PALE,
    REGISTERS,
    SHARED,
    SKY,
    YELLOW,
)


def gpu_memories() -> Figure:
    """Where a GPU keeps its numbers: the multiprocessors with registers and shared memory, the L2 cache, HBM."""
    figure, ax = plt.subplots(figsize=(7.5, 3.7))

    def box(x: float, y: float, width: float, height: float, colour: str, text: str, size: int = 9) -> None:
        ax.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor=GREY, alpha=0.45))
        ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=size)

    ax.add_patch(Rectangle((0, 1.5), 13, 4.9, facecolor="none", edgecolor=INK))
    ax.text(0.1, 6.5, "the chip", va="bottom", fontsize=9)
    for number, x in enumerate((0.3, 3.3, 6.3, 9.9)):
        ax.add_patch(Rectangle((x, 3.0), 2.7, 3.2, facecolor="none", edgecolor=GREY))
        ax.text(
            x + 1.35, 5.85, "multiprocessor" if number < 3 else "the last one", ha="center", va="center", fontsize=9
        )
        box(x + 0.15, 4.9, 2.4, 0.65, YELLOW, "arithmetic units", 8)
        box(x + 0.15, 4.05, 2.4, 0.65, REGISTERS, "registers", 8)
        box(x + 0.15, 3.2, 2.4, 0.65, SHARED, "shared memory, L1", 8)
    ax.text(9.45, 4.6, "…", ha="center", va="center", fontsize=14)
    box(0.3, 1.8, 12.3, 0.8, L2, "L2 cache")
    box(0, 0, 13, 0.9, HBM, "HBM: device memory, beside the chip")
    for x in (1.65, 4.65, 7.65, 11.25):
        ax.annotate("", (x, 2.62), (x, 3.18), arrowprops={"arrowstyle": "<->", "color": GREY})
    ax.annotate("", (6.5, 0.92), (6.5, 1.78), arrowprops={"arrowstyle": "<->", "color": GREY})
    ax.set(xlim=(-0.2, 13.2), ylim=(-0.2, 7.1))
    ax.axis("off")
    return figure


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


def memory_levels(levels: Sequence[tuple[str, float, float]]) -> Figure:
    """Levels of memory (name, bytes, bytes per second) as two sets of bars on logarithmic axes."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 2.6), sharey=True)
    names, sizes, rates = zip(*levels, strict=True)
    for ax, values, unit, label in ((left, sizes, 1e6, "MB"), (right, rates, 1e12, "TB/s")):
        scaled = [value / unit for value in values]
        ax.barh(names, scaled, color=[REGISTERS, SHARED, L2, HBM], height=0.6)
        ax.set(xscale="log", xlabel=label, xlim=(min(scaled) / 3, max(scaled) * 20))
        for row, value in enumerate(scaled):
            ax.text(value * 1.15, row, f"{value:,.0f}" if value >= 10 else f"{value:.1f}", va="center", fontsize=9)
    left.set_title("size")
    right.set_title("bandwidth")
    left.invert_yaxis()
    return figure


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
        image = ax.imshow(banks, cmap=CYCLIC, vmin=0, vmax=31, extent=(0, pitch, 32, 0))
        ax.add_patch(Rectangle((column, 0), 1, 32, facecolor="none", edgecolor=YELLOW, linewidth=2))
        if pitch > 32:
            ax.add_patch(Rectangle((32, 0), pitch - 32, 32, facecolor=GROUND, edgecolor=GREY, hatch="////"))
        ax.set(title=f"rows of {pitch} words", xlabel="column", xticks=range(0, 33, 8), yticks=range(0, 33, 8))
    axes[0][0].set_ylabel("row")
    figure.colorbar(image, ax=axes[0], label="bank", ticks=range(0, 32, 8))
    return figure


def matmul_tiles(tiles: int, step: int, row: int, column: int) -> Axes:
    """C = A B in `tiles` × `tiles` tiles: what the block of tile (row, column) of C has in shared memory at a step."""
    ax = plt.figure(figsize=(6.0, 4.6)).subplots()

    def matrix(x: float, y: float, name: str, strip: set[tuple[int, int]], now: set[tuple[int, int]]) -> None:
        for i in range(tiles):
            for j in range(tiles):
                colour = ORANGE if (i, j) in now else SKY if (i, j) in strip else GROUND
                ax.add_patch(Rectangle((x + j, y + i), 1, 1, facecolor=colour, edgecolor=GREY, alpha=0.8))
        ax.text(x + tiles / 2, y - 0.35, name, ha="center", fontsize=12)

    gap = tiles + 1
    matrix(0, gap, "A", {(row, k) for k in range(tiles)}, {(row, step)})
    matrix(gap, 0, "B", {(k, column) for k in range(tiles)}, {(step, column)})
    matrix(gap, gap, "C", set(), set())
    ax.add_patch(Rectangle((gap + column, gap + row), 1, 1, facecolor=GREEN, edgecolor=GREY))
    ax.text(gap + column + 0.5, gap + row + 0.5, "block", ha="center", va="center", fontsize=9, color=ON_MARK)
    ax.set(xlim=(-0.2, 2 * tiles + 1.2), ylim=(2 * tiles + 1.2, -0.8), aspect="equal")
    ax.axis("off")
    return ax


def score_bytes(head_dim: int) -> Axes:
    """Bytes of one head's score matrix, and of Q, K, V and O, against the number of tokens, in fp32."""
    lengths = [2**n for n in range(11, 16)]
    ax = plt.figure(figsize=(7.5, 3.4)).subplots()
    for name, colour, of_length in (
        ("the scores", ORANGE, lambda L: costs.score_matrix_bytes(1, 1, L, L, 4)),
        ("Q, K, V and O", BLUE, lambda L: costs.least_bytes(1, 1, L, L, head_dim, 4)),
    ):
        megabytes = [of_length(L) / 1e6 for L in lengths]
        ax.plot(lengths, megabytes, marker="o", color=colour)
        ax.annotate(
            f"{name}: {_bytes(megabytes[-1])}",
            (lengths[-1], megabytes[-1]),
            (8, 0),
            textcoords="offset points",
            va="center",
        )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set(
        xlabel="tokens",
        ylabel="MB of one head",
        xlim=(lengths[0] * 0.9, lengths[-1] * 3.2),
        title=f"d = {head_dim}, fp32",
    )
    ax.set_xticks(lengths, [f"{L:,}" for L in lengths])
    ax.minorticks_off()
    return ax


def _bytes(megabytes: float) -> str:
    return f"{megabytes / 1000:.1f} GB" if megabytes >= 1000 else f"{megabytes:.0f} MB"
