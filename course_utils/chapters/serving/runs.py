"""Chapter 06's launches: what each kernel reads of a cache, whether it is right, and its mistakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from course_utils import checks, costs, plots, reference, show
from course_utils.chapters import broken_kernels
from course_utils.chapters.tensors import is_right, normal
from course_utils.emulator import profile, sanitize
from course_utils.launches.broken import BROKEN
from course_utils.launches.serving import RUNGS, rung
from course_utils.operators import (
    append_paged,
    cascade_attention,
    decode_attention,
    decode_step,
    merge_attention,
    paged_attention,
    serving_choice,
)

CHAPTER = "06_serving"
HEADS, KV_HEADS, D = 8, 2, 64  # of all launches here
LENGTHS = (300, 0, 7, 128)  # of the sequences of a ragged batch
GUESSES = ("a", "the", "warp", "block", "key", "has", "reads")
PARENTS = (-1, 0, 0, 1, 1, 2, 4)  # of these words


def inputs(length: int, *, batch: int = 1, queries: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value of a decode step."""
    cache = batch, KV_HEADS, length, D
    return normal(batch, HEADS, queries, D), normal(*cache, seed=1), normal(*cache, seed=2)


def lengths_of(counts: Sequence[int], like: Tensor) -> Tensor:
    """The lengths as int32, on the device of another tensor."""
    return torch.tensor(counts, dtype=torch.int32, device=like.device)


# ---- what is read


def show_reads(length: int = 512) -> float:
    """Draws how often each kernel requests the cache, counted. Returns the figure for one warp per query head."""
    query, key, value = inputs(length)
    kernels: dict[str, Callable[[], object]] = {
        title: lambda name=name: rung(name, query, key, value) for name, title in RUNGS.items()
    }
    kernels["packed heads, keys in 4 pieces"] = lambda: decode_attention(query, key, value, num_splits=4)
    found = {}
    for name, run in kernels.items():
        with profile() as counters:
            run()
        rows = [row for row in counters.select("global", "load") if row.file != f"{CHAPTER}/merge.cu"]
        blocks_with_query = 4 if "pieces" in name else 1
        asked = sum(row.bytes for row in rows if "parts" not in row.source) - blocks_with_query * query.nbytes
        found[name] = asked / (key.nbytes + value.nbytes)
    plots.bars(list(found), {"bytes of K and V that are asked for, as a multiple of the cache": list(found.values())})
    plt.show()
    return found[RUNGS["warp_per_head"]]


# ---- pieces


def cut(lengths: Sequence[int], wanted: int) -> list[tuple[int, int]]:
    """The pieces of a ragged batch as pieces.cuh makes them, pieces longer than half of the wanted size first: pairs of
    a sequence and its number of keys."""
    size = max(1, costs.ceil_div(sum(lengths), wanted))
    found = [(b, min(size, keys - first)) for b, keys in enumerate(lengths) for first in range(0, max(keys, 1), size)]
    return sorted(found, key=lambda piece: 2 * piece[1] <= size)


def show_pieces(lengths: Sequence[int], wanted: int) -> float:
    """Draws a block for each sequence beside pieces of one size, in K keys. Returns the ratio of the longest block of
    the first to that of the second."""
    alone, shared = list(enumerate(lengths)), cut(lengths, wanted)
    panels = {"a block for each sequence": alone, f"pieces of one size, about {wanted}": shared}
    scaled = {title: [(b, keys / 1024) for b, keys in blocks] for title, blocks in panels.items()}
    plots.pieces_of_sequences(scaled, "K keys, one after the other")
    plt.show()
    return max(lengths) / max(keys for _, keys in shared)


def show_waves(batch: int = 1, kv_heads: int = 8, places: int = 132) -> int:
    """Draws the share of the GPU's block slots that are busy, by the number of splits. Returns the number that is
    chosen."""
    shares = {n: 100 * costs.wave_efficiency(batch * kv_heads * n, places) for n in range(1, 65)}
    chosen = costs.splits_by_waves(batch * kv_heads, places, max(shares))
    title = f"{batch * kv_heads} blocks for each split, {places} places"
    plots.sweeps({title: shares}, {title: chosen}, "splits", "% of the places at work")
    plt.show()
    return chosen


# ---- right or not


