"""Pictures of chapter 07: who reads a product's factors, tiles in panels, the ring, and what runs beside what."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from course_utils.plots.look import GREEN, GREY, GROUND, INK, MATRICES, ON_MARK, ORANGE, PALE, SKY


def _box(ax: Axes, x: float, y: float, width: float, height: float, text: str, colour: str) -> None:
    ax.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor=GROUND, linewidth=1.2))
    ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=9, color=ON_MARK)


def _arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    look = {"arrowstyle": "-|>", "mutation_scale": 9, "color": GREY, "linewidth": 1}
    ax.add_patch(FancyArrowPatch(start, end, shrinkA=2, shrinkB=2, **look))


def two_ways_of_a_factor(warps: int = 4) -> Figure:
    """How K comes to the tensor cores: by `mma.sync` through the registers of each warp, by `wgmma` once for all."""
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
    """A tile with rows of 16 chunks as it lies in shared memory: two panels of eight chunks. In each place stands the
    chunk that it holds; one row is marked."""
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
    """Tiles in a ring: a line for each buffer, with its tiles in the order of time and the parities of their phases."""
    ax = plt.figure(figsize=(7.5, 1.8)).subplots()
    for tile in range(tiles):
        buffer, around = tile % buffers, tile // buffers
        _box(ax, tile, buffer, buffers, 0.84, f"tile {tile}\nparity {around % 2}", (SKY, ORANGE)[around % 2])
    ax.set(xlim=(0, tiles + buffers - 1), ylim=(buffers, -0.1), xticks=[], xlabel="time (not to scale)")
    ax.set_yticks([buffer + 0.42 for buffer in range(buffers)], [f"buffer {buffer}" for buffer in range(buffers)])
    ax.tick_params(length=0)
    return ax


STEP_3 = (("Q Kᵀ 0", 1.0, "Q"), ("max 0", 0.5, ""), ("exp 0", 1.0, ""), ("P V 0", 1.0, "O"), ("Q Kᵀ 1", 1.0, "Q"))
STEP_3 += (("max 1", 0.5, ""), ("exp 1", 1.0, ""), ("P V 1", 1.0, "O"))


def softmax_beside() -> Figure:
    """One consumer's time, not to scale: products and softmax one after the other, and with P V beside the maximum of
    the next tile."""
    figure, axes = plt.subplots(2, 1, figsize=(7.5, 2.9), sharex=True)
    at = 0.0
    for name, width, matrix in STEP_3:
        _box(axes[0], at, 0 if matrix else 1, width, 0.84, name, MATRICES[matrix] if matrix else GREEN)
        at += width
    at = 0.0
    for tile in range(3):
        _box(axes[1], at, 0, 1, 0.84, f"Q Kᵀ {tile}", MATRICES["Q"])
        if tile:
            _box(axes[1], at + 1, 0, 1, 0.84, f"P V {tile - 1}", MATRICES["O"])
        _box(axes[1], at + 1, 1, 0.5, 0.84, f"max {tile}", GREEN)
        begin = at + (2 if tile else 1.5)
        if tile < 2:
            _box(axes[1], begin, 1, 1, 0.84, f"exp {tile}", GREEN)
        at = begin + 1
    for ax, title in zip(axes, ("step 3", "step 4"), strict=True):
        ax.set(xlim=(0, 7.6), ylim=(1.9, -0.1), title=title, xticks=[])
        ax.set_yticks([0.42, 1.42], ["products", "softmax"])
        ax.tick_params(length=0)
    axes[1].set_xlabel("time of one consumer (not to scale); numbers are tiles of keys")
    return figure


def backward_on_chip() -> Axes:
    """Where a block of the backward pass has its matrices, and what flows where."""
    ax = plt.figure(figsize=(7.5, 3.0)).subplots()
    _box(ax, 0, 0.2, 1.6, 0.8, "Q, dO", PALE)
    ax.text(0.8, 1.05, "tile after tile", ha="center", va="top", fontsize=9)
    _box(ax, 0, 1.9, 1.6, 0.8, "K, V", SKY)
    ax.text(0.8, 2.75, "stay in shared memory", ha="center", va="top", fontsize=9)
    places = {"Sᵀ = K Qᵀ → Pᵀ": (2.6, 0.2), "dPᵀ = V dOᵀ → dSᵀ": (2.6, 1.9)}
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
