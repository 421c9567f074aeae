"""paged_attention with a window, sinks and a softcap, and of sequences that bring different numbers of queries: right,
and seen to be wrong when broken. What it shares with decode_attention is in test_serving.py."""

import itertools
from functools import partial

import pytest
import torch

from course_utils import checks, reference
from course_utils.emulator import profile, sanitize
from course_utils.operators import cascade_attention, paged_attention, serving_choice, serving_launch
from course_utils.operators.serving_groups import groups_of
from tests.helpers import tensors
from tests.helpers.all_of import all_of
from tests.helpers.caches import in_pages, inputs, ints
from tests.helpers.graphs import compiled, replayed

HALF, BF16, E4M3 = torch.float16, torch.bfloat16, serving_choice.E4M3
PAGED, IN_E4M3 = (f"{serving_launch.FOLDER}/{name}.cu" for name in ("paged_cache", "e4m3_cache"))
SINKS = torch.tensor([-3.0, 0.5, 4.0, 9.0])  # from below all scores to above them


def case(lengths, queries, *, heads=4, kv_heads=2, head_dim=64, page_size=5, dtype=HALF, eight=False, device="cpu"):
    """Arguments of paged_attention. queries: L_q, or of each sequence how many it brings, and how many rows are behind
    the last one: then with cu_seq_q. eight: the cache is in E4M3."""
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "kind": "normal"}
    is_packed = not isinstance(queries, int)
    query, *cache, seq_lens = inputs(device, dtype, lengths, queries=1 if is_packed else queries, **sizes)
    if eight:
        cache = [tensor.to(E4M3).view(torch.uint8) for tensor in cache]
    pages, table = in_pages(cache, page_size, seq_lens)
    given = dict(zip(("key_pages", "value_pages"), pages, strict=True), block_table=table, seq_lens=seq_lens)
    if eight:
        given |= {name: given[name].view(E4M3) for name in ("key_pages", "value_pages")}
        for seed, name in enumerate(("k_scale", "v_scale")):
            given[name] = tensors.random(len(lengths), kv_heads, device=device, seed=seed).abs() + 0.1
    if is_packed:
        ends = list(itertools.accumulate(queries, initial=0))
        query = tensors.random(ends[-1], heads, head_dim, dtype=dtype, device=device, seed=3, factor=2)
        given["cu_seq_q"] = ints(*ends[:-1], device=device)
    return {"query": query, **given}


