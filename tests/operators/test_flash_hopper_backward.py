"""The gradients of flash_attention_hopper: right on every case, clean, seen to be wrong when broken; in turns, the same
bits in every run."""

import itertools
import re
from functools import partial

import pytest
import torch

from course_utils import checks
from course_utils.cuda import KernelError, read_kernel
from course_utils.emulator import configure, profile, sanitize
from course_utils.operators import flash_attention_hopper, hopper_launch
from course_utils.operators.tensor_core import BF16_OPTION, DTYPES, HEAD_DIMS, takes_wgmma
from course_utils.toolchain import nvrtc
from course_utils.toolchain.source import compile_options
from tests.helpers import tensors
from tests.helpers.deterministic import told_to_be_deterministic

HALF = torch.float16
CASES = [*checks.attention_cases(head_dims=HEAD_DIMS), *checks.attention_cases(head_dims=HEAD_DIMS, enable_gqa=True)]
CASES += [checks.AttentionCase(1, 2, 1, *pair, 64, True, "normal") for pair in ((66, 128), (130, 131), (799, 3))]
# Several tiles of queries and keys, of which the last are not full; rows without keys; a head dimension between.
FEW = (
    checks.AttentionCase(1, 2, 1, 150, 140, 128, True, "planted"),
    checks.AttentionCase(1, 2, 1, 290, 150, 64, True, "normal"),
    checks.AttentionCase(2, 1, 1, 70, 130, 111, False, "large logits", scale=-0.3, strided=True),
    checks.AttentionCase(1, 1, 1, 1, 3, 40, True, "offset on V"),
)

random = partial(tensors.random, dtype=HALF)


@pytest.fixture(autouse=True)
def on_a_hopper_or_the_emulator(request):
    device = request.getfixturevalue("device") if "device" in request.fixturenames else torch.device("cpu")
    if device.type == "cuda" and not takes_wgmma(device):
        pytest.skip("this GPU is no Hopper")


@pytest.fixture(params=["chance", "turns"])
def order(request, monkeypatch):
    """In which order blocks add to dQ. The operator asks torch, whose switch `checks` needs on to poison memory."""
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: request.param == "turns")
    return request.param


check = partial(checks.check_attention, flash_attention_hopper, gradients=True)


def test_gradients_are_correct(device, order, thinned):
    """On the emulator dtypes and orders share the cases."""
    for n, dtype in enumerate(DTYPES):
        check(device=device, dtype=dtype, cases=thinned(FEW, 2, (n + (order == "turns")) % 2))


@pytest.mark.exhaustive("a few such cases are in test_gradients_are_correct")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_are_correct_on_every_case(device, order, dtype):
    check(device=device, dtype=dtype, cases=[*CASES, *FEW])


def gradients_where_all_scores_are_low(device="cpu"):
    query = (4 + random(1, 1, 40, 128, device=device)).requires_grad_()
    key = (-4 + random(1, 1, 70, 128, device=device, seed=1)).requires_grad_()
    out, lse = flash_attention_hopper(query, key, key, scale=0.1, return_lse=True)
    assert (lse < -50).all()
    return torch.autograd.grad(out.sum(), (query, key))


def test_keys_past_the_last_one_stay_out_where_all_scores_are_low(device):
    """They come as zeros, with a score of 0: exp(0 - LSE) is infinite in 16 bits."""
    assert all(grad.isfinite().all() for grad in gradients_where_all_scores_are_low(device))


def test_where_they_come_in_that_shows(break_kernel):
    break_kernel(hopper_launch.BACKWARD, "key >= problem.L_k ||", "")
    assert not all(grad.isfinite().all() for grad in gradients_where_all_scores_are_low())


