"""block_sparse_hopper.cu and its lists: what a Hopper GPU takes for block lists, which the emulator runs here as
well."""

import itertools
from dataclasses import replace
from functools import partial
from zlib import crc32

import pytest
import torch

from course_utils import checks, patterns
from course_utils.cuda import KernelError, read_kernel
from course_utils.emulator import sanitize
from course_utils.operators import block_sparse_attention, sparse_attention, sparse_hopper_lists, sparse_launch
from course_utils.operators.attention import Call
from course_utils.operators.sparse_hopper_lists import (
    BLOCK_SPARSE_FORWARD,
    CONSUMERS,
    HEAD_DIM,
    UNSEEN,
    WHOLE,
    pair_lists,
)
from course_utils.operators.tensor_core import DTYPES
from course_utils.patterns import BlockLists
from course_utils.toolchain import nvrtc
from course_utils.toolchain.source import compile_options
from tests.helpers import tensors
from tests.helpers.list_patterns import PATTERNS

pytestmark = pytest.mark.usefixtures("by_hopper_kernels")
HALF = torch.float16
random = partial(tensors.random, dtype=HALF)
LENGTHS = ((1, 1), (65, 65), (128, 128), (300, 300), (130, 270), (270, 130), (200, 3), (1, 200))


@pytest.fixture
def short_parts(monkeypatch):
    """Lists are cut where they are longer than a pair of tiles and than most."""
    monkeypatch.setattr(sparse_hopper_lists, "SHORTEST_PART", 1)


