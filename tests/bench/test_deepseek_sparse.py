"""The benchmarks of chapter 05: on the emulator, that each calls what it says it times, and times nothing wrong."""

import functools
import json

import pytest
import torch

from course_utils import costs, reference
from course_utils.bench import deepseek_sparse as chapter
from course_utils.bench.deepseek_sparse import (
    BACKWARD,
    CORE,
    CORE_PORTABLE,
    CORE_TORCH,
    DENSE,
    DENSE_LAYER,
    DENSE_MHA,
    DENSE_PORTABLE,
    INDEX_VECTORS,
    INDEXER,
    INDEXER_FP8,
    INDEXER_FP8_PORTABLE,
    INDEXER_TORCH,
    PRODUCTS_TORCH,
    SPARSE_LAYER,
    STEP,
    STEP_BF16,
    TOPK,
    TOPK_TORCH,
    TOPK_UNSORTED,
    UNPACKING,
)
from course_utils.costs import DeepSeekDims
from course_utils.operators import DeepSeekConfig, mla
from tests.helpers.rows import named

SMALL = DeepSeekDims(
    n_heads=3, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=64, v_head_dim=32, index_n_heads=3
)


# ---------------------------------------------------------------------------------------------- the parts


def test_a_step_is_timed_whole_and_in_parts_beside_dense_mla(one_run_each):
    rows = chapter.step(device="cpu", queries=5, lengths=(40,), top_k=16, config=SMALL)
    names = [STEP, STEP_BF16, INDEXER_FP8, INDEXER, TOPK, CORE, DENSE, DENSE_MHA, UNPACKING]
    assert [row["name"] for row in rows] == names
    pairs = 36 + 37 + 38 + 39 + 40
    assert named(rows, DENSE)["gflop"] == pytest.approx(pairs * 2 * (128 + 64) * 3 / 1e9)
    assert named(rows, CORE)["gflop"] == pytest.approx(5 * 16 * 2 * (128 + 64) * 3 / 1e9)
    assert named(rows, INDEXER)["gflop"] == pytest.approx(pairs * 2 * 128 * 3 / 1e9)
    assert named(rows, STEP)["gflop"] == pytest.approx(named(rows, INDEXER)["gflop"] + named(rows, CORE)["gflop"])
    assert named(rows, DENSE_MHA)["gflop"] == pytest.approx(pairs * 2 * (96 + 32) * 3 / 1e9)
    assert named(rows, UNPACKING)["gflop"] == pytest.approx(40 * 2 * 64 * (32 + 32) * 3 / 1e9)
    assert "gflop" not in named(rows, TOPK) and named(rows, STEP)["ratio_to_dense"] == 1
    assert named(rows, STEP)["ratio_to_mha"] == 1
    assert {row["panel"] for row in rows if row["name"] in (STEP, DENSE, DENSE_MHA)} == {"whole attention"}
    assert {row["panel"] for row in rows if row["name"] in (TOPK, CORE)} == {"kernels of DSA"}
    json.dumps(rows)


@pytest.mark.parametrize("keys", [5, 12])
def test_two_passes_without_a_bottom_right_mask_are_merged_to_causal_attention(keys):
    query, key, value = (torch.randn(1, 3, n, 16) for n in (5, keys, keys))
    calls = []

    def attention(query, key, value, is_causal):  # as cuDNN's: its causal mask is that of a square
        calls.append((key.shape[2], is_causal))
        assert not is_causal or query.shape[2] == key.shape[2]
        return (x.float() for x in reference.attention(query, key, value, is_causal=is_causal, return_lse=True))

    merged = chapter.merged_attention(query, key, value, attention)
    expected = reference.attention(query, key, value, is_causal=True)
    torch.testing.assert_close(merged.double(), expected, atol=1e-6, rtol=1e-5)
    assert sum(pairs for pairs, _ in calls) == keys and [True] == [causal for _, causal in calls if causal]
    chapter.require_mha("merged", merged, query, key, value)
    with pytest.raises(RuntimeError, match="wrong is off"):
        chapter.require_mha("wrong", merged.roll(1, dims=2), query, key, value)


