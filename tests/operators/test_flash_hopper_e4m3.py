"""flash_attention_hopper in E4M3: right on every case, the same in every run, clean, seen to be wrong when broken."""

import math

import pytest
import torch

from course_utils import checks, reference
from course_utils.cuda import read_kernel
from course_utils.emulator import configure, sanitize
from course_utils.launches.hopper import EIGHT_BITS, ONE_LEVEL, launch
from course_utils.operators import flash_attention_hopper, hopper_launch
from course_utils.operators.tensor_core import HEAD_DIMS, takes_wgmma
from course_utils.toolchain import nvrtc
from course_utils.toolchain.source import compile_options
from tests.helpers import tensors

E4M3 = torch.float8_e4m3fn
SEED = (
    0  # of rows alone with more keys than a tile, where a weight is rounded up or down is luck, and 1.5 times not rare
)
CASES = checks.attention_cases(head_dims=HEAD_DIMS)
GQA_CASES = checks.attention_cases(head_dims=HEAD_DIMS, enable_gqa=True)
ODD = (  # more queries than a block has, keys that end in a tile, rows without keys
    checks.AttentionCase(1, 4, 2, 200, 300, 128, True, "planted"),
    checks.AttentionCase(2, 1, 1, 130, 40, 64, True, "overflowing exp"),
    checks.AttentionCase(1, 1, 1, 70, 257, 40, False, "large logits", scale=-0.3, strided=True),
)


@pytest.fixture(autouse=True)
def on_a_hopper_or_the_emulator(request):
    device = request.getfixturevalue("device") if "device" in request.fixturenames else torch.device("cpu")
    if device.type == "cuda" and not takes_wgmma(device):
        pytest.skip("this GPU is no Hopper")


def inputs(*shape, kv_heads=None, key_length=None, device="cpu"):
    """Query, key, value in E4M3, and the scales by their names."""
    batch, heads, length, d = shape
    keys = batch, kv_heads or heads, key_length or length, d
    pairs = [
        reference.quantize_heads(tensors.random(*of, device=device, seed=seed))
        for seed, of in enumerate((shape, keys, keys))
    ]
    return [numbers for numbers, _ in pairs], dict(
        zip(("q_scale", "k_scale", "v_scale"), (scale for _, scale in pairs), strict=True)
    )


def test_output_and_lse_are_correct(device, thinned):
    cases = [*thinned(CASES, 36, 3), *thinned(GQA_CASES, 18, 9), *ODD]
    checks.check_e4m3_attention(flash_attention_hopper, device=device, cases=cases, seed=SEED)


@pytest.mark.exhaustive("a few of the cases are in test_output_and_lse_are_correct")
def test_output_and_lse_are_correct_on_every_case(device):
    checks.check_e4m3_attention(flash_attention_hopper, device=device, cases=[*CASES, *GQA_CASES, *ODD], seed=SEED)


def test_every_run_gives_the_same_bits(device):
    runs = 100 if device.type == "cuda" else 2
    given, scales = inputs(2, 4, 200, 64, kv_heads=2, device=device)
    how = {"is_causal": True, "enable_gqa": True, "return_lse": True}
    first = flash_attention_hopper(*given, **how, **scales)
    for _ in range(runs - 1):
        with checks.poisoned_outputs():
            again = flash_attention_hopper(*given, **how, **scales)
        assert all(map(torch.equal, first, again))


OTHER_ORDERS = pytest.mark.exhaustive("what is asynchronous is done as late as may be, which shows most mistakes")
ORDERS = [
    {"order": "late"},
    *(pytest.param(order, marks=OTHER_ORDERS) for order in ({"order": "early"}, {"order": "random", "seed": 7})),
]


OTHER_SIZE = pytest.mark.exhaustive("the other head dimension has the same barriers and copies")


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("head_dim", [64, pytest.param(128, marks=OTHER_SIZE)])
def test_the_sanitizer_finds_nothing(head_dim, order):
    for lengths, is_causal in (((70, 300), True), ((200, 129), False)):
        given, scales = inputs(1, 2, lengths[0], head_dim, kv_heads=1, key_length=lengths[1])
        with configure(**order), sanitize() as report:
            flash_attention_hopper(*given, is_causal=is_causal, enable_gqa=True, **scales)
        assert report.launches == 1 and not report.findings, str(report)


def test_the_compiler_leaves_the_products_asynchronous_and_spills_nothing():
    """The one that sums in one level is there to be compared with, and may spill."""
    source = read_kernel(EIGHT_BITS.file)
    for options in compile_options(source):
        compiled = nvrtc.compile_kernel(source, "sm_90a", options)
        resources = compiled.resources[EIGHT_BITS.kernel]
        spills = resources.spill_stores or resources.stack_frame
        assert "C75" not in compiled.log and not (spills and "-DLEVELS=1" not in options), compiled.log


