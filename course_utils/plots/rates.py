"""Pictures of time, memory and rates, which several chapters show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_utils.measured import select
from course_utils.plots.look import GREY, colours_of


def roofline(peaks: Mapping[str, float], bandwidth: float, points: Mapping[str, tuple[float, float]]) -> Axes:
    """Roofline: FLOP/s against arithmetic intensity, both axes logarithmic.

    `peaks` maps a label to FLOP/s, `bandwidth` is in bytes/s, `points` maps a kernel to (FLOP per byte, FLOP/s).
    """
    ax = plt.figure(figsize=(7.5, 3.8)).subplots()
    left, right = 0.1, 20_000.0  # to the right of all points, for the names of the roofs
    lowest_first = sorted(peaks.items(), key=lambda item: item[1])
    for n, ((name, peak), style) in enumerate(zip(lowest_first, ("--", "-.", "-")[-len(peaks) :], strict=True)):
        ax.plot([left, peak / bandwidth, right], [left * bandwidth, peak, peak], color=GREY, linestyle=style)
        below = n + 1 < len(lowest_first) and lowest_first[n + 1][1] < 2 * peak  # the next roof needs the place above
        place = {"va": "top", "y": peak / 1.15} if below else {"va": "bottom", "y": peak * 1.1}
        ax.text(right, s=name, ha="right", color=GREY, **place)
    colours = colours_of(points)
    for (name, (intensity, speed)), marker in zip(points.items(), "os^Dv", strict=False):
        ax.plot(intensity, speed, marker, color=colours[name], markersize=8, label=name)
    ax.set(xscale="log", yscale="log", xlim=(left, right), xlabel="FLOP per byte of HBM traffic", ylabel="FLOP/s")
    ax.legend(loc="lower right")
    return ax


def time_and_memory(rows: Sequence[Mapping[str, Any]], names: Sequence[str], *, wide: Sequence[str] = ()) -> Figure:
    """Milliseconds and peak megabytes against the sequence length, a line per name; rows as `bench` gives them.

    Memory of the names in `wide` is drawn wide and pale, the first the widest: lines that coincide stay visible.
    """
    figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.6))
    colours = colours_of(names)
    for name, marker in zip(names, "os^Dv", strict=False):
        chosen = sorted(select(rows, name=name), key=lambda row: row["length"])
        lengths = [row["length"] for row in chosen]
        for ax, column in zip(axes, ("median_ms", "peak_mb"), strict=True):
            pale = column == "peak_mb" and name in wide
            look = {"linewidth": 3 + 3 * (len(wide) - wide.index(name)), "alpha": 0.4} if pale else {}
            ax.plot(
                lengths,
                [row[column] for row in chosen],
                color=colours[name],
                marker=marker,
                markersize=4,
                label=name,
                **look,
            )
            ax.set(xscale="log", yscale="log", xlabel="sequence length L")
            ax.set_xticks(lengths, lengths)
            ax.minorticks_off()
    axes[0].set_ylabel("time, ms")
    axes[1].set_ylabel("peak memory, MB")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure
