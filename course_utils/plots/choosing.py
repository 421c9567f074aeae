"""Pictures of chapter 08."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_utils.measured import select
from course_utils.plots.look import GREEN, GREY, INK, MATRICES, ON_MARK, ORANGE, SKY, YELLOW


def three_choices(rows: Sequence[Mapping[str, Any]], memory_bytes: float) -> Figure:
    """Milliseconds and peak bytes against the length, a line per name; a cross where a row ran out of memory, at the
    allocation that failed. Rows as `bench.choosing` gives them. memory_bytes: of the device, a dashed line."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 4))
    lengths = sorted({row["length"] for row in rows})
    for place, (name, marker) in enumerate(zip(dict.fromkeys(row["name"] for row in rows), "os^Dv<>PX*", strict=False)):
        chosen = select(rows, name=name)
        for ax, column in zip(axes, ("median_ms", "peak_extra_bytes"), strict=True):
            points = [(row["length"], row[column]) for row in chosen if row[column] is not None]
            look = {"marker": marker, "linestyle": "--" if place > 5 else "-", "color": f"C{place}"}  # six colours
            ax.plot(*zip(*points, strict=True), markersize=4, label=name, **look)
        failed = [(row["length"], row["asked_bytes"]) for row in chosen if row["asked_bytes"]]
        if failed:
            axes[1].plot(*zip(*failed, strict=True), "x", markersize=9, color=f"C{place}")
    axes[1].axhline(memory_bytes, color=INK, linestyle="--", linewidth=1)
    axes[1].text(lengths[0], 1.3 * memory_bytes, "memory of the device", fontsize=9)
    for ax, label in zip(axes, ("time, ms", "memory beyond the inputs, bytes"), strict=True):
        ax.set(xscale="log", yscale="log", xlabel="sequence length L", ylabel=label)
        ax.set_xticks(lengths, [f"{n // 1024} K" if n >= 1024 else str(n) for n in lengths])
        ax.minorticks_off()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def ways_to_decode(heads: int = 6, shared: int = 2, keys: int = 22, parts: int = 4) -> Figure:
    """Two ways to read a cache for one query: neighbouring heads that share keys; keys that are split among blocks."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 2.9))
    colours = (SKY, ORANGE, GREEN, YELLOW)

    def box(ax: Axes, x: float, y: float, width: float, colour: str, text: str) -> None:
        ax.add_patch(Rectangle((x, y), width, 0.8, facecolor=colour, edgecolor="none"))
        ax.text(x + width / 2, y + 0.4, text, ha="center", va="center", fontsize=9, color=ON_MARK)

    group = heads // shared
    for h in range(heads):
        box(left, 1.2 * h, 3.0, 1.0, colours[h // group], f"q {h}")
    for kv in range(shared):
        middle = 1.2 * (kv * group + (group - 1) / 2)
        box(left, middle - 0.3, 0.5, 1.6, colours[kv], f"K, V {kv}")
        for h in range(kv * group, (kv + 1) * group):
            left.plot((middle + 0.5, 1.2 * h + 0.5), (1.3, 3.0), color=GREY, linewidth=1)
    left.set_title("heads share keys: fewer bytes", fontsize=9)
    left.set(xlim=(-0.3, 1.2 * heads), ylim=(0, 4.2))
    each = -(-keys // parts)
    for key in range(keys):
        box(right, key, 3.0, 0.9, colours[key // each], "")
    for part in range(parts):
        first, end = part * each, min(part * each + each, keys)
        box(right, first, 1.7, end - first - 0.1, colours[part], f"block {part}")
        right.plot((first + (end - first) / 2,) * 2, (2.5, 3.0), color=GREY, linewidth=1)
        right.plot((first + (end - first) / 2, keys / 2), (1.7, 1.15), color=GREY, linewidth=1)
    box(right, keys / 2 - 5, 0.35, 10, MATRICES["S"], "merge by LSE")
    right.set_title("keys are split: more blocks", fontsize=9)
    right.text(0, 3.9, f"{keys} keys", fontsize=9, va="bottom")
    right.set(xlim=(-0.3, keys), ylim=(0, 4.4))
    for ax in (left, right):
        ax.axis("off")
    return figure
