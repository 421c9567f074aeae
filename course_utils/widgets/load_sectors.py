"""Chapter 00's widget of a load: which sectors of memory the 32 addresses of a warp touch."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_utils.plots.look import BLUE, GROUND, ORANGE
from course_utils.widgets.frame import Frame

LANES = 32
SECTOR = 32  # bytes, the unit in which global memory moves
ELEMENTS = (2, 4, 8, 16)  # bytes that a lane loads: fp16, float, float2, float4
MOST = 32  # elements from a lane to the next
STILL = (1, 2, 4, 8)  # strides of the still picture
WANTED, MOVED = BLUE, ORANGE


@dataclass(frozen=True)
class LoadState:
    """One load of a warp. addresses: in bytes from the first lane's; sectors: the numbers of the touched ones."""

    addresses: tuple[int, ...]
    sectors: tuple[int, ...]


def load_state(stride: int, element_bytes: int) -> LoadState:
    """Lane l loads element l · stride of a row of elements that begins with a sector. Raises ValueError naming the
    argument."""
    if stride not in range(MOST + 1):
        raise ValueError(f"stride: got {stride}, takes 0 to {MOST}")
    if element_bytes not in ELEMENTS:
        raise ValueError(f"element_bytes: got {element_bytes}, takes {' or '.join(map(str, ELEMENTS))}")
    addresses = tuple(lane * stride * element_bytes for lane in range(LANES))
    return LoadState(addresses, tuple(sorted({address // SECTOR for address in addresses})))


class LoadSectors(Frame):
    """Made by `load_sectors`. `step` is the stride."""

    _script = "load_sectors.js"

    def static_figure(self, step: int | None = None) -> Figure:
        """A still picture: a line for each of a few strides, and one for `step` (None: the one now shown)."""
        stride = self.step if step is None else step
        return _draw(sorted({*STILL, stride} if stride <= max(STILL) else {stride}), self.meta["element_bytes"])


def load_sectors(stride: int = 8, element_bytes: int = 4) -> LoadSectors:
    """The load of a warp in the browser: its 32 addresses and the sectors they touch; controls change stride and
    element size. Raises ValueError naming the argument."""
    load_state(stride, element_bytes)
    meta = {"element_bytes": element_bytes, "elements": ELEMENTS, "most": MOST, "colours": (WANTED, MOVED)}
    return LoadSectors(meta=meta, data=b"", step=stride)


def _draw(strides: list[int], element_bytes: int) -> Figure:
    figure = Figure(figsize=(7.5, 1.5 + 0.34 * len(strides)), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0.1, 1, 0.9))  # the last line is for the note about still pictures
    axes = figure.subplots()
    states = [load_state(stride, element_bytes) for stride in strides]
    for line, state in enumerate(states):
        for sector in state.sectors:
            box = (SECTOR * sector, line + 0.15), SECTOR, 0.7
            axes.add_patch(Rectangle(*box, facecolor=MOVED, edgecolor=GROUND, alpha=0.5))
        for address in state.addresses:
            box = (address, line + 0.15), element_bytes, 0.7
            axes.add_patch(Rectangle(*box, facecolor=WANTED, edgecolor=GROUND, linewidth=0.3))
    end = SECTOR * (1 + max(state.sectors[-1] for state in states))
    axes.set(xlim=(0, end), ylim=(len(strides), 0), xlabel="byte in memory")
    labels = [f"stride {stride}: {len(state.sectors)}" for stride, state in zip(strides, states, strict=True)]
    axes.set_yticks([line + 0.5 for line in range(len(strides))], labels)
    axes.set_title("sectors that one load of a warp moves", fontsize=10)
    axes.tick_params(axis="y", length=0)
    return figure
