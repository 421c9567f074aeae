"""naive_attention and its kernels: right on every case, seen to be wrong when broken, clear when misused."""

import numpy as np
import pytest
import torch

from course_utils import checks, reference
from course_utils.cuda import KernelError, RawModule, read_kernel
from course_utils.operators import naive_attention
from tests.helpers.one_of_each import every_second
from tests.helpers.tensors import random

CASES = checks.attention_cases()
SCORES = ("scores_uncoalesced", "scores")


# ---------------------------------------------------------------------------------------------- right


def test_float32_is_correct_on_every_case(device, thinned):
    """On the emulator with every second length; half precision below has the others."""
    checks.check_attention(naive_attention, device=device, cases=thinned(CASES, 4, 3))


@pytest.mark.parametrize(("n", "dtype"), [*enumerate([torch.float16, torch.bfloat16])])
def test_half_precision_is_computed_in_float32_and_returned_as_it_came(device, n, dtype, thinned):
    checks.check_attention(naive_attention, device=device, dtype=dtype, cases=thinned(CASES, 8, 4 * n))


@pytest.mark.gpu
def test_all_combinations_on_a_gpu():
    checks.check_attention(naive_attention, device="cuda", full=True)


@pytest.mark.gpu
def test_more_heads_in_all_than_one_grid_dimension_holds():
    query, key, value = (random(300, 300, 2, 4, device="cuda", seed=s) for s in range(3))
    out = naive_attention(query, key, value)
    assert checks.error_report(out, reference.attention(query, key, value)).passed


@pytest.mark.parametrize("head_dim", [1, 5, 40, 111])
def test_any_head_dim(device, head_dim):
    case = checks.AttentionCase(1, 2, 2, 33, 70, head_dim, True, "normal")
    assert all(report.passed for report in checks.check_case(naive_attention, case, device=device, seed=1))


@pytest.mark.parametrize("name", SCORES)
def test_both_score_kernels_give_the_scores_and_mask_the_future(device, name):
    query, key = random(2, 2, 35, 40, device=device), random(2, 2, 50, 40, device=device, seed=1)
    scores = torch.full((2, 2, 35, 50), torch.nan, device=device)
    kernel = RawModule(code=read_kernel(f"01_attention_basics/{name}.cu")).get_function(name)
    sizes = np.int32(35), np.int32(50), np.int32(40)
    kernel((2 * 2, 2, 2), (32, 32), (query, key, scores, *sizes, np.float32(0.5), np.int32(True)))
    seen = reference.causal_mask(35, 50, device)
    expected = 0.5 * (query.double() @ key.double().mT)
    assert (scores[..., ~seen] == -torch.inf).all()
    torch.testing.assert_close(scores[..., seen].double(), expected[..., seen], rtol=1e-5, atol=1e-5)


def test_the_unsafe_softmax_overflows_and_the_safe_one_does_not(device):
    scores = torch.tensor([[0.0, 1.0, 2.0], [0.0, 50.0, 100.0]], device=device).reshape(1, 1, 2, 3)
    found = {}
    for name, threads in (("softmax", 256), ("softmax_unsafe", 32)):
        found[name] = torch.empty_like(scores)
        kernel = RawModule(code=read_kernel(f"01_attention_basics/{name}.cu")).get_function(name)
        kernel((2, 1, 1), (threads,), (scores, found[name], np.int32(3)))
    torch.testing.assert_close(found["softmax"], torch.softmax(scores, dim=-1))
    torch.testing.assert_close(found["softmax_unsafe"][..., 0, :], torch.softmax(scores[..., 0, :], dim=-1))
    assert found["softmax_unsafe"][..., 1, 2].isnan()


# ---------------------------------------------------------------------------------------------- broken kernels are seen


@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    every_second(
        [
            ("scores", "j > i + L_k - L_q", "j > i + L_k - L_q + 1"),  # sees one key of the future
            ("scores", "j > i + L_k - L_q", "j > i"),  # top-left
            ("scores", "K += head * L_k * d", "K += head * L_q * d"),
            ("scores", "scale * sum", "sum"),
            ("softmax", "m == NEG_INF", "false"),  # NaN in rows without keys
            ("softmax", "m = block_reduce(m, true);", "m = 0;"),
            ("softmax", "l > 0 ? 1 / l : 0", "1 / l"),
            ("output", "V += head * L_k * d", "V += head * L_q * d"),
            ("output", "j < L_k; j++", "j < L_k - 1; j++"),
        ]
    ),
)
def test_a_broken_kernel_fails_the_check(break_kernel, file, right, wrong):
    break_kernel(f"01_attention_basics/{file}.cu", right, wrong)
    # Lengths differ in the selected cases, all kinds of input occur, and some rows see no key.
    cases = [case for case in CASES if case.query_length != case.key_length]
    cases.sort(key=lambda case: case.query_length * case.key_length)
    with pytest.raises((AssertionError, KernelError)):  # a wrong stride may also read out of bounds
        checks.check_attention(naive_attention, cases=cases, seed=0)


# ---------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"query": torch.zeros(2, 3, 4)}, ValueError, r"query has shape \[2, 3, 4\]"),
        ({"query": [1.0]}, TypeError, "query is a list"),
        ({"key": torch.zeros(1, 2, 5, 4, dtype=torch.float16)}, TypeError, "key has dtype torch.float16"),
        ({"value": torch.zeros(1, 2, 6, 4)}, ValueError, r"value has shape \[1, 2, 6, 4\]"),
        ({name: torch.zeros(1, 1, 5, 4) for name in ("key", "value")}, ValueError, "key has 1 heads and query 2"),
        ({"key": torch.zeros(1, 2, 5, 4, device="meta")}, ValueError, "key is on meta"),
        ({"scale": float("nan")}, ValueError, "scale is nan"),
    ],
)
def test_bad_input_is_named(change, error, message):
    arguments = {name: torch.zeros(1, 2, 5, 4) for name in ("query", "key", "value")} | change
    with pytest.raises(error, match=message):
        naive_attention(**arguments)


def test_float64_is_refused():
    tensor = torch.zeros(1, 1, 2, 4, dtype=torch.float64)
    with pytest.raises(TypeError, match="query has dtype torch.float64"):
        naive_attention(tensor, tensor, tensor)
