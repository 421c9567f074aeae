"""Plots of the chapters: one look, and a function for each kind of plot that is used more than once."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import torch
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import Tensor

from course_utils.costs import Step

# Okabe and Ito's colours can be told apart with any colour vision.
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW, GREY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
    "#F0E442",
    "#666666",
)

mpl.rcParams.update(
    {
        "axes.prop_cycle": cycler(color=[BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY]),
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlelocation": "left",
        "figure.constrained_layout.use": True,
        "figure.dpi": 100,
        "figure.figsize": (7.5, 3.6),
        "font.size": 10,
        "legend.frameon": False,
    }
)


# ---------------------------------------------------------------------------------------------- chapter 00


def gpu_memories() -> Figure:
    """Where a GPU keeps its numbers: the multiprocessors with registers and shared memory, the L2 cache, HBM."""
    figure, ax = plt.subplots(figsize=(7.5, 3.7))

    def box(x: float, y: float, width: float, height: float, colour: str, text: str, size: int = 9) -> None:
        ax.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor=GREY, alpha=0.45))
        ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=size)

    ax.add_patch(Rectangle((0, 1.5), 13, 4.9, facecolor="none", edgecolor="black"))
    ax.text(0.1, 6.5, "the chip", va="bottom", fontsize=9)
    for number, x in enumerate((0.3, 3.3, 6.3, 9.9)):
        ax.add_patch(Rectangle((x, 3.0), 2.7, 3.2, facecolor="none", edgecolor=GREY))
        ax.text(
            x + 1.35, 5.85, "multiprocessor" if number < 3 else "the last one", ha="center", va="center", fontsize=9
        )
        box(x + 0.15, 4.9, 2.4, 0.65, YELLOW, "arithmetic units", 8)
        box(x + 0.15, 4.05, 2.4, 0.65, GREEN, "registers", 8)
        box(x + 0.15, 3.2, 2.4, 0.65, ORANGE, "shared memory, L1", 8)
    ax.text(9.45, 4.6, "…", ha="center", va="center", fontsize=14)
    box(0.3, 1.8, 12.3, 0.8, SKY, "L2 cache")
    box(0, 0, 13, 0.9, BLUE, "HBM: device memory, beside the chip")
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
            ax.add_patch(Rectangle((first, block + 0.12), busy, 0.76, facecolor=colour, edgecolor="white"))
            if busy < 32:
                place = (first + busy, block + 0.12)
                ax.add_patch(Rectangle(place, 32 - busy, 0.76, facecolor="#cccccc", edgecolor="white"))
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
        ax.barh(names, scaled, color=[GREEN, ORANGE, SKY, BLUE], height=0.6)
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
            ax.add_patch(Rectangle((8 * sector, line + 0.15), 8, 0.7, facecolor=ORANGE, edgecolor="white", alpha=0.5))
        for word in words:
            ax.add_patch(Rectangle((word, line + 0.15), 1, 0.7, facecolor=BLUE, edgecolor="white", linewidth=0.3))
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
            ax.add_patch(Rectangle((32, 0), pitch - 32, 32, facecolor="white", edgecolor=GREY, hatch="////"))
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
                colour = ORANGE if (i, j) in now else SKY if (i, j) in strip else "white"
                ax.add_patch(Rectangle((x + j, y + i), 1, 1, facecolor=colour, edgecolor=GREY, alpha=0.8))
        ax.text(x + tiles / 2, y - 0.35, name, ha="center", fontsize=12)

    gap = tiles + 1
    matrix(0, gap, "A", {(row, k) for k in range(tiles)}, {(row, step)})
    matrix(gap, 0, "B", {(k, column) for k in range(tiles)}, {(step, column)})
    matrix(gap, gap, "C", set(), set())
    ax.add_patch(Rectangle((gap + column, gap + row), 1, 1, facecolor=GREEN, edgecolor=GREY))
    ax.text(gap + column + 0.5, gap + row + 0.5, "block", ha="center", va="center", fontsize=9)
    ax.set(xlim=(-0.2, 2 * tiles + 1.2), ylim=(2 * tiles + 1.2, -0.8), aspect="equal")
    ax.axis("off")
    return ax


# ---------------------------------------------------------------------------------------------- chapter 02


def traffic_bars(
    steps: Mapping[str, Sequence[Step]],
    highlight: Callable[[str], bool],
    *,
    legend: tuple[str, str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """One horizontal bar per algorithm, cut into its steps (`costs.Step`); megabytes on the x axis.

    Steps whose name satisfies `highlight` are drawn in vermilion, the others in blue; `legend` names the two.
    """
    ax = ax or plt.figure(figsize=(7.5, 1.0 + 0.55 * len(steps))).subplots()
    for row, parts in enumerate(steps.values()):
        left = 0.0
        for part in parts:
            width = part.total / 1e6
            colour = VERMILION if highlight(part.name) else BLUE
            ax.barh(row, width, left=left, height=0.6, color=colour, edgecolor="white")
            left += width
        ax.text(left, row, f" {left:,.1f} MB", va="center")
    ax.set(yticks=range(len(steps)), yticklabels=list(steps), xlabel="bytes to and from HBM, MB")
    ax.margins(x=0.16)
    ax.invert_yaxis()
    if legend:
        ax.legend(
            handles=[Patch(color=VERMILION, label=legend[0]), Patch(color=BLUE, label=legend[1])], loc="lower right"
        )
    return ax


def online_weights(scores: Tensor, block: int) -> Figure:
    """The softmax weights of one row of scores `[L]` as they are believed after each block of `block` scores."""
    stages = range(block, len(scores) + 1, block)
    figure, axes = plt.subplots(1, len(stages), figsize=(7.5, 2.5), sharey=True)
    for ax, seen in zip(axes, stages, strict=True):
        m = scores[:seen].max()
        weights = torch.exp(scores[:seen] - m)
        colours = [BLUE] * (seen - block) + [ORANGE] * block
        ax.bar(range(seen), (weights / weights.sum()).tolist(), color=colours)
        ax.set(
            xlim=(-0.6, len(scores) - 0.4),
            xticks=range(0, len(scores), block),
            xlabel="key",
            title=f"m = {m:.1f}, l = {weights.sum():.2f}",
        )
        ax.title.set_fontsize(9)
    axes[0].set_ylabel("weight so far")
    return figure


def tiled_attention(query_tiles: int, key_tiles: int, i: int, j: int) -> Axes:
    """Where step (i, j) of the tiled algorithm lies: the strips of Q, K, V and O around the matrix S."""
    ax = plt.figure(figsize=(7.0, 4.6)).subplots()
    strip, gap = 0.8, 0.3

    def rectangle(x: float, y: float, width: float, height: float, colour: str, dashed: bool = False) -> None:
        style = {"linestyle": (0, (3, 3)), "edgecolor": GREY} if dashed else {"edgecolor": "black"}
        ax.add_patch(Rectangle((x, y), width, height, facecolor=colour, linewidth=0.8, **style))

    left, right = -strip - gap, key_tiles + gap
    for row in range(query_tiles):
        rectangle(left, row, strip, 1, BLUE if row == i else "white")
        rectangle(right, row, strip, 1, VERMILION if row == i else "white")
        for column in range(key_tiles):
            rectangle(column, row, 1, 1, ORANGE if (row, column) == (i, j) else "white", dashed=True)
    for column in range(key_tiles):
        for shelf in (1, 2):
            rectangle(column, -shelf * (strip + gap), 1, strip, GREEN if column == j else "white")
    middle = query_tiles / 2
    label = {"ha": "center", "va": "center"}
    ax.text(left - 0.3, middle, "Q", **label)
    ax.text(right + strip + 0.35, middle, "O", **label)
    ax.text(-0.35, -2 * (strip + gap) + strip / 2, "K", **label)
    ax.text(-0.35, -(strip + gap) + strip / 2, "V", **label)
    ax.text(j + 0.5, i + 0.5, "S, P", **label)
    ax.annotate("", (key_tiles, i + 0.82), (0, i + 0.82), arrowprops={"arrowstyle": "->", "color": GREY})
    ax.text(key_tiles / 2, query_tiles + 0.3, "S and P: dashed tiles exist only on the chip, one at a time", **label)
    ax.set(xlim=(left - 0.7, right + strip + 0.8), ylim=(query_tiles + 0.6, -2 * (strip + gap) - 0.2), aspect="equal")
    ax.axis("off")
    return ax


def loop_orders(query_tiles: int, key_tiles: int) -> Figure:
    """The order in which the two algorithms visit the tiles of S: FA1 column by column, FA2 row by row."""
    figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.3))
    orders = {
        "FA1: outer loop over K, V": lambda i, j: j * query_tiles + i,
        "FA2: outer loop over Q": lambda i, j: i * key_tiles + j,
    }
    for ax, (title, order), by_row in zip(axes, orders.items(), (False, True), strict=True):
        for i in range(query_tiles):
            for j in range(key_tiles):
                shade = (SKY, "white")[(i if by_row else j) % 2]
                ax.add_patch(Rectangle((j, i), 1, 1, facecolor=shade, edgecolor=GREY, alpha=0.6))
                ax.text(j + 0.5, i + 0.5, str(order(i, j) + 1), ha="center", va="center")
        ax.set(xlim=(0, key_tiles), ylim=(query_tiles, 0), aspect="equal", title=title)
        ax.set(xlabel="key tile j", ylabel="query tile i")
        ax.set_xticks([n + 0.5 for n in range(key_tiles)], range(key_tiles))
        ax.set_yticks([n + 0.5 for n in range(query_tiles)], range(query_tiles))
        ax.tick_params(length=0)
    return figure


def tile_choice(block_rows: Sequence[int], ratios: Mapping[str, Sequence[float]], limits: Mapping[str, float]) -> Axes:
    """Traffic relative to standard attention against B_r, one line per series, and where shared memory runs out.

    `limits` maps a label to the largest B_r (not an integer, in general) that fits it.
    """
    ax = plt.figure(figsize=(7.5, 3.8)).subplots()
    for number, ((name, values), marker) in enumerate(zip(ratios.items(), "os^D", strict=False)):
        wide = {"linewidth": 5, "alpha": 0.4} if number == 0 else {}  # seen behind a line that coincides with it
        ax.plot(block_rows, values, marker=marker, markersize=4, label=name, **wide)
    for label, at in limits.items():
        ax.axvline(at, color=GREY, linestyle="--", linewidth=1)
        ax.text(at, 1.01, label, transform=ax.get_xaxis_transform(), ha="center", color=GREY)
    ax.axhline(1, color="black", linewidth=0.8)
    ax.set_xscale("log", base=2)
    ax.set_xticks(block_rows, block_rows)
    ax.set(xlabel="rows of a query tile, $B_r$", ylabel="times less traffic than standard attention")
    ax.legend(loc="upper left", bbox_to_anchor=(0.25, 0.98))  # beside the line of the smallest limit
    return ax


# ---------------------------------------------------------------------------------------------- chapter 01


def three_passes() -> Figure:
    """Naive attention as its three kernels: which matrix each reads and writes, drawn as shapes."""
    figure, ax = plt.subplots(figsize=(7.5, 3.2))
    boxes = [  # name, x, y, width, height, colour
        ("Q", 0.0, 0.0, 0.8, 3.0, SKY),
        ("$K^T$", 1.2, 3.3, 3.0, 0.8, SKY),
        ("S", 1.2, 0.0, 3.0, 3.0, VERMILION),
        ("P", 6.2, 0.0, 3.0, 3.0, VERMILION),
        ("V", 9.6, 0.0, 0.8, 3.0, SKY),
        ("O", 12.4, 0.0, 0.8, 3.0, GREEN),
    ]
    for name, x, y, width, height, colour in boxes:
        ax.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor=GREY, alpha=0.55))
        ax.text(x + width / 2, y + height / 2, name, ha="center", va="center", fontsize=13)
    shapes = [(0.4, "$L_q × d$"), (2.7, "$L_q × L_k$"), (7.7, "$L_q × L_k$"), (10.0, "$L_k × d$"), (12.8, "$L_q × d$")]
    for x, shape in shapes:
        ax.text(x, -0.15, shape, ha="center", va="top", color=GREY, fontsize=9)
    ax.text(4.3, 3.7, "$d × L_k$", va="center", color=GREY, fontsize=9)
    for start, end in [(4.35, 6.05), (10.55, 12.25)]:
        ax.annotate("", (end, 1.5), (start, 1.5), arrowprops={"arrowstyle": "->", "color": GREY, "linewidth": 1.5})
    ax.text(5.2, 1.7, "softmax", ha="center", va="bottom", fontsize=9)
    for x, y in [(1.0, 3.15), (9.4, 1.5)]:
        ax.text(x, y, "×", ha="center", va="center", fontsize=13)
    for x in (2.7, 7.7):
        ax.text(x, -0.75, "to HBM and back", ha="center", va="top", color=VERMILION, fontsize=9)
    for x, kernel in [(2.7, "1  scores.cu"), (7.7, "2  softmax.cu"), (12.6, "3  output.cu")]:
        ax.text(x, -1.8, kernel, ha="center", family="monospace", fontsize=9)
    ax.set(xlim=(-0.2, 14.0), ylim=(-2.1, 4.3), aspect="equal")
    ax.axis("off")
    return figure


def warp_addresses(requests: Mapping[str, Sequence[int]], row_bytes: int, rows: int = 32) -> Figure:
    """One panel per load of a warp: memory row by row, the sectors that move in light, the floats asked for in dark.

    `requests` maps a title to the byte addresses of the 32 lanes; memory is drawn as `rows` lines of `row_bytes`.
    """
    figure, axes = plt.subplots(1, len(requests), figsize=(7.5, 4.2), squeeze=False)
    for ax, (title, addresses) in zip(axes[0], requests.items(), strict=True):
        for sector in {address // 32 for address in addresses}:
            y, x = divmod(sector * 32, row_bytes)
            ax.add_patch(Rectangle((x, y), 32, 1, facecolor=ORANGE, edgecolor="white", alpha=0.5))
        for address in set(addresses):
            y, x = divmod(address, row_bytes)
            ax.add_patch(Rectangle((x, y), 4, 1, facecolor=BLUE, edgecolor="none"))
        ax.set(xlim=(0, row_bytes), ylim=(rows, 0), title=title, xlabel="byte within the row")
        ax.set_xticks(range(0, row_bytes + 1, 64))
        ax.set_yticks(range(0, rows + 1, 8))
    axes[0][0].set_ylabel("row of K (one key each)")
    return figure


def masks(panels: Mapping[str, Tensor]) -> Figure:
    """One panel per mask, bool `[L_q, L_k]`: the keys that a query sees are blue."""
    figure, axes = plt.subplots(1, len(panels), figsize=(7.5, 2.6), squeeze=False)
    for ax, (title, mask) in zip(axes[0], panels.items(), strict=True):
        rows, columns = mask.shape
        for i in range(rows):
            for j in range(columns):
                colour = BLUE if mask[i, j] else "white"
                ax.add_patch(Rectangle((j, i), 1, 1, facecolor=colour, edgecolor=GREY, linewidth=0.5))
        ax.set(xlim=(0, columns), ylim=(rows, 0), aspect="equal", title=title, xlabel="key j", ylabel="query i")
        ax.set_xticks([j + 0.5 for j in range(columns)], range(columns))
        ax.set_yticks([i + 0.5 for i in range(rows)], range(rows))
        ax.tick_params(length=0)
    return figure


def roofline(peaks: Mapping[str, float], bandwidth: float, points: Mapping[str, tuple[float, float]]) -> Axes:
    """Roofline: FLOP/s against arithmetic intensity, both axes logarithmic.

    `peaks` maps a label to FLOP/s, `bandwidth` is in bytes/s, `points` maps a kernel to (FLOP per byte, FLOP/s).
    """
    ax = plt.figure(figsize=(7.5, 3.8)).subplots()
    left, right = 0.1, 2000.0
    for (name, peak), style in zip(peaks.items(), ("--", "-"), strict=False):
        ax.plot([left, peak / bandwidth, right], [left * bandwidth, peak, peak], color=GREY, linestyle=style)
        ax.text(right, peak * 1.15, name, ha="right", color=GREY)
    for (name, (intensity, speed)), marker in zip(points.items(), "os^Dv", strict=False):
        ax.plot(intensity, speed, marker, markersize=8, label=name)
    ax.set(xscale="log", yscale="log", xlim=(left, right), xlabel="FLOP per byte of HBM traffic", ylabel="FLOP/s")
    ax.legend(loc="lower right")
    return ax


def time_and_memory(rows: Sequence[Mapping[str, Any]], names: Sequence[str], *, wide: Sequence[str] = ()) -> Figure:
    """Milliseconds and peak megabytes against the sequence length, a line per name; rows as `bench_gpu` gives them.

    Memory of the names in `wide` is drawn wide and pale, the first the widest: lines that coincide stay visible.
    """
    figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.6))
    for name, marker in zip(names, "os^Dv", strict=False):
        chosen = sorted((row for row in rows if row["name"] == name), key=lambda row: row["length"])
        lengths = [row["length"] for row in chosen]
        for ax, column in zip(axes, ("median_ms", "peak_mb"), strict=True):
            pale = column == "peak_mb" and name in wide
            look = {"linewidth": 3 + 3 * (len(wide) - wide.index(name)), "alpha": 0.4} if pale else {}
            ax.plot(lengths, [row[column] for row in chosen], marker=marker, markersize=4, label=name, **look)
            ax.set(xscale="log", yscale="log", xlabel="sequence length L")
            ax.set_xticks(lengths, lengths)
            ax.minorticks_off()
    axes[0].set_ylabel("time, ms")
    axes[1].set_ylabel("peak memory, MB")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure


def training(ours: Sequence[float], reference: Sequence[float], weights: Tensor) -> Figure:
    """Two losses step by step, which should coincide, and the attention weights `[L_q, L_k]` learned."""
    figure, (loss, picture) = plt.subplots(1, 2, figsize=(7.5, 3.0), width_ratios=(1.5, 1))
    loss.plot(ours, color=BLUE, label="our kernels")
    loss.plot(reference, "o", color=ORANGE, markersize=3, label="plain PyTorch")
    loss.set(xlabel="training step", ylabel="mean squared error", ylim=(0, None))
    loss.legend()
    image = picture.imshow(weights.numpy(), cmap="viridis", vmin=0, vmax=1)
    picture.set(xlabel="key", ylabel="query", title="weights")
    figure.colorbar(image, ax=picture, shrink=0.8)
    return figure


# ---------------------------------------------------------------------------------------------- chapter 03


def warp_shares() -> Figure:
    """Which part of a tile of S each of four warps computes: FlashAttention splits K among them, FlashAttention-2 Q."""
    figure, axes = plt.subplots(1, 2, figsize=(7.5, 2.9))
    colours = (BLUE, ORANGE, GREEN, PURPLE)
    for ax, split_q, title in zip(axes, (False, True), ("split K (FA1)", "split Q (FA2)"), strict=True):
        for warp, colour in enumerate(colours):
            x, y, width, height = (0, warp, 4, 1) if split_q else (warp, 0, 1, 4)
            ax.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor="white", alpha=0.6))
            ax.text(x + width / 2, y + height / 2, f"warp {warp}", ha="center", va="center", fontsize=9)
            q, k = (colour if split_q else "#cccccc"), ("#cccccc" if split_q else colour)
            ax.add_patch(Rectangle((-0.75, warp), 0.5, 1, facecolor=q, edgecolor="white", alpha=0.6))
            ax.add_patch(Rectangle((warp, -0.75), 1, 0.5, facecolor=k, edgecolor="white", alpha=0.6))
        ax.text(-0.9, 2, "Q", ha="right", va="center")
        ax.text(2, -0.9, "$K^T$", ha="center", va="bottom")
        ax.set(xlim=(-1.3, 4.1), ylim=(4.1, -1.5), aspect="equal", title=title)
        ax.axis("off")
    return figure


def chunk_banks(rows: int = 8, chunks: int = 8) -> Figure:
    """Where chunk c of each row lies in shared memory, row after row and swizzled; colours are groups of four banks.

    The places of chunk 0, which one phase of ldmatrix reads, are framed.
    """
    figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.4), sharey=True)
    orders = {"row after row": lambda row, place: place, "swizzled": lambda row, place: place ^ row % 8}
    for ax, (title, chunk_at) in zip(axes, orders.items(), strict=True):
        for row in range(rows):
            for place in range(chunks):
                chunk, colour = chunk_at(row, place), mpl.colormaps["twilight_shifted"]((place + 0.5) / chunks)
                ax.add_patch(Rectangle((place, row), 1, 1, facecolor=colour, edgecolor="white"))
                ink = "black" if sum(colour[:3]) > 1.8 else "white"
                ax.text(place + 0.5, row + 0.5, f"c{chunk}", ha="center", va="center", fontsize=9, color=ink)
        for row in range(rows):
            place = chunk_at(row, 0)
            ax.add_patch(Rectangle((place, row), 1, 1, facecolor="none", edgecolor=YELLOW, linewidth=3))
        banks = [f"{4 * place}–{4 * place + 3}" for place in range(chunks)]
        ax.set_xticks([place + 0.5 for place in range(chunks)], banks, fontsize=7)
        ax.set_yticks([row + 0.5 for row in range(rows)], range(rows))
        ax.set(xlim=(0, chunks), ylim=(rows, 0), aspect="equal", title=title, xlabel="banks")
        ax.tick_params(length=0)
    axes[0].set_ylabel("row of the tile")
    return figure


def copy_and_compute(tiles: int = 4) -> Figure:
    """A block's time, not to scale: copies and computation one after the other, and with two buffers side by side."""
    figure, axes = plt.subplots(2, 1, figsize=(7.5, 2.9), sharex=True)
    copy, compute = 0.7, 1.0

    def box(ax: Axes, x: float, line: int, width: float, tile: int) -> None:
        ax.add_patch(Rectangle((x, line), width, 0.8, facecolor=(SKY, ORANGE)[line], edgecolor="white"))
        ax.text(x + width / 2, line + 0.4, f"{tile}", ha="center", va="center")

    for tile in range(tiles):
        box(axes[0], tile * (copy + compute), 0, copy, tile)
        box(axes[0], tile * (copy + compute) + copy, 1, compute, tile)
        box(axes[1], copy + (tile - 1) * compute if tile else 0, 0, copy, tile)
        box(axes[1], copy + tile * compute, 1, compute, tile)
    for ax, title in zip(axes, ("one buffer", "two buffers"), strict=True):
        ax.set(xlim=(0, tiles * (copy + compute)), ylim=(1.9, -0.1), title=title)
        ax.set_yticks([0.4, 1.4], ["copy K, V", "compute"])
        ax.set_xticks([])
        ax.tick_params(length=0)
    axes[1].set_xlabel("time (not to scale); numbers are tiles of keys")
    return figure


