"""Chapter 05's widget: one query through DeepSeek Sparse Attention: indexer scores, top-k, gathered latents, output."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from course_utils.costs import (
    TOP_K,
    V3_2,
    DeepSeekDims,
    dsa_flops,
    indexer_flops,
    indexer_pair_flops,
    mla_flops,
    mla_pair_flops,
)
from course_utils.plots.look import MATRICES
from course_utils.widgets.frame import Frame, check_limit, pack

MOST_TOKENS = 256
LONG = 128 * 1024  # tokens of the comparison at full length
SUM_TOLERANCE = 0.01  # of the weights of a row; 16-bit ones do not sum to 1 exactly
BLUE, ORANGE, GREY = (MATRICES[name] for name in ("Q", "pick", "S"))


@dataclass(frozen=True)
class DsaState:
    """The way of one query. Positions of keys are in ascending order.

    visible: the keys that the query sees. chosen: the k of them with the highest scores (of equal scores the first), or
    all of them. threshold: the lowest chosen score; minus infinity if there is no key. window: the last k visible keys.
    missed_by_window: chosen keys that are not in the window. The masses are sums of true attention over chosen, window
    and missed_by_window, between 0 and 1.
    """

    visible: tuple[int, ...]
    chosen: tuple[int, ...]
    threshold: float
    window: tuple[int, ...]
    missed_by_window: tuple[int, ...]
    mass_kept: float
    window_mass: float
    missed_mass: float


def dsa_state(logits: Tensor, weights: Tensor, query: int, k: int) -> DsaState:
    """The state of row `query` when the `k` highest scores are kept. js/dsa_explorer.js computes the same.

    logits [S, T], floating: the indexer's scores, minus infinity for keys that a query does not see. weights [S, T],
    floating: the true attention. Raises ValueError naming query or k.
    """
    queries, keys = logits.shape
    _check_range("query", query, 0, queries - 1)
    _check_range("k", k, 1, keys)
    scores, attention = logits[query].double(), weights[query].double()
    visible = (scores > -torch.inf).nonzero()[:, 0].tolist()
    best_first = torch.sort(scores, descending=True, stable=True).indices.tolist()
    chosen = best_first[: min(k, len(visible))]
    threshold = scores[chosen[-1]].item() if chosen else -torch.inf
    window = visible[-k:]
    missed = set(chosen) - set(window)

    def mass(of: list[int] | set[int]) -> float:
        return sum(attention[sorted(of)].tolist())

    return DsaState(
        tuple(visible),
        tuple(sorted(chosen)),
        threshold,
        tuple(window),
        tuple(sorted(missed)),
        mass(chosen),
        mass(window),
        mass(missed),
    )


def example_scores(tokens: int = 64) -> tuple[Tensor, Tensor]:
    """Made-up logits and attention weights, fp32 [tokens, tokens], always the same; at least 16 tokens.

    A query attends to its neighbourhood, to the first token, and to two of four tokens in the first half of the
    sequence, which take turns: a short window misses them. The scores follow the attention with noise; ReLU leaves many
    ties at zero.
    """
    generator = torch.Generator().manual_seed(5)
    position = torch.arange(tokens)
    query, key = position[:, None], position[None, :]
    topics = torch.tensor([1, 2, 4, 6]) * tokens // 16
    logits = 4.6 * torch.exp((key - query) / 2.5) + 2.5 * (key == 0)
    logits += 5 * (key == topics[query % 4]) + 3 * (key == topics[(query + 1) % 4])
    logits += 0.4 * torch.randn(tokens, tokens, generator=generator)
    scores = torch.relu(logits + 0.4 * torch.randn(tokens, tokens, generator=generator) - 0.5)
    unseen = key > query
    return scores.masked_fill(unseen, -torch.inf), torch.softmax(logits.masked_fill(unseen, -torch.inf), dim=1)


class DsaExplorer(Frame):
    """Made by `dsa_explorer`. `step` is the query shown."""

    _script = "dsa_explorer.js"
    logits: Tensor
    weights: Tensor

    def static_figure(self, step: int | None = None) -> Figure:
        """A still picture of all four stages for query `step` (None: the query now shown), with the k of the start."""
        query = self.step if step is None else step
        _check_range("step", query, 0, self.meta["queries"] - 1)
        return _draw(self.logits, self.weights, query, self.meta["top_k"])


def dsa_explorer(
    logits: Tensor | None = None,
    weights: Tensor | None = None,
    *,
    top_k: int | None = None,
    config: DeepSeekDims = V3_2,
) -> DsaExplorer:
    """Step queries through DeepSeek Sparse Attention in the browser: keys chosen and gathered, mass kept, and the cost.

    logits [S, T], floating: the indexer's scores, minus infinity above the causal border, as `lightning_indexer`
    returns them. weights [S, T], floating: the true attention probabilities, mean over heads; a row sums to 1, or to 0
    if it sees no key. At most 256 queries and keys, any device. Without both: `example_scores()`. top_k (1 to T) is
    where its slider starts; None: an eighth of the keys. config has the widths that FLOPs are counted for.

    Raises TypeError or ValueError naming the argument.
    """
    if logits is None and weights is None:
        logits, weights = example_scores()
    logits, weights = _matrix("logits", logits), _matrix("weights", weights)
    _check(logits, weights)
    queries, keys = logits.shape
    if top_k is None:
        top_k = max(keys // 8, 1)
    _check_range("top_k", top_k, 1, keys)
    long_core = dsa_flops(1, LONG, config=config) - indexer_flops(1, LONG, config=config)
    meta = {
        "queries": queries,
        "keys": keys,
        "top_k": top_k,
        "widths": [config.n_heads, config.kv_lora_rank, config.qk_rope_head_dim],
        "pair": {"indexer": indexer_pair_flops(config), "core": mla_pair_flops(config)},
        "long": {
            "keys": LONG,
            "top_k": TOP_K,
            "indexer": indexer_flops(1, LONG, config=config),
            "core": long_core,
            "dense": mla_flops(1, LONG, config=config),
        },
    }
    widget = DsaExplorer(meta=meta, data=pack(logits, weights), step=queries * 3 // 4)
    widget.logits, widget.weights = logits, weights
    return widget


def _check_range(name: str, got: object, low: int, high: int) -> None:
    if not isinstance(got, int) or isinstance(got, bool) or not low <= got <= high:
        raise ValueError(f"{name}: got {got!r}, takes a whole number from {low} to {high}")


def _matrix(name: str, tensor: Tensor | None) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: got {type(tensor).__name__}, takes a torch.Tensor [S, T]; leave out both for a demo")
    if not tensor.is_floating_point():
        raise TypeError(f"{name}: got dtype {tensor.dtype}, takes a floating dtype")
    if tensor.dim() != 2 or 0 in tensor.shape:
        raise ValueError(f"{name}: got shape {list(tensor.shape)}, takes [S, T], both at least 1")
    check_limit(f"{name}: queries", tensor.shape[0], MOST_TOKENS)
    check_limit(f"{name}: keys", tensor.shape[1], MOST_TOKENS)
    return tensor.detach().to("cpu", torch.float32).contiguous()


def _check(logits: Tensor, weights: Tensor) -> None:
    if weights.shape != logits.shape:
        raise ValueError(f"weights: got shape {list(weights.shape)}, takes that of logits, {list(logits.shape)}")
    if (logits.isnan() | (logits == torch.inf)).any():
        raise ValueError("logits: got NaN or +inf, takes finite scores, and -inf for keys that are not seen")
    if not (weights >= 0).all():
        raise ValueError("weights: got NaN or negative values, takes probabilities")
    hidden = logits == -torch.inf
    if (weights[hidden] > 0).any():
        row, col = ((weights > 0) & hidden).nonzero()[0].tolist()
        raise ValueError(f"weights: got {weights[row, col]:.3g} at [{row}, {col}], takes 0 where logits is -inf")
    sums, wanted = weights.sum(1), (~hidden).any(1).float()
    wrong = ((sums - wanted).abs() > SUM_TOLERANCE).nonzero()[:, 0].tolist()
    if wrong:
        row = wrong[0]
        raise ValueError(
            f"weights: got a sum of {sums[row]:.3g} in row {row}, takes {wanted[row]:.0f}: "
            "probabilities over the keys that the query sees, mean over heads"
        )


def _draw(logits: Tensor, weights: Tensor, query: int, k: int) -> Figure:
    state = dsa_state(logits, weights, query, k)
    scores, attention, keys = logits[query], weights[query], logits.shape[1]
    colours = [GREY] * keys
    for key in state.chosen:
        colours[key] = ORANGE if key in state.missed_by_window else BLUE
    figure = Figure(figsize=(8, 6), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0.04, 1, 0.96))  # the last line is for the note about still pictures
    bars, strips, gather, output = figure.subplots(4, 1, height_ratios=(4, 1.6, 3, 4), sharex=True)
    heights = scores.masked_fill(scores == -torch.inf, 0.0)
    chosen, last = len(state.chosen), len(state.window)
    titles = (
        f"1  Indexer scores of query t = {query}; dashed: the k-th",
        f"2  Top-k: the {chosen} highest of {len(state.visible)}; orange: not among the last {last}, below",
        f"3  Gathered latents: {chosen} of {keys} rows of the cache become one dense tile",
        f"4  True attention: the chosen keys hold {state.mass_kept:.1%}, the window {state.window_mass:.1%}; "
        f"orange: missed by the window, {state.missed_mass:.1%}",
    )
    for axes, title in zip((bars, strips, gather, output), titles, strict=True):
        axes.set_title(title, fontsize=9.5, loc="left")
    bars.bar(range(keys), heights.tolist(), color=colours)
    if state.chosen:
        bars.axhline(state.threshold, color="black", linestyle="--", linewidth=0.8)
    output.bar(range(keys), attention.tolist(), color=colours)
    output.set(xlabel="key s", xlim=(-0.5, keys - 0.5))
    for axes in (bars, output):
        axes.spines[["top", "right"]].set_visible(False)
    _draw_cells(strips, {key: colours[key] for key in state.chosen}, keys, 0.55, 0.4)
    _draw_cells(strips, dict.fromkeys(state.window, GREY), keys, 0.05, 0.4)
    _draw_cells(gather, {key: colours[key] for key in state.chosen}, keys, 0.7, 0.3)
    first = (keys - chosen) // 2
    tile = {first + n: colours[key] for n, key in enumerate(state.chosen)}
    _draw_cells(gather, tile, chosen, 0, 0.3, first)
    for place, key in zip(tile, state.chosen, strict=True):
        gather.plot((key, place), (0.7, 0.3), color=colours[key], linewidth=0.7)
    return figure


def _draw_cells(axes: Axes, filled: dict[int, str], count: int, low: float, height: float, first: int = 0) -> None:
    """A row of `count` cells from `first` on; filled: cell → colour."""
    axes.axis("off")
    axes.set_ylim(0, 1)
    cells = range(first, first + count)
    axes.broken_barh(
        [(n - 0.5, 1) for n in cells],
        (low, height),
        facecolor=[filled.get(n, "0.92") for n in cells],
        edgecolor="white",
        linewidth=0.4,
    )
