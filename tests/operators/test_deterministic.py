"""Told to be deterministic, attention under a pattern and of packed sequences takes no atomics: dQ comes from a second
pass, gradients are right, every run gives the same bits, and mistakes in that pass are seen."""

import functools
import zlib

import pytest
import torch

from course_utils import checks, patterns
from course_utils.emulator import configure, profile, sanitize
from course_utils.operators import flash_attention_v2, sparse_attention, sparse_launch, varlen, varlen_attention
from tests.helpers.deterministic import told_to_be_deterministic
from tests.helpers.one_of_each import all_on_a_gpu, every_second
from tests.helpers.tensors import random

HALF, BF16 = torch.float16, torch.bfloat16
RANGES, LISTS = "04_sparse_patterns/range_backward.cu", "04_sparse_patterns/block_sparse_backward.cu"
# by each kernel: numbers, also dilated, a table, lists of blocks, and blocks as dense sequences
PATTERNS = {
    "a window": patterns.sliding_window(33),
    "sinks and a window": patterns.streaming(4, 30),
    "more than a tile of sinks": patterns.streaming(70, 20),
    "full": patterns.full(),
    "dilated": patterns.dilated(9, 2),
    "blocks of 24": patterns.block_diagonal(24),
    "documents": patterns.document([60, 17, 83]) & patterns.causal(),
    "BigBird": patterns.bigbird(block=16, global_blocks=1, seed=5),
    "powers of two": patterns.power_of_two(),
}
EQUAL_BLOCKS = patterns.block_diagonal(128)
CU_SEQ = torch.tensor([[0, 30, 30, 100, 137], [0, 30, 40, 110, 160]], dtype=torch.int32)


@pytest.fixture(autouse=True)
def by_portable_kernels(monkeypatch):
    """Where kernels for Hopper take turns instead, test_sparse_hopper_backward.py has them."""
    for module in (sparse_launch, varlen):
        monkeypatch.setattr(module, "takes_wgmma", lambda _: False)


@pytest.fixture(autouse=True)
def deterministic():
    with told_to_be_deterministic():
        yield


def under(pattern, query, key, value, **options):
    return sparse_attention(query, key, value, pattern, **options)


def packed(query, key, value, **options):
    """varlen_attention of one batch."""
    heads_last = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    out = varlen_attention(*heads_last, *CU_SEQ.to(query.device), is_causal=True, **options)
    return out.transpose(0, 1)[None]