def ladder(names: Sequence[str], speeds: Mapping[str, Sequence[float]], peers: Mapping[str, float]) -> Figure:
    """TFLOP/s of each step of a ladder, a panel for each series, with the library's speed as a line.

    `speeds` maps a panel's title to one figure per name, `peers` the same titles to the library's figure.
    """
    figure, axes = plt.subplots(1, len(speeds), figsize=(7.5, 0.9 + 0.36 * len(names)), sharey=True, squeeze=False)
    for ax, (title, values) in zip(axes[0], speeds.items(), strict=True):
        peer = peers[title]
        ax.barh(names, values, color=[ORANGE if value < peer else GREEN for value in values], height=0.65)
        ax.axvline(peer, color=BLUE, linestyle="--")
        for row, value in enumerate(values):
            label = ax.text(value, row, f" {value / peer:.0%}", va="center", fontsize=9)
            label.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5})
        ax.set(xlabel="TFLOP/s", xlim=(0, 1.35 * max(*values, peer)))
        ax.set_title(title, fontsize=10)
        ax.tick_params(axis="y", length=0)
    axes[0][0].invert_yaxis()
    return figure


def speed_by_length(panels: Mapping[str, Mapping[str, Mapping[int, float]]], ylabel: str = "TFLOP/s") -> Figure:
    """One panel per title, in it one line per name: figures against the sequence length, which is logarithmic."""
    columns = 2
    lines = -(-len(panels) // columns)
    size = (7.5, 0.6 + 2.4 * lines)
    figure, axes = plt.subplots(lines, columns, figsize=size, sharex=True, sharey=True, squeeze=False)
    for ax, (title, series) in zip(axes.flat, panels.items(), strict=False):
        for (name, points), marker in zip(series.items(), "os^Dv", strict=False):
            ax.plot(list(points), list(points.values()), marker=marker, markersize=4, label=name)
            ax.set_xscale("log", base=2)
            ax.set_xticks(list(points), list(points))
        ax.minorticks_off()
        ax.set_title(title)
    axes[0][0].set_ylim(bottom=0)  # of all, once all are drawn: it ends the scaling of a shared axis
    for ax in axes[-1]:
        ax.set_xlabel("sequence length L")
    for line in axes:
        line[0].set_ylabel(ylabel)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


def magnitudes(values: Mapping[str, Tensor], limits: Mapping[str, float]) -> Axes:
    """Histograms of log2 of the absolute values, a line per name, the rarest left out; dashed: two limits, by label."""
    ax = plt.figure(figsize=(7.5, 3.2)).subplots()
    exponents = {name: tensor.abs()[tensor != 0].log2().flatten() for name, tensor in values.items()}
    low = min(found.quantile(0.002).item() for found in exponents.values())
    high = max(found.max().item() for found in exponents.values())
    for name, found in exponents.items():
        ax.hist(found.tolist(), bins=80, range=(low, high), histtype="step", linewidth=1.5, label=name)
    for (label, number), side in zip(limits.items(), ("right", "left"), strict=True):
        at = torch.tensor(number).log2().item()
        ax.axvline(at, color=GREY, linestyle="--", linewidth=1)
        ax.text(at, 1.01, label, transform=ax.get_xaxis_transform(), ha=side, color=GREY, fontsize=9)
    ax.set(xlabel="exponent: log2 of the magnitude", ylabel="elements", yticks=[], xlim=(low, high))
    ax.legend(loc="upper left")
    return ax


# ---------------------------------------------------------------------------------------------- chapter 04


def scaling(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Milliseconds against the sequence length: a panel per kernel, a line per pattern, dense attention dashed.

    rows: the part "scaling" of `bench_sparse`; those without a kernel are of dense attention. A pattern is drawn with
    the kernel that it has at its greatest length.
    """
    kernel_of = {row["pattern"]: row.get("kernel") for row in sorted(rows, key=lambda row: row["length"])}
    kernels = list(dict.fromkeys(kernel for kernel in kernel_of.values() if kernel))
    figure, axes = plt.subplots(1, len(kernels), figsize=(7.5, 4.2), sharex=True, sharey=True, squeeze=False)
    for ax, kernel in zip(axes[0], kernels, strict=True):
        shown = [pattern for pattern, found in kernel_of.items() if found in (kernel, None)]
        looks = zip(
            itertools.cycle((BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, GREY)),
            itertools.cycle(("-", ":")),
            strict=False,
        )  # where two lines lie on each other, one is dotted
        for pattern in shown:
            points = sorted((row["length"], row["median_ms"]) for row in rows if row["pattern"] == pattern)
            dense = kernel_of[pattern] is None
            colour, line = ("black", "--") if dense else next(looks)
            label = re.sub(r"\w+=", "", pattern)  # values are enough
            ax.plot(
                *zip(*points, strict=True), line, color=colour, marker="" if dense else "o", markersize=3, label=label
            )
        ax.set(xscale="log", yscale="log", title=kernel, xlabel="sequence length L")
        ax.set_xscale("log", base=2)
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=7)
    axes[0][0].set_ylabel("time, ms")
    return figure


def break_even(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Figure:
    """How many times as fast as dense attention, by sequence length and density, a panel per name: blue is faster.

    rows: the part "break_even" of `bench_sparse`.
    """
    lengths = sorted({row["length"] for row in rows})
    densities = sorted({row["density"] for row in rows})
    size = (max(7.5, 2.6 * len(names)), 0.9 + 0.42 * len(densities))
    figure, axes = plt.subplots(1, len(names), figsize=size, sharey=True, squeeze=False)
    limit, image = 8.0, None
    for ax, name in zip(axes[0], names, strict=True):
        ratios = torch.full((len(densities), len(lengths)), torch.nan)
        for row in rows:
            if row["name"] == name:
                place = densities.index(row["density"]), lengths.index(row["length"])
                ratio = ratios[place] = row["ratio_to_dense"]
                dark = not 1 / 3 < ratio < 3
                text = f"{ratio:.2g}" if ratio > 0.1 else f"1/{1 / ratio:.2g}" if ratio > 0.01 else f"1/{1 / ratio:.0f}"
                colour = "white" if dark else "black"
                ax.text(*reversed(place), text, ha="center", va="center", fontsize=8, color=colour)
        norm = mpl.colors.LogNorm(1 / limit, limit, clip=True)
        image = ax.imshow(ratios.numpy(), cmap="RdBu", norm=norm, origin="lower", aspect="auto")
        ax.set_xticks(range(len(lengths)), [f"{length // 1024} K" for length in lengths])
        ax.set_yticks(range(len(densities)), [_share(density) for density in densities])
        ax.set(title=name, xlabel="sequence length L")
        ax.tick_params(length=0)
    axes[0][0].set_ylabel("share of the pairs kept")
    bar = figure.colorbar(image, ax=axes[0], label="times as fast as dense", ticks=[1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8])
    bar.ax.set_yticklabels(["1/8", "1/4", "1/2", "1", "2", "4", "8"])
    bar.ax.minorticks_off()
    return figure


def _share(density: float) -> str:
    """A share of one as a fraction where it is a whole part, such as 1/16."""
    parts = round(1 / density)
    return f"1/{parts}" if parts > 1 and abs(parts * density - 1) < 0.01 else f"{density:.3g}"


def short_sequences(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Microseconds against the sequence length, a panel per pattern and a colour per name: those of the GPU alone as a
    line, those of a whole call dotted.

    rows: the part "small" of `bench_sparse`.
    """
    panels = list(dict.fromkeys(row["pattern"] for row in rows))
    figure, axes = plt.subplots(1, len(panels), figsize=(7.5, 3.8), sharey=True, squeeze=False)
    for ax, pattern in zip(axes[0], panels, strict=True):
        chosen = [row for row in rows if row["pattern"] == pattern]
        names = list(dict.fromkeys(row["name"] for row in chosen))
        for name, colour in zip(names, (BLUE, "black", ORANGE, GREEN, PURPLE), strict=False):
            for column, style in (("median_ms", "-"), ("call_ms", ":")):
                points = [(row["length"], 1e3 * row[column]) for row in chosen if row["name"] == name]
                label = f"{name}, {'GPU' if column == 'median_ms' else 'call'}"
                ax.plot(
                    *zip(*points, strict=True), color=colour, linestyle=style, marker="o", markersize=3, label=label
                )
        lengths = sorted({row["length"] for row in chosen})
        ax.set(xscale="log", yscale="log", title=pattern, xlabel="sequence length L")
        ax.set_xticks(lengths, lengths)
        ax.minorticks_off()
    axes[0][0].set_ylabel("time, µs")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=8)
    return figure


# ---------------------------------------------------------------------------------------------- chapter 05


def dsa_layer() -> Figure:
    """DeepSeek Sparse Attention in four steps; above what each costs per pair or per query, below what it passes on."""
    figure, ax = plt.subplots(figsize=(7.5, 2.9))

    def box(x: float, y: float, width: float, colour: str, title: str, text: str) -> None:
        ax.add_patch(Rectangle((x, y), width, 1.7, facecolor=colour, edgecolor=GREY, alpha=0.35))
        ax.text(x + width / 2, y + 1.3, title, ha="center", va="center", fontsize=9, fontweight="bold")
        ax.text(x + width / 2, y + 0.6, text, ha="center", va="center", fontsize=8)

    def arrow(start: tuple[float, float], end: tuple[float, float], text: str = "") -> None:
        ax.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": GREY})
        middle = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
        ax.text(middle[0], middle[1] + 0.12, text, ha="center", va="bottom", fontsize=8)

    box(0, 1.2, 2.1, "#cccccc", "token t", "hidden state\n7168 numbers")
    box(3.2, 2.5, 3.0, ORANGE, "lightning indexer", "all keys s ≤ t:\n64 heads of 128, FP8")
    box(7.5, 2.5, 2.2, YELLOW, "top-k", "the 2048 greatest\nI[t, s]")
    box(11.0, 1.2, 3.2, BLUE, "sparse core", "attention of 128 heads\nto 2048 rows of 576")
    box(3.2, 0, 6.5, GREEN, "cache", "of each token: a latent row of 576 numbers\nand an index key of 128")
    arrow((2.1, 2.4), (3.2, 3.2))
    arrow((6.2, 3.35), (7.5, 3.35), "I[t, :]")
    arrow((9.7, 3.1), (11.0, 2.5))
    ax.text(10.75, 3.15, "2048 indices", ha="center", va="bottom", fontsize=8)
    arrow((9.7, 0.85), (11.0, 1.5))
    ax.text(10.75, 0.75, "rows", ha="center", va="center", fontsize=8)
    arrow((4.7, 1.7), (4.7, 2.5))
    ax.text(4.85, 2.1, "index keys", ha="left", va="center", fontsize=8)
    arrow((2.1, 1.6), (3.2, 1.0))
    ax.set(xlim=(-0.1, 14.3), ylim=(-0.1, 4.4))
    ax.axis("off")
    return figure


def radix_digits(scores: Tensor, k: int, bars: int = 32) -> Figure:
    """The first two digits of a radix select of the k greatest of `scores` (fp32, 1-D), 11 bits each, as radix_topk.cu
    takes them: a panel per digit, the greatest first, and in the first panel the `bars` greatest digits that occur.

    Blue: selected. Orange: the bin in which the k-th greatest lies, which the next digit splits (in the second panel a
    bar is 32 digits). Grey: left out.
    """
    bits = scores.float().contiguous().view(torch.int32).long() & 0xFFFFFFFF
    keys = torch.where(bits >= 1 << 31, 0xFFFFFFFF - bits, bits + (1 << 31))  # in the order of the scores
    figure, axes = plt.subplots(2, 1, figsize=(7.5, 4.4))
    for number, (ax, shift) in enumerate(zip(axes, (21, 10), strict=True), start=1):
        digits = keys >> shift & 2047
        found, counts = digits.unique(return_counts=True)
        above = counts.flip(0).cumsum(0).flip(0) - counts  # scores with a greater digit
        digit = found[(above < k) & (above + counts >= k)].item()
        selected, inside = digits > digit, digits == digit
        ax.set_title(
            f"digit {number}, {len(keys):,} scores: {int(selected.sum()):,} selected; "
            f"{int(inside.sum()):,} in the bin, {k - int(selected.sum()):,} of which are wanted",
            fontsize=9,
        )
        grouped, first = digits // (1 if number == 1 else 32), digit // (1 if number == 1 else 32)
        shown = grouped.unique().flip(0)[:bars] if number == 1 else torch.arange(63, -1, -1)
        heights = [int((grouped == group).sum()) for group in shown]
        colours = [BLUE if group > first else ORANGE if group == first else "#bbbbbb" for group in shown]
        ax.bar(range(len(shown)), heights, color=colours, width=0.9)
        ax.set(ylabel="scores", xlim=(-0.7, len(shown) - 0.3))
        if number == 1:
            places = range(0, len(shown), 4)
            ends = shown[::4] << shift
            bits = torch.where(ends >= 1 << 31, ends - (1 << 31), -1 - ends).to(torch.int32)
            ax.set_xticks(places, [f"{score:.3g}" for score in bits.view(torch.float32).tolist()])
            ax.set_xlabel(f"lower end of the digit (to the right, {len(keys) - sum(heights):,} lower scores)")
        else:
            ax.set_xticks([])
            ax.set_xlabel("next 11 bits of the scores in the bin, the greatest first, 32 digits to a bar")
        keys, scores, k = keys[inside], scores[inside], k - int(selected.sum())
    return figure


def token_costs(lengths: Sequence[int], flops: Mapping[str, Sequence[float]], marks: Mapping[str, float]) -> Axes:
    """FLOPs of one token against the keys before it, a line per name, both logarithmic; a dotted line at each mark."""
    ax = plt.figure(figsize=(7.5, 3.9)).subplots()
    for (name, values), colour in zip(flops.items(), ("black", ORANGE, BLUE, VERMILION), strict=False):
        ax.plot(lengths, [value / 1e9 for value in values], color=colour, label=name, linewidth=2)
    ax.set(xscale="log", yscale="log", xlabel="keys before the token, L", ylabel="GFLOP, one layer")
    for text, length in marks.items():
        ax.axvline(length, color=GREY, linestyle=":", linewidth=1)
        ax.annotate(
            text,
            (length, ax.get_ylim()[0]),
            (4, 4),
            textcoords="offset points",
            fontsize=8,
            va="bottom",
            color="#444444",
        )
    ticks = [length for length in lengths if length & (length - 1) == 0]
    ax.set_xticks(ticks, [f"{tick // 1024} K" for tick in ticks])
    ax.minorticks_off()
    ax.legend(fontsize=9, frameon=True, facecolor="white", edgecolor="none", framealpha=1)
    return ax


def gathered_tile(chosen: Sequence[int] = (1, 2, 6, 11, 17), tokens: int = 20) -> Figure:
    """The rows of the cache that one query has chosen, the tile that they become, and its products with the heads."""
    figure, ax = plt.subplots(figsize=(7.5, 3.7))

    def block(x: float, y: float, width: float, height: float, colour: str, text: str = "") -> None:
        ax.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor="white", linewidth=0.8, alpha=0.7))
        ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=10)

    def label(x: float, y: float, text: str, **look: Any) -> None:
        ax.text(x, y, text, ha="center", **{"va": "bottom", "fontsize": 9} | look)

    row, top = 0.3, 6.6
    for token in range(tokens):
        block(0, top - (token + 1) * row, 3.6, row, ORANGE if token in chosen else "#dddddd")
    label(1.8, top + 0.1, "cache: a latent row\nof 576 for each token")
    left, bottom = 5.6, 3.0
    for place, token in enumerate(chosen):
        y = bottom + (len(chosen) - 1 - place) * row
        block(left, y, 3.2, row, ORANGE)
        block(left + 3.2, y, 0.4, row, YELLOW)
        ends = (left - 0.05, y + row / 2), (3.65, top - (token + 0.5) * row)
        ax.annotate("", *ends, arrowprops={"arrowstyle": "->", "color": GREY, "linewidth": 0.8})
    height = len(chosen) * row
    label(left + 1.8, bottom + height + 0.1, "tile: 64 gathered rows")
    ax.annotate("", (left, bottom - 0.15), (left + 3.2, bottom - 0.15), arrowprops={"arrowstyle": "<->", "color": GREY})
    label(left + 1.6, bottom - 0.25, "V: 512", va="top")
    ax.annotate("", (left, bottom - 0.75), (left + 3.6, bottom - 0.75), arrowprops={"arrowstyle": "<->", "color": GREY})
    label(left + 1.8, bottom - 0.85, "K: 576", va="top")
    block(11.0, 3.6, 3.6, 2.4, SKY, "Q")
    label(12.8, 6.1, "64 heads of one query, 576")
    block(15.4, 3.6, 1.5, 2.4, GREEN, "S, P")
    label(16.15, 6.1, "QKᵀ", fontweight="bold")
    block(11.0, 0.4, 3.2, 2.4, BLUE, "O")
    label(12.6, 0.3, "64 heads, 512", va="top")
    label(15.6, 1.5, "O += P V", fontweight="bold")
    ax.set(xlim=(-0.1, 17.2), ylim=(-0.2, 7.6))
    ax.axis("off")
    return figure


