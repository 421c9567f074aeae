"""Barriers, warp collectives, cooperative groups and atomics compute what CUDA says they compute."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from course_utils.cuda import KernelError, RawModule
from course_utils.emulator import configure


def integers(*shape):
    return torch.zeros(shape, dtype=torch.int32)


# ---- barriers


def test_a_thread_that_returned_early_counts_as_arrived(compiler, run_kernel):
    a, out = torch.arange(128, dtype=torch.int32), integers(128)
    run_kernel(
        """extern "C" __global__ void k(const int* a, int* out, int n) {
            __shared__ int s[128];
            int i = threadIdx.x;
            if (i >= n) return;
            s[i] = a[i];
            __syncthreads();
            out[i] = s[n - 1 - i];
        }""",
        (1,),
        (128,),
        (a, out, np.int32(70)),
    )
    assert out[:70].tolist() == list(range(69, -1, -1)) and not out[70:].any()


def test_an_early_return_is_accepted_in_each_alternative_of_the_preprocessor(run_kernel):
    code = """
        #if SIDE
        extern "C" __global__ void k(int* out) { if (threadIdx.x) return; __syncthreads(); out[0] = 1; }
        #else
        extern "C" __global__ void k(int* out) { if (threadIdx.x) return; __syncthreads(); out[0] = 2; }
        #endif
    """
    for side, expected in ((1, 1), (0, 2)):
        out = integers(1)
        run_kernel(code, (1,), (64,), (out,), options=(f"-DSIDE={side}",))
        assert out.item() == expected


def test_barriers_count_and_combine_predicates(run_kernel):
    out = integers(4, 100)
    run_kernel(
        """extern "C" __global__ void k(int* out) {
            int i = threadIdx.x;
            out[i] = __syncthreads_count(i % 3 == 0);
            out[100 + i] = __syncthreads_or(i == 99);
            out[200 + i] = __syncthreads_and(i < 99);
            out[300 + i] = __syncthreads_and(i < 100) + 2 * __syncthreads_or(i > 99);
        }""",
        (1,),
        (100,),
        (out,),
    )
    assert (out[0] == 34).all() and (out[1] == 1).all() and (out[2] == 0).all() and (out[3] == 1).all()


def test_a_block_of_1024_threads_sums_through_shared_memory(each_compiler, run_kernel):
    a, out = torch.arange(2048, dtype=torch.int32), integers(2)
    run_kernel(
        """extern "C" __global__ void k(const int* a, int* out) {
            __shared__ int s[1024];
            s[threadIdx.x] = a[blockIdx.x * blockDim.x + threadIdx.x];
            for (int step = 512; step; step /= 2) {
                __syncthreads();
                if (threadIdx.x < step) s[threadIdx.x] += s[threadIdx.x + step];
            }
            if (threadIdx.x == 0) out[blockIdx.x] = s[0];
        }""",
        (2,),
        (1024,),
        (a, out),
    )
    assert out.tolist() == a.view(2, 1024).sum(1).tolist()


def test_three_dimensional_grids_and_blocks_number_their_threads(run_kernel):
    out = integers(2, 3, 4, 5, 3, 2, 8)
    run_kernel(
        """extern "C" __global__ void k(int* out) {
            int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
            int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
            int* to = out + (block * blockDim.x * blockDim.y * blockDim.z + thread) * 8;
            dim3 b = blockIdx, g = gridDim;
            to[0] = b.x, to[1] = b.y, to[2] = b.z;
            to[3] = threadIdx.x, to[4] = threadIdx.y, to[5] = threadIdx.z;
            to[6] = g.x * 100 + g.y * 10 + g.z, to[7] = blockDim.x * 100 + blockDim.y * 10 + blockDim.z;
        }""",
        (4, 3, 2),
        (2, 3, 5),
        (out,),
    )
    axes = torch.meshgrid(*[torch.arange(n) for n in (2, 3, 4, 5, 3, 2)], indexing="ij")
    bz, by, bx, tz, ty, tx = axes
    for column, expected in enumerate((bx, by, bz, tx, ty, tz)):
        assert torch.equal(out[..., column], expected.int())
    assert (out[..., 6] == 432).all() and (out[..., 7] == 235).all()


@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_operating_system_threads_changes_no_result(threads, run_kernel):
    out = integers(50, 64)
    with configure(threads=threads):
        run_kernel(
            """extern "C" __global__ void k(int* out) {
                __shared__ int s[64];
                s[threadIdx.x] = blockIdx.x * 64 + threadIdx.x;
                __syncthreads();
                out[blockIdx.x * 64 + threadIdx.x] = s[63 - threadIdx.x];
            }""",
            (50,),
            (64,),
            (out,),
        )
    assert torch.equal(out, torch.arange(3200, dtype=torch.int32).view(50, 64).flip(1))


def test_more_operating_system_threads_than_their_stacks_allow_are_not_started(run_kernel):
    out = integers(200)
    with configure(threads=100):
        run_kernel(
            'extern "C" __global__ void k(int* out) { atomicAdd(&out[blockIdx.x], 1); }', (200,), (1024,), (out,)
        )
    assert (out == 1024).all()


# ---- shuffles, votes, matches, reductions


def shuffle_source(kind, lane, argument, width):
    """The lane whose value `lane` gets, by the CUDA C++ Programming Guide, section "Warp Shuffle Functions"."""
    first = lane - lane % width
    if kind == "":
        return first + argument % width
    if kind == "_up":
        return lane - argument if lane - argument >= first else lane
    if kind == "_down":
        return lane + argument if lane + argument < first + width else lane
    source = lane ^ argument  # may read from an earlier segment, not from a later one
    return source if source < first + width else lane


@pytest.mark.parametrize("kind", ["", "_up", "_down", "_xor"])
def test_shuffles_read_the_lane_that_cuda_defines(kind, compiler, run_kernel):
    cases = [(argument, width) for width in (2, 4, 8, 16, 32) for argument in (0, 1, 2, 3, 5, 8, 16, 17, 31)]
    out = integers(len(cases), 32)
    calls = "\n".join(
        f"out[{32 * row} + threadIdx.x] = __shfl{kind}_sync(0xffffffffu, threadIdx.x, {argument}, {width});"
        for row, (argument, width) in enumerate(cases)
    )
    run_kernel(f'extern "C" __global__ void k(int* out) {{ {calls} }}', (1,), (32,), (out,))
    for row, (argument, width) in zip(out.tolist(), cases, strict=True):
        assert row == [shuffle_source(kind, lane, argument, width) for lane in range(32)], (argument, width)


def test_shuffles_carry_every_type(run_kernel):
    out = torch.zeros(5, 32, dtype=torch.float64)
    run_kernel(
        """#include <cuda_fp16.h>
        extern "C" __global__ void k(double* out) {
            int i = threadIdx.x;
            out[i] = __shfl_xor_sync(~0u, i + 0.25, 1);
            out[32 + i] = __shfl_xor_sync(~0u, i + 0.25f, 1);
            out[64 + i] = __shfl_xor_sync(~0u, (long long)i << 40, 1);
            out[96 + i] = __half2float(__shfl_xor_sync(~0u, __float2half(i + 0.25f), 1));
            out[128 + i] = __high2float(__shfl_xor_sync(~0u, __floats2half2_rn(0.0f, i), 1));
        }""",
        (1,),
        (32,),
        (out,),
    )
    partner = torch.arange(32, dtype=torch.float64).view(-1, 2).flip(1).flatten()
    assert torch.equal(out, torch.stack([partner + 0.25, partner + 0.25, partner * 2.0**40, partner + 0.25, partner]))


def test_votes_and_matches(run_kernel):
    out = torch.zeros(9, 32, dtype=torch.int64)
    run_kernel(
        """extern "C" __global__ void k(long long* out) {
            int i = threadIdx.x;
            out[i] = __ballot_sync(~0u, i & 1);
            out[32 + i] = __any_sync(~0u, i == 31);
            out[64 + i] = __any_sync(~0u, i == 32);
            out[96 + i] = __all_sync(~0u, i < 32);
            out[128 + i] = __all_sync(~0u, i < 31);
            out[160 + i] = __match_any_sync(~0u, i / 10);
            if (i < 8) out[192 + i] = __ballot_sync(0xffu, i > 3);
            else out[192 + i] = __ballot_sync(0xffffff00u, i > 30);
            int all;
            out[224 + i] = __match_all_sync(~0u, 7, &all) - all;
            out[256 + i] = __match_all_sync(~0u, i / 31, &all) + all;
        }""",
        (1,),
        (32,),
        (out,),
    )
    groups = [0x3FF, 0x3FF << 10, 0x3FF << 20, 3 << 30]
    assert (out[0] == 0xAAAAAAAA).all()
    assert [row.unique().tolist() for row in out[1:5]] == [[1], [0], [1], [0]]
    assert out[5].tolist() == [groups[i // 10] for i in range(32)]
    assert out[6].tolist() == [0xF0] * 8 + [0x80000000] * 24
    assert (out[7] == 0xFFFFFFFF - 1).all() and (out[8] == 0).all()


def test_warp_reductions(run_kernel):
    out = torch.zeros(6, 32, dtype=torch.int64)
    run_kernel(
        """extern "C" __global__ void k(long long* out) {
            unsigned i = threadIdx.x;
            out[i] = __reduce_add_sync(~0u, i);
            out[32 + i] = __reduce_min_sync(~0u, (int)i - 7);
            out[64 + i] = __reduce_max_sync(~0u, i);
            out[96 + i] = __reduce_and_sync(~0u, i | 5);
            out[128 + i] = __reduce_or_sync(~0u, i);
            out[160 + i] = __reduce_xor_sync(~0u, i);
        }""",
        (1,),
        (32,),
        (out,),
    )
    assert out.tolist() == [[496] * 32, [-7] * 32, [31] * 32, [5] * 32, [31] * 32, [0] * 32]


def test_a_collective_of_some_lanes_leaves_the_others_alone(run_kernel):
    out = integers(32)
    run_kernel(
        """extern "C" __global__ void k(int* out) {
            int i = threadIdx.x;
            if (i % 2) out[i] = __shfl_xor_sync(0xaaaaaaaau, i, 2);
            else { __syncwarp(0x55555555u); out[i] = -__shfl_down_sync(0x55555555u, i, 4); }
        }""",
        (1,),
        (32,),
        (out,),
    )
    expected = [i ^ 2 if i % 2 else -(i + 4 if i + 4 < 32 else i) for i in range(32)]
    assert out.tolist() == expected


def test_a_collective_goes_on_without_lanes_that_have_exited(run_kernel):
    out = integers(40)
    run_kernel(
        """extern "C" __global__ void k(int* out) {
            if (threadIdx.x % 32 >= 20) return;
            out[threadIdx.x] = __popc(__ballot_sync(~0u, 1));
        }""",
        (1,),
        (40,),
        (out,),
    )
    assert out.tolist() == [20] * 20 + [0] * 12 + [8] * 8


def test_a_warp_exchanges_shared_memory_between_syncwarps(run_kernel):
    out = integers(64)
    run_kernel(
        """extern "C" __global__ void k(int* out) {
            __shared__ int s[64];
            int i = threadIdx.x;
            s[i] = i;
            for (int step = 0; step < 5; step++) {
                __syncwarp();
                int next = s[(i & 32) | ((i + 1) & 31)];
                __syncwarp();
                s[i] = next;
            }
            out[i] = s[i];
        }""",
        (1,),
        (64,),
        (out,),
    )
    assert out.tolist() == [(i & 32) | ((i + 5) & 31) for i in range(64)]


# ---- cooperative groups


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 32])
def test_tiles_reduce_and_shuffle_among_themselves(size, run_kernel):
    a, out = torch.arange(96, dtype=torch.float32) ** 2, torch.zeros(6, 96)
    run_kernel(
        """#include <cooperative_groups.h>
        #include <cooperative_groups/reduce.h>
        namespace cg = cooperative_groups;
        extern "C" __global__ void k(const float* a, float* out) {
            cg::thread_block block = cg::this_thread_block();
            auto tile = cg::tiled_partition<SIZE>(block);
            int i = block.thread_rank();
            out[i] = cg::reduce(tile, a[i], cg::plus<float>());
            out[96 + i] = cg::reduce(tile, a[i], cg::less<float>());
            out[192 + i] = cg::reduce(tile, a[i], cg::greater<float>());
            out[288 + i] = tile.shfl(a[i], SIZE - 1);
            out[384 + i] = tile.meta_group_rank() * 100 + tile.thread_rank();
            out[480 + i] = __popc(tile.ballot(1)) + tile.any(tile.thread_rank() == 0) + tile.all(i >= 0);
            tile.sync();
            cg::sync(block);
        }""",
        (1,),
        (96,),
        (a, out),
        options=(f"-DSIZE={size}",),
    )
    tiles = a.view(-1, size)
    rank = torch.arange(96)
    expected = [tiles.sum(1), tiles.amin(1), tiles.amax(1), tiles[:, -1]]
    assert torch.equal(out[:4], torch.stack([row.repeat_interleave(size) for row in expected]))
    assert torch.equal(out[4], (rank // size * 100 + rank % size).float())
    assert (out[5] == size + 2).all()


# ---- atomics


def test_on_sm_90_neighbours_are_added_together(run_kernel):
    sums, before = torch.zeros(6), torch.zeros(6)
    code = """// arch: sm_90a only
        extern "C" __global__ void k(float* sums, float* before) {
            float4 four = atomicAdd((float4*)sums, make_float4(1, 2, 3, 4));
            float2 two = atomicAdd((float2*)(sums + 4), make_float2(5, 6));
            if (threadIdx.x == 1) *(float4*)before = four, *(float2*)(before + 4) = two;
        }"""
    run_kernel(code, (1,), (2,), (sums, before))
    assert sums.tolist() == [2, 4, 6, 8, 10, 12]
    assert before.tolist() == [1, 2, 3, 4, 5, 6]
    with pytest.raises(KernelError, match="misaligned address: a vector lies at a multiple of its size"):
        run_kernel(code.replace("(float4*)sums", "(float4*)(sums + 1)"), (1,), (2,), (sums, before))


def test_atomics_of_many_blocks_lose_nothing(compiler, run_kernel):
    integer, floating = torch.zeros(10, dtype=torch.int32), torch.zeros(2)
    integer[6] = -1
    double = torch.zeros(1, dtype=torch.float64)
    run_kernel(
        """extern "C" __global__ void k(int* n, float* f, double* d) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            atomicAdd(&n[0], 1);
            atomicSub(&n[1], 2);
            atomicMax(&n[2], i);
            atomicMin(&n[3], -i);
            atomicOr(&n[4], 1 << (i & 15));
            atomicXor(&n[5], i);
            atomicAnd(&n[6], ~(1 << (i & 7)));
            atomicInc((unsigned*)&n[7], 4u);
            atomicDec((unsigned*)&n[8], 4u);
            atomicAdd((unsigned long long*)&f[0], 0ull);
            atomicAdd(&f[1], 0.5f);
            atomicAdd(d, 0.25);
        }""",
        (50,),
        (100,),
        (integer, floating, double),
    )
    xor = int(np.bitwise_xor.reduce(np.arange(5000)))
    assert integer.tolist() == [5000, -10000, 4999, -4999, 0xFFFF, xor, -256, 0, 0, 0]
    assert floating.tolist() == [0, 2500] and double.item() == 1250


def test_atomics_return_the_old_value(run_kernel):
    ticket, out = integers(1), integers(640)
    run_kernel(
        'extern "C" __global__ void k(int* ticket, int* out) { out[atomicAdd(ticket, 1)] += 1; }',
        (10,),
        (64,),
        (ticket, out),
    )
    assert (out == 1).all()


@pytest.mark.parametrize("take", ["atomicCAS(lock, 0, 1) != 0", "atomicExch(lock, 1) != 0"])
def test_a_spin_lock_guards_its_counter(take, compiler, run_kernel):
    lock, count = integers(1), integers(1)
    run_kernel(
        f"""extern "C" __global__ void k(int* lock, volatile int* count) {{
            while ({take}) {{}}
            int before = *count;
            __nanosleep(100);
            *count = before + 1;
            __threadfence();
            atomicExch(lock, 0);
        }}""",
        (6,),
        (48,),
        (lock, count),
    )
    assert (lock.item(), count.item()) == (0, 288)


def test_a_thread_that_polls_with_an_atomic_lets_the_other_go_on(run_kernel):
    flag, out = integers(1), integers(1)
    run_kernel(
        """extern "C" __global__ void k(int* flag, int* out) {
            if (threadIdx.x == 0) { while (atomicAdd(flag, 0) == 0) {} out[0] = 1; }
            if (threadIdx.x == 63) atomicExch(flag, 1);
        }""",
        (1,),
        (64,),
        (flag, out),
    )
    assert out.item() == 1


def test_the_last_block_sees_what_the_others_wrote(run_kernel):
    partial, counter, out = integers(40), integers(1), integers(1)
    run_kernel(
        """extern "C" __global__ void k(int* partial, int* counter, int* out) {
            __shared__ bool last;
            if (threadIdx.x == 0) {
                partial[blockIdx.x] = blockIdx.x;
                __threadfence();
                last = atomicAdd(counter, 1) == gridDim.x - 1;
            }
            __syncthreads();
            if (last) atomicAdd(out, threadIdx.x < 40 ? ((volatile int*)partial)[threadIdx.x] : 0);
        }""",
        (40,),
        (64,),
        (partial, counter, out),
    )
    assert out.item() == sum(range(40))


def test_two_python_threads_launch_at_the_same_time():
    module = RawModule(
        code='extern "C" __global__ void k(int* out, int n) { atomicAdd(&out[threadIdx.x], n); }', options=("-DTWO",)
    )

    def work(n):
        out = integers(64)
        for _ in range(5):
            module.get_function("k")((8,), (64,), (out, np.int32(n)))
        return out

    with ThreadPoolExecutor(4) as pool:
        for n, out in enumerate(pool.map(work, range(8))):
            assert (out == 40 * n).all()
