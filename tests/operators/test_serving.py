"""decode_attention, paged_attention and merge_attention: right, the same in every run, seen to be wrong when broken."""

import itertools
from functools import partial

import numpy as np
import pytest
import torch

from course_utils import checks, cuda, reference
from course_utils.emulator import profile
from course_utils.launches.serving import RUNGS, rung
from course_utils.operators import (
    decode_attention,
    merge_attention,
    paged_attention,
    prepare,
    serving_choice,
    serving_launch,
)
from course_utils.reference.serving import seen_keys
from tests.helpers import tensors
from tests.helpers.caches import in_pages, inputs, ints
from tests.helpers.graphs import compiled, replayed

HALF, BF16, E4M3 = torch.float16, torch.bfloat16, serving_choice.E4M3
FOLDER = serving_launch.FOLDER


def torch_run(query, key, value, seq_lens, parents=None):
    """Plain torch in the dtype of query, sequence by sequence."""
    outs = []
    for b, length in enumerate(seq_lens.tolist()):
        q, k, v = query[b : b + 1], *(cache[b : b + 1, :, :length].to(query.dtype) for cache in (key, value))
        seen = seen_keys(q.shape[2], length, None if parents is None else parents[b].tolist()).to(q.device)
        with reference.full_float32():
            run = reference.torch_attention(q, k, v, attn_mask=seen, enable_gqa=True) if length else torch.zeros_like(q)
        outs.append(run)
    return torch.cat(outs)


def assert_right(call, query, key, value, seq_lens, **options):
    """Whether call(), run on poisoned memory, gives what float64 gives of these inputs."""
    with checks.poisoned_outputs():
        out, lse = call()
    assert out.dtype == query.dtype and out.shape == query.shape
    expected, expected_lse = reference.decode_attention(
        query, key, value, seq_lens=seq_lens, return_lse=True, **options
    )
    scales = [options.get(name) for name in ("k_scale", "v_scale")]
    if scales[0] is not None:
        key, value = (x.float() * scale[..., None, None] for x, scale in zip((key, value), scales, strict=True))
    run = (
        torch_run(*inputs, options.get("parents")) for inputs in [(query, key, value, seq_lens)]
    )  # where it is needed
    for report in (checks.error_report(out, expected, run), checks.lse_report(lse, expected_lse)):
        assert report.passed, report
    assert (out[expected_lse == -torch.inf] == 0).all()


# ---------------------------------------------------------------------------------------------- right

# Lengths with none and with fewer keys than queries; heads, key heads, queries; how the keys are cut.
CASES = [
    ((70,), (1, 1, 1), {}),
    ((33, 0, 1, 64), (4, 1, 1), {"num_splits": 3}),
    ((16, 200), (14, 2, 1), {"num_splits": 64}),
    ((0, 2, 90), (3, 3, 5), {"split_size": 40}),
    ((129, 130), (16, 1, 1), {"num_splits": 2}),
    ((450, 4, 0), (4, 2, 4), {"split_size": 400}),
    ((100, 3), (8, 1, 4), {"num_splits": 2}),  # 32 rows
    ((65, 40), (4, 1, 16), {"split_size": 33}),  # 64
]
CACHES = [(HALF, 64), (BF16, 128)]


def of_case(device, dtype, head_dim, number):
    lengths, (heads, kv_heads, queries), how = CASES[number]
    kind = checks.KINDS[number % len(checks.KINDS)]
    sizes = {"heads": heads, "kv_heads": kv_heads, "queries": queries, "head_dim": head_dim, "kind": kind}
    return inputs(device, dtype, lengths, **sizes), how


WIDE = pytest.mark.exhaustive("with d = 64 and fp16 in `make test`; 16 rows have all but the second fragment of them")


@pytest.mark.parametrize(
    ("dtype", "head_dim", "number"),
    [
        pytest.param(dtype, d, n, marks=[WIDE] if d == 128 and n > 5 else [])
        for (dtype, d), n in itertools.product(CACHES, range(len(CASES)))
    ],
)
def test_out_and_lse_are_correct(device, dtype, head_dim, number):
    (query, key, value, seq_lens), how = of_case(device, dtype, head_dim, number)
    call = partial(decode_attention, query, key, value, seq_lens=seq_lens, return_lse=True, **how)
    assert_right(call, query, key, value, seq_lens)


