"""Pictures of chapter 07: operands in registers and shared memory, tiles in panels, the ring, and overlap in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from course_utils.plots.look import GREEN, GREY, GROUND, INK, MATRICES, ON_MARK, ORANGE, PALE, SKY, VERMILION


def _box(ax: Axes, x: float, y: float, width: float, height: float, text: str, colour: str) -> None:
    ax.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor=GROUND, linewidth=1.2))
    ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=9, color=ON_MARK)


def _arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    look = {"arrowstyle": "-|>", "mutation_scale": 9, "color": GREY, "linewidth": 1}
    ax.add_patch(FancyArrowPatch(start, end, shrinkA=2, shrinkB=2, **look))


def two_ways_of_a_factor(warps: int = 4) -> Figure:
    """How K reaches the tensor cores: with `mma.sync` through the registers of each warp, with `wgmma` once for all."""
    figure, axes = plt.subplots(1, 2, figsize=(7.5, 2.6))
    for ax, title in zip(axes, ("mma.sync", "wgmma"), strict=True):
        _box(ax, 0, 0, warps, 0.6, "K in shared memory", SKY)
        for warp in range(warps):
            through = title == "mma.sync"
            if through:
                _box(ax, warp + 0.08, 1.2, 0.84, 0.6, "registers", ORANGE)
                _arrow(ax, (warp + 0.5, 0.6), (warp + 0.5, 1.2))
                _arrow(ax, (warp + 0.5, 1.8), (warp + 0.5, 2.4))
                _box(ax, warp + 0.08, 2.4, 0.84, 0.6, f"warp {warp}", GREEN)
        if title == "wgmma":
            _arrow(ax, (warps / 2, 0.6), (warps / 2, 2.4))
            _box(ax, 0.08, 2.4, warps - 0.16, 0.6, "the tensor cores of four warps", GREEN)
        ax.set(xlim=(-0.05, warps + 0.05), ylim=(-0.05, 3.05), title=title)
        ax.axis("off")
    return figure


def tile_in_panels(rows: int = 8, chunks: int = 16) -> Axes:
    """A tile with rows of 16 chunks as it lies in shared memory: two panels of eight chunks. Each place shows its
    chunk; one row is marked."""
    ax = plt.figure(figsize=(7.5, 2.7)).subplots()
    half, marked = chunks // 2, 3
    for panel in range(2):
        left = panel * (half + 1.5)
        for row in range(rows):
            for place in range(half):
                colour = ORANGE if row == marked else (SKY, GREEN)[panel]
                ax.add_patch(Rectangle((left + place, row), 1, 1, facecolor=colour, edgecolor=GROUND, linewidth=0.8))
                chunk = panel * half + (place ^ row % 8)
                ax.text(left + place + 0.5, row + 0.5, chunk, ha="center", va="center", fontsize=8, color=ON_MARK)
        name = f"panel {panel}: chunks {panel * half} to {panel * half + half - 1} of all rows"
        ax.text(left + half / 2, -0.2, name, ha="center", va="bottom", fontsize=9)
    for row in range(rows):
        ax.text(-0.3, row + 0.5, f"row {row}", ha="right", va="center", fontsize=8)
    ax.set(xlim=(-2, 2 * half + 1.6), ylim=(rows + 0.1, -1.1))
    ax.axis("off")
    return ax


def ring_of_tiles(tiles: int = 7, buffers: int = 2) -> Axes:
    """Tiles in a ring: a line for each buffer, with its tiles in order of time and the parities of their phases; the
    mbarrier whose phase ends is named at the ends of a tile."""
    ax = plt.figure(figsize=(7.5, 1.9)).subplots()
    for tile in range(tiles):
        buffer, around = tile % buffers, tile // buffers
        _box(ax, tile, buffer, buffers, 0.84, f"tile {tile}\nparity {around % 2}", (SKY, ORANGE)[around % 2])
        for barrier, x in (("full", tile + 0.1), ("empty", tile + buffers - 0.1)):
            ax.text(x, buffer + 0.42, barrier, rotation=90, ha="center", va="center", fontsize=7.5, color=ON_MARK)
    words = "time (not to scale); full: the bytes have come; empty: all consumers are done"
    ax.set(xlim=(0, tiles + buffers - 1), ylim=(buffers, -0.1), xticks=[], xlabel=words)
    ax.set_yticks([buffer + 0.42 for buffer in range(buffers)], [f"buffer {buffer}" for buffer in range(buffers)])
    ax.tick_params(length=0)
    return ax


# The time that a consumer takes for each thing it does with a tile at d = 128, in units of 512 cycles: a product is
# 4096 FLOP a cycle, and its 64 · 128 exponentials are 16 a cycle. The maximum is shorter; its width is not to scale.
WIDTHS = {"Q Kᵀ": 1.0, "max": 0.75, "exp": 1.0, "P V": 1.0}
PRODUCTS = {"Q Kᵀ": MATRICES["Q"], "P V": MATRICES["O"]}


def softmax_overlap() -> Figure:
    """The time of a consumer: products and softmax one after the other, and with P V during the maximum of the next
    tile; below them the other consumer's products. Products and exponentials are to scale for d = 128."""
    figure, axes = plt.subplots(2, 1, figsize=(7.5, 3.9), sharex=True)

    def draw(ax: Axes, at: float, what: str, tile: int) -> None:
        is_product = what in PRODUCTS
        _box(ax, at, 0 if is_product else 1, WIDTHS[what], 0.84, f"{what} {tile}", PRODUCTS.get(what, GREEN))

    def draw_others(ax: Axes, at: float, *products: str) -> None:
        for n, what in enumerate(products):
            look = {"facecolor": "none", "edgecolor": PRODUCTS[what], "linewidth": 1.2}
            ax.add_patch(Rectangle((at + n + 0.03, 2.02), 0.94, 0.8, **look))
            ax.text(at + n + 0.5, 2.42, what, ha="center", va="center", fontsize=9)

    at = 0.0
    for tile in range(2):
        for what in WIDTHS:
            draw(axes[0], at, what, tile)
            if what in PRODUCTS:
                draw_others(axes[0], at, what)
            at += WIDTHS[what]
    at = 0.0
    for tile in range(3):
        draw(axes[1], at, "Q Kᵀ", tile)
        if tile:
            draw(axes[1], at + 1, "P V", tile - 1)
        draw(axes[1], at + 1, "max", tile)
        at += 2 if tile else 1 + WIDTHS["max"]
        draw(axes[1], at, "exp", tile)
        others = tuple(PRODUCTS) if tile else ("Q Kᵀ",)
        if tile < 2:
            draw_others(axes[1], at, *others)
        at += len(others)  # the tensor cores are the other consumer's as long
    for ax, title in zip(axes, ("step 3", "step 4"), strict=True):
        ax.set(xlim=(0, 9.9), ylim=(2.9, -0.1), title=title, xticks=[])
        ax.set_yticks([0.42, 1.42, 2.42], ["its products", "its softmax", "the other's products"])
        ax.tick_params(length=0)
    axes[1].set_xlabel("time of one consumer at d = 128; the maximum is not to scale")
    return figure


