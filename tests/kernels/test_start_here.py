"""The first kernels, at sizes that fill their tiles and at sizes that do not, on outputs that start as NaN."""

import numpy as np
import pytest
import torch

from course_utils.costs import ceil_div
from course_utils.cuda import RawModule, read_kernel

THREADS = 256
MATMULS = [("matmul_naive", 32, (32, 32)), ("matmul_tiled", 32, (32, 32)), ("matmul_registers", 64, (16, 16))]


def launch(name, grid, block, *arguments):
    RawModule(code=read_kernel(f"00_start_here/{name}.cu")).get_function(name)(grid, block, arguments)


def nans(*shape, device):
    return torch.full(shape, torch.nan, device=device)


@pytest.mark.parametrize("n", [1, 255, 256, 1000])
def test_vector_add(device, n):
    a, b, c = torch.randn(n, device=device), torch.randn(n, device=device), nans(n, device=device)
    launch("vector_add", (ceil_div(n, THREADS),), (THREADS,), a, b, c, np.int32(n))
    assert torch.equal(c, a + b)


@pytest.mark.parametrize("n", [1, 100, 1000])
def test_copy(device, n):
    source, out = torch.randn(n, device=device), nans(n, device=device)
    launch("copy", (ceil_div(n, THREADS),), (THREADS,), source, out, np.int32(n))
    assert torch.equal(out, source)


@pytest.mark.parametrize("n", [1, 3, 4, 1000, 1023, 1025])
def test_copy_by_vectors_copies_the_last_few_elements_too(device, n):
    source, out = torch.randn(n, device=device), nans(n, device=device)
    launch("copy_vectors", (ceil_div(n, 4 * THREADS),), (THREADS,), source, out, np.int32(n))
    assert torch.equal(out, source)


@pytest.mark.parametrize("n", [1, 100, 1000])
@pytest.mark.parametrize("stride", [1, 2, 7, 32])
def test_a_strided_copy_also_touches_every_element(device, n, stride):
    source, out = torch.randn(n, device=device), nans(n, device=device)
    blocks = ceil_div(stride * ceil_div(n, stride), THREADS)
    launch("copy_strided", (blocks,), (THREADS,), source, out, np.int32(n), np.int32(stride))
    assert torch.equal(out, source)


@pytest.mark.parametrize("steps", [0, 1, 7, 50])
def test_a_pointer_chase_ends_where_the_walk_does(device, steps):
    ring, last = torch.randperm(50).int(), torch.full((1,), -1, dtype=torch.int32, device=device)
    launch("pointer_chase", (1,), (1,), ring.to(device), last, np.int32(steps))
    place = 0
    for _ in range(steps):
        place = int(ring[place])
    assert int(last) == place


@pytest.mark.parametrize("run", [1, 16, 32, 64])
def test_neighbours_go_the_same_way(device, run):
    out = nans(128, device=device)
    launch("two_ways", (2,), (64,), out, np.int32(1), np.int32(run))
    threads = torch.arange(128)
    start = threads % 2 * 0.25
    expected = torch.where(threads // run % 2 == 0, 0.5 * start + 0.25, start**2 - 0.25)
    assert torch.equal(out.cpu(), expected)


@pytest.mark.parametrize("name", ["transpose_naive", "transpose_tiled", "transpose_padded"])
@pytest.mark.parametrize("shape", [(1, 1), (32, 64), (33, 70), (5, 100)])
def test_transpose(device, name, shape):
    rows, cols = shape
    matrix, out = torch.randn(rows, cols, device=device), nans(cols, rows, device=device)
    grid = ceil_div(cols, 32), ceil_div(rows, 32)
    launch(name, grid, (32, 32), matrix, out, np.int32(rows), np.int32(cols))
    assert torch.equal(out, matrix.T)


@pytest.mark.parametrize("name, tile, block", MATMULS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (32, 64, 32), (33, 5, 70), (5, 40, 100), (70, 65, 17)])
def test_matmul(device, name, tile, block, shape):
    M, N, K = shape
    A, B, C = torch.randn(M, K, device=device), torch.randn(K, N, device=device), nans(M, N, device=device)
    sizes = np.int32(M), np.int32(N), np.int32(K)
    launch(name, (ceil_div(N, tile), ceil_div(M, tile)), block, A, B, C, *sizes)
    torch.testing.assert_close(C.double(), A.double() @ B.double(), rtol=0, atol=1e-6 * K)


@pytest.mark.parametrize("n, passes", [(4, 1), (1000, 3)])
def test_reread_reads_every_element_in_every_pass(device, n, passes):
    data, sums = torch.randn(n, device=device), nans(2 * 64, device=device)
    launch("reread", (2,), (64,), data, sums, np.int32(n), np.int32(passes))
    torch.testing.assert_close(sums.sum(dtype=torch.float64), passes * data.sum(dtype=torch.float64), rtol=0, atol=1e-3)
