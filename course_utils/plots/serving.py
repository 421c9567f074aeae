"""Pictures of chapter 06: pages and pieces of sequences, the tree of guesses, and a serving loop step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import matplotlib.pyplot as plt
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
    PALE,
    PURPLE,
    SKY,
    VERMILION,
    YELLOW,
)

OF_SEQUENCES = (BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW, VERMILION)
Rows = Sequence[Sequence[int | None]]


def room_of_sequences(panels: Mapping[str, Sequence[tuple[str, Rows]]]) -> Figure:
    """Rows of a cache as squares: a panel per title, in it lines of a name and groups of places, such as pages. A place
    is the number of the sequence whose token it holds; −1: of several sequences; None: reserved and empty."""
    longest = max(sum(map(len, groups)) + 0.5 * len(groups) for lines in panels.values() for _, groups in lines)
    tallest = max(map(len, panels.values()))
    figure, axes = plt.subplots(1, len(panels), figsize=(7.5, 0.5 + 0.3 * tallest), squeeze=False)
    for ax, (title, lines) in zip(axes[0], panels.items(), strict=True):
        for y, (name, groups) in enumerate(lines):
            x = 0.0
            for places in groups:
                ax.add_patch(
                    Rectangle((x - 0.06, y + 0.06), len(places) + 0.12, 0.88, facecolor="none", edgecolor=GREY)
                )
                for owner in places:
                    colour = "none" if owner is None else GREY if owner < 0 else OF_SEQUENCES[owner]
                    look = {"hatch": "////"} if owner is not None and owner < 0 else {}
                    edge = {"edgecolor": GROUND} if owner is not None else {"edgecolor": PALE}
                    ax.add_patch(Rectangle((x, y + 0.1), 1, 0.8, facecolor=colour, linewidth=0.6, **edge, **look))
                    x += 1
                x += 0.5
            ax.text(-0.4, y + 0.5, name, ha="right", va="center", fontsize=8)
        ax.set(xlim=(-0.2 * longest, longest), ylim=(tallest, 0))
        ax.set_title(title, fontsize=9)
        ax.axis("off")
    return figure


def table_and_pages(table: Sequence[Sequence[int]], pages: int) -> Axes:
    """The page of each entry of a block table, by arrows: a row for each sequence above, the pages below."""
    ax = plt.figure(figsize=(7.5, 2.7)).subplots()
    columns = max(map(len, table))
    across = pages / (len(table) * (columns + 1) - 1)
    for b, row in enumerate(table):
        colour = OF_SEQUENCES[b]
        left = b * (columns + 1) * across
        ax.text(left, 3.15, f"sequence {b}", fontsize=9, color=INK)
        for n, page in enumerate(row):
            x = left + n * across
            ax.add_patch(Rectangle((x, 2.2), 0.92 * across, 0.75, facecolor=colour, edgecolor="none"))
            ax.text(x + 0.46 * across, 2.575, str(page), ha="center", va="center", fontsize=9, color=ON_MARK)
            arrow = {"arrowstyle": "->", "color": colour, "linewidth": 1}
            ax.annotate("", (page + 0.46, 0.8), (x + 0.46 * across, 2.2), arrowprops=arrow)
    users = [[b for b, row in enumerate(table) if page in row] for page in range(pages)]
    for page, who in enumerate(users):
        for n, colour in enumerate([OF_SEQUENCES[b] for b in who] or [PALE]):
            height = 0.8 / max(len(who), 1)
            bottom = 0.8 - (n + 1) * height
            ax.add_patch(Rectangle((page, bottom), 0.92, height, facecolor=colour, edgecolor="none"))
        ax.text(page + 0.46, 0.4, str(page), ha="center", va="center", fontsize=9, color=ON_MARK if who else INK)
    ax.text(0, -0.35, "pages of the cache: two colours, shared; grey, free", fontsize=9, color=GREY)
    ax.set(xlim=(-0.1, pages), ylim=(-0.5, 3.6))
    ax.axis("off")
    return ax


def pieces_of_sequences(panels: Mapping[str, Sequence[tuple[int, int]]], across: str) -> Figure:
    """The work of each block, one bar below the other in the colour of its sequence: a panel per title, of pairs of
    sequence and keys. Dashed: the end of the last block."""
    figure, axes = plt.subplots(1, len(panels), figsize=(7.5, 2.9), sharex=True, squeeze=False)
    for ax, (title, blocks) in zip(axes[0], panels.items(), strict=True):
        colours = [OF_SEQUENCES[b % len(OF_SEQUENCES)] for b, _ in blocks]
        ax.barh(range(len(blocks)), [keys for _, keys in blocks], height=1.0, color=colours, edgecolor=GROUND)
        ax.axvline(max(keys for _, keys in blocks), color=INK, linestyle="--", linewidth=1)
        ax.set(xlabel=across, ylim=(len(blocks) - 0.5, -0.5), yticks=[])
        ax.set_title(title, fontsize=9)
    axes[0][0].set_ylabel("blocks")
    return figure


def tree_and_mask(parents: Sequence[int], visible: Tensor, words: Sequence[str]) -> Figure:
    """A tree of tokens, and the tokens that each one sees: parents and words of each, visible bool [tokens, tokens]."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3.0), width_ratios=(1.3, 1))
    depth, place = [], []
    for i, parent in enumerate(parents):
        depth.append(depth[parent] + 1 if parent >= 0 else 0)
        place.append(sum(d == depth[i] for d in depth[:-1]))
    widest = [sum(d == level for d in depth) for level in depth]
    at = [(d, (p + 0.5) / of) for d, p, of in zip(depth, place, widest, strict=True)]
    for i, parent in enumerate(parents):
        if parent >= 0:
            left.plot(*zip(at[parent], at[i], strict=True), color=GREY, linewidth=1, zorder=0)
        box = {"facecolor": SKY, "edgecolor": "none", "boxstyle": "round"}
        left.text(*at[i], f"{i}: {words[i]}", ha="center", va="center", fontsize=9, color=ON_MARK, bbox=box)
    left.set(xlim=(-0.5, max(depth) + 0.5), ylim=(1, 0))
    left.axis("off")
    for i, row in enumerate(visible.tolist()):
        for t, visible in enumerate(row):
            right.add_patch(
                Rectangle((t, i), 1, 1, facecolor=BLUE if visible else "none", edgecolor=GREY, linewidth=0.6)
            )
    numbers = [n + 0.5 for n in range(len(parents))]
    right.set(xlim=(0, len(parents)), ylim=(len(parents), 0), aspect="equal", xlabel="key of token", ylabel="token")
    right.set_xticks(numbers, range(len(parents)))
    right.set_yticks(numbers, range(len(parents)))
    right.tick_params(length=0)
    return figure


