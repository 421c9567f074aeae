"""The first kernels, at sizes that fill their tiles and at sizes that do not."""

import numpy as np
import pytest
import torch

from course_utils.costs import ceil_div
from course_utils.cuda import RawModule, read_kernel

THREADS, TILE = 256, 32


def launch(file, name, grid, block, *arguments):
    RawModule(code=read_kernel(f"00_start_here/{file}.cu")).get_function(name)(grid, block, arguments)


def nans(*shape, device):
    return torch.full(shape, torch.nan, device=device)


@pytest.mark.parametrize("n", [1, 255, 256, 1000])
def test_vector_add(device, n):
    a, b, out = torch.randn(n, device=device), torch.randn(n, device=device), nans(n, device=device)
    launch("vector_add", "vector_add", (ceil_div(n, THREADS),), (THREADS,), a, b, out, np.int64(n))
    assert torch.equal(out, a + b)


@pytest.mark.parametrize("n", [1, 100, 1000])
def test_copy(device, n):
    source, out = torch.randn(n, device=device), nans(n, device=device)
    launch("copy", "copy", (ceil_div(n, THREADS),), (THREADS,), source, out, np.int64(n))
    assert torch.equal(out, source)


@pytest.mark.parametrize("n", [1, 100, 1000])
@pytest.mark.parametrize("stride", [1, 2, 7, 32])
def test_a_strided_copy_also_touches_every_element(device, n, stride):
    source, out = torch.randn(n, device=device), nans(n, device=device)
    blocks = ceil_div(stride * ceil_div(n, stride), THREADS)
    launch("copy", "copy_strided", (blocks,), (THREADS,), source, out, np.int64(n), np.int32(stride))
    assert torch.equal(out, source)


@pytest.mark.parametrize("name", ["transpose_naive", "transpose_tiled", "transpose_padded"])
@pytest.mark.parametrize("shape", [(1, 1), (32, 64), (33, 70), (5, 100)])
def test_transpose(device, name, shape):
    rows, columns = shape
    matrix, out = torch.randn(rows, columns, device=device), nans(columns, rows, device=device)
    grid = ceil_div(columns, TILE), ceil_div(rows, TILE)
    launch("transpose", name, grid, (TILE, TILE), matrix, out, np.int32(rows), np.int32(columns))
    assert torch.equal(out, matrix.T)


@pytest.mark.parametrize("name", ["matmul_naive", "matmul_tiled"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (32, 64, 32), (33, 5, 70), (5, 40, 100)])
def test_matmul(device, name, shape):
    m, n, k = shape
    A, B, C = torch.randn(m, k, device=device), torch.randn(k, n, device=device), nans(m, n, device=device)
    sizes = np.int32(m), np.int32(n), np.int32(k)
    launch("matmul", name, (ceil_div(n, TILE), ceil_div(m, TILE)), (TILE, TILE), A, B, C, *sizes)
    torch.testing.assert_close(C.double(), A.double() @ B.double(), rtol=0, atol=1e-6 * k)
