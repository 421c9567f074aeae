// cluster_softmax.cu - a softmax of long rows: the blocks of a cluster have a part of the row each, and tell each other its
// maximum and sum in four ways.
//
// grid   (4 · rows), in clusters of four
// block  (128)
// layout X, Y [rows, n] fp32, n a multiple of 4
// shared sizeof(Shared), static
// arch: sm_90a only
#include "../../nvidia/silicon/mbarrier.cuh"
#include "cluster.cuh"

constexpr int BLOCKS = 4, THREADS = 128;
struct Shared {
    float warps[2][4];
    alignas(16) float mine[4];              // maximum, sum
    alignas(16) float all[BLOCKS][4];       // of each block
    unsigned long long bar;
};
struct Part { const float* x; int first, end; };

__device__ inline Part part_of(const float* X, int n) {
    const int rank = rank_in_cluster(), size = n / BLOCKS;
    return {X + (long long)(blockIdx.x / BLOCKS) * n, rank * size, (rank + 1) * size};
}

// The maximum and the sum of this block's part.
__device__ inline void reduce(Shared& shared, Part part) {
    float m = -3e38f, s = 0;
    for (int i = part.first + threadIdx.x; i < part.end; i += THREADS) m = fmaxf(m, part.x[i]);
    for (int step = 16; step > 0; step /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, step));
    if (threadIdx.x % 32 == 0) shared.warps[0][threadIdx.x / 32] = m;
    __syncthreads();
    for (int w = 0; w < 4; w++) m = fmaxf(m, shared.warps[0][w]);
    for (int i = part.first + threadIdx.x; i < part.end; i += THREADS) s += expf(part.x[i] - m);
    for (int step = 16; step > 0; step /= 2) s += __shfl_xor_sync(~0u, s, step);
    if (threadIdx.x % 32 == 0) shared.warps[1][threadIdx.x / 32] = s;
    __syncthreads();
    if (threadIdx.x == 0) {
        shared.mine[0] = m;
        shared.mine[1] = shared.warps[1][0] + shared.warps[1][1] + shared.warps[1][2] + shared.warps[1][3];
    }
}

// From the maxima and sums of all blocks, maximum(b) and sum(b).
template <class Maximum, class Sum>
__device__ inline void finish(Part part, float* Y, int n, Maximum maximum, Sum sum) {
    float m = -3e38f, s = 0;
    for (int b = 0; b < BLOCKS; b++) m = fmaxf(m, maximum(b));
    for (int b = 0; b < BLOCKS; b++) s += sum(b) * expf(maximum(b) - m);
    for (int i = part.first + threadIdx.x; i < part.end; i += THREADS)
        Y[(long long)(blockIdx.x / BLOCKS) * n + i] = expf(part.x[i] - m) / s;
}

// The logarithm of the sum of a row's exponentials: the last block reads what the others have.
extern "C" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(128, 1) log_sum_exp(const float* X, float* L, int n) {
    __shared__ Shared shared;
    reduce(shared, part_of(X, n));
    together();   // sum: the others have written
    if (rank_in_cluster() == BLOCKS - 1 && threadIdx.x == 0) {
        float m = -3e38f, s = 0;
        for (int b = 0; b < BLOCKS; b++) m = fmaxf(m, read_at(of_block(&shared.mine[0], b)));
        for (int b = 0; b < BLOCKS; b++)
            s += read_at(of_block(&shared.mine[1], b)) * expf(read_at(of_block(&shared.mine[0], b)) - m);   // the last reads
        L[blockIdx.x / BLOCKS] = m + logf(s);
    }
    together();   // sum: the last has read
}

// Each block reads what the others have.
extern "C" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(128, 1) softmax_pull(const float* X, float* Y, int n) {
    __shared__ Shared shared;
    const Part part = part_of(X, n);
    reduce(shared, part);
    together();   // pull: the others have written
    finish(part, Y, n, [&](int b) { return read_at(of_block(&shared.mine[0], b)); },
           [&](int b) { return read_at(of_block(&shared.mine[1], b)); });
    together();   // pull: the others have read
}

// Each block writes to the others, who wait for its bytes.
extern "C" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(128, 1) softmax_push(const float* X, float* Y, int n) {
    __shared__ Shared shared;
    const Part part = part_of(X, n);
    if (threadIdx.x == 0) {
        init(&shared.bar, 1);
        arrive_expecting(&shared.bar, 8 * BLOCKS);
    }
    together();   // push: barriers are there
    reduce(shared, part);
    __syncthreads();   // push: its own are there
    if (threadIdx.x < BLOCKS)
        for (int i = 0; i < 2; i++)
            send(of_block(&shared.all[rank_in_cluster()][i], threadIdx.x), shared.mine[i], of_block(&shared.bar, threadIdx.x));
    wait(&shared.bar, 0);
    finish(part, Y, n, [&](int b) { return shared.all[b][0]; }, [&](int b) { return shared.all[b][1]; });   // pushed
}

// The same by the copy engine.
extern "C" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(128, 1) softmax_copy(const float* X, float* Y, int n) {
    __shared__ Shared shared;
    const Part part = part_of(X, n);
    if (threadIdx.x == 0) {
        init(&shared.bar, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        arrive_expecting(&shared.bar, 16 * BLOCKS);
        shared.mine[2] = shared.mine[3] = 0;
    }
    together();   // copy: barriers are there
    reduce(shared, part);
    if (threadIdx.x == 0) {
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        for (int b = 0; b < BLOCKS; b++)
            copy_to(of_block(shared.all[rank_in_cluster()], b), shared.mine, 16, of_block(&shared.bar, b));
    }
    wait(&shared.bar, 0);
    finish(part, Y, n, [&](int b) { return shared.all[b][0]; }, [&](int b) { return shared.all[b][1]; });
    together();   // copy: the others have what comes from here
}
