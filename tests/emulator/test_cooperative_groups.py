"""Cooperative groups: ranks, sizes and exchanges of blocks, grids, tiles, and the lanes that are active together."""

import numpy as np
import pytest
import torch

from course_utils.cuda import KernelError, RawModule
from course_utils.emulator import sanitize

CODE = """
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cooperative_groups/memcpy_async.h>
namespace cg = cooperative_groups;

KERNEL grid(int* out) {
    cg::grid_group g = cg::this_grid();
    cg::thread_block b = cg::this_thread_block();
    int* o = out + 8 * g.thread_rank();
    o[0] = g.thread_rank(), o[1] = g.block_rank(), o[2] = g.num_blocks(), o[3] = g.size(), o[4] = b.thread_rank();
    o[5] = b.group_index().y, o[6] = b.thread_index().x, o[7] = g.dim_blocks().x;
}
KERNEL grid_sync(int* out) {
    cg::this_grid().sync();
    out[0] = 1;
}
KERNEL tiles(int* out) {
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    cg::thread_block_tile<8, cg::thread_block_tile<32, cg::thread_block>> inner = cg::tiled_partition<8>(warp);
    cg::thread_block_tile<8> outer = cg::tiled_partition<8>(cg::this_thread_block());
    int* o = out + 8 * threadIdx.x;
    o[0] = inner.thread_rank(), o[1] = inner.meta_group_rank(), o[2] = inner.meta_group_size();
    o[3] = outer.meta_group_rank(), o[4] = outer.meta_group_size();
    o[5] = inner.match_any(threadIdx.x / 2), o[6] = inner.shfl((int)threadIdx.x, 1);
    o[7] = cg::reduce(inner, (int)threadIdx.x, cg::plus<int>());
}
KERNEL chosen(int* out) {
    cg::thread_group block = cg::this_thread_block();
    cg::thread_group four = cg::tiled_partition(block, 4);
    int* o = out + 4 * threadIdx.x;
    o[0] = four.thread_rank(), o[1] = four.size(), o[2] = block.size();
    four.sync(), block.sync();
    o[3] = cg::tiled_partition(four, 2).thread_rank();
}
KERNEL active(int* out) {
    const int t = threadIdx.x;
    int* o = out + 8 * t;
    if (t % 3 == 0) {
        cg::coalesced_group g = cg::coalesced_threads();
        o[0] = g.size(), o[1] = g.thread_rank(), o[2] = g.shfl(t, 1), o[3] = g.shfl_down(t, 1), o[4] = g.ballot(t > 10);
        o[5] = cg::reduce(g, t, cg::greater<int>()), o[6] = cg::inclusive_scan(g, t), o[7] = cg::exclusive_scan(g, 1);
    }
}
KERNEL partitions(int* out) {
    const int t = threadIdx.x;
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    auto labelled = cg::labeled_partition(warp, t % 5);
    auto halves = cg::binary_partition(cg::coalesced_threads(), t >= 10);
    int* o = out + 6 * t;
    o[0] = labelled.size(), o[1] = labelled.thread_rank();
    o[2] = labelled.meta_group_rank(), o[3] = labelled.meta_group_size();
    o[4] = halves.size(), o[5] = halves.thread_rank();
}
KERNEL count_odd(unsigned* count, const int* values, int n) {     // one atomic for all active threads
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && values[i] % 2) {
        auto g = cg::coalesced_threads();
        if (g.thread_rank() == 0) atomicAdd(count, g.size());
    }
}
KERNEL once(int* out) {
    auto tile = cg::tiled_partition<4>(cg::this_thread_block());
    cg::invoke_one(tile, [&] { atomicAdd(out + 32, 1); });
    out[threadIdx.x] = cg::invoke_one_broadcast(tile, [&] { return (int)threadIdx.x; });
}
KERNEL copies(float* out, const float* in) {
    __shared__ alignas(16) float s[67];
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, s, in, sizeof(float) * 35);
    cg::memcpy_async(block, s + 35, 40, in + 35, 32);
    cg::wait(block);
    for (int i = threadIdx.x; i < 67; i += 32) out[i] = s[66 - i];
}
""".replace("KERNEL", 'extern "C" __global__ void')


@pytest.fixture(scope="module")
def launch():
    module = RawModule(code=CODE)

    def run(name, grid, block, *arguments):
        module.get_function(name)(grid, block, arguments)

    return run


def ints(*shape):
    return torch.zeros(shape, dtype=torch.int32)


def test_ranks_in_a_grid(launch):
    out = ints(48, 8)
    launch("grid", (3, 2), (8,), out)
    for n, row in enumerate(out.tolist()):
        assert row == [n, n // 8, 6, 48, n % 8, n // 24, n % 8, 3]


def test_a_grid_of_several_blocks_meets_in_a_cooperative_launch_only(launch):
    out = ints(1)
    launch("grid_sync", (1,), (64,), out)
    assert out.item() == 1
    with pytest.raises(KernelError, match=r"several blocks needs a cooperative launch"):
        launch("grid_sync", (2,), (64,), out)


def test_tiles_count_within_their_parent(launch):
    out = ints(64, 8)
    launch("tiles", (1,), (64,), out)
    for t, row in enumerate(out.tolist()):
        first = t // 8 * 8
        assert row == [t % 8, t // 8 % 4, 4, t // 8, 8, 3 << (t % 8 // 2 * 2), first + 1, 8 * first + 28]


def test_a_group_whose_kind_is_chosen_at_run_time(launch):
    out = ints(64, 4)
    launch("chosen", (1,), (64,), out)
    assert out.tolist() == [[t % 4, 4, 64, t % 2] for t in range(64)]


def test_active_lanes_are_a_group(launch):
    out = ints(32, 8)
    launch("active", (1,), (32,), out)
    lanes = list(range(0, 32, 3))
    for t, row in enumerate(out.tolist()):
        if t % 3:
            assert row == [0] * 8
            continue
        rank = t // 3
        following = min(t + 3, 30)
        assert row == [11, rank, 3, following, 0b11111110000, 30, sum(lanes[: rank + 1]), rank]


def test_partitions_by_label_and_by_truth(launch):
    out = ints(32, 6)
    launch("partitions", (1,), (32,), out)
    for t, row in enumerate(out.tolist()):
        assert row == [len(range(t % 5, 32, 5)), t // 5, t % 5, 5, *((22, t - 10) if t >= 10 else (10, t))]


def test_one_atomic_for_all_active_lanes(launch):
    values = torch.randint(0, 100, (200,), dtype=torch.int32)
    count = ints(1)
    launch("count_odd", (4,), (64,), count, values, np.int32(200))
    assert count.item() == int((values % 2).sum())


def test_one_thread_of_a_tile_does_it_for_all(launch):
    out = ints(33)
    launch("once", (1,), (32,), out)
    assert out.tolist() == [t // 4 * 4 for t in range(32)] + [8]


def test_a_group_copies_to_shared_memory(launch):
    out, values = torch.zeros(67), torch.randn(67)
    launch("copies", (1,), (32,), out, values)
    assert torch.equal(out, values.flip(0))
    with sanitize() as report:
        launch("copies", (1,), (32,), out, values)
    assert not report.findings
