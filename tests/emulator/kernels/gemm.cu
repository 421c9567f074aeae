// gemm.cu - D [M, 64] = A [M, K] B [64, K]ᵀ on Hopper: a producer, and two warpgroups that keep a product in flight.
//
// grid   (⌈M / 128⌉)
// block  (384): two warpgroups of 64 rows each, then the producer's
// layout A, B, D through tensor maps with boxes {64, 64}; A and B [·, K] fp16 in 128-byte swizzle, D [M, 64] fp32 without
// shared sizeof(Shared)
// arch: sm_90a only
#include <cuda_fp16.h>
#include "../../nvidia/silicon/mbarrier.cuh"
#include "product_64.cuh"

constexpr int STAGES = 3;
struct alignas(64) TensorMap { unsigned long long words[16]; };
struct Shared {
    unsigned short A[STAGES][2][64 * 64], B[STAGES][64 * 64];
    float D[2][64 * 64];
    unsigned long long full[STAGES], empty[STAGES];
};
static_assert(sizeof(Shared) == 106544, "what who launches it asks for");

__device__ inline void load(void* to, const TensorMap& map, int row, int column, void* barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 :: "r"(at(to)), "l"(&map), "r"(column), "r"(row), "r"(at(barrier)) : "memory");
}
__device__ inline void store(const TensorMap& map, int row, const void* from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                 :: "l"(&map), "r"(0), "r"(row), "r"(at(from)) : "memory");
}
__device__ inline void produce(Shared& shared, const TensorMap& A, const TensorMap& B, int steps) {
    for (int n = 0; n < steps; n++) {
        const int stage = n % STAGES;
        if (n >= STAGES) wait(&shared.empty[stage], (n / STAGES - 1) % 2);
        arrive_expecting(&shared.full[stage], 3 * 64 * 64 * 2);
        load(shared.A[stage][0], A, 128 * blockIdx.x, 64 * n, &shared.full[stage]);
        load(shared.A[stage][1], A, 128 * blockIdx.x + 64, 64 * n, &shared.full[stage]);
        load(shared.B[stage], B, 0, 64 * n, &shared.full[stage]);
    }
}

__device__ inline void consume(Shared& shared, const TensorMap& D, int steps) {
    const int group = threadIdx.x / 128, i = threadIdx.x % 128;
    float d[32];
    for (int n = 0; n < steps; n++) {
        const int stage = n % STAGES;
        wait(&shared.full[stage], n / STAGES % 2);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        for (int k = 0; k < 4; k++)
            multiply_transposed(d, factor(shared.A[stage][group], k), factor(shared.B[stage], k), n + k);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (n > 0) arrive(&shared.empty[(n - 1) % STAGES]);
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    const int row = i / 32 * 16 + i % 32 / 4;
    for (int j = 0; j < 32; j++)
        shared.D[group][(row + 8 * (j / 2 % 2)) * 64 + j / 4 * 8 + i % 4 * 2 + j % 2] = d[j];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("bar.sync %0, 128;" :: "r"(1 + group) : "memory");
    if (i == 0) {
        store(D, 128 * blockIdx.x + 64 * group, shared.D[group]);
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
}

extern "C" __global__ void __launch_bounds__(384, 1)
gemm(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, const __grid_constant__ TensorMap D, int K) {
    extern __shared__ __align__(1024) char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int steps = (K + 63) / 64;
    if (threadIdx.x < STAGES) {
        init(&shared.full[threadIdx.x], 1);
        init(&shared.empty[threadIdx.x], 256);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x >= 256) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 256) produce(shared, A, B, steps);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        consume(shared, D, steps);
    }
}
