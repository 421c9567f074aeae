"""mla_attention and sparse_mla: right at every size, by every kernel, and seen to be wrong when broken.

tests/operators/test_mla_backward.py has the backward kernel by itself.
"""

from functools import partial

import pytest
import torch

from course_utils import checks, reference
from course_utils.emulator import sanitize
from course_utils.operators import mla
from course_utils.operators.mla import mla_attention, mla_reprojected, sparse_mla
from course_utils.operators.tensor_core import takes_wgmma
from tests.helpers import tensors
from tests.helpers.deterministic import told_to_be_deterministic
from tests.helpers.one_of_each import every_second

HALF, BF16 = torch.float16, torch.bfloat16
FULL = 576, 512
SPARSE_MLA = "05_deepseek_sparse/sparse_mla.cu"
SCALE = 192**-0.5
# Of inputs N(0, 1) / 10, as FlashMLA tests its kernels: each number within one of the first two, all by the third.
ABSOLUTE, RELATIVE, COSINE = 8e-4, 3 / 128, 7e-6
LSE_ABSOLUTE, LSE_RELATIVE = 1e-6, 2 / 65536
TORCH_RUNS = 4
TILES = sorted({tile for sizes in (mla.TILES, mla.FEW_HEADS_TILES) for tiles in sizes.values() for tile in tiles})


random = partial(tensors.random, dtype=BF16)


