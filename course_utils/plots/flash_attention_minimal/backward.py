"""Pictures of chapter 02's second notebook, on the backward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from course_utils.costs import lse_bytes, score_matrix_bytes
from course_utils.plots.look import BLUE, GREEN, GREY, GROUND, ON_MARK, ORANGE, PURPLE, SKY, VERMILION

PASSES = {"forward": "S O", "backward of the paper": "S dP dV dK dQ", "backward.cu": "S dP dV dK S dP dQ"}


def stored_for_backward(batch: int, heads: int, lengths: Sequence[int]) -> Axes:
    """Bytes stored for the backward pass in fp32, against the length: the weights P, or one number per row."""
    ax = plt.figure(figsize=(7.5, 3.2)).subplots()
    stored = {
        "P": [score_matrix_bytes(batch, heads, length, length, 4) / 1e9 for length in lengths],
        "log-sum-exp": [lse_bytes(batch, heads, length) / 1e9 for length in lengths],
    }
    for (name, sizes), colour, marker in zip(stored.items(), (VERMILION, BLUE), "os", strict=True):
        ax.plot(lengths, sizes, marker=marker, color=colour, label=name)
        for length, size in zip(lengths, sizes, strict=True):
            said = f"{size:,.1f} GB" if size >= 0.1 else f"{1000 * size:.1f} MB"
            ax.annotate(said, (length, size), (0, 7), textcoords="offset points", ha="center", fontsize=9)
    ax.set(xscale="log", yscale="log", xlabel="sequence length L", ylabel="GB kept")
    ax.set_xticks(lengths, [f"{length:,}" for length in lengths])
    ax.minorticks_off()
    ax.margins(x=0.1, y=0.2)
    ax.legend()
    return ax


def score_gradients(P: Tensor, dP: Tensor) -> Figure:
    """The matrices `[L_q, L_k]` on the way from the weights to the gradient of the scores, and the row sums of dS."""
    dS = P * (dP - (P * dP).sum(dim=1, keepdim=True))
    figure, axes = plt.subplots(1, 4, figsize=(7.5, 2.6), width_ratios=(1, 1, 1, 0.5))
    for ax, name, matrix in zip(axes, ("P", "dP", "dS = P ∘ (dP − Δ)"), (P, dP, dS), strict=False):
        most = float(matrix.abs().max())
        ax.imshow(matrix.numpy(), cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
        ax.set(title=name, xlabel="key", xticks=[], yticks=[])
    axes[0].set_ylabel("query")
    axes[3].barh(range(len(dS)), dS.sum(dim=1).tolist(), color=BLUE)
    most = float(dS.abs().sum(dim=1).max())
    axes[3].set(title="Σ dS", xlim=(-most, most), ylim=(len(dS) - 0.5, -0.5), yticks=[], xticks=[0])
    return figure


def backward_walks(query_tiles: int, key_tiles: int, i: int, j: int) -> Figure:
    """The two walks of backward.cu over the tiles of P and dS: one holds a key tile, the other a query tile. The step
    at tile (i, j) is marked."""
    figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.4))
    titles = "backward_dk_dv: a block per key tile", "backward_dq: a block per query tile"
    for ax, title, by_key in zip(axes, titles, (True, False), strict=True):
        for row in range(query_tiles):
            for column in range(key_tiles):
                walked = column == j if by_key else row == i
                colour = ORANGE if (row, column) == (i, j) else SKY if walked else GROUND
                ax.add_patch(Rectangle((column, row), 1, 1, facecolor=colour, edgecolor=GREY, linewidth=0.8))
        for row in range(query_tiles):
            streams = by_key or row == i
            colour = GROUND if not streams else VERMILION if not by_key else BLUE if row == i else GROUND
            ax.add_patch(Rectangle((-1.2, row), 0.9, 1, facecolor=colour, alpha=0.6, edgecolor="black", linewidth=0.8))
        for column in range(key_tiles):
            colour = GREEN if not by_key and column == j else PURPLE if by_key and column == j else GROUND
            ax.add_patch(
                Rectangle((column, -1.2), 1, 0.9, facecolor=colour, alpha=0.6, edgecolor="black", linewidth=0.8)
            )
        ax.text(j + 0.5, i + 0.5, "P, dS", ha="center", va="center", fontsize=9, color=ON_MARK)
        held, streamed = ("K, V; dK, dV held", "Q, dO, LSE, Δ") if by_key else ("K, V", "Q, dO, LSE, Δ; dQ held")
        ax.text(key_tiles / 2, -1.4, held, ha="center", va="bottom", fontsize=9)
        ax.text(-1.4, query_tiles / 2, streamed, ha="right", va="center", rotation=90, fontsize=9)
        start, end = ((j + 0.85, 0.1), (j + 0.85, query_tiles)) if by_key else ((0.1, i + 0.85), (key_tiles, i + 0.85))
        ax.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": GREY})
        ax.set(xlim=(-2.2, key_tiles + 0.2), ylim=(query_tiles + 0.2, -2.2), aspect="equal")
        ax.set_title(title, fontsize=10)
        ax.axis("off")
    return figure


def products(passes: Mapping[str, str] = PASSES) -> Axes:
    """The matrix products of each pass, one box each. passes: pass → names of the results, separated by blanks."""
    ax = plt.figure(figsize=(7.5, 0.6 + 0.5 * len(passes))).subplots()
    for y, which in enumerate(passes.values()):
        for x, name in enumerate(which.split()):
            colour = SKY if name in ("S", "dP") else ORANGE
            ax.add_patch(Rectangle((x, y + 0.1), 0.94, 0.8, facecolor=colour, alpha=0.8))
            ax.text(x + 0.47, y + 0.5, name, ha="center", va="center", color=ON_MARK)
        count = len(which.split())
        ax.text(count + 0.15, y + 0.5, f"{count} products, {count / 2:.1f} × forward", va="center", fontsize=9)
    ax.set(xlim=(0, 10), ylim=(len(passes), 0), xticks=[])
    ax.set_yticks([y + 0.5 for y in range(len(passes))], list(passes))
    ax.tick_params(length=0)
    ax.spines[["left", "bottom"]].set_visible(False)
    return ax


def gradient_errors(gradients: Mapping[str, Sequence[Tensor]], expected: Sequence[Tensor]) -> Axes:
    """Errors of dQ, dK and dV as shares of their largest entry, a group of bars for each way to compute them."""
    ax = plt.figure(figsize=(7.5, 2.8)).subplots()
    for n, (way, of) in enumerate(gradients.items()):
        errors = [float((one - right).abs().max() / right.abs().max()) for one, right in zip(of, expected, strict=True)]
        places = [at + 0.4 * (n - (len(gradients) - 1) / 2) for at in range(len(of))]
        ax.bar(places, [max(error, 2e-17) for error in errors], width=0.36, label=way)
    ax.set_xticks(range(len(expected)), ["dQ", "dK", "dV"])
    ax.set(yscale="log", ylim=(1e-17, 10), ylabel="error ÷ largest entry")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    return ax