@pytest.mark.parametrize(("page_size", "number"), [(1, 1), (5, 3), (16, 5), (64, 2), (256, 4)])
def test_a_cache_in_pages_is_correct(device, page_size, number):
    (query, key, value, seq_lens), how = of_case(device, HALF, 64, number)
    pages, table = in_pages((key, value), page_size, seq_lens)
    call = partial(paged_attention, query, *pages, table, seq_lens, return_lse=True, **how)
    assert_right(call, query, key, value, seq_lens)


OF_GRAPHS = pytest.mark.exhaustive(
    "another number of rows: a graph holds none, and `make test` has them without one; decode_attention is compiled in "
    "test_torch_features.py"
)


@pytest.mark.parametrize("way", [compiled, pytest.param(replayed, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("number", [2, *(pytest.param(number, marks=OF_GRAPHS) for number in (3, 6))])
def test_compiled_and_captured_calls_are_correct(device, way, number, thinned):
    """On the emulator in pages with a number of splits, and in rows with their size."""
    if way is replayed and device.type == "cpu":
        pytest.skip("a CUDA graph takes a GPU")
    (query, key, value, seq_lens), how = of_case(device, HALF, 64, number)
    pages, table = in_pages((key, value), 5, seq_lens)
    both = (decode_attention, (query, key, value)), (paged_attention, (query, *pages, table))
    for attend, given in thinned(both, 2, (number + 1) % 2):
        call = partial(way(attend), *given, seq_lens=seq_lens, return_lse=True, **how)
        assert_right(call, query, key, value, seq_lens)


@pytest.mark.parametrize("which", ["small", "in_pairs"])
def test_other_tiles_are_correct(device, monkeypatch, nothing_ready, which):
    """Each warp has more tiles than stages."""
    if which == "small":
        monkeypatch.setattr(prepare, "shared_memory_limit", lambda device: 99 * 1024)  # of sm_86, 89 and 120
    else:
        monkeypatch.setattr(serving_choice, "multiprocessors", lambda device: 1)  # there are more blocks than these
    (query, key, value, seq_lens), how = of_case(device, HALF, 64, 5)
    assert serving_choice.decode_tile(8, 1, 64, 2, device) == getattr(serving_choice.TILES[64, 16, 2], which)
    pages, table = in_pages((key, value), 16, seq_lens)
    for call in (
        partial(decode_attention, query, key, value, seq_lens=seq_lens),
        partial(paged_attention, query, *pages, table, seq_lens),
    ):
        assert_right(partial(call, return_lse=True, **how), query, key, value, seq_lens)


def assert_e4m3_right(device, dtype, head_dim, lengths, queries, page_size):
    """Every number that E4M3 has occurs, but NaN: the smallest ones are below what a normal one can be. page_size: None
    for a contiguous cache."""
    batch = len(lengths)
    query = tensors.random(batch, 4, queries, head_dim, device=device, dtype=dtype)
    seq_lens = ints(*lengths, device=device)
    every = torch.arange(256, dtype=torch.uint8)
    every = every[every % 128 < 127]
    shape = 2, batch, 2, max(lengths) + 6, head_dim
    order = torch.randint(len(every), shape, generator=torch.Generator().manual_seed(0))
    key, value = every[order].view(E4M3).to(device)
    scales = [tensors.random(batch, 2, device=device, seed=seed).abs() / 100 + 0.001 for seed in (1, 2)]
    options = {"k_scale": scales[0], "v_scale": scales[1]}
    for b, length in enumerate(lengths):
        for cache in (key, value):
            cache[b, :, length:].view(torch.uint8).fill_(0x7F)
    more = {**options, "num_splits": 3, "return_lse": True}

    def call():
        if page_size is None:
            return decode_attention(query, key, value, seq_lens=seq_lens, **more)
        pages, table = in_pages([x.view(torch.uint8) for x in (key, value)], page_size, seq_lens)
        return paged_attention(query, *(x.view(E4M3) for x in pages), table, seq_lens, **more)

    clean = [cache.view(torch.uint8).where(cache.view(torch.uint8) % 128 < 127, 0).view(E4M3) for cache in (key, value)]
    assert_right(call, query, *clean, seq_lens, **options)


@pytest.mark.parametrize("paged", [False, True], ids=["rows", "pages"])
@pytest.mark.parametrize(("dtype", "head_dim"), CACHES)
def test_a_cache_in_e4m3_is_correct(device, dtype, head_dim, paged):
    assert_e4m3_right(device, dtype, head_dim, (90, 0, 45), 2, 5 if paged else None)


def test_several_queries_see_a_cache_in_e4m3(device):
    """14 rows, in pages of 64: one whole page, and part of another."""
    assert_e4m3_right(device, HALF, 64, (90, 3), 7, 64)


TREES = [[-1, 0, 0, 1, 1, 2, 2], [-1, -1, -1, 2, 3, 3, 0], [-1, 0, 1, 2, 3, 4, 5], [-1, -1, 0, 0, 1, -1, 4]]


@pytest.mark.parametrize("paged", [False, True], ids=["rows", "pages"])
def test_a_tree_of_queries_is_correct(device, paged):
    """Also of more queries than keys, and cut where some of the tree's keys are in one piece and some in the next."""
    query, key, value, seq_lens = inputs(device, HALF, (50, 7, 35, 4), heads=2, queries=7, kind="normal")
    parents = ints(*TREES, device=device)
    options = {"parents": parents, "split_size": 16, "return_lse": True}
    pages, table = in_pages((key, value), 5, seq_lens)
    call = partial(decode_attention, query, key, value, seq_lens=seq_lens, **options)
    if paged:
        call = partial(paged_attention, query, *pages, table, seq_lens, **options)
    assert_right(call, query, key, value, seq_lens, parents=parents)
    chain = decode_attention(query[2:3], key[2:3], value[2:3], seq_lens=seq_lens[2:3], split_size=16)
    assert torch.equal(call()[0][2:3], chain)


@pytest.mark.parametrize("name", RUNGS)
def test_the_first_rungs_are_correct(device, name):
    query, key, value, seq_lens = inputs(device, HALF, (70, 0, 2), heads=4, kv_heads=2, queries=3)
    assert_right(partial(rung, name, query, key, value, seq_lens), query, key, value, seq_lens)


def test_a_head_dim_without_a_kernel_is_filled_up_and_strides_are_copied(device):
    query, key, value, seq_lens = inputs(device, HALF, (30, 41), heads=4, kv_heads=2, queries=2, head_dim=40)
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (query, key, value)]
    assert not strided[1].is_contiguous()
    lengths = torch.stack((seq_lens, seq_lens), dim=1)[:, 0]
    call = partial(decode_attention, *strided, seq_lens=lengths, return_lse=True)
    assert_right(call, query, key, value, seq_lens)


@pytest.mark.parametrize("scale", [0.0, -0.3, 2])
def test_any_scale(device, scale):
    query, key, value, seq_lens = inputs(device, HALF, (30, 41), kind="normal")
    found = decode_attention(query, key, value, seq_lens=seq_lens, scale=scale)
    expected = reference.decode_attention(query, key, value, seq_lens=seq_lens, scale=scale)
    torch.testing.assert_close(found.double(), expected, atol=2e-3, rtol=0)


def test_a_sequence_without_keys_may_be_alone(device):
    query, key, value, seq_lens = inputs(device, HALF, (0,))
    call = partial(decode_attention, query, key, value, seq_lens=seq_lens, num_splits=1, return_lse=True)
    assert_right(call, query, key, value, seq_lens)


def test_without_lengths_all_keys_count(device):
    query, key, value, seq_lens = inputs(device, HALF, (70, 70), queries=2, capacity=70)
    call = partial(decode_attention, query, key, value, return_lse=True)
    assert_right(call, query, key, value, seq_lens)
    assert torch.equal(call()[0], decode_attention(query, key, value, seq_lens=seq_lens))


# ---------------------------------------------------------------------------------------------- merged


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_parts_merge_to_attention_over_all_keys(device, dtype):
    """Parts of a few keys and of many, one without keys whose output is NaN, a row without any, and a head dimension
    that is no multiple of 4."""
    query, key, value, _ = inputs(
        device, torch.float32, (60,), heads=2, kv_heads=2, queries=3, capacity=60, head_dim=37
    )
    key = key * 10
    cuts = itertools.pairwise((0, 1, 7, 33, 50, 60))
    parts = [reference.attention(query, key[:, :, a:b], value[:, :, a:b], return_lse=True) for a, b in cuts]
    parts.insert(2, (torch.full_like(query, torch.nan), query.new_full(query.shape[:3], -torch.inf)))
    outs, lses = torch.stack([out.to(dtype) for out, _ in parts]), torch.stack([lse.float() for _, lse in parts])
    lses[:, 0, 1, 2] = -torch.inf
    with checks.poisoned_outputs():
        out, lse = merge_attention(outs, lses)
    expected, expected_lse = reference.merge_attention(outs, lses)
    whole, whole_lse = reference.attention(query, key, value, return_lse=True)
    assert out.dtype == dtype and (out[0, 1, 2] == 0).all()
    tolerance = {"atol": 1e-5 if dtype == torch.float32 else 2e-3, "rtol": 0}
    torch.testing.assert_close(out.double(), expected, **tolerance)
    torch.testing.assert_close(
        out[0, 0].double(), whole[0, 0], atol=10 * tolerance["atol"], rtol=0
    )  # parts are rounded
    assert checks.lse_report(lse, expected_lse).passed and checks.lse_report(lse[0, 0], whole_lse[0, 0]).passed


def test_a_part_that_is_nan_makes_the_row_nan(device):
    outs, lses = torch.zeros(3, 1, 2, 1, 8, device=device), torch.zeros(3, 1, 2, 1, device=device)
    lses[1, 0, 0] = torch.nan
    out, lse = merge_attention(outs, lses)
    assert out[0, 0].isnan().all() and lse[0, 0].isnan() and (out[0, 1] == 0).all()


# ---------------------------------------------------------------------------------------------- the same every time


@pytest.mark.parametrize("paged", [False, True], ids=["rows", "pages"])
def test_every_run_gives_the_same_bits(device, paged):
    query, key, value, seq_lens = inputs(device, HALF, (150, 20), queries=4)
    call = partial(decode_attention, query, key, value, seq_lens=seq_lens, num_splits=5)
    if paged:
        pages, table = in_pages((key, value), 16, seq_lens)
        call = partial(paged_attention, query, *pages, table, seq_lens, num_splits=5)
    found = [call() for _ in range(100 if device.type == "cuda" else 3)]
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_with_a_split_size_the_bits_do_not_depend_on_the_batch(device, monkeypatch, nothing_ready):
    """Nor on whether it has blocks for all multiprocessors: pieces of more tiles than a smaller block has warps."""
    monkeypatch.setattr(serving_choice, "multiprocessors", lambda device: 2)
    query, key, value, seq_lens = inputs(device, HALF, (300, 20, 177), queries=2)
    how = {"split_size": 170, "return_lse": True}
    together = decode_attention(query, key, value, seq_lens=seq_lens, **how)
    pages, table = in_pages((key, value), 16, seq_lens)
    in_any_order = paged_attention(query, *pages, table, seq_lens, **how)
    for b, length in enumerate(seq_lens.tolist()):
        alone = decode_attention(query[b : b + 1], *(x[b : b + 1, :, :length] for x in (key, value)), **how)
        for one, all_of_them, paged in zip(alone, together, in_any_order, strict=True):
            assert torch.equal(one[0], all_of_them[b]) and torch.equal(one[0], paged[b])


def test_pages_may_be_shared(device):
    query, key, value, _ = inputs(device, HALF, (40,), capacity=40)
    seq_lens = ints(40, 33, device=device)
    (key_pages, value_pages), table = in_pages((key, value), 16, seq_lens[:1])
    queries, tables = query.expand(2, -1, -1, -1), table.expand(2, -1)
    found = paged_attention(queries, key_pages, value_pages, tables, seq_lens, split_size=64)
    for b, length in enumerate(seq_lens.tolist()):
        alone = decode_attention(query, key[:, :, :length], value[:, :, :length], split_size=64)
        assert torch.equal(found[b], alone[0])


def test_a_group_of_heads_reads_its_keys_once():
    query, key, value, seq_lens = inputs("cpu", HALF, (96,), heads=8, kv_heads=2, capacity=96, kind="normal")
    of_cache, of_query = 2 * 2 * key.numel(), 2 * query.numel()
    for call, times in (
        (lambda: rung("packed_heads", query, key, value), 1),
        (lambda: rung("warp_per_head", query, key, value), 4),
    ):
        with profile() as counters:
            call()
        read = counters.total("bytes", "global", "load")
        assert times * of_cache <= read < times * of_cache + 20 * of_query


# ---------------------------------------------------------------------------------------------- how the keys are cut


def test_where_there_are_blocks_for_all_two_share_a_multiprocessor():
    tiles, cpu = serving_choice.TILES[128, 16, 2], torch.device("cpu")
    chosen = [serving_choice.decode_tile(4, blocks, 128, 2, cpu) for blocks in (131, 132)]
    assert chosen == [tiles.alone, tiles.in_pairs] and serving_choice.places(tiles.in_pairs, cpu) == 264


def test_long_pieces_come_first():
    """So the last blocks are short ones: of sequences with 5, 26, 10 and 0 keys in pieces of 10."""
    source = """
    #include "pieces.cuh"
    extern "C" __global__ void pieces(const int* lengths, int* found, int B, int size) {
        const Piece piece = piece_of_batch({lengths, B, 100, 1}, {0, size}, blockIdx.x);
        const int columns[] = {piece.sequence, piece.first, piece.end, piece.part, piece.parts, piece.number};
        for (int n = 0; n < 6; n++) found[6 * blockIdx.x + n] = columns[n];
    }"""
    lengths, found = torch.tensor([5, 26, 10, 0], dtype=torch.int32), torch.zeros(7, 6, dtype=torch.int32)
    kernel = cuda.RawModule(code=source).get_function("pieces")
    kernel((7,), (32,), (lengths, found, np.int32(4), np.int32(10)))
    assert found[:6].tolist() == [
        [1, 0, 10, 0, 3, 1],
        [1, 10, 20, 1, 3, 2],
        [1, 20, 26, 2, 3, 3],
        [2, 0, 10, 0, 1, 4],
        [0, 0, 5, 0, 1, 0],
        [3, 0, 0, 0, 1, 5],
    ]
    assert found[6, 0] == -1


def test_what_is_chosen_fills_the_gpu_and_no_more():
    tile = serving_choice.TILES[128, 16, 2].alone
    places = serving_choice.places(tile, torch.device("cpu"))

    def cut(batch, length, **how):
        given = {"ragged": False, "num_splits": 0, "split_size": 0, "tile": tile, **how}
        return serving_choice.cut_keys(batch, 8, length, device=torch.device("cpu"), **given)

    assert places == 132
    assert cut(8, 65536).pieces == 8 * 2  # of 8 heads: 128 blocks
    assert cut(64, 4096).pieces == 64
    assert cut(1, 65536).pieces == cut(1, 4096).pieces == 16
    assert cut(1, 100).pieces == 1
    assert cut(8, 65536, ragged=True) == serving_choice.Cut(16, 0, 16 + 7)
    assert cut(2, 1000, split_size=64) == serving_choice.Cut(0, 64, 2 * 16)
    assert cut(3, 1000, num_splits=9) == serving_choice.Cut(0, 112, 3 * 9)
    in_pairs = serving_choice.TILES[128, 16, 2].in_pairs  # 264 places, and no piece below 1024 keys
    assert cut(17, 2048, tile=in_pairs).pieces == 17 and cut(17, 8192, tile=in_pairs).pieces == 17 * 5
    assert [cut(n, 8192, tile=in_pairs).pieces // n for n in (24, 32, 40, 48)] == [4, 1, 4, 2]  # the fastest on an H100
    with pytest.raises(ValueError, match="cut into up to 131072 pieces; there can be 65535"):
        cut(2, 65536, split_size=1)


# ---------------------------------------------------------------------------------------------- seen to be wrong


def test_a_translation_bug_hides_behind_an_identity_table(break_kernel):
    break_kernel(f"{FOLDER}/paged_cache.cu", "table[j / page_size] * page_size", "j / page_size * page_size")
    query, key, value, seq_lens = inputs("cpu", HALF, (40,), capacity=40, queries=2)  # one does not mind the order
    pages = [cache.transpose(1, 2).reshape(5, 8, 1, 64) for cache in (key, value)]
    identity = torch.arange(5, dtype=torch.int32)[None]

    def assert_right_from(pages, table):
        call = partial(paged_attention, query, *pages, table, seq_lens, return_lse=True)
        assert_right(call, query, key, value, seq_lens)

    assert_right_from(pages, identity)
    with pytest.raises(AssertionError):
        assert_right_from([cache.flip(0) for cache in pages], identity.flip(1))


def test_the_tail_of_the_last_page_is_seen_when_attended(break_kernel):
    break_kernel(f"{FOLDER}/paged_cache.cu", "return j < end && (t < 0", "return (t < 0 || j >= end")
    query, key, value, seq_lens = inputs("cpu", HALF, (35,), capacity=40)
    pages, table = in_pages((key, value), 8, seq_lens)
    call = partial(paged_attention, query, *pages, table, seq_lens, return_lse=True)
    with pytest.raises(AssertionError):
        assert_right(call, query, key, value, seq_lens)


def test_parts_merged_without_their_weights_are_seen(break_kernel):
    break_kernel(f"{FOLDER}/merge.cu", "const float weight = exp2f((lse - m) * LOG2_E);", "const float weight = 1;")
    query, key, value, seq_lens = inputs("cpu", HALF, (150,), capacity=150)
    call = partial(decode_attention, query, key, value, num_splits=3, return_lse=True)
    with pytest.raises(AssertionError):
        assert_right(call, query, key, value, seq_lens)


# ---------------------------------------------------------------------------------------------- bad arguments


def decode(**changes):
    query, key, value, seq_lens = inputs("cpu", HALF, (9, 4), heads=4, kv_heads=2, queries=2, kind="normal")
    return decode_attention(**{"query": query, "key": key, "value": value, "seq_lens": seq_lens, **changes})


def decode_pages(**changes):
    query, key, value, seq_lens = inputs("cpu", HALF, (9, 4), heads=4, kv_heads=2, queries=2, kind="normal")
    (key_pages, value_pages), table = in_pages((key, value), 4, seq_lens)
    given = {"key_pages": key_pages, "value_pages": value_pages, "block_table": table, "seq_lens": seq_lens}
    return paged_attention(query, **{**given, **changes})


CACHE = torch.zeros(2, 2, 14, 64, dtype=HALF)
EIGHT, SCALES = CACHE.to(E4M3), torch.ones(2, 2)


@pytest.mark.parametrize(
    ("call", "changes", "error", "message"),
    [
        (
            decode,
            {"query": torch.zeros(2, 4, 17, 64, dtype=HALF)},
            ValueError,
            "query has L_q 17; it must be at most 16",
        ),
        (decode, {"query": torch.zeros(2, 4, 2, 129, dtype=HALF)}, ValueError, "query has head dimension 129"),
        (
            decode,
            {"query": torch.zeros(2, 3, 2, 64, dtype=HALF)},
            ValueError,
            "key has 2 heads; that must divide the 3",
        ),
        (
            decode,
            {"query": torch.zeros(2, 4, 2, 64)},
            TypeError,
            "query has dtype torch.float32; it must be torch.float16",
        ),
        (decode, {"key": CACHE.bfloat16()}, TypeError, "key has dtype torch.bfloat16; it must be torch.float16 or"),
        (
            decode,
            {"value": CACHE[:, :, :3]},
            ValueError,
            r"value has shape \[2, 2, 3, 64\]; it must be \[2, 2, 14, 64\]",
        ),
        (
            decode,
            {"seq_lens": torch.tensor([1, 2])},
            TypeError,
            "seq_lens has dtype torch.int64; it must be torch.int32",
        ),
        (decode, {"seq_lens": ints(1, 15)}, ValueError, r"seq_lens is \[1, 15\]; each must be from 0 to 14"),
        (decode, {"seq_lens": ints(-1, 5)}, ValueError, r"seq_lens is \[-1, 5\]; each must be from 0 to 14"),
        (decode, {"num_splits": 0}, ValueError, "num_splits is 0; it must be an integer from 1"),
        (decode, {"split_size": 2.5}, TypeError, "split_size is 2.5; it must be an integer of at least 1"),
        (decode, {"num_splits": 2, "split_size": 9}, ValueError, "at most one of them may be given"),
        (decode, {"parents": ints([-1, 1], [-1, 0])}, ValueError, "entry i of each must be from -1 to i - 1"),
        (decode, {"parents": ints([-1], [-1])}, ValueError, r"parents has shape \[2, 1\]; it must be \[2, 2\]"),
        (decode, {"k_scale": SCALES}, ValueError, "k_scale is given, and key is torch.float16"),
        (decode, {"key": EIGHT, "value": EIGHT, "k_scale": SCALES}, ValueError, "v_scale is None; with key in"),
        (
            decode,
            {"key": EIGHT, "value": EIGHT, "k_scale": 0 * SCALES, "v_scale": SCALES},
            ValueError,
            "k_scale goes down to 0.0",
        ),
        (decode, {"scale": float("nan")}, ValueError, "scale is nan; it must be a finite number"),
        (
            decode_pages,
            {"block_table": ints([0, 1, 11, 0], [0, 0, 0, 0])},
            ValueError,
            r"block_table\[0, 2\] is 11; key_pa",
        ),
        (
            decode_pages,
            {"block_table": ints([0, 1, 2], [-1, 0, 0])},
            ValueError,
            r"block_table\[1, 0\] is -1; key_pages has",
        ),
        (decode_pages, {"seq_lens": ints(9, 17)}, ValueError, "each must be from 0 to 16"),
        (decode_pages, {"key_pages": torch.zeros(1, 257, 2, 64, dtype=HALF)}, ValueError, "value_pages has shape"),
    ],
)
def test_what_does_not_fit_is_named(call, changes, error, message):
    with pytest.raises(error, match=message):
        call(**changes)


def test_pages_have_at_most_256_keys():
    pages = torch.zeros(1, 257, 2, 64, dtype=HALF)
    with pytest.raises(ValueError, match="key_pages has pages of 257 keys; they must have at most 256"):
        decode_pages(key_pages=pages, value_pages=pages)


def test_a_sequence_has_at_most_2_to_the_30_keys():
    """More, and the kernels' numbers of keys would not fit in an int. What is refused is not looked at: it has strides
    of 0, and would take a terabyte."""
    limit = 2**30
    query, numbers = torch.randn(1, 1, 1, 64).to(HALF), torch.randn(2, 256, 1, 64).to(HALF)
    table, lengths = ints([0, 1]), ints(300)
    most = torch.nn.functional.pad(table, (0, limit // 256 - 2))
    found, right = (
        paged_attention(query, numbers, numbers, pages, lengths, split_size=2**31) for pages in (most, table)
    )
    assert torch.equal(found, right)
    with pytest.raises(ValueError, match=f"block_table has pages for {limit + 256} keys of a sequence; there can be"):
        paged_attention(query, numbers, numbers, torch.nn.functional.pad(most, (0, 1)), lengths)
    key = numbers[:1, :1].transpose(1, 2).expand(-1, -1, limit + 1, -1)
    with pytest.raises(ValueError, match=f"key has {limit + 1} keys of a sequence; there can be {limit}"):
        decode_attention(query, key, key)


def test_merging_names_what_does_not_fit():
    with pytest.raises(ValueError, match=r"lses has shape \[2, 1, 1\]; it must be \[2, 1, 1, 3\]"):
        merge_attention(torch.zeros(2, 1, 1, 3, 8), torch.zeros(2, 1, 1))
    with pytest.raises(TypeError, match="outs has dtype torch.float64"):
        merge_attention(torch.zeros(2, 1, 1, 3, 8).double(), torch.zeros(2, 1, 1, 3))


# ---------------------------------------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("page_size", [1, 5, 16, 64, 256])
@pytest.mark.parametrize(("dtype", "head_dim"), CACHES)
def test_long_and_short_sequences_in_one_batch(dtype, head_dim, page_size):
    lengths = (40000, 0, 1, 1000, 513)
    query, key, value, seq_lens = inputs(
        "cuda", dtype, lengths, heads=16, kv_heads=2, head_dim=head_dim, queries=3, kind="normal"
    )
    for how in ({}, {"num_splits": 1}, {"num_splits": 64}, {"split_size": 1000}):
        call = partial(decode_attention, query, key, value, seq_lens=seq_lens, return_lse=True, **how)
        assert_right(call, query, key, value, seq_lens)
    pages, table = in_pages((key, value), page_size, seq_lens)
    assert_right(partial(paged_attention, query, *pages, table, seq_lens, return_lse=True), query, key, value, seq_lens)


@pytest.mark.gpu
@pytest.mark.parametrize("page_size", [None, 16, 64, 256])
@pytest.mark.parametrize("queries", [1, 4, 9, 16])
@pytest.mark.parametrize(("dtype", "head_dim"), CACHES)
def test_any_number_of_queries_sees_a_cache_in_e4m3(dtype, head_dim, queries, page_size):
    assert_e4m3_right(torch.device("cuda"), dtype, head_dim, (3000, 0, 1, 513), queries, page_size)


@pytest.mark.gpu
@pytest.mark.parametrize("page_size", [None, 1, 16, 256])
@pytest.mark.parametrize("eight", [False, True], ids=["16 bits", "E4M3"])
def test_many_runs_of_long_and_short_sequences_give_the_same_bits(eight, page_size):
    """On four streams at a time, each call's merge beginning before its parts are there."""
    query, key, value, seq_lens = inputs("cuda", HALF, (20000, 0, 7, 3000), heads=16, kv_heads=4, head_dim=128)
    options = {}
    if eight:
        key, value = key.nan_to_num().to(E4M3), value.nan_to_num().to(E4M3)
        options = {name: torch.ones(4, 4, device="cuda") for name in ("k_scale", "v_scale")}
    call = partial(decode_attention, query, key, value, seq_lens=seq_lens, **options)
    if page_size:
        bits = [x.view(torch.uint8) for x in (key, value)] if eight else (key, value)
        pages, table = in_pages(bits, page_size, seq_lens)
        pages = [x.view(E4M3) for x in pages] if eight else pages
        call = partial(paged_attention, query, *pages, table, seq_lens, **options)
    expected, streams = call(), [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    found = []
    for _ in range(25):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(call())
    torch.cuda.synchronize()
    assert all(torch.equal(expected, other) for other in found)


@pytest.mark.gpu
def test_captured_calls_follow_their_lengths_and_run_beside_each_other():
    """Two graphs, each with parts of its own."""
    query, key, value, seq_lens = inputs("cuda", HALF, (9000, 0, 700), heads=8, kv_heads=2, head_dim=128, capacity=9000)
    key, value = key.nan_to_num(), value.nan_to_num()  # what shorter lengths leave behind
    call = partial(decode_attention, query, key, value, seq_lens=seq_lens)
    call()
    graphs, outs, streams = [], [], [torch.cuda.Stream() for _ in range(2)]
    for _ in streams:
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            outs.append(call())
    for lengths in ((9000, 0, 700), (1, 9000, 4000), (0, 0, 5)):
        seq_lens.copy_(torch.tensor(lengths))
        torch.cuda.synchronize()
        for _ in range(50):
            for graph, stream in zip(graphs, streams, strict=True):
                with torch.cuda.stream(stream):
                    graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(out, call()) for out in outs)


@pytest.mark.gpu
def test_offsets_beyond_32_bits():
    """The last page begins beyond number 2^31 of the cache."""
    pages, page_size = 2**31 // (8 * 128 * 256) + 2, 256
    if torch.cuda.mem_get_info()[0] < 10 << 30:
        pytest.skip("needs 10 GiB of free GPU memory")
    key = torch.zeros(pages, page_size, 8, 128, device="cuda", dtype=HALF)
    value = torch.zeros_like(key)
    value[-1] = 3
    query = torch.ones(1, 8, 1, 128, device="cuda", dtype=HALF)
    found = paged_attention(query, key, value, ints([pages - 1, 0], device="cuda"), ints(200, device="cuda"))
    assert (found == 3).all()
    rows = value.view(1, 8, -1, 128)  # the last head begins below 2^31, and ends beyond
    assert torch.equal(decode_attention(query, rows, rows)[0, :7], torch.zeros_like(query)[0, :7])
    assert decode_attention(query, rows, rows)[0, 7].float().mean() > 0
