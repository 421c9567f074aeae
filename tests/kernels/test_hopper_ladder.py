"""The ladder of chapter 07: each step against float64, watched by the sanitizer, its table against its header."""

import re

import pytest
import torch

from course_utils import checks
from course_utils.cuda import KernelError, KernelSource, RawModule, read_kernel
from course_utils.emulator import configure, sanitize
from course_utils.launches.hopper import COPIES_AFTER, KEYS, LADDER, launch, ready
from course_utils.operators.tensor_core import DTYPES, HEAD_DIMS, takes_wgmma
from course_utils.toolchain import nvrtc
from course_utils.toolchain.source import compile_options, with_headers
from tests.helpers.one_change import with_delays

STEPS = pytest.mark.parametrize("step", LADDER, ids=lambda step: step.kernel)
CASES = [  # H, H_kv, L_q, L_k, causal, kind
    (2, 1, 70, 300, False, "planted"),
    (1, 1, 257, 257, True, "normal"),
    (2, 1, 130, 200, True, "large logits"),
    (1, 1, 200, 65, True, "normal"),  # the first 135 queries see no key
    (1, 1, 1, 1, True, "normal"),
]
OTHER_ORDERS = pytest.mark.exhaustive("what is asynchronous is done as late as may be, which shows most mistakes")
ORDERS = [
    {"order": "late"},
    *(pytest.param(order, marks=OTHER_ORDERS) for order in ({"order": "early"}, {"order": "random", "seed": 7})),
]
OTHER = pytest.mark.exhaustive("`make test` watches each step at one head dimension, in turn")
WIDE = pytest.mark.exhaustive("a few of these lengths, masks and heads are in test_correct")


def operator(step):
    """A step, to be called as `check_attention` calls an operator."""

    def attention(query, key, value, *, is_causal, scale, enable_gqa=False, return_lse=False):
        return launch(step, query, key, value, is_causal=is_causal, scale=scale)

    attention.__name__ = step.kernel
    return attention


def changed(step, right, wrong):
    """The same of the step with one passage replaced, of its file or of a header."""
    text = with_headers(read_kernel(step.file))
    assert text.count(right) == 1, (right, text.count(right))
    return operator_of_text(step, text.replace(right, wrong))


def operator_of_text(step, text, delay=None):
    """The same of the step with another text; delay: the number of the one to choose, if the text has any."""
    source = read_kernel(step.file)
    code = KernelSource(text, source.path, source.name)

    def attention(query, key, value, *, is_causal, scale, enable_gqa=False, return_lse=False):
        module = RawModule(code=code, options=step.options(query.shape[-1], query.dtype))
        if delay is not None:
            module.get_global("delay", (1,), torch.int32, query.device).fill_(delay)
        out, lse = torch.empty_like(query), query.new_empty(query.shape[:3], dtype=torch.float32)
        kernel = module.get_function(step.kernel)
        ready(step, query, key, value, out, lse, is_causal=is_causal, scale=scale, kernel=kernel)()
        return out, lse

    return attention


def step_named(name):
    return next(step for step in LADDER if step.kernel.startswith(name))


def skip_other_gpus(device):
    if device.type == "cuda" and not takes_wgmma(device):
        pytest.skip("this GPU is no Hopper")


@STEPS
def test_correct(device, step):
    """Head dimensions and dtypes take turns: a step has each of them once, and the next step the other pairs."""
    skip_other_gpus(device)
    number = LADDER.index(step)
    for n, (heads, kv_heads, query_length, key_length, is_causal, kind) in enumerate(CASES):
        case = checks.AttentionCase(1, heads, kv_heads, query_length, key_length, HEAD_DIMS[n % 2], is_causal, kind)
        checks.check_attention(operator(step), device=device, dtype=DTYPES[(n + number) % 2], lse=True, cases=[case])


def test_step_1_is_right_with_its_copies_after_the_first_product(device):
    skip_other_gpus(device)
    cases = [checks.AttentionCase(1, *case[:4], HEAD_DIMS[n % 2], *case[4:]) for n, case in enumerate(CASES)]
    checks.check_attention(operator(COPIES_AFTER), device=device, dtype=torch.float16, lse=True, cases=cases)


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_the_sanitizer_finds_nothing_with_the_copies_after(order):
    case = checks.AttentionCase(1, 2, 1, 130, 300, 64, True, "normal")
    with configure(**order), sanitize() as report:
        launch(COPIES_AFTER, *checks.make_inputs(case, dtype=torch.float16, seed=0)[:3], is_causal=True)
    assert report.launches == 1 and not report.findings, str(report)


