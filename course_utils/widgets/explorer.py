"""Chapter 04's widget: the mask of a sparse pattern by tokens and by tiles, its cost, and its reach over layers."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_utils import patterns
from course_utils.costs import ceil_div
from course_utils.patterns import Pattern
from course_utils.plots.look import MATRICES
from course_utils.widgets.frame import MASKED_HATCH, Frame

LENGTHS = (64, 1024, 16)  # least, most, step
TILES = (16, 32, 64, 128)
HEAD_DIMS = (64, 128)
LAYERS = 3
RATES = ("flops_per_second", "bytes_per_second", "heads", "label")
SKIPPED, PARTIAL, FULL = range(3)
BLUE, GREEN, ORANGE = (MATRICES[name] for name in ("Q", "V", "pick"))

# kind -> slider -> (least, most, step, where it starts)
CAUSAL = {
    "causal": {},
    "sliding_window": {"window": (1, 512, 1, 48)},
    "dilated": {"window": (1, 256, 1, 16), "dilation": (1, 64, 1, 8)},
    "dilated_sorted": {"window": (1, 256, 1, 16), "dilation": (1, 64, 1, 8)},
    "power_of_two": {},
    "strided": {"stride": (1, 256, 1, 16)},
    "fixed": {"stride": (1, 256, 1, 32), "columns": (1, 64, 1, 8)},
    "streaming": {"sinks": (0, 64, 1, 4), "window": (1, 512, 1, 48)},
    "tree": {"branching": (1, 8, 1, 2)},
}
NOT_CAUSAL = {
    "full": {},
    "local": {"radius": (0, 256, 1, 24)},
    "local_2d": {"width": (4, 64, 1, 16), "radius": (0, 16, 1, 2)},
    "block_diagonal": {"block": (1, 256, 1, 32)},
    "document": {"tokens": (1, 512, 1, 80)},
    "global_tokens": {"count": (1, 16, 1, 4), "spacing": (1, 64, 1, 32)},
    "longformer": {"radius": (0, 256, 1, 16), "count": (1, 16, 1, 4), "spacing": (1, 64, 1, 32)},
    "random_blocks": {"block": (8, 128, 8, 16), "per_row": (1, 8, 1, 3), "seed": (0, 99, 1, 0)},
    "bigbird": {
        "block": (8, 128, 8, 16),
        "global_blocks": (0, 4, 1, 2),
        "window_blocks": (1, 9, 2, 3),
        "random_blocks": (0, 8, 1, 3),
        "seed": (0, 99, 1, 0),
    },
}
SLIDERS = {**CAUSAL, **NOT_CAUSAL}
TEXTS = {
    "dilated_sorted": "dilated, sorted by residue",
    "document": "document, of equal lengths",
    "global_tokens": "global_tokens, evenly spaced",
    "longformer": "Longformer: local | global_tokens",
    "tree": "tree, complete",
}


def make_pattern(kind: str, values: Mapping[str, int], length: int) -> Pattern:
    """The Pattern that the widget shows for `kind` with its sliders at `values`, for `length` tokens.

    "dilated_sorted" is `dilated` with the positions in another order: it has no Pattern of its own and raises KeyError.
    """
    values = dict(values)
    match kind:
        case "fixed":
            values["columns"] = min(values["columns"], values["stride"])
        case "tree":
            values = {"parents": [(i - 1) // values["branching"] for i in range(length)]}
        case "local_2d":
            values["width"] = next(width for width in range(values["width"], 0, -1) if length % width == 0)
            values["height"] = length // values["width"]
        case "document":
            tokens, rest = values["tokens"], length % values["tokens"]
            values = {"lengths": [tokens] * (length // tokens) + ([rest] if rest else [])}
        case "global_tokens":
            values = {"positions": range(0, values["count"] * values["spacing"], values["spacing"])}
        case "longformer":
            return make_pattern("local", {"radius": values.pop("radius")}, length) | make_pattern(
                "global_tokens", values, length
            )
        case "dilated_sorted":
            raise KeyError(kind)
    return getattr(patterns, kind)(**values)


@dataclass(frozen=True)
class Tiles:
    """The tiles of `size` × `size` pairs that cover a mask; state [side, side] uint8 is SKIPPED, PARTIAL or FULL.

    As in BlockLists, a tile is full if all its keys exist and all its existing queries see all of them.
    """

    size: int
    state: torch.Tensor
    pairs: int

    def count(self, state: int) -> int:
        return int((self.state == state).sum())

    @property
    def visited(self) -> int:
        return self.count(PARTIAL) + self.count(FULL)


def tiles_of(mask: torch.Tensor, size: int) -> Tiles:
    """The tiles of `mask`, bool [L, L]. js/masks.js computes the same."""
    length = mask.shape[0]
    side = ceil_div(length, size)
    padded = torch.zeros(side * size, side * size, dtype=torch.bool)
    padded[:length, :length] = mask
    visible = padded.reshape(side, size, side, size).sum((1, 3))
    queries = torch.full((side, 1), size)
    queries[-1] = length - (side - 1) * size
    state = (visible > 0).to(torch.uint8) + (visible == queries * size).to(torch.uint8)
    return Tiles(size, state, int(mask.sum()))


def layers_to(mask: torch.Tensor, query: int) -> torch.Tensor:
    """int64 [L]: the layer after which the output at `query` first depends on each key; -1 where it never does.

    mask is bool [L, L]. In each layer a token draws on the keys that it sees, and on itself through the residual
    connection: `query` has 0. js/masks.js computes the same.
    """
    layers = torch.full((mask.shape[0],), -1)
    layers[query] = 0
    frontier, layer = torch.tensor([query]), 0
    while len(frontier):
        layer += 1
        frontier = (mask[frontier].any(0) & (layers < 0)).nonzero()[:, 0]
        layers[frontier] = layer
    return layers


class MaskExplorer(Frame):
    """Made by `mask_explorer`. `step` is the query whose keys are followed through the layers."""

    _script = "explorer.js"
    pattern: Pattern

    def static_figure(self, step: int | None = None) -> Figure:
        """A still picture of the pattern that the widget starts with, for query `step` (None: the query now shown)."""
        start = self.meta["start"]
        query = min(self.step, start["length"] - 1) if step is None else step
        if not 0 <= query < start["length"]:
            raise ValueError(f"step: got {query}, takes a query from 0 to {start['length'] - 1}")
        return _draw(self.pattern, start, query, self.meta["dim"])


def mask_explorer(
    pattern: Pattern | None = None,
    length: int = 256,
    *,
    tile: int = 64,
    head_dim: int = 128,
    rates: Mapping | None = None,
) -> MaskExplorer:
    """Explore sparse patterns in the browser: mask, tiles, FLOPs, and what a query draws on after n layers.

    pattern, length (64 to 1024, a multiple of 16) and tile (16, 32, 64 or 128) say where the widget starts; each has a
    control, and so have the parameters of the pattern. A pattern that the sliders cannot express (a combination, your
    own list) is shown at `length`, as it is. None: a sliding window. head_dim (64 or 128) is for the FLOPs.

    rates turns on estimated times at 16 K and 128 K tokens: {"flops_per_second": of the visited tiles,
    "bytes_per_second": of Q, K, V and O, "heads": batch times heads of one launch, "label": device and date}.

    Raises TypeError or ValueError naming the argument.
    """
    if pattern is not None and not isinstance(pattern, Pattern):
        raise TypeError(f"pattern: got {type(pattern).__name__}, takes a Pattern of course_utils.patterns, or None")
    least, most, step = LENGTHS
    if not isinstance(length, int) or length not in range(least, most + 1, step):
        raise ValueError(f"length: got {length!r}, takes a multiple of {step} from {least} to {most}")
    for name, got, takes in (("tile", tile, TILES), ("head_dim", head_dim, HEAD_DIMS)):
        if got not in takes:
            raise ValueError(f"{name}: got {got!r}, takes {', '.join(map(str, takes[:-1]))} or {takes[-1]}")
    kind, values = ("sliding_window", _start_values("sliding_window"))
    given, data = None, b""
    if pattern is None:
        pattern = make_pattern(kind, values, length)
    elif (found := settings_of(pattern, length)) is not None:
        kind, values = found
    else:
        kind, values = "given", {}
        given, data = {"name": pattern.name, "length": length}, packed_bits(pattern.mask(length))
    meta = {
        "kinds": {kind: _described(kind) for kind in SLIDERS},
        "given": given,
        "dim": head_dim,
        "rates": checked_rates(rates),
        "start": {"kind": kind, "values": values, "length": length, "tile": tile, "layers": LAYERS},
        "lengths": LENGTHS,
    }
    widget = MaskExplorer(meta=meta, data=data, step=length * 3 // 4)
    widget.pattern = pattern
    return widget


def settings_of(pattern: Pattern, length: int) -> tuple[str, dict[str, int]] | None:
    """The kind and the slider values that show `pattern` for `length` tokens; None if the sliders cannot show it."""
    kind, given = pattern.kind, dict(pattern.parameters)
    match kind:
        case "tree":
            given = {"branching": sum(parent == 0 for parent in list(given["parents"])[:length])}
        case "document":
            given = {"tokens": list(given["lengths"])[0]}
        case "global_tokens":
            given = _spacing(list(given["positions"]))
        case "or":
            parts = {part.kind: part.parameters for part in given["parts"]}
            if set(parts) != {"local", "global_tokens"}:
                return None
            kind = "longformer"
            given = {"radius": parts["local"]["radius"], **_spacing(list(parts["global_tokens"]["positions"]))}
    if kind not in SLIDERS:
        return None
    values = {name: given[name] for name in SLIDERS[kind]}
    for name, (low, high, step, _) in SLIDERS[kind].items():
        if values[name] not in range(low, high + 1, step):
            return None
    same = torch.equal(make_pattern(kind, values, length).mask(length), pattern.mask(length))
    return (kind, values) if same else None


def packed_bits(mask: torch.Tensor) -> bytes:
    """`mask`, bool [L, L], as little-endian uint32 [L, ceil(L / 32)]: bit j % 32 of word j // 32 is key j."""
    rows, cols = mask.shape
    padded = np.zeros((rows, ceil_div(cols, 32) * 32), dtype=bool)
    padded[:, :cols] = mask.numpy()
    return np.packbits(padded, axis=1, bitorder="little").tobytes()


