"""Pictures of chapter 02."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import Tensor

from course_utils.costs import Step
from course_utils.plots.look import BLUE, GREY, GROUND, INK, MATRICES, ON_MARK, ORANGE, OURS, RED, SKY


def traffic_bars(
    steps: Mapping[str, Sequence[Step]],
    highlight: Callable[[str], bool],
    *,
    legend: tuple[str, str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """One horizontal bar per algorithm, cut into its steps (`costs.Step`); megabytes on the x axis.

    Steps whose name satisfies `highlight` are drawn in red, the others in blue; `legend` names the two.
    """
    ax = ax or plt.figure(figsize=(7.5, 1.0 + 0.55 * len(steps))).subplots()
    for row, parts in enumerate(steps.values()):
        left = 0.0
        for part in parts:
            width = part.total / 1e6
            colour = RED if highlight(part.name) else BLUE
            ax.barh(row, width, left=left, height=0.6, color=colour, edgecolor=GROUND)
            left += width
        ax.text(left, row, f" {left:,.1f} MB", va="center")
    ax.set(yticks=range(len(steps)), yticklabels=list(steps), xlabel="bytes to and from HBM, MB")
    ax.margins(x=0.16)
    ax.invert_yaxis()
    if legend:
        ax.legend(handles=[Patch(color=RED, label=legend[0]), Patch(color=BLUE, label=legend[1])], loc="lower right")
    return ax


def online_weights(scores: Tensor, block: int) -> Figure:
    """The softmax weights of one row of scores `[L]` as they are believed after each block of `block` scores."""
    stages = range(block, len(scores) + 1, block)
    figure, axes = plt.subplots(1, len(stages), figsize=(7.5, 2.5), sharey=True)
    for ax, seen in zip(axes, stages, strict=True):
        m = scores[:seen].max()
        weights = torch.exp(scores[:seen] - m)
        colours = [BLUE] * (seen - block) + [ORANGE] * block
        ax.bar(range(seen), (weights / weights.sum()).tolist(), color=colours)
        ax.set(
            xlim=(-0.6, len(scores) - 0.4),
            xticks=range(0, len(scores), block),
            xlabel="key",
            title=f"m = {m:.1f}, l = {weights.sum():.2f}",
        )
        ax.title.set_fontsize(9)
    axes[0].set_ylabel("weight so far")
    return figure


def tiled_attention(query_tiles: int, key_tiles: int, i: int, j: int) -> Axes:
    """Where step (i, j) of the tiled algorithm lies: the strips of Q, K, V and O around the matrix S."""
    ax = plt.figure(figsize=(7.0, 4.6)).subplots()
    strip, gap = 0.8, 0.3

    def rectangle(x: float, y: float, width: float, height: float, colour: str, dashed: bool = False) -> None:
        style = {"linestyle": (0, (3, 3)), "edgecolor": GREY} if dashed else {"edgecolor": INK}
        ax.add_patch(Rectangle((x, y), width, height, facecolor=colour, linewidth=0.8, **style))

    left, right = -strip - gap, key_tiles + gap
    for row in range(query_tiles):
        rectangle(left, row, strip, 1, MATRICES["Q"] if row == i else GROUND)
        rectangle(right, row, strip, 1, MATRICES["O"] if row == i else GROUND)
        for column in range(key_tiles):
            rectangle(column, row, 1, 1, MATRICES["pick"] if (row, column) == (i, j) else GROUND, dashed=True)
    for column in range(key_tiles):
        for shelf, name in ((1, "V"), (2, "K")):
            rectangle(column, -shelf * (strip + gap), 1, strip, MATRICES[name] if column == j else GROUND)
    middle = query_tiles / 2
    label = {"ha": "center", "va": "center"}
    ax.text(left - 0.3, middle, "Q", **label)
    ax.text(right + strip + 0.35, middle, "O", **label)
    ax.text(-0.35, -2 * (strip + gap) + strip / 2, "K", **label)
    ax.text(-0.35, -(strip + gap) + strip / 2, "V", **label)
    ax.text(j + 0.5, i + 0.5, "S, P", color=ON_MARK, **label)
    ax.annotate("", (key_tiles, i + 0.82), (0, i + 0.82), arrowprops={"arrowstyle": "->", "color": GREY})
    ax.text(key_tiles / 2, query_tiles + 0.3, "S and P: dashed tiles exist only on the chip, one at a time", **label)
    ax.set(xlim=(left - 0.7, right + strip + 0.8), ylim=(query_tiles + 0.6, -2 * (strip + gap) - 0.2), aspect="equal")
    ax.axis("off")
    return ax


def loop_orders(query_tiles: int, key_tiles: int) -> Figure:
    """The order in which the two algorithms visit the tiles of S: FA1 column by column, FA2 row by row."""
    figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.3))
    orders = {
        "FA1: outer loop over K, V": lambda i, j: j * query_tiles + i,
        "FA2: outer loop over Q": lambda i, j: i * key_tiles + j,
    }
    for ax, (title, order), by_row in zip(axes, orders.items(), (False, True), strict=True):
        for i in range(query_tiles):
            for j in range(key_tiles):
                shade = (SKY, GROUND)[(i if by_row else j) % 2]
                ax.add_patch(Rectangle((j, i), 1, 1, facecolor=shade, edgecolor=GREY, alpha=0.6))
                ax.text(j + 0.5, i + 0.5, str(order(i, j) + 1), ha="center", va="center")
        ax.set(xlim=(0, key_tiles), ylim=(query_tiles, 0), aspect="equal", title=title)
        ax.set(xlabel="key tile j", ylabel="query tile i")
        ax.set_xticks([n + 0.5 for n in range(key_tiles)], range(key_tiles))
        ax.set_yticks([n + 0.5 for n in range(query_tiles)], range(query_tiles))
        ax.tick_params(length=0)
    return figure


def tile_choice(block_rows: Sequence[int], ratios: Mapping[str, Sequence[float]], limits: Mapping[str, float]) -> Axes:
    """Traffic relative to standard attention against B_r, one line per series, and where shared memory runs out.

    `limits` maps a label to the largest B_r (not an integer, in general) that fits it.
    """
    ax = plt.figure(figsize=(7.5, 3.8)).subplots()
    for number, ((name, values), marker) in enumerate(zip(ratios.items(), "os^D", strict=False)):
        wide = {"linewidth": 5, "alpha": 0.4} if number == 0 else {}  # seen behind a line that coincides with it
        ax.plot(block_rows, values, marker=marker, markersize=4, label=name, **wide)
    for label, at in limits.items():
        ax.axvline(at, color=GREY, linestyle="--", linewidth=1)
        ax.text(at, 1.01, label, transform=ax.get_xaxis_transform(), ha="center", color=GREY)
    ax.axhline(1, color=INK, linewidth=0.8)
    ax.set_xscale("log", base=2)
    ax.set_xticks(block_rows, block_rows)
    ax.set(xlabel="rows of a query tile, $B_r$", ylabel="times less traffic than standard attention")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))  # no line crosses it there
    return ax


def training(ours: Sequence[float], reference: Sequence[float], weights: Tensor) -> Figure:
    """Two losses step by step, which should coincide, and the attention weights `[L_q, L_k]` learned."""
    figure, (loss, picture) = plt.subplots(1, 2, figsize=(7.5, 3.0), width_ratios=(1.5, 1))
    loss.plot(ours, color=OURS, label="our kernels")
    loss.plot(reference, "o", color=BLUE, markersize=3, label="plain PyTorch")
    loss.set(xlabel="training step", ylabel="mean squared error", ylim=(0, None))
    loss.legend()
    image = picture.imshow(weights.numpy(), cmap="viridis", vmin=0, vmax=1)
    picture.set(xlabel="key", ylabel="query", title="weights")
    figure.colorbar(image, ax=picture, shrink=0.8)
    return figure
