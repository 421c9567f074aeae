"""Pictures of chapter 03."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from course_utils.plots.look import (
    BLUE,
    CYCLIC,
    GREEN,
    GREY,
    GROUND,
    ON_MAP,
    ON_MARK,
    ORANGE,
    OURS,
    PALE,
    PASS,
    PURPLE,
    SKY,
    YELLOW,
    colours_of,
)


def warp_shares() -> Figure:
    """Which part of a tile of S each of four warps computes: FlashAttention splits K among them, FlashAttention-2 Q."""
    figure, axes = plt.subplots(1, 2, figsize=(7.5, 2.9))
    colours = (BLUE, ORANGE, GREEN, PURPLE)
    for ax, split_q, title in zip(axes, (False, True), ("split K (FA1)", "split Q (FA2)"), strict=True):
        for warp, colour in enumerate(colours):
            x, y, width, height = (0, warp, 4, 1) if split_q else (warp, 0, 1, 4)
            ax.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor=GROUND, alpha=0.6))
            ax.text(x + width / 2, y + height / 2, f"warp {warp}", ha="center", va="center", fontsize=9)
            q, k = (colour if split_q else PALE), (PALE if split_q else colour)
            ax.add_patch(Rectangle((-0.75, warp), 0.5, 1, facecolor=q, edgecolor=GROUND, alpha=0.6))
            ax.add_patch(Rectangle((warp, -0.75), 1, 0.5, facecolor=k, edgecolor=GROUND, alpha=0.6))
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
                chunk, colour = chunk_at(row, place), mpl.colormaps[CYCLIC]((place + 0.5) / chunks)
                ax.add_patch(Rectangle((place, row), 1, 1, facecolor=colour, edgecolor=GROUND))
                ink = ON_MAP[int(sum(colour[:3]) < 1.4)]
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
        ax.add_patch(Rectangle((x, line), width, 0.8, facecolor=(SKY, ORANGE)[line], edgecolor=GROUND))
        ax.text(x + width / 2, line + 0.4, f"{tile}", ha="center", va="center", color=ON_MARK)

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


def packed_heads(heads: int = 4, queries: int = 2, tile_rows: int = 16) -> Figure:
    """Which query of which head is in each row of a tile: a tile for each head of a group, and one for them all."""
    figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.2), sharey=True, width_ratios=(heads, 1))
    colours = (BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW)
    alone = [[(head, query) for query in range(queries)] for head in range(heads)]
    for ax, tiles, title in zip(axes, (alone, [sum(alone, [])]), ("a tile for each head", "packed"), strict=True):
        for block, rows in enumerate(tiles):
            left = 1.2 * block
            ax.add_patch(Rectangle((left, 0), 1, tile_rows, facecolor=PALE))
            for place, (head, query) in enumerate(rows):
                colour = colours[head % len(colours)]
                ax.add_patch(Rectangle((left, place), 1, 1, facecolor=colour, edgecolor=GROUND, alpha=0.6))
                ax.text(left + 0.5, place + 0.5, f"head {head}, query {query}", ha="center", va="center", fontsize=7)
            ax.text(left + 0.5, tile_rows + 0.3, f"block {block}", ha="center", va="top", fontsize=9)
        ax.set(xlim=(-0.05, 1.2 * len(tiles) - 0.15), ylim=(tile_rows + 1.5, 0), title=title)
        ax.axis("off")
    return figure


def ladder(
    names: Sequence[str], speeds: Mapping[str, Sequence[float]], peers: Mapping[str, Mapping[str, float]]
) -> Figure:
    """TFLOP/s of each step of a ladder, a panel for each series, with the library's kernels as lines.

    `speeds` maps a panel's title to one figure per name, `peers` the same titles to the figure of each kernel; the
    shares beside the bars are of the first one, and bars beyond it are green.
    """
    figure, axes = plt.subplots(1, len(speeds), figsize=(7.5, 1.2 + 0.36 * len(names)), sharey=True, squeeze=False)
    for ax, (title, values) in zip(axes[0], speeds.items(), strict=True):
        first = next(iter(peers[title].values()))
        ax.barh(names, values, color=[OURS if value < first else PASS for value in values], height=0.65)
        colours = colours_of(peers[title])
        for (name, peer), dashes in zip(peers[title].items(), ("--", ":"), strict=False):
            ax.axvline(peer, color=colours[name], linestyle=dashes, label=name)
        for row, value in enumerate(values):
            label = ax.text(value, row, f" {value / first:.0%}", va="center", fontsize=9)
            label.set_bbox({"facecolor": GROUND, "edgecolor": "none", "pad": 0.5})
        ax.set(xlabel="TFLOP/s", xlim=(0, max(1.35 * max(values), *(1.1 * peer for peer in peers[title].values()))))
        ax.set_title(title, fontsize=10)
        ax.tick_params(axis="y", length=0)
    axes[0][0].invert_yaxis()
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure


def speed_by_length(panels: Mapping[str, Mapping[str, Mapping[int, float]]], ylabel: str = "TFLOP/s") -> Figure:
    """One panel per title, in it one line per name: figures against the sequence length, which is logarithmic."""
    columns = 2
    lines = -(-len(panels) // columns)
    size = (7.5, 0.6 + 2.4 * lines)
    figure, axes = plt.subplots(lines, columns, figsize=size, sharex=True, sharey=True, squeeze=False)
    for ax, (title, series) in zip(axes.flat, panels.items(), strict=False):
        colours = colours_of(series)
        for (name, points), marker in zip(series.items(), "os^Dv", strict=False):
            look = {"color": colours[name], "marker": marker}
            ax.plot(list(points), list(points.values()), **look, markersize=4, label=name)
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
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))  # beside the lines, which go anywhere
    return ax
