"""Pictures of chapter 01."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from course_utils.plots.look import BLUE, GREY, GROUND, MATRICES, ORANGE, RED


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


def warp_addresses(requests: Mapping[str, Sequence[int]], row_bytes: int, rows: int = 32) -> Figure:
    """One panel per load of a warp: memory row by row, the sectors that move in light, the floats asked for in dark.

    `requests` maps a title to the byte addresses of the 32 lanes; memory is drawn as `rows` lines of `row_bytes`.
    """
    figure, axes = plt.subplots(1, len(requests), figsize=(7.5, 4.2), squeeze=False)
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
    axes[0][0].set_ylabel("row of K (one key each)")
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
