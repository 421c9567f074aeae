"""The DeepSeek layer end to end: equal to its formulas without absorption; its choice of keys; each of its steps."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from course_utils import reference
from course_utils.checks import error_report
from course_utils.operators import DeepSeekConfig, DeepSeekWeights, deepseek, quantize_e4m3
from course_utils.operators.deepseek import (
    IndexKeys,
    hadamard_matrix,
    hadamard_transform,
    project_index_key,
    project_index_keys,
    project_index_query,
    project_latent,
    project_query,
    sparse_step,
)
from course_utils.operators.rope import rope_frequencies, rope_half_split, rope_interleaved, rope_table

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
SMALL = DeepSeekConfig.small()
EXTENDED = replace(SMALL, original_seq_len=64)
# The latent row and the index heads of V3.2; the rest small enough for the emulator.
V3_2_ROWS = replace(DeepSeekConfig.v3_2(), dim=128, n_heads=9, q_lora_rank=64, qk_nope_head_dim=32, v_head_dim=32)


def layer(config, length, device="cpu", seed=0, dtype=BF16):
    weights = DeepSeekWeights.random(config, seed=seed, dtype=dtype, device=device)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(length, config.dim, generator=generator).to(device, dtype), weights


def assert_right(out, hidden, weights, indices=None):
    """Within twice the error of the formulas in the dtype of the layer."""
    assert out.shape == hidden.shape
    expected = reference.deepseek_attention(hidden, weights, indices=indices)
    plain = reference.deepseek_attention(hidden, weights, indices=indices, dtype=hidden.dtype)
    report = error_report(out, expected, plain)
    assert report.passed, str(report)


def assert_valid_choice(indices, top_k):
    """Each row: as many different keys up to the query as there are, at most top_k, then -1."""
    length = len(indices)
    assert indices.dtype == torch.int32
    assert indices.shape == (length, min(top_k, length))
    for t, row in enumerate(indices.tolist()):
        seen = min(top_k, t + 1)
        assert len(set(row[:seen])) == seen
        assert min(row[:seen]) >= 0
        assert max(row[:seen]) <= t
        assert set(row[seen:]) <= {-1}


# ---------------------------------------------------------------------------------------------- the layer


@pytest.mark.parametrize("config", [SMALL, EXTENDED], ids=["small", "extended"])
def test_sparse_layer_equals_the_formulas_over_the_keys_it_chose(config, device, thinned):
    for dtype in thinned([BF16, torch.float16], 2, config == EXTENDED):
        hidden, weights = layer(config, 90, device, dtype=dtype)
        top_k = config.index_topk
        out, indices = deepseek.deepseek_sparse_attention(
            hidden, weights, top_k=top_k, return_indices=True, chunk_size=48
        )
        assert_valid_choice(indices, top_k)
        assert_right(out, hidden, weights, indices)


@pytest.mark.parametrize("length", [1, 3, 65])
def test_with_top_k_of_all_keys_the_sparse_layer_is_the_dense_layer(length, device):
    hidden, weights = layer(SMALL, length, device, seed=length)
    dense = deepseek.deepseek_mla(hidden, weights, chunk_size=40)
    sparse = deepseek.deepseek_sparse_attention(hidden, weights, chunk_size=50)
    assert_right(dense, hidden, weights)
    assert_right(sparse, hidden, weights)
    torch.testing.assert_close(sparse, dense, atol=0.03, rtol=0.02)


def test_latent_rows_and_index_heads_of_v3_2(device):
    hidden, weights = layer(V3_2_ROWS, 20, device)
    out, indices = deepseek.deepseek_sparse_attention(hidden, weights, top_k=7, return_indices=True)
    assert_valid_choice(indices, 7)
    assert_right(out, hidden, weights, indices)


@pytest.mark.gpu
def test_full_v3_2_layer():
    hidden, weights = layer(DeepSeekConfig.v3_2(), 300, "cuda")
    out, indices = deepseek.deepseek_sparse_attention(hidden, weights, top_k=64, return_indices=True, chunk_size=128)
    assert_valid_choice(indices, 64)
    assert_right(out, hidden, weights, indices)
    assert_right(deepseek.deepseek_mla(hidden, weights), hidden, weights)


def test_a_step_at_the_end_is_the_end_of_the_layer(device):
    hidden, weights = layer(EXTENDED, 90, device)
    latent, index_keys = project_latent(hidden, weights), project_index_keys(hidden, weights)
    whole, _ = sparse_step(hidden, latent, index_keys, weights, q_start=0, top_k=90)
    out, indices = sparse_step(hidden[80:], latent, index_keys, weights, q_start=80, top_k=90)
    assert indices[0].sort().values.tolist() == [-1] * 9 + list(range(81))
    torch.testing.assert_close(out, whole[80:], atol=0.03, rtol=0.02)
    dense = deepseek.dense_step(hidden[80:], latent, weights, q_start=80)
    torch.testing.assert_close(dense, whole[80:], atol=0.03, rtol=0.02)


def test_later_tokens_change_nothing_before(device):
    hidden, weights = layer(SMALL, 40, device)
    changed = torch.cat([hidden[:30], 3 - hidden[30:]])
    run = [deepseek.deepseek_sparse_attention(x, weights, top_k=8, chunk_size=16) for x in (hidden, changed)]
    torch.testing.assert_close(run[0][:30], run[1][:30], atol=0, rtol=0)
    assert not torch.equal(run[0][30:], run[1][30:])


def swap_ropes(monkeypatch):
    monkeypatch.setattr(deepseek, "rope_interleaved", rope_half_split)


def forget_mscale(monkeypatch):
    monkeypatch.setattr(DeepSeekConfig, "softmax_scale", 96**-0.5)


def swap_w_uk_and_w_uv(monkeypatch):
    monkeypatch.setattr(DeepSeekWeights, "w_uk", DeepSeekWeights.w_uv)


def forget_q_start(monkeypatch):
    whole = deepseek.dense_step
    monkeypatch.setattr(
        deepseek, "dense_step", lambda hidden, latent, weights, q_start: whole(hidden, latent, weights, q_start=0)
    )


@pytest.mark.parametrize("damage", [swap_ropes, forget_mscale, swap_w_uk_and_w_uv, forget_q_start])
def test_a_wrong_layer_is_seen(damage, monkeypatch):
    hidden, weights = layer(EXTENDED, 40)
    damage(monkeypatch)
    with pytest.raises(AssertionError, match="WRONG"):
        assert_right(deepseek.deepseek_mla(hidden, weights, chunk_size=20), hidden, weights)


# ---------------------------------------------------------------------------------------------- the choice of keys


def indexer_inputs(hidden, weights, index_dtype=FP8):
    """Query, key and weights of the indexer as numbers, float64, after the rounding to index_dtype."""
    _, q_lora = project_query(hidden, weights)
    q_index, index_weights = project_index_query(hidden, q_lora, weights)
    keys = project_index_keys(hidden, weights, index_dtype=index_dtype)
    queries = IndexKeys(*deepseek.to_index_dtype(q_index, index_dtype))
    return *(numbers(vectors) for vectors in (queries, keys)), index_weights


def numbers(vectors):
    key, scale = vectors
    return key.double() if scale is None else key.double() * scale[..., None]


@pytest.mark.parametrize("index_dtype", [FP8, BF16])
def test_chosen_keys_have_the_highest_scores(index_dtype, device):
    hidden, weights = layer(SMALL, 90, device)
    _, indices = deepseek.deepseek_sparse_attention(
        hidden, weights, top_k=16, return_indices=True, index_dtype=index_dtype, chunk_size=50
    )
    scores = reference.lightning_indexer(*indexer_inputs(hidden, weights, index_dtype))
    chosen = scores.gather(1, indices.long().clamp(min=0)).masked_fill(indices < 0, -torch.inf)
    best = scores.sort(dim=1, descending=True).values[:, :16]
    torch.testing.assert_close(chosen.sort(dim=1, descending=True).values, best, atol=2e-5, rtol=0)


def test_index_scores_equal_the_formula_but_for_rounding(device):
    hidden, weights = layer(EXTENDED, 90, device)
    exact = reference.index_scores(hidden, weights)
    _, q_lora = project_query(hidden, weights)
    q_index, index_weights = project_index_query(hidden, q_lora, weights)
    ours = reference.lightning_indexer(q_index, project_index_key(hidden, weights), index_weights)
    seen = exact.isfinite()
    assert torch.equal(seen, ours.isfinite())
    assert (exact - ours)[seen].abs().max() < 0.01 * exact[seen].abs().max()


def test_indexer_has_a_rope_of_its_own(monkeypatch):
    hidden, weights = layer(SMALL, 40)
    monkeypatch.setattr(deepseek, "rope_half_split", rope_interleaved)
    with pytest.raises(AssertionError):
        test_index_scores_equal_the_formula_but_for_rounding(torch.device("cpu"))


def test_fp8_chooses_nearly_the_keys_of_exact_scores(device):
    hidden, weights = layer(SMALL, 200, device)
    _, indices = deepseek.deepseek_sparse_attention(hidden, weights, top_k=16, return_indices=True)
    _, exact = reference.deepseek_sparse_attention(hidden, weights, top_k=16, return_indices=True)
    full = range(16, 200)
    common = [len({*indices[t].tolist()} & {*exact[t].tolist()}) / 16 for t in full]
    assert sum(common) / len(common) > 0.95  # keys taken at random: 0.2
    assert min(common) >= 0.75


def test_fp8_is_the_default_where_there_are_tensor_cores_for_it(monkeypatch):
    assert deepseek.default_index_dtype(torch.device("cpu")) == FP8
    for capability, dtype in [((8, 0), BF16), ((8, 6), BF16), ((8, 9), FP8), ((9, 0), FP8)]:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, capability=capability: capability)
        assert deepseek.default_index_dtype(torch.device("cuda")) == dtype


def test_the_layer_refuses_a_gradient():
    hidden, weights = layer(SMALL, 3)
    for attend in (deepseek.deepseek_sparse_attention, deepseek.deepseek_mla):
        with pytest.raises(NotImplementedError, match=f"{attend.__name__} has no gradient; take its parts with "):
            attend(hidden.clone().requires_grad_(), weights)


# ---------------------------------------------------------------------------------------------- the steps


def test_absorption_changes_no_score_and_no_output():
    _, weights = layer(SMALL, 1)
    generator = torch.Generator().manual_seed(1)
    q_nope, c = (torch.randn(5, *shape, generator=generator) for shape in ((4, 32), (64,)))
    fp32 = SimpleNamespace(w_uk=weights.w_uk.float(), w_uv=weights.w_uv.float())
    keys, values = (torch.einsum("hnc,tc->thn", w, c) for w in (fp32.w_uk, fp32.w_uv))
    scores = torch.einsum("shn,thn->sht", q_nope, keys)
    torch.testing.assert_close(deepseek.absorb(q_nope, fp32) @ c.T, scores)
    p = scores.softmax(dim=-1)
    torch.testing.assert_close(deepseek.unabsorb(p @ c, fp32), torch.einsum("sht,thv->shv", p, values))


ROPES = {rope_interleaved: lambda d, i: (2 * i, 2 * i + 1), rope_half_split: lambda d, i: (i, i + d // 2)}


@pytest.mark.parametrize("rope", ROPES)
def test_rope_turns_each_pair_as_a_complex_number(rope):
    x = torch.randn(6, 2, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    out = rope(x, rope_table(SMALL, torch.arange(10, 16)))
    for i in range(32):
        first, second = ROPES[rope](64, i)
        turn = torch.polar(torch.ones(6), torch.arange(10.0, 16.0) * 10000 ** (-i / 32)).to(torch.complex128)
        expected = torch.complex(x[..., first], x[..., second]) * turn[:, None]
        torch.testing.assert_close(torch.complex(out[..., first], out[..., second]), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("rope", ROPES)
def test_dot_products_after_rope_depend_on_the_distance_alone(rope):
    q, k = torch.randn(2, 1, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def product(position, distance):
        at = [rope_table(SMALL, torch.tensor([p])) for p in (position + distance, position)]
        return (rope(q, at[0]) * rope(k, at[1])).sum()

    for distance in (0, 1, 100):
        near, far = product(3, distance), product(120_003, distance)
        torch.testing.assert_close(near, far, atol=1e-5, rtol=0)
    assert (product(3, 1) - product(3, 2)).abs() > 0.1


def test_the_two_ropes_are_different_and_need_a_table_that_fits():
    x, table = torch.randn(4, 64), rope_table(SMALL, torch.arange(4))
    assert not torch.allclose(rope_interleaved(x, table), rope_half_split(x, table), atol=0.1)
    with pytest.raises(ValueError, match=r"x has 4 rows of 128 numbers; the table is for 4 of 64"):
        rope_half_split(torch.randn(4, 128), table)


def test_yarn_keeps_fast_pairs_and_slows_the_others():
    config = DeepSeekConfig.v3_2()
    expected = []
    for pair in range(32):
        frequency = 10000 ** (-pair / 32)
        # In 4096 positions, pair 10.5 would turn 32 times and pair 22.5 once: the code rounds outwards, to 10 and 23.
        kept = 1 if pair <= 10 else (23 - pair) / 13 if pair < 23 else 0
        expected.append(frequency * kept + frequency / 40 * (1 - kept))
    torch.testing.assert_close(
        rope_frequencies(config), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0
    )
    turns = 4096 * rope_frequencies(replace(config, max_seq_len=4096)) / (2 * math.pi)
    assert turns[10] > 32 > turns[11]
    assert turns[22] > 1 > turns[23]


def test_softmax_scale_grows_with_an_extended_context():
    assert replace(DeepSeekConfig.v3_2(), max_seq_len=4096).softmax_scale == 192**-0.5
    assert DeepSeekConfig.v3_2().softmax_scale == pytest.approx(192**-0.5 * 1.3689**2, rel=1e-4)
    assert replace(DeepSeekConfig.v3_2(), mscale=0.0).softmax_scale == 192**-0.5


def test_the_hadamard_matrix_of_inference_mode_serves_autograd_too():
    hadamard_matrix.cache_clear()
    with torch.inference_mode():
        hadamard_transform(torch.ones(1, 8))
    x = torch.ones(1, 8, requires_grad=True)
    hadamard_transform(x).sum().backward()
    assert x.grad.any()


def test_autocast_changes_nothing_and_numpy_integers_are_integers(device):
    hidden, weights = layer(SMALL, 20, device)
    wanted = deepseek.deepseek_sparse_attention(hidden, weights, top_k=8), deepseek.deepseek_mla(hidden, weights)
    with torch.autocast(device.type, dtype=BF16):
        sparse = deepseek.deepseek_sparse_attention(hidden, weights, top_k=np.int64(8), chunk_size=np.int32(7))
        results = sparse, deepseek.deepseek_mla(hidden, weights)
    for result, same in zip(results, wanted, strict=True):
        torch.testing.assert_close(result, same, rtol=0.02, atol=0.02)  # chunks may be multiplied in another order


def test_hadamard_is_orthogonal_and_spreads_an_outlier():
    matrix = hadamard_transform(torch.eye(128, dtype=torch.float64))
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(128, dtype=torch.float64))
    torch.testing.assert_close(matrix.abs(), torch.full_like(matrix, 128**-0.5))
    q, k = torch.randn(2, 5, 128, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    k[:, 7] *= 1000
    torch.testing.assert_close(hadamard_transform(q) @ hadamard_transform(k).T, q @ k.T)
    assert (hadamard_transform(k).abs().amax(dim=-1) < k.abs().amax(dim=-1) / 8).all()
    assert hadamard_transform(k.to(BF16)).dtype == BF16
    with pytest.raises(ValueError, match="dim is 96; it must be a power of two"):
        hadamard_transform(torch.randn(2, 96))


@pytest.mark.parametrize(
    "where, gains",
    [("q", 0), ("k", 0), ("both, varying", 1), ("both, constant in k", -1), ("both, constant, LayerNorm of k", 1)],
)
def test_hadamard_helps_a_ranking_in_eight_bits_where_q_and_k_are_large_in_one_place_that_varies(where, gains):
    q, k = (torch.randn(n, 128, generator=torch.Generator().manual_seed(n)) for n in (64, 1024))
    q[:, 5] += 10 * (where != "k")
    k[:, 5] = 10 if "constant" in where else k[:, 5] + 10 * (where != "q")
    if "LayerNorm" in where:
        k = torch.nn.functional.layer_norm(k, (128,))
    best = (q.double() @ k.double().T).topk(64).indices
    right = []
    for transform in (torch.clone, hadamard_transform):
        (q8, q_scale), (k8, k_scale) = quantize_e4m3(transform(q)), quantize_e4m3(transform(k))
        found = (q8.float() * q_scale[:, None] @ (k8.float() * k_scale[:, None]).T).topk(64).indices
        right.append((best[:, :, None] == found[:, None]).any(2).double().mean().item())
    change = right[1] - right[0]
    assert {0: abs(change) < 0.01, 1: change > 0.09, -1: -0.03 < change < -0.01}[gains]


# ---------------------------------------------------------------------------------------------- bad input

BAD_CALLS = {
    "hidden is a list": (TypeError, lambda h, w: ([h], w, {})),
    "weights is a dict": (TypeError, lambda h, w: (h, {}, {})),
    r"hidden has shape \[1, 5, 256\]; it must be \[S, 256\]": (ValueError, lambda h, w: (h[None], w, {})),
    r"hidden has shape \[5, 255\]": (ValueError, lambda h, w: (h[:, 1:], w, {})),
    r"hidden has shape \[0, 256\]": (ValueError, lambda h, w: (h[:0], w, {})),
    "hidden has 4097 tokens; it must have at most 4096": (ValueError, lambda h, w: (h[:1].expand(4097, -1), w, {})),
    "hidden has dtype torch.float32; it must be torch.bfloat16": (TypeError, lambda h, w: (h.float(), w, {})),
    "hidden is on meta": (ValueError, lambda h, w: (h.to("meta"), w, {})),
    "top_k is 0": (ValueError, lambda h, w: (h, w, {"top_k": 0})),
    "top_k is 2049; with 2100 tokens it must be at most 2048": (
        ValueError,
        lambda h, w: (h[:1].expand(2100, -1), w, {"top_k": 2049}),
    ),
    "top_k is 'a'": (TypeError, lambda h, w: (h, w, {"top_k": "a"})),
    "return_indices is 1; it must be True or False": (TypeError, lambda h, w: (h, w, {"return_indices": 1})),
    "top_k is 2.0": (TypeError, lambda h, w: (h, w, {"top_k": 2.0})),
    "chunk_size is -1": (ValueError, lambda h, w: (h, w, {"chunk_size": -1})),
    "index_dtype is torch.float32": (TypeError, lambda h, w: (h, w, {"index_dtype": torch.float32})),
}


@pytest.mark.parametrize("message", BAD_CALLS)
def test_bad_arguments_are_named(message):
    error, change = BAD_CALLS[message]
    hidden, weights, options = change(*layer(SMALL, 5))
    with pytest.raises(error, match=message):
        deepseek.deepseek_sparse_attention(hidden, weights, **options)


def test_wrong_weights_are_named():
    _, weights = layer(SMALL, 1)
    for change, error, message in [
        ({"wkv_b": weights.wkv_b.T}, ValueError, r"wkv_b has shape \[64, 256\]; .* must be \[256, 64\]"),
        ({"kv_norm": weights.kv_norm.bfloat16()}, TypeError, "kv_norm has dtype torch.bfloat16; .* torch.float32"),
        ({"wo": weights.wo.half()}, TypeError, "wo has dtype torch.float16; it must be torch.bfloat16"),
        ({"config": {}}, TypeError, "config is a dict; it must be a DeepSeekConfig"),
        ({"wq_a": None}, TypeError, "wq_a is a NoneType; it must be a torch tensor"),
        ({"wo": weights.wo.float().numpy()}, TypeError, "wo is a ndarray; it must be a torch tensor"),
        ({"wq_a": weights.wq_a.float()}, TypeError, "wq_a has dtype torch.float32"),
        ({"indexer_wk": weights.indexer_wk.to("meta")}, ValueError, "indexer_wk is on meta; it must be on cpu"),
        ({"config": DeepSeekConfig.v3_2()}, ValueError, r"wq_a has shape \[96, 256\]; .* must be \[1536, 7168\]"),
    ]:
        with pytest.raises(error, match=message):
            replace(weights, **change)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("n_heads", 0, "positive"),
        ("dim", 2.5, "positive"),
        ("qk_rope_head_dim", 63, "even"),
        ("index_head_dim", 96, "power"),
        ("index_head_dim", 256, "at most 128"),
        ("index_n_heads", 65, "at most 64"),
        ("kv_lora_rank", 520, "at most 512"),
        ("qk_rope_head_dim", 514, "at most 512"),  # kv_lora_rank is 64
        ("rope_theta", 1.0, "above 1"),
        ("rope_factor", 0.0, "above 0"),
        ("beta_fast", float("nan"), "finite"),
        ("mscale", float("inf"), "finite"),
        ("mscale", "1", "finite"),
    ],
)
def test_wrong_sizes_are_named(name, value, rule):
    with pytest.raises(ValueError, match=f"{name} is {value!r}; it must be .*{rule}"):
        replace(SMALL, **{name: value})
