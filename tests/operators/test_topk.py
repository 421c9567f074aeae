"""select_topk and radix_topk.cu: the exact set whatever the scores, -1 only at the tail, minus infinity never."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from course_utils import reference
from course_utils.cuda import compiled
from course_utils.emulator import sanitize
from course_utils.operators import topk
from course_utils.operators.topk import select_topk
from tests.helpers.tensors import random

INF, NAN = torch.inf, torch.nan
RADIX_TOPK = "05_deepseek_sparse/radix_topk.cu"
LENGTHS = (1, 3, 63, 64, 65, 1000, 4097)


def from_bits(bits):
    return torch.as_tensor(bits, dtype=torch.int64).to(torch.int32).view(torch.float32)


def check(logits, k, indices):
    """Sorted scores, uniqueness, and what must not be selected; raises AssertionError."""
    assert indices.shape == (logits.shape[0], k)
    assert indices.dtype == torch.int32
    for row, (scores, chosen) in enumerate(zip(logits.cpu(), indices.cpu().long(), strict=True)):
        expected = min(k, int((scores != -INF).sum()))
        assert (chosen[expected:] == -1).all(), f"row {row} has {expected} keys to select, then {chosen[expected:]}"
        chosen = chosen[:expected]
        assert ((chosen >= 0) & (chosen < len(scores))).all(), f"row {row} selects {chosen}"
        assert len(chosen.unique()) == expected, f"row {row} selects a key twice"
        best, got = scores.topk(expected).values, scores[chosen].sort(descending=True).values
        torch.testing.assert_close(
            got, best, rtol=0, atol=0, equal_nan=True, msg=lambda text, r=row: f"row {r}: {text}"
        )


def ties(kind, rows, length):
    """Scores of which many are equal."""
    scores = random(rows, length, seed=length)
    return {
        "all equal": torch.zeros(rows, length),
        "three values": scores.mul(1.3).round().clamp(-1, 1),
        "ReLU zeros": torch.where(scores > 2, scores, 0.0),
        "both zeros": torch.where(scores > 0, 0.0, -0.0),
        "half": scores.half().float(),
    }[kind]


def special(kind, rows, length):
    """Scores whose bits a careless key would put in the wrong order."""
    scores = random(rows, length, seed=length)
    if kind == "denormal":
        return from_bits(torch.randint(0, 2**20, (rows, length))) * scores.sign()
    if kind == "huge and tiny":
        return scores.sign() * 10.0 ** (scores * 12).clamp(-45, 38)
    if kind == "last digit":  # the first 24 bits are the same
        return from_bits(0x40490F00 + torch.randint(0, 256, (rows, length)))
    if kind == "last digit, negative":
        return -from_bits(0x40490F00 + torch.randint(0, 256, (rows, length)))
    if kind == "random bits":
        scores = torch.randint(-(2**31), 2**31, (rows, length)).to(torch.int32).view(torch.float32)
        return scores.nan_to_num(1.0)
    scores[:, ::7], scores[:, 1::7] = {"infinities": (INF, -INF), "NaN": (NAN, -INF), "negative NaN": (-NAN, INF)}[kind]
    return scores


# ---------------------------------------------------------------------------------------------- right


@pytest.mark.parametrize("length", LENGTHS)
def test_the_greatest_scores_are_selected(device, length, thinned):
    for rows, k in thinned([(5, 1), (3, 64), (2, 2048)], 3, length % 3):
        logits = random(rows, length, seed=k).to(device)
        indices = select_topk(logits, k)
        assert indices.device == logits.device
        check(logits, k, indices)


def test_a_block_of_512_threads_selects_the_same(device):
    logits = random(topk.FEW_ROWS + 1, 303).to(device)
    check(logits, 100, select_topk(logits, 100))


def test_a_row_of_128_k(device):
    logits = random(1, 2**17).to(device)
    check(logits, 2048, select_topk(logits, 2048))


def test_causal_rows(device):
    logits = random(70, 301).masked_fill(torch.arange(301) > torch.arange(70)[:, None] + 3, -INF)
    check(logits, 64, select_topk(logits.to(device), 64))
    assert torch.equal(
        (select_topk(logits.to(device), 64) == -1).sum(1).cpu(), (60 - torch.arange(70)).clamp(min=0).to(torch.int64)
    )


@pytest.mark.parametrize("k", [1, 200, 2048])
def test_rows_of_mostly_minus_infinity(device, k):
    logits = random(4, 9001)
    logits[0] = -INF
    logits[1, 5:] = -INF
    logits[2, :-300] = -INF
    logits[3, ::2] = -INF
    check(logits, k, select_topk(logits.to(device), k))


# More than the 4096 keys that are kept: the row is read once per digit.
@pytest.mark.parametrize(("n", "kind"), [*enumerate(["all equal", "three values", "ReLU zeros", "both zeros", "half"])])
@pytest.mark.parametrize("length", [65, 9001])
def test_ties(device, n, kind, length, thinned):
    logits = ties(kind, 2, length)
    for k in thinned([1, 64, 2048], 3, (n + length) % 3):
        check(logits, k, select_topk(logits.to(device), k))


@pytest.mark.parametrize(
    "kind",
    [
        "denormal",
        "huge and tiny",
        "last digit",
        "last digit, negative",
        "random bits",
        "infinities",
        "NaN",
        "negative NaN",
    ],
)
def test_special_scores(device, kind):
    for length, k in ((130, 20), (6002, 2048)):
        logits = special(kind, 2, length)
        check(logits, k, select_topk(logits.to(device), k))


def test_the_last_key_wanted_may_lie_in_any_digit(device):
    """2^11 and more keys above, in and below a bin, whose last 21, 10 or 0 bits differ."""
    for shift in (21, 10, 0):
        logits = from_bits(0x3F800000 + (torch.arange(3000) << shift) % 2**25)[torch.randperm(3000)][None]
        for k in (1, 1500, 2048):
            check(logits, k, select_topk(logits.to(device), k))


def test_more_equal_nans_than_are_kept(device):
    logits = torch.cat([from_bits(torch.full((5000,), 0xFF800001 - 2**32)), random(3000)])[None]
    check(logits, 2048, select_topk(logits.to(device), 2048))


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    length=st.integers(1, 5000),
    k=st.integers(1, 2048),
    values=st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=40),
    distinct=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_scores(device, length, k, values, distinct, seed):
    logits = torch.tensor(values)[torch.randint(len(values), (2, length), generator=torch.manual_seed(seed))]
    if distinct:
        logits = logits + random(2, length, seed=seed)
    check(logits, k, select_topk(logits.to(device), k))


def test_strided_scores_and_ones_that_need_a_gradient(device):
    wide = random(300, 6).to(device).t()
    check(wide, 7, select_topk(wide, 7))
    shifted = random(2 * 65 + 1).to(device)[1:].view(2, 65)
    check(shifted, 7, select_topk(shifted.requires_grad_(), 7))


def test_every_place_is_written(device):
    """Not by luck: the output is filled with an index that would pass."""
    logits = random(3, 77).to(device)
    logits[1] = -INF
    for k in (5, 77, 100):
        indices = torch.full((3, k), 12345, dtype=torch.int32, device=device)
        kernel = compiled(RADIX_TOPK, ("-DTHREADS=512",)).get_function("radix_topk")
        kernel((3,), (512,), (logits, indices, np.int32(77), np.int32(k)))
        check(logits, k, indices)


def test_the_reference_passes_the_same_check():
    for logits in (random(3, 100), ties("three values", 2, 65), special("infinities", 2, 65)):
        for k in (1, 30, 200):
            check(logits, k, reference.select_topk(logits, k))


def test_without_keys_or_queries(device):
    assert torch.equal(select_topk(torch.zeros(2, 0, device=device), 3).cpu(), torch.full((2, 3), -1).int())
    assert select_topk(torch.zeros(0, 5, device=device), 3).shape == (0, 3)


# ---------------------------------------------------------------------------------------------- broken


def test_the_sanitizer_finds_nothing():
    with sanitize() as report:
        select_topk(random(2, 1001), 64)
        select_topk(ties("ReLU zeros", 1, 5003), 200)
        select_topk(torch.full((1, 30), -INF), 8)
    assert not report.findings


def test_the_sanitizer_names_the_missing_barrier():
    file = "05_deepseek_sparse/broken/histogram_without_barrier.cu"
    kernel = compiled(file, ("-DTHREADS=512",)).get_function("radix_topk")
    with sanitize() as report:
        kernel((1,), (512,), (random(1, 3000), torch.zeros(1, 3000, dtype=torch.int32), np.int32(3000), np.int32(64)))
    races = {finding.source: finding.other_source for finding in report.findings if finding.tool == "racecheck"}
    assert any("histogram[d] = 0" in line and "atomicAdd(&histogram" in (races[line] or "") for line in races)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("if (!bin.has(candidate.x)) continue;", ""),  # what is below the bin takes the places of ties
        ("(passed + here >= bin.wanted || d == 0)", "passed + here > bin.wanted"),
        ("- 0x007fffff", ""),  # minus infinity counts as a score
        ("keep(bin.key, ALL);", ""),  # the equal ones fill the room
        ("0 <= at && at < T", "at < T"),  # the end of the row before
        ("while (bin.count > bin.wanted && shift > 0)", "while (false)"),
        ("indices[n] = -1", "indices[n] = 0"),
    ],
)
def test_a_broken_kernel_fails_the_check(break_kernel, right, wrong):
    break_kernel(RADIX_TOPK, right, wrong)
    with pytest.raises(AssertionError):
        check_all()


def check_all():
    causal = random(3, 1003).masked_fill(torch.arange(1003) > torch.tensor([[20], [300], [900]]), -INF)
    for logits in (random(2, 1003), causal, ties("ReLU zeros", 2, 9001)):
        check(logits, 500, select_topk(logits, 500))


# ---------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("logits", "k", "error", "message"),
    [
        ([[1.0]], 1, TypeError, "logits is a list; it must be a torch tensor"),
        (
            torch.zeros(2, 3, dtype=torch.float16),
            1,
            TypeError,
            "logits has dtype torch.float16; it must be torch.float32",
        ),
        (torch.zeros(3), 1, ValueError, r"logits has shape \[3\]; it must be \[S, T\]"),
        (torch.zeros(1, 2, 3), 1, ValueError, "logits has shape"),
        (torch.zeros(2, 3, device="meta"), 1, ValueError, "logits is on meta"),
        (torch.zeros(2, 3), 0, ValueError, "k is 0; it must be an integer from 1 to 2048"),
        (torch.zeros(2, 3), 2049, ValueError, "k is 2049; it must be an integer from 1 to 2048"),
        (torch.zeros(2, 3), 1.0, TypeError, "k is 1.0; it must be an integer"),
        (torch.zeros(2, 3), True, TypeError, "k is True; it must be an integer"),
    ],
)
def test_bad_input_is_named(logits, k, error, message):
    with pytest.raises(error, match=message):
        select_topk(logits, k)
