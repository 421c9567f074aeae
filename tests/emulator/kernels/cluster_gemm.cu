// cluster_gemm.cu - D [M, 64] = A [M, K] B [64, K]ᵀ by pairs of blocks: each loads half of a tile of B, for both.
//
// grid   (⌈M / 128⌉ · 2), in clusters of two
// block  (160): a warpgroup of 64 rows, then the producer's warp
// layout A, B, D through tensor maps; A boxes {64, 64}, B {32, 64}, [·, K] fp16 in 128-byte swizzle; D [M, 64] fp32 {64, 64}
// shared sizeof(Shared)
// arch: sm_90a only
#include <cuda_fp16.h>
#include "../../nvidia/silicon/mbarrier.cuh"
#include "cluster.cuh"
#include "product_64.cuh"

constexpr int STAGES = 2;
struct alignas(64) TensorMap { unsigned long long words[16]; };
struct Shared {
    unsigned short A[STAGES][64 * 64], B[STAGES][64 * 64];
    float D[64 * 64];
    unsigned long long full[STAGES], empty[STAGES];
};
static_assert(sizeof(Shared) == 49184, "what who launches it asks for");

__device__ inline void load(void* to, const TensorMap& map, int row, int column, void* barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 :: "r"(at(to)), "l"(&map), "r"(column), "r"(row), "r"(at(barrier)) : "memory");
}
__device__ inline void load_for(int blocks, void* to, const TensorMap& map, int row, int column, void* barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%2, %3}], [%4], %5;"
                 :: "r"(at(to)), "l"(&map), "r"(column), "r"(row), "r"(at(barrier)), "h"((unsigned short)blocks) : "memory");
}
__device__ inline void store(const TensorMap& map, int row, const void* from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                 :: "l"(&map), "r"(0), "r"(row), "r"(at(from)) : "memory");
}
__device__ inline void produce(Shared& shared, const TensorMap& A, const TensorMap& B, int steps) {
    const int half = rank_in_cluster();
    for (int n = 0; n < steps; n++) {
        const int stage = n % STAGES;
        if (n >= STAGES) wait(&shared.empty[stage], (n / STAGES - 1) % 2);
        arrive_expecting(&shared.full[stage], 2 * 64 * 64 * 2);
        load(shared.A[stage], A, 64 * blockIdx.x, 64 * n, &shared.full[stage]);
        load_for(3, shared.B[stage] + 32 * 64 * half, B, 32 * half, 64 * n, &shared.full[stage]);
    }
}

__device__ inline void consume(Shared& shared, const TensorMap& D, int steps) {
    const int i = threadIdx.x;
    float d[32];
    for (int n = 0; n < steps; n++) {
        const int stage = n % STAGES;
        wait(&shared.full[stage], n / STAGES % 2);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        for (int k = 0; k < 4; k++)
            multiply_transposed(d, factor(shared.A[stage], k), factor(shared.B[stage], k), n + k);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        if (i < 2) arrive_at(of_block(&shared.empty[stage], i));   // both blocks write to this one's B
    }
    const int row = i / 32 * 16 + i % 32 / 4;
    for (int j = 0; j < 32; j++)
        shared.D[(row + 8 * (j / 2 % 2)) * 64 + j / 4 * 8 + i % 4 * 2 + j % 2] = d[j];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("bar.sync 1, 128;" ::: "memory");
    if (i == 0) {
        store(D, 64 * blockIdx.x, shared.D);
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(160, 1)
cluster_gemm(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, const __grid_constant__ TensorMap D,
             int K) {
    extern __shared__ __align__(1024) char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int steps = (K + 63) / 64;
    if (threadIdx.x < STAGES) {
        init(&shared.full[threadIdx.x], 1);
        init(&shared.empty[threadIdx.x], 2);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    together();   // before a block writes to the other, or arrives there
    if (threadIdx.x == 128) produce(shared, A, B, steps);
    else if (threadIdx.x < 128) consume(shared, D, steps);
    together();   // no block ends while the other may still arrive at its barriers
}
