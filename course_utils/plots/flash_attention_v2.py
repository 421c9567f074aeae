"""Pictures of chapter 03."""

from __future__ import annotations

import textwrap
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
    GREEN,
    GREY,
    GROUND,
    INK,
    ON_MARK,
    ORANGE,
    OURS,
    PALE,
    PASS,
    PURPLE,
    SKY,
    VERMILION,
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
            ax.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor=GROUND, alpha=0.8))
            words = {"ha": "center", "va": "center", "fontsize": 9, "color": ON_MARK}
            ax.text(x + width / 2, y + height / 2, f"warp {warp}", **words)
            q, k = (colour if split_q else PALE), (PALE if split_q else colour)
            ax.add_patch(Rectangle((-0.75, warp), 0.5, 1, facecolor=q, edgecolor=GROUND, alpha=0.6))
            ax.add_patch(Rectangle((warp, -0.75), 1, 0.5, facecolor=k, edgecolor=GROUND, alpha=0.6))
        ax.text(-0.9, 2, "Q", ha="right", va="center")
        ax.text(2, -0.9, "$K^T$", ha="center", va="bottom")
        ax.set(xlim=(-1.3, 4.1), ylim=(4.1, -1.5), aspect="equal", title=title)
        ax.axis("off")
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
    """Which query of which head is in each row of a tile: with a tile for each head of a group, and with one for the
    group."""
    figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.2), sharey=True, width_ratios=(heads, 1))
    colours = (BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW)
    alone = [[(head, query) for query in range(queries)] for head in range(heads)]
    for ax, tiles, title in zip(axes, (alone, [sum(alone, [])]), ("a tile for each head", "packed"), strict=True):
        for block, rows in enumerate(tiles):
            left = 1.2 * block
            ax.add_patch(Rectangle((left, 0), 1, tile_rows, facecolor=PALE))
            for place, (head, query) in enumerate(rows):
                colour = colours[head % len(colours)]
                ax.add_patch(Rectangle((left, place), 1, 1, facecolor=colour, edgecolor=GROUND, alpha=0.8))
                words = {"ha": "center", "va": "center", "fontsize": 7, "color": ON_MARK}
                ax.text(left + 0.5, place + 0.5, f"head {head}, query {query}", **words)
            ax.text(left + 0.5, tile_rows + 0.3, f"block {block}", ha="center", va="top", fontsize=9)
        # The line holds the tiles together: on a phone a picture is cut where nothing joins its parts.
        ax.hlines(0, 0, 1.2 * len(tiles) - 0.2, color=GREY, linewidth=1)
        ax.set(xlim=(-0.05, 1.2 * len(tiles) - 0.15), ylim=(tile_rows + 1.5, -0.2), title=title)
        ax.axis("off")
    return figure


