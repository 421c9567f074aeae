"""Chapter 00's widget of a launch: how many blocks `n` elements take, and which threads of the last block are idle."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_utils.costs import ceil_div
from course_utils.plots.look import BLUE, GROUND, PALE, SKY
from course_utils.widgets.frame import Frame

WARP = 32  # threads
SIZES = (64, 128, 256, 512)  # of a block, in threads
MOST = 1024  # elements
BUSY, BUSY_TOO, IDLE = BLUE, SKY, PALE  # warps alternate


@dataclass(frozen=True)
class GridState:
    """A launch of whole blocks. idle: threads without an element; idle_warps: warps without any."""

    blocks: int
    idle: int
    idle_warps: int


def grid_state(n: int, threads: int) -> GridState:
    """The launch for `n` elements in blocks of `threads` threads. Raises ValueError naming the argument."""
    if n not in range(MOST + 1):
        raise ValueError(f"n: got {n}, takes 0 to {MOST}")
    if threads not in SIZES:
        raise ValueError(f"threads: got {threads}, takes {' or '.join(map(str, SIZES))}")
    blocks = ceil_div(n, threads)
    idle = blocks * threads - n
    return GridState(blocks, idle, idle // WARP)


class LaunchGrid(Frame):
    """Made by `launch_grid`. `step` is the number of elements."""

    _script = "launch_grid.js"

    def static_figure(self, step: int | None = None) -> Figure:
        """A still picture for `step` elements (None: as many as now)."""
        return _draw(self.step if step is None else step, self.meta["threads"])


def launch_grid(n: int = 1000, threads: int = 256) -> LaunchGrid:
    """The blocks of a launch in the browser, a line each, with the idle threads; controls change `n` and the block
    size. Raises ValueError naming the argument."""
    grid_state(n, threads)
    meta = {"threads": threads, "sizes": SIZES, "most": MOST, "colours": (BUSY, BUSY_TOO, IDLE)}
    return LaunchGrid(meta=meta, data=b"", step=n)


def _draw(n: int, threads: int) -> Figure:
    state = grid_state(n, threads)
    figure = Figure(figsize=(7.5, 1.3 + 0.32 * max(state.blocks, 1)), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0.1, 1, 0.9))  # the last line is for the note about still pictures
    axes = figure.subplots()
    for block in range(state.blocks):
        for first in range(0, threads, WARP):
            busy = max(0, min(WARP, n - block * threads - first))
            colour = (BUSY, BUSY_TOO)[first // WARP % 2]
            for start, width, face in ((first, busy, colour), (first + busy, WARP - busy, IDLE)):
                if width:
                    axes.add_patch(Rectangle((start, block + 0.12), width, 0.76, facecolor=face, edgecolor=GROUND))
    axes.set(xlim=(0, threads), ylim=(max(state.blocks, 1), 0), xlabel="threadIdx.x")
    axes.set_title(f"{n} elements: {state.blocks} blocks of {threads}, {state.idle} threads idle", fontsize=10)
    axes.set_xticks(range(0, threads + 1, 2 * WARP))
    axes.set_yticks([block + 0.5 for block in range(state.blocks)], [f"block {b}" for b in range(state.blocks)])
    axes.tick_params(length=0)
    return figure
