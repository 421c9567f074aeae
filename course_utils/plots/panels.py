"""Bars beside each other and lines by length: the plain charts that stand before a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_utils.plots.look import BLUE, GREEN, GREY, INK, ON_MARK, ORANGE, PALE, PURPLE, SKY, VERMILION
from course_utils.tables import figure as written


def quantities(
    names: Sequence[str],
    panels: Mapping[str, Sequence[float | None]],
    *,
    colours: Sequence[str] = (BLUE,),
    log: bool = False,
) -> Figure:
    """Bars of several quantities, a panel for each by its title, one bar with its figure for each name.

    None: there is no such figure, and a dash in the place of the bar. colours: of the bars, in their order; the last
    holds for the rest. log: bars on a logarithmic axis, where they begin at a tenth of the shortest.
    """
    size = (7.5, 0.7 + 0.29 * len(names))
    figure, axes = plt.subplots(1, len(panels), figsize=size, sharey=True, squeeze=False)
    faces = [colours[min(n, len(colours) - 1)] for n in range(len(names))]
    for ax, (title, values) in zip(axes[0], panels.items(), strict=True):
        known = [value for value in values if value is not None]
        base = min(known) / 10 if log else 0
        ax.barh(range(len(names)), [value or base for value in values], height=0.66, color=faces)
        for row, value in enumerate(values):
            text = "–" if value is None else written(value)
            ax.text(value or base, row, f" {text}", va="center", fontsize=9)
        if log:
            ax.set_xscale("log")
            ax.set_xlim(base, max(known) * (max(known) / base) ** 0.4)
            ax.minorticks_off()
        else:
            ax.set_xlim(0, 1.4 * max(known))
        ax.set_title(title, fontsize=9)
        ax.set_xticks([])
        ax.spines["bottom"].set_visible(False)
        ax.set_yticks(range(len(names)), names, fontsize=9)
        ax.tick_params(axis="y", length=0)
    axes[0][0].invert_yaxis()
    return figure


def grouped_bars(
    groups: Mapping[str, Mapping[str, float | None]], ylabel: str, *, colours: Sequence[str], log: bool = False
) -> Axes:
    """Upright bars with their figures: a group for each key, in it a bar for each name, which a legend explains.

    None: there is no such figure, and no bar. log: on a logarithmic axis.
    """
    ax = plt.figure(figsize=(7.5, 3.1)).subplots()
    names = list(dict.fromkeys(name for bars in groups.values() for name in bars))
    width = 0.84 / len(names)
    for n, (name, colour) in enumerate(zip(names, colours, strict=True)):
        found = [(place, bars.get(name)) for place, bars in enumerate(groups.values())]
        known = [(place + (n - (len(names) - 1) / 2) * width, value) for place, value in found if value is not None]
        bars = ax.bar(*zip(*known, strict=True), width=0.92 * width, color=colour, label=name)
        ax.bar_label(bars, [written(value) for _, value in known], fontsize=7, padding=1)
    ax.set_xticks(range(len(groups)), list(groups), fontsize=9)
    ax.set(ylabel=ylabel, yscale="log" if log else "linear")
    ax.tick_params(axis="x", length=0)
    ax.figure.legend(loc="outside upper center", ncols=4 if len(names) == 4 else 3, fontsize=8)
    return ax


def stacked_rows(rows: Mapping[str, Mapping[str, float]], xlabel: str, *, colours: Sequence[str]) -> Axes:
    """A bar for each row, made of its parts, which a legend explains; at its end the sum."""
    ax = plt.figure(figsize=(7.5, 1.0 + 0.3 * len(rows))).subplots()
    left = [0.0] * len(rows)
    for part, colour in zip(next(iter(rows.values())), colours, strict=True):
        sizes = [parts[part] for parts in rows.values()]
        ax.barh(list(rows), sizes, left=left, color=colour, height=0.65, label=part)
        left = [a + b for a, b in zip(left, sizes, strict=True)]
    for row, total in enumerate(left):
        ax.text(total, row, f" {written(total)}", va="center", fontsize=9)
    ax.invert_yaxis()
    ax.tick_params(axis="y", length=0)
    ax.set(xlabel=xlabel, xlim=(0, 1.12 * max(left)))
    ax.figure.legend(loc="outside upper center", ncols=4, fontsize=9)
    return ax


def answers(rows: Mapping[str, Mapping[str, bool | None]], words: Mapping[bool | None, str]) -> Axes:
    """A grid of questions (rows, columns), each field with the word for its answer; green: yes."""
    columns = list(next(iter(rows.values())))
    ax = plt.figure(figsize=(7.5, 0.6 + 0.36 * len(rows))).subplots()
    for row, (name, found) in enumerate(rows.items()):
        ax.text(-0.08, row + 0.5, name, ha="right", va="center", fontsize=9)
        for column, title in enumerate(columns):
            yes = found[title]
            face = {"facecolor": GREEN if yes else PALE, "edgecolor": "none"}
            ax.add_patch(Rectangle((column + 0.02, row + 0.06), 0.96, 0.88, **face))
            colour = ON_MARK if yes else INK
            ax.text(column + 0.5, row + 0.5, words[yes], ha="center", va="center", fontsize=9, color=colour)
    for column, title in enumerate(columns):
        text = title.replace(" ", "\n", 1) if len(columns) > 4 else title
        ax.text(column + 0.5, -0.1, text, ha="center", va="bottom", fontsize=9 if len(columns) < 5 else 8)
    longest = max(map(len, rows))
    ax.set(xlim=(-longest * len(columns) / 58, len(columns)), ylim=(len(rows), -0.6))
    ax.axis("off")
    return ax


def by_length(
    lines: Mapping[str, Mapping[int, float]],
    ylabel: str,
    *,
    level: tuple[float, str] | None = None,
    colours: Sequence[str] = (VERMILION, PURPLE, BLUE, GREEN, ORANGE, SKY),
) -> Axes:
    """Values by length, a line for each name, both axes logarithmic. level: a value to compare with, and its name."""
    ax = plt.figure(figsize=(7.5, 3.3)).subplots()
    for (name, points), colour, marker in zip(lines.items(), colours, "os^DvP", strict=False):
        ax.plot(list(points), list(points.values()), color=colour, marker=marker, markersize=4, label=name)
    lengths = sorted({length for points in lines.values() for length in points})
    ax.set(xscale="log", yscale="log", xlabel="keys, L", ylabel=ylabel)
    ax.set_xticks(lengths, [f"{length // 1024} K" if length >= 1024 else str(length) for length in lengths])
    ax.minorticks_off()
    ticks = [tick for tick in (0.01, 0.1, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 1000) if ax.get_ylim()[0] < tick]
    top = ax.get_ylim()[1]
    ax.set_yticks([tick for tick in ticks if tick < top], [f"{tick:g}" for tick in ticks if tick < top])
    if level:
        ax.axhline(level[0], color=INK, linestyle="--", linewidth=1)
        ax.text(lengths[0], level[0], level[1], ha="left", va="bottom", fontsize=9, color=GREY)
    ax.figure.legend(loc="outside upper center", ncols=3, fontsize=9)
    return ax