def ratios_around_one(
    names: Sequence[str], panels: Mapping[str, Mapping[str, Sequence[float | None]]], label: str
) -> Figure:
    """Ratios as marks on both sides of 1: a line for each name, a panel for each title, a kind of mark for each series.
    None: the figure does not exist; a line with None alone has a dash. label: of the lowest axis."""
    figure, axes = plt.subplots(1, len(panels), figsize=(7.5, 1.1 + 0.24 * len(names)), sharex=True, sharey=True)
    for ax, (title, series) in zip(axes, panels.items(), strict=True):
        ax.axvline(1, color=INK, linewidth=1)
        ax.hlines(range(len(names)), 0, 1, transform=ax.get_yaxis_transform(), color=PALE, linewidth=0.6, zorder=0)
        for (name, values), marker, colour in zip(series.items(), "oD", (SKY, VERMILION), strict=False):
            known = [(value, row) for row, value in enumerate(values) if value is not None]
            ax.plot(*zip(*known, strict=True), marker, color=colour, markersize=5, label=name)
        for row, values in enumerate(zip(*series.values(), strict=True)):
            if all(value is None for value in values):
                ax.text(
                    1, row, "–", ha="center", va="center", bbox={"facecolor": GROUND, "edgecolor": "none", "pad": 1}
                )
        ax.set_title(title, fontsize=9)
        ax.tick_params(axis="y", length=0)
        ax.tick_params(axis="x", labelsize=8)
    axes[0].set_yticks(range(len(names)), names, fontsize=9)
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    figure.supxlabel(label, fontsize=9)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure


def backward_on_chip() -> Axes:
    """Where a block of the backward pass keeps its matrices, and how data flow between them."""
    ax = plt.figure(figsize=(7.5, 3.0)).subplots()
    _box(ax, 0, 0.2, 1.6, 0.8, "Q, dO", SKY)
    ax.text(0.8, 1.05, "tile after tile", ha="center", va="top", fontsize=9)
    _box(ax, 0, 1.9, 1.6, 0.8, "K, V", SKY)
    ax.text(0.8, 2.75, "stay in shared memory", ha="center", va="top", fontsize=9)
    places = {"K Qᵀ → Pᵀ": (2.6, 0.2), "V dOᵀ → dSᵀ": (2.6, 1.9)}
    for name, (x, y) in places.items():
        _box(ax, x, y, 2.3, 0.8, name, ORANGE)
        _arrow(ax, (1.6, 0.6), (x, y + 0.4))
        _arrow(ax, (1.6, 2.3), (x, y + 0.4))
    _box(ax, 6.0, 0.0, 2.0, 0.7, "dV += Pᵀ dO", GREEN)
    _box(ax, 6.0, 1.0, 2.0, 0.7, "dK += dSᵀ Q", GREEN)
    _box(ax, 6.0, 2.2, 2.0, 0.7, "dQ += dS K", MATRICES["O"])
    _arrow(ax, (4.9, 0.5), (6.0, 0.35))
    _arrow(ax, (4.9, 2.2), (6.0, 1.35))
    _arrow(ax, (4.9, 2.4), (6.0, 2.55))
    ax.text(5.4, 2.6, "by shared\nmemory", ha="center", va="top", fontsize=9)
    ax.text(3.75, 3.0, "in registers", ha="center", va="center", fontsize=9, color=INK)
    ax.text(8.1, 0.85, "stay in\nregisters", ha="left", va="center", fontsize=9)
    ax.text(8.1, 2.55, "into global\nmemory", ha="left", va="center", fontsize=9)
    ax.set(xlim=(-0.2, 9.4), ylim=(3.4, -0.2))
    ax.axis("off")
    return ax