def random_indices(queries, tokens, k, *, device="cpu", seed=0):
    """Unordered, with duplicates, some of them -1 and some from `tokens` on."""
    generator = torch.Generator().manual_seed(seed)
    few = max(1, tokens // 10)
    return torch.randint(-few, tokens + few, (queries, k), generator=generator, dtype=torch.int32).to(device)


def make_inputs(queries, tokens, heads, head_dim, kind, *, device="cpu", dtype=BF16, seed=0):
    """query, latent and scale. "planted": one token takes nearly all weight of each head."""
    factor = 0.1 if kind == "tenth" else 1.0
    query = random(queries, heads, head_dim, device=device, dtype=dtype, seed=seed, factor=factor)
    latent = random(tokens, head_dim, device=device, dtype=dtype, seed=seed + 1, factor=factor)
    if kind == "planted":
        query = latent[(7 * torch.arange(queries * heads)).view(queries, heads) % tokens]
    return query, latent, {"large logits": 1.0, "overflowing exp": 30.0}.get(kind, SCALE)


def torch_runs(query, latent, indices, scale, value_dim):
    """Plain torch in the dtype of the inputs, the keys in several orders."""
    runs = []
    for seed in range(TORCH_RUNS):
        order = torch.randperm(indices.shape[1], generator=torch.Generator().manual_seed(seed)).to(indices.device)
        named = indices[:, order]
        valid = (named >= 0) & (named < latent.shape[0])
        rows = latent[torch.where(valid, named, 0).long()]
        scores = (query @ rows.mT * scale).masked_fill(~valid[:, None], -torch.inf)
        runs.append(scores.softmax(dim=-1).nan_to_num(0.0) @ rows[..., :value_dim])
    return runs


def assert_right(results, query, latent, indices, *, scale, value_dim, kind):
    """By the rules for this kind of inputs. Written by the reference, not by the kernels' own idea of an empty row."""
    out, lse = results
    expected, expected_lse = reference.sparse_mla(query, latent, indices, scale=scale, value_dim=value_dim)
    assert out.dtype == query.dtype and out.shape == expected.shape
    assert lse.dtype == torch.float32 and lse.shape == expected_lse.shape
    assert out.isfinite().all(), "WRONG: out is not finite"
    empty = expected_lse == -torch.inf
    assert ((lse == -torch.inf) == empty).all() and not out[empty].any(), "WRONG: rows without keys"

    error = (out.double() - expected).abs()
    if kind == "tenth":
        assert (error <= (RELATIVE * expected.abs()).clamp(min=ABSOLUTE)).all(), f"WRONG: out, {error.max()}"
        squares = (out.double() ** 2 + expected**2).sum()
        assert not squares or 1 - 2 * (out.double() * expected).sum() / squares <= COSINE, "WRONG: cosine of out"
    else:
        worst = max(
            (run.double() - expected).abs().max() for run in torch_runs(query, latent, indices, scale, value_dim)
        )
        assert error.max() <= 2 * worst, f"WRONG: out, {error.max()} against {worst} of torch"
    lse_error = (lse.double() - expected_lse)[~empty].abs()
    size = expected_lse[~empty].abs()
    size = size if kind == "tenth" else size.clamp(min=1.0)
    assert (lse_error <= (LSE_RELATIVE * size).clamp(min=LSE_ABSOLUTE)).all(), f"WRONG: lse, {lse_error.max()}"


def check(queries, tokens, heads, k, dims=FULL, kind="tenth", *, device="cpu", dtype=BF16, seed=0):
    """sparse_mla, or with k = 0 mla_attention, by each kernel there is for it on the device."""
    head_dim, value_dim = dims
    query, latent, scale = make_inputs(queries, tokens, heads, head_dim, kind, device=device, dtype=dtype, seed=seed)
    how = {"scale": scale, "value_dim": value_dim}
    if k:
        indices = random_indices(queries, tokens, k, device=device, seed=seed)
        operator, kernel, inputs = sparse_mla, mla.sparse_forward, (query, latent, indices)
    else:
        indices = mla._all_keys(queries, tokens, True, query.device)
        operator, kernel, inputs = mla_attention, mla.dense_forward, (query, latent)
    runs = [operator]
    if dims == FULL and takes_wgmma(query.device):  # there the operator takes the other kernel
        runs.append(partial(kernel, hopper=False))
    for run in runs:
        with checks.poisoned_outputs():
            results = run(*inputs, **how)
        assert_right(results, query, latent, indices, **how, kind=kind)


# ---------------------------------------------------------------------------------------------- right


@pytest.mark.parametrize(
    ("queries", "heads", "k"),
    [
        *((2, 1, 64), (1, 3, 1), (2, 64, 1), (1, 64, 64), (1, 126, 200), (1, 128, 2048), (2, 128, 65)),
        pytest.param(2, 9, 2048, marks=pytest.mark.exhaustive("`make test` has as many keys for 128 heads")),
    ],
)
def test_the_sizes_of_v3(device, queries, heads, k, thinned):
    for kind in thinned(["tenth", "normal"], 2, k % 2):
        check(queries, 3000, heads, k, kind=kind, device=device)


@pytest.mark.parametrize(("queries", "heads", "k", "dtype"), [(2, 9, 130, HALF), (1, 70, 100, BF16), (3, 65, 0, HALF)])
def test_the_kernel_for_hopper_runs_on_the_emulator_too(queries, heads, k, dtype):
    """On a GPU it is what the operator takes."""
    query, latent, scale = make_inputs(queries, 140, heads, 576, "planted", device="cpu", dtype=dtype, seed=k)
    indices = random_indices(queries, 140, k, device="cpu", seed=0) if k else mla._all_keys(queries, 140, True, "cpu")
    with checks.poisoned_outputs():
        if k:
            results = mla.sparse_forward(query, latent, indices, scale=scale, hopper=True)
        else:
            results = mla.dense_forward(query, latent, scale=scale, is_causal=True, hopper=True)
    assert_right(results, query, latent, indices, scale=scale, value_dim=512, kind="planted")


@pytest.mark.parametrize(("n", "kind"), [*enumerate(["planted", "large logits", "overflowing exp"])])
@pytest.mark.parametrize(("heads", "dims"), [(9, (128, 64)), (70, FULL)])
def test_peaked_weights_and_big_logits(device, heads, dims, n, kind, thinned):
    for dtype in thinned((HALF, BF16), 2, (n + heads) % 2):
        check(2, 150, heads, 200, dims, kind, device=device, dtype=dtype)


@pytest.mark.parametrize("dims", [(128, 64), (192, 128), (64, 64), (100, 50), (3, 1), (200, 72)])
def test_any_dims_are_padded(device, dims, thinned):
    for heads in thinned([1, 17, 65], 3, sum(dims) % 3):
        check(3, 90, heads, 70, dims, "normal", device=device, dtype=HALF, seed=heads)


@pytest.mark.parametrize("dims", [(128, 64), (192, 128)])
@pytest.mark.parametrize(("queries", "tokens"), [(1, 1), (1, 200), (65, 65), (40, 130), (70, 5)])
def test_dense_at_any_lengths(device, queries, tokens, dims, thinned):
    """Fewer tokens than queries: the first rows see nothing."""
    for kind in thinned(["tenth", "normal", "large logits"], 3, (queries + sum(dims)) % 3):
        check(queries, tokens, 5, 0, dims, kind, device=device)


@pytest.mark.parametrize(("queries", "tokens", "heads"), [(2, 300, 9), (3, 65, 70), (3, 1, 128)])
def test_dense_at_the_sizes_of_v3(device, queries, tokens, heads, thinned):
    for kind in thinned(["tenth", "normal"], 2, heads % 2):
        check(queries, tokens, heads, 0, kind=kind, device=device)


def test_dense_without_causality(device):
    query, latent, scale = make_inputs(3, 70, 5, 128, "normal", device=device)
    results = mla_attention(query, latent, scale=scale, value_dim=64, is_causal=False)
    every = torch.arange(70, device=device).repeat(3, 1)
    assert_right(results, query, latent, every, scale=scale, value_dim=64, kind="normal")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["tenth", "normal", "planted", "large logits", "overflowing exp"])
