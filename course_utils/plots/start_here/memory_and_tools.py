"""Pictures of chapter 00 on memory: the score matrix, levels, floors, accesses of a warp, tiles, and what tools see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_utils import costs
from course_utils.plots.look import (
    BLUE,
    GREEN,
    GREY,
    GROUND,
    HBM,
    INK,
    L2,
    ON_MARK,
    ORANGE,
    PALE,
    REGISTERS,
    SHARED,
    SKY,
    VERMILION,
    YELLOW,
)


def gpu_memories() -> Figure:
    """The memories of a GPU: the multiprocessors with registers and shared memory, the L2 cache, HBM."""
    figure, ax = plt.subplots(figsize=(7.5, 4.0))

    def box(x: float, y: float, width: float, height: float, colour: str, text: str, size: int = 9) -> None:
        ax.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor=GREY, alpha=0.45))
        ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=size)

    ax.add_patch(Rectangle((0, 1.5), 13, 4.9, facecolor="none", edgecolor=INK))
    ax.text(0.1, 6.5, "the chip", va="bottom", fontsize=9)
    for number, x in enumerate((0.3, 3.3, 6.3, 9.9)):
        ax.add_patch(Rectangle((x, 3.0), 2.7, 3.2, facecolor="none", edgecolor=GREY))
        ax.text(
            x + 1.35, 5.85, "multiprocessor" if number < 3 else "the last one", ha="center", va="center", fontsize=9
        )
        box(x + 0.15, 4.9, 2.4, 0.65, YELLOW, "arithmetic units", 8)
        box(x + 0.15, 4.05, 2.4, 0.65, REGISTERS, "registers", 8)
        box(x + 0.15, 3.2, 2.4, 0.65, SHARED, "shared memory, L1", 8)
    ax.text(9.45, 4.6, "…", ha="center", va="center", fontsize=14)
    box(0.3, 1.8, 12.3, 0.8, L2, "L2 cache")
    box(0, 0, 13, 0.9, HBM, "HBM: device memory, beside the chip")
    for x in (1.65, 4.65, 7.65, 11.25):
        ax.annotate("", (x, 2.62), (x, 3.18), arrowprops={"arrowstyle": "<->", "color": GREY})
    ax.annotate("", (6.5, 0.92), (6.5, 1.78), arrowprops={"arrowstyle": "<->", "color": GREY})
    ax.set(xlim=(-0.2, 13.2), ylim=(-0.2, 7.1))
    ax.axis("off")
    return figure


def memory_levels(levels: Sequence[tuple[str, float, float]]) -> Figure:
    """Levels of memory (name, bytes, bytes per second) as two sets of bars on logarithmic axes."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3.7), sharey=True)
    names, sizes, rates = zip(*levels, strict=True)
    for ax, values, unit, label in ((left, sizes, 1e6, "MB"), (right, rates, 1e12, "TB/s")):
        scaled = [value / unit for value in values]
        ax.barh(names, scaled, color=[REGISTERS, SHARED, L2, HBM], height=0.6)
        ax.set(xscale="log", xlabel=label, xlim=(min(scaled) / 3, max(scaled) * 20))
        for row, value in enumerate(scaled):
            ax.text(value * 1.15, row, f"{value:,.0f}" if value >= 10 else f"{value:.1f}", va="center", fontsize=9)
    left.set_title("size")
    right.set_title("bandwidth")
    left.invert_yaxis()
    return figure


def matmul_tiles(tiles: int, step: int, row: int, column: int) -> Axes:
    """C = A B in `tiles` × `tiles` tiles: the shared memory of the block of tile (row, column) of C at a step."""
    ax = plt.figure(figsize=(6.0, 4.8)).subplots()

    def matrix(x: float, y: float, name: str, strip: set[tuple[int, int]], now: set[tuple[int, int]]) -> None:
        for i in range(tiles):
            for j in range(tiles):
                colour = ORANGE if (i, j) in now else SKY if (i, j) in strip else GROUND
                ax.add_patch(Rectangle((x + j, y + i), 1, 1, facecolor=colour, edgecolor=GREY, alpha=0.8))
        ax.text(x + tiles / 2, y - 0.35, name, ha="center", fontsize=12)

    gap = tiles + 1
    matrix(0, gap, "A", {(row, k) for k in range(tiles)}, {(row, step)})
    matrix(gap, 0, "B", {(k, column) for k in range(tiles)}, {(step, column)})
    matrix(gap, gap, "C", set(), set())
    ax.add_patch(Rectangle((gap + column, gap + row), 1, 1, facecolor=GREEN, edgecolor=GREY))
    ax.text(gap + column + 0.5, gap + row + 0.5, "block", ha="center", va="center", fontsize=9, color=ON_MARK)
    ax.set(xlim=(-0.2, 2 * tiles + 1.2), ylim=(2 * tiles + 1.2, -0.8), aspect="equal")
    ax.axis("off")
    return ax


