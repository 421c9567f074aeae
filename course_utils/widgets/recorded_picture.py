"""The still picture of a moment of a recorded launch: the source, and an array as the player shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_utils.plots.look import CYCLIC, GREY, GROUND, INK, LANES_OF_A_READ, MATRICES
from course_utils.widgets import recorded
from course_utils.widgets.frame import COLOUR_MAP, MASKED_HATCH

LINES = 15  # of the source
WIDTH = 78  # letters of a line of it
ROWS, COLUMNS = 48, 64  # cells of an array that are seen at most
BANKS, BANK_BYTES = 32, 4
MOST_COLUMNS = 256  # of an array in shared memory; as in js/player/memory.js
OLDEST = 5  # barriers: older writes have the same colour
_WRITES = ("write", "atomic", "copy write")

Columns = Mapping[str, np.ndarray]  # of the recording, by name


@dataclass(frozen=True)
class Grid:
    """An array as rows of `columns` elements of `size` bytes. dtype: the type of the elements."""

    number: int
    dtype: str
    size: int
    columns: int
    rows: int

    def place(self, offset: int) -> tuple[int, int]:
        """Row and column of the element with this byte."""
        return divmod(offset // self.size, self.columns)


def picture(meta: Mapping, found: Columns, step: int) -> Figure:
    """Step `step` of a recording, before it is done, with the look that the player has at its start (`meta["start"]`).

    Left the source around its line; right an array around what the step touches or the chosen cell: reads are outlined
    in blue, writes in orange, the chosen cell in black; small squares are where copies under way will land. Hatched is
    what nobody has written in shared memory, and what the block does not touch in global memory.
    """
    figure = Figure(figsize=(10.5, 4.4), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0.05, 1, 0.95))  # the last line is for the note about still pictures
    text, memory = figure.subplots(1, 2, width_ratios=(1.15, 1))
    figure.suptitle(f"{meta['kernel']}: step {step:,} of {len(found['steps.op']) - 1:,}", fontsize=10)
    op, warp, place = meta["ops"][found["steps.op"][step]], int(found["steps.warp"][step]), found["steps.place"][step]
    file, line, _ = meta["places"][place] if place >= 0 else (meta["file"], 0, -1)
    _source(text, meta["sources"].get(file, ""), line)
    who = f"warp {warp}" if warp >= 0 else "copy engine or tensor core"
    text.set_title(f"{who}: {op}" + (f", line {line}" if line else ""), fontsize=10)
    _memory(memory, meta, found, step)
    return figure


def _source(axes: Axes, source: str, line: int) -> None:
    lines = source.splitlines()
    first = min(max(0, line - 1 - LINES // 2), max(0, len(lines) - LINES))
    axes.set(xlim=(0, 1), ylim=(LINES, 0))
    axes.axis("off")
    for row, text in enumerate(lines[first : first + LINES]):
        number = first + row + 1
        if number == line:
            axes.add_patch(Rectangle((0, row), 1, 1, facecolor=MATRICES["pick"], alpha=0.25, lw=0))
        shown = text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"
        style = {"family": "monospace", "fontsize": 6.5, "va": "center", "parse_math": False}
        axes.text(0.045, row + 0.5, f"{number}", ha="right", color=INK if number == line else GREY, **style)
        axes.text(0.06, row + 0.5, shown, color=INK, **style)


def _memory(axes: Axes, meta: Mapping, found: Columns, step: int) -> None:
    start, touched = meta.get("start", {}), int(found["steps.array"][step])
    grid = _grid(meta, start.get("array", max(touched, 0)))
    width = int(found["steps.width"][step])
    lanes = recorded.lanes(found, step).tolist() if touched == grid.number else []
    cell = start.get("cell")
    wanted = [grid.place(offset) for offset in ([cell["offset"]] if cell else lanes)]
    top = _around([row for row, _ in wanted], grid.rows, ROWS)
    left = _around([column for _, column in wanted], grid.columns, COLUMNS)
    colours = _colours(meta, found, grid, step, start.get("colour", "value"))[top : top + ROWS, left : left + COLUMNS]
    extent = (left, left + colours.shape[1], top + colours.shape[0], top)
    axes.set_facecolor(GROUND)
    axes.add_patch(Rectangle((0, 0), grid.columns, grid.rows, facecolor=GROUND, edgecolor="0.75", hatch=MASKED_HATCH))
    warps = ListedColormap([GREY, *LANES_OF_A_READ])  # the first: not a thread's
    bounds = {"bank": (CYCLIC, 0, BANKS), "age": (f"{COLOUR_MAP}_r", 0, OLDEST), "writer": (warps, -1, 8)}
    names, low, high = bounds.get(start.get("colour"), (COLOUR_MAP, None, None))
    axes.imshow(
        colours, cmap=names, vmin=low, vmax=high, extent=extent, aspect="auto", interpolation="nearest", zorder=1
    )
    writes = meta["ops"][found["steps.op"][step]] in _WRITES
    for offset in lanes:
        _outline(axes, grid, offset, width, MATRICES["pick" if writes else "Q"], 1.2)
    landing = [grid.place(offset) for offset in _landing(meta, found, step, grid.number)]
    axes.plot([x + 0.5 for _, x in landing], [y + 0.5 for y, _ in landing], "s", color=INK, markersize=2, zorder=2)
    if cell:
        _outline(axes, grid, cell["offset"], grid.size, INK, 2)
    axes.set(xlim=extent[:2], ylim=extent[2:])
    array = meta["arrays"][grid.number]
    as_type = f" as {grid.dtype}" if array["dtype"] == "bytes" else ""
    axes.set_title(f"{array['name']}{as_type}, coloured by {start.get('colour', 'value')}", fontsize=10)
    axes.tick_params(length=0, labelsize=8)


def _outline(axes: Axes, grid: Grid, offset: int, width: int, colour: str, line: float) -> None:
    """A frame around the elements of these bytes, with a light border, so that it shows on any colour."""
    row, column = grid.place(offset)
    wide = max(1, width // grid.size)
    for edge, lw in ((GROUND, 2.2 * line), (colour, line)):
        axes.add_patch(Rectangle((column, row), wide, 1, fill=False, edgecolor=edge, lw=lw, zorder=3))


def _grid(meta: Mapping, number: int) -> Grid:
    """Shared memory without a known type is read as the launch's own floats, 32 banks a row."""
    array = meta["arrays"][number]
    dtype, shape = array["dtype"], array["shape"]
    if array["is_vector"]:  # its components stand side by side
        shape = [*shape[:-2], int(np.prod(shape[-2:]))]
    columns = (shape or [1])[-1]
    if dtype == "bytes":
        dtype = next((one["dtype"] for one in meta["arrays"] if "float" in one["dtype"]), "float32")
    size = 8 // len(recorded.numbers(np.zeros(8, np.uint8), dtype))
    total = -(-max(array["low"] + array["bytes"], array["itemsize"] * int(np.prod(array["shape"]))) // size)
    is_long = array["space"] == "shared" and columns > MOST_COLUMNS  # a tile that is declared as one long row
    if array["dtype"] == "bytes" or len(shape) < 2 or is_long:
        columns = min(total, BANKS * BANK_BYTES // size)
    return Grid(number, dtype, size, max(1, columns), -(-total // max(1, columns)))


def _colours(meta: Mapping, found: Columns, grid: Grid, step: int, colour: str) -> np.ndarray:
    """The colour value of each element of an array, float64 [rows, columns]; NaN if there is nothing to show."""
    array = meta["arrays"][grid.number]
    held, writer = recorded.bytes_before(meta, found, grid.number, step)
    values = recorded.numbers(held, grid.dtype).astype(np.float64)
    written = writer[: grid.size * len(values)].reshape(-1, grid.size).max(axis=1, initial=-1)
    first = array["low"] // grid.size
    if colour == "bank":
        place = array["begin"] + grid.size * (first + np.arange(len(values)))
        values = (place // BANK_BYTES % BANKS).astype(np.float64)
    elif colour == "age":
        opened = _openings(meta, found)
        values = np.searchsorted(opened, step) - np.searchsorted(opened, written).astype(np.float64)
    elif colour == "writer":
        warp = found["steps.warp"][written].astype(np.float64)
        values = np.where(warp < 0, -1, warp % len(LANES_OF_A_READ))
    if (array["space"] == "shared" and colour != "bank") or colour in ("age", "writer"):
        values = np.where(written < 0, np.nan, values)
    shown = np.full(grid.rows * grid.columns, np.nan)
    shown[first : first + len(values)] = values
    return shown.reshape(grid.rows, grid.columns)


def _openings(meta: Mapping, found: Columns) -> np.ndarray:
    """The steps at which the block's barriers opened."""
    ops = found["steps.op"]
    ends = np.flatnonzero(ops == meta["ops"].index("end"))
    return ends[ops[found["steps.extra"][ends]] == meta["ops"].index("barrier")]


def _landing(meta: Mapping, found: Columns, step: int, array: int) -> list[int]:
    """The bytes of an array that the copies in flight at a step will write later, by lane."""
    is_landing = found["steps.op"] == meta["ops"].index("copy write")
    is_landing &= (found["steps.array"] == array) & (found["steps.extra"] < step)
    later = np.flatnonzero(is_landing)
    return [offset for one in later[later > step].tolist() for offset in recorded.lanes(found, one).tolist()]


def _around(touched: list[int], count: int, most: int) -> int:
    """The begin of a window of `most` places that has the first touched place a third behind its begin."""
    if count <= most or not touched:
        return 0
    return min(max(0, min(touched) - most // 3), count - most)
