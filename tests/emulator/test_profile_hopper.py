"""What a kernel for sm_90a asks of tensor cores and of the copy engine, line by line, and which of its warps wait."""

import numpy as np
import pytest
import torch

from course_utils.emulator import counters_page, profile
from tests.helpers import asynchronous

# Of launches of gemm.cu (128 rows) and of cluster_gemm.cu (128 rows, pairs of blocks): K, steps of 64.
GEMM, CLUSTER = (456, 8), (328, 6)


@pytest.fixture(scope="module", params=["gemm", "cluster_gemm"])
def counted(request):
    kernel = getattr(asynchronous, request.param)()
    with profile() as counters:
        kernel.choose(asynchronous.NONE)
        assert all(launch() < 2e-3 for launch in kernel.launches)
    return request.param, kernel, counters


def figures(counters, line):
    (row,) = [row for row in counters.asynchronous if row.line == line]
    return row.operation, row.count, row.flops, row.global_bytes, row.shared_bytes


def test_products_copies_and_their_bytes(counted):
    name, kernel, counters = counted
    depth, steps = GEMM if name == "gemm" else CLUSTER
    products = 2 * 4 * steps  # of both warpgroups, or of both blocks
    flops, read = products * 2 * 64 * 64 * 16, products * (64 + 64) * 16 * 2
    assert figures(counters, kernel.line("multiply_transposed(d, factor")) == ("wgmma", products, flops, 0, read)
    assert counters.product_flops == flops
    stored = ("copy out", 2, 0, 2 * 64 * 64 * 4, 2 * 64 * 64 * 4)
    assert figures(counters, kernel.line("        store(D, ")) == stored
    # Inside the tensor there are `depth` columns; a box has 64 of them at each step.
    if name == "gemm":
        for line in ("load(shared.A[stage][0]", "load(shared.A[stage][1]", "load(shared.B[stage]"):
            assert figures(counters, kernel.line(line)) == ("copy in", steps, 0, 64 * depth * 2, 64 * 64 * steps * 2)
    else:  # each half of B is read once, and written to two blocks
        tile = ("copy in", 2 * steps, 0, 64 * depth * 2, 2 * 64 * 64 * steps * 2)
        assert figures(counters, kernel.line("load_for(3, shared")) == tile
        rows = ("copy in", 2 * steps, 0, 128 * depth * 2, 128 * 64 * steps * 2)
        assert figures(counters, kernel.line("load(shared.A[stage]")) == rows


def test_what_is_copied_belongs_to_the_footprint(counted):
    name, _, counters = counted
    depth = (GEMM if name == "gemm" else CLUSTER)[0]
    footprint = [(part.bytes_read, part.bytes_written) for part in counters.footprint]
    assert footprint == [(128 * depth * 2, 0), (64 * depth * 2, 0), (0, 128 * 64 * 4)]


def test_roles_are_known_by_where_they_wait(counted):
    name, kernel, counters = counted
    consumers, producer = counters.roles
    assert (consumers.warps, producer.warps) == (((*range(8),), (8,)) if name == "gemm" else ((0, 1, 2, 3), (4,)))
    full, empty = kernel.line("wait(&shared.full[stage]"), kernel.line("wait(&shared.empty[stage]")
    assert full in consumers.lines and empty in producer.lines and not {full} & {*producer.lines}
    waits = [row for row in counters.asynchronous if row.operation == "wait"]
    assert sum(row.idle_turns for row in waits) == consumers.idle_turns + producer.idle_turns > 0
    (row,) = [row for row in waits if row.line == empty]
    assert row.count == (GEMM[1] - 3 if name == "gemm" else 2 * (CLUSTER[1] - 2))


def test_they_stand_in_the_text_and_on_the_page(counted):
    _, _, counters = counted
    text, page = str(counters), counters_page(counters)
    for row in counters.asynchronous:
        assert row.operation in text and row.operation in page
        assert f"{row.count:,}" in text and f"{row.count:,}" in page
    assert "idle turns" in text and "idle turns" in page and "warps 0, 1, 2, 3" in page


WARPS_BEFORE_THE_WAIT = (0, 2, 4)


@pytest.mark.parametrize("before", WARPS_BEFORE_THE_WAIT)
def test_exponentials_are_counted_and_those_beside_a_product(run_kernel, before):
    """The first warps compute one while their product runs, the others when it is over."""
    code = """// arch: sm_90a only
    #include "warpgroup.cuh"
    __device__ inline float exponential(float x) {
        float y;
        asm volatile("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
        return y;
    }
    extern "C" __global__ void k(float* out, int before) {
        __shared__ __align__(1024) scalar_t tile[64 * 64];
        for (int i = threadIdx.x; i < 64 * 64; i += 128) tile[i] = scalar_t(0.f);
        publish_tile();
        __syncthreads();
        float d[32] = {}, y = 0;
        wgmma_fence();
        multiply_transposed(d, descriptor(tile), descriptor(tile), 0);
        wgmma_commit();
        if (threadIdx.x / 32 < before) y = exponential(threadIdx.x % 8);
        wgmma_wait<0>(d);
        if (threadIdx.x / 32 >= before) y = exponential(threadIdx.x % 8);
        out[threadIdx.x] = y + d[0];
    }"""
    out = torch.zeros(128)
    with profile() as counters:
        run_kernel(code, (1,), (128,), (out, np.int32(before)))
    assert torch.equal(out, torch.exp2(torch.arange(128) % 8).float())
    assert (counters.exponentials, counters.beside_products) == (128, 32 * before)


@pytest.mark.parametrize("ahead", (1, 2, 4))
def test_how_far_a_thread_asks_ahead_is_counted_for_one_block(run_kernel, ahead):
    """It asks for so many rows of 256 bytes before it waits for them: eight in all, by each of two blocks."""
    code = """// arch: sm_90a only
    #include "copy_engine.cuh"
    extern "C" __global__ void k(const float* rows, float* out, int ahead) {
        __shared__ __align__(16) float tile[4][64];
        __shared__ Mbarrier barrier;
        initialize(&barrier, 1);
        publish_barriers();
        for (int row = 0; row < 8; row += ahead) {
            arrive_expecting(&barrier, ahead * 256);
            for (int i = 0; i < ahead; i++) load_bytes(tile[i], rows + (row + i) * 64, 256, &barrier);
            wait_for(&barrier, row / ahead % 2);
            for (int i = 0; i < ahead; i++) out[blockIdx.x * 8 + row + i] = tile[i][5];
        }
    }"""
    rows, out = torch.arange(8 * 64.0).reshape(8, 64), torch.zeros(2, 8)
    with profile() as counters:
        run_kernel(code, (2,), (1,), (rows, out, np.int32(ahead)))
    assert torch.equal(out, rows[:, 5].expand(2, 8))
    assert counters.most_in_flight == ahead * 256