def case_of(lengths, n=0, **change):
    """A case whose heads, width and inputs follow from n."""
    values = {
        "batch": 1 + n % 2,
        "heads": 4,
        "kv_heads": (4, 2)[n % 2],
        "head_dim": (64, 128)[n // 2 % 2],
        "kind": checks.KINDS[n % len(checks.KINDS)],
        "scale": (None, 0.25)[n % 2],
    }
    return checks.AttentionCase(query_length=lengths[0], key_length=lengths[1], is_causal=False, **(values | change))


def check(pattern, case, dtype=HALF, device="cpu"):
    mask = pattern.mask(case.query_length, case.key_length)
    seed = zlib.crc32(f"{pattern.name} {case}".encode())
    options = {"dtype": dtype, "device": device, "gradients": True, "attn_mask": mask, "seed": seed}
    for report in checks.check_case(functools.partial(under, pattern), case, **options):
        assert report.passed, f"{pattern.name}, {case}, {dtype}: {report}"


@pytest.mark.parametrize("name", PATTERNS)
def test_gradients_are_right(name, device, thinned):
    n = list(PATTERNS).index(name)
    cases = list(enumerate([(130, 160), (150, 70), (1, 160), (200, 160)][n % 2 :: 2]))
    for m, lengths in thinned(cases, 2, n // 2 % 2):
        check(PATTERNS[name], case_of(lengths, n + 3 * m), (HALF, BF16)[(n + m) % 2], device)


def test_gradients_of_blocks_as_dense_sequences(device):
    check(EQUAL_BLOCKS, case_of((256, 256)), device=device)


def test_gradients_of_wide_heads_are_right(device):
    check(PATTERNS["a window"], case_of((130, 150), head_dim=256), BF16, device)


# ---------------------------------------------------------------------------------------------- the same bits

WAYS = {name: functools.partial(under, pattern) for name, pattern in PATTERNS.items()} | {
    "equal blocks": functools.partial(under, EQUAL_BLOCKS),
    "a window, sinks and a softcap": functools.partial(flash_attention_v2, window=33, softcap=4.0),
    "lists, sinks and a softcap": functools.partial(under, PATTERNS["BigBird"], softcap=4.0),
    "packed sequences": packed,
}


LENGTHS = {"equal blocks": (256, 256), "packed sequences": (137, 160)}


def gradients(way, device):
    query_length, key_length = LENGTHS.get(way, (160, 160))
    inputs = [
        random(1, 2, length, 64, dtype=HALF, device=device, seed=seed).requires_grad_()
        for seed, length in enumerate((query_length, key_length, key_length))
    ]
    sinks = {"sinks": torch.tensor([1.0, -1.0], device=device)} if "softcap" in way else {}
    return torch.autograd.grad(WAYS[way](*inputs, **sinks).square().sum(), inputs)


OPTIONS = "a window, sinks and a softcap", "lists, sinks and a softcap"
RUN_AGAIN = "dilated", "documents", "equal blocks", "packed sequences", *OPTIONS


@all_on_a_gpu(
    "way",
    zip(WAYS),
    RUN_AGAIN.__contains__,
    "`make test` runs each kernel again, under other patterns; that no way takes atomics is tested below",
)
def test_every_run_gives_the_same_bits(way, device):
    first = gradients(way, device)
    for n in range(6):  # each number of threads in each order
        with configure(threads=1 + n % 3, thread_order=("reverse", "random")[n % 2], seed=n):
            assert all(map(torch.equal, first, gradients(way, device)))


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_added_by_atomics_and_the_sanitizer_finds_nothing(way):
    with profile() as counters, sanitize() as report:
        gradients(way, "cpu")
    assert counters.rows and not [row for row in counters.rows if row.operation == "atomic"]
    assert not report.findings, str(report)


def test_without_the_switch_there_are_atomics():
    torch.set_deterministic_debug_mode("default")
    with profile() as counters:
        gradients("BigBird", "cpu")
    assert [row for row in counters.rows if row.operation == "atomic"]


# ---------------------------------------------------------------------------------------------- broken kernels


@pytest.mark.parametrize(
    ("file", "make", "right", "wrong"),
    every_second(
        [
            (RANGES, lambda: patterns.streaming(4, 30), "return j0 < sinks ? j0 : max", "return max"),
            (RANGES, lambda: patterns.causal(), "j0 + KEY_TILE > top.end ||", "j0 + KEY_TILE > bottom.end ||"),
            (
                RANGES,
                lambda: patterns.streaming(4, 30),
                "keys.end & (j >= keys.start | j < sinks)",
                "keys.end & j >= keys.start",
            ),
            (RANGES, lambda: patterns.dilated(9, 2), "LSE[i * (pitch / D)] * LOG2_E", "LSE[i] * LOG2_E"),
            (RANGES, lambda: patterns.dilated(9, 2), "dQ + (long long)i * pitch", "dQ + (long long)i * D"),
            (
                RANGES,
                lambda: patterns.document([60, 90]),
                "const int r = min(row, L_q - 1);",
                "const int r = min(row + 1, L_q - 1);",
            ),
            (LISTS, lambda: patterns.power_of_two(), "bits + bits_row * WORDS + n % TILES * KEY_TILE / 32;", "bits;"),
            (LISTS, lambda: patterns.power_of_two(), "n < end; n++", "n < end - 1; n++"),
            (
                LISTS,
                lambda: patterns.power_of_two(),
                "words[query * WORDS + key / 32] >> key",
                "words[query * WORDS] >> key",
            ),
            (LISTS, lambda: patterns.power_of_two(), "- queries.delta[query / 8]);", ");"),
        ]
    ),
)
def test_a_broken_pass_is_seen(break_kernel, file, make, right, wrong):
    """make: a pattern that is kept has its launches, of the kernel as it was."""
    break_kernel(file, right, wrong)
    with pytest.raises(AssertionError, match="dq: WRONG"):
        check(make(), case_of((130, 150)))