@pytest.mark.parametrize("dtype", [HALF, BF16], ids=str)
def test_many_queries_on_a_gpu(dtype, kind):
    for n, (heads, k) in enumerate([(1, 2048), (9, 100), (64, 2048), (128, 2048), (126, 64), (128, 0), (16, 0)]):
        check(100 + n, 3000, heads, k, kind=kind, device="cuda", dtype=dtype, seed=n)


@pytest.mark.gpu
@pytest.mark.parametrize("hopper", [None, False], ids=["the operator's kernel", "the portable kernel"])
def test_every_run_gives_the_same_bits_on_a_gpu(hopper):
    """Of full blocks, many at a time: a race between the warps of a block would show now and then. No atomics here."""
    query, latent, scale = make_inputs(512, 4096, 128, 576, "normal", device="cuda")
    indices = random_indices(512, 4096, 2048, device="cuda")
    indices[::2].clamp_(0, 4095)  # lists without masked keys, which take another way
    for run in (
        partial(mla.sparse_forward, query, latent, indices, scale=scale, hopper=hopper),
        partial(mla.dense_forward, query, latent, scale=scale, hopper=hopper),
    ):
        first = run()
        for _ in range(100):
            assert all(map(torch.equal, run(), first))


# The tile that the operator takes here is but one. Each of them under the sanitizer; mla_dense.cu differs in one line.
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_tile(device, monkeypatch, tile):
    size = tile.key_dim, tile.value_dim
    for sizes in (mla.TILES, mla.FEW_HEADS_TILES):
        monkeypatch.setitem(sizes, size, (tile,))
    monkeypatch.setattr(mla, "takes_wgmma", lambda device: False)
    with sanitize() as report:
        check(1, 90, 70, 140, size, device=device)
    assert not report.findings, str(report)
    assert report.launches == 1 or device.type == "cuda"


def test_which_indices_count(device):
    """Below 0 or from T on: left out. Twice: counts twice. The order is free."""
    query, latent, scale = make_inputs(6, 40, 5, 128, "normal", device=device)
    lists = [
        [0, 3, 5, 7],
        [7, 5, 3, 0],
        [3, -1, 3, 40],
        [-1, -(2**31), 40, 2**31 - 1],
        [39, 39, 39, 39],
        [-5, 41, 0, 1000],
    ]
    indices = torch.tensor(lists, dtype=torch.int32, device=device)
    query = query[:1].repeat(6, 1, 1)
    wide = torch.where(indices >= 40, 2**33 + 3, torch.where(indices < 0, 3 - 2**33, indices.long()))  # 3 in 32 bits
    for given in (indices, indices.long(), wide):
        out, lse = sparse_mla(query, latent, given, scale=scale, value_dim=64)
        assert_right((out, lse), query, latent, indices, scale=scale, value_dim=64, kind="normal")
        torch.testing.assert_close(out[0], out[1])
        assert torch.equal(out[4], latent[39, :64].expand(5, 64))
        assert torch.equal(out[5], latent[0, :64].expand(5, 64))
    one, _ = sparse_mla(query[:1], latent, indices[4:5, :1], scale=scale, value_dim=64)
    torch.testing.assert_close(lse[4], (query[0].float() @ latent[39].float()) * scale + torch.tensor(4.0).log())
    assert torch.equal(one[0], out[4])


