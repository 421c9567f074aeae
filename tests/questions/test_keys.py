"""The key of every numeric question against a count that is made another way.

A count knows what the learner knows: it takes its sizes from the question's text. It calls neither `costs` nor another
module that the keys come from, but goes through threads, addresses, tiles and masks one by one, asks torch how large
its tensors are and how many FLOPs its products have, or has the emulator count.
"""

import dataclasses
import functools
import re
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from course_utils.emulator import profile
from course_utils.operators import naive_attention
from course_utils.planner.devices import DEVICES
from course_utils.questions.judging import figures
from course_utils.questions.question import Aggregate, Grid, Number
from course_utils.serving import PagedCache
from tests.helpers.all_of import all_of
from tests.helpers.drawn_questions import drawn, ids_of

NUMERIC = ids_of(Number, Aggregate, Grid)
ROUNDED = 1e-3  # how far key and count may be apart where the learner may be, such as half of a causal diagonal
DTYPES = {"fp16": torch.float16, "fp32": torch.float32, "bf16": torch.bfloat16}
WARP = range(32)


def numbers(text, pattern):
    """The groups of `pattern` in `text` as numbers, without the commas in them."""
    found = re.search(pattern, text)
    assert found, f"{pattern!r} is not in {text!r}"
    groups = [group.replace(",", "").rstrip(".") for group in found.groups()]
    return [float(group) if "." in group else int(group) for group in groups]


def dtype_in(text):
    return DTYPES[re.search(r"\b(fp16|fp32|bf16)\b", text)[1]]


def tensor(*shape, dtype=torch.float16):
    """A tensor that has only a shape and a dtype, and so a number of bytes."""
    return torch.empty(shape, dtype=dtype, device="meta")


def size(*tensors):
    return sum(one.nbytes for one in tensors)


class Moved(TorchDispatchMode):
    """Bytes of all tensors that go into and come out of each of torch's operations, in `steps`."""

    def __enter__(self):
        self.steps = []
        return super().__enter__()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        out = operation(*args, **(kwargs or {}))
        self.steps.append(size(*(one for one in (*args, out) if isinstance(one, torch.Tensor))))
        return out


def flops(product, *tensors):
    """FLOPs of torch's operation `product`, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        product(*tensors)
    return counter.get_total_flops()


def flash(query, key, value):
    """(output, log-sum-exp) of torch's FLASH kernel, as shapes."""
    return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value)[:2]


# ---------------------------------------------------------------------------------------------- 00


def idle_threads(asked):
    (n,) = numbers(asked.prompt, r"adds ([\d,]+) elements")
    counted = []
    for row in asked.rows:
        (threads,) = numbers(row, r"(\d+) threads")
        blocks = 0
        while blocks * threads < n:
            blocks += 1
        idle = np.arange(blocks * threads) >= n
        counted += [blocks, idle.sum(), idle.reshape(-1, len(WARP)).all(axis=1).sum()]
    return counted


def traffic_of_a_chain(asked):
    (n,) = numbers(asked.prompt, r"vectors of ([\d,]+) numbers")
    a = b = w = tensor(n, dtype=dtype_in(asked.prompt))
    assert size(a) > max(device.l2_bytes for device in DEVICES.values())
    with Moved() as moved:
        torch.relu(a + b) * w
    return [step / 1e6 for step in moved.steps]


