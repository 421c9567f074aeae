"""Pictures of chapter 04, and the rows of its longer tables."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import Tensor

from course_utils.measured import select
from course_utils.plots.look import (
    BLUE,
    CUDNN,
    FLASH,
    GREEN,
    GREY,
    INK,
    ON_MAP,
    ON_MARK,
    ORANGE,
    OURS,
    PALE,
    PURPLE,
    SKY,
    VERMILION,
    colours_of,
)

# A way to the same output has one colour and one mark in all pictures of `dots`.
WAYS = {
    "ours": (OURS, "o"),
    "FlexAttention": (BLUE, "s"),
    "FlexAttention, tuned": (SKY, "D"),
    "on a view": (GREEN, "^"),
    "the best other": (GREEN, "^"),
    "the best of torch": (FLASH, "<"),
    "dense FLASH": (FLASH, "<"),
    "dense cuDNN": (CUDNN, ">"),
    "SDPA with the mask": (GREY, "v"),
}
NOT_LOADED, PARTLY, FULL, FOR_NOTHING = range(4)  # states of a tile in `tile_states`
_STATES = {
    NOT_LOADED: ("none", "not loaded"),
    PARTLY: (SKY, "loaded, partly visible"),
    FULL: (BLUE, "loaded, all visible"),
    FOR_NOTHING: (ORANGE, "loaded, nothing visible"),
}


# ---- masks and tiles


def mask_gallery(masks: Mapping[str, Tensor], columns: int = 4, tile: int = 64, row: int | None = None) -> Figure:
    """A picture for each mask, bool [queries, keys], by its title, with a grid of tiles; `row` is outlined."""
    lines = -(-len(masks) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(7.5, min(8.0 / columns, 3.0) * lines), squeeze=False)
    for ax in axes.flat:
        ax.set_axis_off()
    for ax, (title, mask) in zip(axes.flat, masks.items(), strict=False):
        queries, keys = mask.shape
        ax.imshow(mask.numpy(), cmap=ListedColormap(["none", BLUE]), vmin=0, vmax=1, extent=(0, keys, queries, 0))
        ax.set_axis_on()
        ax.set_xticks(range(0, keys + 1, tile), [])
        ax.set_yticks(range(0, queries + 1, tile), [])
        ax.grid(color=GREY, linewidth=0.5)
        ax.set_title(title, fontsize=8)
        if row is not None:
            ax.add_patch(Rectangle((0, row), keys, 1, fill=False, edgecolor=ORANGE, linewidth=1.5, clip_on=False))
    return figure


def tile_states(panels: Mapping[str, Tensor]) -> Figure:
    """The state of each tile of the scores: a panel per title, int [rows, columns] of the states above."""
    figure, axes = plt.subplots(1, len(panels), figsize=(7.5, 3.3), squeeze=False)
    for ax, (title, states) in zip(axes[0], panels.items(), strict=True):
        rows, columns = states.shape
        for row in range(rows):
            for column in range(columns):
                colour = _STATES[int(states[row, column])][0]
                ax.add_patch(Rectangle((column, row), 1, 1, facecolor=colour, edgecolor=GREY, linewidth=0.7))
        ax.set(xlim=(0, columns), ylim=(rows, 0), aspect="equal", title=title, xticks=[], yticks=[])
        ax.set_xlabel("tiles of keys")
    axes[0][0].set_ylabel("tiles of queries")
    found = sorted({int(state) for states in panels.values() for state in states.unique()})
    handles = [Patch(facecolor=colour, edgecolor=GREY, label=text) for colour, text in (_STATES[n] for n in found)]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=9)
    return figure


def mask_and_blocks(mask: Tensor, states: Tensor) -> Figure:
    """A mask, bool [L, L], beside the states of its blocks by its lists: int [rows, columns] of the states above."""
    length = len(mask)
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3.5))
    left.imshow(
        mask.numpy(), cmap=ListedColormap(["none", BLUE]), vmin=0, vmax=1, extent=(0, len(states), len(states), 0)
    )
    left.set(title="the mask", xlabel=f"keys, L = {length}", ylabel="queries")
    names = {NOT_LOADED: "", PARTLY: "partial", FULL: "full"}
    for row, line in enumerate(states.tolist()):
        for column, state in enumerate(line):
            look = {"facecolor": _STATES[state][0], "edgecolor": GREY, "linewidth": 0.7}
            right.add_patch(Rectangle((column, row), 1, 1, **look))
            right.text(column + 0.5, row + 0.5, names[state], ha="center", va="center", fontsize=7, color=ON_MARK)
    right.set(title="its blocks", xlabel="blocks of keys", ylabel="blocks of queries", aspect="equal")
    for ax in (left, right):
        ax.set(
            xlim=(0, len(states)), ylim=(len(states), 0), xticks=range(len(states) + 1), yticks=range(len(states) + 1)
        )
        ax.tick_params(labelbottom=False, labelleft=False)
    left.grid(color=GREY, linewidth=0.5)
    return figure


def pieces_of_work(panels: Mapping[str, Sequence[int]]) -> Figure:
    """Blocks of keys of each block of threads, as bars one below the other: a panel per title."""
    figure, axes = plt.subplots(1, len(panels), figsize=(7.5, 2.8), sharex=True, squeeze=False)
    for ax, (title, counts) in zip(axes[0], panels.items(), strict=True):
        ax.barh(range(len(counts)), counts, height=1.0, color=BLUE)
        ax.axvline(max(counts), color=VERMILION, linestyle="--")
        ax.set(title=title, xlabel="blocks of keys, one after the other", ylim=(len(counts), -1), yticks=[])
    axes[0][0].set_ylabel("blocks of threads")
    return figure


def reach(lines: Mapping[str, Mapping[int, float]]) -> Figure:
    """Percent of the tokens whose information can have arrived, against the number of layers: a line per pattern."""
    figure, ax = plt.subplots(figsize=(7.5, 3.6))
    styles = zip((BLUE, GREEN, ORANGE, PURPLE, VERMILION, SKY, GREY), "os^DvP*", strict=True)
    for number, ((name, shares), (colour, marker)) in enumerate(zip(lines.items(), styles, strict=False)):
        style = "--" if number % 2 else "-"  # where two lines lie on each other, both are seen
        ax.plot(
            list(shares), [100 * share for share in shares.values()], style, color=colour, marker=marker, label=name
        )
    layers = list(next(iter(lines.values())))
    ax.set(xlabel="layers", ylabel="% of the tokens in reach", ylim=(0, 105))
    ax.set_xticks(layers, layers)
    figure.legend(*ax.get_legend_handles_labels(), loc="outside right center", fontsize=8)
    return figure


def recall(rows: Sequence[Mapping[str, Any]], guessing: float) -> Figure:
    """Percent of right answers against the keys per question: a mark per kind of pattern, larger for more layers.

    rows: of the recall study; guessing: the percent of right answers by guessing.
    """
    figure, ax = plt.subplots(figsize=(7.5, 3.8))
    kinds = {"dense": "dense", "window": "windows", "strided": "strided", "highest": "chosen by content"}
    kinds |= {"global": "with global tokens", "": "others"}
    found: dict[str, list[tuple[float, float, int]]] = {}
    for row in rows:
        kind = next(name for part, name in kinds.items() if part in row["name"].replace("window 8, ", ""))
        found.setdefault(kind, []).append((row["keys_per_question"], 100 * row["accuracy"], row["layers"]))
    for (kind, points), marker in zip(found.items(), "*sov^D", strict=False):
        x, y, layers = zip(*points, strict=True)
        look = {"facecolors": "none", "edgecolors": INK} if kind == "dense" else {"alpha": 0.8}
        ax.scatter(x, y, [(200 if kind == "dense" else 40) * n for n in layers], marker=marker, label=kind, **look)
    ax.axhline(guessing, color=GREY, linestyle="--")
    ax.set(xscale="log", xlabel="keys per question", ylabel="% of the answers right", ylim=(0, 105))
    ax.set_xticks([1, 2, 4, 8, 16, 32, 64], [1, 2, 4, 8, 16, 32, 64])
    ax.minorticks_off()
    ax.legend(fontsize=8, loc="center left")
    return figure


def multiprocessors_at_work(blocks: Mapping[str, int], count: int) -> Figure:
    """A GPU's multiprocessors as squares, filled if they have a block of threads: a panel per title."""
    figure, axes = plt.subplots(1, len(blocks), figsize=(7.5, 2.4), squeeze=False)
    across = 12
    for ax, (title, number) in zip(axes[0], blocks.items(), strict=True):
        for place in range(count):
            busy = place < number
            corner = place % across, place // across
            ax.add_patch(Rectangle(corner, 0.8, 0.8, facecolor=BLUE if busy else "none", edgecolor=GREY))
        ax.set(xlim=(-0.2, across), ylim=(-(-count // across), -0.2), aspect="equal")
        ax.set_title(title, fontsize=9)
        ax.axis("off")
    return figure


# ---- figures


def dots(
    panels: Mapping[str, Mapping[str, Mapping[str, float]]], across: str, *, log: bool = True, mark: float | None = None
) -> Figure:
    """A line of dots for each row, a dot for each of its names: a panel per title, with the same rows in each.

    across: the label of the axis; log: a logarithmic axis, else one that begins at 0; mark: the place of a dashed line.
    """
    rows = list(next(iter(panels.values())))
    names = list(dict.fromkeys(name for panel in panels.values() for row in panel.values() for name in row))
    others = zip((BLUE, GREEN, ORANGE, SKY), "oD^s", strict=True)
    looks = {name: WAYS.get(name) or next(others) for name in names}
    size = (7.5, 1.15 + 0.3 * max(len(rows), 2) + 0.25 * (len(names) > 3))
    figure, axes = plt.subplots(1, len(panels), figsize=size, sharey=True, squeeze=False)
    for ax, (title, panel) in zip(axes[0], panels.items(), strict=True):
        for place, row in enumerate(rows):
            ax.hlines(place, min(panel[row].values()) if log else 0, max(panel[row].values()), color=PALE, zorder=0)
        for name, (colour, marker) in looks.items():
            points = [(row[name], place) for place, row in enumerate(panel.values()) if name in row]
            ax.plot(*zip(*points, strict=True), marker, color=colour, markersize=7, alpha=0.85, label=name)
        if mark is not None:
            ax.axvline(mark, color=GREY, linestyle="--", linewidth=1)
        ax.set(ylim=(len(rows) - 0.5, -0.5), xlabel=across)
        ax.set_title(title, fontsize=9)
        _few_ticks(ax, log, alone=len(panels) == 1)
        ax.tick_params(axis="y", length=0)
    axes[0][0].set_yticks(range(len(rows)), [row.replace(" & ", "\n& ") for row in rows], fontsize=9)
    if len(names) > 1:
        figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=9)
    return figure


def _few_ticks(ax: Axes, log: bool, alone: bool) -> None:
    """Round numbers below the axis, few enough to read; alone: the panel has the width of the page."""
    if not log:
        ax.set_xlim(0, 1.05 * ax.get_xlim()[1])
        return
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    subs = (1, 2, 5) if high < (300 if alone else 10) * low else (1, 3) if high < 30 * low else (1,)
    ax.xaxis.set_major_locator(mpl.ticker.LogLocator(subs=subs))
    ax.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    ax.minorticks_off()


def scaling(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Milliseconds against the sequence length: a panel per kernel, a line per pattern; the fastest other kernel for a
    pattern is dashed in its colour, dense attention is dashed in black.

    rows: the part "scaling" of `bench.sparse_patterns`; rows without a kernel are other libraries', or dense attention.
    A pattern is drawn with the kernel that it has at its greatest length; "dense", which is for one kind of ranges,
    shares the panel of ranges.
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
                    ax.plot(*_line(dense), line, color=INK, label=f"causal, {name}")
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
            colour = ON_MAP[dark]
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
    """A share of one as a fraction if it is a unit fraction, such as 1/16."""
    parts = round(1 / density)
    return f"1/{parts}" if parts > 1 and abs(parts * density - 1) < 0.01 else f"{density:.3g}"


def short_sequences(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Microseconds against the sequence length, a panel per pattern and a colour per name: the GPU's time as a line,
    the time of a whole call dotted.

    rows: the part "small" of `bench.sparse_patterns`.
    """
    panels = list(dict.fromkeys(row["pattern"] for row in rows))
    figure, axes = plt.subplots(1, len(panels), figsize=(7.5, 3.8), sharey=True, squeeze=False)
    for ax, pattern in zip(axes[0], panels, strict=True):
        chosen = select(rows, pattern=pattern)
        names = list(dict.fromkeys(row["name"] for row in chosen))
        for name, colour in colours_of(names).items():
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
    """Microseconds of each tree after each context: of the GPU, and of a whole call.

    rows: the part "tree" of `bench.sparse_patterns`; names: name in the rows → name in the picture; if two names become
    one, the faster counts.
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