def _start_values(kind: str) -> dict[str, int]:
    return {name: start for name, (*_, start) in SLIDERS[kind].items()}


def _described(kind: str) -> dict:
    sliders = [
        {"name": name, "low": low, "high": high, "step": step, "value": value}
        for name, (low, high, step, value) in SLIDERS[kind].items()
    ]
    return {"group": "causal" if kind in CAUSAL else "not causal", "text": TEXTS.get(kind, kind), "sliders": sliders}


def _spacing(positions: list[int]) -> dict[str, int]:
    return {"count": len(positions), "spacing": positions[1] - positions[0] if len(positions) > 1 else 1}


def checked_rates(rates: Mapping | None) -> dict | None:
    """The speeds for estimated times, as `mask_explorer` takes them. Raises ValueError naming the argument."""
    if rates is None:
        return None
    if not isinstance(rates, Mapping) or set(rates) != set(RATES):
        got = sorted(rates) if isinstance(rates, Mapping) else type(rates).__name__
        raise ValueError(f"rates: got {got}, takes a dict with {', '.join(RATES)}")
    for name in RATES[:-1]:
        if not isinstance(rates[name], int | float) or not rates[name] > 0:
            raise ValueError(f"rates: {name}: got {rates[name]!r}, takes a positive number")
    return {**rates, "label": str(rates["label"])}