def score_bytes(head_dim: int) -> Axes:
    """Bytes of one head's score matrix, and of Q, K, V and O, against the number of tokens, in fp32."""
    lengths = [2**n for n in range(11, 16)]
    ax = plt.figure(figsize=(7.5, 4.1)).subplots()
    for name, colour, of_length in (
        ("the scores", ORANGE, lambda L: costs.score_matrix_bytes(1, 1, L, L, 4)),
        ("Q, K, V and O", BLUE, lambda L: costs.least_bytes(1, 1, L, L, head_dim, 4)),
    ):
        megabytes = [of_length(L) / 1e6 for L in lengths]
        ax.plot(lengths, megabytes, marker="o", color=colour)
        ax.annotate(
            f"{name}: {_bytes(megabytes[-1])}",
            (lengths[-1], megabytes[-1]),
            (8, 0),
            textcoords="offset points",
            va="center",
        )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set(
        xlabel="tokens",
        ylabel="MB of one head",
        xlim=(lengths[0] * 0.9, lengths[-1] * 3.2),
        title=f"d = {head_dim}, fp32",
    )
    ax.set_xticks(lengths, [f"{L:,}" for L in lengths])
    ax.minorticks_off()
    return ax


def _bytes(megabytes: float) -> str:
    return f"{megabytes / 1000:.1f} GB" if megabytes >= 1000 else f"{megabytes:.0f} MB"


def against_size(values: Mapping[float, float], marks: Mapping[str, float]) -> Axes:
    """A curve of `values` by size, on a logarithmic axis, with dashed lines at the sizes in `marks`, by name."""
    ax = plt.figure(figsize=(7.5, 3.8)).subplots()
    ax.plot(list(values), list(values.values()), "o-")
    for name, size in marks.items():
        ax.axvline(size, color=GREY, linestyle="--")
        ax.annotate(name, (size, 0), (4, 6), textcoords="offset points", color=GREY)
    ax.set_xscale("log", base=2)
    ax.set_ylim(bottom=0)
    return ax


def two_lines(lines: Mapping[str, Mapping[int, float]], across: str, unit: str) -> Axes:
    """Values by a power of two, a line for each name, named at its end; both axes are logarithmic."""
    ax = plt.figure(figsize=(7.5, 3.0)).subplots()
    for (name, values), colour in zip(lines.items(), (ORANGE, BLUE), strict=False):
        ax.plot(list(values), list(values.values()), "o-", color=colour)
        last = list(values)[-1]
        ax.annotate(name, (last, values[last]), (8, 0), textcoords="offset points", va="center", color=colour)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ticks = list(next(iter(lines.values())))
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.set(xlabel=across, ylabel=unit, xlim=(ticks[0] / 1.2, ticks[-1] * 3))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.minorticks_off()
    return ax


def under_way(latency_ns: float, rate: float) -> Axes:
    """Little's law as an area: `rate` bytes per second arrive for the `latency_ns` of each load. Drawn twice: with
    enough loads in flight, and with half of them."""
    ax = plt.figure(figsize=(7.5, 3.4)).subplots()
    per_ns = rate / 1e9
    ax.add_patch(Rectangle((0, 0), latency_ns, per_ns, facecolor=SKY, edgecolor=BLUE))
    ax.add_patch(Rectangle((0, 0), latency_ns, per_ns / 2, facecolor=BLUE, alpha=0.6, edgecolor=BLUE))
    kib = latency_ns * per_ns / 2**10
    ax.text(latency_ns / 2, 0.75 * per_ns, f"{kib:,.0f} KiB under way: busy", ha="center", va="center", color=ON_MARK)
    ax.text(latency_ns / 2, 0.25 * per_ns, "half of it: half as fast", ha="center", va="center", color=ON_MARK)
    ax.set(
        xlim=(0, 1.15 * latency_ns), ylim=(0, 1.2 * per_ns), xlabel="ns: how long a load takes", ylabel="bytes per ns"
    )
    return ax