def test_torch_compiles_its_work_on_a_chunk_and_computes_the_same(monkeypatch):
    made = []
    monkeypatch.setattr(torch, "compile", lambda function, **options: made.append(function) or function)
    query, latent, weights = torch.randn(6, 3, 64), torch.randn(20, 64), torch.randn(6, 3)
    in_torch = functools.partial(chapter.torch_indexer, query, latent, weights)
    (compiled,) = chapter._compiled("compiled", in_torch, chapter.fused_scores, "cuda").values()
    torch.testing.assert_close(compiled(), in_torch())
    assert made == [chapter.fused_scores] and not chapter._compiled("", in_torch, chapter.fused_scores, "cpu")


def test_where_there_is_a_hopper_kernel_the_portable_one_is_timed_too(one_run_each, monkeypatch):
    asked = []

    def forward(kernel):
        def run(*tensors, hopper=None, **options):
            asked.append(hopper)
            return kernel(*tensors, hopper=False, **options)

        return run

    for module, name in ((mla, "sparse_forward"), (mla, "dense_forward"), (chapter, "indexer_forward")):
        monkeypatch.setattr(module, name, forward(getattr(module, name)))
    monkeypatch.setattr(chapter, "takes_wgmma", lambda device: True)
    rows = chapter.step(device="cpu", queries=3, lengths=(20,), top_k=8, config=SMALL)
    names = {CORE, CORE_PORTABLE, DENSE, DENSE_PORTABLE, INDEXER_FP8, INDEXER_FP8_PORTABLE}
    assert names < {row["name"] for row in rows}
    assert {None, False} == set(asked)


def test_the_core_is_timed_beside_torch_at_the_pairs_that_it_has(one_run_each):
    rows = chapter.core(device="cpu", shapes=((6, 40, 16), (9, 9, 8)), config=SMALL)
    assert [(row["length"], row["name"]) for row in rows] == [
        (length, name) for length in (40, 9) for name in (CORE, CORE_TORCH)
    ]
    assert rows[0]["gflop"] == pytest.approx(6 * 16 * 2 * (128 + 64) * 3 / 1e9)
    assert rows[2]["gflop"] == pytest.approx(costs.sparse_mla_flops(9, 9, 8, config=SMALL) / 1e9)
    assert rows[0]["tflop_per_s"] == pytest.approx(rows[0]["gflop"] / 2) and rows[0]["heads"] == 3


def test_the_backward_pass_is_timed_once_its_gradients_are_right(one_run_each, monkeypatch):
    shapes = ((5, 40, 16),)
    rows = chapter.backward(device="cpu", shapes=shapes, config=SMALL)
    assert [row["name"] for row in rows] == [BACKWARD, CORE_PORTABLE]
    assert rows[0]["gflop"] == pytest.approx(5 * 16 * 2 * (3 * 128 + 2 * 64) * 3 / 1e9)
    right = mla.sparse_backward
    monkeypatch.setattr(mla, "sparse_backward", lambda *args, **options: (args[0], right(*args, **options)[1]))
    with pytest.raises(RuntimeError, match="queries from 0 on, gradient of query is off"):
        chapter.backward(device="cpu", shapes=shapes, config=SMALL)


def test_the_indexer_is_timed_beside_the_formula_and_its_products(one_run_each):
    rows = chapter.index(device="cpu", shapes=((5, 30, 3, 64),))
    assert [row["name"] for row in rows] == [INDEXER_FP8, INDEXER, INDEXER_TORCH, PRODUCTS_TORCH]
    assert {row["gflop"] for row in rows} == {5 * 30 * 2 * 3 * 64 / 1e9}
    assert rows[0]["ratio_to_torch"] == 1 and rows[0]["head_dim"] == 64


def test_top_k_is_timed_on_scores_of_three_kinds(one_run_each):
    rows = chapter.select(device="cpu", shapes=((4, 300),), k=40)
    kinds = "normal", "mostly zeros", "causal"
    assert [(row["scores"], row["name"]) for row in rows] == [
        (kind, name) for kind in kinds for name in (TOPK, TOPK_TORCH, TOPK_UNSORTED)
    ]


