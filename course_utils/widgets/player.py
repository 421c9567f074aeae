"""The player of a recorded launch: source, memory and the lanes of a block, step by step, in the browser."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_utils.emulator import record
from course_utils.emulator.sanitizer import Finding
from course_utils.plots.look import GREY, GROUND, INK, MATRICES, PALE
from course_utils.widgets import recorded
from course_utils.widgets.frame import COLOUR_MAP, HERE, Frame

MOST_STORED = 4 << 20  # bytes of a recording that a notebook keeps for pages without Python
STILL_LINES = 15  # of the source
STILL_CELLS = 64  # rows and columns of an array
_BANKS = 128  # bytes in a row of all banks of shared memory
_MOST_WIDTH = 70  # letters of a line in the still picture


class Player(Frame):
    """Made by `play`. `step` counts from 0; `meta` and `data` are the recording as `Recording.packed` gives it."""

    _script = "player.js"
    _css = "\n".join((HERE / name).read_text(encoding="utf-8") for name in ("widgets.css", "player.css"))

    def static_figure(self, step: int | None = None) -> Figure:
        """A still picture of step `step` (None: the step now shown): the source around its line, and the array that it
        touches as it was before it."""
        step = self.step if step is None else step
        last = self.meta["columns"][0]["count"] - 1
        if not 0 <= step <= last:
            raise ValueError(f"step: got {step}, takes 0 to {last}")
        return _draw(self.meta, recorded.columns(self.meta, self.data), step)

    def _state(self) -> dict:
        """What a page without Python starts from. A large recording would make the notebook large: there the page shows
        the still picture."""
        return super()._state() if len(self.data) <= MOST_STORED else {}


def play(
    call: Callable[[], object], *, block: int | tuple[int, ...] = (0, 0, 0), at: int | Finding | None = None
) -> Player:
    """Records one block of the launch that `call()` makes, on the emulator, and plays it in the browser.

        widgets.play(lambda: kernel(grid, block, args), at=17)

    Forwards, backwards, to a line, to a barrier, to the next write of a cell; each number says who wrote it, and from
    what. block: its index in the grid, as blockIdx.x or (x, y, z). at: the line, or the finding of a report, at whose
    first step it opens; a finding is shown with both parties. None: at the first step.

    Raises what `course_utils.emulator.record` raises, TypeError for another `at`, and ValueError for a line in which
    the block does nothing and for a finding that it does not run into.
    """
    return player(*record(call, block=block).packed(), at=at)


def player(meta: dict, data: bytes, *, at: int | Finding | None = None) -> Player:
    """The player of a recording as `Recording.packed` gives it. at: as for `play`."""
    if not meta["columns"][0]["count"]:
        raise ValueError(f"call: block {tuple(meta['index'])} of {meta['kernel']}() touches no memory: nothing to play")
    step, start = _opening(meta, data, at)
    return Player(meta={**meta, "start": start}, data=data, step=step)


def _opening(meta: dict, data: bytes, at: int | Finding | None) -> tuple[int, dict]:
    """The first step that is shown, and what else the player starts with."""
    if at is None:
        return 0, {}
    if isinstance(at, int) and not isinstance(at, bool):
        places = [n for n, (file, line, *_) in enumerate(meta["places"]) if (file, line) == (meta["file"], at)]
        found = np.flatnonzero(np.isin(recorded.columns(meta, data)["steps.place"], places))
        if not found.size:
            lines = sorted({line for file, line, *_ in meta["places"] if file == meta["file"]})
            raise ValueError(f"at: got line {at}, in which this block has no step; takes one of {lines}")
        return int(found[0]), {}
    if not hasattr(at, "tool"):
        raise TypeError(f"at: got {type(at).__name__}, takes a Finding of a report, a line number or None")
    for n, one in enumerate(meta["findings"]):
        same = (one["tool"], one["line"], one["other_line"]) == (at.tool, at.line, at.other_line)
        if same and one["step"] >= 0:
            return one["step"], {"finding": n}
    raise ValueError(f"at: got a finding of {at.tool} at line {at.line}, which this block did not run into")


# ---- the still picture


def _draw(meta: dict, found: dict[str, np.ndarray], step: int) -> Figure:
    figure = Figure(figsize=(10.5, 4.4), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0.05, 1, 0.95))  # the last line is for the note about still pictures
    text, memory = figure.subplots(1, 2, width_ratios=(1.15, 1))
    op, warp = meta["ops"][found["steps.op"][step]], int(found["steps.warp"][step])
    figure.suptitle(f"{meta['kernel']}: step {step:,} of {len(found['steps.op']) - 1:,}", fontsize=10)
    place = int(found["steps.place"][step])
    file, line, *_ = meta["places"][place] if place >= 0 else (meta["file"], 0)
    _source(text, meta["sources"].get(file, ""), line)
    who, where = f"warp {warp}" if warp >= 0 else "copy engine", f", line {line}" if line else ""
    text.set_title(f"{who}: {op}{where}", fontsize=10)
    touched = int(found["steps.array"][step])
    kept = [n for n, array in enumerate(meta["arrays"]) if array["bytes"]]
    if touched >= 0 or kept:
        _memory(memory, meta, found, touched if touched >= 0 else kept[0], step, is_touched=touched >= 0)
    return figure


def _source(axes: Axes, source: str, line: int) -> None:
    lines = source.splitlines()
    first = min(max(0, line - 1 - STILL_LINES // 2), max(0, len(lines) - STILL_LINES))
    axes.set(xlim=(0, 1), ylim=(STILL_LINES, 0))
    axes.axis("off")
    for row, text in enumerate(lines[first : first + STILL_LINES]):
        number = first + row + 1
        if number == line:
            axes.add_patch(Rectangle((0, row), 1, 1, facecolor=MATRICES["pick"], alpha=0.25, lw=0))
        shown = text if len(text) <= _MOST_WIDTH else f"{text[: _MOST_WIDTH - 1]}…"
        style = {"family": "monospace", "fontsize": 7.5, "va": "center", "parse_math": False}
        axes.text(0.045, row + 0.5, f"{number}", ha="right", color=INK if number == line else GREY, **style)
        axes.text(0.06, row + 0.5, shown, color=INK, **style)


def _memory(axes: Axes, meta: dict, found: dict[str, np.ndarray], number: int, step: int, *, is_touched: bool) -> None:
    """One array before the step, around what the step touches: outlined are the reads in blue, the writes in orange."""
    array = meta["arrays"][number]
    held, writer = recorded.bytes_before(meta, found, number, step)
    dtype = array["dtype"] if array["dtype"] != "bytes" else _floats(meta)
    values = recorded.numbers(held, dtype).astype(np.float64)
    size = max(1, len(held) // max(1, len(values)))
    if array["space"] == "shared":
        values = np.where(writer[: size * len(values)].reshape(-1, size).max(axis=1) < 0, np.nan, values)
    columns = array["shape"][-1] if len(array["shape"]) > 1 and array["dtype"] != "bytes" else _BANKS // size
    above, before = divmod(array["low"] // size, columns)  # rows and elements that the recording left out
    rows = -(-(before + len(values)) // columns)
    grid = np.full((rows, columns), np.nan)
    grid.flat[before : before + len(values)] = values
    offsets = recorded.lanes(found, step) if is_touched else np.zeros(0, np.int64)
    places = [(int(at) // size // columns - above, int(at) // size % columns) for at in offsets]
    top = _around([row for row, _ in places], rows)
    left = _around([column for _, column in places], columns)
    seen = grid[top : top + STILL_CELLS, left : left + STILL_CELLS]
    axes.set_facecolor(PALE)
    extent = (left, left + seen.shape[1], above + top + seen.shape[0], above + top)
    axes.imshow(seen, cmap=COLOUR_MAP, extent=extent, aspect="auto", interpolation="nearest")
    wide = max(1, int(found["steps.width"][step]) // size)
    writes = meta["ops"][found["steps.op"][step]] in ("write", "atomic", "copy write")
    for row, column in places:
        colour = MATRICES["pick" if writes else "Q"]
        box = (column, above + row), wide, 1
        axes.add_patch(Rectangle(*box, fill=False, edgecolor=GROUND, lw=4))  # the map has blue and yellow of its own
        axes.add_patch(Rectangle(*box, fill=False, edgecolor=colour, lw=2))
    axes.set(xlim=extent[:2], ylim=extent[2:])
    when = f", before it is {'written' if writes else 'read'}" if is_touched else ""
    axes.set_title(f"{array['name']}{when}", fontsize=10)
    axes.tick_params(length=0, labelsize=8)


def _floats(meta: dict) -> str:
    """The type in which shared memory without one is read: that of the launch's own arrays."""
    floats = (one["dtype"] for one in meta["arrays"] if one["dtype"] in ("float32", "float16", "bfloat16"))
    return next(floats, "float32")


def _around(touched: list[int], count: int) -> int:
    """Where a window of STILL_CELLS places begins, so that the first of those that are touched is in it."""
    if count <= STILL_CELLS or not touched:
        return 0
    return min(max(0, min(touched) - STILL_CELLS // 4), count - STILL_CELLS)
