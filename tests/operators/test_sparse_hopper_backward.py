"""range_backward_hopper.cu: right against float64, in turns the same bits in every run, clean, seen to be wrong when
broken."""

import functools
import itertools
import re

import pytest
import torch

from course_utils import checks, cuda, patterns, reference
from course_utils.cuda import KernelError, read_kernel
from course_utils.emulator import configure, profile, sanitize
from course_utils.operators import hopper_launch, sparse_launch, sparse_work
from course_utils.operators.attention import Call
from course_utils.operators.hopper_launch import BACKWARD, ReadyBackward
from course_utils.operators.sparse_hopper_backward import (
    COLUMN_TILES,
    RANGE_BACKWARD,
    RangeBackwardTile,
    columns_of_keys,
    order_of,
    ready_range_backward,
    rows_by_key,
)
from course_utils.operators.tensor_core import BF16_OPTION, DTYPES, HEAD_DIMS, takes_wgmma
from course_utils.patterns import UNBOUNDED, Ranges, RowRanges
from course_utils.toolchain import nvrtc
from course_utils.toolchain.source import compile_options
from tests.helpers import model_softmax

HALF, BF16 = torch.float16, torch.bfloat16
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def on_a_hopper_or_the_emulator(request):
    device = request.getfixturevalue("device") if "device" in request.fixturenames else CPU
    if device.type == "cuda" and not takes_wgmma(device):
        pytest.skip("this GPU is no Hopper")


@pytest.fixture
def short_parts(monkeypatch):
    """Columns are split where they are longer than a tile of queries and than four times the others, or some such."""
    monkeypatch.setattr(sparse_work, "SHORTEST_PART", 128)


def mask_of(ranges, L_q, L_k):
    """The dense mask by the definition of Ranges or RowRanges, bool `[L_q, L_k]`."""
    i, j = torch.arange(L_q)[:, None], torch.arange(L_k)
    if isinstance(ranges, RowRanges):
        return (j >= ranges.starts[:, None]) & (j < ranges.ends[:, None])
    i, own_class = (i + L_k - L_q) // ranges.dilation, (i + L_k - L_q - j) % ranges.dilation == 0
    base, j = i // ranges.step * ranges.step, j // ranges.dilation
    return own_class & (j < base + ranges.right) & ((j >= base - ranges.left) | (j < ranges.sinks))


def inputs(ranges, L_q, L_k, head_dim, *, dtype=HALF, kind="normal", group=1, kv_heads=1, batch=1, device=CPU, seed=0):
    """Query, key, value and the gradient of out, and out and lse, with the mask."""
    mask = mask_of(ranges, L_q, L_k)
    case = checks.AttentionCase(batch, group * kv_heads, kv_heads, L_q, L_k, head_dim, False, kind)
    tensors = [tensor.to(device) for tensor in checks.make_inputs(case, dtype=dtype, seed=seed)]
    options = {"attn_mask": mask.to(device), "enable_gqa": group > 1}
    out, lse = reference.attention(*tensors[:3], **options, return_lse=True)
    return tensors, out.to(dtype), lse.float(), options


def gradients(ranges, tensors, out, lse, *, deterministic=False, softcap=0):
    query, key, value, grad_out = tensors
    call = Call(query.shape, key.shape, query.dtype, query.device, query.shape[-1] ** -0.5, softcap)
    on_device = RowRanges(*(end.to(query.device) for end in ranges)) if isinstance(ranges, RowRanges) else ranges
    ready = ready_range_backward(call, on_device, deterministic=deterministic)
    with checks.poisoned_outputs():
        return ready(query, key, value, out, lse, grad_out)


def check(ranges, L_q, L_k, head_dim, *, deterministic=False, **how):
    """Against float64, as SPEC's rule for gradients has it; keys that no query sees, and queries that see no key, have
    gradients of exactly 0."""
    tensors, out, lse, options = inputs(ranges, L_q, L_k, head_dim, **how)
    found = gradients(ranges, tensors, out, lse, deterministic=deterministic)
    exact = reference.attention_gradients(*tensors, **options)
    same_dtype = functools.cache(lambda: reference.attention_gradients(*tensors, **options, dtype=tensors[0].dtype))
    for n, (name, of_kernel, wanted) in enumerate(zip("qkv", found, exact, strict=True)):
        runs = (run()[n] for run in [same_dtype])  # made where it is asked for
        report = checks.error_report(of_kernel, wanted, runs, factor=checks.GRADIENT_FACTOR, name=f"d{name}")
        assert report.passed, str(report)
    mask = options["attn_mask"]
    grad_query, *of_keys = found
    assert (grad_query[:, :, ~mask.any(1)] == 0).all()
    assert all((grad[:, :, ~mask.any(0)] == 0).all() for grad in of_keys)


