"""A game beside chapter 04: paint a mask, see its density, the tiles it skips, its time and reach, and its code.

The picture is a grid of 64 × 64 cells: of single tokens, or of blocks of 16. js/paint.js computes the same as the
functions here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor

from course_utils import patterns
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


def tokens_of(grid: Tensor, cell: int) -> Tensor:
    """The mask, bool [64 · cell, 64 · cell], of a grid of cells, bool [64, 64]."""
    return grid.repeat_interleave(cell, 0).repeat_interleave(cell, 1)


def skipped(grid: Tensor, cell: int, size: int) -> tuple[int, int]:
    """The number of skipped tiles of size × size tokens, and the number of all tiles."""
    tiles = tiles_of(grid, size // cell)
    return tiles.count(SKIPPED), tiles.state.numel()


def reach(grid: Tensor, layers: int, *, is_causal: bool) -> tuple[int, int]:
    """How many pairs of cells (first, second) there are in which the first draws on the second after so many layers,
    and how many there are in all; is_causal: only pairs whose second cell is not later. A cell draws on itself."""
    counted = torch.ones(SIDE, SIDE, dtype=torch.bool)
    counted = counted.tril() if is_causal else counted
    step = (grid | torch.eye(SIDE, dtype=torch.bool)).float()
    drawn_on = torch.linalg.matrix_power(step, layers) > 0  # the number of paths, which fp32 does not round to 0
    return int((drawn_on & counted).sum()), int(counted.sum())


def judged(grid: Tensor, level: int) -> list[tuple[str, bool]]:
    """The aims of a level in words, and whether the grid meets each."""
    asks = LEVELS[level]
    checks = []
    if asks.get("causal"):
        checks.append(("no cell sees a later one", not bool(grid.triu(1).any())))
    if "layers" in asks:
        got, all_of = reach(grid, asks["layers"], is_causal=asks["causal"])
        whom = "every earlier one" if asks["causal"] else "every other one"
        checks.append((f"each draws on {whom} within {asks['layers']} layers: {got:,} of {all_of:,}", got == all_of))
    if "density" in asks:
        pairs, most = int(grid.sum()), int(asks["density"] * SIDE**2)
        checks.append((f"at most {most} cells, {asks['density']:.0%} of all: {pairs:,}", pairs <= most))
    if "skipped" in asks:
        got, all_of = skipped(grid, 16, 128)
        least = math.ceil(asks["skipped"] * all_of)
        checks.append((f"at least {least} of {all_of} tiles of 128 skipped: {got}", got >= least))
    return checks


def code_of(grid: Tensor, cell: int) -> str:
    """Python that makes `pattern`, whose mask for 64 · cell tokens is the grid: a call of a known pattern or of a
    pattern of blocks, else the list of keys of each row."""
    look_up = f"pattern = from_mask_mod(lambda b, h, i, j: seen[i // {cell}, j // {cell}])\n"
    if call := _found(grid, cell):
        return f"from course_utils.patterns import {_names(call)}\n\npattern = {call}\n"
    if cell > 1 and (call := _found(grid, 1)):
        whole = f"({call})" if " | " in call else call
        return (
            f"from course_utils.patterns import from_mask_mod, {_names(call)}\n\n"
            f"# A pattern of blocks of {cell}.\nseen = {whole}.mask({SIDE})\n{look_up}"
        )
    rows = [row.nonzero()[:, 0].tolist() for row in grid]
    ends = [0]
    for row in rows:
        ends.append(ends[-1] + len(row))
    lists = f"indptr = {ends}\nindices = {[key for row in rows for key in row]}\n"
    if cell == 1:
        return (
            "from course_utils.patterns import from_csr\n\n"
            f"# Row r sees the keys indices[indptr[r]:indptr[r + 1]].\n{lists}pattern = from_csr(indptr, indices)\n"
        )
    return (
        "import torch\n\nfrom course_utils.patterns import from_mask_mod\n\n"
        f"# Block CSR: row r of blocks of {cell} sees the blocks indices[indptr[r]:indptr[r + 1]].\n{lists}"
        f"seen = torch.zeros({SIDE}, {SIDE}, dtype=torch.bool)\nfor r in range({SIDE}):\n"
        "    seen[r, indices[indptr[r]:indptr[r + 1]]] = True\n"
        f"{look_up}"
    )


def _found(grid: Tensor, cell: int) -> str | None:
    """The first call of a pattern that makes this grid, if there is one."""
    return next((call for call, mask in _known(grid, cell) if torch.equal(mask, grid)), None)


def _names(call: str) -> str:
    """The functions that a call needs."""
    return ", ".join(dict.fromkeys(name for name in re.findall(r"(\w+)\(", call) if name != "range"))


def _known(grid: Tensor, cell: int) -> Iterator[tuple[str, Tensor]]:
    """Calls of patterns that may make the grid, with the grids that they make."""
    for kind, values in _guesses(grid):
        if call := _call(kind, values, cell):
            yield call, make_pattern(kind, values, SIDE).mask(SIDE)
    starts = [row for row in range(SIDE) if row == 0 or not grid[row, row - 1]]
    lengths = [end - start for start, end in zip(starts, [*starts[1:], SIDE], strict=True)]
    yield f"document({[length * cell for length in lengths]})", patterns.document(lengths).mask(SIDE)
    positions = grid.all(0).nonzero()[:, 0].tolist()
    if positions and cell == 1:
        yield f"global_tokens({positions})", patterns.global_tokens(positions).mask(SIDE)


def _guesses(grid: Tensor) -> Iterator[tuple[str, dict[str, int]]]:
    """Kinds and arguments in cells that agree with the first or the last row of a grid."""
    yield from PRESETS.items()
    first, last = int(grid[0].sum()), grid[-1].nonzero()[:, 0].tolist()
    if first:
        yield "local", {"radius": first - 1}
        yield "block_diagonal", {"block": first}
    if not last:
        return
    yield "sliding_window", {"window": len(last)}
    if len(last) > 1:
        yield "dilated", {"window": len(last), "dilation": last[-1] - last[-2]}
    sinks = next((n for n, key in enumerate(last) if key != n), len(last))
    window = next((n for n, key in enumerate(reversed(last)) if key != SIDE - 1 - n), len(last))
    if window:
        yield "streaming", {"sinks": sinks, "window": window}
    for stride in range(2, SIDE // 2 + 1):
        yield "strided", {"stride": stride}


def _call(kind: str, values: Mapping[str, int], cell: int) -> str:
    """A call of a pattern for cells of so many tokens; "" if no such pattern has blocks of tokens."""
    if cell > 1:
        match kind:
            case "full":
                return "full()"
            case "block_diagonal":
                return f"block_diagonal(block={values['block'] * cell})"
            case "local":
                values = {"global_blocks": 0, "window_blocks": 2 * values["radius"] + 1, "random_blocks": 0, "seed": 0}
                return _call("bigbird", {"block": cell, **values}, 1)
            case "random_blocks" | "bigbird":
                return _call(kind, {**values, "block": values["block"] * cell}, 1)
        return ""
    match kind:
        case "tree":
            return f"tree([(i - 1) // {values['branching']} for i in range({SIDE})])"
        case "local_2d":
            return f"local_2d(height={SIDE // values['width']}, width={values['width']}, radius={values['radius']})"
        case "global_tokens":
            return f"global_tokens(range(0, {values['count'] * values['spacing']}, {values['spacing']}))"
        case "longformer":
            return f"local(radius={values['radius']}) | {_call('global_tokens', values, 1)}"
    return f"{kind}({', '.join(f'{name}={value}' for name, value in values.items())})"


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
        lines.append("tiles of {}: {} of {} skipped".format(size, *skipped(grid, start["cell"], size)))
    lines.append(f"row {query} after {start['layers']} layers: {within} of {SIDE}")
    words.text(0, 0.5, "\n".join(lines), va="center", fontsize=10, transform=words.transAxes)
    return figure
