"""Pictures of chapter 02."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import Tensor

from course_utils.costs import (
    Step,
    arithmetic_intensity,
    ceil_div,
    fa1_ratio,
    fa2_traffic,
    least_bytes,
    naive_traffic,
    ridge_point,
    score_matrix_bytes,
    tile_shared_bytes,
    total_bytes,
    visited_tiles,
)
from course_utils.measured import select
from course_utils.plots.look import (
    BLUE,
    GREEN,
    GREY,
    GROUND,
    INK,
    MATRICES,
    ON_MARK,
    ORANGE,
    OURS,
    RED,
    SKY,
    VERMILION,
    YELLOW,
)

PEERS_FP32 = {"naive torch": "plain PyTorch", "SDPA memory-efficient": "PyTorch's memory-efficient kernel"}


def traffic_bars(
    steps: Mapping[str, Sequence[Step]],
    highlight: Callable[[str], bool],
    *,
    legend: tuple[str, str] | None = None,
) -> Axes:
    """One horizontal bar per algorithm, cut into its steps (`costs.Step`); megabytes on the x axis.

    Steps whose name satisfies `highlight` are drawn in red, the others in blue; `legend` names the two.
    """
    ax = plt.figure(figsize=(7.5, 1.0 + 0.55 * len(steps))).subplots()
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


def tiled_attention(query_tiles: int, key_tiles: int, i: int, j: int) -> Axes:
    """The position of step (i, j) of the tiled algorithm: the strips of Q, K, V and O around the matrix S."""
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
    figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.6))
    orders = {
        "FA1: outer loop over K, V": lambda i, j: j * query_tiles + i,
        "FA2: outer loop over Q": lambda i, j: i * key_tiles + j,
    }
    for ax, (title, order), by_row in zip(axes, orders.items(), (False, True), strict=True):
        for i in range(query_tiles):
            for j in range(key_tiles):
                shade = (SKY, GROUND)[(i if by_row else j) % 2]
                ax.add_patch(Rectangle((j, i), 1, 1, facecolor=shade, edgecolor=GREY, alpha=0.6))
                ink = ON_MARK if shade == SKY else INK
                ax.text(j + 0.5, i + 0.5, str(order(i, j) + 1), ha="center", va="center", color=ink)
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


def rows_of_a_query_tile(limits: Mapping[str, int], length: int = 4096, head_dim: int = 64) -> Axes:
    """`tile_choice` for FA2's order and one head in fp32, with key tiles of 32 and 128; limits: bytes of shared memory
    by label, where tiles of Q, K, V and S with B_c = 64 stop to fit."""
    shape, rows = (1, 1, length, length, head_dim), [16, 32, 64, 128, 256, 512]
    standard = total_bytes(naive_traffic(*shape, 4))
    ratios = {
        f"FA2 order, $B_c$ = {cols}": [
            standard / total_bytes(fa2_traffic(*shape, block_rows=one, block_cols=cols, element_bytes=4))
            for one in rows
        ]
        for cols in (32, 128)
    }
    first, second = (tile_shared_bytes(n, 64, head_dim, 4, score_tile=True) for n in (1, 2))
    return tile_choice(rows, ratios, {name: (limit - first) / (second - first) + 1 for name, limit in limits.items()})


def standard_and_least(length: int = 4096, head_dim: int = 64) -> Axes:
    """Bytes that standard attention moves for one head in fp32, with S and P apart, and the bytes that must move."""
    standard = total_bytes(naive_traffic(1, 1, length, length, head_dim, 4))
    square = 4 * score_matrix_bytes(1, 1, length, length, 4)  # S and P, each written and read once
    parts = {
        "standard": [Step("S and P", square, 0), Step("Q, K, V, O", standard - square, 0)],
        "compulsory": [Step("Q, K, V, O", least_bytes(1, 1, length, length, head_dim, 4), 0)],
    }
    return traffic_bars(parts, lambda name: name == "S and P", legend=("S and P", "Q, K, V and O"))


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


def relative_speeds(
    rows: Sequence[Mapping[str, Any]], ours: str, others: Mapping[str, str], *, which: str = "forward"
) -> Axes:
    """How many times as fast as others `ours` is, a group of bars for each length; rows as `bench` returns them.

    others: their names in the rows, and their names in the legend; which: the pass.
    """
    ax = plt.figure(figsize=(7.5, 3.6)).subplots()
    times = {(row["name"], row["length"]): row["median_ms"] for row in select(rows, **{"pass": which})}
    lengths = sorted({length for name, length in times if name == ours})
    width = 0.8 / len(others)
    for n, (name, called) in enumerate(others.items()):
        places = [at + (n - (len(others) - 1) / 2) * width for at in range(len(lengths))]
        ratios = [times[name, length] / times[ours, length] for length in lengths]
        bars = ax.bar(places, ratios, width=0.92 * width, label=called)
        ax.bar_label(bars, [f"{ratio:.2f}" for ratio in ratios], fontsize=9)
    ax.axhline(1, color=GREY, linewidth=1)
    ax.set_xticks(range(len(lengths)), [f"L = {length}" for length in lengths])
    ax.set(ylabel="times as fast as", ylim=(0, None))
    ax.margins(y=0.15)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    return ax


def plain_block(block_rows: int = 64, block_cols: int = 32, head_dim: int = 64, thread: int = 20) -> Axes:
    """The shared memory of one block of forward_plain.cu, to scale, and the parts of it that one thread works on."""
    ax = plt.figure(figsize=(7.5, 2.8)).subplots()
    gap = 16

    def matrix(x: float, y: float, width: float, height: float, colour: str, name: str, row: bool) -> None:
        ax.add_patch(Rectangle((x, y), width, height, facecolor=colour, alpha=0.35, edgecolor="black", linewidth=0.8))
        if row:
            ax.add_patch(Rectangle((x, y + thread), width, 1.6, facecolor=VERMILION, edgecolor="none"))
        ax.text(x + width / 2, y - 3, name, ha="center", va="bottom", fontsize=9)

    S, O_i = head_dim + gap, head_dim + block_cols + 2 * gap
    matrix(0, 0, head_dim, block_rows, BLUE, "Q tile", True)
    matrix(S, 0, block_cols, block_rows, ORANGE, "S tile", True)
    matrix(O_i, 0, head_dim, block_rows, VERMILION, "O_i, one row in each thread", True)
    matrix(O_i + head_dim + gap, 0, head_dim, block_cols, GREEN, "K tile", False)
    matrix(O_i + head_dim + gap, block_cols + gap, head_dim, block_cols, GREEN, "V tile", False)
    for x, width, words in ((0, S + block_cols, "shared memory"), (O_i, head_dim, "registers")):
        ax.plot([x, x + width], [block_rows + 4] * 2, color=GREY, linewidth=1)
        ax.text(x + width / 2, block_rows + 6, words, ha="center", va="top", fontsize=9)
    x = O_i + head_dim + gap
    ax.text(
        x + head_dim / 2,
        2 * block_cols + gap + 3,
        "shared memory,\nread by all threads",
        ha="center",
        va="top",
        fontsize=9,
    )
    ax.text(-4, thread, f"thread {thread}", ha="right", va="center", color=VERMILION, fontsize=9)
    ax.set(xlim=(-46, x + head_dim + 4), ylim=(2 * block_cols + gap + 22, -14), aspect="equal")
    ax.axis("off")
    return ax


def causal_tiles(lengths: Sequence[int], block: int = 64) -> Figure:
    """Which tiles of S a causal kernel computes, a map for each length: without a mask, with one, or not at all."""
    figure, axes = plt.subplots(1, len(lengths), figsize=(7.5, 3.0))
    colours = ListedColormap([GROUND, SKY, ORANGE])
    for ax, length in zip(axes, lengths, strict=True):
        side = ceil_div(length, block)
        visited = list(visited_tiles(length, length, block, block, is_causal=True))
        tiles = torch.zeros(side, side)
        for i, j in visited:
            tiles[i, j] = 2 if (j + 1) * block - 1 > i * block else 1
        ax.imshow(tiles.numpy(), cmap=colours, vmin=0, vmax=2, extent=(0, side, side, 0))
        ax.set(xticks=[], yticks=[], title=f"L = {length:,}")
        share, masked = len(visited) / side**2, int((tiles == 2).sum())
        ax.set_xlabel(f"{len(visited):,} of {side**2:,} computed\n({share:.0%}), {masked} masked")
        ax.spines[["right", "top"]].set_visible(True)
    names = {"computed": SKY, "computed, with the mask": ORANGE, "skipped": GROUND}
    handles = [Patch(facecolor=colour, edgecolor=GREY, label=name) for name, colour in names.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=3)
    return figure


def fa1_savings(length: int = 4096, head_dim: int = 64, most: int = 200) -> Axes:
    """How many times less traffic than standard attention FA1's algorithm needs, against the memory on the chip up to
    `most` KiB, with the paper's tile sizes and no cache."""
    ax = plt.figure(figsize=(7.5, 3.2)).subplots()
    for element_bytes, name, marker in ((2, "fp16", "o"), (4, "fp32", "s")):
        sizes = range(most // 8, most + 1, most // 8)
        ratios = [fa1_ratio(kibibytes, element_bytes, length, head_dim) for kibibytes in sizes]
        (line,) = ax.plot(sizes, ratios, marker=marker, markersize=4, label=name)
        for kibibytes in (most // 4, most // 2, most):
            ratio = fa1_ratio(kibibytes, element_bytes, length, head_dim)
            ax.annotate(
                f"{ratio:.1f}",
                (kibibytes, ratio),
                (0, 6),
                textcoords="offset points",
                ha="center",
                color=line.get_color(),
            )
    ax.axhline(1, color=GREY, linewidth=1)
    ax.set(xlabel="memory on the chip, KiB", ylabel="times less traffic\nthan standard attention", ylim=(0, None))
    ax.margins(y=0.15)
    ax.legend()
    return ax


def requested_bytes(rows: Sequence[Mapping[str, Any]]) -> Axes:
    """Bytes that both loop orders request, counted (bars: reads, with writes above them) and by formula (black ticks).
    rows: of `chapters.flash_attention_minimal.loop_orders.requested`, in pairs of FA1 and FA2."""
    ax = plt.figure(figsize=(7.5, 3.8)).subplots()
    looks = {"FA1": (VERMILION, -0.2), "FA2": (BLUE, 0.2)}
    for n, row in enumerate(rows):
        colour, aside = looks[row["order"]]
        at, read, written = n // 2 + aside, row["read"] / 1e6, row["written"] / 1e6
        ax.bar(at, read, width=0.36, color=colour, label=f"{row['order']}, read" if n < 2 else None)
        ax.bar(
            at,
            written,
            bottom=read,
            width=0.36,
            color=colour,
            alpha=0.45,
            label=f"{row['order']}, written" if n < 2 else None,
        )
        formula = (row["read, by formula"] + row["written, by formula"]) / 1e6
        ax.plot(
            [at - 0.18, at + 0.18],
            [formula] * 2,
            color="black",
            linewidth=2,
            label="both, by formula" if n == 1 else None,
        )
    places = [
        f"{row['B_r']} × {row['B_c']}\nL = {row['length']}\n{'causal' if row['is_causal'] else 'full'}"
        for row in rows[::2]
    ]
    ax.set_xticks(range(len(places)), places, fontsize=9)
    ax.set(ylabel="MB requested", ylim=(0, None))
    ax.margins(y=0.1)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, fontsize=9)
    return ax


def blocks_at_work(blocks: Mapping[str, int], multiprocessors: int) -> Figure:
    """Which of a chip's multiprocessors have a block, with each of these numbers of blocks."""
    figure, axes = plt.subplots(1, len(blocks), figsize=(7.5, 2.3))
    across = 22
    for ax, (name, count), colour in zip(axes, blocks.items(), (VERMILION, BLUE), strict=True):
        for n in range(multiprocessors):
            look = {"facecolor": colour, "alpha": 0.7} if n < count else {"facecolor": "none"}
            ax.add_patch(Rectangle((n % across, n // across), 0.85, 0.85, edgecolor=GREY, linewidth=0.5, **look))
        busy = min(count, multiprocessors)
        ax.set(xlim=(-0.2, across), ylim=(ceil_div(multiprocessors, across), -0.2), aspect="equal")
        ax.set_title(f"{name}: {count:,} blocks, {busy / multiprocessors:.0%} at work", fontsize=10)
        ax.axis("off")
    return figure


def reaching_hbm(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Megabytes that kernels request, their footprint, and the HBM traffic; rows of
    `chapters.flash_attention_minimal.loop_orders.reaching_hbm`."""
    figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.6), sharey=True)
    counts = {"requested": VERMILION, "footprint": GREY, "HBM": BLUE}
    for ax, way in zip(axes, ("read", "written"), strict=True):
        for n, (count, colour) in enumerate(counts.items()):
            sizes = [row[f"{way}: {count}"] for row in rows]
            places = [at + 0.27 * (n - 1) for at in range(len(rows))]
            ax.barh(places, sizes, height=0.25, color=colour, label=count)
            for at, size in zip(places, sizes, strict=True):
                ax.text(max(size, 1), at, f" {size:,.0f}", va="center", fontsize=8)
        ax.set(xscale="log", xlim=(1, 60_000), title=way, xlabel="MB")
    axes[0].set_yticks(range(len(rows)), [row["kernel"].replace(", ", ",\n") for row in rows])
    axes[0].invert_yaxis()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def register_piece(rows: int, columns: int) -> Axes:
    """A thread's piece of rows × columns scores, and the numbers that it reads in one step of d."""
    ax = plt.figure(figsize=(7.5, 3.4)).subplots()
    for r in range(rows):
        ax.add_patch(Rectangle((-1.6, r), 1, 1, facecolor=BLUE, alpha=0.5, edgecolor="black", linewidth=0.6))
        for c in range(columns):
            ax.add_patch(Rectangle((c, r), 1, 1, facecolor=ORANGE, alpha=0.5, edgecolor=GREY, linewidth=0.6))
    for c in range(columns):
        ax.add_patch(Rectangle((c, -1.6), 1, 1, facecolor=GREEN, alpha=0.5, edgecolor="black", linewidth=0.6))
    ax.text(-2, rows / 2, f"reads {rows} numbers of Q", ha="right", va="center")
    ax.text(columns / 2, -1.9, f"reads {columns} numbers of K", ha="center", va="bottom")
    ax.text(columns + 0.4, rows / 2, f"does {rows * columns} multiply-adds", ha="left", va="center")
    ax.set(xlim=(-8, columns + 7), ylim=(rows + 0.2, -3), aspect="equal")
    ax.axis("off")
    return ax


def fed_by_shared_memory(shapes: Sequence[tuple[int, int]]) -> Axes:
    """The share of the multiply-add peak that shared memory can feed with pieces of R × C scores for each thread, if
    each number is a read of its own."""
    ax = plt.figure(figsize=(7.5, 3.2)).subplots()
    feeds = [100 * min(1, arithmetic_intensity(r * c, r + c) / ridge_point(4, 1)) for r, c in shapes]
    bars = ax.bar([f"{r} × {c}" for r, c in shapes], feeds, color=[GREY, *[BLUE] * (len(shapes) - 1)])
    ax.bar_label(bars, [f"{one:.1f} %" for one in feeds], fontsize=9)
    ax.set(xlabel="scores of a thread, R × C", ylabel="% of the multiply-add peak", ylim=(0, 115))
    return ax


def room_on_a_multiprocessor(rows: Sequence[Mapping[str, Any]]) -> Axes:
    """How full the blocks of forward.cu make a multiprocessor; rows of `bench.flash_attention_minimal`'s
    forward_resources."""
    ax = plt.figure(figsize=(7.5, 3.3)).subplots()
    parts = ("registers, %", "shared memory, %", "warps, %")
    for n, (part, colour) in enumerate(zip(parts, (BLUE, GREEN, ORANGE), strict=True)):
        places = [at + 0.27 * (n - 1) for at in range(len(rows))]
        bars = ax.barh(places, [row[part] for row in rows], height=0.25, color=colour, label=part.removesuffix(", %"))
        ax.bar_label(bars, fmt=" %.0f %%", fontsize=9)
    ax.set_yticks(range(len(rows)), [f"d = {row['d']}" for row in rows])
    ax.invert_yaxis()
    ax.set(xlim=(0, 115), xlabel="% of what a multiprocessor has")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3)
    return ax


def errors(reports: Sequence[Any]) -> Axes:
    """The error of each comparison (`checks.ErrorReport`) as a share of its limit, a line for each kind of output;
    passing errors lie left of 1."""
    names = list(dict.fromkeys(report.name for report in reports))
    ax = plt.figure(figsize=(7.5, 1.3 + 0.45 * len(names))).subplots()
    for n, name in enumerate(names):
        shares = [max(report.max_error / report.allowed, 1e-3) for report in reports if report.name == name]
        spread = [n + 0.3 * (k / max(len(shares) - 1, 1) - 0.5) for k in range(len(shares))]
        ax.plot(shares, spread, "o", markersize=4, alpha=0.6)
    ax.axvline(1, color=VERMILION, linewidth=1.5)
    ax.text(1.08, -0.45, "wrong", color=VERMILION, va="center", fontsize=9)
    ax.set_yticks(range(len(names)), names)
    ax.set(
        xscale="log",
        xlim=(8e-4, 3),
        ylim=(len(names) - 0.4, -0.7),
        xlabel="error ÷ largest allowed error, one dot a case",
    )
    return ax


def speed_and_bounds(rows: Sequence[Mapping[str, Any]]) -> Axes:
    """TFLOP/s of kernels beside their bounds by wavefronts and by multiply-adds; rows of
    `bench.flash_attention_minimal.bounds`."""
    ax = plt.figure(figsize=(7.5, 3.0)).subplots()
    columns = {"reached": BLUE, "wavefronts allow": GREEN, "multiply-adds sustained": GREY}
    for n, (column, colour) in enumerate(columns.items()):
        places = [at + 0.27 * (n - 1) for at in range(len(rows))]
        bars = ax.barh(places, [row[column] for row in rows], height=0.25, color=colour, label=column)
        ax.bar_label(bars, fmt=" %.1f", fontsize=9)
    ax.set_yticks(range(len(rows)), [row["kernel"] for row in rows])
    ax.invert_yaxis()
    ax.set(xlabel="TFLOP/s")
    ax.margins(x=0.1)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3)
    return ax


def missing_barrier() -> Axes:
    """Two warps of forward_plain.cu in time, without the barrier before the next tiles are loaded."""
    ax = plt.figure(figsize=(7.5, 2.2)).subplots()
    read, load = "reads K and V of tile j", "loads tile j + 1 over them"
    for y, parts in enumerate((((0, 3, read, BLUE), (3, 2.4, load, VERMILION)), ((0.6, 4.8, read, BLUE),))):
        for start, length, words, colour in parts:
            ax.add_patch(Rectangle((start, y + 0.15), length, 0.7, facecolor=colour, alpha=0.45, edgecolor="black"))
            ax.text(start + length / 2, y + 0.5, words, ha="center", va="center", fontsize=9)
    ax.axvspan(3, 5.4, color=YELLOW, alpha=0.25, zorder=0)
    ax.text(4.2, 2.1, "both at once", ha="center", va="top", fontsize=9)
    ax.set(xlim=(0, 7), ylim=(2.4, -0.1), xticks=[], xlabel="time")
    ax.set_yticks([0.5, 1.5], ["fast warp", "slow warp"])
    ax.tick_params(length=0)
    return ax


def what_shows_it(rows: Sequence[Mapping[str, Any]]) -> Axes:
    """A grid of verdicts on kernels, vermilion where one shows a mistake: 0, "-" and "silent" show nothing. The first
    column of the rows names the kernel."""
    first, *others = rows[0]
    ax = plt.figure(figsize=(7.5, 0.8 + 0.4 * len(rows))).subplots()
    for y, row in enumerate(rows):
        for x, column in enumerate(others):
            shows = row[column] not in (0, "-", "silent")
            look = {"facecolor": VERMILION, "alpha": 0.3} if shows else {"facecolor": "none"}
            ax.add_patch(Rectangle((x, y), 1, 1, edgecolor=GREY, linewidth=0.6, **look))
            ax.text(x + 0.5, y + 0.5, str(row[column]).replace("-", "right"), ha="center", va="center", fontsize=9)
    ax.set(xlim=(0, len(others)), ylim=(len(rows), 0))
    ax.set_xticks([x + 0.5 for x in range(len(others))], others, fontsize=9)
    ax.set_yticks([y + 0.5 for y in range(len(rows))], [row[first] for row in rows], fontsize=9)
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.spines[["left", "bottom"]].set_visible(False)
    return ax
