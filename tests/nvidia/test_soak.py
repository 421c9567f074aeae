"""What the soaks launch and count, and what their records say."""

from collections import defaultdict

import pytest
import torch

from course_utils import measured
from course_utils.checks import AttentionCase
from course_utils.operators import sparse_launch
from course_utils.operators.hopper_launch import E4M3
from course_utils.operators.tensor_core import DTYPES, HEAD_DIMS
from tests.nvidia.soak import dense, fewest_items, soak, sparse

MULTIPROCESSORS = 132  # of an H100 or H200


def with_many_items(cases):
    return len([case for case in cases if fewest_items(case) > MULTIPROCESSORS]) / len(cases)


def test_most_dense_launches_in_each_dtype_give_blocks_a_second_item():
    of_dtype = defaultdict(list)
    for case, dtype in dense.cases():
        of_dtype[dtype].append(case)
    assert {dtype: len(of) for dtype, of in of_dtype.items()} == {torch.float16: 20, torch.bfloat16: 10, E4M3: 10}
    for dtype, found in of_dtype.items():
        assert with_many_items(found) >= 0.6, dtype
        kinds = {(case.is_causal, case.heads != case.kv_heads, case.head_dim) for case in found}
        assert len(kinds) == 8, dtype


def test_sparse_launches_have_every_pattern_dtype_and_kind_of_heads():
    found = sparse.cases()
    under_ranges = [one for one in found if one.kernels == sparse.RANGES]
    kinds = {(one.case.head_dim, one.dtype, one.case.heads != one.case.kv_heads) for one in under_ranges}
    assert len(kinds) == 8
    for kernels, head_dims in (
        *((kernels, set(HEAD_DIMS)) for kernels in (sparse.RANGES, sparse.DENSE)),
        *((sparse.PORTABLE_LISTS, {64}), (sparse.LISTS, {128}), (sparse.SPLIT_LISTS, {128})),
    ):
        of = [one for one in found if one.kernels == kernels]
        assert {one.dtype for one in of} == set(DTYPES) and {one.case.head_dim for one in of} == head_dims
    assert with_many_items([one.case for one in found]) >= 0.6
    lengths = {(one.case.query_length, one.case.key_length) for one in found}
    assert lengths == {*sparse.RAGGED, *sparse.EVEN, *sparse.LONG, *sparse.WHOLE}


@pytest.fixture
def as_on_a_hopper(monkeypatch):
    monkeypatch.setattr(sparse_launch, "takes_wgmma", lambda _: True)


def test_every_sparse_call_launches_the_kernels_that_its_case_names(as_on_a_hopper, monkeypatch):
    def empty_inputs(case, *, dtype, **_):
        query = torch.empty(case.batch, case.heads, case.query_length, case.head_dim, dtype=dtype)
        key = torch.empty(case.batch, case.kv_heads, case.key_length, case.head_dim, dtype=dtype)
        return query, key, key.clone(), query.clone()

    monkeypatch.setattr(sparse, "make_inputs", empty_inputs)
    found = [(one, sparse.chosen_kernels(one, sparse.launch_of(one, "cpu"))) for one in sparse.cases()]
    cut = [one for one, kernels in found if "merge_gradients" in {kernel.name for kernel in kernels}]
    assert any(one.kernels == sparse.RANGES for one in cut) and len(cut) < len(found)
    options = {option for _, kernels in found for kernel in kernels for option in kernel.module.options}
    assert {"-DCONSUMERS=2", "-DCONSUMERS=3", "-DTURNS=1"} <= options and "-DTURNS=0" not in options


def test_another_kernel_than_hoppers_is_an_error():
    one = sparse.cases()[0]
    with pytest.raises(AssertionError, match=r"launches .*/range.cu.* instead of .*range_hopper.cu"):
        sparse.chosen_kernels(one, sparse.launch_of(one, "cpu"))


SMALL = [
    (AttentionCase(1, 2, 1, 17, 127, 64, True, "planted"), torch.float16),
    (AttentionCase(1, 1, 1, 1, 65, 64, False, "planted"), E4M3),
]
SMALL_SPARSE = sparse.SparseCase(
    sparse.patterns.streaming(3, 20),
    AttentionCase(1, 2, 1, 17, 70, 64, False, "planted"),
    torch.bfloat16,
    sparse.RANGES,
)


