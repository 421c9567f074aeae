"""Chapter 06's widget: sequences take, share, copy and free pages; and how many sequences fit in a GPU's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from course_utils.costs import index_cache_bytes, kv_cache_bytes, mla_cache_bytes
from course_utils.planner import amount
from course_utils.planner.devices import DEVICES
from course_utils.plots.look import INK, LANES_OF_A_READ, ON_MARK, PALE
from course_utils.serving import Usage
from course_utils.widgets.cache_states import (
    PAGE_SIZES,
    RESERVED,
    ROWS,
    CacheState,
    cache_states,
    check_choice,
    count,
)
from course_utils.widgets.frame import MASKED_HATCH, Frame

LINE = 16  # rows on a line of the picture
COLOURS = dict(zip("ABCDEFG", (LANES_OF_A_READ[n] for n in (5, 2, 3, 1, 6, 4, 7)), strict=True))


class CachedModel(NamedTuple):
    """A model as its cache sees it. keeps: what it stores of a token, and in how many layers; bytes_of: bytes of some
    tokens in a dtype."""

    keeps: str
    bytes_of: Callable[[int, str], int]


class Fit(NamedTuple):
    """token: bytes of one token; sequence: bytes of a whole sequence; sequences: how many fit in `MEMORY`; longest: how
    many fit if each reserves room for the longest of `CONTEXTS`."""

    token: int
    sequence: int
    sequences: int
    longest: int


DTYPES = {"16 bits": 2, "FP8": 1}  # bytes of an element
CONTEXTS = tuple(1024 * 2**n for n in range(8))  # 1 K to 128 K
MEMORY = DEVICES["H100"].memory_bytes


def _llama(kv_heads: int) -> CachedModel:
    """32 layers with heads of 128 numbers. The scales of an FP8 cache, one for each KV head, weigh nothing."""

    def bytes_of(tokens: int, dtype: str) -> int:
        return kv_cache_bytes(tokens, kv_heads, 128, element_bytes=DTYPES[dtype], layers=32)

    return CachedModel(f"K and V of {kv_heads} heads of 128 numbers, in 32 layers", bytes_of)


def _latents(tokens: int, dtype: str, layers: int = 61) -> int:
    """FP8 as FlashMLA stores it: the latent in E4M3 with four fp32 scales, the RoPE key in bf16."""
    sizes = (
        {"element_bytes": 1, "rope_bytes": 2, "scale_bytes": 16} if dtype == "FP8" else {"element_bytes": DTYPES[dtype]}
    )
    return mla_cache_bytes(tokens, layers=layers, **sizes)


MODELS = {
    "Llama-2-7B, MHA": _llama(32),  # arXiv 2307.09288
    "Llama-3-8B, GQA": _llama(8),  # arXiv 2407.21783, table 3
    "DeepSeek-V3.2, MLA": CachedModel(  # arXiv 2412.19437, §4.2
        "one latent of 512 numbers and one RoPE key of 64, in 61 layers", _latents
    ),
}
RESERVED_NOTE = (
    f"Reserved: without pages each sequence gets, in one piece, the {RESERVED} rows that the longest one may need. A "
    "fork has a copy of all its rows."
)
NOTE = (
    f"All {amount(MEMORY)} for the cache: the weights need their own room. FP8 is E4M3; MLA keeps the RoPE key in bf16 "
    f"and four scales, {_latents(1, 'FP8', layers=1)} bytes a token and layer. The keys of DeepSeek-V3.2's indexer, "
    f"{index_cache_bytes(1)} bytes more, are not counted."
)


def fit(model: str, context: int, dtype: str) -> Fit:
    """What fits of a model's cache, for sequences of `context` tokens. Raises ValueError naming the argument."""
    check_choice("model", model, tuple(MODELS))
    check_choice("context", context, CONTEXTS)
    check_choice("dtype", dtype, tuple(DTYPES))
    token, sequence, longest = (MODELS[model].bytes_of(tokens, dtype) for tokens in (1, context, CONTEXTS[-1]))
    return Fit(token, sequence, MEMORY // sequence, MEMORY // longest)


def _fit_row(model: str, context: int, dtype: str) -> dict:
    """A fit as the browser shows it."""
    found = fit(model, context, dtype)
    said = (
        f"{model}: {MODELS[model].keeps}, are {amount(found.token)} a token. {context:,} tokens take "
        f"{amount(found.sequence)}: {count(found.sequences, 'sequence')} in {amount(MEMORY)}. If room for "
        f"{CONTEXTS[-1]:,} tokens were reserved for each, {found.longest} would have a place, however short they are."
    )
    return {
        "token": amount(found.token),
        "sequence": amount(found.sequence),
        "sequences": found.sequences,
        "said": said,
    }


class CacheExplorer(Frame):
    """Made by `cache_explorer`. `step` counts the actions of the story so far; `states` belong to the page
    size that the widget starts with."""

    _script = "cache_explorer.js"
    states: list[CacheState]

    def static_figure(self, step: int | None = None) -> Figure:
        """A still picture of step `step` (None: the step now shown), with the settings of the start."""
        step = self.step if step is None else step
        if not 0 <= step < len(self.states):
            raise ValueError(f"step: got {step}, takes 0 to {len(self.states) - 1}")
        return _draw(self.states[step], self.meta["start"])


def cache_explorer(
    page_size: int = 4, *, model: str = "Llama-3-8B, GQA", context: int = 8192, dtype: str = "16 bits"
) -> CacheExplorer:
    """Step through the life of a paged cache in the browser: pages fill, are shared, copied, given back; and see how
    many sequences fit into 80 GB.

    It opens on a fork just before its copy. page_size: tokens of a page at the start, 2, 4 or 8. model, context (tokens
    of a sequence, a power of two from 1,024 to 131,072) and dtype ("16 bits" or "FP8"): where the second part starts;
    `MODELS` has the models. Every state is one of a `PagedCache` without memory, which keeps only the books.

    Raises ValueError naming the argument.
    """
    states = {size: cache_states(size) for size in PAGE_SIZES}
    check_choice("page_size", page_size, PAGE_SIZES)
    fit(model, context, dtype)
    meta = {
        "line": LINE,
        "colours": COLOURS,
        "start": {"page_size": page_size, "model": model, "context": context, "dtype": dtype},
        "states": {size: [_sent(state) for state in found] for size, found in states.items()},
        "memory": amount(MEMORY),
        "notes": (RESERVED_NOTE, NOTE),
        "contexts": CONTEXTS,
        "fits": {
            dtype: [{model: _fit_row(model, context, dtype) for model in MODELS} for context in CONTEXTS]
            for dtype in DTYPES
        },
    }
    widget = CacheExplorer(meta=meta, data=b"", step=_opening_step(states[page_size]))
    widget.states = states[page_size]
    return widget


def _opening_step(states: Sequence[CacheState]) -> int:
    """The step before the first copy."""
    return next(n for n, state in enumerate(states) if state.copies) - 1


def _sent(state: CacheState) -> dict:
    """A state as JSON for the browser."""
    return {
        "said": state.said,
        "pages": [list(page) for page in state.pages],
        "tables": state.tables,
        "lengths": state.lengths,
        "taken": state.taken,
        "freed": state.freed,
        "copies": state.copies,
        "written": state.written,
        "waiting": state.waiting,
        "meters": [
            {"title": title, "said": said, "rows": (usage.filled, rows - usage.filled, ROWS - rows)}
            for title, said, usage, rows in _meters(state)
        ],
    }


def _meters(state: CacheState) -> list[tuple[str, str, Usage, int]]:
    """The meters of both caches, in pages and without pages: sequences with a place, usage and the taken rows."""
    there, meters = len(state.tables), []
    for kind, usage, placed in (
        ("In pages", state.usage, there),
        (f"Reserved, {RESERVED} rows each", state.reserved, len(state.placed)),
    ):
        title = f"{kind}: {placed} of {count(there, 'sequence')}"
        rows = usage.taken * usage.page_size
        said = f"{count(usage.tokens, 'token')} in {usage.filled} of {rows} taken rows: {usage.waste:.0%} empty"
        meters.append((title, said, usage, rows))
    return meters


# ---------------------------------------------------------------------------------------------- the still picture

BAR = LANES_OF_A_READ[5]
EMPTY = {"facecolor": "white", "edgecolor": "0.6", "hatch": MASKED_HATCH}
STRIDE = 1.8  # from line to line of the pool


def _draw(state: CacheState, start: dict) -> Figure:
    figure = Figure(figsize=(9.6, 5.2), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0.05, 1, 0.95))  # the last line is for the note about still pictures
    (pool, tables), (waste, fits) = figure.subplots(2, 2, width_ratios=(1.2, 1), height_ratios=(3.2, 1))
    _draw_pool(pool, state, start["page_size"])
    _draw_tables(tables, state)
    _draw_waste(waste, state)
    _draw_fits(fits, start["context"], start["dtype"])
    for axes in (pool, tables, waste, fits):
        axes.axis("off")
    return figure