def ways_of_a_warp(runs: Sequence[int] = (1, 8, 32)) -> Axes:
    """A warp at an `if`, for runs of neighbours that take the same branch: which lanes work in which of the two
    steps."""
    ax = plt.figure(figsize=(7.5, 0.9 + 0.85 * len(runs))).subplots()
    for line, run in enumerate(runs):
        for way, colour in ((0, BLUE), (1, ORANGE)):
            lanes = [lane for lane in range(32) if lane // run % 2 == way]
            for lane in range(32):
                face = colour if lane in lanes else PALE
                place = (lane, line + 0.1 + 0.4 * way)
                ax.add_patch(Rectangle(place, 1, 0.36, facecolor=face, edgecolor=GROUND, linewidth=0.6))
            words = "one way" if way == 0 else "the other" if lanes else "the other: skipped"
            ax.text(32.4, line + 0.28 + 0.4 * way, words, va="center", fontsize=9)
    ax.set(xlim=(0, 39), ylim=(len(runs), 0), xlabel="lane of the warp; grey waits")
    ax.set_xticks(range(0, 33, 8))
    ax.set_yticks([line + 0.5 for line in range(len(runs))], [f"run {run}" for run in runs])
    ax.tick_params(axis="y", length=0)
    return ax


def way_of_a_transpose() -> Figure:
    """What one warp reads and writes: a row and a column in the naive kernel, two rows with a tile between them in the
    tiled one."""
    figure, axes = plt.subplots(2, 3, figsize=(7.5, 4.6), height_ratios=(1, 1))
    rows = (
        ("naive", ("in: 4 sectors", "row"), None, ("out: 32 sectors", "column")),
        (
            "tiled",
            ("in: 4 sectors", "row"),
            ("tile: written by rows,\nread by columns", "both"),
            ("out: 4 sectors", "row"),
        ),
    )
    for line, (name, *steps) in zip(axes, rows, strict=True):
        for ax, step in zip(line, steps, strict=True):
            ax.axis("off")
            if step is None:
                continue
            words, touched = step
            for at in range(8):
                for across in range(8):
                    hit = {"row": at == 2, "column": across == 2, "both": at == 2 or across == 5}[touched]
                    colour = ORANGE if touched != "row" and hit and not (touched == "both" and at == 2) else BLUE
                    ax.add_patch(Rectangle((across, at), 1, 1, facecolor=colour if hit else PALE, edgecolor=GROUND))
            ax.set(xlim=(0, 8), ylim=(8, 0), aspect="equal")
            ax.set_title(words, fontsize=9, loc="center")
        line[0].text(-1, 4, name, ha="right", va="center", fontsize=11)
    axes[0][1].text(0.5, 0.5, "→", ha="center", va="center", fontsize=22, color=GREY)
    return figure


def race() -> Axes:
    """A tile in shared memory over time: a fast warp writes the next round while a slow one still reads this one."""
    ax = plt.figure(figsize=(7.5, 3.2)).subplots()
    fast = ((0, 1, "load", SKY), (1, 3, "barrier, multiply", GREEN), (3, 4, "load the next", VERMILION))
    slow = ((0, 1, "load", SKY), (1, 4.6, "barrier, multiply: still reading", GREEN), (4.6, 5.6, "load the next", SKY))
    for y, warp, steps in ((1.2, "a fast warp", fast), (0.1, "a slow warp", slow)):
        for begin, stop, words, colour in steps:
            ax.add_patch(Rectangle((begin, y), stop - begin, 0.8, facecolor=colour, edgecolor=GROUND, alpha=0.8))
            ax.text((begin + stop) / 2, y + 0.4, words, ha="center", va="center", fontsize=9, color=ON_MARK)
        ax.text(-0.1, y + 0.4, warp, ha="right", va="center", fontsize=9)
    ax.annotate("overwrites", (3.5, 0.95), (3.5, 1.18), fontsize=9, ha="center", va="top")
    ax.axvspan(3, 4, color=VERMILION, alpha=0.12)
    ax.text(3.5, 2.15, "here a second barrier is missing", ha="center", fontsize=9)
    ax.set(xlim=(-1.2, 5.7), ylim=(0, 2.4))
    ax.axis("off")
    return ax


def product_piece(piece: int = 4) -> Axes:
    """One step of a thread with a piece of C in registers: the words of A and B that it reads, and their products."""
    ax = plt.figure(figsize=(7.5, 3.6)).subplots()
    for n in range(piece):
        ax.add_patch(Rectangle((-1.6, n), 1, 1, facecolor=SKY, edgecolor=GROUND))
        ax.add_patch(Rectangle((n, -1.6), 1, 1, facecolor=SKY, edgecolor=GROUND))
        for m in range(piece):
            ax.add_patch(Rectangle((n, m), 1, 1, facecolor=GREEN, edgecolor=GROUND, alpha=0.7))
    ax.text(-1.8, piece / 2, f"{piece} words of A", ha="right", va="center", fontsize=9)
    ax.text(piece / 2, -1.8, f"{piece} words of B", ha="center", va="bottom", fontsize=9)
    words = f"{piece * piece} multiply-adds\nfor {2 * piece} words read:\n{2 / piece:g} words for each."
    words += "\n\nWith one element:\n2 words for each."
    ax.text(piece + 0.5, piece / 2, words, va="center", fontsize=10)
    ax.set(xlim=(-5, piece + 6), ylim=(piece + 0.2, -2.6), aspect="equal")
    ax.axis("off")
    return ax


def path_taken() -> Axes:
    """The branches of a kernel: a run at a length that fills all tiles takes one path, and no finding covers the
    other."""
    ax = plt.figure(figsize=(7.5, 3.5)).subplots()
    places = {
        "a tile begins": (0, 1), "it is full": (2.6, 1.8), "it is ragged": (2.6, 0.2),
        "no mask": (5.2, 2.3), "masked": (5.2, 1.4), "keys past the end": (5.2, 0.6), "rows past the end": (5.2, -0.2),
    }  # fmt: skip
    arrows = (
        ("a tile begins", "it is full"), ("it is full", "no mask"), ("a tile begins", "it is ragged"),
        ("it is full", "masked"), ("it is ragged", "keys past the end"), ("it is ragged", "rows past the end"),
    )  # fmt: skip
    taken = ("a tile begins", "it is full", "no mask")
    for begin, end in arrows:
        (x, y), (to, at) = places[begin], places[end]
        look = {"color": GREEN, "linewidth": 2.5} if end in taken else {"color": GREY, "linestyle": "--"}
        ax.annotate("", (to - 0.05, at), (x + 1.75, y), arrowprops={"arrowstyle": "->", **look})
    for name, (x, y) in places.items():
        face = GREEN if name in taken else PALE
        ax.add_patch(Rectangle((x, y - 0.25), 1.7, 0.5, facecolor=face, edgecolor=GREY, alpha=0.6))
        ax.text(x + 0.85, y, name, ha="center", va="center", fontsize=9)
    ax.text(7.1, 2.3, "run at L = 256:\nno finding", va="center", fontsize=9, color=GREEN)
    ax.text(7.1, 0.6, "never run:\nnothing is known", va="center", fontsize=9, color=GREY)
    ax.set(xlim=(-0.1, 9), ylim=(-0.6, 2.8))
    ax.axis("off")
    return ax


def way_through_the_caches() -> Axes:
    """Where a kernel's requests are answered: L1, L2 or HBM, fewer at each step."""
    ax = plt.figure(figsize=(7.5, 3.2)).subplots()
    levels = (
        (0, 2.0, BLUE, "requested\nby the threads"),
        (3, 1.3, ORANGE, "not in L1"),
        (6, 0.7, SKY, "not in L2:\nHBM bytes"),
    )
    for x, high, colour, name in levels:
        ax.add_patch(Rectangle((x, -high / 2), 2, high, facecolor=colour, alpha=0.5, edgecolor=GREY))
        ax.text(x + 1, 0, name, ha="center", va="center", fontsize=9)
    for x, cache in ((2.1, "L1"), (5.1, "L2")):
        ax.annotate("", (x + 0.8, 0), (x, 0), arrowprops={"arrowstyle": "->", "color": GREY})
        ax.text(x + 0.4, 0.15, cache, ha="center", va="bottom", fontsize=9)
    ax.plot((8.6, 8.6), (-0.3, 0.3), color=VERMILION)
    ax.text(8.75, 0, "footprint: each byte once,\nthe least with cold caches", va="center", fontsize=9, color=VERMILION)
    ax.set(xlim=(-0.2, 12.4), ylim=(-1.1, 1.1))
    ax.axis("off")
    return ax