def torch_run(query, key_pages, value_pages, block_table, seq_lens, cu_seq_q=None, **options):
    """Plain torch in the dtype of query, sequence by sequence."""
    if cu_seq_q is None:
        batch, _, queries, _ = query.shape
        rows = torch.arange(batch + 1) * queries
        out = torch_run(
            query.transpose(1, 2).flatten(0, 1), key_pages, value_pages, block_table, seq_lens, rows, **options
        )
        return out.unflatten(0, (batch, queries)).transpose(1, 2)
    scales, out = [options.pop(name, None) for name in ("k_scale", "v_scale")], torch.zeros_like(query)
    for b, (first, end) in enumerate(itertools.pairwise(cu_seq_q.tolist())):
        j = torch.arange(int(seq_lens[b]), device=query.device)
        if first == end or not len(j):
            continue
        at = block_table[b, j // key_pages.shape[1]].long(), j % key_pages.shape[1]
        cache = []
        for pages, scale in zip((key_pages, value_pages), scales, strict=True):
            numbers = pages[at].transpose(0, 1)[None].float()
            cache.append((numbers if scale is None else numbers * scale[b, :, None, None]).to(query.dtype))
        rows = query[first:end].transpose(0, 1)[None]
        with reference.full_float32():
            found = reference.torch_attention(rows, *cache, is_causal=True, enable_gqa=True, **options)
        out[first:end] = found[0].transpose(0, 1)
    return out


def reports_of(given, model, *, attend=paged_attention, **how):
    """Of paged_attention, run on poisoned memory, against float64. model: window, sinks, softcap."""
    with checks.poisoned_outputs():
        out, lse = attend(**given, **model, **how, return_lse=True)
    expected, expected_lse = reference.paged_attention(**given, **model, return_lse=True)
    assert out.dtype == given["query"].dtype and out.shape == given["query"].shape and out.is_contiguous()
    assert (out[(expected == 0).all(-1)] == 0).all()  # without keys
    run = (torch_run(**arguments) for arguments in [given | model])  # where it is needed
    if lse.dim() == 2:
        lse, expected_lse = lse[None], expected_lse[None]
    return checks.error_report(out, expected, run), checks.lse_report(lse, expected_lse)


def assert_right(given, model, **how):
    for report in reports_of(given, model, **how):
        assert report.passed, report


def is_wrong(given, model, **how):
    return not all(report.passed for report in reports_of(given, model, **how))


# ---------------------------------------------------------------------------------------------- right

LENGTHS = 70, 0, 2, 33, 129


@pytest.mark.parametrize("window", [1, 2, 5, 16, 17, 31, 32, 33, 69, 70, 128, 129, 2**40])
def test_a_query_sees_the_keys_of_its_window(device, window):
    """Of one query, two and three; windows that end with a tile, a page, a sequence and the capacity."""
    for queries, how in ((1, {}), (2, {"split_size": 64}), (3, {"num_splits": 4})):
        assert_right(case(LENGTHS, queries, device=device), {"window": window}, **how)


def test_only_the_keys_of_the_window_are_read():
    """32 of 500: what is before may be NaN, and no block is for it."""
    given = case((500,), 1)
    right, pages, last = paged_attention(**given, window=32), given["block_table"][0].long(), 500 - 32
    for cache in (given["key_pages"], given["value_pages"]):
        cache[pages[: last // 5]] = cache[pages[last // 5], : last % 5] = torch.nan
    assert torch.equal(paged_attention(**given, window=32), right)
    with profile() as counters:
        paged_attention(**given, window=32)
    of_window = 2 * 2 * 32 * 2 * 64
    assert of_window <= counters.total("bytes", "global", "load") < of_window + 4096


@pytest.mark.parametrize("queries", [1, [3, 0, 40, 2]], ids=["one each", "packed"])
def test_pages_in_front_of_all_windows_may_be_gone(queries):
    """As in a cache that frees them."""
    given = case((200, 7, 300), queries)
    right, per_page = paged_attention(**given, window=32), given["key_pages"].shape[1]
    of_queries = torch.tensor([1, 1, 1] if queries == 1 else queries[:3])
    seen = given["seq_lens"] - 32 - of_queries - (0 if queries == 1 else 15)
    gone = (torch.arange(given["block_table"].shape[1]) + 1) * per_page <= seen[:, None]
    assert gone.any()
    given["block_table"][gone] = -1
    assert torch.equal(paged_attention(**given, window=32), right)
    given["block_table"][0, 199 // per_page] = -1
    with pytest.raises(ValueError, match=r"block_table\[0, .*is -1"):
        paged_attention(**given, window=32)


@pytest.mark.parametrize("factor", [1, -1e4, 1e4, torch.inf])
def test_a_sink_takes_its_share(device, factor):
    """In one piece, and in several, where the first has it. Far above all scores, below them, and minus infinity."""
    sinks = -SINKS.abs() * factor if factor == torch.inf else SINKS * factor
    given = case(LENGTHS, 3, device=device)
    for how in ({"num_splits": 1}, {"split_size": 30}):
        assert_right(given, {"sinks": sinks.to(device)}, **how)


def test_scores_are_capped(device):
    for how in ({}, {"split_size": 30}):
        assert_right(case(LENGTHS, 3, device=device), {"softcap": 0.7, "scale": 0.5}, **how)


# Lengths, queries (also more than keys, none, and rows behind the last sequence), and heads.
PACKED = {
    "a chunk among single tokens": ((70, 40, 129, 9), (1, 33, 1, 1, 0), (4, 2)),
    "none": ((70, 40, 0, 9), (0, 8, 5, 12, 7), (4, 2)),
    "single tokens": ((33, 2, 0, 65), (1, 1, 1, 1, 0), (4, 4)),
    "one chunk": ((200,), (113, 0), (6, 2)),
    "a head": ((70, 20), (19, 17, 3), (4, 1)),
    "many heads": ((20, 9), (3, 1, 0), (40, 1)),
}


@pytest.mark.parametrize("name", PACKED)
def test_sequences_bring_as_many_queries_as_they_like(device, name):
    lengths, queries, (heads, kv_heads) = PACKED[name]
    given = case(lengths, queries, heads=heads, kv_heads=kv_heads, device=device)
    assert_right(given, {})
    assert_right(given, {}, split_size=24)


TOGETHER = {"window": 9, "sinks": SINKS, "softcap": 0.7}


@pytest.mark.parametrize(
    ("dtype", "head_dim", "eight"), [(HALF, 64, False), (HALF, 40, True), (BF16, 128, False), (BF16, 128, True)]
)
@pytest.mark.parametrize("queries", [3, (1, 33, 0, 12, 4)], ids=["alike", "packed"])
def test_all_of_it_together(device, dtype, head_dim, eight, queries):
    given = case((70, 40, 0, 9), queries, head_dim=head_dim, dtype=dtype, eight=eight, device=device)
    model = TOGETHER | {"sinks": SINKS.to(device)}
    for how in ({"num_splits": 3}, {"split_size": 7}):
        assert_right(given, model | {"scale": -0.3}, **how)


def test_no_launch_has_a_finding():
    model = TOGETHER | {"window": 40}
    for queries, eight in ((3, False), ((1, 33, 0, 12, 4), True)):
        with sanitize() as report:
            paged_attention(**case((200, 40, 0, 9), queries, eight=eight), **model, split_size=30)
        assert report.launches == 2 and not report.findings, str(report)


@pytest.mark.parametrize("way", [compiled, pytest.param(replayed, marks=pytest.mark.gpu)])
def test_compiled_and_captured_calls_are_correct(device, way):
    for queries in (3, (1, 33, 0, 12, 4)):
        assert_right(
            case((70, 40, 0, 9), queries, device=device),
            TOGETHER | {"sinks": SINKS.to(device)},
            attend=way(paged_attention),
        )


def test_with_a_split_size_the_bits_do_not_depend_on_the_batch(device):
    """Nor does it matter which rows of query and pages of the table a sequence has."""
    given = case((70, 40, 129, 9), (3, 33, 0, 9, 2), device=device)
    model = TOGETHER | {"sinks": SINKS.to(device), "split_size": 16, "return_lse": True}
    out, lse = paged_attention(**given, **model)
    for b, (first, end) in enumerate(itertools.pairwise(given["cu_seq_q"].tolist())):
        if first < end:
            own = {name: given[name][b, None] for name in ("block_table", "seq_lens")}
            own |= {"query": given["query"][first:end], "cu_seq_q": ints(0, end - first, device=device)}
            found = paged_attention(**given | own, **model)
            assert torch.equal(found[0], out[first:end]) and torch.equal(found[1], lse[:, first:end])


def test_sequences_of_as_many_queries_are_as_those_of_a_batch(device):
    given = case((70, 40, 0, 9), 8, device=device)
    packed = given | {
        "query": given["query"].transpose(1, 2).flatten(0, 1),
        "cu_seq_q": ints(0, 8, 16, 24, 32, device=device),
    }
    out, lse = paged_attention(**given, return_lse=True, split_size=16)
    found, found_lse = paged_attention(**packed, return_lse=True, split_size=16)
    assert torch.equal(found.unflatten(0, (4, 8)).transpose(1, 2), out)
    assert torch.equal(found_lse.unflatten(1, (4, 8)).transpose(0, 1), lse)


@pytest.mark.gpu
@pytest.mark.parametrize("eight", [False, True], ids=["16 bits", "E4M3"])
@pytest.mark.parametrize("window", [None, 1, 500, 4096])
def test_long_chunks_of_prompts(window, eight):
    lengths, queries = (9000, 512, 3, 700, 0, 4096), (512, 512, 1, 300, 0, 1, 0)
    given = case(lengths, queries, heads=8, head_dim=128, page_size=16, eight=eight, device="cuda")
    assert_right(given, {"window": window, "sinks": SINKS.repeat(2).cuda()})


@pytest.mark.gpu
def test_a_captured_call_follows_the_lengths_and_the_ends_in_place():
    given = case((70, 40, 129, 9), (3, 33, 0, 9, 2), device="cuda")
    given |= {name: given[name].nan_to_num() for name in ("key_pages", "value_pages")}
    given["block_table"] = given["block_table"].clamp(max=given["key_pages"].shape[0] - 1)
    call = partial(paged_attention, **given, window=20, split_size=16)
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    for lengths, ends in (
        ((9, 130, 0, 70), (0, 1, 1, 40, 47)),
        ((50, 50, 50, 50), (0, 0, 0, 0, 47)),
        ((1, 1, 1, 1), (0, 1, 2, 3, 4)),
    ):
        given["seq_lens"].copy_(ints(*lengths))
        given["cu_seq_q"].copy_(ints(*ends))
        graph.replay()
        assert torch.equal(captured, call())


# ---------------------------------------------------------------------------------------------- how they are grouped


def test_groups_end_with_their_last_query():
    """Of 1, 0 and 5 queries in twos, with 9, 4 and 3 keys: a group that a sequence has no queries for has no keys."""
    groups = groups_of(ints(0, 1, 1, 6), ints(9, 4, 3), 7, 2)
    of_sequence = [torch.where(groups.sequences == b, groups.seq_lens, 0).tolist() for b in range(3)]
    used = [[length for length in lengths if length] for lengths in of_sequence]
    assert used == [[9], [], [-1, 1, 3]]
    group, place = groups.places
    assert place.tolist()[:6] == [1, 1, 0, 1, 0, 1]
    assert groups.seq_lens[group].tolist()[:6] == [9, -1, 1, 1, 3, 3] and groups.seq_lens[group[6]] == 0


# ---------------------------------------------------------------------------------------------- seen to be wrong

BROKEN = {
    "a window is a key too short": ("t > i - queries.window", "t > i + 1 - queries.window"),
    "a window is a key too long": ("t > i - queries.window", "t >= i - queries.window"),
    "a tile at the window's edge is taken for whole": ("j <= first + L_q - 1 - window", "j < first + L_q - 1 - window"),
    "keys are looked up at the start of the sequence": ("table.row_of(j + skipped)", "table.row_of(j)"),
    "each piece has the sink": ("piece.part > 0 || r >= rows", "r >= rows"),
    "the first head's sink is every head's": (
        "which.head * problem.group + r / problem.L_q",
        "which.head * problem.group",
    ),
    "the sink is not relative to the maximum": ("(lse - m) * LOG2_E", "(p < WARPS ? lse - m : lse) * LOG2_E"),
    "the cap is not a factor": ("SOFTCAP ? softmax.softcap * LOG2_E :", "SOFTCAP ? LOG2_E :"),
    "the cap comes before the scale": ("problem.scale * problem.k_factor / softmax.softcap", "1 / softmax.softcap"),
}


@pytest.mark.parametrize(
    "file", [PAGED, pytest.param(IN_E4M3, marks=pytest.mark.exhaustive("the same header as with 16 bits"))]
)
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_kernel_is_seen(break_kernel, file, name):
    break_kernel(file, *BROKEN[name])
    model = {"window": 40} if "window" in name or "looked up" in name else {}
    model |= {"sinks": SINKS + 3} if "sink" in name else {"softcap": 2.0} if "cap" in name else {}
    assert is_wrong(case((100, 33), 2, eight=file == IN_E4M3), model, split_size=40)


def test_a_cap_on_masked_scores_is_seen(break_kernel):
    """cap · tanh(−∞) is −cap, and has weight."""
    line = "    if (SOFTCAP) cap_scores(S, scale_per_cap);\n"
    break_kernel(PAGED, line, "")
    break_kernel(PAGED, "    update_maximum(state, S, factor);\n", line + "    update_maximum(state, S, factor);\n")
    assert is_wrong(case((35,), 3), {"softcap": 2.0})


# ---------------------------------------------------------------------------------------------- bad arguments


ALIKE, BY_ENDS, PARENTS = case((9, 4), 2), case((9, 4), (2, 1, 0)), ints([-1, 0], [-1, 0])
WRONG = [
    (ALIKE, {"window": 0}, ValueError, "window is 0; it must be an integer of at least 1"),
    (ALIKE, {"window": 2.0}, TypeError, "window is 2.0; it must be an integer"),
    (ALIKE, {"window": 3, "parents": PARENTS}, ValueError, "window is 3, and parents is given"),
    (ALIKE, {"sinks": torch.zeros(3)}, ValueError, r"sinks has shape \[3\]; it must be \[4\]"),
    (ALIKE, {"sinks": torch.zeros(4).half()}, TypeError, "sinks has dtype torch.float16"),
    (ALIKE, {"softcap": 0.0}, ValueError, "softcap is 0.0; it must be a number from 0.001"),
    (
        ALIKE,
        {"cu_seq_q": ints(0, 2, 4)},
        ValueError,
        r"query has shape \[2, 4, 2, 64\]; it must be \[total_q, H, d\]",
    ),
    (BY_ENDS, {"cu_seq_q": None}, ValueError, r"query has shape \[3, 4, 64\]; it must be \[B, H, L_q, d\]"),
    (BY_ENDS, {"cu_seq_q": ints(0, 3)}, ValueError, r"block_table has shape \[2, 3\]; it must be \[1, max_pages\]"),
    (BY_ENDS, {"cu_seq_q": ints(3)}, ValueError, "cu_seq_q has 1 element"),
    (BY_ENDS, {"cu_seq_q": ints(0, 2, 4)}, ValueError, r"cu_seq_q is \[0, 2, 4\]; it must begin with 0, never fall"),
    (BY_ENDS, {"cu_seq_q": ints(0, 2, 1)}, ValueError, r"cu_seq_q is \[0, 2, 1\]; it must begin with 0, never fall"),
    (BY_ENDS, {"cu_seq_q": torch.tensor([0, 2, 3])}, TypeError, "cu_seq_q has dtype torch.int64"),
    (BY_ENDS, {"parents": PARENTS}, ValueError, "parents is given, and so is cu_seq_q"),
    (BY_ENDS, {"query": torch.zeros(3, 4, 129).half()}, ValueError, "query has head dimension 129"),
    (
        BY_ENDS,
        {"query": torch.zeros(1, 4, 64).half().expand(2**20, -1, -1)},
        ValueError,
        "query has 1048576 rows, which make 65538 groups; there can be 65535",
    ),
]


@all_of("one", WRONG)
def test_what_does_not_fit_is_named(one):
    given, changes, error, message = one
    with pytest.raises(error, match=message):
        paged_attention(**given | changes)


def test_a_prefix_has_no_window():
    """cascade_attention would leave it out for the prefix."""
    given = case((9, 4), 2)
    prefix = torch.zeros(2, 3, 64).half()
    with pytest.raises(TypeError, match="window"):
        cascade_attention(given.pop("query"), prefix, prefix, **given, window=3)
