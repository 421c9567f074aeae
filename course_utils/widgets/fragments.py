"""Chapter 03's widget: which lane holds which numbers in a tensor-core product, and which banks ldmatrix reads.

The layouts are those of kernels/include/tensor_core.cuh and swizzled_tile.cuh.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_utils.costs import first_bank, ldmatrix_turns
from course_utils.plots.look import CYCLIC, MATRICES
from course_utils.widgets.frame import Frame

LANES = 32
ROWS = 16  # of a tile, as many as one ldmatrix reads here
CHUNK_BYTES = 16
READS = {"Q": "S = Q Kᵀ", "K": "S = Q Kᵀ", "V": "O = P V"}  # what ldmatrix reads, and for which product
RULE = """a0, a2: row g; a1, a3: row g + 8
columns 2t, 2t + 1; a2, a3: + 8

b0, b1: column g
rows 2t, 2t + 1; b1: + 8

d0, d1: row g; d2, d3: row g + 8
columns 2t, 2t + 1"""
LAYOUTS = ("plain", "swizzled")
HEAD_DIMS = (64, 128)
COLOURS = MATRICES | {"P": MATRICES["S"]}

Elements = tuple[tuple[int, int], ...]  # (row, column) of each number in a register


def lane_registers(lane: int) -> dict[str, Elements]:
    """What `lane` holds in mma.sync.m16n8k16: register -> the (row, column) of its numbers, the lower half first.

    a0 to a3 of A [16, 16] and b0, b1 of B [16, 8] hold two 16-bit floats each, d0 to d3 of D [16, 8] one fp32.
    """
    _check("lane", lane, range(LANES))
    g, t = divmod(lane, 4)
    corners = ((0, 0), (8, 0), (0, 8), (8, 8))
    a = {f"a{n}": tuple((g + down, 2 * t + right + k) for k in (0, 1)) for n, (down, right) in enumerate(corners)}
    b = {f"b{n}": tuple((2 * t + 8 * n + k, g) for k in (0, 1)) for n in (0, 1)}
    d = {f"d{n}": ((g + n // 2 * 8, 2 * t + n % 2),) for n in range(4)}
    return a | b | d


@dataclass(frozen=True)
class LdmatrixRequest:
    """One ldmatrix.x4 of a warp: what each of the 32 lanes points at, and when the memory serves it.

    Lane 8 i + r brings the address of row r of matrix i: `rows` and `chunks` of the tile, `offsets` in bytes from its
    first. The eight lanes of a phase go together; `turns` is the wavefront within the phase, counted from 0, for rows
    that want the same banks are served one after the other (which of them first, the hardware does not say).
    """

    rows: tuple[int, ...]
    chunks: tuple[int, ...]
    offsets: tuple[int, ...]
    turns: tuple[int, ...]

    @property
    def wavefronts(self) -> tuple[int, ...]:
        """How many wavefronts each of the four phases takes: 1 at best, 8 at worst."""
        return tuple(max(self.turns[first : first + 8]) + 1 for first in range(0, LANES, 8))


def ldmatrix_request(reads: str, layout: str, head_dim: int) -> LdmatrixRequest:
    """The first ldmatrix.x4 on a tile of "Q", "K" or "V" (transposed), as kernels/include/attention_tile.cuh does it.

    layout: "plain", row after row, or "swizzled", chunk c of row r at place c XOR (r mod 8). head_dim: 64 or 128.

    Raises ValueError naming the argument.
    """
    _check("reads", reads, READS)
    _check("layout", layout, LAYOUTS)
    _check("head_dim", head_dim, HEAD_DIMS)
    lanes = range(LANES)
    if reads == "K":  # two products: keys 0 to 7, then keys 8 to 15
        rows, chunks = [lane % 8 + lane // 16 * 8 for lane in lanes], [lane // 8 % 2 for lane in lanes]
    else:
        rows, chunks = [lane % 16 for lane in lanes], [lane // 16 for lane in lanes]
    swizzle = 8 if layout == "swizzled" else 1
    offsets = [
        2 * head_dim * row + CHUNK_BYTES * (chunk ^ row % swizzle) for row, chunk in zip(rows, chunks, strict=True)
    ]
    return LdmatrixRequest(tuple(rows), tuple(chunks), tuple(offsets), ldmatrix_turns(offsets))


class Fragments(Frame):
    """Made by `warp_fragments`. `step` is the lane shown."""

    _script = "fragments.js"

    def static_figure(self, step: int | None = None) -> Figure:
        """A still picture of lane `step` (None: the lane now shown), with both layouts side by side."""
        lane = self.step if step is None else step
        _check("step", lane, range(LANES))
        return _draw(lane, self.meta["start"]["reads"], self.meta["start"]["head_dim"])


def warp_fragments(*, reads: str = "Q", layout: str = "plain", head_dim: int = 64) -> Fragments:
    """Step through the 32 lanes of a warp in the browser: their registers, and the banks that ldmatrix reads.

    The arguments say where the widget starts; each has a control. reads: "Q", "K" or "V"; layout: "plain" or
    "swizzled"; head_dim: 64 or 128. All that is shown comes from `lane_registers` and `ldmatrix_request`.

    Raises ValueError naming the argument.
    """
    ldmatrix_request(reads, layout, head_dim)
    requests = {f"{r} {x} {d}": asdict(ldmatrix_request(r, x, d)) for r in READS for x in LAYOUTS for d in HEAD_DIMS}
    meta = {
        "lanes": [lane_registers(lane) for lane in range(LANES)],
        "requests": requests,
        "start": {"reads": reads, "layout": layout, "head_dim": head_dim},
    }
    return Fragments(meta=meta, data=b"", step=5)


def _check(name: str, got: object, takes) -> None:
    if got not in takes:
        words = f"{takes[0]} to {takes[-1]}" if isinstance(takes, range) else " or ".join(map(repr, takes))
        raise ValueError(f"{name}: got {got!r}, takes {words}")


def _draw(lane: int, reads: str, head_dim: int) -> Figure:
    figure = Figure(figsize=(9.6, 6), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0.05, 1, 0.95))  # the last line is for the note about still pictures
    product, *tiles = figure.subplots(1, 3, width_ratios=(1.9, 1, 1))
    _draw_product(product, lane, reads)
    for axes, layout in zip(tiles, LAYOUTS, strict=True):
        _draw_tile(axes, ldmatrix_request(reads, layout, head_dim), lane // 8, head_dim)
        axes.set_title(f"tile of {reads}, {layout}", fontsize=10)
    return figure


def _draw_product(axes: Axes, lane: int, reads: str) -> None:
    left, right = READS[reads].split(" = ")[1].split()
    names = {"A": left, "B": right, "D": READS[reads][0]}
    corner = {"A": (0, 18), "B": (18, 0), "D": (18, 18)}
    for matrix, (x, y) in corner.items():
        columns = 16 if matrix == "A" else 8
        axes.add_patch(Rectangle((x, y), columns, 16, facecolor="0.96", edgecolor="0.4"))
        for line in range(1, 16):
            axes.plot((x, x + columns), (y + line, y + line), color="0.85", linewidth=0.5)
        for line in range(1, columns):
            axes.plot((x + line, x + line), (y, y + 16), color="0.85", linewidth=0.5)
        axes.text(x + columns / 2, y - 0.4, f"{matrix}: {names[matrix]}", ha="center", va="bottom", fontsize=9)
    for register, elements in lane_registers(lane).items():
        matrix = register[0].upper()
        x, y = corner[matrix]
        for row, column in elements:
            axes.add_patch(Rectangle((x + column, y + row), 1, 1, facecolor=COLOURS[names[matrix][0]], zorder=3))
        row, column = (sum(part) / len(elements) + 0.5 for part in zip(*elements, strict=True))
        axes.text(x + column, y + row, register, ha="center", va="center", fontsize=7, color="white")
    g, t = divmod(lane, 4)
    axes.text(0, 8, f"lane {lane} = 4 g + t\ng = {g}, t = {t}\n\n{RULE}", va="center", fontsize=9)
    axes.set(xlim=(-0.5, 26.5), ylim=(34.5, -2), aspect="equal")
    axes.set_title(READS[reads], fontsize=10)
    axes.axis("off")


def _draw_tile(axes: Axes, request: LdmatrixRequest, phase: int, head_dim: int) -> None:
    """The tile as it lies in memory, coloured by bank; framed, what the eight lanes of a phase read."""
    banks = [[word % 32 for word in range(head_dim // 2)]] * ROWS
    axes.imshow(banks, cmap=CYCLIC, alpha=0.35, extent=(0, head_dim // 2, ROWS, 0), aspect="auto")
    lanes = range(8 * phase, 8 * phase + 8)
    for lane in lanes:
        row, place = request.rows[lane], request.offsets[lane] % (2 * head_dim) // 4
        axes.add_patch(Rectangle((place, row), 4, 1, facecolor="black", edgecolor="white"))
        axes.text(place + 2, row + 0.5, request.chunks[lane], ha="center", va="center", fontsize=7, color="white")
    used = {first_bank(request.offsets[lane]) for lane in lanes}
    wavefronts = request.wavefronts[phase]
    served = f"{4 * len(used)} of 32 banks, {wavefronts} wavefront{'s' if wavefronts > 1 else ''}"
    axes.set(xlabel=f"bank\nlanes {lanes[0]} to {lanes[-1]} read\n{served}", yticks=range(0, ROWS, 4))
    axes.xaxis.label.set_fontsize(9)
    axes.set_xticks(range(0, head_dim // 2, 8), [word % 32 for word in range(0, head_dim // 2, 8)])
    axes.set_ylabel("row", fontsize=9)
