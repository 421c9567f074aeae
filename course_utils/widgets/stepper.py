"""Chapter 02's widget: FlashAttention's forward pass, one tile at a time."""

from __future__ import annotations

import torch
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_utils.costs import naive_traffic, total_bytes
from course_utils.plots.look import MATRICES
from course_utils.widgets.frame import COLOUR_MAP, MASKED_HATCH, Frame, check_limit, one_head, pack
from course_utils.widgets.tiles import FLOAT_BYTES, TileStep, tile_steps

MOST_TOKENS = 128
MOST_DIM = 64
MOST_BLOCK = 32
MOST_BYTES = 1 << 20


class TileStepper(Frame):
    """Made by `tile_stepper`. `step` counts from 0; `steps` are the states that the browser shows."""

    _script = "tile_stepper.js"
    steps: list[TileStep]

    def static_figure(self, step: int | None = None) -> Figure:
        """A still picture of step `step` (None: the step now shown)."""
        step = self.step if step is None else step
        if not 0 <= step < len(self.steps):
            raise ValueError(f"step: got {step}, takes 0 to {len(self.steps) - 1}")
        return _draw(self.steps, step, self.meta)


def tile_stepper(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    block_rows: int = 16,
    block_cols: int = 16,
    is_causal: bool = False,
    scale: float | None = None,
    small: bool = False,
) -> TileStepper:
    """Step through the forward pass of one head in the browser: tiles, m, l, the rescale of O, bytes. It opens at the
    step whose rescaling changes most rows.

    query [L_q, d], key and value [L_k, d] (or [1, 1, L, d]), floating, any device; L at most 128, d at most 64,
    tiles of at most 32 rows and 32 columns. Causal is bottom-right aligned; scale=None means 1/sqrt(d). small: without
    the meters of memory. Every value shown comes from `tile_steps`.

    Raises TypeError or ValueError naming the argument.
    """
    query, key, value = one_head("query", query), one_head("key", key), one_head("value", value)
    for name, tensor in (("query", query), ("key", key)):
        check_limit(f"{name}: tokens", tensor.shape[0], MOST_TOKENS)
        check_limit(f"{name}: head dimension", tensor.shape[1], MOST_DIM)
    steps = tile_steps(
        query, key, value, block_rows=block_rows, block_cols=block_cols, is_causal=is_causal, scale=scale
    )
    check_limit("block_rows", block_rows, MOST_BLOCK)
    check_limit("block_cols", block_cols, MOST_BLOCK)
    L_q, d = query.shape
    L_k = key.shape[0]
    meta = {
        "query_length": L_q,
        "key_length": L_k,
        "block_rows": block_rows,
        "block_cols": block_cols,
        "dim": d,
        "is_causal": bool(is_causal),
        "small": bool(small),
        "shared": shared_parts(block_rows, block_cols, d),
        "naive_bytes": total_bytes(naive_traffic(1, 1, L_q, L_k, d, FLOAT_BYTES)),
        "steps": [_described(step) for step in steps],
    }
    data = pack(*(tensor for step in steps for tensor in _tensors(step)))
    if len(data) > MOST_BYTES:
        raise ValueError(
            f"block_rows, block_cols: got {block_rows} and {block_cols}, which make {len(steps)} steps or "
            f"{len(data):,} bytes for the browser; takes tiles that stay below {MOST_BYTES:,} bytes (larger tiles, "
            "fewer tokens)"
        )
    widget = TileStepper(meta=meta, data=data, step=_opening_step(steps))
    widget.steps = steps
    return widget


def shared_parts(block_rows: int, block_cols: int, head_dim: int) -> dict[str, int]:
    """Shared memory of one block in bytes, tile by tile, without padding against bank conflicts.

    Together: costs.tile_shared_bytes(..., score_tile=True). m, l and O live in registers.
    """
    return {
        "Q": block_rows * head_dim * FLOAT_BYTES,
        "K": block_cols * head_dim * FLOAT_BYTES,
        "V": block_cols * head_dim * FLOAT_BYTES,
        "S": block_rows * block_cols * FLOAT_BYTES,
    }


