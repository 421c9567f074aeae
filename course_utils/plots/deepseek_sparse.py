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

from course_utils.plots.look import (
    BLUE,
    GREEN,
    GREY,
    GROUND,
    INK,
    MATRICES,
    ON_MARK,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    VERMILION,
    YELLOW,
)


def dsa_layer() -> Figure:
    """DeepSeek Sparse Attention in four steps, with the cost per pair or per query above and the result below."""
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
            f"{int(inside.sum()):,} in the bin, {k - int(selected.sum()):,} of them wanted",
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


def chosen_by_fp8(shares: Mapping[str, tuple[float, float]]) -> Figure:
    """Percent of the right keys that 8 bits choose, a pair of bars for each case: without and with the Hadamard
    transform."""
    figure, ax = plt.subplots(figsize=(7.5, 0.42 * len(shares) + 1.1))
    for number, (name, colour) in enumerate({"without": GREY, "with Hadamard transform": BLUE}.items()):
        places = [row + 0.38 * (number - 0.5) for row in range(len(shares))]
        bars = ax.barh(places, [pair[number] for pair in shares.values()], height=0.36, color=colour, label=name)
        ax.bar_label(bars, fmt="%.0f", fontsize=8, padding=2)
    ax.set_yticks(range(len(shares)), list(shares))
    ax.invert_yaxis()
    ax.set(xlabel="% of the right keys", xlim=(0, 108))
    figure.legend(loc="outside upper center", ncols=2, fontsize=9)
    return figure


def latent_attention() -> Figure:
    """Two ways to attend to latents: unpack each head's keys and values, or transform the query to the latent space."""
    figure, axes = plt.subplots(2, 1, figsize=(7.5, 4.2))
    ways = {
        "unpacked: two products for each key": (
            ("cache\n576 per token", GREEN, 2.0),
            ("W_UK, W_UV\nfor each key", ORANGE, 2.0),
            ("128 keys of 192,\n128 values of 128", GREY, 2.7),
            ("attention\nof each head", BLUE, 2.0),
            ("o", PURPLE, 0.8),
        ),
        "absorbed: two products for each query, the keys stay as they are": (
            ("q", PURPLE, 0.8),
            ("W_UKᵀ\nonce per query", ORANGE, 2.0),
            ("attention of 128 heads\nto the cache itself, 576", GREEN, 3.3),
            ("W_UV\nonce per query", ORANGE, 2.0),
            ("o", PURPLE, 0.8),
        ),
    }
    for ax, (title, boxes) in zip(axes, ways.items(), strict=True):
        x = 0.0
        for number, (text, colour, width) in enumerate(boxes):
            ax.add_patch(Rectangle((x, 0), width, 1.3, facecolor=colour, edgecolor=GREY, alpha=0.35))
            ax.text(x + width / 2, 0.65, text, ha="center", va="center", fontsize=9)
            if number + 1 < len(boxes):
                ax.annotate(
                    "", (x + width + 0.55, 0.65), (x + width, 0.65), arrowprops={"arrowstyle": "->", "color": GREY}
                )
            x += width + 0.55
        ax.set_title(title, fontsize=10)
        ax.set(xlim=(-0.1, 11.9), ylim=(-0.1, 1.4))
        ax.axis("off")
    return figure


def index_scores(words: Sequence[str], dots: Tensor, weights: Tensor, scores: Tensor) -> Axes:
    """The products [heads, keys] of an indexer with the keys `words`, a row for each head, and their scores below.

    Blue: a positive product. Crossed out: a negative product, which ReLU sets to 0. Orange: the weighted sum.
    """
    ax = plt.figure(figsize=(7.5, 2.9)).subplots()
    heads = len(dots)

    def cell(column: int, row: float, value: float, colour: str) -> None:
        shade = 0.9 if value > 0 else 0.25
        ax.add_patch(
            Rectangle((column + 0.04, row + 0.06), 0.92, 0.88, facecolor=colour, alpha=shade, edgecolor="none")
        )
        ax.text(
            column + 0.5,
            row + 0.5,
            f"{value:g}".replace("-", "−"),
            ha="center",
            va="center",
            fontsize=11,
            color=ON_MARK if value > 0 else INK,
        )

    for j in range(heads):
        for column, value in enumerate(dots[j].tolist()):
            cell(column, j, value, SKY if value > 0 else PALE)
            if value < 0:
                ax.plot((column + 0.2, column + 0.8), (j + 0.8, j + 0.2), color=VERMILION, linewidth=1.5)
        ax.text(
            -0.2, j + 0.5, f"{weights[j]:g} · ReLU(q{j} · k)".replace("-", "−"), ha="right", va="center", fontsize=10
        )
    for column, value in enumerate(scores.tolist()):
        cell(column, heads + 0.35, value, ORANGE if value > 0 else PALE)
        ax.text(column + 0.5, -0.1, words[column], ha="center", va="bottom", fontsize=10)
    ax.text(-0.2, heads + 0.85, "I", ha="right", va="center", fontsize=11, fontweight="bold")
    ax.set(xlim=(-3.3, len(words)), ylim=(heads + 1.4, -0.6))
    ax.axis("off")
    return ax


