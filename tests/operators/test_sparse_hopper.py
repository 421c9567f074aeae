"""sparse_attention by range_hopper.cu, and by chapter 07's kernel for equal blocks: what a Hopper GPU takes, which the
emulator runs here as well."""

from functools import partial
from zlib import crc32

import pytest
import torch

from course_utils import checks, patterns
from course_utils.cuda import KernelError, read_kernel
from course_utils.emulator import sanitize
from course_utils.operators import sparse_attention, sparse_hopper, sparse_launch
from course_utils.operators.attention import Call
from course_utils.operators.tensor_core import DTYPES, HEAD_DIMS
from course_utils.patterns import Ranges
from course_utils.toolchain import nvrtc
from course_utils.toolchain.source import compile_options
from tests.helpers import model_softmax, tensors
from tests.helpers.deterministic import told_to_be_deterministic

pytestmark = pytest.mark.usefixtures("by_hopper_kernels")
HALF = torch.float16
random = partial(tensors.random, dtype=HALF)

PATTERNS = {
    "causal": patterns.causal(),
    "full": patterns.full(),
    "window of 1": patterns.sliding_window(1),
    "window of 64": patterns.sliding_window(64),
    "window of 200": patterns.sliding_window(200),
    "local": patterns.local(9),
    "streaming": patterns.streaming(4, 30),
    "streaming, more than a tile of sinks": patterns.streaming(130, 20),
    "dilated": patterns.dilated(9, 2),
    "blocks of 24": patterns.block_diagonal(24),
    "documents": lambda length: patterns.document(documents(length)),
    "causal documents": lambda length: patterns.document(documents(length)) & patterns.causal(),
}
CAPPED = "if (SOFTCAP) cap_scores(S, model.scale / model.softmax.softcap);"
MASKED = "if (!is_whole(top, bottom, sinks, j * B_C)) mask(S, seen, sinks, j * B_C);"
LENGTHS = ((1, 1), (65, 65), (128, 128), (300, 300), (130, 270), (270, 130), (200, 3), (1, 200))


