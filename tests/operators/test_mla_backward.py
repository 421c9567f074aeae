"""sparse_mla_backward.cu by itself: every tile of it, the sums in fp32, and whom a latent row gets its gradient from.

tests/operators/test_mla.py has the gradients of the operators, and the mutations.
"""

from functools import partial

import pytest
import torch

from course_utils import checks, reference
from course_utils.emulator import sanitize
from course_utils.operators import mla
from course_utils.operators.mla import BackwardTile, sparse_mla
from tests.helpers import tensors

HALF, BF16 = torch.float16, torch.bfloat16
FULL, SMALL = (576, 512), (128, 64)
SCALE = 192**-0.5
BACKWARD = "05_deepseek_sparse/sparse_mla_backward.cu"
# P and dS are rounded to 16 bits, one number in a product each: relative errors of half a last place, some of which
# add up. The sums are in fp32, so this holds in the mean over all numbers of a gradient.
MEAN_ERROR = {BF16: 6e-3, HALF: 1e-3}
TILES = sorted(
    {tile for sizes in (mla.BACKWARD_TILES, mla.FEW_HEADS_BACKWARD_TILES) for of in sizes.values() for tile in of}
)


random = partial(tensors.random, dtype=BF16)


def random_indices(queries, tokens, k, *, device="cpu", seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, tokens + 2, (queries, k), generator=generator, dtype=torch.int32).to(device)


def make_inputs(queries, tokens, heads, dims, *, device="cpu", dtype=BF16, seed=0):
    """query, latent and the gradient of the output."""
    shapes = (queries, heads, dims[0]), (tokens, dims[0]), (queries, heads, dims[1])
    return [random(*shape, device=device, dtype=dtype, seed=seed + n) for n, shape in enumerate(shapes)]


def exact_gradients(query, latent, indices, grad_out, scale):
    inputs = [tensor.detach().double().requires_grad_() for tensor in (query, latent)]
    out, _ = reference.sparse_mla(*inputs, indices, scale=scale, value_dim=grad_out.shape[2])
    return torch.autograd.grad(out, inputs, grad_out.double())


def gradients(query, latent, indices, grad_out, scale):
    """By the kernels, from what the forward kernel left; that of latent in fp32."""
    _, lse = mla.sparse_forward(query, latent, indices, scale=scale, value_dim=grad_out.shape[2])
    with checks.poisoned_outputs():
        return mla.sparse_backward(query, latent, indices, lse, grad_out, scale=scale)


def check(query, latent, indices, grad_out, scale=SCALE):
    """Each number by the rule of the course, against the floor alone, and all together more closely."""
    expected = exact_gradients(query, latent, indices, grad_out, scale)
    results = gradients(query, latent, indices, grad_out, scale)
    for name, result, exact in zip(("dQ", "d_latent"), results, expected, strict=True):
        report = checks.error_report(result.to(query.dtype), exact, name=name)
        assert report.passed, str(report)
        size = exact.norm().clamp(min=1e-3 * grad_out.double().norm())  # where there is one key, dQ is 0
        error = (result.double() - exact).norm() / size
        assert error <= MEAN_ERROR[query.dtype], f"WRONG: {name}, {error} in the mean"
    return results


# ---------------------------------------------------------------------------------------------- right


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_tile(device, monkeypatch, tile, thinned):
    dims = tile.key_dim, tile.value_dim
    for sizes in (mla.BACKWARD_TILES, mla.FEW_HEADS_BACKWARD_TILES):
        monkeypatch.setitem(sizes, dims, (tile,))
    for heads, dtype in thinned([(1, HALF), (tile.block_rows + 6, BF16)], 2, TILES.index(tile) % 2):
        query, latent, grad_out = make_inputs(2, 40, heads, dims, device=device, dtype=dtype)
        check(query, latent, random_indices(2, 40, 2 * tile.block_cols + 5, device=device), grad_out)


@pytest.mark.parametrize(("heads", "dims"), [(9, SMALL), (70, (192, 128))])
def test_the_sanitizer_finds_nothing(heads, dims):
    """What several blocks add up by atomics is no race."""
    query, latent, grad_out = make_inputs(2, 40, heads, dims)
    with sanitize() as report:
        gradients(query, latent, random_indices(2, 40, 40), grad_out, SCALE)
    assert not report.findings, str(report)


@pytest.mark.parametrize(("heads", "k"), [(1, 1), (9, 65), (64, 64), (126, 100), (128, 33)])
def test_the_sizes_of_v3(device, heads, k):
    query, latent, grad_out = make_inputs(2, 90, heads, FULL, device=device, seed=heads)
    check(query, latent, random_indices(2, 90, k, device=device), grad_out)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [HALF, BF16], ids=str)
def test_many_queries_on_a_gpu(dtype):
    for n, (heads, k) in enumerate([(128, 2048), (64, 100), (16, 2048), (1, 500)]):
        query, latent, grad_out = make_inputs(60, 3000, heads, FULL, device="cuda", dtype=dtype, seed=n)
        check(query, latent, random_indices(60, 3000, k, device="cuda"), grad_out)


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_peaked_and_even_weights(device, scale):
    query, latent, grad_out = make_inputs(3, 50, 20, SMALL, device=device, dtype=HALF)
    query = 0.25 * query
    check(query, latent, random_indices(3, 50, 70, device=device), grad_out, scale)


