"""Chapter 04's launches: what each kernel loads, counted, whether it is right, and its mistakes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from course_utils import checks, costs, patterns, plots, reference, show
from course_utils.chapters import broken_kernels
from course_utils.chapters.sparse_patterns.masks import FAR, LONGFORMER, at_random, states, tree_of
from course_utils.chapters.tensors import is_right, normal
from course_utils.cuda import RawModule, read_kernel
from course_utils.emulator import SanitizerReport, profile
from course_utils.operators import block_sparse_attention, csr_attention, sparse_attention, sparse_launch
from course_utils.patterns import Pattern
from course_utils.plots.sparse_patterns import FOR_NOTHING, NOT_LOADED

CHAPTER = "04_sparse_patterns"
BROKEN_FOLDER = f"{CHAPTER}/broken"
D = 64  # head dimension of all launches here
SMALL = (
    *(patterns.causal(), patterns.sliding_window(40), patterns.streaming(3, 30), patterns.dilated(9, 4)),
    *(patterns.power_of_two(), patterns.strided(12), patterns.fixed(12, 3), patterns.full(), patterns.local(20)),
    *(patterns.block_diagonal(48), FAR, FAR | patterns.local(9), LONGFORMER),
    *(patterns.random_blocks(16, 2, seed=0), patterns.bigbird(16, 1, 1, 1)),
)
FITTED = patterns.tree(tree_of(150)), patterns.local_2d(10, 15, 2), patterns.document([50, 99, 1])  # to 150 tokens
SIZES = (150,), (1, 70), (90, 50)  # L_q and L_k: no tile fits, one query, rows without a key


def inputs(L_q: int, L_k: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value of one head with d = 64."""
    return tuple(normal(1, 1, length, D, seed=seed) for seed, length in enumerate((L_q, L_k or L_q, L_k or L_q)))


# ---- ranges


def run_range(query: Tensor, key: Tensor, value: Tensor, pattern: Pattern, skip: bool, tile: int = 64) -> Tensor:
    """The output of range.cu for one head. skip: skip tiles without a visible pair, or only mask them."""
    options = f"-DD={D} -DBF16=0 -DB_R={tile} -DB_C={tile} -DWARPS=4 -DDILATED=0 -DSKIP={int(skip)}".split()
    module = RawModule(code=read_kernel(f"{CHAPTER}/range.cu"), options=options)
    out, lse = torch.empty_like(query), query.new_empty(query.shape[:3], dtype=torch.float32)
    L_q, L_k = query.shape[2], key.shape[2]
    scalars = np.int32(L_q), np.int32(L_k), np.int32(1), np.float32(D**-0.5)
    grid = costs.ceil_div(L_q, tile), query.shape[1], 1
    shared = 2 * D * (tile + 4 * tile) + 8 * tile  # Q, two buffers of K and V, and where each row's keys start and end
    args = query, key, value, out, lse, *scalars, *map(np.int32, pattern.ranges)
    module.get_function("range_forward")(grid, (128,), args, shared_mem=shared)
    return out


def loaded(pattern: Pattern, length: int, skip: bool) -> tuple[Tensor, int, int]:
    """The output of a launch of range.cu, the number of 64 × 64 tiles it loads, and the bytes it reads."""
    tensors = inputs(length)
    with profile() as counters:
        out = run_range(*tensors, pattern, skip)
    read = counters.total("bytes", "global", "load")
    return out, (read - tensors[0].nbytes) // (2 * 2 * 64 * D), read  # a tile of K and one of V, 2 bytes a number


def masked_or_skipped(pattern: Pattern, length: int = 512) -> int:
    """Shows what range.cu loads when it only masks, and when it skips tiles. Returns the number of tiles when it
    skips."""
    table, outputs = [], []
    for name, skip in (("only masked", False), ("tiles skipped", True)):
        out, tiles, read = loaded(pattern, length, skip)
        outputs.append(out)
        table.append({"": name, "tiles visited": tiles, "global KiB read": read / 1024})
    skipped = states(pattern, length)
    grids = torch.where(skipped == NOT_LOADED, FOR_NOTHING, skipped), skipped
    titles = [f"{row['']}: {row['tiles visited']} tiles" for row in table]
    plots.tile_states(dict(zip(titles, grids, strict=True)))
    plt.show()
    where = f"{pattern.name}, one head, L = {length}, d = {D}, counted by the emulator"
    show.table(table, where, folded=True)
    print("the same output:", torch.allclose(*outputs, atol=2e-3))
    return table[1]["tiles visited"]


# ---- rows of keys