def test_what_no_list_names_may_be_anything(device):
    query, latent, scale = make_inputs(2, 200, 9, 128, "normal", device=device)
    indices = random_indices(2, 100, 70, device=device)
    indices[indices >= 100] = 1000
    wanted = sparse_mla(query, latent, indices, scale=scale, value_dim=64)
    latent[100:] = torch.nan
    unused = ~torch.isin(torch.arange(100, device=device), indices)
    latent[:100][unused] = torch.inf
    for result, other in zip(sparse_mla(query, latent, indices, scale=scale, value_dim=64), wanted, strict=True):
        assert torch.equal(result, other)


def test_dense_attention_never_reads_ahead(device):
    query, latent, scale = make_inputs(4, 70, 9, 128, "normal", device=device)
    latent[68:] = torch.nan
    out, lse = mla_attention(query, latent, scale=scale, value_dim=64)
    assert out[:2].isfinite().all() and lse[:2].isfinite().all()
    assert out[2:].isnan().all() and lse[2:].isnan().all()


def test_a_nan_stays_in_its_head(device):
    query, latent, scale = make_inputs(1, 70, 5, 128, "normal", device=device)
    indices = random_indices(1, 70, 100, device=device)
    query[0, 3, 0] = torch.nan
    out, lse = sparse_mla(query, latent, indices, scale=scale, value_dim=64)
    heads = torch.arange(5, device=device) == 3
    assert (out[0].isnan().all(dim=1) == heads).all() and (lse[0].isnan() == heads).all()
    assert not out[0, ~heads].isnan().any()


@pytest.mark.parametrize("scale", [0.0, -0.3, 1e-46])
def test_any_finite_scale(device, scale):
    query, latent, _ = make_inputs(3, 40, 5, 128, "normal", device=device)
    indices = random_indices(3, 40, 30, device=device)
    how = {"scale": scale, "value_dim": 64}
    assert_right(sparse_mla(query, latent, indices, **how), query, latent, indices, **how, kind="normal")


def test_strided_inputs_are_copied(device):
    query, latent, scale = make_inputs(6, 80, 5, 128, "normal", device=device)
    indices = random_indices(6, 80, 40, device=device)
    strided = query.mT.contiguous().mT[::2], latent[1::2], indices[::2, 1::2]
    how = {"scale": scale, "value_dim": 64}
    plain = [tensor.clone(memory_format=torch.contiguous_format) for tensor in strided]
    for result, other in zip(sparse_mla(*strided, **how), sparse_mla(*plain, **how), strict=True):
        assert torch.equal(result, other)
    for result, other in zip(mla_attention(*strided[:2], **how), mla_attention(*plain[:2], **how), strict=True):
        assert torch.equal(result, other)


def test_more_queries_than_a_grid_has_blocks(device, monkeypatch):
    """They go in several launches; to the dense kernel each is the end of a shorter sequence."""
    query, latent, scale = make_inputs(7, 50, 5, 128, "normal", device=device)
    indices = random_indices(7, 50, 40, device=device)
    how = {"scale": scale, "value_dim": 64}
    wanted = [*sparse_mla(query, latent, indices, **how), *mla_attention(query, latent, **how)]
    wanted += [*mla_attention(query, latent[:4], **how), *mla_attention(query, latent, **how, is_causal=False)]
    monkeypatch.setattr(mla, "MAX_GRID", 3)
    results = [*sparse_mla(query, latent, indices, **how), *mla_attention(query, latent, **how)]
    results += [*mla_attention(query, latent[:4], **how), *mla_attention(query, latent, **how, is_causal=False)]
    assert all(map(torch.equal, results, wanted))