def test_rows_that_see_no_key_get_no_gradient(device, order):
    query, key, value = (random(1, 2, length, 64, device=device).requires_grad_() for length in (150, 3, 3))
    out = flash_attention_hopper(query, key, value, is_causal=True)
    grad_query, *others = torch.autograd.grad(out.sum(), (query, key, value))
    assert (grad_query[:, :, :147] == 0).all() and (grad_query[:, :, 148:] != 0).any()
    assert all(grad.isfinite().all() for grad in others)


def gradients(shape, kv_heads, key_length, is_causal, device="cpu"):
    """Of random inputs with a query of this shape `[B, H, L_q, d]`."""
    query = random(*shape, device=device).requires_grad_()
    key, value = (
        random(shape[0], kv_heads, key_length, shape[3], device=device, seed=n).requires_grad_() for n in (1, 2)
    )
    out = flash_attention_hopper(query, key, value, is_causal=is_causal, enable_gqa=True)
    return torch.autograd.grad(out, (query, key, value), random(*shape, device=device, seed=3))


@pytest.mark.parametrize("is_causal", [False, True])
def test_in_turns_every_run_gives_the_same_bits(device, is_causal):
    on_gpu = device.type == "cuda"
    shape, key_length = ((2, 8, 2000, 128), 3000) if on_gpu else ((1, 2, 200, 64), 700)
    with told_to_be_deterministic():
        first = gradients(shape, 2, key_length, is_causal, device)
        for _ in range(100 if on_gpu else 3):
            with configure(threads=3):  # of the emulator: blocks run side by side
                again = gradients(shape, 2, key_length, is_causal, device)
            assert all(map(torch.equal, first, again))


@pytest.mark.parametrize("threads", [1, 3])
def test_blocks_that_wait_for_their_turn_come_to_an_end(monkeypatch, threads):
    """However many of them the machine runs at a time: those before have begun."""
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    with configure(threads=threads):
        for is_causal in (False, True):
            gradients((1, 1, 70, 128), 1, 260, is_causal)


ORDERS = [
    {"order": "late"},
    *(
        pytest.param(order, marks=pytest.mark.exhaustive("what is asynchronous is done as late as may be"))
        for order in ({"order": "early"}, {"order": "random", "seed": 7})
    ),
]


@pytest.mark.parametrize("asynchronous", ORDERS, ids=str)
def test_the_sanitizer_finds_nothing(order, asynchronous):
    head_dim = 128 if order == "chance" else 64
    with configure(**asynchronous), sanitize() as report:
        gradients((1, 2, 140, head_dim), 1, 140, is_causal=order == "chance")
    assert report.launches == 4 and not report.findings, str(report)


def test_a_consumer_lets_a_tile_go_by_whose_queries_see_none_of_its_keys():
    """The first of two tiles of 64 queries does not see the second consumer's keys. Of its five products for that tile
    this consumer computes dQ alone, which has the other consumer's keys, too."""

    def products(is_causal):
        with profile() as counters:
            gradients((1, 1, 128, 128), 1, 128, is_causal)
        flops = sum(row.flops for row in counters.asynchronous if row.kernel == "backward")
        return flops / (2 * 64 * 64 * 128)

    assert products(is_causal=False) == 2 * 2 * 5 and products(is_causal=True) == 2 * 2 * 5 - 4


def test_the_compiler_leaves_the_products_asynchronous_and_spills_nothing():
    """C7510 and its like say that it waits for each product."""
    source = read_kernel(hopper_launch.BACKWARD)
    for options in compile_options(source):
        if "-DBF16=1" in options:  # differs in the conversions alone
            continue
        compiled = nvrtc.compile_kernel(source, "sm_90a", options)
        assert "C75" not in compiled.log, compiled.log
        assert not any(of.spill_stores or of.stack_frame for of in compiled.resources.values()), compiled.log