def gather_or_blocks() -> list[dict[str, object]]:
    """What two kernels read of K and V for 4 random keys per query, counted, and whether they are right: a row each."""
    scattered, (query, key, value) = at_random(512, 4), inputs(512)
    (indptr, indices), lists = (make(512, device=query.device) for make in (scattered.csr, scattered.block_lists))
    expected, table = reference.sparse_attention(query, key, value, scattered), []
    for name, run in (
        ("csr_gather", lambda: csr_attention(query, key, value, indptr, indices)),
        ("block_sparse", lambda: block_sparse_attention(query, key, value, lists)),
    ):
        with profile() as counters:
            out = run()
        read = sum(row.bytes for row in counters.select("global", "load") if "matrix" in row.source)
        read -= query.nbytes if name == "block_sparse" else 0  # the same line copies Q
        line = {"": name, "KiB of K and V read": read / 1024, "bytes per pair kept": read / scattered.pairs(512)}
        table.append(line | {"right": checks.error_report(out, expected).passed})
    return table


def show_gathered() -> None:
    """Draws what both kernels of `gather_or_blocks` read for each visible pair."""
    rows = {str(row[""]): {"": row["bytes per pair kept"]} for row in gather_or_blocks()}
    plots.dots({"": rows}, "bytes of K and V read for each pair that is kept", log=False)
    plt.show()


# ---- right or not


def agrees(pattern: Pattern, L_q: int, L_k: int | None = None) -> bool:
    """Whether output and log-sum-exp at these lengths are right, against the dense mask in float64."""
    tensors = inputs(L_q, L_k)
    expected = reference.sparse_attention(*tensors, pattern, return_lse=True)
    return is_right(sparse_attention(*tensors, pattern, return_lse=True), expected)


def gradients_agree(pattern: Pattern, length: int = 150) -> list[bool]:
    """Whether dQ, dK and dV are right, against the dense mask in float64."""
    leaves, grad = [x.requires_grad_() for x in inputs(length)], normal(1, 1, length, D, seed=3)
    found = torch.autograd.grad(sparse_attention(*leaves, pattern), leaves, grad)
    mask = pattern.mask(length, device=grad.device)
    expected = reference.attention_gradients(*(x.detach() for x in leaves), grad, attn_mask=mask)
    return [checks.error_report(*pair).passed for pair in zip(found, expected, strict=True)]


def flex(*tensors: Tensor, **options: object) -> Tensor:
    """FlexAttention in eager mode, without its warning about torch.compile."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return flex_attention(*tensors, **options)


def say_blocks(name: str, block_mask: BlockMask) -> None:
    """Prints how many blocks a BlockMask of FlexAttention skips, and how many of each kind a row has."""
    print(f"{name}: {block_mask.sparsity():.0f} % of the blocks are skipped")
    print("partial blocks in each row:", block_mask.kv_num_blocks[0, 0].tolist(), end=", ")
    print("full ones:", block_mask.full_kv_num_blocks[0, 0].tolist())


# ---- mistakes


def run_blocks(source: str, pattern: Pattern, tensors: Sequence[Tensor]) -> Tensor:
    """The output of a source of block_sparse.cu on the lists of a pattern, with no row split."""
    query, key, value = tensors
    lists = pattern.block_lists(query.shape[2], key.shape[2], device=query.device)
    ends = lists.indptr.tolist()
    items = torch.tensor([(n, ends[n], ends[n + 1], -1) for n in range(lists.rows)], dtype=torch.int32)
    out, lse, none = torch.full_like(query, torch.nan), torch.zeros(query.shape[:3]), torch.zeros(1)
    args = query, key, value, out, lse, items, lists.indices, lists.bits_index, lists.bits, none, none
    scalars = np.int32(query.shape[2]), np.int32(key.shape[2]), np.int32(1), np.float32(D**-0.5)
    of_softmax = lists.indptr, np.float32(0), none  # neither a softcap nor sinks
    tile = sparse_launch.BLOCK_TILES[64, D][0]
    kernel = RawModule(code=source, options=(*tile.options, "-DBF16=0")).get_function("block_sparse_forward")
    kernel(
        (len(items), query.shape[1], 1), (tile.threads,), (*args, *scalars, *of_softmax), shared_mem=tile.shared_bytes
    )
    return out


def mistakes() -> None:
    """Shows what detects each of the chapter's broken kernels, and its lesson."""
    broken_kernels.show_rows(broken_kernels.results(BROKEN_FOLDER))
    print(f"mended, all right: {broken_kernels.mended_are_right(BROKEN_FOLDER)}")


def rows_named(report: SanitizerReport, pattern: Pattern, length: int) -> str:
    """Which rows of blocks of a `run_blocks` launch the sanitizer names: "no row", "the last row" or "every row",
    judged by the block of the first finding."""
    first = min((finding.block[0] for finding in report.findings if finding.block), default=None)
    if first is None:
        return "no row"
    return "the last row" if first == len(pattern.block_lists(length).indptr) - 2 else "every row"