def test_rebuilding_keys_and_values_gives_the_same_as_absorbing_them(device):
    """Exact by associativity; here the absorbed form rounds to 16 bits."""
    queries, tokens, heads, nope, rope, latent_dim, value_dim = 5, 40, 3, 32, 64, 64, 48
    shapes = (queries, heads, nope), (queries, heads, rope), (tokens, latent_dim), (tokens, rope)
    q_nope, q_rope, c, k_rope = (random(*shape, device=device, seed=n).float() for n, shape in enumerate(shapes))
    w_uk = random(heads, nope, latent_dim, device=device, seed=4, factor=0.1).float()
    w_uv = random(heads, value_dim, latent_dim, device=device, seed=5, factor=0.1).float()
    with checks.poisoned_outputs():
        rebuilt = mla_reprojected(q_nope, q_rope, c, k_rope, w_uk, w_uv, scale=0.1)
    query = torch.cat([torch.einsum("shn,hnc->shc", q_nope, w_uk), q_rope], dim=-1)
    latent = torch.cat([c, k_rope], dim=-1)
    exact, _ = reference.mla_attention(query, latent, scale=0.1, value_dim=latent_dim)
    absorbed, _ = mla_attention(query.to(HALF), latent.to(HALF), scale=0.1, value_dim=latent_dim)
    wanted = torch.einsum("shc,hvc->shv", exact, w_uv.double())
    torch.testing.assert_close(rebuilt.double(), wanted, rtol=1e-5, atol=1e-5)
    close = torch.einsum("shc,hvc->shv", absorbed.double(), w_uv.double())
    torch.testing.assert_close(close, wanted, rtol=1e-2, atol=1e-3)


# ---------------------------------------------------------------------------------------------- gradients


def torch_gradients(query, latent, indices, grad_out, scale):
    """Plain torch in the dtype of the inputs: gradients of query and latent for each order of the keys."""
    query, latent = (tensor.detach().requires_grad_() for tensor in (query, latent))
    outs = torch_runs(query, latent, indices, scale, grad_out.shape[2])
    return [torch.autograd.grad(out, (query, latent), grad_out) for out in outs]


def check_gradients(queries, tokens, heads, k, dims, kind, *, device="cpu", dtype=BF16, seed=0):
    """Of sparse_mla, or with k = 0 of mla_attention: at most three times the error of torch in the same dtype."""
    head_dim, value_dim = dims
    query, latent, scale = make_inputs(queries, tokens, heads, head_dim, kind, device=device, dtype=dtype, seed=seed)
    inputs = [tensor.clone().requires_grad_() for tensor in (query, latent)]
    grad_out = random(queries, heads, value_dim, device=device, dtype=dtype, seed=seed + 2)
    how = {"scale": scale, "value_dim": value_dim}
    with checks.poisoned_outputs():
        if k:
            indices = random_indices(queries, tokens, k, device=device, seed=seed)
            out, lse = sparse_mla(*inputs, indices, **how)
        else:
            indices = mla._all_keys(queries, tokens, True, query.device)
            out, lse = mla_attention(*inputs, **how)
        results = torch.autograd.grad(out, inputs, grad_out)
    assert not lse.requires_grad
    exact = [tensor.double().requires_grad_() for tensor in (query, latent)]
    expected, _ = reference.sparse_mla(*exact, indices, **how)
    expected = torch.autograd.grad(expected, exact, grad_out.double())
    runs = torch_gradients(query, latent, indices, grad_out, scale)
    for n, name in enumerate(("query", "latent")):
        result = results[n]
        assert result.dtype == dtype and result.shape == expected[n].shape and result.isfinite().all()
        report = checks.error_report(
            result, expected[n], [run[n] for run in runs], factor=checks.GRADIENT_FACTOR, name=f"gradient of {name}"
        )
        assert report.passed, str(report)


@pytest.mark.parametrize(
    ("queries", "tokens", "heads", "k", "dims"),
    [(3, 50, 1, 64, (128, 64)), (4, 40, 20, 33, (100, 50)), (1, 90, 3, 1, (192, 128)), (2, 70, 66, 70, FULL)],
)
def test_gradients_of_query_and_latent(device, queries, tokens, heads, k, dims, thinned):
    for kind in thinned(["normal", "planted", "large logits"], 3, queries % 3):
        check_gradients(queries, tokens, heads, k, dims, kind, device=device, seed=k)