def over_steps(panels: Mapping[str, Mapping[str, Sequence[float]]], steps: str = "steps") -> Figure:
    """Numbers step by step, a panel per title below the other, a line per name."""
    figure, axes = plt.subplots(len(panels), 1, figsize=(7.5, 1.2 + 1.4 * len(panels)), sharex=True, squeeze=False)
    for ax, (title, lines) in zip(axes[:, 0], panels.items(), strict=True):
        for (name, values), colour in zip(lines.items(), (VERMILION, BLUE, GREEN), strict=False):
            ax.plot(values, color=colour, linewidth=1.2, label=name)
        ax.set_ylim(bottom=0)
        ax.set_title(title, fontsize=9)
    axes[-1, 0].set_xlabel(steps)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=9)
    return figure


def sweeps(panels: Mapping[str, Mapping[int, float]], chosen: Mapping[str, int], across: str, ylabel: str) -> Figure:
    """A number against a setting on a logarithmic axis: a panel per title; a ring marks the chosen setting."""
    figure, axes = plt.subplots(1, len(panels), figsize=(7.5, 2.7), sharex=True, squeeze=False)
    for ax, (title, points) in zip(axes[0], panels.items(), strict=True):
        ax.plot(list(points), list(points.values()), "o-", color=BLUE, markersize=3.5)
        if title in chosen:
            at = chosen[title], points[chosen[title]]
            ax.plot(*at, "o", color=VERMILION, markersize=10, fillstyle="none")
        ax.set(xscale="log", ylim=(0, 1.1 * max(points.values())), xlabel=across)
        ax.set_title(title, fontsize=9)
        ax.xaxis.set_major_locator(mpl.ticker.FixedLocator([1, 4, 16, 64]))
        ax.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        ax.minorticks_off()
    axes[0][0].set_ylabel(ylabel)
    return figure


def lines_by_length(panels: Mapping[str, Mapping[str, Mapping[int, float]]], ylabel: str) -> Figure:
    """A number against the keys of a sequence, both axes logarithmic: a panel per title, a line per name; "floor" is
    dashed."""
    figure, axes = plt.subplots(1, len(panels), figsize=(7.5, 3.3), sharey=True, squeeze=False)
    for ax, (title, lines) in zip(axes[0], panels.items(), strict=True):
        colours = iter(zip((BLUE, GREEN, VERMILION, PURPLE, ORANGE), "os^Dv", strict=True))
        for name, points in lines.items():
            colour, marker = (INK, "") if name == "floor" else next(colours)
            style = {"linestyle": "--" if name == "floor" else "-", "marker": marker, "markersize": 4}
            ax.plot(list(points), list(points.values()), color=colour, label=name, linewidth=1.2, **style)
        lengths = sorted({length for points in lines.values() for length in points})
        ax.set(xscale="log", yscale="log", xlabel="keys of a sequence")
        ax.set_title(title, fontsize=9)
        ax.set_xticks(lengths, [f"{length // 1024} K" for length in lengths])
        ax.yaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:,g}"))
        ax.minorticks_off()
    axes[0][0].set_ylabel(ylabel)
    fullest = max(axes[0], key=lambda ax: len(ax.lines))
    figure.legend(*fullest.get_legend_handles_labels(), loc="outside upper center", ncols=5, fontsize=9)
    return figure
