"""Chapter 03's widget of banks: where eight lanes find the chunks that one `ldmatrix` reads, and which lanes wait."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_utils.costs import ldmatrix_turns
from course_utils.plots.look import LANES_OF_A_READ
from course_utils.widgets.frame import Frame

ROWS = 8  # of a tile, one for each lane of a read
CHUNK = 16  # bytes; 8 numbers of 16 bits
LINE = 128  # bytes: all 32 banks
LAYOUTS = ("row after row", "padded", "swizzled")
WIDTHS = (64, 128)  # numbers in a row, the head dimension


@dataclass(frozen=True)
class BankState:
    """One read of chunk `chunk` of eight rows. offsets: by lane, bytes from the start of the tile; turns: by lane, its
    wavefront, counted from 0; pitch: bytes from a row to the next."""

    offsets: tuple[int, ...]
    turns: tuple[int, ...]
    pitch: int

    @property
    def wavefronts(self) -> int:
        """1 at best, 8 at worst."""
        return max(self.turns) + 1


def bank_state(layout: str, width: int, chunk: int) -> BankState:
    """Where lane r finds chunk `chunk` of row r. layout: one of `LAYOUTS`; width: numbers in a row, 64 or 128.

    Raises ValueError naming the argument.
    """
    for name, got, takes in (("layout", layout, LAYOUTS), ("width", width, WIDTHS)):
        if got not in takes:
            raise ValueError(f"{name}: got {got!r}, takes {' or '.join(map(repr, takes))}")
    if chunk not in range(width // 8):
        raise ValueError(f"chunk: got {chunk}, takes 0 to {width // 8 - 1}")
    pitch = 2 * width + (CHUNK if layout == "padded" else 0)
    offsets = tuple(pitch * row + CHUNK * place(layout, row, chunk) for row in range(ROWS))
    return BankState(offsets, ldmatrix_turns(offsets), pitch)


def place(layout: str, row: int, chunk: int) -> int:
    """The place of a chunk in its row."""
    return chunk ^ row % 8 if layout == "swizzled" else chunk


class BankPlaces(Frame):
    """Made by `bank_places`. `step` is the chunk that the eight lanes read."""

    _script = "bank_places.js"

    def static_figure(self, step: int | None = None) -> Figure:
        """A still picture of a read of chunk `step` (None: the current one), in all three layouts side by side."""
        return _draw(self.meta["start"]["width"], self.step if step is None else step)


def bank_places(*, layout: str = "row after row", width: int = 64, chunk: int = 0) -> BankPlaces:
    """Which bank each of eight lanes asks when `ldmatrix` reads a chunk of eight rows, step by step in the browser.

    The arguments say where the widget starts; each has a control. Raises ValueError naming the argument.
    """
    bank_state(layout, width, chunk)
    start = {"layout": layout, "width": width}
    meta = {"layouts": LAYOUTS, "widths": WIDTHS, "colours": LANES_OF_A_READ, "start": start}
    return BankPlaces(meta=meta, data=b"", step=chunk)


def _draw(width: int, chunk: int) -> Figure:
    figure = Figure(figsize=(7.0, 3.2), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0.06, 1, 0.94))  # the last line is for the note about still pictures
    for axes, layout in zip(figure.subplots(1, len(LAYOUTS), sharey=True), LAYOUTS, strict=True):
        state = bank_state(layout, width, chunk)
        lines = -(-(state.offsets[-1] + 1) // LINE)
        for row in range(ROWS):
            for one in range(width // 8):
                y, x = divmod(state.pitch * row + CHUNK * place(layout, row, one), LINE)
                read = one == chunk
                look = {"alpha": 1.0 if read else 0.22, "edgecolor": "black" if read else "white"}
                axes.add_patch(
                    Rectangle((x // CHUNK, y), 1, 1, facecolor=LANES_OF_A_READ[row], **look, zorder=2 + read)
                )
                axes.text(x // CHUNK + 0.5, y + 0.5, str(one), ha="center", va="center", fontsize=7, zorder=4)
        waves = f"{state.wavefronts} wavefront{'s' if state.wavefronts > 1 else ''}"
        axes.set(xlim=(0, 8), ylim=(max(lines, state.pitch * ROWS // LINE + 1), 0))
        axes.set_title(f"{layout}: {waves}", fontsize=10)
        axes.set_xticks(range(8), [f"{4 * group}" for group in range(8)], fontsize=7)
        axes.set_xlabel("first of four banks", fontsize=9)
        axes.tick_params(length=0)
    figure.axes[0].set_ylabel("128 bytes of shared memory, one below the other", fontsize=8)
    return figure
