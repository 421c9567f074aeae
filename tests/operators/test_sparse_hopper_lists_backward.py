"""block_sparse_backward_hopper.cu and its lists: right against float64, clean, seen to be wrong when broken."""

import functools
import re

import pytest
import torch

from course_utils import checks, patterns, reference
from course_utils.cuda import KernelError, read_kernel
from course_utils.emulator import configure, profile, sanitize
from course_utils.operators import sparse_attention, sparse_hopper_lists_backward, sparse_launch, sparse_work
from course_utils.operators.attention import Call
from course_utils.operators.hopper_launch import BackwardTile
from course_utils.operators.sparse_hopper_lists import CONSUMERS, HEAD_DIM, UNSEEN, WHOLE
from course_utils.operators.sparse_hopper_lists_backward import (
    BLOCK_SPARSE_BACKWARD,
    OPTIONS,
    column_lists,
    ready_list_backward,
)
from course_utils.operators.tensor_core import BF16_OPTION, DTYPES
from course_utils.patterns import BlockLists
from course_utils.toolchain import nvrtc
from course_utils.toolchain.source import compile_options
from tests.helpers.list_patterns import PATTERNS

pytestmark = pytest.mark.usefixtures("by_hopper_kernels")
HALF, BF16 = torch.float16, torch.bfloat16
ALIKE = pytest.mark.exhaustive("`make test` has the same turns of the loops in other patterns")


@pytest.fixture
def short_parts(monkeypatch):
    """Columns are split where they are longer than two tiles of queries."""
    monkeypatch.setattr(sparse_work, "SHORTEST_PART", 128)


def call_of(L_q, L_k, heads=1, kv_heads=1, batch=1, dtype=HALF, device="cpu"):
    shapes = torch.Size((batch, heads, L_q, HEAD_DIM)), torch.Size((batch, kv_heads, L_k, HEAD_DIM))
    return Call(*shapes, dtype, torch.device(device), HEAD_DIM**-0.5)


def inputs(lists, *, group=1, kv_heads=1, batch=1, dtype=HALF, kind="normal", seed=0):
    """The tensors of a backward pass: query, key, value, out, lse and the gradient of out; and with the mask what the
    reference takes."""
    case = checks.AttentionCase(batch, group * kv_heads, kv_heads, lists.L_q, lists.L_k, HEAD_DIM, False, kind)
    query, key, value, grad_out = (
        tensor.to(lists.device) for tensor in checks.make_inputs(case, dtype=dtype, seed=seed)
    )
    options = {"attn_mask": lists.mask(), "enable_gqa": group > 1}
    out, lse = reference.attention(query, key, value, **options, return_lse=True)
    return (query, key, value, out.to(dtype), lse.float(), grad_out), options


def gradients(lists, tensors):
    query, key, *_ = tensors
    call = call_of(lists.L_q, lists.L_k, query.shape[1], key.shape[1], len(query), query.dtype, query.device)
    with checks.poisoned_outputs():
        return ready_list_backward(call, lists)(*tensors)


def check(pattern, L_q, L_k, *, block=64, device="cpu", **how):
    """Against float64, as SPEC's rule for gradients has it; keys that no query sees, and queries that see no key, have
    gradients of exactly 0."""
    lists = PATTERNS[pattern]().block_lists(L_q, L_k, block=block, device=device)
    tensors, options = inputs(lists, **how)
    found = gradients(lists, tensors)
    of_reference = *tensors[:3], tensors[5]
    exact = reference.attention_gradients(*of_reference, **options)
    same_dtype = functools.cache(
        lambda: reference.attention_gradients(*of_reference, **options, dtype=tensors[0].dtype)
    )
    for n, (name, of_kernel, wanted) in enumerate(zip("qkv", found, exact, strict=True)):
        runs = (run()[n] for run in [same_dtype])  # made where it is asked for
        report = checks.error_report(of_kernel, wanted, runs, factor=checks.GRADIENT_FACTOR, name=f"d{name}")
        assert report.passed, f"{pattern}, {L_q}, {L_k}, {block}: {report}"
    grad_query, *of_keys = found
    mask = options["attn_mask"]
    assert (grad_query[:, :, ~mask.any(1)] == 0).all()
    assert all((grad[:, :, ~mask.any(0)] == 0).all() for grad in of_keys)


# ---------------------------------------------------------------------------------------------- right

CASES = {  # L_q, L_k, block; a block of threads has 128 keys, and a tile 64 queries
    "BigBird": (300, 300, 64),
    "BigBird, blocks of 16": (200, 330, 128),
    "global tokens": (130, 270, 64),
    "strewn": (130, 150, 64),
    "far apart": (640, 100, 128),
    "every second 64 rows": (300, 200, 128),
    "full": (200, 3, 64),
    "causal": (300, 100, 64),  # rows before the first key see nothing
    "window": (10, 300, 128),  # two tiles of keys that no row sees
}
MORE = ("global tokens", "full", "BigBird, blocks of 16")