def documents(*lengths):
    """Rows of documents packed into one sequence, causal."""
    pattern = patterns.document(list(lengths)) & patterns.causal()
    return pattern.row_ranges(sum(lengths), sum(lengths), device=CPU)


CASES = {  # ranges, L_q, L_k, d; a block has 128 keys, and a tile 128 queries, or 64 for d = 128
    "window": (Ranges(0, 69, 1), 200, 200, 64),
    "window over several tiles": (Ranges(0, 150, 1), 300, 290, 128),
    "window, queries first": (Ranges(0, 40, 1), 257, 100, 128),  # rows before the first key see nothing
    "window, keys left out": (Ranges(0, 20, 1), 10, 300, 64),  # two tiles of keys that no row sees
    "sinks and a window": (Ranges(5, 30, 1), 130, 300, 64),
    "sinks end in the second tile": (Ranges(140, 9, 1), 200, 190, 128),
    "to the right": (Ranges(0, 0, UNBOUNDED), 113, 65, 64),
    "symmetric": (Ranges(0, 17, 18), 100, 130, 128),
    "blocks on the diagonal": (Ranges(0, 0, 48, 48), 200, 150, 128),
    "documents": (documents(70, 3, 129, 1), 203, 203, 128),
    "one of each": (Ranges(0, 0, 1), 1, 1, 64),
    "dilated": (Ranges(0, 69, 1, dilation=2), 400, 300, 64),
    "dilated, queries first": (Ranges(0, 40, 1, dilation=4), 520, 280, 128),  # each class has rows that see nothing
    "dilated, keys left out": (Ranges(0, 20, 1, dilation=2), 20, 600, 64),
    "dilated blocks": (Ranges(0, 0, 48, 48, dilation=3), 225, 450, 128),
}
ONCE = "window", "window, keys left out", "symmetric", "to the right", "dilated, keys left out"
ALIKE = pytest.mark.exhaustive("`make test` has the same turns of the loops in other ranges")