def test_the_table_of_launches_agrees_with_the_operator_and_the_header():
    listed = set(compile_options(read_kernel(EIGHT_BITS.file)))
    assert listed == {*(tile.options for tile in hopper_launch.E4M3_TILES.values()), ONE_LEVEL.options(128, E4M3)}
    for d, tile in hopper_launch.E4M3_TILES.items():
        assert tile.options == EIGHT_BITS.options(d, E4M3) and tile.threads == EIGHT_BITS.threads(d)
        assert tile.shared_bytes == EIGHT_BITS.shared(d, tile.block_rows) and tile.block_rows == EIGHT_BITS.rows(d)


@pytest.mark.parametrize("tiny", [1e-12, 1e-23, torch.finfo(torch.float32).tiny])
def test_however_small_the_scales_are_a_row_is_the_mean_of_what_it_sees(device, tiny):
    """129 keys: nearly all of the last tile is masked. The factor of the scores is 0 in fp32 from 1e-23 on."""
    given, scales = inputs(1, 1, 66, 64, key_length=129, device=device)
    scales |= {name: torch.full_like(scales[name], tiny) for name in ("q_scale", "k_scale")}
    for is_causal in (False, True):
        how = {"is_causal": is_causal, "return_lse": True, **scales}
        out, lse = flash_attention_hopper(*given, **how)
        expected, expected_lse = reference.e4m3_attention(*given, **how)
        assert (out - expected).abs().max() <= 0.01 * expected.abs().max()
        assert torch.allclose(lse.double(), expected_lse, atol=1e-5)


# ---------------------------------------------------------------------------------------------- long sums


LONG = {"cpu": 2048, "cuda": 131072}


def one_query(length, others, place, value, device, key=0.0):
    """A query of ones, keys of zeros, values that are `others`; but at one place `key` and `value`. And scales of 1."""
    keys, values = torch.zeros(1, 1, length, 128), torch.full((1, 1, length, 128), others)
    keys[:, :, place], values[:, :, place] = key, value
    ones = torch.ones(1, 1, device=device)
    return [x.to(device, E4M3) for x in (torch.ones(1, 1, 1, 128), keys, values)], (ones, ones, ones)


FIRST_KEY = pytest.mark.exhaustive("the first key comes last, when the sum of all others is done")


def relative_error(step, given, scales):
    expected = reference.e4m3_attention(*given, **dict(zip(("q_scale", "k_scale", "v_scale"), scales, strict=True)))
    return (launch(step, *given, scales=scales)[0] / expected - 1).abs().max().item()


@pytest.mark.parametrize("place", [-1, pytest.param(0, marks=FIRST_KEY)])
def test_small_terms_do_not_drown_in_a_long_sum(device, place):
    """The last keys are the first in the sum. A large value among them makes it such that 14 bits hold nothing of what
    another key adds: in one sum all these are lost, in two levels those of one tile."""
    given, scales = one_query(LONG[device.type], 1.5 * 2**-6, place, 256.0, device)
    assert relative_error(EIGHT_BITS, given, scales) < 0.015
    if place == -1:
        assert relative_error(ONE_LEVEL, given, scales) > 0.1


def small_weights(device):
    """One key has the weight 1, and the others 2^-12 each; their values count alone."""
    return one_query(LONG[device.type], 1.0, -1, 0.0, device, key=0.75)


def test_small_weights_count(device):
    assert relative_error(EIGHT_BITS, *small_weights(device)) <= 1 / 16  # as far as rounding takes each of them


def test_a_weight_is_off_by_no_more_than_the_docstring_says(device):
    """All weights but one are alike, from 2^-12 to 2^-18.4 of that one, whose value is 0."""
    error, weight = {}, {}
    for key in (0.75, 0.875, 0.9375, 1.0, 1.125):
        weight[key] = math.exp(-key * math.sqrt(128))
        error[key] = relative_error(EIGHT_BITS, *one_query(256, 1.0, -1, 0.0, device, key=key))
        allowed = 1 / 16 if weight[key] >= 2**-14 else 2**-18 / weight[key]
        assert error[key] <= min(1, allowed) + 2**-8  # out is in bf16
    assert error[1.0] > 0.2 and weight[1.0] > 2**-17  # no sixteenth, where bits are missing
    assert error[1.125] == 1 and weight[1.125] < 2**-18


def test_small_weights_that_are_not_scaled_up_are_lost(break_kernel):
    break_kernel(EIGHT_BITS.file, "WEIGHT_BITS = 8", "WEIGHT_BITS = 0")
    assert relative_error(EIGHT_BITS, *small_weights(torch.device("cpu"))) > 0.5


@pytest.mark.gpu
@pytest.mark.parametrize("place", [0, 1, 127, 128, 65535, 100001, 131071])
def test_one_key_of_128_k_is_found(place):
    """Its weight is nearly 1, and its value unlike all others."""
    length, device = 131072, torch.device("cuda")
    (query, key, value), scales = inputs(1, 1, 1, 128, key_length=length, device=device)
    key[:, :, place] = query[:, :, 0]
    value[:, :, place] = 400.0
    scales["q_scale"] = scales["q_scale"] * 3
    scales["v_scale"] = torch.ones_like(scales["v_scale"])
    how = {"return_lse": True, **scales}
    out, _ = flash_attention_hopper(query, key, value, **how)
    expected, _ = reference.e4m3_attention(query, key, value, **how)
    assert expected.min() > 300
    assert (out - expected).abs().max() <= 0.02 * expected.max()


# ---------------------------------------------------------------------------------------------- tests that can fail

OTHERS = pytest.mark.exhaustive("`make test` has the broken scales, transposition and sums that differ most")
CHANGES = [
    ("scales.k[kv_head]", "scales.k[work.head]"),
    ("one = lane < 16 ? 0x6420 : 0x7531", "one = 0x6420"),
    ("add_output(O, rows.rescale, T);", "add_output(O, {1, 1}, T);"),
    pytest.param("scales.q[work.head]", "scales.q[0]", marks=OTHERS),
    pytest.param("scales.v[kv_head]", "scales.v[0]", marks=OTHERS),
    pytest.param("first + place % width, blocks - 1 - place / width", "first, place / width", marks=OTHERS),
    pytest.param("for (int key = 32 * warp; key < B_C; key", "for (int key = 0; key < 32; key", marks=OTHERS),
]


@pytest.mark.parametrize(("right", "wrong"), CHANGES)
def test_a_broken_kernel_fails_the_check(break_kernel, right, wrong):
    hopper_launch.forward_launch.cache_clear()
    break_kernel(hopper_launch.E4M3_FORWARD, right, wrong)
    case = checks.AttentionCase(1, 4, 2, 140, 300, 64, True, "normal")
    with pytest.raises(AssertionError, match="rms error|max error|NaN|finite"):
        checks.check_e4m3_attention(flash_attention_hopper, cases=[case], seed=SEED)
    hopper_launch.forward_launch.cache_clear()


def test_what_it_does_not_take():
    (query, key, value), scales = inputs(1, 2, 8, 64, kv_heads=1)
    how = {"enable_gqa": True}
    with pytest.raises(TypeError, match="key has dtype torch.float16; it must be torch.float8_e4m3fn, like query"):
        flash_attention_hopper(query, key.half(), value, **how, **scales)
    with pytest.raises(ValueError, match="k_scale is None; .* it must be float32 \\[1, 1\\], one for each head"):
        flash_attention_hopper(query, key, value, **how, **scales | {"k_scale": None})
    with pytest.raises(ValueError, match="q_scale has shape \\[1, 1\\]; it must be \\[1, 2\\]"):
        flash_attention_hopper(query, key, value, **how, **scales | {"q_scale": scales["k_scale"]})
    with pytest.raises(TypeError, match="v_scale has dtype torch.float64; it must be torch.float32"):
        flash_attention_hopper(query, key, value, **how, **scales | {"v_scale": scales["v_scale"].double()})
    for name, wrong, heads in (("q_scale", 0.0, 2), ("k_scale", -1.0, 1), ("k_scale", torch.inf, 1)):
        with pytest.raises(ValueError, match=f"{name} has numbers from .*{wrong}.*; all must be positive and finite"):
            flash_attention_hopper(query, key, value, **how, **scales | {name: torch.full((1, heads), wrong)})
    with pytest.raises(ValueError, match="q_scale has numbers from nan to nan"):
        flash_attention_hopper(query, key, value, **how, **scales | {"q_scale": torch.tensor([[1.0, torch.nan]])})
    with pytest.raises(ValueError, match="q_scale, .* is given, and query is torch.float16; they go with .*e4m3fn"):
        flash_attention_hopper(query.half(), key.half(), value.half(), **how, **scales)


def test_a_gradient_is_refused_by_name():
    given, scales = inputs(1, 1, 8, 64)
    given[1].requires_grad_()
    with pytest.raises(NotImplementedError, match="flash_attention_hopper in torch.float8_e4m3fn has no gradient"):
        flash_attention_hopper(*given, **scales)
    with torch.no_grad():
        flash_attention_hopper(*given, **scales)