@pytest.mark.parametrize("name", [pytest.param(name, marks=ALIKE if name in MORE else ()) for name in CASES])
def test_gradients_of_lists(device, name):
    L_q, L_k, block = CASES[name]
    number = list(CASES).index(name)
    how = {"dtype": DTYPES[number % 2], "kind": checks.KINDS[number % len(checks.KINDS)]}
    check(name, L_q, L_k, block=block, device=device, **how)


def test_query_heads_that_share_a_key_head(device):
    """A consumer skips tiles at both ends of the walk, of each head."""
    how = {"group": 3, "kv_heads": 2, "kind": "large logits", "device": device}
    check("strewn", 90, 140, block=128, **how)
    check("blocks on the diagonal", 200, 200, dtype=BF16, **how)


def test_the_column_of_a_global_token_is_split(device, short_parts):
    """Parts add up in a fixed order; of two key heads, and of two batches."""
    lists = PATTERNS["global tokens"]().block_lists(330, 290)
    assert column_lists(lists, call_of(330, 290)).columns.parts > 1
    how = {"group": 2, "kv_heads": 2, "batch": 2, "kind": "large logits", "dtype": BF16}
    check("global tokens", 330, 290, device=device, **how)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PATTERNS)
def test_all_lengths_on_a_gpu(name, dtype):
    lengths = (1, 1), (65, 65), (128, 128), (300, 300), (130, 270), (270, 130), (200, 3), (1, 200), (1500, 2500)
    for n, (pair, block) in enumerate((pair, block) for pair in lengths for block in patterns.lists.BLOCKS):
        how = {"group": 1 + n % 2, "kv_heads": 2, "dtype": dtype, "kind": checks.KINDS[n % len(checks.KINDS)]}
        check(name, *pair, block=block, device="cuda", **how)


def test_lists_without_an_entry(device):
    indptr, nothing = (torch.zeros(n, dtype=torch.int32, device=device) for n in (3, 0))
    lists = BlockLists(64, 70, 70, indptr, nothing, nothing, nothing.view(0, 64, 2))
    tensors, _ = inputs(lists)
    assert not any(gradient.any() for gradient in gradients(lists, tensors))


@pytest.mark.parametrize("asynchronous", [{"order": "late"}, pytest.param({"order": "early"}, marks=ALIKE)], ids=str)
def test_the_sanitizer_finds_nothing(short_parts, asynchronous):
    lists = PATTERNS["far apart"]().block_lists(200, 700)
    tensors, _ = inputs(lists, group=2)
    with configure(**asynchronous), sanitize() as report:
        gradients(lists, tensors)
    assert report.launches == 4 and not report.findings, str(report)


# ---------------------------------------------------------------------------------------------- the lists