def test_a_launch_that_differs_in_one_bit_is_counted(monkeypatch):
    operator, calls = dense.flash_attention_hopper, []

    def differs_once(*inputs, **options):
        out, lse = operator(*inputs, **options)
        calls.append(inputs[0].dtype)
        if len(calls) == 5:
            out.view(torch.uint8).view(-1)[0] ^= 1
        return out, lse

    monkeypatch.setattr(dense, "flash_attention_hopper", differs_once)
    rows = soak(4, [dense.ready(*one, "cpu") for one in SMALL])
    assert len(calls) == len(SMALL) + 4 and sum(row["launches"] for row in rows) == 4
    assert {row["dtype"]: row["differ"] for row in rows if row["differ"]} == {str(calls[4]).removeprefix("torch."): 1}


@pytest.mark.parametrize("which", range(5), ids=["out", "lse", "dq", "dk", "dv"])
def test_a_sparse_launch_that_differs_in_one_bit_is_counted(as_on_a_hopper, which):
    first = tuple(torch.ones(2, 3) for _ in range(5))
    results = iter(
        [first, first, (*first[:which], torch.nextafter(first[which], first[which] + 1), *first[which + 1 :])]
    )
    (row,) = soak(3, [sparse.Shape({}, lambda: next(results), first)])
    assert row == {"launches": 3, "differ": 1}


def test_a_sparse_launch_is_compared_with_float64_and_gives_the_same_bits_again(as_on_a_hopper, monkeypatch):
    monkeypatch.setattr(sparse, "cases", lambda: [SMALL_SPARSE])
    (row,) = soak(1, sparse.shapes("cpu"))
    assert (row["pattern"], row["dtype"], row["query"]) == ("streaming(sinks=3, window=20)", "bfloat16", [1, 2, 17, 64])
    assert (row["kernels"], row["launches"], row["differ"]) == (sorted(sparse.RANGES), 1, 0)


def test_a_first_launch_that_is_wrong_is_an_error(monkeypatch):
    operator = dense.flash_attention_hopper

    def wrong(*inputs, **options):
        out, lse = operator(*inputs, **options)
        return out + 1, lse

    monkeypatch.setattr(dense, "flash_attention_hopper", wrong)
    with pytest.raises(AssertionError, match="L_q=17 L_k=127 .* torch.float16: out: WRONG"):
        dense.ready(*SMALL[0], "cpu")


def test_a_first_sparse_launch_with_a_wrong_result_is_an_error(as_on_a_hopper):
    right = sparse.launch_of(SMALL_SPARSE, "cpu")()
    for n, name in enumerate(("out", "lse", "dq", "dk", "dv")):
        wrong = *right[:n], right[n] + 1, *right[n + 1 :]
        with pytest.raises(AssertionError, match=f"streaming.*, .* torch.bfloat16: {name}: WRONG"):
            sparse.ready(SMALL_SPARSE, lambda wrong=wrong: wrong)


def test_of_the_recorded_dense_launches_none_differs():
    found = measured.load(dense.RECORD)
    assert found.command == dense.COMMAND and found.device in ("NVIDIA H200", "NVIDIA H100 80GB HBM3")
    assert [(row["query"], row["key"], row["is_causal"], row["dtype"]) for row in found.rows] == [
        (
            [case.batch, case.heads, case.query_length, case.head_dim],
            [case.batch, case.kv_heads, case.key_length, case.head_dim],
            case.is_causal,
            str(dtype).removeprefix("torch."),
        )
        for case, dtype in dense.cases()
    ]
    assert sum(row["launches"] for row in found.rows) == 100_000 and min(row["launches"] for row in found.rows) > 2000
    assert not any(row["differ"] for row in found.rows)


def test_of_the_recorded_sparse_launches_none_differs():
    found = measured.load(sparse.RECORD)
    assert found.command == sparse.COMMAND and found.device in ("NVIDIA H200", "NVIDIA H100 80GB HBM3")
    assert [(row["pattern"], row["query"], row["key"], row["dtype"], row["kernels"]) for row in found.rows] == [
        (
            one.pattern.name,
            [one.case.batch, one.case.heads, one.case.query_length, one.case.head_dim],
            [one.case.batch, one.case.kv_heads, one.case.key_length, one.case.head_dim],
            str(one.dtype).removeprefix("torch."),
            sorted(one.kernels),
        )
        for one in sparse.cases()
    ]
    assert sum(row["launches"] for row in found.rows) == 10_000 and min(row["launches"] for row in found.rows) > 150
    assert not any(row["differ"] for row in found.rows)