def softcap_and_sinks(capped: tuple[Tensor, Tensor, float], shares: tuple[Tensor, Tensor]) -> Figure:
    """Two additions to the softmax. capped: scores, what a softcap makes of them, and the cap. shares: how far sinks
    lie above the log-sum-exp of the scores, and the share of the weight that the keys get."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 2.9))
    scores, after, cap = capped
    left.plot(scores, scores, color=GREY, linestyle="--")
    left.plot(scores, after, color=BLUE)
    left.set(xlabel="score", ylabel="after the softcap", title=f"softcap, c = {cap:g}", ylim=(-1.5 * cap, 1.5 * cap))
    left.set_yticks([-cap, 0, cap])
    distances, share = shares
    right.plot(distances, 100 * share, color=BLUE)
    right.set(xlabel="sink − log-sum-exp of the scores", ylabel="% of the weight", title="what the keys get")
    right.set_ylim(0, 104)
    return figure


def climb(
    names: Sequence[str], speeds: Sequence[float], reached: int, peers: Mapping[str, float], title: str = ""
) -> Figure:
    """TFLOP/s of a ladder's steps, "you are here" at the last of the first `reached` ones; the steps to come are
    outlines, all as high as the first of the peers, so that none gives its speed away. peers: the library's kernels, as
    lines, named beside the axes; bars beyond the first of them are green.
    """
    figure, ax = plt.subplots(figsize=(7.5, 2.9))
    first = next(iter(peers.values()))
    for place, speed in enumerate(speeds):
        done = {"facecolor": ORANGE if speed < first else GREEN}
        look = done if place < reached else {"facecolor": "none", "edgecolor": GREY, "linestyle": "--"}
        ax.bar(place, speed if place < reached else first, width=0.7, **look)
        if place < reached:
            label = ax.text(place, speed, f"{speed:.0f}", ha="center", va="bottom", fontsize=9, zorder=3)
            label.set_bbox({"facecolor": GROUND, "edgecolor": "none", "alpha": 0.85, "pad": 0.5})
    for (name, peer), colour, dashes in zip(peers.items(), (BLUE, PURPLE), ("--", ":"), strict=False):
        ax.axhline(peer, color=colour, linestyle=dashes)
        ax.text(len(names) - 0.37, peer, textwrap.fill(name, 6), color=colour, fontsize=9, va="center")
    if reached:
        here = reached - 1
        above = speeds[here] + 0.09 * max(peers.values())
        ax.annotate(
            "you are here",
            (here, above),
            (min(here, len(names) - 1.2), above + 0.12 * max(peers.values())),  # short of the names beside the axes
            ha="center",
            fontsize=9,
            fontweight="bold",
            arrowprops={"arrowstyle": "->"},
            bbox={"facecolor": GROUND, "edgecolor": "none", "pad": 0.5},
            zorder=4,
        )
    ax.set(xlim=(-0.6, len(names) - 0.4), ylim=(0, 1.15 * max(*speeds, *peers.values())), title=title)
    ax.set_xticks(range(len(names)), [textwrap.fill(name, 11) for name in names], fontsize=8)
    ax.set_ylabel("TFLOP/s")
    ax.tick_params(axis="x", length=0)
    return figure


def short_calls(panels: Mapping[str, Mapping[str, Mapping[int, float]]]) -> Figure:
    """Microseconds against the length of one short sequence, both logarithmic: a panel per title, a line per name."""
    figure, axes = plt.subplots(1, len(panels), figsize=(7.5, 3.2), sharex=True, sharey=True, squeeze=False)
    colours = (BLUE, ORANGE, GREEN, VERMILION, PURPLE)
    for ax, (title, series) in zip(axes[0], panels.items(), strict=True):
        for (name, points), marker, colour in zip(series.items(), "os^Dv", colours, strict=False):
            ax.loglog(list(points), list(points.values()), marker=marker, markersize=4, color=colour, label=name)
            ax.set_xticks(list(points), list(points))
        ax.minorticks_off()
        ax.set(title=title, xlabel="tokens L")
    axes[0][0].set_ylabel("µs")
    fullest = max(axes[0], key=lambda ax: len(ax.lines))
    figure.legend(*fullest.get_legend_handles_labels(), loc="outside upper center", ncols=5)
    return figure


def reading_rates(groups: Mapping[str, Mapping[str, float]], copy: float) -> Figure:
    """TB/s at which kernels read K and V for one query: a group per shape, a bar per kernel; a copy as a line."""
    figure, ax = plt.subplots(figsize=(7.5, 3.0))
    names = list(next(iter(groups.values())))
    for n, (name, colour) in enumerate(zip(names, (BLUE, ORANGE, GREEN, PURPLE), strict=False)):
        places = [group + (n - (len(names) - 1) / 2) * 0.27 for group in range(len(groups))]
        ax.bar(places, [rates[name] for rates in groups.values()], width=0.25, color=colour, label=name)
    ax.axhline(copy, color=GREY, linestyle="--")
    ax.text(-0.5, copy, "a copy", color=GREY, fontsize=9, va="bottom")
    ax.set_xticks(range(len(groups)), list(groups), fontsize=9)
    ax.set(ylabel="TB/s of K and V", xlim=(-0.55, len(groups) - 0.45))
    figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=len(names))
    return figure


def number_formats() -> Figure:
    """The bits of fp16, bf16 and fp32, a box each: sign, exponent, fraction."""
    figure, ax = plt.subplots(figsize=(7.5, 1.9))
    for row, (name, exponent, fraction) in enumerate((("fp16", 5, 10), ("bf16", 8, 7), ("fp32", 8, 23))):
        for bit in range(1 + exponent + fraction):
            colour = GREY if bit == 0 else ORANGE if bit <= exponent else SKY
            ax.add_patch(Rectangle((bit, row + 0.1), 1, 0.8, facecolor=colour, edgecolor=GROUND))
        ax.text(-0.4, row + 0.5, name, ha="right", va="center")
        for start, count in ((1, exponent), (1 + exponent, fraction)):
            ax.text(start + count / 2, row + 0.5, str(count), ha="center", va="center", fontsize=9, color=ON_MARK)
    for x, label in ((0.5, "sign"), (4.0, "exponent: reach"), (13.0, "fraction: digits")):
        ax.text(x, -0.1, label, ha="center" if x > 1 else "right", va="bottom", fontsize=9)
    ax.set(xlim=(-2.5, 33), ylim=(3, -0.6))
    ax.axis("off")
    return figure


def who_owns_what(tiles: int = 4) -> Figure:
    """The tiles of dS of a head, coloured by the block that computes them. A block owns a tile of keys and walks over
    the queries: the dK and dV below belong to one block each, dQ at the left is summed over blocks."""
    figure, ax = plt.subplots(figsize=(7.5, 3.9))
    colours = (BLUE, ORANGE, GREEN, PURPLE)
    for j in range(tiles):
        for i in range(tiles):
            ax.add_patch(Rectangle((j, i), 1, 1, facecolor=colours[j], edgecolor=GROUND, alpha=0.55))
        ax.annotate(
            "", (j + 0.5, tiles - 0.25), (j + 0.5, 0.25), arrowprops={"arrowstyle": "->", "color": INK, "lw": 2}
        )
        ax.text(j + 0.5, -0.15, f"block {j}", ha="center", va="bottom", fontsize=9)
        ax.add_patch(Rectangle((j, tiles + 0.25), 1, 0.5, facecolor=colours[j], edgecolor=GROUND, alpha=0.9))
        ax.text(j + 0.5, tiles + 0.5, f"$dK_{j}, dV_{j}$", ha="center", va="center", fontsize=8, color=ON_MARK)
    for i in range(tiles):
        for j in range(tiles):
            ax.add_patch(Rectangle((-1.35 + 0.25 * j, i), 0.25, 1, facecolor=colours[j], edgecolor=GROUND))
        ax.text(-1.45, i + 0.5, f"$dQ_{i}$", ha="right", va="center")
    ax.text(tiles + 0.2, tiles + 0.5, "one owner each: stays in registers", va="center", fontsize=9)
    ax.text(tiles + 0.2, 0.5, "a row of tiles crosses all blocks:\n$dQ_i$ is a sum over them", va="center", fontsize=9)
    ax.text(tiles + 0.2, 2.5, "tiles of $dS$; arrows: a block's way", va="center", fontsize=9)
    ax.set(xlim=(-2.1, tiles + 4.2), ylim=(tiles + 0.9, -0.6), aspect="equal")
    ax.axis("off")
    return figure


def operations(graphs: Mapping[str, Sequence[tuple[str, str]]]) -> Figure:
    """The operations of each graph in their order, a box each with its name, in the colour of its kind.

    graphs: by title, kind and name of each operation. The kinds have colours in the order in which they first come.
    """
    kinds = list(dict.fromkeys(kind for boxes in graphs.values() for kind, _ in boxes))
    looks = dict(zip(kinds, (GREEN, SKY, OURS, ORANGE, YELLOW), strict=False))
    figure, axes = plt.subplots(len(graphs), 1, figsize=(7.5, 0.5 + 1.9 * len(graphs)))
    for ax, (title, boxes) in zip(axes, graphs.items(), strict=True):
        for place, (kind, name) in enumerate(boxes):
            ax.add_patch(Rectangle((place, 0), 1, 1, facecolor=looks[kind], edgecolor=GROUND, linewidth=1.5))
            words = {"ha": "center", "va": "center", "fontsize": 7.5, "color": ON_MARK}
            ax.text(place + 0.5, 0.5, name, rotation=90, **words)
        ax.set(xlim=(0, max(map(len, graphs.values()))), ylim=(0, 1), title=title)
        ax.axis("off")
    marks = [Rectangle((0, 0), 1, 1, facecolor=colour) for colour in looks.values()]
    figure.legend(marks, kinds, loc="outside lower left", ncols=len(kinds), fontsize=8)
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


def speed_by_length(panels: Mapping[str, Mapping[str, Mapping[int, float]]]) -> Figure:
    """One panel per title, in it one line per name: TFLOP/s against the sequence length, which is logarithmic."""
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
        line[0].set_ylabel("TFLOP/s")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


def different_sums(sums: Sequence[float], exact: float) -> Figure:
    """The sums of the same numbers in several orders, a dot each, one below the other; a line marks the exact sum."""
    figure, ax = plt.subplots(figsize=(7.5, 2.6))
    ax.plot(sums, range(len(sums)), "o", color=BLUE, markersize=5)
    ax.axvline(exact, color=GREY, linestyle="--", linewidth=1)
    ax.text(exact, len(sums) + 1, " exact", color=GREY, fontsize=9)
    ax.set(xlabel="sum", ylabel="order", yticks=[], ylim=(-1, len(sums) + 4))
    ax.ticklabel_format(axis="x", useOffset=False)
    ax.xaxis.set_major_locator(mpl.ticker.MaxNLocator(5))
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
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))  # beside the axes: the lines may be anywhere
    return ax
