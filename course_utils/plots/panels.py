"""Bars and lines by length: the plain charts above a table."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_utils.costs import ceil_div
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
from course_utils.tables import figure as written


def bars(
    names: Sequence[str],
    panels: Mapping[str, Sequence[float | None]],
    *,
    colours: Sequence[str] = (BLUE,),
    log: bool = False,
    base: float = 0.0,
    alike: int = 0,
    wasted: Mapping[str, Sequence[float]] = MappingProxyType({}),
    marks: Mapping[str, float] = MappingProxyType({}),
) -> Figure:
    """Bars of several quantities, a panel for each by its title, one bar with its figure for each name.

    None: the figure does not exist, and a dash takes the place of the bar. colours: of the bars, in their order; the
    last one is used for the rest. log: logarithmic bars, which begin at a tenth of the least. base: where bars begin
    otherwise; values below it are orange. alike: so many panels, from the left, share a scale. wasted: by panel title,
    the hatched part of each figure. marks: dashed lines in each panel, by name.
    """
    known = [[value for value in values if value is not None] for values in panels.values()]
    scales = [[value for one in known[:alike] for value in one] if n < alike else known[n] for n in range(len(known))]
    scales = [[*scale, *marks.values()] for scale in scales]
    size = (7.5, 0.7 + 0.29 * (len(names) + bool(marks)))
    figure, axes = plt.subplots(1, len(panels), figsize=size, sharey=True, squeeze=False)
    for ax, (title, values), scale in zip(axes[0], panels.items(), scales, strict=True):
        begin = min(scale) / 10 if log else base
        ends = [begin if value is None else value for value in values]
        faces = [ORANGE if end < begin else colours[min(n, len(colours) - 1)] for n, end in enumerate(ends)]
        ax.barh(range(len(names)), [end - begin for end in ends], left=begin, height=0.66, color=faces)
        if title in wasted:
            left = [end - part for end, part in zip(ends, wasted[title], strict=True)]
            hatched = {"color": VERMILION, "edgecolor": GROUND, "hatch": "////"}
            ax.barh(range(len(names)), wasted[title], left=left, height=0.66, **hatched)
        for row, (value, end) in enumerate(zip(values, ends, strict=True)):
            text = "–" if value is None else written(value)
            ax.text(max(end, begin), row, f" {text}", va="center", fontsize=9)
        for name, value in marks.items():
            ax.axvline(value, color=VERMILION, linestyle="--", zorder=0)
            ax.text(value, -1, f" {name}", va="center", fontsize=9, color=VERMILION)
        _make_room(ax, min(begin, *scale), max(begin, *scale), share=0.11 * len(panels), log=log)
        ax.spines["left"].set_position(("data", begin))
        ax.set_title(textwrap.fill(title, (98 - max(map(len, names))) // len(panels)), fontsize=9)
        ax.set_xticks([])
        ax.spines["bottom"].set_visible(False)
        ax.set_yticks(range(len(names)), names, fontsize=9)
        ax.tick_params(axis="y", length=0)
    axes[0][0].set_ylim(len(names) - 0.5, -1.5 if marks else -0.5)
    return figure


def _make_room(ax: Axes, low: float, high: float, *, share: float, log: bool) -> None:
    """Lets the axis end far enough right of `high` for its figure: a share of the whole panel."""
    if log:
        ax.set(xscale="log", xlim=(low, low * (high / low) ** (1 / (1 - share))))
        ax.minorticks_off()
    else:
        ax.set_xlim(low, low + (high - low or 1) / (1 - share))


def grouped_bars(
    groups: Mapping[str, Mapping[str, float | None]], ylabel: str, *, colours: Sequence[str], log: bool = False
) -> Axes:
    """Upright bars with their figures: a group for each key, in it a bar for each name, which a legend explains.

    None: the figure does not exist, and there is no bar. log: on a logarithmic axis.
    """
    ax = plt.figure(figsize=(7.5, 3.1)).subplots()
    names = list(dict.fromkeys(name for bars in groups.values() for name in bars))
    width = 0.84 / len(names)
    for n, (name, colour) in enumerate(zip(names, colours, strict=True)):
        found = [(place, bars.get(name)) for place, bars in enumerate(groups.values())]
        known = [(place + (n - (len(names) - 1) / 2) * width, value) for place, value in found if value is not None]
        bars = ax.bar(*zip(*known, strict=True), width=0.92 * width, color=colour, label=name)
        ax.bar_label(bars, [written(value) for _, value in known], fontsize=8, padding=1)
    ax.set_xticks(range(len(groups)), list(groups), fontsize=9)
    ax.set(ylabel=ylabel, yscale="log" if log else "linear")
    ax.margins(y=0.1)
    ax.tick_params(axis="x", length=0)
    ax.figure.legend(loc="outside upper center", ncols=4 if len(names) == 4 else 3, fontsize=8)
    return ax


def stacked_bars(
    rows: Mapping[str, Mapping[str, float]],
    unit: str,
    *,
    colours: Sequence[str] = (BLUE, SKY, GREEN, YELLOW, ORANGE, VERMILION, PURPLE, GREY),
) -> Axes:
    """A bar for each row, made of its parts, with the sum at its end if the sums differ. A part has one look in all
    rows, which a legend names. After the last colour the colours are used again, hatched."""
    parts = list(dict.fromkeys(part for row in rows.values() for part in row))
    looks = {
        part: {"facecolor": colour, "edgecolor": GROUND, "hatch": hatch}
        for part, (hatch, colour) in zip(parts, itertools.product(("", "////", "...."), colours), strict=False)
    }
    columns = 4 if len(parts) == 4 else 3
    height = 0.8 + 0.2 * ceil_div(len(parts), columns) + 0.32 * len(rows)
    ax = plt.figure(figsize=(7.5, height)).subplots()
    for place, row in enumerate(rows.values()):
        begin = 0.0
        for part, value in row.items():
            ax.barh(place, value, left=begin, height=0.66, **looks[part])
            begin += value
    sums = [sum(row.values()) for row in rows.values()]
    if max(sums) - min(sums) > 1e-6 * max(sums):
        for place, total in enumerate(sums):
            ax.text(total, place, f" {written(total)}", va="center", fontsize=9)
        ax.set_xlim(0, 1.12 * max(sums))
    ax.set_yticks(range(len(rows)), [textwrap.fill(row, 34) for row in rows], fontsize=9)
    ax.set(xlabel=unit, ylim=(len(rows) - 0.5, -0.5))
    ax.tick_params(axis="y", length=0)
    boxes = [Rectangle((0, 0), 1, 1, **look) for look in looks.values()]
    ax.figure.legend(boxes, parts, loc="outside upper left", ncols=columns, fontsize=8)
    return ax


def answers(rows: Mapping[str, Mapping[str, bool | None]], words: Mapping[bool | None, str]) -> Axes:
    """A grid of questions (rows, columns); each cell has the word for its answer; green: yes."""
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