# ---------------------------------------------------------------------------------------------- chapter 08


def three_choices(rows: Sequence[Mapping[str, Any]], memory_bytes: float) -> Figure:
    """Milliseconds and peak bytes against the length, a line per name; a cross where a row ran out of memory, at the
    allocation that failed. Rows as `bench_choosing.choosing` gives them. memory_bytes: of the device, a dashed line."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 4))
    lengths = sorted({row["length"] for row in rows})
    for place, (name, marker) in enumerate(zip(dict.fromkeys(row["name"] for row in rows), "os^Dv", strict=False)):
        chosen = [row for row in rows if row["name"] == name]
        for ax, column in zip(axes, ("median_ms", "peak_extra_bytes"), strict=True):
            points = [(row["length"], row[column]) for row in chosen if row[column] is not None]
            ax.plot(*zip(*points, strict=True), marker=marker, markersize=4, label=name, color=f"C{place}")
        failed = [(row["length"], row["asked_bytes"]) for row in chosen if row["asked_bytes"]]
        if failed:
            axes[1].plot(*zip(*failed, strict=True), "x", markersize=9, color=f"C{place}")
    axes[1].axhline(memory_bytes, color="black", linestyle="--", linewidth=1)
    axes[1].text(lengths[0], 1.3 * memory_bytes, "memory of the device", fontsize=9)
    for ax, label in zip(axes, ("time, ms", "memory beyond the inputs, bytes"), strict=True):
        ax.set(xscale="log", yscale="log", xlabel="sequence length L", ylabel=label)
        ax.set_xticks(lengths, [f"{n // 1024} K" if n >= 1024 else str(n) for n in lengths])
        ax.minorticks_off()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure
