"""flash_attention_hopper, forward: right on every case, the same in every run, clean, seen to be wrong when broken."""

from functools import partial

import pytest
import torch

from course_utils import checks
from course_utils.emulator import sanitize
from course_utils.operators import flash_attention_hopper, hopper_launch
from course_utils.operators.tensor_core import DTYPES, HEAD_DIMS, takes_wgmma
from tests.helpers import tensors

CASES = checks.attention_cases(head_dims=HEAD_DIMS)
GQA_CASES = checks.attention_cases(head_dims=HEAD_DIMS, enable_gqa=True)
ODD = (  # more queries than a block has, keys that end in a tile, rows without keys
    checks.AttentionCase(1, 2, 1, 200, 300, 64, True, "planted"),
    checks.AttentionCase(2, 1, 1, 130, 40, 128, True, "normal"),
    checks.AttentionCase(1, 1, 1, 70, 257, 40, False, "large logits", scale=-0.3, strided=True),
)

random = partial(tensors.random, dtype=torch.float16)


@pytest.fixture(autouse=True)
def on_a_hopper_or_the_emulator(request):
    device = request.getfixturevalue("device") if "device" in request.fixturenames else torch.device("cpu")
    if device.type == "cuda" and not takes_wgmma(device):
        pytest.skip("this GPU is no Hopper")


@pytest.mark.parametrize(("dtype", "first"), [(torch.float16, 0), (torch.bfloat16, 1)])
def test_output_and_lse_are_correct(device, thinned, dtype, first):
    """On the emulator a few of the cases; each step of the ladder has others, the last of which is this kernel."""
    cases = [*thinned(CASES, 12, 6 * first), *thinned(GQA_CASES, 12, 6 * first), *thinned(ODD, 2, first)]
    checks.check_attention(flash_attention_hopper, device=device, dtype=dtype, lse=True, cases=cases)


@pytest.mark.exhaustive("a few of the cases are in test_output_and_lse_are_correct")
@pytest.mark.parametrize("dtype", DTYPES)
def test_output_and_lse_are_correct_on_every_case(device, dtype):
    checks.check_attention(
        flash_attention_hopper, device=device, dtype=dtype, lse=True, cases=[*CASES, *GQA_CASES, *ODD]
    )


def test_every_run_gives_the_same_bits(device):
    runs = 100 if device.type == "cuda" else 2
    inputs = [random(2, heads, 200, 64, device=device, seed=seed) for seed, heads in enumerate((4, 2, 2))]
    first = flash_attention_hopper(*inputs, is_causal=True, enable_gqa=True, return_lse=True)
    for _ in range(runs - 1):
        with checks.poisoned_outputs():
            again = flash_attention_hopper(*inputs, is_causal=True, enable_gqa=True, return_lse=True)
        assert all(map(torch.equal, first, again))


def test_the_sanitizer_finds_nothing():
    with sanitize() as report:
        for shape, is_causal in (((1, 3, 150, 64), True), ((1, 1, 20, 100), False)):
            flash_attention_hopper(*(random(*shape, seed=seed) for seed in range(3)), is_causal=is_causal)
    assert report.launches == 2 and not report.findings, str(report)


@pytest.mark.parametrize("at_once", [1, 2, 3, 10])
def test_the_order_of_the_heads_changes_nothing(monkeypatch, at_once):
    """Three heads: groups of one size, a smaller last one, and more than there are."""
    inputs = [random(1, 3, 140, 64, seed=seed) for seed in range(3)]
    expected = flash_attention_hopper(*inputs, is_causal=True)
    monkeypatch.setattr(hopper_launch, "heads_at_once", lambda *_: at_once)
    hopper_launch.forward_launch.cache_clear()
    assert torch.equal(flash_attention_hopper(*inputs, is_causal=True), expected)
    hopper_launch.forward_launch.cache_clear()


@pytest.mark.parametrize(
    ("query_shape", "key_shape", "dtype", "at_once"),
    [
        ((1, 64, 4096, 128), (1, 64, 4096, 128), torch.float16, 16),  # 2 MiB of keys and values a head
        ((1, 64, 4096, 128), (1, 64, 4096, 128), hopper_launch.E4M3, 32),
        ((4, 16, 4096, 128), (4, 4, 4096, 128), torch.bfloat16, 32),  # four heads share them
        ((1, 64, 16384, 128), (1, 64, 16384, 128), torch.float16, 8),
        ((1, 64, 512, 64), (1, 64, 512, 64), torch.float16, 32),
        ((1, 6, 16384, 128), (1, 6, 16384, 128), torch.float16, 6),
    ],
)
def test_the_cache_keeps_what_heads_that_run_together_read(query_shape, key_shape, dtype, at_once):
    assert hopper_launch.heads_at_once(query_shape, key_shape, dtype) == at_once


@pytest.mark.parametrize(("length", "at_once"), [(2**17, 1), (512, 48)])
def test_other_limits_allow_fewer_heads_at_once_or_more(length, at_once):
    shape = 1, 64, length, 128
    assert hopper_launch.heads_at_once(shape, shape, torch.float16, fewest=1, most=48) == at_once


CHANGES = [
    ("{first + place % width, blocks - 1 - place / width}", "{first, place / width}"),
    ("problem.L_k - problem.L_q", "0"),
    ("rows.l[r] *= rows.rescale[r];", ""),
    ("rescale(O, rows);", ""),
    ("if (j0 + column >= end)", "if (j0 + column > end)"),
]


@pytest.mark.parametrize(("right", "wrong"), CHANGES)
def test_a_broken_kernel_fails_the_check(break_kernel, right, wrong):
    break_kernel(hopper_launch.FORWARD, right, wrong)
    case = checks.AttentionCase(1, 2, 1, 140, 300, 64, True, "normal")
    with pytest.raises(AssertionError, match="max error|NaN|finite"):
        checks.check_attention(flash_attention_hopper, dtype=torch.float16, lse=True, cases=[case])


def test_what_it_does_not_take():
    query, key, value = (random(1, 2, 8, 64, seed=seed) for seed in range(3))
    with pytest.raises(TypeError, match="query has dtype torch.float32; it must be torch.float16 or torch.bfloat16"):
        flash_attention_hopper(query.float(), key.float(), value.float())
    with pytest.raises(ValueError, match="query has head dimension 300; it must be at most 256"):
        flash_attention_hopper(*(random(1, 2, 8, 300, seed=seed) for seed in range(3)))
