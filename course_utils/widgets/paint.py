"""A game beside chapter 04: paint a mask, see its density, the tiles it skips, its time and reach, and its code.

The picture is a grid of 64 × 64 cells: of single tokens, or of blocks of 16. js/paint.js judges a grid and writes its
code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from course_utils.plots.look import MATRICES
from course_utils.widgets.explorer import HEAD_DIMS, SKIPPED, checked_rates, layers_to, make_pattern, tiles_of
from course_utils.widgets.frame import Frame

SIDE = 64
CELLS = (1, 16)  # tokens of a cell, along each side
TILES = (64, 128)
LAYERS = (1, 8)
# What the picture can start from: kind, as in the mask explorer, and arguments in cells.
PRESETS: dict[str, dict[str, int]] = {
    "causal": {},
    "sliding_window": {"window": 8},
    "dilated": {"window": 6, "dilation": 8},
    "strided": {"stride": 8},
    "fixed": {"stride": 8, "columns": 1},
    "streaming": {"sinks": 2, "window": 6},
    "power_of_two": {},
    "tree": {"branching": 2},
    "full": {},
    "local": {"radius": 3},
    "local_2d": {"width": 8, "radius": 1},
    "block_diagonal": {"block": 8},
    "global_tokens": {"count": 4, "spacing": 16},
    "longformer": {"radius": 2, "count": 2, "spacing": 32},
    "random_blocks": {"block": 1, "per_row": 6, "seed": 0},
    "bigbird": {"block": 1, "global_blocks": 2, "window_blocks": 3, "random_blocks": 3, "seed": 0},
}
# What a level asks for. layers: after so many, every cell draws on every one that it may see (causal: no later one);
# density: at most this part of all pairs; skipped: at least this part of the tiles of 128. A cell is a block of 16.
LEVELS: tuple[dict[str, Any], ...] = (
    {"title": "Paint freely"},
    {"title": "1: Far, with few pairs", "layers": 3, "causal": True, "density": 0.1},
    {"title": "2: Everybody, in two layers", "layers": 2, "causal": False, "density": 0.05},
    {"title": "3: Whole tiles", "layers": 4, "causal": True, "skipped": 0.6},
)


class Paint(Frame):
    """Made by `paint_a_mask`. `step` is the row whose reach is shown."""

    _script = "paint.js"

    def static_figure(self, step: int | None = None) -> Figure:
        """A still picture of the grid that the widget starts with, and of the reach of row `step` (None: now's)."""
        return _draw(self.meta["start"], self.step if step is None else step)


def paint_a_mask(preset: str = "strided", *, head_dim: int = 128, rates: Mapping | None = None) -> Paint:
    """Paint a mask in the browser, by mouse or keyboard, for the aims of three levels or freely. It opens at the first
    level.

    preset: what is there first, one of `PRESETS`. head_dim (64 or 128) and rates, as of `mask_explorer`, are for the
    time; without rates none is shown. The score stays in the browser. Raises ValueError naming the argument.
    """
    if preset not in PRESETS:
        raise ValueError(f"preset: got {preset!r}, takes {', '.join(PRESETS)}")
    if head_dim not in HEAD_DIMS:
        raise ValueError(f"head_dim: got {head_dim!r}, takes {' or '.join(map(str, HEAD_DIMS))}")
    meta = {
        "presets": PRESETS,
        "levels": list(LEVELS),
        "cells": CELLS,
        "layers": LAYERS,
        "dim": head_dim,
        "rates": checked_rates(rates),
        "start": {"preset": preset, "cell": 16, "level": 1, "layers": 3},
    }
    return Paint(meta=meta, data=b"", step=47)


def _draw(start: Mapping[str, Any], query: int) -> Figure:
    grid = make_pattern(start["preset"], PRESETS[start["preset"]], SIDE).mask(SIDE)
    reached = layers_to(grid, query)
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0.06, 1, 0.94))  # the last line is for the note about still pictures
    cells, words = figure.subplots(1, 2, width_ratios=(3, 2))
    two = ListedColormap(["white", MATRICES["Q"]])
    cells.imshow(grid.numpy(), cmap=two, vmin=0, vmax=1, interpolation="nearest", extent=(0, SIDE, SIDE, 0))
    cells.set(xlabel="keys", ylabel="queries")
    cells.set_title(f"{start['preset']}, {SIDE} × {SIDE} cells", fontsize=10)
    words.axis("off")
    within = int(((reached >= 0) & (reached <= start["layers"])).sum())
    lines = [f"density {grid.float().mean():.1%}"]
    for size in TILES:
        tiles = tiles_of(grid, size // start["cell"])
        lines.append(f"tiles of {size}: {tiles.count(SKIPPED)} of {tiles.state.numel()} skipped")
    lines.append(f"row {query} after {start['layers']} layers: {within} of {SIDE}")
    words.text(0, 0.5, "\n".join(lines), va="center", fontsize=10, transform=words.transAxes)
    return figure