@pytest.mark.parametrize(("queries", "tokens"), [(20, 50), (40, 7)])
def test_gradients_of_dense_attention(device, queries, tokens):
    check_gradients(queries, tokens, 3, 0, (128, 64), "normal", device=device, dtype=HALF)


def test_a_query_without_keys_and_a_token_that_no_list_names_have_no_gradient(device):
    query, latent, scale = make_inputs(2, 40, 5, 128, "normal", device=device)
    query.requires_grad_(), latent.requires_grad_()
    indices = torch.tensor([[3, 3, 7], [-1, 40, -1]], dtype=torch.int32, device=device)
    out, _ = sparse_mla(query, latent, indices, scale=scale, value_dim=64)
    out.sum().backward()
    assert query.grad[0].any() and not query.grad[1].any()
    named = latent.grad.any(dim=1)
    assert named[3] and named[7] and named.sum() == 2


def test_one_gradient_alone_and_no_second_one(device):
    query, latent, scale = make_inputs(2, 40, 5, 128, "normal", device=device)
    indices = random_indices(2, 40, 20, device=device)
    both = []
    for wanted in (query, latent):
        wanted.requires_grad_()
        out, _ = sparse_mla(query, latent, indices, scale=scale, value_dim=64)
        both += torch.autograd.grad(out.float().square().sum(), wanted)
        wanted.requires_grad_(False)
    query.requires_grad_(), latent.requires_grad_()
    out, _ = sparse_mla(query, latent, indices, scale=scale, value_dim=64)
    together = torch.autograd.grad(out.float().square().sum(), (query, latent), retain_graph=True)
    assert torch.equal(both[0], together[0])
    torch.testing.assert_close(both[1], together[1])  # atomics: added up in no fixed order
    (first,) = torch.autograd.grad(out.sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="is differentiable once"):
        first.sum().backward()


def test_atomics_are_an_error_where_torch_is_told_to_be_deterministic(device):
    query, latent, scale = make_inputs(1, 40, 5, 128, "normal", device=device)
    latent.requires_grad_()
    out, _ = sparse_mla(query, latent, random_indices(1, 40, 20, device=device), scale=scale, value_dim=64)
    with (
        told_to_be_deterministic(),
        pytest.raises(RuntimeError, match="sparse_mla is not deterministic: the gradient of latent is summed by"),
    ):
        out.sum().backward()


# ---------------------------------------------------------------------------------------------- wrong


@pytest.mark.parametrize(
    ("right", "wrong"),
    every_second(
        [
            ("0 <= s && s < T ? s : -1", "max(s, 0) < T ? max(s, 0) : -1"),
            ("if (masked) mask_scores", "if (false) mask_scores"),
            ("sums.l[r] *= tile.rescale[head", "sums.l[r] *= tile.rescale[0 * head"),
            (
                "multiply(sums.O[c], p, at(by_rows(latent[column / D + c])",
                "multiply(sums.O[c], p, at(by_rows(latent[c])",
            ),
            ("m_new = fmaxf(m_new, tile.by_warp[w][row] * factor)", "m_new = tile.by_warp[w][row] * factor"),
            ("if (__syncthreads_or(too_high)) {", "if (__syncthreads_or(too_high) && j == 0) {"),
        ]
    ),
)
def test_a_broken_kernel_fails_the_check(break_kernel, right, wrong):
    break_kernel(SPARSE_MLA, right, wrong)
    with pytest.raises(AssertionError, match="WRONG"):
        for kind in ("tenth", "overflowing exp"):
            check(2, 150, 70, 200, (192, 128), kind)


def test_a_broken_dense_kernel_fails_the_check(break_kernel):
    break_kernel("05_deepseek_sparse/mla_dense.cu", "t + T - S + 1", "t + T - S")
    with pytest.raises(AssertionError, match="WRONG"):
        check(3, 40, 5, 0, (128, 64))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("(dP[n][2 * r + e] - delta)", "dP[n][2 * r + e]"),
        ("if (column < D_V) multiply_by_heads", "if (false) multiply_by_heads"),
        ("0 <= s && s < T ? s : -1", "max(s, 0) < T ? max(s, 0) : -1"),
    ],
)
def test_a_broken_backward_kernel_fails_the_check(break_kernel, right, wrong):
    break_kernel("05_deepseek_sparse/sparse_mla_backward.cu", right, wrong)
    with pytest.raises(AssertionError, match="WRONG"):
        check_gradients(3, 50, 20, 64, (128, 64), "normal")


