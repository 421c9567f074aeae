"""Pictures of chapter 08."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course_utils.measured import select
from course_utils.plots.look import INK


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