@pytest.mark.parametrize("name", [pytest.param(name, marks=ALIKE if name in ONCE else ()) for name in CASES])
def test_gradients_of_ranges(device, name):
    number = list(CASES).index(name)
    check(*CASES[name], dtype=(HALF, BF16)[number % 2], deterministic=number // 2 % 2 == 1, device=device)


def test_keys_that_no_query_sees_meet_no_tile():
    """Of the last 10 of 300 positions, each with 20 keys and its own: two tiles of keys are seen by none."""
    ranges, L_q, L_k, head_dim = CASES["window, keys left out"]
    call = Call(torch.Size((1, 1, L_q, head_dim)), torch.Size((1, 1, L_k, head_dim)), HALF, CPU, 1.0)
    tile, first, end, _ = columns_of_keys(rows_by_key(ranges, L_q, L_k, CPU), call, False).items.T
    assert dict(zip(tile.tolist(), (end - first).tolist(), strict=True)) == {0: 0, 1: 0, 2: L_q}


def test_query_heads_that_share_a_key_head(device):
    how = {"group": 3, "kv_heads": 2, "kind": "large logits", "device": device}
    check(Ranges(3, 50, 1), 90, 140, 128, **how)
    check(documents(40, 60), 100, 100, 64, deterministic=True, **how)


@pytest.mark.parametrize("deterministic", [False, True], ids=["chance", "turns"])
def test_query_heads_that_share_a_key_head_in_each_class(device, deterministic):
    """Of two batches; at d = 64 of two tiles of keys, at d = 128 of two tiles of queries."""
    how = {"group": 2, "kv_heads": 2, "batch": 2, "kind": "large logits", "device": device}
    check(Ranges(0, 100, 1, dilation=2), 150, 260, 64, deterministic=deterministic, **how)
    check(Ranges(0, 50, 1, dilation=4), 264, 200, 128, deterministic=deterministic, dtype=BF16, **how)


@pytest.mark.parametrize("deterministic", [False, True], ids=["chance", "turns"])
def test_the_column_of_a_sink_is_split(device, short_parts, deterministic, thinned):
    """Four parts, which add up in a fixed order; of two key heads, and of two batches."""
    ranges, shape = Ranges(3, 20, 1), (330, 290, 128)
    call = Call(torch.Size((1, 1, 330, 128)), torch.Size((1, 1, 290, 128)), HALF, CPU, 1.0)
    assert columns_of_keys(rows_by_key(ranges, 330, 290, CPU), call, deterministic).parts > 1
    check(ranges, *shape, deterministic=deterministic, kind="large logits", device=device)
    both = {"group": 2, "kv_heads": 2, "batch": 2}
    for heads in thinned(({"group": 2, "kv_heads": 2}, {"kv_heads": 2, "batch": 2}, both), 3, deterministic):
        check(ranges, *shape, deterministic=deterministic, **heads, dtype=BF16, device=device)


@pytest.mark.gpu
@pytest.mark.parametrize("deterministic", [False, True], ids=["chance", "turns"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_combinations_on_a_gpu(monkeypatch, deterministic, dtype):
    """By three blocks, so that each has many jobs."""
    monkeypatch.setattr(hopper_launch, "blocks_that_stay", lambda _: 3)
    lengths = (1, 63, 64, 65, 113, 200, 257, 1000, 2500)
    pairs = [*zip(lengths, lengths, strict=True), (65, 130), (200, 3), (1, 200), (1000, 1500), (1500, 1000)]
    kinds = itertools.cycle(checks.KINDS)
    for (L_q, L_k), head_dim in itertools.product(pairs, HEAD_DIMS):
        for ranges in (
            Ranges(0, 255, 1), Ranges(4, 60, 1), Ranges(0, 0, 256, 256), Ranges(0, 40, 41), Ranges(), documents(L_k)
        ):  # fmt: skip
            if isinstance(ranges, RowRanges) and L_q != L_k:
                continue
            how = {"group": 2, "kv_heads": 2, "dtype": dtype, "kind": next(kinds), "device": torch.device("cuda")}
            check(ranges, L_q, L_k, head_dim, deterministic=deterministic, **how)
        dilation = 4 if L_q < 1000 else 2
        ranges, how["kind"] = Ranges(0, 60, 1, dilation=dilation), next(kinds)
        check(ranges, dilation * L_q, dilation * L_k, head_dim, deterministic=deterministic, **how)


MODELS = {  # ranges, L_q, L_k, d, dtype, softcap, whether there are sinks
    "softcap": (Ranges(0, 69, 1), 130, 150, 64, HALF, model_softmax.CAP, False),
    "sinks": (documents(40, 60), 100, 100, 64, BF16, None, True),
    "both": (Ranges(0, 0, UNBOUNDED), 70, 200, 128, BF16, model_softmax.CAP, True),
    "rows without keys": (Ranges(0, 40, 1), 135, 70, 128, HALF, 20.0, True),
}


def check_model(name, device=CPU):
    """Against float64, of four heads that share two key heads; logits up to 50, of which a cap leaves little."""
    ranges, L_q, L_k, head_dim, dtype, softcap, has_sinks = MODELS[name]
    how = {"dtype": dtype, "kind": "large logits", "group": 2, "kv_heads": 2, "device": device}
    (*inputs_, grad_out), *_ = inputs(ranges, L_q, L_k, head_dim, **how)
    if has_sinks:
        inputs_.append(model_softmax.sinks_of(4, device))
    options = {"attn_mask": mask_of(ranges, L_q, L_k).to(device), "softcap": softcap}
    out, lse = model_softmax.exact(inputs_, **options)
    tensors = *inputs_[:3], grad_out
    deterministic = head_dim == 128
    found = gradients(ranges, tensors, out.to(dtype), lse.float(), deterministic=deterministic, softcap=softcap or 0)
    for report in model_softmax.reports(
        dict(zip(("dq", "dk", "dv"), found, strict=True)), inputs_, grad_out, **options
    ):
        assert report.passed, str(report)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_with_softcap_and_sinks(device, name):
    check_model(name, device)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("dPt[n][e] *= fmaxf(1 - tanh * tanh, 0);", ""),
        ("fmaxf(1 - tanh * tanh, 0)", "(1 - tanh * tanh)"),
        ("log2_approx(Pt[n][e]) + LSE[query]", "log2_approx(Pt[n][e])"),
        ("ModelSoftmax{softcap}.factor(scale) * LOG2_E;", "scale * LOG2_E;"),
    ],
    ids=["no derivative of tanh", "no guard where P is 0", "tanh without LSE", "the scale for the cap"],
)
def test_a_broken_softcap_is_seen(break_kernel, right, wrong):
    break_kernel(RANGE_BACKWARD, right, wrong)
    with pytest.raises(AssertionError, match="d[qkv]: WRONG"):
        check_model("softcap")


# ---------------------------------------------------------------------------------------------- order


def test_in_turns_every_run_gives_the_same_bits(device, short_parts):
    on_gpu = device.type == "cuda"
    L_q, L_k, heads = (3000, 2900, 8) if on_gpu else (330, 290, 1)
    for ranges in (Ranges(3, 100, 1), Ranges(0, 70, 70), Ranges(0, 70, 70, dilation=2)):
        tensors, out, lse, _ = inputs(ranges, L_q, L_k, 128, kv_heads=heads, device=device)
        first = gradients(ranges, tensors, out, lse, deterministic=True)
        for _ in range(100 if on_gpu else 1):
            with configure(thread_order="reverse"):
                again = gradients(ranges, tensors, out, lse, deterministic=True)
            assert all(map(torch.equal, first, again))


@pytest.mark.parametrize("threads", [1, 3])
def test_blocks_that_wait_for_their_turn_come_to_an_end(short_parts, threads):
    """However many of them the machine runs at a time: those before have begun."""
    with configure(threads=threads):
        check(Ranges(3, 100, 1), 200, 290, 64, deterministic=True)


def test_the_order_of_items_counts_those_before_that_meet_the_same_tile():
    items = torch.tensor([(0, 0, 130, -1), (1, 64, 256, 0), (1, 256, 300, 1), (2, 128, 320, -1)], dtype=torch.int32)
    at, order = order_of(items, 64)
    assert at.tolist() == [0, 3, 6, 7] and at.dtype == order.dtype == torch.int32
    assert order.tolist() == [0, 0, 0, 1, 1, 0, 0, 2, 1, 1]


@pytest.mark.parametrize("in_turns", [False, True])
def test_columns_meet_each_tile_of_queries_once(short_parts, in_turns):
    """No tile of queries is met by two parts of a column: their boundaries are those of tiles."""
    ranges, shape = Ranges(4, 63, 1), torch.Size((2, 8, 1000, 128))
    rows, keys = COLUMN_TILES[128].block_rows, COLUMN_TILES[128].block_cols
    call = Call(shape, shape, HALF, CPU, 1.0)
    columns, mask = columns_of_keys(rows_by_key(ranges, 1000, 1000, CPU), call, in_turns), mask_of(ranges, 1000, 1000)
    met = torch.zeros(8, 16, dtype=torch.int)
    for tile, first, end, _ in columns.items.tolist():
        assert first % rows == 0 and first < end
        met[tile, first // rows : -(-end // rows)] += 1
    seen = torch.stack([part.any(1) for part in mask.split(keys, dim=1)])
    seen = torch.nn.functional.pad(seen, (0, 24)).view(8, 16, rows).any(2)
    assert columns.parts > 1 and torch.equal(met == 1, seen) and met.max() == 1


@pytest.mark.parametrize("asynchronous", [{"order": "late"}, pytest.param({"order": "early"}, marks=ALIKE)], ids=str)
@pytest.mark.parametrize("deterministic", [False, True], ids=["chance", "turns"])
def test_the_sanitizer_finds_nothing(short_parts, deterministic, asynchronous):
    head_dim = 64 if deterministic else 128
    for ranges, launches in ((Ranges(3, 20, 1), 4), (Ranges(0, 20, 1, dilation=2), 3)):
        tensors, out, lse, _ = inputs(ranges, 330, 150, head_dim, group=2)
        with configure(**asynchronous), sanitize() as report:
            gradients(ranges, tensors, out, lse, deterministic=deterministic)
        assert report.launches == launches and not report.findings, str(report)


# ---------------------------------------------------------------------------------------------- the kernel itself


def test_a_consumer_lets_a_tile_go_by_whose_queries_see_none_of_its_keys():
    """A window of 64 keys, tiles of 64 queries. Of three tiles that the first block meets, the last does not see the
    first consumer's keys, and the first not the second consumer's; nor does the first of two that the second block
    meets. Of five products for a tile dQ alone is left, which has the other consumer's keys, too."""
    ranges = Ranges(0, 63, 1)
    tensors, out, lse, _ = inputs(ranges, 256, 256, 128)
    with profile() as counters:
        gradients(ranges, tensors, out, lse)
    assert counters.product_flops / (2 * 64 * 64 * 128) == 2 * (3 + 2) * 5 - 3 * 4


@pytest.mark.parametrize("deterministic", [False, True], ids=["chance", "turns"])
def test_the_counter_of_jobs_is_left_at_0(monkeypatch, deterministic):
    kept = torch.zeros(1, dtype=torch.int32)
    monkeypatch.setattr(cuda, "counter", lambda *_: kept)
    for length in (100, 600):  # one job for a block or none, and some
        check(Ranges(0, 60, 1), length, length, 64, deterministic=deterministic)
        assert kept == 0


def test_the_compiler_leaves_the_products_asynchronous_and_spills_nothing():
    """C7510 and its like say that it waits for each product."""
    source = read_kernel(RANGE_BACKWARD)
    for options in compile_options(source):
        if "-DBF16=1" in options:  # differs in the conversions alone
            continue
        compiled = nvrtc.compile_kernel(source, "sm_90a", options)
        resources = compiled.resources["range_backward"]
        assert "C75" not in compiled.log and not resources.spill_stores and not resources.stack_frame, compiled.log


def test_the_operator_agrees_with_the_header():
    source = read_kernel(RANGE_BACKWARD)
    formula = re.search(r"^// shared range_backward (.*?) bytes, dynamic", source, flags=re.MULTILINE)[1]
    listed = set(map(frozenset, compile_options(source)))
    for tile in itertools.starmap(RangeBackwardTile, itertools.product(HEAD_DIMS, (False, True), (False, True))):
        assert {frozenset((*tile.options, BF16_OPTION[dtype])) for dtype in DTYPES} <= listed
        sizes = {"D": tile.head_dim, "B_R": tile.rows}
        assert eval(formula.replace("·", "*"), {}, sizes) == tile.shared_bytes
        assert COLUMN_TILES[tile.head_dim].block_rows == tile.rows


def test_the_operator_takes_the_kernel_where_classes_are_alike_and_fill_half_a_tile(monkeypatch):
    monkeypatch.setattr(sparse_launch, "takes_wgmma", lambda _: True)

    def takes(L_q, L_k, dilation, batch=1):
        shapes = torch.Size((batch, 1, L_q, 64)), torch.Size((batch, 1, L_k, 64))
        mask = sparse_launch.RangeMask(patterns.dilated(9, dilation).ranges)
        return isinstance(sparse_launch.backward_of(mask, Call(*shapes, HALF, CPU, 1.0), False), ReadyBackward)

    assert takes(128, 130, 2) and takes(256, 4, 4)
    assert not takes(128, 131, 2) and not takes(129, 130, 2)
    assert not takes(126, 130, 2)
    assert takes(128, 128, 2, batch=32767) and not takes(128, 128, 2, batch=32768)


CHANGES = [
    ("query >= by.end - lane_i0", "query > by.end - lane_i0"),  # a mask off by one
    ("(column.z + B_R - 1) / B_R - first", "max(1, column.z / B_R - first)"),  # a tile of queries left out
    ("return head + n / each;", "return head;"),  # the queries of another head
    ("scale_row(keys.dK, r, scale)", "scale_row(keys.dK, r, 1)"),
    ("const Queries& by = seen_by[e / 2]", "const Queries& by = seen_by[0]"),
    (": Queries{problem.L_q, 0}", ": Queries{0, problem.L_q}"),  # keys past the end count as zeros
    ("i_end > min(seen_by[0].end, seen_by[1].end)", "false"),  # nothing hidden behind a window's end alone
    ("merge_parts(parts, split, dK, dV, L_k, scale)", "merge_parts(parts, split, dV, dK, L_k, scale)"),
    ("w * ROWS + warp_row(), parts", "warp_row(), parts"),
    ("shared.K[round % PLACES][w], keys.dK", "shared.K[0][w], keys.dK"),  # dK of every second job is lost
    ("problem.starts[key] < i0 + B_R", "problem.starts[key] < i0"),  # skips first tiles that see keys
    ("problem.ends[key] > i0;", "problem.ends[key] > i0 + B_R;"),  # skips last tiles that see keys
    ("    write_dSt(shared, LeftFactor{}, n, w);\n", "    announce(shared.gate_dSt[buffer]);\n"),  # no zeros
]
MORE = pytest.mark.exhaustive("the first few of these mistakes show that the check can see such")


@pytest.mark.parametrize(
    ("right", "wrong"), [pytest.param(*change, marks=MORE if n > 2 else ()) for n, change in enumerate(CHANGES)]
)
def test_a_broken_kernel_is_seen(short_parts, break_kernel, right, wrong):
    break_kernel(RANGE_BACKWARD, right, wrong)
    with pytest.raises((AssertionError, KernelError), match="d[qkv]: WRONG"):
        check(Ranges(3, 20, 1), 290, 150, 128, group=2, kind="large logits")
        check(Ranges(0, 0, 1), 70, 65, 64, kind="large logits")
        check(Ranges(0, 100, 1), 200, 20, 128)


DILATED_CHANGES = [
    (RANGE_BACKWARD, "nth % dilation * (D / 64)", "0"),  # all classes are the first
    (RANGE_BACKWARD, "(nth - batch) * kv_heads", "batch * kv_heads"),  # the heads of another batch
    (RANGE_BACKWARD, "(key_head - before) * group", "key_head * group"),  # the same
    (RANGE_BACKWARD, "i0, head, &gate.full, walk.panel);", "i0, head, &gate.full);"),  # queries of the first class
    (RANGE_BACKWARD, "(head_of(n) + group * heads_before)", "head_of(n)"),  # statistics and dQ of the first class
    (BACKWARD, "LSE[rows.first + row * rows.pitch]", "LSE[rows.first + row]"),
    (BACKWARD, "(rows.first + row * rows.pitch) * CHUNKS", "(rows.first + row) * CHUNKS"),
    (BACKWARD, "(row + 8) * rows.pitch", "(row + 8)"),
    (BACKWARD, "blockIdx.z % pitch,", "0,"),
    (BACKWARD, "(blockIdx.z / pitch)", "(blockIdx.z % pitch)"),
]


@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [pytest.param(*change, marks=MORE if n % 5 else ()) for n, change in enumerate(DILATED_CHANGES)],
)
def test_a_broken_dilation_is_seen(break_kernel, file, right, wrong):
    break_kernel(file, right, wrong)
    with pytest.raises((AssertionError, KernelError), match="d[qkv]: WRONG|invalid memory access"):
        check(Ranges(0, 20, 1, dilation=2), 150, 140, 128, group=2, batch=2, kind="large logits")


@pytest.mark.parametrize(
    "wait",
    [
        "    wait_for_stores();   // shared memory must live as long\n",  # K comes while the dK of a job before leaves
        pytest.param("            if (STAYS) wait_for(&shared.gate_V.empty, round % 2 ^ 1);\n", marks=MORE),
        pytest.param("    wait_for(&shared.gate_dQ[w].empty, (t + round) % 2 ^ 1);\n", marks=MORE),
    ],
)
def test_a_job_that_does_not_wait_for_the_one_before_is_seen(break_kernel, wait):
    break_kernel(RANGE_BACKWARD, wait, wait.partition(";\n")[2])
    tensors, out, lse, _ = inputs(Ranges(0, 40, 1), 600, 600, 128)
    with sanitize() as report:
        gradients(Ranges(0, 40, 1), tensors, out, lse)
    assert report.findings


def test_a_turn_that_does_not_end_is_seen(break_kernel):
    break_kernel(RANGE_BACKWARD, "end_turn(turns + number);", "")
    with configure(time_limit=1), pytest.raises(KernelError, match="time limit"):
        check(Ranges(0, 60, 60), 200, 200, 128, deterministic=True)