def test_the_layer_is_timed_sparse_and_dense(one_run_each):
    config = DeepSeekConfig.small()
    rows = chapter.layer(device="cpu", lengths=(20,), top_k=8, config=config)
    assert [row["name"] for row in rows] == [SPARSE_LAYER, DENSE_LAYER, INDEX_VECTORS]
    sparse, dense, vectors = (row["gflop"] * 1e9 for row in rows)
    indexer = 2 * 20 * (96 * 4 * 128 + 256 * 128 + 256 * 4)
    assert vectors == pytest.approx(indexer)
    difference = costs.dsa_flops(20, 20, 8, config=config) - costs.mla_flops(20, 20, config=config)
    assert sparse - dense == pytest.approx(indexer + difference)


def test_quality_compares_the_sparse_layer_with_the_dense_one(one_run_each):
    every_key, some = chapter.quality(device="cpu", shapes=((20, 20), (20, 4)), config=DeepSeekConfig.small())
    assert every_key["cosine_difference"] < 1e-5 < some["cosine_difference"]
    assert every_key["max_difference"] < 0.02 * every_key["largest"]


# ---------------------------------------------------------------------------------------------- what torch computes


def test_the_torch_versions_are_the_formulas(monkeypatch):
    monkeypatch.setattr(chapter, "TORCH_CHUNK", 4)
    torch.manual_seed(0)
    query, latent = torch.randn(6, 3, 128), torch.randn(30, 128)
    indices = torch.stack([torch.randperm(30)[:8] for _ in range(6)]).int()
    indices[2, 5:] = -1
    options = {"scale": 0.1, "value_dim": 64}
    expected, _ = reference.sparse_mla(query, latent, indices, **options)
    torch.testing.assert_close(
        chapter.torch_sparse_mla(query, latent, indices, **options).double(), expected, rtol=1e-4, atol=1e-5
    )
    q, k, weights = torch.randn(6, 3, 64), torch.randn(30, 64), torch.randn(6, 3)
    expected = reference.lightning_indexer(q, k, weights, q_start=30)
    torch.testing.assert_close(chapter.torch_indexer(q, k, weights).double(), expected, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------------------------------------- checks


def test_cosine_difference_sees_noise_and_factors():
    x = torch.randn(1000, dtype=torch.float64)
    assert chapter.cosine_difference(x, x) == 0
    assert chapter.cosine_difference(x, 2 * x) == pytest.approx(1 - 4 / 5)
    noise = torch.randn(1000, dtype=torch.float64)
    assert chapter.cosine_difference(x, x + 1e-3 * noise) == pytest.approx(0.5e-6, rel=0.2)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf"), 3.0])
def test_a_wrong_output_is_not_timed(wrong):
    expected = torch.ones(4, 8, dtype=torch.float64)
    expected[0] = -torch.inf
    out = expected.float()
    chapter.require_right("kernel", out, expected, 1e-6)
    out[1, 3] = wrong
    with pytest.raises(RuntimeError, match="kernel is .*: not timed"):
        chapter.require_right("kernel", out, expected, 1e-6)


def mend(indices, row, place, index):
    return indices.index_put((torch.tensor(row), torch.tensor(place)), torch.tensor(index, dtype=torch.int32))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda right: mend(right, 0, 1, right[0, 0].item()),  # one twice
        lambda right: mend(right, 0, 0, -1),  # -1 before the end
        lambda right: mend(right, 1, 2, 5),  # one that row 1 does not see
        lambda right: mend(right, 0, 3, 9),  # not among the greatest
    ],
)
def test_a_wrong_selection_is_not_timed(wrong):
    logits = torch.arange(20.0).flip(0).repeat(2, 1)
    logits[1, 2:] = -torch.inf
    right = reference.select_topk(logits, 4)
    chapter.require_selection("top-k", right, logits, 4)
    with pytest.raises(RuntimeError, match="top-k does not select the 4 greatest"):
        chapter.require_selection("top-k", wrong(right), logits, 4)