def check_rungs() -> None:
    """Checks each rung on a ragged batch against float64."""
    tensors = inputs(max(LENGTHS), batch=len(LENGTHS))
    lengths = lengths_of(LENGTHS, tensors[0])
    expected = reference.decode_attention(*tensors, seq_lens=lengths, return_lse=True)
    for name, title in RUNGS.items():
        print(f"{title:24} right: {is_right(rung(name, *tensors, lengths), expected)}")
    for splits in (1, 3, 8):
        found = decode_attention(*tensors, seq_lens=lengths, num_splits=splits, return_lse=True)
        print(f"keys in pieces, {splits} splits right: {is_right(found, expected)}")
    print("a sequence without keys: O", found[0][1].abs().max().item(), " LSE", found[1][1].max().item())


def check_merge() -> None:
    """Checks attention over two halves of the keys, merged, against attention over all keys."""
    query, key, value = inputs(200)
    halves = [
        decode_attention(query, key[:, :, part].contiguous(), value[:, :, part].contiguous(), return_lse=True)
        for part in (slice(0, 150), slice(150, 200))
    ]
    found = merge_attention(*(torch.stack(parts) for parts in zip(*halves, strict=True)))
    print("two parts merged, right:", is_right(found, reference.decode_attention(query, key, value, return_lse=True)))
    mean = (halves[0][0] + halves[1][0]) / 2
    print("their plain mean, right:", checks.error_report(mean, reference.decode_attention(query, key, value)).passed)


def pages_of(cache: Sequence[Tensor], page_size: int, counts: Sequence[int]) -> tuple[list[Tensor], Tensor]:
    """K and V `[B, H_kv, L, d]` in pages in random order; NaN where there is no token, and junk in the table's unused
    entries."""
    batch, kv_heads, length, head_dim = cache[0].shape
    most = costs.ceil_div(length, page_size)
    table = torch.randperm(batch * most, generator=torch.Generator().manual_seed(0)).view(batch, most)
    pages = [tensor.new_full((batch * most, page_size, kv_heads, head_dim), torch.nan) for tensor in cache]
    for b, keys in enumerate(counts):
        rows = (table[b][:, None] * page_size + torch.arange(page_size)).flatten()[:keys]
        for made, tensor in zip(pages, cache, strict=True):
            made.flatten(0, 1)[rows] = tensor[b, :, :keys].transpose(0, 1)
        table[b, costs.ceil_div(keys, page_size) :] = 2**31 - 1
    return pages, table.int().to(cache[0].device)


def check_pages() -> None:
    """Checks pages of several sizes in random order against the contiguous cache, bit for bit."""
    query, *cache = inputs(max(LENGTHS), batch=len(LENGTHS))
    lengths = lengths_of(LENGTHS, query)
    plain = decode_attention(query, *cache, seq_lens=lengths, split_size=128)
    for page_size in (1, 5, 16, 256):
        pages, table = pages_of(cache, page_size, LENGTHS)
        out = paged_attention(query, *pages, table, lengths, split_size=128)
        print(f"pages of {page_size:3}: the same bits as without pages: {torch.equal(out, plain)}")


def fifty_keys_in_pages() -> None:
    """Launches attention to one sequence of 50 keys, in pages of 8 in random order: few enough to follow each copy."""
    query, *cache = inputs(64)
    pages, table = pages_of(cache, 8, (50,))
    paged_attention(query, *pages, table, lengths_of((50,), query))


def check_cascade() -> None:
    """Checks a prompt that is read once for all sequences against one that each sequence reads."""
    query, *own = inputs(40, batch=3)
    _, *shared = inputs(100)
    pages, table = pages_of(own, 16, (40, 7, 25))
    lengths = lengths_of((40, 7, 25), query)
    found = cascade_attention(query, *(tensor[0] for tensor in shared), *pages, table, lengths, return_lse=True)
    both = [torch.cat((tensor.expand(3, -1, -1, -1), mine), dim=2) for tensor, mine in zip(shared, own, strict=True)]
    expected = reference.decode_attention(query, *both, seq_lens=lengths + 100, return_lse=True)
    print("a prompt of 100 tokens read once for 3 sequences, right:", is_right(found, expected))


def check_tree() -> None:
    """Checks a tree of guesses against its mask in float64, and against a chain."""
    query, key, value = inputs(60, queries=len(PARENTS))
    parents = lengths_of(PARENTS, query)[None]
    found = decode_attention(query, key, value, parents=parents, return_lse=True)
    print(
        "as a tree, right:",
        is_right(found, reference.decode_attention(query, key, value, parents=parents, return_lse=True)),
    )
    chain = decode_attention(query, key, value)
    same = [bool(torch.equal(chain[:, :, i], found[0][:, :, i])) for i in range(len(PARENTS))]
    print("rows that a chain gives, too:", [i for i, equal in enumerate(same) if equal])


