"""Clusters of blocks, and what else an sm_90a has, used wrongly; used rightly: tests/nvidia/test_silicon.py."""

import pytest
import torch

from course_utils.cuda import KernelError, LaunchError
from tests.nvidia.silicon.others import BARRIERS, CLUSTERS, kernel


def run_body(run_kernel, body, *, threads=64, blocks=1, grid=None):
    out = torch.full((2048,), -1, dtype=torch.int32)
    run_kernel(
        kernel(body, threads, blocks), (grid or blocks,), (threads,), (out, torch.arange(256, dtype=torch.int32))
    )
    return out


def test_blocks_of_a_cluster_see_what_the_others_wrote(run_kernel):
    out = run_body(run_kernel, CLUSTERS["shared memory of the others"], blocks=4, grid=8)
    i, block = torch.arange(64), torch.arange(8)[:, None]
    assert torch.equal(out[:512].view(8, 64), (100 * ((block + 1) % 4) + i).int())
    assert torch.equal(out[512:1024].view(8, 64), (1000 * ((block - 1) % 4) + i).int())


ONE_IS_MISSING = """
    if (me == 1 && i == 5) {
        init(&bar[0], 1);
        wait(&bar[0], 0);
    }
    together();"""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            ONE_IS_MISSING,
            r"deadlock: .* in barrier\.cluster \(1 threads of the cluster are missing\)|parity 0 of an mbarrier",
        ),
        ("out[0] = of_block(out, 2);", r"mapa: the cluster has blocks 0 to 1, got 2"),
        ('asm volatile("barrier.cluster.wait.acquire.aligned;");', "this thread has not arrived"),
        ('asm volatile("barrier.cluster.arrive;");' * 2, "this thread has arrived before, and not waited since"),
        ("if (me == 0) wait((void*)__cvta_shared_to_generic(of_block(&bar[0], 1)), 0);", "mbarrier"),
    ],
    ids=["one is missing", "no such block", "not arrived", "arrived twice", "another's barrier"],
)
def test_a_cluster_that_is_used_wrongly(run_kernel, body, message):
    with pytest.raises(KernelError, match=message):
        run_body(run_kernel, body, blocks=2)


def test_the_memory_of_a_block_that_has_exited_is_gone(run_kernel):
    body = """
    __shared__ __align__(16) int box[4];
    together();
    if (me == 1) return;
    if (i == 0) {
        init(&bar[0], 1);
        arrive_expecting(&bar[0], 16);
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 16, [%2];"
                     :: "r"(at(box)), "l"(in), "r"(at(&bar[0])) : "memory");
    }
    asm volatile("barrier.cluster.arrive.relaxed;");    // the other block runs meanwhile, to its end
    asm volatile("barrier.cluster.wait;");
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(out[0]) : "r"(of_block(box, 1)) : "memory");"""
    with pytest.raises(KernelError, match="the shared memory of a block that has exited") as caught:
        run_body(run_kernel, body, blocks=2)
    code = kernel(body, 64, 2)
    assert caught.value.line == code.count("\n", 0, code.index("ld.shared::cluster")) + 1


def test_a_grid_is_whole_clusters(run_kernel):
    with pytest.raises(LaunchError, match=r"a grid of \(3, 1, 1\) is no multiple of the cluster's \(2, 1, 1\) blocks"):
        run_body(run_kernel, "together();", blocks=2, grid=3)


def test_registers_that_nobody_gives_back_are_said_and_do_not_hang(run_kernel):
    body = BARRIERS["registers change hands"]
    assert run_body(run_kernel, body, threads=384)[1].item() == 3
    with pytest.raises(KernelError, match=r"deadlock: .*setmaxnreg \(which needs more than the \d+ registers"):
        run_body(run_kernel, body.replace("dec.sync.aligned.u32 24", "dec.sync.aligned.u32 64"), threads=384)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('asm volatile("prefetch.tensormap [%0];" :: "l"(in));', "this is no tensor map"),
        ('asm volatile("cp.async.bulk.prefetch.L2.global [%0], 20;" :: "l"(in));', "multiples of 16 bytes"),
        (
            'asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" :: "r"(at(bar) + 4), "r"(0));',
            "a row begins at a multiple of 16 bytes",
        ),
        (
            'asm volatile("ld.global.v2.b32 {%0, %1}, [%2];" : "=r"(out[0]), "=r"(out[1]) : "l"(in + 1));',
            "misaligned address",
        ),
    ],
)
def test_an_instruction_that_is_used_wrongly_is_an_error(without_nvrtc, run_kernel, body, message):
    with pytest.raises(KernelError, match=message):
        run_body(run_kernel, body, threads=32)


def test_addresses_have_offsets_and_clocks_go_on(run_kernel):
    body = """
    const long long before = clock64();
    int value, high;
    unsigned long long now;
    asm volatile("ld.global.v2.b32 {%0, %1}, [%2 + 8];" : "=r"(value), "=r"(high) : "l"(in));
    asm volatile("st.global.b32 [%0+4], %1;" :: "l"(out), "r"(value + high) : "memory");
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (clock64() - before < 100);
    out[2] = clock64() - before >= 100 && (long long)now > before;"""
    assert run_body(run_kernel, body, threads=32)[:3].tolist() == [-1, 5, 1]


GROUPS = """// arch: sm_90a only
#include <cooperative_groups.h>
extern "C" __global__ void __cluster_dims__(BLOCKS) k(int* out) {
    __shared__ int box[32];
    auto cluster = cooperative_groups::this_cluster();
    box[threadIdx.x] = cluster.thread_rank();
    cluster.sync();
    const int next = (cluster.block_rank() + 1) % cluster.num_blocks();
    out[cluster.thread_rank()] = cluster.map_shared_rank(box, next)[threadIdx.x];
    cluster.barrier_arrive();
    cluster.barrier_wait();
}"""


def test_a_cluster_is_a_cooperative_group_and_a_macro_may_say_its_size(run_kernel):
    out = torch.zeros(4 * 32, dtype=torch.int32)
    run_kernel(GROUPS, (2, 2), (32,), (out,), options=("-DBLOCKS=2, 2, 1",))
    assert torch.equal(out, (torch.arange(128, dtype=torch.int32) + 32) % 128)


def test_a_kernel_that_is_not_for_hopper_has_no_clusters(run_kernel):
    code = 'extern "C" __global__ void __cluster_dims__(2, 1, 1) k(int* out) {}'
    with pytest.raises(LaunchError, match="clusters of kernels whose header says `arch: sm_90a only`"):
        run_kernel(code, (2,), (32,), (torch.zeros(1, dtype=torch.int32),))