def sectors_of_a_load(asked):
    (stride,) = numbers(asked.prompt, r"x\[(\d+) \* i\]")
    return [len({2 * stride * lane // 32 for lane in WARP})]


# ---------------------------------------------------------------------------------------------- 01


@functools.cache
def bytes_of_a_stored_score(dtype):
    """Of S in `naive_attention`, counted by the emulator."""
    ones = torch.ones(1, 1, 8, 8, dtype=dtype)
    with profile() as counters:
        naive_attention(ones, ones, ones)
    (stored,) = (row for row in counters.select("global", "store") if row.kernel == "scores")
    return stored.bytes // 8**2


def scores_of_a_mask(asked):
    length, side = numbers(asked.prompt, r"([\d,]+) queries and keys.* tiles of (\d+) ×")
    memory = bytes_of_a_stored_score(dtype_in(asked.prompt)) * length**2 / 1e6
    counted = []
    for mask in (np.ones((length, length), bool), np.tri(length, dtype=bool)):
        counted += [mask.sum(), tiles(mask, side)[0], memory]
    return counted


def traffic_of_three_passes(asked):
    length, heads, d = numbers(asked.prompt, r"sequence of ([\d,]+) tokens, (\d+) heads of d = (\d+)")
    query = value = tensor(heads, length, d, dtype=dtype_in(asked.prompt))
    transposed = tensor(heads, d, length, dtype=query.dtype)
    with Moved() as moved:
        torch.bmm(torch.softmax(torch.bmm(query, transposed), dim=-1), value)
    return [step / 1e9 for step in moved.steps]


def kept_pairs(asked):
    queries, keys = numbers(asked.prompt, r"L_q = (\d+) and L_k = (\d+)")
    return [sum(j <= i for i in range(keys - queries, keys) for j in range(keys))]


# ---------------------------------------------------------------------------------------------- 02


def two_blocks_of_a_row(asked):
    scores = numbers(asked.prompt, r"\((\d), (\d)\), then \((\d), (\d)\)")
    values = numbers(asked.prompt, r"numbers: (\d), (\d), then (\d), (\d)\.")
    counted = []
    for seen in (2, 4):  # over all keys so far at once
        m = max(scores[:seen])
        weights = [Fraction(2) ** (score - m) for score in scores[:seen]]
        counted += [m, sum(weights), sum(w * value for w, value in zip(weights, values, strict=False))]
    return counted


def bytes_of_both_orders(asked):
    sizes = r"L = ([\d,]+), d = (\d+), fp32, B_r = (\d+), B_c = (\d+)"
    length, d, rows, columns = numbers(asked.prompt, sizes)
    fa1, fa2 = Counter(), Counter()
    queries, keys = ([min(side, length - n) for n in range(0, length, side)] for side in (rows, columns))
    for in_key_tile in keys:
        fa1["K and V"] += 2 * in_key_tile
        for in_query_tile in queries:
            fa1 += {"Q": in_query_tile, "O": 2 * in_query_tile}
    for in_query_tile in queries:
        fa2 += {"Q": in_query_tile, "O": in_query_tile}
        for in_key_tile in keys:
            fa2["K and V"] += 2 * in_key_tile
    return [order[row] * d * 4 / 1e6 for row in asked.rows for order in (fa1, fa2)]


def shared_memory_of_the_tiles(asked):
    rows, columns, d = numbers(asked.prompt, r"B_r = (\d+), B_c = (\d+), d = (\d+)")
    q, k, s = (tensor(*shape, dtype=torch.float32) for shape in ((rows, d), (columns, d), (rows, columns)))
    return [size(q) / 1024, size(k, k) / 1024, size(s) / 1024]


def share_of_the_peak(asked):
    rows, columns = numbers(asked.prompt, r"piece of (\d+) × (\d+)")
    loaded, products = set(), 0
    for r in range(rows):
        for c in range(columns):
            loaded |= {("Q", r), ("K", c)}
            products += 1
    clocks_to_load, clocks_to_multiply = len(loaded), products / 4
    return [100 * clocks_to_multiply / max(clocks_to_load, clocks_to_multiply)]


# ---------------------------------------------------------------------------------------------- 03


def wavefronts_of_a_matrix(asked):
    counted = []
    for row in asked.rows:
        padding = 0 if row.startswith("no") else numbers(row, r"(\d+)")[0]
        for column in asked.columns:
            pitch = 2 * (numbers(column, r"(\d+)")[0] + padding)
            words = {(pitch * n + byte) // 4 for n in range(8) for byte in range(16)}
            counted.append(max(Counter(word % 32 for word in words).values()))
    return counted


def registers_for_s_and_o(asked):
    queries, keys, d = numbers(asked.prompt, r"(\d+) for each warp.* have (\d+) keys, and d = (\d+)")
    counted = []
    for width in (keys, d):  # `mma.sync`: D of 16 × 8, lane 4 r + c holds columns 2 c and 2 c + 1 of rows r and r + 8
        held = Counter(row % 8 * 4 + column % 8 // 2 for row in range(queries) for column in range(width))
        (each,) = set(held.values())
        counted.append(each)
    return counted


def warps_that_fit(asked):
    kernel = r"takes (\d+) registers per thread, (\d+) threads per block and (\d+) KiB"
    processor = r"room for (\d+) warps, ([\d,]+) registers and (\d+) KiB of shared memory; the system takes (\d+) KiB"
    registers, threads, shared = numbers(asked.prompt, kernel)
    room, all_registers, all_shared, taken = numbers(asked.prompt, processor)
    warps = 0
    while True:
        blocks = warps // (threads // 32) + 1
        full = blocks * threads * registers > all_registers or blocks * (shared + taken) > all_shared
        if full or blocks * threads // 32 > room:
            return [warps]
        warps += threads // 32


# ---------------------------------------------------------------------------------------------- 04


def tiles(mask, side=64):
    """(tiles of side × side that hold a visible pair, of these full)"""
    ends = range(0, len(mask), side)
    of_rows = np.add.reduceat(mask, ends, axis=0, dtype=np.int32)
    pairs = np.add.reduceat(of_rows, ends, axis=1)
    return (pairs > 0).sum(), (pairs == side**2).sum()


def mask_of(name, length):
    """The mask of a pattern by its name, such as "dilated(window=4, dilation=2)", from what the chapter says of it."""
    kind, size, other = re.fullmatch(r"(\w+)\((?:\w+=(\d+))?(?:, \w+=(\d+))?\)", name).groups()
    size, other = int(size or 0), int(other or 0)
    i, j = np.arange(length, dtype=np.int16)[:, None], np.arange(length, dtype=np.int16)
    match kind:
        case "causal":
            return j <= i
        case "sliding_window":
            return (j <= i) & (i - j < size)
        case "dilated":
            return (j <= i) & (i - j < size * other) & ((i - j) % other == 0)
        case "streaming":
            return (j <= i) & ((j < size) | (i - j < other))
        case "block_diagonal":
            return i // size == j // size
    raise AssertionError(f"no definition of {kind} here")


@functools.cache
def tiles_of(name, length):
    return tiles(mask_of(name, length))


def tiles_of_three_patterns(asked):
    (length,) = numbers(asked.prompt, r"L = (\d+)")
    return [count for row in asked.rows for count in tiles_of(row.strip("`"), length)]


def sorted_by_residue(asked):
    length, dilation = numbers(asked.prompt, r"L = (\d+),.* sorted by i mod (\d+)")
    mask = mask_of(re.search(r"`(.*?)`", asked.prompt)[1], length)
    (unsorted,) = numbers(asked.prompt, r"visits (\d+) tiles")
    assert tiles(mask)[0] == unsorted
    order = np.argsort(np.arange(length) % dilation, kind="stable")
    return [tiles(mask[order][:, order])[0]]


def bytes_of_block_lists(asked):
    radius, position, length = numbers(asked.prompt, r"radius=(\d+)\).*positions=\[(\d+)\]\)\)` at L = ([\d,]+)")
    i, j = np.arange(length, dtype=np.int16)[:, None], np.arange(length, dtype=np.int16)
    mask = (abs(i - j) <= radius) | (i == position) | (j == position)
    visited, full = tiles(mask)
    assert [visited, visited - full] == numbers(asked.prompt, r"; (\d+) blocks are visited, (\d+) of them partial")
    indptr, indices = np.zeros(length // 64 + 1, np.int32), np.zeros((2, visited), np.int32)
    return [indptr.nbytes, indices.nbytes, (visited - full) * np.packbits(mask[:64, :64]).nbytes]


# ---------------------------------------------------------------------------------------------- 05


def three_caches(asked):
    d, length, layers = numbers(asked.prompt, r"with (\d+) numbers .* of ([\d,]+) tokens in (\d+) layers")
    shapes = [(2, *numbers(row, r", (\d+) (?:key )?heads"), d) for row in asked.rows[:2]]
    shapes.append((sum(numbers(asked.rows[2], r"latent of (\d+) and a RoPE key of (\d+)")),))
    counted = []
    for shape in shapes:
        counted += [size(tensor(*shape)), size(tensor(layers, length, *shape)) / 1e9]
    return counted


def index_score_by_hand(asked):
    dots, weights = (re.search(rf"{name} = ([-\d, ]+\d)", asked.prompt)[1].split(", ") for name in ("q · k", "w"))
    score = 0
    for dot, weight in zip(map(int, dots), map(int, weights), strict=True):
        if dot > 0:
            score += dot * weight
    return [score]


def indexer_and_core(text, keys, chosen):
    """FLOPs of one query's scores with so many keys, and of its attention to the chosen ones."""
    indexer, core = (
        r"indexer has (\d+) heads of (\d+) n",
        r"core (\d+) heads with keys of (\d+) numbers and values of (\d+)",
    )
    (index_heads, index_width), (heads, row, latent) = numbers(text, indexer), numbers(text, core)
    index = flops(torch.mm, tensor(index_heads, index_width), tensor(index_width, keys))
    scores = flops(torch.mm, tensor(heads, row), tensor(row, chosen))
    return index, scores + flops(torch.mm, tensor(heads, chosen), tensor(chosen, latent))


def last_token(asked):
    keys, k = numbers(asked.prompt, r"last of ([\d,]+) tokens.* k = (\d+)")
    return [count / 1e6 for count in indexer_and_core(asked.prompt, keys, min(keys, k))]


# ---------------------------------------------------------------------------------------------- 06


def bytes_of_a_step(asked):
    batch, length = numbers(asked.prompt, r"each of (\d+) sequences with ([\d,]+) keys")
    (kv_heads,) = numbers(asked.prompt, r"(\d+) key heads")
    cache = tensor(batch, kv_heads, length, 128)
    return [size(cache, cache) / 1e6]


def pages_of_a_batch(asked):
    counted = []
    for row in asked.rows:
        for column in asked.columns:
            cache = PagedCache(64, *numbers(column, r"pages of (\d+)"))
            cache.extend(cache.allocate(), *numbers(row, r"(\d+) tokens"))
            usage = cache.usage()
            counted.append(usage.taken * usage.page_size - usage.filled)
    return counted


def room_for_a_prompt(asked):
    count, prefix = numbers(asked.prompt, r"(\d+) sequences begin with the same ([\d,]+) tokens")
    page_size, own = numbers(asked.prompt, r"shared pages of (\d+); then each has (\d+)")
    cache = PagedCache(1000, page_size)
    first = cache.allocate()
    cache.extend(first, prefix)
    of_prompt = cache.usage().taken
    for _ in range(count):
        cache.extend(cache.fork(first), own)
    return [of_prompt, cache.usage().taken - of_prompt]


# ---------------------------------------------------------------------------------------------- 07


def bytes_to_expect(asked):
    queries, keys, d = numbers(asked.prompt, r"tile of (\d+) queries.* tile of (\d+) keys each, d = (\d+)")
    return [size(tensor(queries, d)), size(tensor(keys, d), tensor(keys, d))]


def places_in_a_ring(asked):
    """By filling the ring place after place; a parity turns each time around."""
    (buffers,) = numbers(asked.prompt, r"has (\d+) buffers")
    counted, buffer, parity, tile = [], 0, 0, 0
    for (wanted,) in (numbers(row, r"tile (\d+)") for row in asked.rows):
        while tile < wanted:
            tile, buffer = tile + 1, buffer + 1
            if buffer == buffers:
                buffer, parity = 0, 1 - parity
        counted += [buffer, parity]
    return counted


def registers_that_move(asked):
    """By handing out what the producer gave, one register each at a time."""
    (consumers, threads, start), (low,) = (
        numbers(asked.prompt, r"(\d+) consumers, (\d+) threads each, and starts with (\d+)"),
        numbers(asked.prompt, r"keeps (\d+)"),
    )
    left, computing, each = sum(start - low for _ in range(threads)), consumers * threads, start
    while left >= computing:
        left, each = left - computing, each + 1
    return [each]


# ---------------------------------------------------------------------------------------------- 08


def parts_of_flash(asked):
    sizes = r": ([\d,]+) tokens, (\d+) query heads, (\d+) key heads \(GQA\), d = (\d+)"
    length, heads, kv_heads, d = numbers(asked.prompt, sizes)
    query, key = tensor(1, heads, length, d), tensor(1, kv_heads, length, d)
    out, lse = flash(query, key, key)
    return [size(query, out) / 1e6, size(key, key) / 1e6, size(lse) / 1e6]


def which_fits(asked):
    heads, d = numbers(asked.prompt, r"(\d+) heads of d = (\d+)")
    counted = []
    for row in asked.rows:
        for column in asked.columns:
            query = tensor(1, heads, *numbers(column, r"L = ([\d,]+)"), d)
            scores = query @ query.mT
            kept = flash(query, query, query) if row == "flash" else (scores, scores.softmax(dim=-1), query)
            counted.append(size(query, query, query, *kept) / 1e9)
    return counted


def floor_of_flash(asked):
    length, heads, d = numbers(asked.prompt, r"sequence of ([\d,]+) tokens, (\d+) heads of d = (\d+)")
    teraflops, gigabytes = numbers(asked.prompt, r": ([\d.]+) TFLOP/s on tensor cores, ([\d,]+) GB/s")
    query = tensor(1, heads, length, d)
    visible = sum(range(1, length + 1)) / length**2
    moved = size(query, query, query, *flash(query, query, query))
    return [1e3 * max(visible * flops(flash, query, query, query) / (teraflops * 1e12), moved / (gigabytes * 1e9))]


COUNTS = {
    "00_start_here/idle_threads": idle_threads,
    "00_start_here/traffic_of_a_chain": traffic_of_a_chain,
    "00_start_here/sectors_of_a_load": sectors_of_a_load,
    "01_attention_basics/scores_of_a_mask": scores_of_a_mask,
    "01_attention_basics/traffic_of_three_passes": traffic_of_three_passes,
    "01_attention_basics/kept_pairs": kept_pairs,
    "02_flash_attention_minimal/two_blocks_of_a_row": two_blocks_of_a_row,
    "02_flash_attention_minimal/bytes_of_both_orders": bytes_of_both_orders,
    "02_flash_attention_minimal/shared_memory_of_the_tiles": shared_memory_of_the_tiles,
    "02_flash_attention_minimal/share_of_the_peak": share_of_the_peak,
    "03_flash_attention_v2/wavefronts_of_a_matrix": wavefronts_of_a_matrix,
    "03_flash_attention_v2/registers_for_s_and_o": registers_for_s_and_o,
    "03_flash_attention_v2/warps_that_fit": warps_that_fit,
    "04_sparse_patterns/tiles_of_three_patterns": tiles_of_three_patterns,
    "04_sparse_patterns/sorted_by_residue": sorted_by_residue,
    "04_sparse_patterns/bytes_of_block_lists": bytes_of_block_lists,
    "05_deepseek_sparse/three_caches": three_caches,
    "05_deepseek_sparse/index_score_by_hand": index_score_by_hand,
    "05_deepseek_sparse/last_token": last_token,
    "06_serving/bytes_of_a_step": bytes_of_a_step,
    "06_serving/pages_of_a_batch": pages_of_a_batch,
    "06_serving/room_for_a_prompt": room_for_a_prompt,
    "07_hopper/bytes_to_expect": bytes_to_expect,
    "07_hopper/places_in_a_ring": places_in_a_ring,
    "07_hopper/registers_that_move": registers_that_move,
    "08_choosing/parts_of_flash": parts_of_flash,
    "08_choosing/which_fits": which_fits,
    "08_choosing/floor_of_flash": floor_of_flash,
}


def wrong_keys(asked, keys, counted):
    """The keys that differ from the count, with what was counted."""
    counted = [float(one) for one in counted]
    if isinstance(asked, Aggregate):
        counted.append(sum(counted))
    near = [
        found == pytest.approx(key.value, rel=ROUNDED if key.tolerance else 1e-9)
        for key, found in zip(keys, counted, strict=True)
    ]
    return [(key.value, found) for key, found, right in zip(keys, counted, near, strict=True) if not right]


def test_every_numeric_question_is_counted_another_way():
    assert sorted(COUNTS) == sorted(NUMERIC)


@pytest.mark.parametrize("question_id", NUMERIC)
def test_a_key_is_what_another_way_of_counting_gives(question_id, seeds):
    for asked in drawn(question_id, seeds(10, 200)):
        assert wrong_keys(asked, figures(asked), COUNTS[question_id](asked)) == [], asked.prompt


@all_of("question_id", NUMERIC)
def test_a_wrong_key_is_seen(question_id, seeds):
    (asked, *_) = drawn(question_id, seeds(10, 200))
    keys, counted = figures(asked), COUNTS[question_id](asked)
    for n, key in enumerate(keys):
        for wrong in (key.value + max(1, key.value / 50), key.value * 2 + 1, *(one.value for one in key.mistakes)):
            planted = [*keys[:n], dataclasses.replace(key, value=wrong), *keys[n + 1 :]]
            assert [found[0] for found in wrong_keys(asked, planted, counted)] == [wrong]