@pytest.mark.parametrize("dtype", [HALF, BF16], ids=str)
def test_a_planted_key_that_has_most_of_the_weight(device, dtype, thinned):
    """dP - delta of that key is a small difference of large numbers; from the rounded output delta is too coarse."""
    query, latent, grad_out = make_inputs(1, 64, 64, FULL, device=device, dtype=dtype)
    planted = latent[5].float()
    for logit in thinned([4, 7, 10, 14], 2, dtype == BF16):
        toward = (0.1 * query + planted / planted.square().sum() * logit / SCALE).to(dtype)
        check(toward, latent, torch.arange(64, dtype=torch.int32, device=device)[None], grad_out)


# ---------------------------------------------------------------------------------------------- whose gradient


def test_what_stands_twice_in_a_list_earns_twice(device):
    """One token, listed n times: each copy has weight 1 / n, so out = V and d_latent is the sum of dO whatever n is;
    beside another token the weights change, as float64 says."""
    query, latent, grad_out = make_inputs(1, 4, 3, SMALL, device=device)
    for indices in ([2], [2, 2], [2] * 40, [2, 0, 2], [2, 0, 2, 2, -1, 0, 9]):
        listed = torch.tensor([indices], dtype=torch.int32, device=device)
        _, grad_latent = check(query, latent, listed, grad_out)
        if set(indices) == {2}:
            total = grad_out[0].float().sum(0)
            torch.testing.assert_close(grad_latent[2, :64], total, rtol=2e-2, atol=2e-2)


def test_queries_and_head_blocks_that_share_a_token_add_up(device):
    query, latent, grad_out = make_inputs(5, 30, 70, SMALL, device=device)
    indices = torch.arange(20, dtype=torch.int32, device=device).repeat(5, 1)
    _, together = check(query, latent, indices, grad_out)
    alone = sum(
        gradients(query[t : t + 1], latent, indices[t : t + 1], grad_out[t : t + 1], SCALE)[1] for t in range(5)
    )
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


def test_nobodys_rows_and_empty_lists_have_exactly_no_gradient(device):
    query, latent, grad_out = make_inputs(3, 40, 20, SMALL, device=device)
    indices = random_indices(3, 10, 50, device=device)
    indices[indices >= 10] = 40  # out of range, as 10 and 11 no longer are
    indices[1] = -1
    grad_query, grad_latent = check(query, latent, indices, grad_out)
    assert not grad_query[1].any() and not grad_latent[10:].any()
    assert grad_query[0].any() and grad_latent[:10].any(dim=1).all()


@pytest.mark.parametrize("scale", [-0.1, 0.0])
def test_scales_that_the_kernels_do_not_take(device, scale):
    query, latent, grad_out = make_inputs(2, 40, 5, (100, 50), device=device)
    indices = random_indices(2, 40, 30, device=device)
    inputs = query.requires_grad_(), latent.requires_grad_()
    out, _ = sparse_mla(*inputs, indices, scale=scale, value_dim=50)
    expected = exact_gradients(query, latent, indices, grad_out, scale)
    for result, exact in zip(torch.autograd.grad(out, inputs, grad_out), expected, strict=True):
        assert checks.error_report(result, exact).passed


def test_strided_inputs_and_an_expanded_gradient(device):
    query = random(5, 2, 128, device=device).transpose(0, 1).requires_grad_()
    latent = random(128, 40, device=device).t().requires_grad_()
    indices = random_indices(2, 40, 30, device=device)
    out, _ = sparse_mla(query, latent, indices, scale=SCALE, value_dim=64)
    results = torch.autograd.grad(out.sum(), (query, latent))
    expected = exact_gradients(query, latent, indices, torch.ones_like(out), SCALE)
    for result, exact in zip(results, expected, strict=True):
        assert checks.error_report(result, exact).passed


# ---------------------------------------------------------------------------------------------- broken


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("if (lane % 4 == 0) atomicAdd(&tile.delta", "if (lane < 0) atomicAdd(&tile.delta"),
        ("if (unit < UNITS)\n", "if (unit + 1 < UNITS)\n"),
        ("for (float& x : part) x *= scale;", "for (float& x : part) x *= 1;"),
        ("return held < 0 ? 0 :", "return false ? 0 :"),
        ("const int s = held[16 * m + 8 * r + lane / 4];", "const int s = held[8 * r + lane / 4];"),
    ],
)
def test_a_broken_kernel_fails_the_check(break_kernel, monkeypatch, right, wrong):
    break_kernel(BACKWARD, right, wrong)
    query, latent, grad_out = make_inputs(2, 40, 9, SMALL)
    indices = random_indices(2, 40, 70)
    indices[1] = -1
    with pytest.raises(AssertionError, match="WRONG"):
        check(query, latent, indices, grad_out)


def test_a_missing_barrier_is_a_race(break_kernel):
    barrier = "                      __syncthreads();\n"
    break_kernel(BACKWARD, f"{barrier}                      accumulate_dQ", "accumulate_dQ")
    query, latent, grad_out = make_inputs(1, 40, 9, SMALL)
    with sanitize() as report:
        gradients(query, latent, random_indices(1, 40, 70), grad_out, SCALE)
    assert any(finding.tool == "racecheck" for finding in report.findings)


def test_shared_memory_is_what_the_header_says():
    assert BackwardTile(*FULL, 64, 32, 8).shared_bytes == 2 * 64 * (576 + 512) + 4 * 32 * 576 + 264 * 64 + 8 * 32
    assert max(tile.shared_bytes for tile in TILES) <= 232448
