"""Pictures of chapter 05."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from course_utils.plots.look import BLUE, GREEN, GREY, GROUND, INK, MATRICES, ORANGE, PALE, VERMILION, YELLOW


def dsa_layer() -> Figure:
    """DeepSeek Sparse Attention in four steps; above what each costs per pair or per query, below what it passes on."""
    figure, ax = plt.subplots(figsize=(7.5, 2.9))

    def box(x: float, y: float, width: float, colour: str, title: str, text: str) -> None:
        ax.add_patch(Rectangle((x, y), width, 1.7, facecolor=colour, edgecolor=GREY, alpha=0.35))
        ax.text(x + width / 2, y + 1.3, title, ha="center", va="center", fontsize=9, fontweight="bold")
        ax.text(x + width / 2, y + 0.6, text, ha="center", va="center", fontsize=8)

    def arrow(start: tuple[float, float], end: tuple[float, float], text: str = "") -> None:
        ax.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": GREY})
        middle = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
        ax.text(middle[0], middle[1] + 0.12, text, ha="center", va="bottom", fontsize=8)

    box(0, 1.2, 2.1, GREY, "token t", "hidden state\n7168 numbers")
    box(3.2, 2.5, 3.0, ORANGE, "lightning indexer", "all keys s ≤ t:\n64 heads of 128, FP8")
    box(7.5, 2.5, 2.2, YELLOW, "top-k", "the 2048 greatest\nI[t, s]")
    box(11.0, 1.2, 3.2, BLUE, "sparse core", "attention of 128 heads\nto 2048 rows of 576")
    box(3.2, 0, 6.5, GREEN, "cache", "of each token: a latent row of 576 numbers\nand an index key of 128")
    arrow((2.1, 2.4), (3.2, 3.2))
    arrow((6.2, 3.35), (7.5, 3.35), "I[t, :]")
    arrow((9.7, 3.1), (11.0, 2.5))
    ax.text(10.75, 3.15, "2048 indices", ha="center", va="bottom", fontsize=8)
    arrow((9.7, 0.85), (11.0, 1.5))
    ax.text(10.75, 0.75, "rows", ha="center", va="center", fontsize=8)
    arrow((4.7, 1.7), (4.7, 2.5))
    ax.text(4.85, 2.1, "index keys", ha="left", va="center", fontsize=8)
    arrow((2.1, 1.6), (3.2, 1.0))
    ax.set(xlim=(-0.1, 14.3), ylim=(-0.1, 4.4))
    ax.axis("off")
    return figure


def radix_digits(scores: Tensor, k: int, bars: int = 32) -> Figure:
    """The first two digits of a radix select of the k greatest of `scores` (fp32, 1-D), 11 bits each, as radix_topk.cu
    takes them: a panel per digit, the greatest first, and in the first panel the `bars` greatest digits that occur.

    Blue: selected. Orange: the bin in which the k-th greatest lies, which the next digit splits (in the second panel a
    bar is 32 digits). Grey: left out.
    """
    bits = scores.float().contiguous().view(torch.int32).long() & 0xFFFFFFFF
    keys = torch.where(bits >= 1 << 31, 0xFFFFFFFF - bits, bits + (1 << 31))  # in the order of the scores
    figure, axes = plt.subplots(2, 1, figsize=(7.5, 4.4))
    for number, (ax, shift) in enumerate(zip(axes, (21, 10), strict=True), start=1):
        digits = keys >> shift & 2047
        found, counts = digits.unique(return_counts=True)
        above = counts.flip(0).cumsum(0).flip(0) - counts  # scores with a greater digit
        digit = found[(above < k) & (above + counts >= k)].item()
        selected, inside = digits > digit, digits == digit
        ax.set_title(
            f"digit {number}, {len(keys):,} scores: {int(selected.sum()):,} selected; "
            f"{int(inside.sum()):,} in the bin, {k - int(selected.sum()):,} of which are wanted",
            fontsize=9,
        )
        grouped, first = digits // (1 if number == 1 else 32), digit // (1 if number == 1 else 32)
        shown = grouped.unique().flip(0)[:bars] if number == 1 else torch.arange(63, -1, -1)
        heights = [int((grouped == group).sum()) for group in shown]
        colours = [BLUE if group > first else ORANGE if group == first else PALE for group in shown]
        ax.bar(range(len(shown)), heights, color=colours, width=0.9)
        ax.set(ylabel="scores", xlim=(-0.7, len(shown) - 0.3))
        if number == 1:
            places = range(0, len(shown), 4)
            ends = shown[::4] << shift
            bits = torch.where(ends >= 1 << 31, ends - (1 << 31), -1 - ends).to(torch.int32)
            ax.set_xticks(places, [f"{score:.3g}" for score in bits.view(torch.float32).tolist()])
            ax.set_xlabel(f"lower end of the digit (to the right, {len(keys) - sum(heights):,} lower scores)")
        else:
            ax.set_xticks([])
            ax.set_xlabel("next 11 bits of the scores in the bin, the greatest first, 32 digits to a bar")
        keys, scores, k = keys[inside], scores[inside], k - int(selected.sum())
    return figure


def token_costs(lengths: Sequence[int], flops: Mapping[str, Sequence[float]], marks: Mapping[str, float]) -> Axes:
    """FLOPs of one token against the keys before it, a line per name, both logarithmic; a dotted line at each mark."""
    ax = plt.figure(figsize=(7.5, 3.9)).subplots()
    for (name, values), colour in zip(flops.items(), (INK, ORANGE, BLUE, VERMILION), strict=False):
        ax.plot(lengths, [value / 1e9 for value in values], color=colour, label=name, linewidth=2)
    ax.set(xscale="log", yscale="log", xlabel="keys before the token, L", ylabel="GFLOP, one layer")
    for text, length in marks.items():
        ax.axvline(length, color=GREY, linestyle=":", linewidth=1)
        ax.annotate(
            text,
            (length, ax.get_ylim()[0]),
            (4, 4),
            textcoords="offset points",
            fontsize=8,
            va="bottom",
            color=GREY,
        )
    ticks = [length for length in lengths if length & (length - 1) == 0]
    ax.set_xticks(ticks, [f"{tick // 1024} K" for tick in ticks])
    ax.minorticks_off()
    ax.figure.legend(loc="outside upper center", ncols=len(flops), fontsize=9)
    return ax


def gathered_tile(chosen: Sequence[int] = (1, 2, 6, 11, 17), tokens: int = 20) -> Figure:
    """The rows of the cache that one query has chosen, the tile that they become, and its products with the heads."""
    figure, ax = plt.subplots(figsize=(7.5, 3.7))

    def block(x: float, y: float, width: float, height: float, colour: str, text: str = "") -> None:
        ax.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor=GROUND, linewidth=0.8, alpha=0.7))
        ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=10)

    def label(x: float, y: float, text: str, **look: Any) -> None:
        ax.text(x, y, text, ha="center", **{"va": "bottom", "fontsize": 9} | look)

    row, top = 0.3, 6.6
    for token in range(tokens):
        block(0, top - (token + 1) * row, 3.6, row, ORANGE if token in chosen else PALE)
    label(1.8, top + 0.1, "cache: a latent row\nof 576 for each token")
    left, bottom = 5.6, 3.0
    for place, token in enumerate(chosen):
        y = bottom + (len(chosen) - 1 - place) * row
        block(left, y, 3.2, row, ORANGE)
        block(left + 3.2, y, 0.4, row, YELLOW)
        ends = (left - 0.05, y + row / 2), (3.65, top - (token + 0.5) * row)
        ax.annotate("", *ends, arrowprops={"arrowstyle": "->", "color": GREY, "linewidth": 0.8})
    height = len(chosen) * row
    label(left + 1.8, bottom + height + 0.1, "tile: 64 gathered rows")
    ax.annotate("", (left, bottom - 0.15), (left + 3.2, bottom - 0.15), arrowprops={"arrowstyle": "<->", "color": GREY})
    label(left + 1.6, bottom - 0.25, "V: 512", va="top")
    ax.annotate("", (left, bottom - 0.75), (left + 3.6, bottom - 0.75), arrowprops={"arrowstyle": "<->", "color": GREY})
    label(left + 1.8, bottom - 0.85, "K: 576", va="top")
    block(11.0, 3.6, 3.6, 2.4, MATRICES["Q"], "Q")
    label(12.8, 6.1, "64 heads of one query, 576")
    block(15.4, 3.6, 1.5, 2.4, MATRICES["S"], "S, P")
    label(16.15, 6.1, "QKᵀ", fontweight="bold")
    block(11.0, 0.4, 3.2, 2.4, MATRICES["O"], "O")
    label(12.6, 0.3, "64 heads, 512", va="top")
    label(15.6, 1.5, "O += P V", fontweight="bold")
    ax.set(xlim=(-0.1, 17.2), ylim=(-0.2, 7.6))
    ax.axis("off")
    return figure


def kept_by_fp8(kept: Mapping[str, tuple[float, float]]) -> Figure:
    """% of the right keys that eight bits choose, a pair of bars for each case: without and with Hadamard transform."""
    figure, ax = plt.subplots(figsize=(7.5, 0.42 * len(kept) + 1.1))
    for number, (name, colour) in enumerate({"without": GREY, "with Hadamard transform": BLUE}.items()):
        places = [row + 0.38 * (number - 0.5) for row in range(len(kept))]
        bars = ax.barh(places, [pair[number] for pair in kept.values()], height=0.36, color=colour, label=name)
        ax.bar_label(bars, fmt="%.0f", fontsize=8, padding=2)
    ax.set_yticks(range(len(kept)), list(kept))
    ax.invert_yaxis()
    ax.set(xlabel="% of the right keys", xlim=(0, 108))
    figure.legend(loc="outside upper center", ncols=2, fontsize=9)
    return figure