def scores_by_distance(scores: Mapping[str, Tensor]) -> Figure:
    """Scores [places, places] of one query and one key at all pairs of positions, against their distance; a panel for
    each way to rotate them."""
    figure, axes = plt.subplots(1, len(scores), figsize=(7.5, 2.7), sharey=True)
    for ax, (name, found), colour in zip(axes, scores.items(), (BLUE, GREEN, VERMILION), strict=False):
        query, key = torch.tril_indices(*found.shape)
        ax.plot(query - key, found[query, key], ".", color=colour, markersize=2.5)
        ax.set_title(name, fontsize=10)
        ax.set_xlabel("distance t − s")
    axes[0].set_ylabel("q · k")
    return figure


def sizes(vectors: Mapping[str, Tensor]) -> Figure:
    """The absolute values of vectors, a panel for each; the title says the largest."""
    figure, axes = plt.subplots(1, len(vectors), figsize=(7.5, 2.4), sharey=True)
    for ax, (title, vector) in zip(axes, vectors.items(), strict=True):
        ax.bar(range(len(vector)), vector.abs(), color=BLUE, width=1)
        ax.set_title(f"{title}: max |x| = {vector.abs().max():.1f}", fontsize=9)
        ax.set(xlabel="index", xlim=(-1, len(vector)))
    axes[0].set_ylabel("|x|")
    return figure


def numbers_on_a_line(values: Sequence[float]) -> Axes:
    """Numbers as marks on a line, in a colour of their own for each interval between powers of two."""
    ax = plt.figure(figsize=(7.5, 1.3)).subplots()
    colours = (GREY, GREEN, BLUE, ORANGE, PURPLE)
    edges = (0, 1, 2, 4, 8)
    for low, high, colour in zip(edges, (*edges[1:], float("inf")), colours, strict=True):
        ax.vlines([value for value in values if low <= value < high], 0, 1, color=colour, linewidth=1.4)
    ax.set(ylim=(0, 1.1), xlim=(-0.05, max(values) + 0.05), yticks=[])
    ax.set_xticks(range(int(max(values)) + 1))
    ax.spines["left"].set_visible(False)
    return ax


def producer_and_consumers(tiles: int = 3) -> Axes:
    """A block of the Hopper kernel over time, not to scale: one group of warps gathers, two multiply.

    As in sparse_mla_hopper.cu: the softmax of a tile waits for its S, and P V for the softmax; S of the next tile is
    queued behind P V. There are two buffers, so the gather of tile n + 2 waits for P V of tile n.
    """
    ax = plt.figure(figsize=(7.5, 2.5)).subplots()

    def box(begin: float, row: int, width: float, colour: str, text: str) -> float:
        ax.add_patch(Rectangle((begin, row), width - 0.06, 0.72, facecolor=colour, edgecolor=GROUND, alpha=0.8))
        ax.text(begin + width / 2, row + 0.36, text, ha="center", va="center", fontsize=8, color=ON_MARK)
        return begin + width

    gathered, now = 0.0, 0.0  # when the producer and the consumers are done with what they do
    freed = [0.0, 0.0]  # when a buffer is free for this tile
    for tile in range(tiles):
        gathered = box(max(gathered, freed[tile]), 2, 2, SKY, f"gather tile {tile}")
        now = box(max(gathered, now), 1, 1, ORANGE, f"S {tile}")
        now = box(now, 0, 1, YELLOW, "softmax")
        now = box(now, 1, 1, GREEN, f"P V {tile}")
        freed.append(now)
    for row, name in enumerate(("two consumers,\ntheir own threads", "tensor cores,\nbeside them", "producer")):
        ax.text(-0.2, row + 0.36, name, ha="right", va="center", fontsize=9)
    ax.annotate("", (now + 0.2, -0.2), (0, -0.2), arrowprops={"arrowstyle": "->", "color": GREY})
    ax.text(now + 0.2, -0.3, "time", ha="right", va="top", fontsize=9, color=GREY)
    ax.set(xlim=(-2.6, now + 0.3), ylim=(-0.7, 2.9))
    ax.axis("off")
    return ax