def _described(step: TileStep) -> dict:
    return {
        "kind": step.kind,
        "i": step.i,
        "j": step.j,
        "rows": step.rows,
        "cols": step.cols,
        "read": step.read_bytes,
        "written": step.written_bytes,
    }


def _tensors(step: TileStep) -> list[torch.Tensor]:
    """The numbers that travel to the browser for one step, in the order of js/tile_stepper.js."""
    last = step.LSE if step.kind == "write" else step.rescale
    return [*([] if step.S is None else [step.S]), step.m, step.l, last, step.O]


def _opening_step(steps: list[TileStep]) -> int:
    """The step whose rescaling changes most rows: the first glance should show what is new in this algorithm."""
    changed = [int(((step.rescale > 0) & (step.rescale < 1)).sum()) for step in steps]
    return max(range(len(steps)), key=lambda n: (changed[n], n))


def _draw(steps: list[TileStep], now: int, meta: dict) -> Figure:
    step = steps[now]
    figure = Figure(figsize=(9.6, 3.4 if meta["small"] else 4.4), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0.05, 1, 0.95))  # the last line is for the note about still pictures
    overview, tile, table, output = figure.subplots(1, 4, width_ratios=(1.5, 1.3, 1.1, 1.1))
    requested = sum(past.read_bytes + past.written_bytes for past in steps[: now + 1])
    title = f"step {now + 1} of {len(steps)}"
    if not meta["small"]:
        title += f": {requested:,} global bytes requested (naive algorithm: {meta['naive_bytes']:,} in all)"
    figure.suptitle(title, fontsize=10)

    overview.set(xlim=(0, meta["key_length"]), ylim=(meta["query_length"], 0), title="tiles of S", aspect="equal")
    overview.set(xlabel="key\ngrey: done, orange: now, hatched: skipped", ylabel="query")
    for n, other in enumerate(steps):
        if other.cols is None:
            continue
        style = {"facecolor": "0.82" if n < now else "white", "hatch": None}
        if other.skipped:
            style = {"facecolor": "white", "hatch": MASKED_HATCH}
        if n == now:
            style["facecolor"] = MATRICES["pick"]
        (top, bottom), (left, right) = other.rows, other.cols
        overview.add_patch(Rectangle((left, top), right - left, bottom - top, edgecolor="0.55", **style))

    first, last = step.rows
    tile.set(title=f"S of tile ({step.i}, {'–' if step.j is None else step.j})", xlabel="key")
    tile.set_yticks([row + 0.5 for row in range(first, last)], range(first, last), fontsize=8)
    if step.S is not None:
        left, right = step.cols
        tile.imshow(step.S.numpy(), cmap=COLOUR_MAP, extent=(left, right, last, first), aspect="auto")
    else:
        tile.text(0.5, 0.5, "skipped" if step.skipped else "inner loop over", ha="center", transform=tile.transAxes)
        tile.set_xticks([])

    tail = step.LSE if step.kind == "write" else step.rescale
    columns = (("m", step.m), ("LSE" if step.kind == "write" else r"$e^{m_{old}-m}$", tail), ("l", step.l))
    table.set(xlim=(0, 3), ylim=(last, first), xticks=[0.5, 1.5, 2.5], xticklabels=[name for name, _ in columns])
    table.tick_params(left=False, labelleft=False, length=0)
    table.xaxis.tick_top()
    for place, (_, values) in enumerate(columns):
        for row, value in enumerate(values.tolist(), start=first):
            text = f"{value:.2f}".replace("-inf", "−∞")
            table.text(place + 0.5, row + 0.5, text, ha="center", va="center", fontsize=8 if last - first <= 16 else 6)

    spread = float(step.O.abs().max()) or 1.0
    output.imshow(
        step.O.numpy(),
        cmap=COLOUR_MAP,
        aspect="auto",
        extent=(0, meta["dim"], last, first),
        norm=Normalize(-spread, spread),
    )
    output.set(title="O / l, written" if step.kind == "write" else "O, unnormalised", xlabel="feature", yticks=[])
    return figure
