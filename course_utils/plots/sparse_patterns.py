"""Pictures of chapter 04, and the rows of its tables that take more than a line."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from course_utils.measured import select
from course_utils.plots.look import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION


def scaling(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Milliseconds against the sequence length: a panel per kernel, a line per pattern, and the fastest other way to it
    dashed in its colour, where one was timed; dense attention dashed in black, of each kernel.

    rows: the part "scaling" of `bench.sparse_patterns`; those without a kernel are not ours, and where a pattern has
    no others, dense attention. A pattern is drawn with the kernel that it has at its greatest length; "dense", which
    is for one kind of ranges, shares the panel of ranges.
    """
    if any(row.get("kernel") == "dense" for row in rows):
        both = {"range": "range, dense", "dense": "range, dense"}
        rows = [{**row, "kernel": both.get(row.get("kernel"), row.get("kernel"))} for row in rows]
    ordered = sorted(rows, key=lambda row: (row["length"], bool(row.get("kernel"))))
    kernel_of = {row["pattern"]: row.get("kernel") for row in ordered}
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
            of_pattern = select(rows, pattern=pattern)
            if kernel_of[pattern] is None:
                for name, line in zip(dict.fromkeys(row["name"] for row in of_pattern), ("--", ":"), strict=False):
                    dense = {row["length"]: row["median_ms"] for row in select(of_pattern, name=name)}
                    ax.plot(*_line(dense), line, color="black", label=f"causal, {name}")
                continue
            colour, line = next(looks)
            ours = {row["length"]: row["median_ms"] for row in of_pattern if row.get("kernel")}
            label = re.sub(r"\w+=", "", pattern)  # values are enough
            ax.plot(*_line(ours), line, color=colour, marker="o", markersize=3, label=label)
            others = sorted((row["length"], -row["median_ms"]) for row in of_pattern if not row.get("kernel"))
            if others:
                best = {length: -negative for length, negative in others}  # the last of a length is the fastest
                ax.plot(*_line(best), "--", color=colour, linewidth=1)
        ax.set(xscale="log", yscale="log", title=kernel, xlabel="sequence length L")
        ax.set_xscale("log", base=2)
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=7)
    axes[0][0].set_ylabel("time, ms")
    return figure


def _line(points: Mapping[int, float]) -> tuple[list[int], list[float]]:
    """Lengths and times, by length."""
    lengths = sorted(points)
    return lengths, [points[length] for length in lengths]


def break_even(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Figure:
    """How many times as fast as dense attention, by sequence length and density, a panel per name: blue is faster.

    rows: the part "break_even" of `bench.sparse_patterns`.
    """
    lengths = sorted({row["length"] for row in rows})
    densities = sorted({row["density"] for row in rows})
    size = (max(7.5, 2.6 * len(names)), 0.9 + 0.42 * len(densities))
    figure, axes = plt.subplots(1, len(names), figsize=size, sharey=True, squeeze=False)
    limit, image = 8.0, None
    for ax, name in zip(axes[0], names, strict=True):
        ratios = torch.full((len(densities), len(lengths)), torch.nan)
        for row in select(rows, name=name):
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

    rows: the part "small" of `bench.sparse_patterns`.
    """
    panels = list(dict.fromkeys(row["pattern"] for row in rows))
    figure, axes = plt.subplots(1, len(panels), figsize=(7.5, 3.8), sharey=True, squeeze=False)
    for ax, pattern in zip(axes[0], panels, strict=True):
        chosen = select(rows, pattern=pattern)
        names = list(dict.fromkeys(row["name"] for row in chosen))
        for name, colour in zip(names, (BLUE, "black", GREY, ORANGE, GREEN, PURPLE, VERMILION), strict=False):
            for column, style in (("median_ms", "-"), ("call_ms", ":")):
                points = [(row["length"], 1e3 * row[column]) for row in select(chosen, name=name)]
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


# ---- rows of tables that stand beside the pictures


def first_wins(rows: Sequence[Mapping[str, Any]], dense: Sequence[str]) -> list[dict[str, Any]]:
    """From which length on ours is faster, for each pattern: counted in whole calls, and in the GPU's time.

    rows: as for `short_sequences`; dense: the names of the dense kernels. "never": at none of the longest lengths.
    """
    table = []
    for pattern in dict.fromkeys(row["pattern"] for row in rows):
        for column, what in (("call_ms", "a whole call"), ("median_ms", "the GPU's part")):
            times: dict[int, dict[str, float]] = {}
            for row in select(rows, pattern=pattern):
                times.setdefault(row["length"], {})[row["name"]] = row[column]
            line = {"pattern": pattern, "time": what}
            for title, others in (
                ("dense", lambda ms: [ms[name] for name in dense if name in ms]),
                ("all others", lambda ms: [value for name, value in ms.items() if name != "sparse_attention"]),
            ):
                lost = [n for n, ms in times.items() if ms["sparse_attention"] >= min(others(ms))]
                won = [n for n in times if n > max(lost, default=0)]
                line[f"faster than {title} from"] = min(won, default="never")
            table.append(line)
    return table


def tree_times(rows: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Microseconds of each tree behind each context: of the GPU, and of a whole call.

    rows: the part "tree" of `bench.sparse_patterns`; names: what to call each way; of two with one name the faster.
    """
    table = []
    for row in select(rows, name="sparse_attention"):
        case = select(rows, context=row["context"], tokens=row["tokens"])
        slowest_first = sorted(case, key=lambda other: -other["median_ms"])
        found = {names[other["name"]]: other for other in slowest_first}
        line = {"context": row["context"], "tree": row["tokens"], "density": f"{row['density']:.0%}"}
        for column, what in (("median_ms", "GPU"), ("call_ms", "call")):
            for name in dict.fromkeys(names.values()):
                line[f"{name}, {what}"] = 1e3 * found[name][column] if name in found else "-"
        table.append(line)
    return table