def _draw(pattern: Pattern, start: dict, query: int, dim: int) -> Figure:
    length, layers = start["length"], start["layers"]
    mask = pattern.mask(length)
    tiles, reached = tiles_of(mask, start["tile"]), layers_to(mask, query)
    figure = Figure(figsize=(7.8, 5.4), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0.05, 1, 0.95))  # the last line is for the note about still pictures
    grid = figure.add_gridspec(2, 2, height_ratios=(5, 1))
    figure.suptitle(f"{textwrap.shorten(pattern.name, 80, placeholder='…')}, L = {length}", fontsize=10)

    tokens = figure.add_subplot(grid[0, 0])
    two = ListedColormap(["white", BLUE])
    tokens.imshow(mask.numpy(), cmap=two, vmin=0, vmax=1, interpolation="nearest", extent=(0, length, length, 0))
    tokens.add_patch(Rectangle((0, query), length, 1, fill=False, edgecolor=ORANGE, linewidth=1.5))
    tokens.set(title="tokens: query i sees key j", xlabel="key j", ylabel="query i")
    _draw_tiles(figure.add_subplot(grid[0, 1]), tiles, length)

    strip = figure.add_subplot(grid[1, 0])
    after = torch.arange(layers + 1)[:, None]
    shown = ((reached >= 0) & (reached <= after)).int() + (reached == after).int()
    strip.imshow(
        shown.numpy(), cmap=ListedColormap(["white", BLUE, ORANGE]), vmin=0, vmax=2, interpolation="nearest",
        aspect="auto", extent=(0, length, layers + 0.5, -0.5),
    )  # fmt: skip
    strip.set(xlabel=f"keys that query {query} draws on", ylabel="layers", yticks=(0, layers))

    words = figure.add_subplot(grid[1, 1])
    words.axis("off")
    within = int(((reached >= 0) & (reached <= layers)).sum())
    lines = (
        f"{tiles.pairs:,} pairs of {length**2:,}: density {tiles.pairs / length**2:.1%}",
        f"FLOPs of pairs, d = {dim}: {4 * dim * tiles.pairs:,}",
        f"tiles: {tiles.count(FULL)} full, {tiles.count(PARTIAL)} partial, {tiles.count(SKIPPED)} skipped",
        f"FLOPs of visited tiles: {4 * dim * tiles.visited * tiles.size**2:,}",
        f"query {query} after {layers} layers: {within} of {length} tokens",
    )
    words.text(0, 0.25, "\n".join(lines), va="center", fontsize=9, transform=words.transAxes)
    return figure


def _draw_tiles(axes: Axes, tiles: Tiles, length: int) -> None:
    axes.set(xlim=(0, length), ylim=(length, 0), aspect="equal", ylabel="tile of queries")
    axes.set(title=f"tiles of {tiles.size} × {tiles.size}", xlabel="blue full, dotted partial, hatched skipped")
    axes.add_patch(Rectangle((0, 0), length, length, facecolor="white", edgecolor="0.75", hatch=MASKED_HATCH))
    styles = {FULL: {"facecolor": BLUE}, PARTIAL: {"facecolor": (GREEN, 0.3), "hatch": "....", "edgecolor": GREEN}}
    for row, col in tiles.state.nonzero().tolist():
        style = {"edgecolor": "0.4", "linewidth": 0.5, **styles[int(tiles.state[row, col])]}
        axes.add_patch(Rectangle((col * tiles.size, row * tiles.size), tiles.size, tiles.size, **style))
