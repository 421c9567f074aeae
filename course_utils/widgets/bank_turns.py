"""Chapter 00's widget of banks: how many turns a warp takes to read a column of a tile in shared memory."""

from __future__ import annotations

import colorsys
from collections import Counter
from dataclasses import dataclass

from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_utils.widgets.frame import Frame

LANES = BANKS = 32
MOST = 40  # words from a row to the next
STILL = (32, 33)  # pitches of the still picture


def _colour(bank: int) -> str:
    """The colour of a bank: hues go around once, and neighbours differ in lightness, too."""
    rgb = colorsys.hls_to_rgb(bank / BANKS, 0.42 if bank % 2 else 0.66, 0.65)
    return "#" + "".join(f"{round(255 * part):02x}" for part in rgb)


BANK_COLOURS = tuple(_colour(bank) for bank in range(BANKS))


@dataclass(frozen=True)
class ColumnState:
    """A warp reads a column. banks: by lane, the bank of its word; turns: by lane, its turn, counted from 0."""

    banks: tuple[int, ...]
    turns: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many turns the load takes: 1 at best, 32 at worst."""
        return max(self.turns) + 1


def column_state(pitch: int) -> ColumnState:
    """Lane l reads word l · pitch, the first word of row l. Lanes that want the same word share a turn.

    Raises ValueError naming the argument.
    """
    if pitch not in range(MOST + 1):
        raise ValueError(f"pitch: got {pitch}, takes 0 to {MOST}")
    words = [lane * pitch for lane in range(LANES)]
    taken: Counter[int] = Counter()
    turn_of = {}
    for word in dict.fromkeys(words):
        turn_of[word] = taken[word % BANKS]
        taken[word % BANKS] += 1
    return ColumnState(tuple(word % BANKS for word in words), tuple(turn_of[word] for word in words))


class BankTurns(Frame):
    """Made by `bank_turns`. `step` is the pitch: the number of words from a row of the tile to the next."""

    _script = "bank_turns.js"

    def static_figure(self, step: int | None = None) -> Figure:
        """A still picture of tiles with rows of 32 and of 33 words, or of `step` words if that is another pitch."""
        pitch = self.step if step is None else step
        return _draw(STILL if pitch in STILL else (pitch,))


def bank_turns(pitch: int = 32) -> BankTurns:
    """A tile of 32 rows in the browser, coloured by bank, and the turns of a warp that reads its first column; a slider
    changes the pitch of the rows. Raises ValueError naming the argument."""
    column_state(pitch)
    return BankTurns(meta={"most": MOST, "colours": BANK_COLOURS}, data=b"", step=pitch)


def _draw(pitches: tuple[int, ...]) -> Figure:
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0.06, 1, 0.94))  # the last line is for the note about still pictures
    colours = ListedColormap(BANK_COLOURS)
    for axes, pitch in zip(figure.subplots(1, len(pitches), squeeze=False)[0], pitches, strict=True):
        wide = max(pitch, 1)
        banks = [[(row * pitch + x) % BANKS for x in range(wide)] for row in range(LANES)]
        axes.imshow(banks, cmap=colours, vmin=0, vmax=BANKS - 1, extent=(0, wide, LANES, 0))
        axes.add_patch(Rectangle((0, 0), 1, LANES, facecolor="none", edgecolor="black", linewidth=2))
        if pitch > BANKS:
            padding = pitch - BANKS
            axes.add_patch(Rectangle((BANKS, 0), padding, LANES, facecolor="white", edgecolor="0.4", hatch="////"))
        count = column_state(pitch).count
        title = f"rows of {pitch} words: a column takes {count} turn{'s' if count > 1 else ''}"
        axes.set_title(title, fontsize=10)
        axes.set(xlabel="column", ylabel="row", yticks=range(0, LANES + 1, 8), xticks=range(0, wide + 1, 8))
    return figure