@pytest.mark.parametrize("block", patterns.lists.BLOCKS)
@pytest.mark.parametrize("name", ["BigBird", "strewn", "causal"])
def test_the_lists_say_the_mask(short_parts, name, block):
    """Tile by tile, as the kernel reads them; each entry in one item."""
    lists = PATTERNS[name]().block_lists(700, 800, block=block)
    entries, columns = column_lists(lists, call_of(700, 800))
    mask, words = torch.zeros(11 * 64, 14 * 64, dtype=torch.bool), lists.bits.flatten()
    met = torch.zeros(len(entries), dtype=torch.int32)
    for column, first, end, _ in columns.items.tolist():
        met[first:end] += 1
        for tile, *bits in entries[first:end].tolist():
            assert max(bits[:CONSUMERS]) > UNSEEN
            for w, at in enumerate(bits[:CONSUMERS]):
                if at == UNSEEN:
                    continue
                rows = torch.arange(64)[:, None] * (block // 32) + torch.arange(64) // 32
                seen = torch.ones(64, 64, dtype=torch.bool)
                if at != WHOLE:
                    seen = (words[at + rows] >> torch.arange(64) % 32 & 1).bool()
                i0, j0 = tile * 64, (column * CONSUMERS + w) * 64
                assert not mask[i0 : i0 + 64, j0 : j0 + 64].any()
                mask[i0 : i0 + 64, j0 : j0 + 64] = seen
    assert torch.equal(mask[:700, :800], lists.mask()) and (met == 1).all() and columns.parts > 1


def test_tiles_that_one_consumer_sees_are_at_the_ends_of_a_column():
    lists = PATTERNS["BigBird"]().block_lists(1000, 1000)
    entries, columns = column_lists(lists, call_of(1000, 1000))
    for _, first, end, _ in columns.items.tolist():
        ends = (entries[first:end, 2] != UNSEEN).int() - (entries[first:end, 1] != UNSEEN).int()
        assert ends.diff().ge(0).all()
    assert (entries[:, 1:3] == UNSEEN).any(0).all()


def test_what_comes_to_the_kernel(monkeypatch):
    """A softcap, sinks, 64 columns and what is to be deterministic stay with block_sparse_backward.cu."""
    taken = []
    monkeypatch.setattr(sparse_hopper_lists_backward, "ready_list_backward", lambda call, *_, **__: taken.append(call))
    call, narrow = call_of(64, 64), torch.Size((1, 1, 64, 64))
    others = {"softcap": 5.0}, {"has_sinks": True}, {"query_shape": narrow, "key_shape": narrow}
    mask = sparse_launch.ListMask(patterns.bigbird().block_lists(64))
    for each in (call, *(call._replace(**other) for other in others)):
        sparse_launch.backward_of(mask, each, deterministic=False)
    sparse_launch.backward_of(mask, call, deterministic=True)
    assert taken == [call]


def test_the_operator_takes_it(device):
    case = checks.AttentionCase(1, 2, 1, 200, 200, HEAD_DIM, False, "normal")
    pattern = PATTERNS["BigBird"]()
    attend = functools.partial(sparse_attention, pattern=pattern)
    options = {"device": device, "dtype": HALF, "gradients": True, "attn_mask": pattern.mask(200, 200), "seed": 1}
    for report in checks.check_case(attend, case, **options):
        assert report.passed, str(report)


# ---------------------------------------------------------------------------------------------- the kernel itself


def test_a_consumer_skips_the_tiles_at_both_ends_that_it_does_not_see():
    """Of two tiles that a block meets each consumer sees one. Of five products for the other dQ alone is left, which
    has the other consumer's keys, too."""
    lists = PATTERNS["blocks on the diagonal"]().block_lists(256, 256)
    tensors, _ = inputs(lists)
    with profile() as counters:
        gradients(lists, tensors)
    assert counters.product_flops / (2 * 64 * 64 * 128) == 2 * CONSUMERS * (5 + 1)


def test_the_compiler_leaves_the_products_asynchronous_and_spills_nothing():
    """C7510 and its like say that it waits for each product."""
    compiled = nvrtc.compile_kernel(read_kernel(BLOCK_SPARSE_BACKWARD), "sm_90a", (*OPTIONS, "-DBF16=0"))
    resources = compiled.resources["block_sparse_backward"]
    assert "C75" not in compiled.log and not resources.spill_stores and not resources.stack_frame, compiled.log


def test_the_operator_agrees_with_the_header():
    source = read_kernel(BLOCK_SPARSE_BACKWARD)
    formula = re.search(r"^// shared block_sparse_backward (.*?) bytes, dynamic", source, flags=re.MULTILINE)[1]
    tile, in_use = BackwardTile(HEAD_DIM), {frozenset((*OPTIONS, BF16_OPTION[dtype])) for dtype in DTYPES}
    assert set(map(frozenset, compile_options(source))) == in_use
    sizes = {"D": HEAD_DIM, "B_R": tile.rows}
    assert eval(formula.replace("·", "*"), {}, sizes) == tile.shared_bytes


CHANGES = [
    ("if (first_word != WHOLE) hide(Pt, bits, first_word);", "", "strewn", (130, 150)),
    ("head + n % group", "head", "full", (70, 70)),  # the queries of another head
    ("(32 * half + lane) * bits.stride", "(32 * half + lane) * 2", "strewn, 128", (130, 150)),
    ("warp_row() / 32)", "0)", "strewn", (130, 150)),
    ("words[n / 4]", "words[0]", "strewn", (130, 150)),
    ("of_lane >> 8 & 1", "of_lane & 1", "strewn", (130, 150)),
    ("lane % 4 * 2 + e)", "lane % 4 * 2)", "strewn", (130, 150)),
    ("__ldg(entry(n) + 1 + w)", "__ldg(entry(n) + 1)", "BigBird", (300, 300)),
    ("if (first_word != UNSEEN)", "", "far apart", (300, 640)),
    ("walk.bits(begin, w) == UNSEEN", "walk.bits(begin, w) != WHOLE", "strewn", (130, 150)),
    ("w * ROWS + warp_row(), parts", "warp_row(), parts", "BigBird", (300, 300)),
    (
        "n < t + walk.steps(); n++) skip_whole_tile",
        "n < end; n++) skip_whole_tile",
        "blocks on the diagonal",
        (130, 150),
    ),
    (
        "int n = t; n < begin; n++) skip_whole_tile",
        "int n = t + 1; n < begin; n++) skip_whole_tile",
        "strewn",
        (130, 150),
    ),
]


MORE_OF_THEM = pytest.mark.exhaustive("the first few of these mistakes show that the check can see such")


@pytest.mark.parametrize(
    ("right", "wrong", "name", "lengths"),
    [pytest.param(*change, marks=MORE_OF_THEM if n > 3 else ()) for n, change in enumerate(CHANGES)],
)
def test_a_broken_kernel_is_seen(short_parts, break_kernel, right, wrong, name, lengths):
    break_kernel(BLOCK_SPARSE_BACKWARD, right, wrong)
    name, _, block = name.partition(", ")
    with pytest.raises((AssertionError, KernelError), match="WRONG|deadlock"):
        check(name, *lengths, kind="planted", group=2, block=int(block or 64))