def check(name, lengths, n=0, *, block=64, device="cpu", dtype=HALF, gradients=False, **change):
    """Against float64 under the dense mask, with inputs whose kind and heads follow from n."""
    pattern = PATTERNS[name]()
    values = {
        "batch": 1 + n % 2,
        "heads": 2,
        "kv_heads": 1 + (n // 2) % 2,
        "head_dim": HEAD_DIM,
        "kind": checks.KINDS[n % len(checks.KINDS)],
        "scale": (None, None, 0.25)[n % 3],
    }
    case = checks.AttentionCase(query_length=lengths[0], key_length=lengths[1], is_causal=False, **(values | change))
    operator = partial(block_sparse_attention, block_lists=pattern.block_lists(*lengths, block=block, device=device))
    mask, seed = pattern.mask(*lengths), crc32(f"{name} {lengths} {n}".encode())
    options = {"device": device, "dtype": dtype, "gradients": gradients, "lse": True, "attn_mask": mask, "seed": seed}
    for report in checks.check_case(operator, case, **options):
        assert report.passed, f"{name}, {case}, {dtype}, seed {seed}: {report}"


# ---------------------------------------------------------------------------------------------- right


@pytest.mark.parametrize("block", patterns.lists.BLOCKS)
@pytest.mark.parametrize("name", PATTERNS)
def test_output_and_lse_are_correct(device, thinned, name, block):
    first = list(PATTERNS).index(name) + block // 128
    for n, lengths in thinned([*enumerate(LENGTHS, first)], 4, first % 4):
        check(name, lengths, n, block=block, device=device)


@pytest.mark.parametrize("name", ["BigBird", "global tokens", "far apart"])
def test_long_rows_are_cut_and_merged(device, short_parts, name):
    for n, (lengths, block) in enumerate((((700, 700), 64), ((300, 800), 128))):
        check(name, lengths, 3 * n + 1, block=block, device=device, heads=4)


def test_tiles_that_a_consumer_does_not_see_may_be_many(device):
    """More than there are places in the ring."""
    for n, name in enumerate(("far apart", "BigBird")):
        check(name, (640, 640), 3 * n, device=device, batch=1, heads=1, kv_heads=1)


def test_gradients_are_correct(device):
    check("BigBird", (200, 200), 2, device=device, gradients=True)


@pytest.mark.gpu
@pytest.mark.parametrize("block", patterns.lists.BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PATTERNS)
def test_all_lengths_on_a_gpu(name, dtype, block):
    for n, lengths in enumerate((*LENGTHS, (1000, 1000), (1500, 2500), (5000, 5000))):
        check(name, lengths, n, block=block, device="cuda", dtype=dtype)


def test_every_run_gives_the_same_bits(device, short_parts):
    inputs = [random(1, 4, 700, HEAD_DIM, device=device, seed=seed) for seed in range(3)]
    pattern = PATTERNS["BigBird"]()
    first = sparse_attention(*inputs, pattern, return_lse=True)
    for _ in range(99 if device.type == "cuda" else 1):
        with checks.poisoned_outputs():
            assert all(map(torch.equal, first, sparse_attention(*inputs, pattern, return_lse=True)))


def sanitized(*cases, heads):
    """The report of calls under patterns `(name, L_q, L_k)`."""
    with sanitize() as report:
        for name, *lengths in cases:
            query, key, value = (random(1, heads, length, HEAD_DIM) for length in (lengths[0], lengths[1], lengths[1]))
            block_sparse_attention(query, key, value, PATTERNS[name]().block_lists(*lengths, block=64))
    return report


def test_the_sanitizer_finds_nothing_where_lists_are_cut(short_parts):
    report = sanitized(("BigBird", 500, 500), ("far apart", 640, 640), heads=2)
    assert report.launches >= 3 and not report.findings, str(report)


# Blocks of threads fetch several items. Each item goes round the ring more than once and stores its O itself. In a
# head's last item the second consumer has no row.
FULL, FAR_APART = ("full", 300, 700), ("far apart", 200, 1000)


def test_the_sanitizer_finds_nothing_where_lists_are_whole():
    report = sanitized(FULL, FAR_APART, heads=3)
    assert report.launches == 2 and not report.findings, str(report)


MORE = pytest.mark.exhaustive("the first few of these mistakes show that the sanitizer can see such")
RACES = [
    ("wait_for_product<1>(S)", "wait_for_product<2>(S)"),
    ("            if (threadIdx.x % 128 == 0) wait_for_stores();\n            give_back", "            give_back"),
    ("    if (threadIdx.x % 128 == 0) wait_for_stores();   // shared memory must live as long\n", ""),
    (
        "wait_for_product<0>(O);\n            give_back(shared.gates[v]);",
        "give_back(shared.gates[v]);\n            wait_for_product<0>(O);",
    ),
    ("    write_tile(shared.O[w], O);\n    publish_tile();\n", "    write_tile(shared.O[w], O);\n"),
]


@pytest.mark.parametrize(
    ("right", "wrong"), [pytest.param(*change, marks=MORE if n > 2 else ()) for n, change in enumerate(RACES)]
)
def test_the_sanitizer_sees_a_missing_wait(break_kernel, right, wrong):
    break_kernel(BLOCK_SPARSE_FORWARD, right, wrong)
    assert sanitized(FULL, heads=2).findings


def test_a_consumer_that_does_not_wait_for_skipped_pairs_is_seen(break_kernel):
    waits = "".join(f"            wait_until_full(shared.gates[{which}], {which}_parity);\n" for which in "kv")
    waits += "            __syncwarp();   // all lanes have waited\n"
    break_kernel(BLOCK_SPARSE_FORWARD, waits, "")
    with pytest.raises(KernelError, match="this phase takes only 0 more"):
        check("far apart", (640, 640), batch=1, heads=1, kv_heads=1)


def test_a_row_with_nan_stays_nan_and_the_others_do_not(device, short_parts):
    query, key, value = (random(1, 1, 400, HEAD_DIM, device=device, seed=seed) for seed in range(3))
    query[0, 0, [70, 200]] = torch.nan
    out, lse = sparse_attention(query, key, value, patterns.global_tokens([70]), return_lse=True)
    rows = out.isnan().all(-1)[0, 0]
    assert rows.nonzero().flatten().tolist() == [70, 200] and torch.equal(lse.isnan()[0, 0], rows)


def test_rows_that_see_no_key(device):
    lengths = 300, 100, 100
    query, key, value = (random(1, 1, n, HEAD_DIM, device=device, seed=seed) for seed, n in enumerate(lengths))
    lists = PATTERNS["causal"]().block_lists(300, 100, device=device)
    with checks.poisoned_outputs():
        out, lse = block_sparse_attention(query, key, value, lists, return_lse=True)
    assert not out[0, 0, :200].any() and (lse[0, 0, :200] == -torch.inf).all() and lse[0, 0, 200:].isfinite().all()


def test_lists_without_an_entry(device):
    indptr, nothing = (torch.zeros(n, dtype=torch.int32, device=device) for n in (3, 0))
    lists = BlockLists(64, 70, 70, indptr, nothing, nothing, nothing.view(0, 64, 2))
    inputs = (random(1, 1, 70, HEAD_DIM, device=device, seed=seed) for seed in range(3))
    with checks.poisoned_outputs():
        out, lse = block_sparse_attention(*inputs, lists, return_lse=True)
    assert not out.any() and (lse == -torch.inf).all()


# ---------------------------------------------------------------------------------------------- the lists


@pytest.mark.parametrize("block", patterns.lists.BLOCKS)
@pytest.mark.parametrize("name", ["BigBird", "strewn", "causal"])
def test_the_lists_say_the_mask(name, block):
    """Tile by tile, as the kernel reads them."""
    lists = PATTERNS[name]().block_lists(700, 800, block=block)
    found = pair_lists(lists, 1)
    mask, words = torch.zeros(11 * 64, 13 * 64, dtype=torch.bool), lists.bits.flatten()
    met = torch.zeros(len(found.pairs), dtype=torch.int32)
    for of_block, first, end, _ in found.work.items.tolist():
        met[first:end] += 1
        for tiles, *of_consumers in found.pairs[first:end].tolist():
            for w, half in itertools.product(range(CONSUMERS), range(2)):
                at = of_consumers[w][half]
                if at == UNSEEN:
                    continue
                rows = torch.arange(64)[:, None] * (block // 32) + torch.arange(64) // 32
                seen = torch.ones(64, 64, dtype=torch.bool)
                if at != WHOLE:
                    seen = (words[at + rows] >> torch.arange(64) % 32 & 1).bool()
                i0, j0 = (of_block * CONSUMERS + w) * 64, tiles[half] * 64
                assert not mask[i0 : i0 + 64, j0 : j0 + 64].any()
                mask[i0 : i0 + 64, j0 : j0 + 64] = seen
    assert torch.equal(mask[:700, :800], lists.mask()) and (met == 1).all()


def who_sees(of_consumers):
    """Of each half of a pair, the consumers that see it."""
    return [{w for w in range(CONSUMERS) if of_consumers[w][half] != UNSEEN} for half in range(2)]


@pytest.mark.parametrize("name", ["BigBird", "strewn", "far apart", "window"])
def test_pairs_are_of_tiles_that_the_same_consumers_see(name):
    """But for the last few of a block: at most one tile of each of the three kinds has no other left."""
    found = pair_lists(PATTERNS[name]().block_lists(1500, 1600), 1)
    for _, first, end, _ in found.work.items.tolist():
        pairs = found.pairs[first:end].tolist()
        seen = [who_sees(of_consumers) for _, *of_consumers in pairs]
        is_mixed = [one != other for one, other in seen]
        assert is_mixed == sorted(is_mixed) and sum(is_mixed) <= 2
        assert all(one for one, _ in seen) and all(other for _, other in seen[:-1])
        assert all(tiles[1] == 25 for (tiles, *_), (_, other) in zip(pairs, seen, strict=True) if not other)  # no key


def test_consumers_see_pairs_in_turn():
    """As long as each has such that the other does not see."""
    found = pair_lists(PATTERNS["every second 64 rows"]().block_lists(300, 300), 1)
    assert all(who_sees(of_consumers)[0] == {0} for _, *of_consumers in found.pairs.tolist())
    pattern = patterns.from_mask_mod(lambda b, h, i, j: i // 64 % 2 == j // 64 // 8 % 2)
    pairs = pair_lists(pattern.block_lists(128, 1024), 1).pairs.tolist()
    assert [who_sees(of_consumers) for _, *of_consumers in pairs] == 4 * [2 * [{0}], 2 * [{1}]]


def test_long_lists_are_cut_and_the_longest_items_come_last():
    lists = (patterns.bigbird() | patterns.global_tokens([5000])).block_lists(20_000)
    pairs, work = pair_lists(lists, 4)
    block, starts, ends, parts = work.items.long().T
    counts = ends - starts
    assert counts.diff().ge(0).all() and int(counts.sum()) == len(pairs)
    assert counts.max() <= len(pairs) * 4 / sparse_hopper_lists.MULTIPROCESSORS / 2
    pieces = work.parts // 2
    assert sorted(parts[parts >= 0].tolist()) == list(range(pieces)) and pieces > 2
    for row, first, end, _ in work.split_rows.tolist():
        of_row = parts[(block == row // 2) & (parts >= 0)] + row % 2 * pieces
        assert sorted(of_row.tolist()) == list(range(first, end))


@pytest.mark.parametrize("length", [1 << 13, 1 << 17])
def test_rows_of_about_the_same_length_stay_whole(length):
    assert pair_lists(patterns.sliding_window(4096).block_lists(length), 16).work.parts == 0


def tiles_of_rows(lists):
    """(row of 64 queries, tile of 64 keys, whether it is WHOLE) of all that the kernel computes."""
    pairs, work = pair_lists(lists, 1)
    return {
        (of_block * CONSUMERS + w, tiles[half], of_consumers[w][half] == WHOLE)
        for of_block, first, end, _ in work.items.tolist()
        for tiles, *of_consumers in pairs[first:end].tolist()
        for w, half in itertools.product(range(CONSUMERS), range(2))
        if of_consumers[w][half] != UNSEEN
    }


@pytest.mark.parametrize("name", ["BigBird", "BigBird, blocks of 16"])
def test_blocks_of_128_give_the_tiles_of_blocks_of_64(name):
    """In a quarter of a partial block all pairs may be seen, or none."""
    by_64, by_128 = (PATTERNS[name]().block_lists(704, 832, block=block) for block in patterns.lists.BLOCKS)
    assert len(by_128.bits) and tiles_of_rows(by_64) == tiles_of_rows(by_128)


def test_a_consumer_may_be_left_without_a_tile(device):
    lists = PATTERNS["every second 64 rows"]().block_lists(300, 300, block=128)
    assert {row for row, *_ in tiles_of_rows(lists)} == {0, 2, 4}
    check("every second 64 rows", (300, 300), block=128, device=device)


def test_what_comes_to_the_kernel(monkeypatch):
    """A softcap, sinks, 64 columns and more words of bits than an int counts stay with block_sparse.cu."""
    taken = []
    monkeypatch.setattr(sparse_hopper_lists, "forward", lambda call, *lists: taken.append(call))
    shape, narrow = torch.Size((1, 1, 64, HEAD_DIM)), torch.Size((1, 1, 64, 64))
    call = Call(shape, shape, HALF, torch.device("cpu"), 1.0)
    others = {"softcap": 5.0}, {"has_sinks": True}, {"query_shape": narrow, "key_shape": narrow}
    lists = patterns.bigbird().block_lists(64)
    for each in (call, *(call._replace(**other) for other in others)):
        sparse_launch.ListMask(lists).forward(each)
    assert taken == [call]
    too_many = torch.empty(2**24, 64, 2, dtype=torch.int32, device="meta")  # without memory
    assert not sparse_hopper_lists.takes_lists(call, replace(lists, bits=too_many))
    assert sparse_hopper_lists.takes_lists(call, replace(lists, bits=too_many[1:]))


# ---------------------------------------------------------------------------------------------- the kernel itself


def test_the_header_lists_the_options_in_use():
    listed = {frozenset(options) for options in compile_options(read_kernel(BLOCK_SPARSE_FORWARD))}
    assert listed == {frozenset((*sparse_hopper_lists.OPTIONS, f"-DBF16={bf16}")) for bf16 in (0, 1)}


@pytest.mark.parametrize("bf16", [0, 1])
def test_shared_memory_is_what_the_kernel_lays_out_and_nothing_spills_or_waits(bf16):
    """C7510 and its like say that the compiler has it wait for each product."""
    threads, shared_bytes = sparse_hopper_lists.THREADS, sparse_hopper_lists.SHARED_BYTES
    code = read_kernel(BLOCK_SPARSE_FORWARD)
    code += f"\nstatic_assert(CONSUMER_THREADS + 128 == {threads} && sizeof(Shared) == {shared_bytes});\n"
    compiled = nvrtc.compile_kernel(code, "sm_90a", (*sparse_hopper_lists.OPTIONS, f"-DBF16={bf16}"))
    found = compiled.resources["block_sparse_forward"]
    assert "C75" not in compiled.log and not found.spill_stores and not found.stack_frame, compiled.log


@pytest.mark.parametrize(
    ("right", "wrong", "name", "lengths"),
    [
        ("if (!is_whole) mask(S, seen);", "", "strewn", (130, 150)),
        ("% 32 / 4) * stride", "% 32 / 4) * 2", "strewn, 128", (130, 150)),
        ("e / 2 * 8 + e % 2) & 1", "e / 2 * 8) & 1", "strewn", (130, 150)),
        ("? words.y :", "? words.x :", "strewn", (130, 150)),
        ("seen.words[n / 8][r]", "seen.words[0][r]", "strewn", (130, 150)),
        ("bits == WHOLE ? ~0u : 0", "~0u", "far apart", (640, 640)),
        ("+ 1 + w);", "+ 1);", "BigBird", (300, 300)),
        ("tiles.y * KEYS", "(tiles.x + 1) * KEYS", "BigBird", (300, 300)),
        ("give_back(shared.gates[v]);\n            go_on", "go_on", "far apart", (640, 640)),
        ("            rescale(O, rows);", "            if (!is_first) rescale(O, rows);", "far apart", (640, 640)),
        ("give_back_last();   // if the consumer has seen no tile", "", "causal", (300, 100)),
        (
            "item_place(int round) { return {round % 2, round / 2 % 2}",
            "item_place(int round) { return {0, round % 2}",
            "full",
            (400, 100),
        ),
    ],
)
def test_a_broken_kernel_fails_the_check(break_kernel, right, wrong, name, lengths):
    break_kernel(BLOCK_SPARSE_FORWARD, right, wrong)
    name, _, block = name.partition(", ")
    with pytest.raises((AssertionError, KernelError), match="WRONG|deadlock"):
        check(name, lengths, kind="planted", batch=1, heads=1, kv_heads=1, block=int(block or 64))


def test_parts_in_the_wrong_place_fail_the_check(break_kernel, short_parts):
    break_kernel(BLOCK_SPARSE_FORWARD, "(w * problem.parts + work.part)", "(w + work.part)")
    with pytest.raises(AssertionError, match="WRONG"):
        check("BigBird", (700, 700), kind="planted", batch=1, heads=1, kv_heads=1)