@WIDE
@STEPS
@pytest.mark.parametrize("dtype", DTYPES)
def test_correct_at_every_length(device, step, dtype):
    skip_other_gpus(device)
    lengths = [*((length, length) for length in checks.LENGTHS), *checks.UNEQUAL_LENGTHS, (1023, 1024), (1024, 1023)]
    cases = [
        checks.AttentionCase(
            1 + n % 2, 4, (1, 2, 4)[n % 3], *pair, HEAD_DIMS[n // 2 % 2], n % 4 > 0, checks.KINDS[n % 5]
        )
        for n, pair in enumerate(lengths)
    ]
    checks.check_attention(operator(step), device=device, dtype=dtype, lse=True, cases=cases)


@pytest.mark.parametrize(
    ("step", "head_dim"),
    [
        pytest.param(step, d, marks=() if n % 2 == m else OTHER, id=f"{step.kernel}-{d}")
        for n, step in enumerate(LADDER)
        for m, d in enumerate(HEAD_DIMS)
    ],
)
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_the_sanitizer_finds_nothing(step, head_dim, order):
    """Several tiles of keys; and rows without a key, or no mask, in turn."""
    in_turn = (((130, 70), True), ((65, 129), False))
    for pair, is_causal in (((70, 300), True), in_turn[LADDER.index(step) % 2]):
        case = checks.AttentionCase(1, 2, 1, *pair, head_dim, is_causal, "normal")
        with configure(**order), sanitize() as report:
            launch(step, *checks.make_inputs(case, dtype=torch.float16, seed=0)[:3], is_causal=is_causal)
        assert report.launches == 1 and not report.findings, str(report)


@STEPS
def test_the_compiler_leaves_the_products_asynchronous_and_spills_nothing(step):
    """C7510 and its like say that it waits for each product."""
    source = read_kernel(step.file)
    for options in compile_options(source):
        compiled = nvrtc.compile_kernel(source, "sm_90a", options)
        resources = compiled.resources[step.kernel]
        assert "C75" not in compiled.log and not resources.spill_stores and not resources.stack_frame, compiled.log


@STEPS
def test_the_table_agrees_with_the_header(step):
    source = read_kernel(step.file)
    formula = re.search(r"^// shared (.*?) bytes, dynamic", source, flags=re.MULTILINE)[1].replace("·", "*")
    listed = set(map(frozenset, compile_options(source)))
    assert {frozenset(step.options(d, dtype)) for d in HEAD_DIMS for dtype in DTYPES} <= listed
    for d in HEAD_DIMS:
        sizes = {"D": d, "B_R": step.rows(d), "B_C": KEYS, "CONSUMERS": step.rows(d) // 64}
        assert eval(formula, {}, sizes) == step.shared(d, step.rows(d))


def test_what_launch_does_not_take():
    query, key, value = (torch.zeros(1, heads, 8, 64, dtype=torch.float16) for heads in (2, 1, 1))
    with pytest.raises(ValueError, match="head_dim is 32; .*step1_wgmma.cu takes 64 and 128"):
        launch(LADDER[0], *(tensor[..., :32].contiguous() for tensor in (query, key, value)))
    with pytest.raises(ValueError, match="dtype is torch.float32; .* takes torch.float16 and torch.bfloat16"):
        launch(LADDER[0], query.float(), key.float(), value.float())


# ---------------------------------------------------------------------------------------------- who waits for whom

DELAYS = {  # who is held up, and before which statement
    "the producer": ("true", "fill(shared.V[buffer]"),
    "the first consumer before its products": ("w == 0", "start_scores(S, shared.Q[w], shared.K[next]);"),
    "the second consumer before its softmax": ("w == 1", "rescale(O, rows);"),
    "a warp before it gives back": ("threadIdx.x / 32 == 2", "give_back(shared.gate_K[next]);"),
    "a warp before it writes": ("threadIdx.x / 32 == 5", "write_tile(shared."),
}


@pytest.mark.parametrize("delay", DELAYS)
@pytest.mark.parametrize("name", ["step5_", "forward"])
def test_a_part_of_the_block_that_is_held_up_changes_nothing(device, name, delay):
    skip_other_gpus(device)
    step = step_named(name)
    text = with_delays(with_headers(read_kernel(step.file)), DELAYS.values())
    attention = operator_of_text(step, text, [*DELAYS].index(delay))
    case = checks.AttentionCase(1, 2, 1, 150, 400, 128, True, "normal")
    checks.check_attention(attention, device=device, dtype=torch.float16, lse=True, cases=[case])


# ---------------------------------------------------------------------------------------------- tests that can fail

CHANGES = [
    ("step1_", "const bool exists = row < rows_left;", "const bool exists = true;"),
    ("step1_", "next - 1 > i_w + shift", "next > i_w + ROWS + shift"),
    ("step1_", "if (!COPIES_AFTER) request_next();", ""),
    ("step2_", "load_box(shared.V[buffer], V, j0", "load_box(shared.V[buffer], V, 0"),
    ("step2_", "store_box(O, i_w, head", "store_box(O, i0, head"),
    ("step3_", "return {head, i0, max(1, (end + B_C - 1) / B_C)};", "return {head, i0, max(1, end / B_C)};"),
    ("step3_", "rescale(O, rows);", ""),
    (
        "step4_",
        "if (j >= whole) mask(S, i_w, j * B_C, problem.L_k, shift, problem.is_causal);\n        raise_maximum(rows, S, "
        "problem.factor);\n        hold",
        "raise_maximum(rows, S, problem.factor);\n        hold",
    ),
    ("step5_", "moved(v, key * 128)", "moved(v, key * 64)"),
    ("step6_", "= work_of(problem, item / blocks, item % blocks)", "= work_of(problem, item / blocks, 0)"),
    ("forward", "first + place % width", "first"),
]


@pytest.mark.parametrize(("name", "right", "wrong"), CHANGES)
def test_a_broken_step_fails_the_check(name, right, wrong):
    cases = [
        checks.AttentionCase(1, 2, 1, *pair, 64, is_causal, "normal")
        for pair, is_causal in (((200, 300), True), ((70, 150), False))
    ]
    with pytest.raises((AssertionError, KernelError), match="max error|NaN|finite|inf|past the end"):
        checks.check_attention(
            changed(step_named(name), right, wrong), dtype=torch.float16, lse=True, cases=cases, seed=0
        )