def test_a_missing_barrier_is_a_race(break_kernel):
    break_kernel(SPARSE_MLA, "masked = __syncthreads_or(incomplete)", "masked = true")
    query, latent, scale = make_inputs(1, 90, 5, 128, "normal")
    with sanitize() as report:
        sparse_mla(query, latent, random_indices(1, 90, 140), scale=scale, value_dim=64)
    assert any(finding.tool == "racecheck" for finding in report.findings)


# ---------------------------------------------------------------------------------------------- bad input

QUERY, LATENT = torch.zeros(3, 2, 128, dtype=BF16), torch.zeros(5, 128, dtype=BF16)
INDICES = torch.zeros(3, 4, dtype=torch.int32)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"query": [1]}, TypeError, r"query is a list; it must be a torch tensor \[S, H, d\]"),
        ({"query": QUERY[0]}, ValueError, r"query has shape \[2, 128\]; it must be \[S, H, d\]"),
        ({"query": QUERY[:0]}, ValueError, r"query has shape \[0, 2, 128\]; it must be \[S, H, d\], none of them 0"),
        ({"query": QUERY.float()}, TypeError, "query has dtype torch.float32; it must be torch.float16 or"),
        ({"latent": LATENT.half()}, TypeError, "latent has dtype torch.float16; it must be torch.bfloat16, like query"),
        ({"latent": LATENT[None]}, ValueError, r"latent has shape \[1, 5, 128\]; it must be \[T, 128\]"),
        ({"latent": LATENT[:, :64]}, ValueError, r"latent has shape \[5, 64\]; it must be \[T, 128\]"),
        ({"latent": LATENT.to("meta")}, ValueError, "latent is on meta; it must be on cpu, like query"),
        ({"value_dim": 129}, ValueError, "value_dim is 129; it must be an integer from 1 to 128"),
        ({"value_dim": 0}, ValueError, "value_dim is 0"),
        ({"value_dim": 64.0}, TypeError, "value_dim is 64.0; it must be an integer"),
        ({"scale": None}, TypeError, "scale is None; it must be a number"),
        ({"scale": float("nan")}, ValueError, "scale is nan; it must be a finite number"),
        ({"latent": LATENT.to_sparse()}, TypeError, "latent has layout torch.sparse_coo; it must be torch.strided"),
        ({"indices": [0]}, TypeError, "indices is a list"),
        ({"indices": INDICES.float()}, TypeError, "indices has dtype torch.float32; it must be torch.int32 or"),
        ({"indices": INDICES[:2]}, ValueError, r"indices has shape \[2, 4\]; it must be \[3, k\]"),
        ({"indices": INDICES[:, :0]}, ValueError, r"indices has shape \[3, 0\].* none of them 0"),
        ({"indices": INDICES.to("meta")}, ValueError, "indices is on meta; it must be on cpu"),
    ],
    ids=str,
)
def test_bad_input(change, error, message):
    values = {"query": QUERY, "latent": LATENT, "indices": INDICES, "scale": 1.0, "value_dim": 64} | change
    with pytest.raises(error, match=message):
        sparse_mla(values.pop("query"), values.pop("latent"), values.pop("indices"), **values)


def test_bad_input_of_dense_attention():
    with pytest.raises(TypeError, match="is_causal is 1; it must be True or False"):
        mla_attention(QUERY, LATENT, scale=1.0, value_dim=64, is_causal=1)
    wide = torch.zeros(1, 1, 640, dtype=BF16)
    with pytest.raises(ValueError, match="query has d = 640; it must be at most 576"):
        mla_attention(wide, wide[0], scale=1.0)
    with pytest.raises(ValueError, match="value_dim is 513; it must be an integer from 1 to 512"):
        mla_attention(wide[..., :576], wide[0, :, :576], scale=1.0, value_dim=513)