def facts_of_a_question(names: Tensor, values: Tensor, asked: int, row: int = 28) -> Axes:
    """The facts of a sequence as cells with their values, in reading order; orange: the facts of the name that is
    asked."""
    ax = plt.figure(figsize=(7.5, 2.5)).subplots()
    for place, (name, value) in enumerate(zip(names.tolist(), values.tolist(), strict=True)):
        y, x = divmod(place, row)
        found = name == asked
        ax.add_patch(Rectangle((x + 0.06, y + 0.06), 0.88, 0.88, facecolor=ORANGE if found else PALE, edgecolor="none"))
        ax.text(x + 0.5, y + 0.5, str(value), ha="center", va="center", fontsize=8, color=ON_MARK if found else INK)
    rows = -(-len(names) // row)
    ax.set(xlim=(0, row), ylim=(rows, 0), aspect="equal")
    ax.axis("off")
    return ax


def mass_kept(ks: Sequence[int], curves: Mapping[str, Sequence[float]]) -> Axes:
    """Percent of the attention mass that k keys hold, a curve for each way of choosing them."""
    ax = plt.figure(figsize=(7.5, 3.6)).subplots()
    looks = {
        "oracle": (INK, "-"),
        "oracle, model untrained": (INK, "-."),
        "the last k": (GREY, "--"),
        "random": (GREY, ":"),
        "indexer, untrained": (ORANGE, "-o"),
    }
    for name, values in curves.items():
        colour, style = looks.get(name, (BLUE, "-o"))
        ax.plot(ks, values, style, color=colour, label=name, markersize=4)
    ax.set(xscale="log", xlabel="keys kept, k of 256", ylabel="% of the attention's mass", ylim=(0, 103))
    ax.set_xticks(ks, ks)
    ax.minorticks_off()
    ax.figure.legend(loc="outside upper center", ncols=3, fontsize=9)
    return ax


def warm_up(losses: Sequence[float], mass: Sequence[float], steps: Sequence[int], best: float) -> Figure:
    """The KL divergence and the percent of the mass on 8 keys over the steps of a warm-up. best: the oracle's
    percent."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 2.8))
    left.plot(steps, losses)
    left.set(yscale="log", xlabel="step of the warm-up", ylabel="KL")
    right.plot(steps, mass)
    right.axhline(best, color=INK, linewidth=1)
    right.text(steps[-1], best + 2, "oracle", ha="right", va="bottom", fontsize=9)
    right.set(xlabel="step of the warm-up", ylabel="% of the mass on 8 keys", ylim=(0, 100))
    return figure


def shared_list(rows: int = 8, keys: int = 24, chosen: int = 5) -> Figure:
    """Two tiles of S whose rows attend to `chosen` of the keys: rows that are queries have a list each; rows that are
    heads of one query share one."""
    figure, axes = plt.subplots(1, 2, figsize=(7.5, 2.6))
    generator = torch.Generator().manual_seed(2)
    own = [set(torch.randperm(keys, generator=generator)[:chosen].tolist()) for _ in range(rows)]
    panels = {"rows are queries: each has its own list": own, "rows are heads of one query: one list": [own[0]] * rows}
    for ax, (title, lists) in zip(axes, panels.items(), strict=True):
        for row, chosen_keys in enumerate(lists):
            for key in range(keys):
                colour = ORANGE if key in chosen_keys else PALE
                ax.add_patch(Rectangle((key + 0.05, row + 0.08), 0.9, 0.84, facecolor=colour, edgecolor="none"))
        needed = len(set().union(*lists))
        ax.set_title(title, fontsize=9)
        ax.text(
            keys / 2, rows + 0.3, f"keys that the tile needs: {needed} of {keys}", ha="center", va="top", fontsize=9
        )
        ax.set(xlim=(0, keys), ylim=(rows + 1.3, 0))
        ax.axis("off")
    return figure


def kernel_colours(names: Sequence[str]) -> list[str]:
    """Colours of the kernels in chapter 05's recording: ours warm, PyTorch's grey and blue."""
    of = {"torch": iter((GREY, SKY, INK)), "TileLang": iter((GREEN, BLUE)), "ours": iter((VERMILION, ORANGE, YELLOW))}
    return [next(of[next((whose for whose in of if name.startswith(whose)), "ours")]) for name in names]