def test_the_operator_agrees_with_the_header():
    source = read_kernel(hopper_launch.BACKWARD)
    formula = re.search(r"^// shared backward (.*?) bytes, dynamic", source, flags=re.MULTILINE)[1].replace("·", "*")
    listed = set(map(frozenset, compile_options(source)))
    for tile in itertools.starmap(hopper_launch.BackwardTile, itertools.product(HEAD_DIMS, (False, True))):
        assert {frozenset((*tile.options, BF16_OPTION[dtype])) for dtype in DTYPES} <= listed
        assert eval(formula, {}, {"D": tile.head_dim, "B_R": tile.rows}) == tile.shared_bytes


CHANGES = [
    ("dPt[n][e] - delta[query]", "dPt[n][e]"),
    ("key > i0 + query + shift", "key > i0 + query"),
    ("lse == NEG_INF ? -NEG_INF :", ""),
    ("return head + n / each;", "return head;"),
    ("row = w * ROWS + warp_row() + lane % 16", "row = warp_row() + lane % 16"),
    ("key / ROWS * ROWS * D * 2 + key % ROWS * 128", "key % ROWS * 128"),
    ("scale_row(keys.dK, r, scale)", "scale_row(keys.dK, r, 1)"),
    ("first + n % each", "n % each"),
    ("if (row + 8 < rows.count)", "if (row + 9 < rows.count)"),
    ("j_w < i0 + B_R + shift", "j_w < i0 + shift"),  # skips tiles of which some queries see the keys
    ("    write_dSt(shared, LeftFactor{}, n, w);\n", "    announce(shared.gate_dSt[buffer]);\n"),  # no zeros
]
MORE = pytest.mark.exhaustive("the first few of these mistakes show that the check can see such")


@pytest.mark.parametrize(
    ("right", "wrong"), [pytest.param(*change, marks=MORE if n > 1 else ()) for n, change in enumerate(CHANGES)]
)
def test_a_broken_kernel_fails_the_check(monkeypatch, break_kernel, right, wrong):
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: False)
    break_kernel(hopper_launch.BACKWARD, right, wrong)
    # The second block of keys begins at the second tile of queries.
    case = checks.AttentionCase(1, 2, 1, 200, 230, 128, True, "large logits", scale=-0.3)
    with pytest.raises((AssertionError, KernelError), match="max error|NaN|finite|inf"):
        check(dtype=HALF, cases=[case])


# Not wait_for_product<1 + !FIRST>(keys.dV): the producer asks for Q first, whose place is given back when all
# products have ended.
RACES = [
    ("    wait_until_full(shared.gate_dSt[buffer], parity);\n", ""),
    ("    wait_for(&shared.gate_dSt[buffer].empty, parity ^ 1);   // dQ of tile n − 2 has been computed\n", ""),
    ("    wait_for(&shared.gate_dQ[w].empty, (n + round) % 2 ^ 1);\n", ""),
    ("    publish_tile();\n    __syncwarp();\n", "    __syncwarp();\n"),
    ("        wait_for_stores();\n        arrive", "        arrive"),
    ("        wait_for_product<1>(dQ);\n", ""),
    ("    wait_for_product<!LAST>(keys.dK);\n", ""),
    ("    sync_threads(1, CONSUMER_THREADS);   // nobody reads K any more\n", ""),
]


@pytest.mark.parametrize(
    ("right", "wrong"), [pytest.param(*change, marks=MORE if n > 1 else ()) for n, change in enumerate(RACES)]
)
def test_the_sanitizer_sees_a_missing_wait(break_kernel, right, wrong):
    break_kernel(hopper_launch.BACKWARD, right, wrong)
    with sanitize() as report:
        gradients((1, 1, 200, 128), 1, 140, is_causal=False)
    assert report.findings


def test_a_second_derivative_is_refused():
    inputs = [random(1, 1, 5, 64, seed=seed).requires_grad_() for seed in range(3)]
    out = flash_attention_hopper(*inputs)
    (grad_query,) = torch.autograd.grad(out.sum(), inputs[:1], create_graph=True)
    with pytest.raises(Exception, match="differentiable once"):
        torch.autograd.grad(grad_query.sum(), inputs[1:2])