def show_tree() -> None:
    """Draws the tree of guesses, and which of its tokens each one sees."""
    visible = reference.serving.seen_keys(len(PARENTS), len(PARENTS), list(PARENTS))
    plots.tree_and_mask(PARENTS, visible, GUESSES)
    plt.show()


def check_step(layers: int = 3) -> None:
    """Checks one launch for all layers against append and attention, layer by layer."""
    query, *cache = inputs(48, batch=2)
    counts = (48, 21)
    pages, table = pages_of(cache, 16, counts)
    lengths = lengths_of(counts, query)
    by_layer = [normal(layers, *tensor.shape, seed=n) for n, tensor in enumerate((query, *pages))]
    new = [normal(layers, 2, 1, KV_HEADS, D, seed=n) for n in (3, 4)]
    ours = [tensor.clone() for tensor in by_layer[1:]]
    out = decode_step(by_layer[0], *new, *ours, table, lengths, split_size=32)
    same = True
    for n in range(layers):
        append_paged(new[0][n], new[1][n], by_layer[1][n], by_layer[2][n], table, lengths)
        plain = paged_attention(by_layer[0][n], by_layer[1][n], by_layer[2][n], table, lengths, split_size=32)
        same &= torch.equal(plain, out[n])
    same_pages = all(map(torch.equal, ours, by_layer[1:]))
    print(f"{layers} layers in one launch: the same outputs bit by bit: {same}, the same pages: {same_pages}")


def error_of_eight_bits(length: int = 400) -> float:
    """Prints the errors of launches with keys and values rounded from fp32 to fp16, and to E4M3. Returns the ratio of
    the second error to the first."""
    query = normal(1, HEADS, 1, D)
    exact = [normal(1, KV_HEADS, length, D, seed=n, dtype=torch.float32) for n in (1, 2)]
    expected = reference.decode_attention(query, *exact)
    scales = [tensor.abs().amax((2, 3)) / torch.finfo(serving_choice.E4M3).max for tensor in exact]
    eight = [
        (tensor / scale[..., None, None]).to(serving_choice.E4M3) for tensor, scale in zip(exact, scales, strict=True)
    ]
    outputs = {
        "16 bits": decode_attention(query, *(tensor.half() for tensor in exact)),
        "E4M3": decode_attention(query, *eight, k_scale=scales[0], v_scale=scales[1]),
    }
    errors = {name: (out.double() - expected).abs().max().item() for name, out in outputs.items()}
    for name, error in errors.items():
        print(
            f"{name:8} largest error of an output: {error:.1e}; the largest output is {expected.abs().max().item():.2f}"
        )
    print(f"3 bits of fraction round 2^7 = {2**7} times as coarsely as 10; in 16 bits the output is rounded as well")
    return errors["E4M3"] / errors["16 bits"]


# ---- mistakes


def page_that_is_not_there() -> None:
    """Launches with a block table that names page 7 of 4."""
    query, pages = torch.zeros(1, HEADS, 1, D).half(), torch.zeros(4, 16, KV_HEADS, D).half()
    table, lengths = torch.tensor([[0, 7]], dtype=torch.int32), torch.tensor([20], dtype=torch.int32)
    with show.expected_error():
        paged_attention(query, pages, pages, table, lengths)


def of_sequences() -> str:
    """Runs the kernel that reads the first sequence's row of the block table, and prints which sequences are right.
    Returns whether the sanitizer finds anything: "something" or "nothing"."""
    case = BROKEN["table_of_first_sequence"]
    with sanitize() as report:
        launch = case.launch()
        ((place, expected),) = launch.expected.items()
        out = launch.run()[place]
    for b in range(len(out)):
        print(f"sequence {b}: right: {checks.error_report(out[b], expected[b]).passed}")
    print("sanitizer:", f"{len(report.findings)} findings: both read the pages of sequence 0, which are valid")
    return "something" if report.findings else "nothing"


def mistakes() -> None:
    """Shows what detects each broken kernel, and its lesson; compute-sanitizer's verdicts are recorded."""
    rows = []
    for name, case in broken_kernels.of_folder(CHAPTER).items():
        found, *of_launch = broken_kernels.watched(case)
        passes = broken_kernels.passes(*of_launch)
        line = {"mistake": name, "numbers": "-" if passes else "wrong", "sanitizer": found}
        rows.append(line | {"compute-sanitizer": broken_kernels.found_on_gpu(name)})
    broken_kernels.show_rows(rows)
    print("mended, all right:", broken_kernels.mended_are_right(CHAPTER))
