"""Chapter 04's patterns as pictures: masks, tiles, the useful share of tiles, kernels, and reach."""

from __future__ import annotations

import re
from collections.abc import Mapping

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from course_utils import patterns, plots, show
from course_utils.cuda import read_kernel
from course_utils.operators import choose_kernel, sparse_work
from course_utils.patterns import Pattern
from course_utils.plots.sparse_patterns import FULL, NOT_LOADED, PARTLY

LAYERS = (1, 2, 3, 4, 8)  # of the table of reach
L_OF_ALL = 4096  # tokens, of the table of all patterns


def short(name: str) -> str:
    """The name of a pattern without the names of its arguments."""
    return re.sub(r"\w+=", "", name)


def tree_of(tokens: int, children: int = 4) -> list[int]:
    """Parents of a tree in which each token has up to `children`."""
    return [-1, *(n // children for n in range(tokens - 1))]


def at_random(length: int, keys: int) -> Pattern:
    """A pattern of `keys` random keys for each query."""
    drawn = torch.rand(length, length, generator=torch.Generator().manual_seed(0)).topk(keys).indices
    return patterns.from_csr(torch.arange(0, length * keys + 1, keys), drawn.sort().values.flatten())


FAR = patterns.global_tokens([0, 1, 130, 131])
LONGFORMER = (patterns.sliding_window(32) | patterns.global_tokens([0, 64, 128, 192])) & patterns.causal()
DOCUMENTS = patterns.document([50, 110, 20, 76])
FIVE_INTEGERS = (
    patterns.causal(),
    patterns.sliding_window(4096),
    patterns.streaming(4, 1024),
    patterns.local(256),
    patterns.block_diagonal(256),
    patterns.dilated(512, 8),
)
EDGES = (
    patterns.sliding_window(64),
    patterns.sliding_window(512),
    patterns.sliding_window(4096),
    patterns.streaming(4, 1024),
    patterns.block_diagonal(16),
    patterns.block_diagonal(256),
)
COMPLEXITY = {
    patterns.causal(): "L²/2",
    patterns.sliding_window(256): "L·W",
    patterns.streaming(4, 252): "L·(s + W)",
    patterns.dilated(256, 4): "L·W",
    patterns.power_of_two(): "L·log₂ L",
    patterns.strided(64): "L·(l + L/2l)",
    patterns.fixed(64, 8): "L·(l/2 + c·L/2l)",
    patterns.tree(tree_of(L_OF_ALL)): "L·depth",
    patterns.full(): "L²",
    patterns.local(128): "L·(2r + 1)",
    patterns.block_diagonal(256): "L·B",
    patterns.document([1000, 96, 2000, 1000]): "Σ length²",
    patterns.global_tokens(range(16)): "2g·L",
    patterns.local_2d(64, 64, 8): "L·(2r + 1)²",
    patterns.random_blocks(64, 3, seed=0): "L·B·random",
    patterns.bigbird(64): "L·B·(window + random + 2·global)",
}
OF_REACH = (
    patterns.sliding_window(17),
    patterns.streaming(4, 13),
    patterns.dilated(17, 4),
    patterns.power_of_two(),
    patterns.strided(16),
    patterns.bigbird(16, 1, 1, 1),
    patterns.block_diagonal(16),
)


# ---- galleries


def show_masks(shown: Mapping[str, Pattern], columns: int = 4) -> None:
    """Draws masks of 256 tokens, by their titles."""
    plots.mask_gallery({title: pattern.mask(256) for title, pattern in shown.items()}, columns)
    plt.show()


def show_causal() -> None:
    """Draws the causal patterns."""
    shown = [patterns.causal(), patterns.sliding_window(64), patterns.streaming(16, 48), patterns.dilated(8, 16)]
    shown += [patterns.power_of_two(), patterns.strided(16), patterns.fixed(32, 4), patterns.tree(tree_of(256))]
    show_masks({pattern.kind: pattern for pattern in shown})


def show_both_ways() -> None:
    """Draws the patterns that look ahead, too."""
    shown = [patterns.full(), patterns.local(24), patterns.block_diagonal(48), DOCUMENTS]
    shown += [FAR | patterns.local(12), patterns.random_blocks(16, 3, seed=0), patterns.bigbird(16, 1, 3, 2)]
    shown += [patterns.local_2d(16, 16, 2)]
    show_masks({"global_tokens | local" if pattern.kind == "or" else pattern.kind: pattern for pattern in shown})


def show_sorted() -> None:
    """Draws a dilated pattern, and the same pattern with its positions sorted by residue class."""
    order = torch.argsort(torch.arange(128) % 8, stable=True)
    mask = patterns.dilated(16, 8).mask(128)
    plots.mask_gallery({"dilated(16, 8)": mask, "positions sorted by i mod 8": mask[order][:, order]}, 2, tile=16)
    plt.show()


def show_code_and_image() -> None:
    """Draws a causal mask for one of our files, one token per line, and what a patch of an image sees."""
    lines = read_kernel("04_sparse_patterns/block_sparse.cu").splitlines()[:256]
    marks = ("#include", "constexpr", "extern", "struct", "__device__")
    chosen = [n for n, line in enumerate(lines) if line.startswith(marks)]
    of_code = (patterns.sliding_window(16) | patterns.global_tokens(chosen)) & patterns.causal()
    image, flat = (
        pattern.mask(256)[8 * 16 + 8].view(16, 16) for pattern in (patterns.local_2d(16, 16, 2), patterns.local(12))
    )
    masks = {"globals at declarations": of_code.mask(len(lines))}
    plots.mask_gallery(masks | {"what a patch sees: local_2d(r=2)": image, "local(r=12)": flat}, 3, tile=16)
    plt.show()
    print(f"{len(chosen)} of {len(lines)} lines are global; density {of_code.density(len(lines)):.0%}")
    print(f"keys of a patch: {int(image.sum())} in two dimensions, {int(flat.sum())} in one")


# ---- ranges and tiles


def show_ranges() -> None:
    """Draws what one row of six small range patterns sees."""
    shown = [patterns.causal(), patterns.sliding_window(16), patterns.streaming(4, 12), patterns.local(8)]
    shown += [patterns.block_diagonal(16), patterns.dilated(6, 4)]
    plots.mask_gallery({short(pattern.name): pattern.mask(64) for pattern in shown}, 3, tile=16, row=41)
    plt.show()


def range_table() -> None:
    """Shows the five integers of six patterns."""
    for pattern in FIVE_INTEGERS:
        assert choose_kernel(pattern, 4096).kernel in ("range", "dense")
    table = [{"pattern": pattern.name} | pattern.ranges._asdict() for pattern in FIVE_INTEGERS]
    show.table(table, "the five integers of six patterns; 2^30 stands for no end", folded=True)


def states(pattern: Pattern, length: int, tile: int = 64) -> Tensor:
    """For each tile whether it is skipped, partly or all visible, as `plots.tile_states` takes it."""
    share = pattern.mask(length).view(length // tile, tile, length // tile, tile).float().mean(dim=(1, 3))
    return torch.where(share == 0, NOT_LOADED, torch.where(share == 1, FULL, PARTLY))


def visited(pattern: Pattern, length: int) -> int:
    """Number of 64 × 64 tiles that hold a visible pair, from the dense mask."""
    return int((states(pattern, length) != NOT_LOADED).sum())


def useful(pattern: Pattern, length: int = 16384) -> tuple[float, float]:
    """The share of all pairs that lie in the visited 64 × 64 tiles, and the visible share of the pairs in those
    tiles."""
    in_tiles = len(pattern.block_lists(length).indices) * 64 * 64
    return in_tiles / length**2, pattern.pairs(length) / in_tiles


def show_useful() -> None:
    """Draws how much of the visited tiles is useful, by pattern."""
    rows = {short(pattern.name): {"": 100 * useful(pattern)[1]} for pattern in EDGES}
    plots.dots({"": rows}, "% of the visited pairs that the pattern keeps, L = 16384", log=False, mark=100)
    plt.show()


# ---- lists


def show_blocks(pattern: Pattern, length: int) -> None:
    """Draws the mask of a pattern beside its blocks."""
    plots.mask_and_blocks(pattern.mask(length), states(pattern, length))
    plt.show()


def show_split() -> None:
    """Draws the blocks of keys of each row of blocks of BigBird, before and after long rows are split."""
    lists = patterns.bigbird(64).block_lists(4096)
    pieces = [end - start for _, start, end, _ in sparse_work.work_items(lists, heads=16).items.tolist()]
    plots.pieces_of_work({"a row of blocks each": lists.indptr.diff().tolist(), "long rows split": pieces})
    plt.show()


def random_and_powers() -> float:
    """Draws which blocks scattered keys visit. Returns how many a row of 64 queries visits with 8 random keys."""
    table = []
    for name, pattern in (("8 random keys", at_random(2048, 8)), ("power_of_two", patterns.power_of_two())):
        blocks, pairs = len(pattern.block_lists(2048).indices), pattern.pairs(2048)
        line = {"pattern": name, "keys per query": pairs / 2048, "blocks per row of blocks": blocks / 32}
        line |= {"useful pairs": f"{pairs / blocks / 64**2:.1%}", "kernel": choose_kernel(pattern, 2048).kernel}
        table.append(line | {"with a gradient": choose_kernel(pattern, 2048, differentiable=True).kernel})
    show.table(table, "L = 2048, blocks of 64 × 64")
    return table[0]["blocks per row of blocks"]


# ---- every pattern


def show_complexity() -> None:
    """Draws the share of pairs that each pattern keeps, by the kernel that it gets, and the formula for their
    number."""
    names = {"range": "range.cu", "dense": "dense, on a view", "block_sparse": "block_sparse.cu"}
    rows = {}
    for pattern, formula in COMPLEXITY.items():
        kernel = names[choose_kernel(pattern, L_OF_ALL).kernel]
        rows[f"{short(pattern.name)}   {formula}"] = {kernel: 100 * pattern.density(L_OF_ALL)}
    plots.dots({"": rows}, f"% of the pairs, L = {L_OF_ALL}")
    plt.show()


def complexity_table() -> None:
    """Shows the pairs of each pattern, by formula and counted, which kernel it gets, and why."""
    table = []
    for pattern, formula in COMPLEXITY.items():
        line = {"pattern": short(pattern.name), "pairs": formula}
        line |= {"counted": pattern.pairs(L_OF_ALL), "density": f"{pattern.density(L_OF_ALL):.1%}"}
        kernel, why = choose_kernel(pattern, L_OF_ALL)
        table.append(line | {"kernel": kernel, "because": why})
    show.table(table, f"which kernel, and why; L = {L_OF_ALL}", folded=True)


# ---- reach


def reached(pattern: Pattern, layers: int) -> float:
    """The share of 256 tokens whose information can have reached the last one after so many layers."""
    power = torch.linalg.matrix_power(pattern.mask(256).float(), layers)
    return (power[-1] > 0).float().mean().item()


def show_reach() -> None:
    """Draws the reach of seven patterns, by layers."""
    plots.reach({short(pattern.name): {n: reached(pattern, n) for n in LAYERS} for pattern in OF_REACH})
    plt.show()


def reach_table() -> None:
    """Shows the figures of `show_reach`, with the pairs per query."""
    table = []
    for pattern in OF_REACH:
        line = {"pattern": short(pattern.name), "pairs per query": pattern.pairs(256) / 256}
        table.append(line | {f"{layers} layers": f"{reached(pattern, layers):.0%}" for layers in LAYERS})
    show.table(table, "tokens that the last of 256 can depend on", folded=True)