def documents(length):
    ends = sorted({length // 3, length // 3 + 1, length // 2, length} - {0})
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def check(name, lengths, n=0, *, device="cpu", dtype=HALF, gradients=False, **change):
    """Against float64 under the dense mask, with inputs whose kind and heads follow from n."""
    pattern = PATTERNS[name]
    pattern = pattern(lengths[1]) if callable(pattern) else pattern
    values = {
        "batch": 1 + n % 2,
        "heads": 2,
        "kv_heads": 1 + (n // 2) % 2,
        "head_dim": HEAD_DIMS[n // 3 % 2],
        "kind": checks.KINDS[n % len(checks.KINDS)],
        "scale": (None, None, 0.25)[n % 3],
    }
    case = checks.AttentionCase(query_length=lengths[0], key_length=lengths[1], is_causal=False, **(values | change))
    mask, seed = pattern.mask(*lengths), crc32(f"{name} {lengths} {n}".encode())
    operator = partial(sparse_attention, pattern=pattern)
    options = {"device": device, "dtype": dtype, "gradients": gradients, "lse": True, "attn_mask": mask, "seed": seed}
    for report in checks.check_case(operator, case, **options):
        assert report.passed, f"{name}, {case}, {dtype}, seed {seed}: {report}"


@pytest.mark.parametrize("name", PATTERNS)
def test_output_and_lse_are_correct(device, thinned, name):
    first = list(PATTERNS).index(name)
    for n, lengths in thinned([*enumerate(LENGTHS, first)], 4, first % 4):
        check(name, lengths, n, device=device)


@pytest.mark.parametrize("name", ["window of 64", "streaming", "dilated", "causal documents"])
def test_gradients_are_correct(device, name):
    check(name, (140, 170), 2 * list(PATTERNS).index(name), device=device, gradients=True)


def test_told_to_be_deterministic_the_backward_pass_gives_the_same_bits(device):
    tensors = [random(1, 2, 300, 64, device=device, seed=seed).requires_grad_() for seed in range(3)]
    with told_to_be_deterministic():
        for pattern in (patterns.sliding_window(100), patterns.document(documents(300)), patterns.block_diagonal(150)):
            runs = 100 if device.type == "cuda" else 2
            found = [torch.autograd.grad(sparse_attention(*tensors, pattern).sum(), tensors) for _ in range(runs)]
            assert all(all(map(torch.equal, found[0], again)) for again in found[1:])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PATTERNS)
def test_all_lengths_on_a_gpu(name, dtype):
    for n, lengths in enumerate((*LENGTHS, (1000, 1000), (1500, 2500))):
        for head_dim in HEAD_DIMS:
            check(name, lengths, n, device="cuda", dtype=dtype, gradients=True, head_dim=head_dim)


@pytest.mark.parametrize("name", ["causal", "window of 200", "streaming"])
def test_three_consumers_are_correct(device, monkeypatch, name):
    """By themselves they take rows of thousands of keys."""
    monkeypatch.setattr(sparse_hopper, "LONG", 1)
    check(name, (262, 262), head_dim=64, device=device)


@pytest.mark.parametrize(("length", "head_dim"), [(128, 128), (384, 64)])
def test_equal_blocks_are_dense_attention_on_a_view(device, monkeypatch, length, head_dim):
    monkeypatch.setattr(sparse_hopper, "range_forward", None)
    pattern = patterns.block_diagonal(length)
    monkeypatch.setitem(PATTERNS, "blocks", pattern)
    check("blocks", (2 * length, 2 * length), head_dim=head_dim, kv_heads=2, device=device, gradients=length == 128)


def test_blocks_that_would_be_filled_up_too_far_are_ranges():
    shape = torch.Size((2, 2, 128, 64))  # a tile has 192 queries
    assert sparse_hopper.blocks_forward(Call(shape, shape, HALF, torch.device("cpu"), 1.0)) is None


def test_every_run_gives_the_same_bits(device):
    inputs = [random(1, 2, 300, 64, device=device, seed=seed) for seed in range(3)]
    pattern = patterns.sliding_window(100)
    first = sparse_attention(*inputs, pattern, return_lse=True)
    for _ in range(99 if device.type == "cuda" else 1):
        with checks.poisoned_outputs():
            assert all(map(torch.equal, first, sparse_attention(*inputs, pattern, return_lse=True)))


def sanitized():
    with sanitize() as report:
        for pattern in (patterns.streaming(3, 150), patterns.document(documents(270))):
            sparse_attention(*(random(1, 2, 270, 64, seed=seed) for seed in range(3)), pattern)
    assert report.launches == 2
    return report


def test_the_sanitizer_finds_nothing():
    report = sanitized()
    assert not report.findings, str(report)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("                sync_threads(1 + w, 128);\n", ""),
        ("    if (threadIdx.x % 128 == 0) wait_for_stores();   // shared memory must live as long\n", ""),
        (
            "wait_for_product<0>(O);\n        give_back(shared.gate_V[buffer]);",
            "give_back(shared.gate_V[buffer]);\n        wait_for_product<0>(O);",
        ),
    ],
    ids=["what rows see", "the last stores", "the last tile of V"],
)
def test_the_sanitizer_sees_a_missing_wait(break_kernel, right, wrong):
    break_kernel(sparse_hopper.RANGE_FORWARD, right, wrong)
    assert sanitized().findings


def test_a_row_with_nan_stays_nan_and_the_others_do_not():
    query, key, value = (random(1, 1, 200, 64, seed=seed) for seed in range(3))
    query[0, 0, 70] = float("nan")
    out, lse = sparse_attention(query, key, value, patterns.sliding_window(90), return_lse=True)
    rows = out.isnan().all(-1)[0, 0]
    assert rows.nonzero().tolist() == [[70]] and lse.isnan()[0, 0].nonzero().tolist() == [[70]]


def test_rows_that_see_no_key():
    query, (key, value) = random(1, 1, 300, 64, seed=0), (random(1, 1, 100, 64, seed=seed) for seed in (1, 2))
    out, lse = sparse_attention(query, key, value, patterns.sliding_window(50), return_lse=True)
    assert not out[0, 0, :200].any() and (lse[0, 0, :200] == -torch.inf).all() and lse[0, 0, 200:].isfinite().all()


# ---------------------------------------------------------------------------------------------- softcap and sinks


MODELS = {  # what makes the pattern, whose launches are kept; lengths, d, dtype, softcap, whether there are sinks
    "softcap": (lambda: patterns.sliding_window(64), (130, 150), 64, HALF, model_softmax.CAP, False),
    "sinks": (lambda: patterns.document([50, 90]) & patterns.causal(), (140, 140), 128, HALF, None, True),
    "both": (lambda: patterns.local(100), (65, 200), 128, torch.bfloat16, model_softmax.CAP, True),
    "rows without keys": (lambda: patterns.sliding_window(64), (135, 70), 64, torch.bfloat16, 20.0, True),
}


def check_model(name, device="cpu", gradients=False):
    """Against float64, of four heads that share two key heads, in two batches; logits up to 50."""
    make, lengths, head_dim, dtype, softcap, has_sinks = MODELS[name]
    pattern, case = make(), checks.AttentionCase(2, 4, 2, *lengths, head_dim, False, "large logits")
    *inputs, grad_out = checks.make_inputs(case, dtype=dtype, device=device, seed=crc32(name.encode()))
    sinks = model_softmax.sinks_of(4, device) if has_sinks else None
    inputs = [tensor.requires_grad_(gradients) for tensor in (*inputs, *([sinks] if has_sinks else []))]
    with checks.poisoned_outputs():
        out, lse = sparse_attention(
            *inputs[:3], pattern, sinks=sinks, softcap=softcap, enable_gqa=True, return_lse=True
        )
        grads = torch.autograd.grad(out, inputs, grad_out) if gradients else ()

    found = dict(zip(("out", "dq", "dk", "dv", "dsinks"), (out, *grads), strict=False))
    options = {"softcap": softcap, "attn_mask": pattern.mask(*lengths).to(device)}
    for report in model_softmax.reports(found, inputs, grad_out, **options):
        assert report.passed, f"{name}: {report}"
    _, exact = model_softmax.exact(inputs, **options)
    torch.testing.assert_close(lse.double(), exact, rtol=checks.LSE_TOLERANCE, atol=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_softcap_and_sinks_are_correct(device, name):
    check_model(name, device)


@pytest.mark.parametrize("name", ["both", "rows without keys"])
def test_gradients_with_softcap_and_sinks_are_correct(device, name):
    check_model(name, device, gradients=True)


@pytest.mark.parametrize(
    ("right", "wrong", "name"),
    [
        (f"{CAPPED}\n            {MASKED}", f"{MASKED}\n            {CAPPED}", "softcap"),
        ("v_scale * add_sink(m, l, sink)", "(add_sink(m, l, sink), v_scale)", "sinks"),
        ("work.head % model.heads", "work.head % problem.group", "sinks"),
        ("work.head % model.heads", "work.head / problem.group % model.heads", "both"),
    ],
    ids=["cap after the mask", "sink without rescaling", "sinks of a group", "sinks of key heads"],
)
def test_a_broken_softmax_fails_the_check(break_kernel, right, wrong, name):
    break_kernel(sparse_hopper.RANGE_FORWARD, right, wrong)
    with pytest.raises(AssertionError, match="out: WRONG"):
        check_model(name)


def test_with_softcap_and_sinks_no_more_registers_spill():
    code = read_kernel(sparse_hopper.RANGE_FORWARD)
    for options in filter(has_model_softmax, compile_options(code)):
        found = nvrtc.compile_kernel(code, "sm_90a", options).resources["table_forward"]
        assert max(found.spill_stores, found.spill_loads) <= 32, (options, found)


def has_model_softmax(options):
    return not {"-DSOFTCAP=1", "-DSINKS=1"}.isdisjoint(options)


# ---------------------------------------------------------------------------------------------- the kernel itself


def test_the_header_lists_the_options_in_use():
    listed = {
        frozenset(options)
        for options in compile_options(read_kernel(sparse_hopper.RANGE_FORWARD))
        if not has_model_softmax(options)
    }
    assert listed == {frozenset((*o, f"-DBF16={b}")) for o in sparse_hopper.forward_options() for b in (0, 1)}


@pytest.mark.parametrize("dilated", [0, 1])
@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize(
    "tile", [sparse_hopper.RangeTile(64, 2), sparse_hopper.RangeTile(64, 3), sparse_hopper.RangeTile(128, 2)]
)
def test_shared_memory_is_what_the_kernel_lays_out_and_next_to_nothing_spills(tile, table, dilated):
    code = read_kernel(sparse_hopper.RANGE_FORWARD)
    code += f"\nstatic_assert(CONSUMER_THREADS + 128 == {tile.threads} && sizeof(Shared) == {tile.shared_bytes});\n"
    options = (*tile.options, f"-DTABLE={int(table)}", f"-DDILATED={dilated}", "-DBF16=0")
    for found in nvrtc.compile_kernel(code, "sm_90a", options).resources.values():
        assert max(found.spill_stores, found.spill_loads) <= 32, found


def test_ranges_of_a_call_reach_the_kernel_that_has_them(monkeypatch):
    """Classes of unlike lengths stay with range.cu."""
    taken = []
    monkeypatch.setattr(sparse_hopper, "range_forward", lambda call, ranges: taken.append(ranges))
    call = Call(torch.Size((1, 1, 64, 64)), torch.Size((1, 1, 64, 64)), HALF, torch.device("cpu"), 1.0)
    sparse_launch.RangeMask(Ranges(left=3, right=1)).forward(call)
    sparse_launch.RangeMask(Ranges(left=3, right=1, dilation=3)).forward(call)
    assert taken == [Ranges(left=3, right=1)]


@pytest.mark.parametrize(
    ("right", "wrong", "name", "lengths"),
    [
        ("if (key >= end |", "if (key > end |", "window of 64", (130, 150)),
        ("(key < start & ", "(key < start - 1 & ", "window of 64", (130, 150)),
        ("j0 >= bottom.start ||", "j0 >= top.start ||", "window of 200", (400, 400)),
        ("row = min(row, problem.L_q - 1);", "row = min(row, problem.L_q - 2);", "causal documents", (70, 70)),
        ("j = work.tiles.before(j), t++", "j--, t++", "streaming", (600, 600)),
        ("rows.l[r] *= rows.rescale[r];", "", "causal", (300, 300)),
        ("residue * (D / 64)", "0", "dilated", (130, 130)),
        ("* pitch + to.residue", "* pitch", "dilated", (130, 130)),
    ],
)
def test_a_broken_kernel_fails_the_check(break_kernel, right, wrong, name, lengths):
    break_kernel(sparse_hopper.RANGE_FORWARD, right, wrong)
    with pytest.raises((AssertionError, KernelError), match="WRONG|deadlock"):
        check(name, lengths, kind="planted", batch=1, heads=1, kv_heads=1)
