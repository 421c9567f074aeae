"""Pictures of chapter 01."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from course_utils.plots.look import (
    BLUE,
    FAIL,
    GREEN,
    GREY,
    GROUND,
    HBM,
    INK,
    L2,
    MATRICES,
    ON_MARK,
    ORANGE,
    PALE,
    PASS,
    RED,
    VERMILION,
)


def dot_products(panels: Mapping[str, Mapping[str, Tensor]]) -> Figure:
    """The distribution of numbers: one panel per title, and in it a line per name."""
    figure, axes = plt.subplots(1, len(panels), figsize=(7.5, 2.9), squeeze=False)
    for ax, (title, lines) in zip(axes[0], panels.items(), strict=True):
        most = max(float(values.abs().quantile(0.995)) for values in lines.values())
        for name, values in lines.items():
            counts = torch.histc(values.float(), bins=61, min=-most, max=most)
            places = torch.linspace(-most, most, 61)
            ax.plot(places, counts / counts.sum() / (2 * most / 61), label=name, linewidth=1.5)
        ax.set(title=title, xlabel="score", yticks=[], ylim=(0, None))
        ax.spines["left"].set_visible(False)
    axes[0][0].legend(loc="upper right", fontsize=9)
    return figure


def saturation(dims: Sequence[int], lines: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Figure:
    """The largest weight of a row, and the slope that is left for learning, against d, a line per name."""
    figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.0))
    for (name, values), colour in zip(lines.items(), (VERMILION, BLUE), strict=True):
        for ax, ys in zip(axes, values, strict=True):
            ax.plot(dims, ys, "o-", color=colour, label=name, markersize=4)
            ax.set(xscale="log", xlabel="d", ylim=(0, 1))
    axes[0].set(ylabel="largest weight of a row", title="saturation")
    axes[1].set(ylabel="Σ p(1 − p) of a row", title="slope left for learning")
    axes[0].legend()
    return figure


def three_passes() -> Figure:
    """Naive attention as its three kernels: which matrix each reads and writes, drawn as shapes."""
    figure, ax = plt.subplots(figsize=(7.5, 3.2))
    boxes = [  # name, x, y, width, height, colour
        ("Q", 0.0, 0.0, 0.8, 3.0, MATRICES["Q"]),
        ("$K^T$", 1.2, 3.3, 3.0, 0.8, MATRICES["K"]),
        ("S", 1.2, 0.0, 3.0, 3.0, MATRICES["S"]),
        ("P", 6.2, 0.0, 3.0, 3.0, MATRICES["S"]),
        ("V", 9.6, 0.0, 0.8, 3.0, MATRICES["V"]),
        ("O", 12.4, 0.0, 0.8, 3.0, MATRICES["O"]),
    ]
    for name, x, y, width, height, colour in boxes:
        ax.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor=GREY, alpha=0.55))
        ax.text(x + width / 2, y + height / 2, name, ha="center", va="center", fontsize=13)
    shapes = [(0.4, "$L_q × d$"), (2.7, "$L_q × L_k$"), (7.7, "$L_q × L_k$"), (10.0, "$L_k × d$"), (12.8, "$L_q × d$")]
    for x, shape in shapes:
        ax.text(x, -0.15, shape, ha="center", va="top", color=GREY, fontsize=9)
    ax.text(4.3, 3.7, "$d × L_k$", va="center", color=GREY, fontsize=9)
    for start, end in [(4.35, 6.05), (10.55, 12.25)]:
        ax.annotate("", (end, 1.5), (start, 1.5), arrowprops={"arrowstyle": "->", "color": GREY, "linewidth": 1.5})
    ax.text(5.2, 1.7, "softmax", ha="center", va="bottom", fontsize=9)
    for x, y in [(1.0, 3.15), (9.4, 1.5)]:
        ax.text(x, y, "×", ha="center", va="center", fontsize=13)
    for x in (2.7, 7.7):
        ax.text(x, -0.75, "to HBM and back", ha="center", va="top", color=RED, fontsize=9)
    for x, kernel in [(2.7, "1  scores.cu"), (7.7, "2  softmax.cu"), (12.6, "3  output.cu")]:
        ax.text(x, -1.8, kernel, ha="center", family="monospace", fontsize=9)
    ax.set(xlim=(-0.2, 14.0), ylim=(-2.1, 4.3), aspect="equal")
    ax.axis("off")
    return figure


def warp_of_scores(length: int = 80, tile: int = 32) -> Axes:
    """S `[length, length]` cut into pieces of a block each; one warp in it, with the query and the keys it reads."""
    ax = plt.figure(figsize=(7.5, 3.4)).subplots()
    thin, gap, i, first = 10, 8, 37, tile
    q_left, k_bottom = -gap - thin, -gap - thin  # Q left of S, Kᵀ above it; y grows downwards
    for name, x, y, width, height, colour in (
        ("Q", q_left, 0, thin, length, MATRICES["Q"]),
        ("Kᵀ", 0, k_bottom, length, thin, MATRICES["K"]),
        ("", 0, 0, length, length, MATRICES["S"]),
    ):
        ax.add_patch(Rectangle((x, y), width, height, facecolor=colour, alpha=0.25, linewidth=0))
        ax.text(x + min(width, thin) / 2, y - 2, name, ha="center", va="bottom", fontsize=12)
    for x in range(0, length, tile):
        for y in range(0, length, tile):
            size = min(tile, length - x), min(tile, length - y)
            ax.add_patch(Rectangle((x, y), *size, facecolor="none", edgecolor=GREY, linewidth=1))
    ax.add_patch(Rectangle((q_left, i), thin, 1.5, facecolor=MATRICES["Q"], linewidth=0))
    ax.add_patch(Rectangle((first, k_bottom), tile, thin, facecolor=MATRICES["K"], linewidth=0))
    ax.add_patch(Rectangle((first, i), tile, 1.5, facecolor=VERMILION, linewidth=0))
    right = length + 6
    for y, words, colour in (
        (k_bottom + thin / 2, "its 32 keys: one per thread", MATRICES["K"]),
        (16, "a piece of S: one block, 32 × 32 threads", GREY),
        (i + 1, "one warp: 32 threads side by side", VERMILION),
        (length - 8, "beyond the end: these threads return", GREY),
    ):
        ax.text(right, y, words, va="center", color=colour if colour in (GREY, VERMILION) else INK, fontsize=9)
    ax.text(q_left - 3, i + 1, "its query", ha="right", va="center", fontsize=9)
    ax.set(xlim=(-60, 190), ylim=(length + 2, k_bottom - 14), aspect="equal")
    ax.axis("off")
    return ax


def corner_turning(lanes: int = 8) -> Figure:
    """A tile in shared memory with rows one longer than a warp, written by rows and read by columns. Each place shows
    its bank. `lanes` lanes and banks are drawn, few enough to read."""
    figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.3))
    row, column = 2, 5
    titles = "a warp writes a row of K: side by side", "a warp reads a column: 8 different banks"
    for ax, title, chosen in zip(axes, titles, ((row, None), (None, column)), strict=True):
        for r in range(lanes):
            for c in range(lanes + 1):
                picked = (r == chosen[0] or c == chosen[1]) and c < lanes
                face = ORANGE if picked else (PALE if c == lanes else GROUND)
                ax.add_patch(Rectangle((c, r), 1, 1, facecolor=face, edgecolor=GREY, linewidth=0.6))
                bank = (r * (lanes + 1) + c) % lanes
                ax.text(c + 0.5, r + 0.5, bank, ha="center", va="center", fontsize=9, color=ON_MARK if picked else INK)
        ax.set(
            xlim=(0, lanes + 1),
            ylim=(lanes, 0),
            aspect="equal",
            xticks=[],
            yticks=[],
            xlabel="column c of K, and one unused",
        )
        ax.set_title(title, fontsize=9)
        ax.spines[["left", "bottom"]].set_visible(False)
    axes[0].set_ylabel("key j")
    return figure


def warp_addresses(
    requests: Mapping[str, Sequence[int]], row_bytes: int, rows: int = 32, ylabel: str = "row of K (one key each)"
) -> Figure:
    """One panel per load of a warp: memory row by row, the sectors that move in light, the floats asked for in dark.

    `requests` maps a title to the byte addresses of the 32 lanes; memory is drawn as `rows` lines of `row_bytes`.
    """
    figure, axes = plt.subplots(1, len(requests), figsize=(7.5, 1.0 + 0.1 * rows), squeeze=False)
    for ax, (title, addresses) in zip(axes[0], requests.items(), strict=True):
        for sector in {address // 32 for address in addresses}:
            y, x = divmod(sector * 32, row_bytes)
            ax.add_patch(Rectangle((x, y), 32, 1, facecolor=ORANGE, edgecolor=GROUND, alpha=0.5))
        for address in set(addresses):
            y, x = divmod(address, row_bytes)
            ax.add_patch(Rectangle((x, y), 4, 1, facecolor=BLUE, edgecolor="none"))
        ax.set(xlim=(0, row_bytes), ylim=(rows, 0), title=title, xlabel="byte within the row")
        ax.set_xticks(range(0, row_bytes + 1, 64))
        ax.set_yticks(range(0, rows + 1, 8))
    axes[0][0].set_ylabel(ylabel)
    return figure


def masks(panels: Mapping[str, Tensor]) -> Figure:
    """One panel per mask, bool `[L_q, L_k]`: the keys that a query sees are blue."""
    figure, axes = plt.subplots(1, len(panels), figsize=(7.5, 2.6), squeeze=False)
    for ax, (title, mask) in zip(axes[0], panels.items(), strict=True):
        rows, columns = mask.shape
        for i in range(rows):
            for j in range(columns):
                colour = BLUE if mask[i, j] else GROUND
                ax.add_patch(Rectangle((j, i), 1, 1, facecolor=colour, edgecolor=GREY, linewidth=0.5))
        ax.set(xlim=(0, columns), ylim=(rows, 0), aspect="equal", title=title, xlabel="key j", ylabel="query i")
        ax.set_xticks([j + 0.5 for j in range(columns)], range(columns))
        ax.set_yticks([i + 0.5 for i in range(rows)], range(rows))
        ax.tick_params(length=0)
    return figure


def added_by_shuffles(lanes: int = 32) -> Axes:
    """How a warp adds up 32 numbers: at each step a lane receives the sum of the lane whose number differs in one bit.

    The additions that end in lane 0 are drawn dark; the other lanes do the same at the same time.
    """
    ax = plt.figure(figsize=(7.5, 3.2)).subplots()
    distances = [lanes >> step for step in range(1, lanes.bit_length())]
    for step, distance in enumerate(distances):
        for lane in range(lanes):
            for source in (lane, lane ^ distance):
                counts = lane < distance
                look = {"color": BLUE if counts else PALE, "linewidth": 0.8 if counts else 0.4, "zorder": 1 + counts}
                ax.plot([source, lane], [step, step + 1], **look)
        ax.text(lanes + 0.3, step + 0.5, f"⊕ {distance}", va="center", color=GREY, fontsize=9)
    for step in range(len(distances) + 1):
        working = lanes >> step
        colours = [BLUE if lane < working else PALE for lane in range(lanes)]
        ax.scatter(range(lanes), [step] * lanes, color=colours, s=16, zorder=3)
    ax.set(xlim=(-0.8, lanes + 2.5), ylim=(len(distances) + 0.3, -0.4), xlabel="lane")
    ax.set_xticks(range(0, lanes, 4))
    ax.set_yticks(range(len(distances) + 1), ["its own sum", *(f"of {2 << n}" for n in range(len(distances)))])
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.tick_params(length=0)
    return ax


def safe_exponents(limits: Mapping[str, tuple[float, float]], rows: Mapping[str, Sequence[float]]) -> Axes:
    """The range in which exp is neither 0 nor infinite, a bar per type; above the bars scores, a line of points per
    name."""
    ax = plt.figure(figsize=(7.5, 1.0 + 0.42 * (len(limits) + len(rows)))).subplots()
    for row, (low, high) in enumerate(limits.values()):
        ax.barh(row, high - low, left=low, height=0.55, color=BLUE)
        ax.text(low - 3, row, "exp is 0", ha="right", va="center", color=GREY, fontsize=9)
        ax.text(high + 3, row, f"exp is ∞ above {high:.1f}", va="center", color=RED, fontsize=9)
    for row, scores in enumerate(rows.values(), len(limits)):
        ax.plot(scores, [row] * len(scores), "o", color=VERMILION, markersize=6)
    ax.set(xlim=(-215, 185), xlabel="x")
    ax.set_yticks(range(len(limits) + len(rows)), [*limits, *rows])
    ax.axvline(0, color=GREY, linewidth=0.8, zorder=0)
    ax.tick_params(axis="y", length=0)
    return ax


def score_squares(megabytes: Mapping[int, float]) -> Axes:
    """The score matrix of each length as a square, its side in proportion to the length, with its megabytes."""
    ax = plt.figure(figsize=(7.5, 2.6)).subplots()
    left, longest = 0.0, max(megabytes)
    for length, size in megabytes.items():
        side = length / longest
        ax.add_patch(Rectangle((left, 0), side, side, facecolor=MATRICES["S"], alpha=0.55, edgecolor=GREY))
        ax.text(left + side / 2, side / 2, f"{size:,.0f} MB", ha="center", va="center")
        ax.text(left + side / 2, -0.04, f"L = {length:,}", ha="center", va="top", color=GREY, fontsize=9)
        left += side + 0.25
    ax.set(xlim=(-0.05, left), ylim=(-0.16, 1.03), aspect="equal")
    ax.axis("off")
    return ax


def growing_bytes(lengths: Sequence[int], lines: Mapping[str, Sequence[float]], marks: Mapping[str, float]) -> Axes:
    """Gigabytes against the length, both logarithmic: a line per name, and a level for each mark."""
    ax = plt.figure(figsize=(7.5, 3.4)).subplots()
    for (name, values), colour in zip(lines.items(), (ORANGE, VERMILION, GREEN), strict=False):
        ax.plot(lengths, values, "o-", color=colour, label=name, markersize=4)
    for name, value in marks.items():
        ax.axhline(value, color=GREY, linestyle="--", linewidth=1)
        ax.text(lengths[0], value * 1.15, name, color=GREY, fontsize=9)
    ax.set(xscale="log", yscale="log", xlabel="sequence length L", ylabel="GB")
    ax.set_xticks(lengths, [f"{length:,}" for length in lengths])
    ax.minorticks_off()
    ax.legend(loc="lower right", fontsize=9)
    return ax


def three_counts(panels: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Figure:
    """Megabytes of each kernel by several counts, as bars on a logarithmic axis: panel, kernel, count, MB."""
    figure, axes = plt.subplots(1, len(panels), figsize=(7.5, 3.0), sharey=True, sharex=True, squeeze=False)
    for ax, (title, kernels) in zip(axes[0], panels.items(), strict=True):
        for row, counts in enumerate(kernels.values()):
            for n, ((count, value), colour) in enumerate(zip(counts.items(), (GREY, L2, HBM), strict=False)):
                y = row + 0.27 * (n - 1)
                ax.barh(y, value, height=0.25, left=0.1, color=colour, label=count if row == 0 else None)
                ax.text(value * 1.15, y, f"{value:,.3g}" if value < 1000 else f"{value:,.0f}", va="center", fontsize=8)
        ax.set(title=title, xscale="log", xlabel="MB")
        ax.set_yticks(range(len(kernels)), list(kernels))
        ax.tick_params(axis="y", length=0)
    highest = max(value for kernels in panels.values() for counts in kernels.values() for value in counts.values())
    axes[0][0].set_xlim(0.3, 6 * highest)
    axes[0][0].invert_yaxis()
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def two_losses(lines: Mapping[str, Sequence[float]], blind: float) -> Axes:
    """Training losses in nats per letter, and the loss of a blind guess."""
    ax = plt.figure(figsize=(7.5, 2.8)).subplots()
    for (name, losses), colour in zip(lines.items(), (BLUE, VERMILION), strict=True):
        ax.plot(losses, label=name, color=colour)
    ax.axhline(blind, color=GREY, linestyle="--", linewidth=1, label="blind guess")
    ax.set(xlabel="training step", ylabel="training loss (nats per letter)", ylim=(0, None))
    ax.legend()
    return ax


def weight_maps(panels: Mapping[str, Tensor], letters: Sequence[str]) -> Figure:
    """One heat map of attention weights `[L, L]` per title; queries and keys bear their letters."""
    figure, axes = plt.subplots(1, len(panels), figsize=(7.5, 3.7), squeeze=False)
    names = ["␣" if letter == " " else letter for letter in letters]
    for ax, (title, weights) in zip(axes[0], panels.items(), strict=True):
        ax.imshow(weights, cmap="viridis", vmin=0)
        ax.set(title=title, xlabel="key")
        ax.set_xticks(range(len(names)), names, fontsize=9)
        ax.set_yticks(range(len(names)), names, fontsize=9)
        ax.tick_params(length=0)
    axes[0][0].set_ylabel("query")
    return figure


def verdicts(table: Mapping[str, Mapping[str, tuple[str, bool]]]) -> Axes:
    """A grid of words, green if the flag holds and red if not: a line for each row, its cells by the column's name."""
    columns = list(next(iter(table.values())))
    ax = plt.figure(figsize=(7.5, 0.7 + 0.42 * len(table))).subplots()
    for row, cells in enumerate(table.values()):
        for column, (word, good) in enumerate(cells.values()):
            colour = PASS if good else FAIL
            ax.add_patch(Rectangle((column + 0.03, row + 0.06), 0.94, 0.88, facecolor=colour, alpha=0.3, linewidth=0))
            ax.text(column + 0.5, row + 0.5, word, ha="center", va="center", fontsize=9)
    ax.set(xlim=(0, len(columns)), ylim=(len(table), 0))
    ax.set_xticks([column + 0.5 for column in range(len(columns))], columns, fontsize=9)
    ax.set_yticks([row + 0.5 for row in range(len(table))], list(table), fontsize=9)
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.spines[["left", "bottom"]].set_visible(False)
    return ax
