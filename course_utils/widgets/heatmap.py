"""Chapter 01's widget: the scores or the softmax weights of one head, one query row at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_utils.plots.look import MATRICES
from course_utils.widgets.frame import COLOUR_MAP, Frame, check_key, check_limit, one_head, pack

MOST_TOKENS = 64
MOST_DIM = 256


def scores_and_weights(
    query: torch.Tensor, key: torch.Tensor, *, scale: float, is_causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scaled scores (-inf where masked) and softmax weights (0 in a row that sees no key), float32 [L_q, L_k].

    query [L_q, d], key [L_k, d], float32; is_causal is bottom-right aligned. js/score_heatmap.js computes the same.
    """
    scores = scale * (query @ key.T)
    if is_causal:
        rows, cols = scores.shape
        visible = torch.arange(cols) <= torch.arange(rows)[:, None] + cols - rows
        scores = scores.masked_fill(~visible, -torch.inf)
    return scores, torch.softmax(scores, dim=1).nan_to_num(0.0)


class ScoreHeatmap(Frame):
    """Made by `score_heatmap`. `step` is the query row shown."""

    _script = "score_heatmap.js"

    def static_figure(self, step: int | None = None) -> Figure:
        """A still picture of the weights and of query row `step` (None: the row now shown)."""
        row = self.step if step is None else step
        rows, cols, dim = (self.meta[name] for name in ("rows", "cols", "dim"))
        if not 0 <= row < rows:
            raise ValueError(f"step: got {row}, takes a query row from 0 to {rows - 1}")
        values = torch.frombuffer(bytearray(self.data), dtype=torch.float32)
        query, key = values[: rows * dim].reshape(rows, dim), values[rows * dim :].reshape(cols, dim)
        scores, weights = scores_and_weights(query, key, scale=self.meta["scale"], is_causal=self.meta["is_causal"])

        figure = Figure(figsize=(8, 4.2), layout="constrained")
        figure.get_layout_engine().set(rect=(0, 0.05, 1, 0.95))  # the last line is for the note about still pictures
        map_axes, bar_axes = figure.subplots(1, 2, width_ratios=(1.1, 1))
        map_axes.set_facecolor("0.93")
        shown = weights.masked_fill(scores == -torch.inf, torch.nan).numpy()
        image = map_axes.imshow(shown, cmap=COLOUR_MAP, vmin=0)
        map_axes.add_patch(
            Rectangle((-0.5, row - 0.5), cols, 1, fill=False, edgecolor=MATRICES["pick"], linewidth=2, clip_on=False)
        )
        map_axes.set(title="softmax weights", xlabel="key j", ylabel="query i")
        figure.colorbar(
            image, ax=map_axes, shrink=0.85, label="weight (grey: masked)" if self.meta["is_causal"] else "weight"
        )
        bar_axes.bar(range(cols), weights[row].numpy(), color=MATRICES["Q"])
        bar_axes.set(title=f"query {row}{_named(self.meta['query_tokens'], row)}", xlabel="key j", ylabel="weight")
        bar_axes.spines[["top", "right"]].set_visible(False)
        if self.meta["key_tokens"] and cols <= 24:
            labels = [_short(token) for token in self.meta["key_tokens"]]
            for axes in (map_axes, bar_axes):
                axes.set_xticks(range(cols), labels, rotation=60, ha="right", rotation_mode="anchor")
        if self.meta["query_tokens"] and rows <= 24:
            map_axes.set_yticks(range(rows), [_short(token) for token in self.meta["query_tokens"]])
        return figure


def score_heatmap(
    query: torch.Tensor,
    key: torch.Tensor,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    tokens: Sequence[str] | tuple[Sequence[str], Sequence[str]] | None = None,
    row: int | None = None,
) -> ScoreHeatmap:
    """Explore the scores and attention weights of one head in the browser.

    query [L_q, d] and key [L_k, d] (or [1, 1, L, d]), floating, any device; at most 64 tokens each and d at most 256.
    scale=None means 1/sqrt(d). is_causal (bottom-right aligned) and the scale are only where the widget starts:
    both have a control. tokens names queries and keys alike when L_q = L_k; for cross-attention pass the pair
    (query_tokens, key_tokens). row is the query it opens on, by default the middle one.

    Raises TypeError or ValueError naming the argument.
    """
    query, key = one_head("query", query), one_head("key", key)
    check_key(query, key)
    for name, tensor in (("query", query), ("key", key)):
        check_limit(f"{name}: tokens", tensor.shape[0], MOST_TOKENS)
        check_limit(f"{name}: head dimension", tensor.shape[1], MOST_DIM)
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{name}: got values that are not finite, takes finite values")
    (rows, dim), cols = query.shape, key.shape[0]
    query_tokens, key_tokens = _token_names(tokens, rows, cols)
    if row is not None and not 0 <= row < rows:
        raise ValueError(f"row: got {row}, takes a query row from 0 to {rows - 1}")
    default = 1 / math.sqrt(dim)
    meta = {
        "rows": rows,
        "cols": cols,
        "dim": dim,
        "scale": default if scale is None else float(scale),
        "scale_name": "1/√d" if scale is None else "the scale given",
        "is_causal": bool(is_causal),
        "query_tokens": query_tokens,
        "key_tokens": key_tokens,
    }
    return ScoreHeatmap(meta=meta, data=pack(query, key), step=rows // 2 if row is None else row)


def _token_names(tokens, rows: int, cols: int) -> tuple[list[str] | None, list[str] | None]:
    if tokens is None:
        return None, None
    tokens = list(tokens)
    pair = tokens if len(tokens) == 2 and all(isinstance(part, list | tuple) for part in tokens) else [tokens, tokens]
    for part, length, of in ((pair[0], rows, "queries"), (pair[1], cols, "keys")):
        wrong = next((token for token in part if not isinstance(token, str)), None)
        if wrong is not None:
            raise TypeError(f"tokens: got {type(wrong).__name__} among the names of {of}, takes str")
        if len(part) != length:
            raise ValueError(
                f"tokens: got {len(part)} names for {length} {of}; takes one list of str when there are as many "
                "queries as keys, else a pair (query_tokens, key_tokens)"
            )
    return list(pair[0]), list(pair[1])


def _short(token: str) -> str:
    return token if len(token) <= 10 else token[:9] + "…"


def _named(tokens: list[str] | None, index: int) -> str:
    return f" “{tokens[index]}”" if tokens else ""
