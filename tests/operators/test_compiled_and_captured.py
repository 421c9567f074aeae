"""The cases that every operator is held to, by torch.compile, in one graph for all lengths, and by a CUDA graph that is
replayed."""

from functools import partial

import pytest
import torch
from torch._dynamo import config

from course_utils import checks, patterns
from course_utils.operators import flash_attention_minimal, flash_attention_v2, sparse_attention
from tests.helpers.graphs import compiled, replayed

CASES = [
    checks.AttentionCase(1, 2, 1, *lengths, 64, n % 2 > 0, checks.KINDS[n % len(checks.KINDS)], strided=n % 4 == 1)
    for n, lengths in enumerate([*((length, length) for length in checks.LENGTHS), *checks.UNEQUAL_LENGTHS])
]
IN_FP32 = [checks.AttentionCase(1, 1, 1, *lengths, 64, True, "planted") for lengths in ((65, 113), (113, 65))]
# By the number of keys.
PATTERNS = {
    "ranges": lambda length: patterns.sliding_window(40),
    "lists": lambda length: patterns.streaming(4, 30) | patterns.global_tokens([5]),
    "rows": lambda length: patterns.causal() & patterns.document([(length + 1) // 2, length // 2][:length]),
}


def check(attend, cases, device, *, gradients, dtype=torch.float16):
    checks.check_attention(attend, device=device, dtype=dtype, gradients=gradients, lse=True, cases=cases, seed=0)


def check_sparse(attend, name, cases, device, *, gradients):
    for seed, case in enumerate(cases):
        lengths = case.query_length, case.key_length
        pattern = PATTERNS[name](case.key_length)
        options = {"device": device, "dtype": torch.float16, "gradients": gradients, "lse": True, "seed": seed}
        for report in checks.check_case(
            partial(attend, pattern=pattern), case, attn_mask=pattern.mask(*lengths), **options
        ):
            assert report.passed, f"{name}, {case}, seed {seed}: {report}"


@pytest.fixture
def graphs_of_flags():
    """A length of 1, a flag and strides may have a graph of their own."""
    torch.compiler.reset()
    with config.patch(recompile_limit=32):
        yield
    torch.compiler.reset()


def test_flash_attention_v2_compiled(device, thinned, graphs_of_flags):
    check(compiled(flash_attention_v2), thinned(CASES, 8, 4), device, gradients=True)


def test_flash_attention_minimal_compiled(device, thinned, graphs_of_flags):
    check(compiled(flash_attention_minimal), thinned(IN_FP32, 2), device, gradients=True, dtype=torch.float32)


def test_sparse_attention_compiled(device, thinned, graphs_of_flags):
    """On the emulator by lists; test_torch_features.py has the other patterns, at one length."""
    for name in thinned([*PATTERNS], 3, 1):
        check_sparse(compiled(sparse_attention), name, thinned(CASES, 8, 4), device, gradients=True)


@pytest.mark.gpu
def test_flash_attention_v2_captured():
    check(replayed(flash_attention_v2), CASES, "cuda", gradients=False)


@pytest.mark.gpu
def test_flash_attention_minimal_captured():
    check(replayed(flash_attention_minimal), IN_FP32, "cuda", gradients=False, dtype=torch.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("name", PATTERNS)
def test_sparse_attention_captured(name):
    check_sparse(replayed(sparse_attention), name, CASES, "cuda", gradients=False)
