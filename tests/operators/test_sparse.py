"""sparse_attention and its kernels: right under every pattern, by every kernel, seen to be wrong when broken."""

import itertools
import re
from functools import partial
from zlib import crc32

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from course_utils import checks, measured, patterns, reference
from course_utils.cuda import read_kernel
from course_utils.emulator import sanitize
from course_utils.operators import (
    block_sparse_attention,
    choose_kernel,
    csr_attention,
    prepare,
    sparse,
    sparse_attention,
    sparse_choice,
    sparse_launch,
    sparse_work,
    tensor_core,
)
from course_utils.operators.attention import Call
from course_utils.patterns import BlockLists, Pattern, Ranges
from course_utils.toolchain import nvrtc
from course_utils.toolchain.source import compile_options
from tests.helpers import tensors

HALF, BF16 = torch.float16, torch.bfloat16
LENGTHS = (1, 63, 64, 65, 130)
UNEQUAL_LENGTHS = ((65, 130), (130, 65), (200, 3), (1, 200))  # in turn
AGAIN = pytest.mark.exhaustive("another pattern for the same kernel: `make test` has it at equal lengths")
PLANTED_ELSEWHERE = pytest.mark.exhaustive("`make test` has other mistakes in this kernel, and tests/mutants/")


random = partial(tensors.random, dtype=HALF)


@pytest.fixture(autouse=True)
def by_portable_kernels(monkeypatch):
    """What a Hopper GPU takes instead, test_sparse_hopper.py has."""
    monkeypatch.setattr(sparse_launch, "takes_wgmma", lambda _: False)