def _draw_pool(axes: Axes, state: CacheState, size: int) -> None:
    """The pool in memory order: 16 rows a line, in pages. A shared row has the colours of all its owners."""
    corners = [
        (n * size % LINE + 0.35 * (n * size % LINE // size), STRIDE * (n * size // LINE)) for n in range(ROWS // size)
    ]
    for number, (page, (x, y)) in enumerate(zip(state.pages, corners, strict=True)):
        users = len(page.owners)
        axes.text(x, y - 0.12, f"{number} ×{users}" if users > 1 else f"{number}", fontsize=7, va="bottom")
        for n, owner in enumerate(page.owners):
            axes.add_patch(Rectangle((x, y + n / users), page.filled, 1 / users, facecolor=COLOURS[owner], linewidth=0))
        if users:
            axes.add_patch(Rectangle((x + page.filled, y), size - page.filled, 1, linewidth=0, **EMPTY))
        for row in range(page.filled):
            place = x + row + 0.5, y + 0.5
            axes.text(*place, page.first + row, fontsize=7, ha="center", va="center_baseline", color=ON_MARK)
        edge = {"edgecolor": INK, "linewidth": 1.8} if number in state.taken else {"edgecolor": "0.5", "linewidth": 0.8}
        style = "--" if number in state.freed else "-"
        axes.add_patch(Rectangle((x, y), size, 1, facecolor="none", linestyle=style, **edge))
    for old, new in state.copies:
        ends = [(corners[n][0] + size / 2, corners[n][1] + 0.5) for n in (old, new)]
        axes.add_patch(FancyArrowPatch(*ends, arrowstyle="->", mutation_scale=12, linewidth=1.6))
    axes.set(xlim=(-0.2, LINE + 0.35 * LINE / size), ylim=(STRIDE * ROWS / LINE - 0.6, -0.8))
    axes.set_title(f"The pool in pages of {size} rows; hatched: empty, two colours: shared", fontsize=9)


def _draw_tables(axes: Axes, state: CacheState) -> None:
    for y, (name, table) in enumerate(state.tables.items()):
        axes.add_patch(Rectangle((0, y + 0.1), 0.8, 0.7, facecolor=COLOURS[name], linewidth=0))
        axes.text(0.4, y + 0.45, name, fontsize=8, ha="center", va="center", color=ON_MARK)
        entries = "  ".join(f"{page}×" if len(state.pages[page].owners) > 1 else f"{page}" for page in table)
        _write(axes, 1.1, y + 0.45, f"{state.lengths[name]} tokens:  {entries}")
    _write(axes, 1.1, len(state.tables) + 0.45, state.waiting)
    axes.set(xlim=(0, 14), ylim=(7, 0))
    axes.set_title("Block tables; ×: others have this page, too", fontsize=9)


def _draw_waste(axes: Axes, state: CacheState) -> None:
    """Rows of both caches: with a token, empty, free."""
    for y, (title, said, usage, rows) in enumerate(_meters(state)):
        axes.barh(y, usage.filled, height=0.45, color=BAR)
        axes.barh(y, rows - usage.filled, height=0.45, left=usage.filled, **EMPTY)
        axes.barh(y, ROWS - rows, height=0.45, left=rows, color=PALE)
        _write(axes, 0, y - 0.42, f"{title}, {said}")
    axes.set(xlim=(0, ROWS), ylim=(1.3, -0.6))
    axes.set_title(f"{ROWS} rows: with a token, empty (hatched), free (grey)", fontsize=9)


def _draw_fits(axes: Axes, context: int, dtype: str) -> None:
    counts = {model: fit(model, context, dtype).sequences for model in MODELS}
    for y, (model, sequences) in enumerate(counts.items()):
        axes.barh(y, sequences, height=0.45, color=BAR)
        _write(axes, 0, y - 0.42, f"{model}: {sequences}")
    axes.set(ylim=(2.3, -0.6))
    axes.set_title(f"Sequences of {context:,} tokens in {amount(MEMORY)}, {dtype}", fontsize=9)


def _write(axes: Axes, x: float, y: float, text: str) -> None:
    """Text that takes no room in the layout."""
    axes.text(x, y, text, fontsize=8, va="center").set_in_layout(False)