def rows_of_keys(query_length, key_length, seed=0):
    """CSR rows of random length, every third of them empty, one full."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(query_length, key_length, generator=generator) < torch.rand(query_length, 1, generator=generator)
    mask[::3] = False
    mask[query_length // 2] = True
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), mask.sum(dim=1).cumsum(0)])
    return indptr, mask.nonzero()[:, 1].int()


def some_tree(length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [-1] + [int(torch.randint(max(0, n - 9), n, (), generator=generator)) for n in range(1, length)]


def some_documents(length):
    ends = sorted({length // 3, length // 3 + 1, length // 2, length} - {0})
    return [end - start for start, end in itertools.pairwise([0, *ends])]


def strewn(b, h, i, j):
    return (7 * i + 3 * j) % 11 < 2


# Each by the numbers of queries and keys.
PATTERNS = {
    "causal": lambda n, m: patterns.causal(),
    "full": lambda n, m: patterns.full(),
    "window of 1": lambda n, m: patterns.sliding_window(1),
    "window of 64": lambda n, m: patterns.sliding_window(64),
    "window of L": lambda n, m: patterns.sliding_window(m),
    "window of more than L": lambda n, m: patterns.sliding_window(m + 7),
    "dilated": lambda n, m: patterns.dilated(5, 7),
    "dilated by more than L": lambda n, m: patterns.dilated(3, m + 1),
    "power of two": lambda n, m: patterns.power_of_two(),
    "strided": lambda n, m: patterns.strided(14),
    "fixed": lambda n, m: patterns.fixed(16, 3),
    "streaming": lambda n, m: patterns.streaming(4, 30),
    "tree": lambda n, m: patterns.tree(some_tree(m)),
    "local": lambda n, m: patterns.local(9),
    "block-diagonal": lambda n, m: patterns.block_diagonal(24),
    "documents": lambda n, m: patterns.document(some_documents(m)),
    "global tokens": lambda n, m: patterns.global_tokens([0, m // 2]),
    "random blocks": lambda n, m: patterns.random_blocks(32, 2, seed=3),
    "BigBird": lambda n, m: patterns.bigbird(block=16, global_blocks=1, seed=5),
    "a mask function": lambda n, m: patterns.from_mask_mod(strewn),
    "CSR": lambda n, m: patterns.from_csr(*rows_of_keys(n, m)),
    "Longformer": lambda n, m: patterns.local(9) | patterns.global_tokens([1]),
    "causal documents": lambda n, m: patterns.document(some_documents(m)) & patterns.causal(),
}
SPARSEST = "dilated by more than L"  # a tile for each query: seconds on the emulator
SAME_KERNEL = ("full", "window of 1", "window of L", "window of more than L", SPARSEST, "local", "Longformer")
RANGES = [name for name, make in PATTERNS.items() if make(65, 65).ranges]
KERNELS = ("range", "block_sparse 64", "block_sparse 128", "csr_gather")


def by_kernel(kernel, pattern):
    """The operator that takes one kernel for the pattern, called as check_case calls it."""

    def operator(query, key, value, **options):
        lengths, device = (query.shape[2], key.shape[2]), query.device
        if kernel == "range":
            return sparse.attend_masked(query, key, value, sparse_launch.RangeMask(pattern.ranges), **options)
        if kernel == "csr_gather":
            return csr_attention(query, key, value, *pattern.csr(*lengths, device=device), **options)
        lists = pattern.block_lists(*lengths, block=int(kernel.split()[1]), device=device)
        return block_sparse_attention(query, key, value, lists, **options)

    return operator


def make_case(n, lengths, **change):
    """A case whose head dimension, kind of input, heads, scale and strides follow from n."""
    values = {
        "batch": 1 + n % 2,
        "heads": 2,
        "kv_heads": 1 + (n // 2) % 2,
        "head_dim": (64, 128)[n // 3 % 2],
        "is_causal": False,
        "kind": checks.KINDS[n % len(checks.KINDS)],
        "scale": (None, None, 0.25)[n % 3],
        "strided": n % 7 == 3,
    }
    return checks.AttentionCase(query_length=lengths[0], key_length=lengths[1], **(values | change))


def check(pattern, case, *, device="cpu", dtype=HALF, gradients=False, kernel=None, seed=None):
    """sparse_attention, or one kernel, against float64 under the dense mask; raises AssertionError, as checks does."""
    operator = by_kernel(kernel, pattern) if kernel else partial(sparse_attention, pattern=pattern)
    mask = pattern.mask(case.query_length, case.key_length)
    if seed is None:  # other numbers in each test, the same in each run
        seed = crc32(f"{pattern.name} {kernel} {case} {dtype}".encode())
    options = {"device": device, "dtype": dtype, "gradients": gradients, "lse": True, "attn_mask": mask, "seed": seed}
    for report in checks.check_case(operator, case, **options):
        assert report.passed, (
            f"{pattern.name} by {kernel or 'sparse_attention'}, {case}, {dtype}, seed {seed}: {report}"
        )


# ---------------------------------------------------------------------------------------------- right


@pytest.mark.parametrize("name", PATTERNS)
def test_every_pattern_at_ragged_and_tiny_lengths(device, name, thinned):
    first = list(PATTERNS).index(name)
    turn = (first + 2) % 3
    for n, length in thinned([*enumerate(LENGTHS, start=first)], *((5, 1) if name == SPARSEST else (3, turn))):
        case, gradients = make_case(n, (length, length)), length == (65, 63, 64)[turn]
        check(PATTERNS[name](length, length), case, device=device, dtype=(HALF, BF16)[n % 2], gradients=gradients)


@pytest.mark.parametrize("name", [pytest.param(name, marks=AGAIN if name in SAME_KERNEL else ()) for name in PATTERNS])
def test_every_pattern_with_other_lengths_of_keys_than_of_queries(device, name, thinned):
    first = list(PATTERNS).index(name)
    for n, lengths in thinned([*enumerate(UNEQUAL_LENGTHS, start=first)], 4, first % 4):
        gradients = lengths == UNEQUAL_LENGTHS[first % 4]
        check(
            PATTERNS[name](*lengths),
            make_case(n, lengths),
            device=device,
            dtype=(BF16, HALF)[n % 2],
            gradients=gradients,
        )


@pytest.mark.exhaustive("`make test` has rows of 700 keys, split and merged; a GPU has length 1000 under every pattern")
@pytest.mark.parametrize("name", ["dilated", "BigBird", "streaming"])
def test_a_longer_sequence(device, name):
    on_gpu = device.type == "cuda"  # slow on the emulator
    case = make_case(0, (1000, 1000), batch=1, heads=1, kv_heads=1)
    check(PATTERNS[name](1000, 1000), case, device=device, gradients=on_gpu)


# Of range.cu a tile has 128 keys, or 64 for d = 128, and a warp 32 rows. Windows that hold whole tiles, or end in them.
@pytest.mark.parametrize(
    ("head_dim", "ranges"), [(64, (0, 199, 1)), (64, (140, 150, 1)), (128, (0, 99, 1)), (128, (0, 30, 80, 96))], ids=str
)
def test_ranges_that_hold_whole_tiles(device, head_dim, ranges):
    case = make_case(0, (330, 330), batch=1, heads=1, kv_heads=1, head_dim=head_dim)
    on_gpu = device.type == "cuda"  # slow on the emulator, where tests/kernels/test_sparse_backward.py has such ranges
    check(range_pattern(Ranges(*ranges)), case, device=device, kernel="range", gradients=on_gpu)


@pytest.mark.parametrize("name", ["window of 64", "dilated", "streaming", "block-diagonal"])
def test_each_kernel_gives_the_same_for_the_same_mask(device, name, thinned):
    lengths = (150, 131)
    chosen = ("window of 64", "dilated", "streaming", "block-diagonal").index(name)
    for n, kernel in thinned([*enumerate(KERNELS)], 4, chosen):
        case = make_case(n + 3 * len(name), lengths, kind="planted")
        check(PATTERNS[name](*lengths), case, device=device, kernel=kernel, gradients=kernel != "csr_gather")


@pytest.mark.parametrize(("n", "name"), [*enumerate(["CSR", "BigBird", "documents", "global tokens"])])
def test_lists_of_each_kind(device, n, name, thinned):
    lengths = (150, 150)
    case = make_case(len(name), lengths, kind="normal")
    for kernel in thinned(KERNELS[1:], 3, n % 3):
        check(PATTERNS[name](*lengths), case, device=device, kernel=kernel, gradients=kernel == "block_sparse 128")


def test_equal_blocks_are_dense_attention_on_a_view_of_the_same_memory(device, monkeypatch, thinned):
    launched = []

    def launch(call, *rest, dense_forward=sparse_launch.dense_forward):
        ready = dense_forward(call, *rest)

        def launch_ready(query, *others):
            launched.append((call.query_shape, query.data_ptr()))
            ready(query, *others)

        return launch_ready

    monkeypatch.setattr(sparse_launch, "dense_forward", launch)
    for head_dim in thinned([64, 128], 2):
        pattern, case = patterns.block_diagonal(128), make_case(1, (256, 256), kv_heads=2, head_dim=head_dim)
        check(pattern, case, device=device, dtype=(HALF, BF16)[head_dim // 128], gradients=True)
        query = random(2, 2, 256, head_dim).to(device)
        sparse_attention(query, query, query, pattern)
        assert {shape for shape, _ in launched} == {(4, 2, 128, head_dim)} and launched[-1][1] == query.data_ptr()
        launched.clear()


@pytest.mark.parametrize(("lengths", "kv_heads"), [((256, 256), 1), ((200, 200), 2), ((128, 256), 2), ((256, 128), 2)])
def test_blocks_that_are_no_view_go_to_the_range_kernel(device, lengths, kv_heads, monkeypatch):
    monkeypatch.setattr(sparse_launch, "dense_forward", None)
    case = make_case(0, lengths, batch=1, kv_heads=kv_heads, head_dim=64)
    check(patterns.block_diagonal(128), case, device=device, gradients=True)


@pytest.mark.gpu
@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("dtype", [HALF, BF16], ids=str)
def test_all_combinations_on_a_gpu(name, dtype):
    lengths = [(length, length) for length in (*LENGTHS, 1000)] + [*UNEQUAL_LENGTHS, (1000, 1500), (1500, 1000)]
    for n, (pair, head_dim) in enumerate(itertools.product(lengths, (64, 128))):
        pattern, kind = PATTERNS[name](*pair), checks.KINDS[n % len(checks.KINDS)]
        case = make_case(n, pair, heads=4, kv_heads=2, head_dim=head_dim, kind=kind)
        check(pattern, case, device="cuda", dtype=dtype, gradients=True)
        kernels = KERNELS if pattern.ranges else KERNELS[1:]
        kernel = kernels[n // 2 % len(kernels)]
        check(pattern, case, device="cuda", dtype=dtype, gradients=kernel != "csr_gather", kernel=kernel)


lengths_and_cases = st.tuples(st.integers(1, 140), st.integers(1, 140), st.integers(0, 1000))
bounds = st.integers(0, 150)
with_step = st.tuples(st.just(0), bounds, bounds, st.integers(1, 70), st.integers(1, 20))
with_sinks = st.tuples(bounds, bounds, bounds, st.just(1), st.just(1))


@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(numbers=with_step | with_sinks, chosen=lengths_and_cases)
def test_any_ranges(numbers, chosen):
    *lengths, n = chosen
    check(range_pattern(Ranges(*numbers)), make_case(n, lengths, batch=1), kernel="range", gradients=n % 2 == 0)


def range_pattern(ranges):
    """A pattern of these ranges, its mask written as the definition says."""
    sinks, left, right, step, dilation = ranges

    def mask_mod(b, h, i, j):
        base, j_class = i // dilation // step * step, j // dilation
        seen = ((base - left <= j_class) | (j_class < sinks)) & (j_class < base + right)
        return seen & ((i - j) % dilation == 0)

    pattern = patterns.from_mask_mod(mask_mod)
    pattern.ranges = ranges
    return pattern


@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(chosen=lengths_and_cases, density=st.sampled_from([0.0, 0.002, 0.05, 0.7, 1.0]))
def test_any_mask(chosen, density):
    *lengths, n = chosen
    mask = torch.rand(lengths, generator=torch.Generator().manual_seed(n)) < density
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), mask.sum(dim=1).cumsum(0)])
    pattern = patterns.from_csr(indptr, mask.nonzero()[:, 1].int())
    for kernel in (KERNELS[1 + n % 2], "csr_gather"):
        case = make_case(n, lengths, batch=1)
        check(pattern, case, kernel=kernel, gradients=kernel != "csr_gather" and n % 3 == 0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_head_dim_without_a_kernel_is_filled_up(device, kernel):
    case = make_case(0, (33, 70), head_dim=40)
    check(patterns.sliding_window(20), case, device=device, kernel=kernel, gradients=kernel != "csr_gather")


@pytest.mark.parametrize(("n", "kernel"), [*enumerate(KERNELS)])
def test_any_finite_scale(device, n, kernel, thinned):
    for scale in thinned([0.0, -0.3, 1e-46], 3, n % 3):
        case = make_case(0, (20, 30), head_dim=64, scale=scale)
        check(patterns.sliding_window(20), case, device=device, kernel=kernel, gradients=kernel != "csr_gather")


@pytest.mark.parametrize("kernel", KERNELS)
def test_rows_that_see_no_key_give_zero_and_minus_infinity_and_no_gradient(device, kernel):
    query, key, value = (random(1, 2, length, 64, device=device) for length in (150, 3, 3))
    if kernel != "csr_gather":
        query.requires_grad_()
    with checks.poisoned_outputs():
        out, lse = by_kernel(kernel, patterns.causal())(query, key, value, return_lse=True)
        assert (out[:, :, :147] == 0).all() and (lse[:, :, :147] == -torch.inf).all()
        assert (out[:, :, 147:] != 0).any() and lse[:, :, 147:].isfinite().all()
        if query.requires_grad:
            (grad,) = torch.autograd.grad(out.sum(), query)
            assert (grad[:, :, :147] == 0).all() and grad.isfinite().all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_row_with_nan_is_not_taken_for_one_without_keys(device, kernel):
    query, key, value = (random(1, 1, 40, 64, device=device, seed=s) for s in range(3))
    query[0, 0, 5, 3] = torch.nan
    out, lse = by_kernel(kernel, patterns.sliding_window(9))(query, key, value, return_lse=True)
    assert out[0, 0, 5].isnan().all() and lse[0, 0, 5].isnan()


def test_a_row_with_nan_stays_nan_when_it_is_split_and_merged(device, monkeypatch):
    monkeypatch.setattr(sparse_work, "SHORTEST_PART", 64)
    monkeypatch.setattr(sparse_work, "SLOTS", {64: 8})
    query, key, value = (random(1, 1, 300, 64, device=device, seed=s) for s in range(3))
    query[0, 0, 70, 3] = torch.nan
    out, lse = by_kernel("block_sparse 64", patterns.global_tokens([70]))(query, key, value, return_lse=True)
    assert out[0, 0, 70].isnan().all() and lse[0, 0, 70].isnan()
    assert out[0, 0, :70].isfinite().all() and lse[0, 0, 71:].isfinite().all()


@pytest.mark.parametrize("kernel", KERNELS[1:3])
def test_a_long_row_is_split_and_merged(device, kernel, monkeypatch):
    monkeypatch.setattr(sparse_work, "SHORTEST_PART", 128)
    monkeypatch.setattr(sparse_work, "SLOTS", {64: 8, 128: 8})
    pattern, length = patterns.local(3) | patterns.global_tokens([70]), 700
    lists = pattern.block_lists(length, block=int(kernel.split()[1]))
    work = sparse_work.work_items(lists, 1)
    assert work.parts > len(work.split_rows) > 0
    case = make_case(1, (length, length), batch=1, heads=1, kv_heads=1, kind="overflowing exp")
    check(pattern, case, device=device, kernel=kernel)


def test_smaller_tiles_are_correct(device, monkeypatch):
    monkeypatch.setattr(prepare, "shared_memory_limit", lambda device: 99 * 1024)  # of sm_86, 89 and 120
    for tiles in (
        sparse_launch.RANGE_TILES,
        sparse_launch.RANGE_BACKWARD_TILES,
        sparse_launch.BLOCK_TILES,
        sparse_launch.BLOCK_BACKWARD_TILES,
    ):
        fitting = {sizes: prepare.fitting(of_dim, device) for sizes, of_dim in tiles.items()}
        if tiles is sparse_launch.RANGE_BACKWARD_TILES:
            del fitting[tensor_core.WIDE]  # there is none
        assert all(tile.shared_bytes <= 99 * 1024 for tile in fitting.values())
    case = make_case(0, (130, 140), head_dim=128)
    for kernel in KERNELS[:3]:
        check(patterns.sliding_window(40), case, device=device, kernel=kernel, gradients=True)


def test_lse_is_not_differentiable_and_out_is_once():
    tensors = [random(1, 1, 5, 64, seed=s).requires_grad_() for s in range(3)]
    out, lse = sparse_attention(*tensors, patterns.sliding_window(2), return_lse=True)
    assert out.requires_grad and out.dtype == HALF
    assert not lse.requires_grad and lse.dtype == torch.float32 and lse.shape == (1, 1, 5)
    (first,) = torch.autograd.grad(out.sum(), tensors[0], create_graph=True)
    with pytest.raises(RuntimeError, match="is differentiable once"):
        first.sum().backward()


def test_the_forward_pass_gives_the_same_bits_in_every_run(device):
    tensors = [random(1, 2, 300, 64, device=device, seed=s) for s in range(3)]
    for name in ("streaming", "BigBird", "CSR"):
        pattern = PATTERNS[name](300, 300)
        assert torch.equal(sparse_attention(*tensors, pattern), sparse_attention(*tensors, pattern))


@pytest.mark.parametrize(
    ("kernel", "head_dim"),
    [
        pytest.param(kernel, d, marks=() if n % 2 == m else pytest.mark.exhaustive("another d; each kernel has one"))
        for n, kernel in enumerate(KERNELS)
        for m, d in enumerate((64, 128))
    ],
)
def test_the_sanitizer_finds_nothing(kernel, head_dim):
    query, key, value = (random(1, heads, length, head_dim) for heads, length in ((2, 70), (1, 150), (1, 150)))
    pattern = patterns.streaming(3, 50)
    if kernel != "csr_gather":
        query.requires_grad_()
    with sanitize() as report:
        out = by_kernel(kernel, pattern)(query, key, value, enable_gqa=True)
        if query.requires_grad:
            out.sum().backward()
    assert report.launches and not report.findings, str(report)


def test_the_sanitizer_finds_nothing_where_two_arrays_say_the_rows():
    query = random(1, 2, 70, 64).requires_grad_()
    key = random(1, 1, 150, 64)
    with sanitize() as report:
        out = sparse_attention(query, key, key, patterns.document([60, 90]) & patterns.causal(), enable_gqa=True)
        out.sum().backward()
    assert report.launches and not report.findings, str(report)


@pytest.mark.gpu
def test_memory_grows_with_the_length_and_not_with_its_square():
    length = 1 << 17
    tensors = [random(1, 1, length, 64, device="cuda", seed=s) for s in range(3)]
    for pattern in (patterns.sliding_window(1024), patterns.bigbird(), patterns.power_of_two()):
        sparse_attention(*tensors, pattern)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        sparse_attention(*tensors, pattern)
        assert torch.cuda.max_memory_allocated() - before < 200 << 20, pattern


@pytest.mark.gpu
def test_offsets_beyond_32_bits():
    free, _ = torch.cuda.mem_get_info()
    if free < 16 << 30:
        pytest.skip(f"needs 16 GiB of free GPU memory, {free >> 30} are")
    value = torch.zeros(129, 32, 4096, 128, device="cuda", dtype=HALF)
    value[-1, -1] = 3.0  # the last head starts beyond element 2^31
    key = torch.zeros_like(value)
    for kernel in KERNELS:
        out = by_kernel(kernel, patterns.local(5))(key[:, :, :64], key, value)
        torch.testing.assert_close(out[-1, -1], torch.full_like(out[-1, -1], 3.0))
        assert (out[0] == 0).all()


# ---------------------------------------------------------------------------------------------- which kernel


def thin():
    """About two keys per row of 1000."""
    return patterns.from_mask_mod(lambda b, h, i, j: (i * 37 + j * 11) % 499 == 0)


def test_the_choice_of_the_kernel_and_its_reason():
    assert choose_kernel(patterns.streaming(4, 100), 500).kernel == "range"
    blocks = patterns.block_diagonal(256)
    assert "2 blocks of 256" in choose_kernel(blocks, 512).why and choose_kernel(blocks, 512).kernel == "dense"
    assert choose_kernel(blocks, 512, grouped=True).kernel == choose_kernel(blocks, 500).kernel == "range"
    assert choose_kernel(blocks, 256, 512).kernel == choose_kernel(patterns.block_diagonal(64), 512).kernel == "range"
    documents = choose_kernel(patterns.document([300, 200]) & patterns.causal(), 500)
    assert documents.kernel == "range" and "two arrays" in documents.why
    assert "8 residue classes" in choose_kernel(patterns.dilated(5, 8), 500).why
    dense = choose_kernel(patterns.bigbird(), 500)
    assert dense.kernel == "block_sparse" and "% of the pairs" in dense.why
    strewn_thin = thin()
    assert choose_kernel(strewn_thin, 1000).kernel == "csr_gather"
    with_gradient = choose_kernel(strewn_thin, 1000, differentiable=True)
    assert with_gradient.kernel == "block_sparse" and "no backward pass" in with_gradient.why
    with pytest.raises(TypeError, match="pattern is a str"):
        choose_kernel("causal", 500)
    nothing = patterns.from_mask_mod(lambda b, h, i, j: (i < 0) & (j < 0))
    assert choose_kernel(nothing, 70).kernel == "block_sparse"


@pytest.mark.parametrize("pattern", [patterns.power_of_two(), patterns.strided(128)], ids=lambda pattern: pattern.name)
def test_what_the_choice_says_of_costs_was_recorded(pattern):
    rows = {row["name"]: row for row in measured.load("04_sparse_patterns").select(part="csr", pattern=pattern.name)}
    said = re.search(r"about ([\d.]+) times as much", choose_kernel(pattern, rows["csr_gather"]["length"]).why)
    recorded = rows["csr_gather"]["median_ms"] / rows["block_sparse"]["median_ms"]
    assert 0.8 < float(said[1]) / recorded < 1.25


def test_a_choice_is_for_the_lengths_of_the_pattern_only():
    with pytest.raises(ValueError, match="lengths has the sum 10; L_k is 20"):
        choose_kernel(patterns.document([10]), 20)
    with pytest.raises(ValueError, match="L_q is 0; it must be an integer from 1"):
        choose_kernel(patterns.causal(), 0)


def test_lists_larger_than_the_keys_are_not_built_to_choose(monkeypatch):
    monkeypatch.setattr(patterns.pattern, "build", None)
    assert choose_kernel(patterns.strided(100), 3000).kernel in ("csr_gather", "block_sparse")


def test_a_row_too_long_for_one_warp_goes_to_the_blocks(monkeypatch):
    monkeypatch.setattr(sparse_choice, "CSR_LONGEST", 400)
    one_row_sees_all = patterns.from_mask_mod(lambda b, h, i, j: (i == 77) | (j == 37 * i % 1000))
    chosen = choose_kernel(one_row_sees_all, 1000)
    assert chosen.kernel == "block_sparse" and "the work of one warp" in chosen.why


@pytest.mark.parametrize(
    ("pattern", "kernel", "options", "grid"),
    [
        (patterns.sliding_window(8), "range_forward", {"-DD=64", "-DDILATED=0"}, (8, 4, 2)),
        (patterns.dilated(8, 3), "range_forward", {"-DD=64", "-DDILATED=1"}, (9, 4, 2)),
        (patterns.causal() & patterns.document([500, 524]), "table_forward", {"-DD=64", "-DTABLE=1"}, (8, 4, 2)),
        (patterns.block_diagonal(128), "forward", {"-DD=64"}, (1, 8, 8)),
        (patterns.bigbird(), "block_sparse_forward", {"-DD=64", "-DBLOCK=64"}, (16, 4, 2)),
        (patterns.from_mask_mod(lambda b, h, i, j: j == 37 * i % 1024), "csr_gather", {"-DD=64"}, (256, 4, 2)),
    ],
    ids=["window", "dilated", "documents", "blocks", "BigBird", "keys"],
)
def test_kernel_options_and_grid_follow_from_shapes_alone(pattern, kernel, options, grid):
    """Nothing is launched, and there are no inputs."""
    shape = torch.Size((2, 4, 1024, 64))
    call = Call(shape, shape, BF16, torch.device("cpu"), 0.125)
    launch = sparse_launch.mask_of(pattern, call, False).forward(call)
    assert (launch.kernel.name, launch.grid) == (kernel, grid)
    assert options | {"-DBF16=1"} <= set(launch.kernel.module.options)


def test_the_operator_takes_the_kernel_of_its_choice(monkeypatch):
    taken, mask_of = [], sparse.mask_of

    def remember(*arguments):
        taken.append(type(mask := mask_of(*arguments)).__name__)
        return mask

    monkeypatch.setattr(sparse, "mask_of", remember)
    query = random(1, 1, 1000, 64)
    strewn_thin = thin()
    for pattern in (patterns.sliding_window(8), patterns.bigbird(), strewn_thin):
        sparse_attention(query, query, query, pattern)
    sparse_attention(query.requires_grad_(), query, query, strewn_thin)
    assert taken == ["RangeMask", "ListMask", "CsrMask", "ListMask"]


def test_a_second_call_builds_nothing(monkeypatch):
    query = random(1, 1, 1000, 64)
    for each in (thin(), patterns.bigbird()):
        sparse_attention(query, query, query, each)
        with monkeypatch.context() as patched:
            patched.setattr(sparse_launch, "work_items", None)
            patched.setattr(Pattern, "csr", None)
            patched.setattr(patterns.pattern, "build", None)
            sparse_attention(query, query, query, each)


def test_work_items_cover_each_entry_once_and_the_longest_come_first():
    lists = (patterns.bigbird() | patterns.global_tokens([5000])).block_lists(20_000)
    work = sparse_work.work_items(lists, 4)
    rows, starts, ends, parts = work.items.long().T
    assert (ends - starts).diff().le(0).all()
    entries = torch.cat([torch.arange(start, end) for start, end in zip(starts, ends, strict=True)])
    assert torch.equal(entries.sort().values, torch.arange(len(lists.indices)))
    assert set(rows.tolist()) == set(range(lists.rows))
    assert ((lists.indptr[rows] <= starts) & (ends <= lists.indptr[rows + 1])).all()
    assert sorted(parts[parts >= 0].tolist()) == list(range(work.parts)) and work.parts > 0
    for row, first, end, _ in work.split_rows.tolist():
        assert sorted(parts[rows == row].tolist()) == list(range(first, end))
    assert (ends - starts).max() <= lists.indptr.diff().max() / 4


@pytest.mark.parametrize("length", [1 << 13, 1 << 17])
def test_rows_of_about_the_same_length_stay_whole(length):
    indptr = torch.arange(length // 64 + 1, dtype=torch.int32) * 65
    entries = torch.empty(int(indptr[-1]), dtype=torch.int32)
    lists = BlockLists(64, length, length, indptr, entries, entries, torch.empty(0, 64, 2, dtype=torch.int32))
    assert sparse_work.work_items(lists, 16).parts == 0


# ---------------------------------------------------------------------------------------------- the kernels themselves


def tiles_of(tiles):
    return [tile for of_dim in tiles.values() for tile in of_dim]


@pytest.mark.parametrize(
    ("file", "tiles"),
    [
        ("range", tiles_of(sparse_launch.RANGE_TILES)),
        ("block_sparse", tiles_of(sparse_launch.BLOCK_TILES)),
        ("range_backward", tiles_of(sparse_launch.RANGE_BACKWARD_TILES)),
    ],
)
def test_shared_memory_is_what_the_kernels_lay_out_and_next_to_nothing_spills(file, tiles):
    for tile in tiles:
        code = read_kernel(f"{sparse_launch.FOLDER}/{file}.cu")
        code += f"\nstatic_assert(THREADS == {tile.threads} && sizeof(Tiles) == {tile.shared_bytes});\n"
        options = (*tile.options, "-DBF16=0", *(["-DDILATED=0"] if "range" in file else []))
        for found in nvrtc.compile_kernel(code, "sm_90", options).resources.values():
            if (file, tile.head_dim) != ("range_backward", tensor_core.WIDE):
                assert max(found.spill_stores, found.spill_loads) <= 32, f"{tile}: {found}"


def test_the_headers_list_the_tiles_in_use():
    tiles = {
        "range": [tile.options for tile in tiles_of(sparse_launch.RANGE_TILES)],
        "block_sparse": [tile.options for tile in tiles_of(sparse_launch.BLOCK_TILES)],
        "range_backward": [tile.options for tile in tiles_of(sparse_launch.RANGE_BACKWARD_TILES)],
        "block_sparse_backward": [
            (*tile.options, f"-DBLOCK={block}")
            for (_, block), of_block in sparse_launch.BLOCK_BACKWARD_TILES.items()
            for tile in of_block
        ],
        "csr_gather": [(f"-DD={head_dim}", f"-DWARPS={sparse_launch.CSR_WARPS}") for head_dim in tensor_core.HEAD_DIMS],
    }
    for file, of_file in tiles.items():
        header = compile_options(read_kernel(f"{sparse_launch.FOLDER}/{file}.cu"))
        listed = {
            frozenset(option for option in options if not option.startswith(("-DBF16", "-DDILATED", "-DTABLE")))
            for options in header
        }
        assert {frozenset(options) for options in of_file} <= listed, file


# ---------------------------------------------------------------------------------------------- broken kernels are seen


# Each mistake is met with one of these, which shows it.
SHOWS = {
    "a window": ((130, 150), patterns.sliding_window(40)),
    "blocks": ((70, 64), patterns.block_diagonal(24)),
    "steps": ((130, 150), patterns.dilated(9, 3)),
    "all": ((70, 64), patterns.full()),
    "a wide window": ((230, 230), patterns.sliding_window(200)),
    "sinks": ((130, 150), patterns.streaming(3, 40)),
}


def check_broken(kernel, shown_by, gradients=False):
    """With fixed inputs: what a mistake does to one key may be lost in rounding, by chance."""
    n, (lengths, pattern) = list(SHOWS).index(shown_by), SHOWS[shown_by]
    head_dim, kind = 128 if "128" in kernel else 64, ("planted", "overflowing exp")[n % 2]
    case = make_case(n, lengths, batch=1, heads=4, kv_heads=2, head_dim=head_dim, kind=kind)
    check(pattern, case, kernel=kernel, gradients=gradients, seed=n)


@pytest.mark.parametrize(
    ("kernel", "right", "wrong", "shown_by"),
    [
        ("range", "min(base + right, keys)", "min(base + right + 1, keys)", "sinks"),
        pytest.param(
            "range",
            "max(0, keys.start) / B_C, ",
            "(max(0, keys.start) + B_C - 1) / B_C, ",
            "a window",
            marks=PLANTED_ELSEWHERE,
        ),
        ("range", "(rest < 0 ? step : 0)", "0", "blocks"),
        pytest.param(
            "range", "(first % dilation + dilation) % dilation", "first % dilation", "steps", marks=PLANTED_ELSEWHERE
        ),
        ("range", "j0 < bottom.start &&", "j0 < top.start &&", "a wide window"),
        ("block_sparse 64", "if (mask >= 0) {", "if (false) {", "steps"),
        ("block_sparse 128", "* BLOCK + n % TILES * B_C) / 32", "* BLOCK) / 32", "a window"),
        ("csr_gather", "if (key < 0) s = NEG_INF;", "", "a window"),
        pytest.param("csr_gather", "m = m_new, l *= rescale;", "m = m_new;", "all", marks=PLANTED_ELSEWHERE),
        ("csr_gather", "m_new = fmaxf(m_new, __shfl_xor_sync(ALL, m_new, other));", ";", "blocks"),  # lanes disagree
        pytest.param(
            "csr_gather", "exp2f(s - (m == NEG_INF ? 0 : m))", "exp2f(s)", "a window", marks=PLANTED_ELSEWHERE
        ),
        ("csr_gather", "__shfl_sync(ALL, p, n, LANES)", "__shfl_sync(ALL, p, n)", "all"),
        pytest.param("csr_gather", "/ group;", "% (gridDim.y / group);", "blocks", marks=PLANTED_ELSEWHERE),
    ],
)
def test_a_broken_forward_kernel_fails_the_check(break_kernel, kernel, right, wrong, shown_by):
    break_kernel(f"{sparse_launch.FOLDER}/{kernel.split()[0]}.cu", right, wrong)
    with pytest.raises(AssertionError, match="WRONG"):
        check_broken(kernel, shown_by)


@pytest.mark.parametrize(
    ("kernel", "right", "wrong", "shown_by"),
    [
        ("range", "round_down(j + left, step) + step - of.shift", "round_down(j + left, step) - of.shift", "blocks"),
        pytest.param("range", "j < sinks ? of.queries : ", "", "sinks", marks=PLANTED_ELSEWHERE),
        pytest.param(
            "range",
            "min(i0 + B_R, end) > mine[KEYS].end",
            "i0 > mine[KEYS].end",
            "a wide window",
            marks=PLANTED_ELSEWHERE,
        ),
        ("block_sparse 64", "!DQ_PASS, partial >= 0", "!DQ_PASS, partial > 0", "blocks"),
        ("block_sparse 128", "* BLOCK + now.i0 % BLOCK;", "* BLOCK;", "blocks"),
    ],
)
def test_a_broken_backward_kernel_fails_the_check(break_kernel, kernel, right, wrong, shown_by):
    break_kernel(f"{sparse_launch.FOLDER}/{kernel.split()[0]}_backward.cu", right, wrong)
    with pytest.raises(AssertionError, match="d[qkv]: WRONG"):
        check_broken(kernel, shown_by, gradients=True)


@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        ("range", "Keys{starts[r], ends[r]}", "Keys{starts[r], ends[r] - 1}"),
        ("range_backward", "Rows{starts[j], ends[j]}", "Rows{starts[j] + 1, ends[j]}"),
    ],
)
def test_rows_of_documents_that_end_elsewhere_fail_the_check(break_kernel, file, right, wrong):
    break_kernel(f"{sparse_launch.FOLDER}/{file}.cu", right, wrong)
    case = make_case(0, (70, 70), batch=1, heads=1, kv_heads=1, kind="planted")
    with pytest.raises(AssertionError, match="WRONG"):
        check(patterns.document(some_documents(70)), case, gradients=True, seed=0)


def test_a_broken_merge_fails_the_check(break_kernel, monkeypatch):
    monkeypatch.setattr(sparse_work, "SHORTEST_PART", 64)
    monkeypatch.setattr(sparse_work, "SLOTS", {64: 8})
    break_kernel(f"{sparse_launch.FOLDER}/block_sparse.cu", "(LSE_parts[row_of(part)] - base) * LOG2_E", "0")
    case = make_case(0, (70, 300), batch=1, kind="planted")
    with pytest.raises(AssertionError, match="WRONG"):
        check(patterns.causal(), case, kernel="block_sparse 64")


# ---------------------------------------------------------------------------------------------- bad input


ZERO = torch.zeros(1, 2, 5, 4, dtype=HALF)
ELSEWHERE = BlockLists(64, 5, 5, *torch.empty(4, 2, dtype=torch.int32, device="meta"))
INDPTR, INDICES = torch.arange(6), torch.zeros(5, dtype=torch.int32)


@pytest.mark.parametrize(
    ("operator", "arguments", "error", "message"),
    [
        (sparse_attention, [torch.ones(5, 5)], TypeError, "pattern is a Tensor; it must be a Pattern.*from_mask_mod"),
        (sparse_attention, [None], TypeError, "pattern is a NoneType"),
        (block_sparse_attention, [patterns.causal()], TypeError, "block_lists is a Pattern; it must be a BlockLists"),
        (
            block_sparse_attention,
            [patterns.causal().block_lists(5, 6)],
            ValueError,
            "block_lists has L_q 5 and L_k 6; they must be those of query and key, 5 and 5",
        ),
        (
            block_sparse_attention,
            [ELSEWHERE],
            ValueError,
            "block_lists is on meta",
        ),
        (csr_attention, [[0], INDICES], TypeError, "indptr is a list"),
        (csr_attention, [INDPTR.int(), INDICES], TypeError, "indptr is torch.int32"),
        (csr_attention, [INDPTR, INDICES.long()], TypeError, "indices is torch.int64"),
        (csr_attention, [INDPTR[:-1], INDICES], ValueError, "indptr has 5 elements; it must have L_q . 1 = 6"),
        (csr_attention, [INDPTR, INDICES[:-1]], ValueError, "indptr must ascend from 0 to the number of indices, 4"),
        (csr_attention, [INDPTR, INDICES + 5], ValueError, "indices goes from 5 to 5.*less than L_k = 5"),
        (csr_attention, [INDPTR, INDICES - 1], ValueError, "indices goes from -1 to -1"),
    ],
)
def test_bad_masks_are_named(operator, arguments, error, message):
    with pytest.raises(error, match=message):
        operator(ZERO, ZERO, ZERO, *arguments)


def test_csr_attention_has_no_gradient_and_says_so():
    query = ZERO.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="csr_attention has no backward pass"):
        csr_attention(query, ZERO, ZERO, INDPTR, INDICES)
    with torch.no_grad():
        csr_attention(query, ZERO, ZERO, INDPTR, INDICES)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"query": ZERO[0]}, ValueError, r"query has shape \[2, 5, 4\]"),
        ({"key": ZERO.float()}, TypeError, "key has dtype torch.float32"),
        ({"key": ZERO[:, :1], "value": ZERO[:, :1]}, ValueError, "key has 1 heads and query 2.*enable_gqa=True"),
        ({"scale": float("inf")}, ValueError, "scale is inf"),
        (
            dict.fromkeys(("query", "key", "value"), torch.zeros(1, 2, 5, 257, dtype=HALF)),
            ValueError,
            "query has head dimension 257; it must be at most 256",
        ),
    ],
)
def test_bad_tensors_are_named(change, error, message):
    arguments = dict.fromkeys(("query", "key", "value"), ZERO) | change
    with pytest.raises(error, match=message):
        sparse_attention(**arguments, pattern=patterns.causal())


def test_the_reference_is_the_dense_mask():
    query, key, value = (random(1, 2, length, 8, dtype=torch.float64) for length in (5, 9, 9))
    pattern = patterns.sliding_window(3)
    scores = (query @ key.mT * 8**-0.5).masked_fill(~pattern.mask(5, 9), -torch.inf)
    out, lse = reference.sparse_attention(query, key, value, pattern, return_lse=True)
    torch.testing.assert_close(out, scores.softmax(-1) @ value)
    torch.testing.assert_close(lse, scores.logsumexp(-1))


def test_lists_given_call_by_call_are_cast_by_autocast_too(device):
    query, key, value = (random(1, 2, 65, 64, seed=n).float().to(device) for n in range(3))
    pattern = patterns.sliding_window(9)
    lists, rows = pattern.block_lists(65, 65, device=device), pattern.csr(65, 65, device=device)
    with torch.autocast(device.type, HALF):
        by_lists, by_rows = block_sparse_attention(query, key, value, lists), csr_attention(query, key, value, *rows)
    halves = query.half(), key.half(), value.half()
    assert torch.equal(by_lists, block_sparse_attention(*halves, lists))
    assert torch.equal(by_rows, csr_attention(*halves, *rows))
