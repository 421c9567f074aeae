// softmax.cu — P = softmax(S) row by row, one block per row: largest score, sum of exponentials,
// division. Subtracting the largest score changes nothing in exact arithmetic and keeps exp from
// overflowing.
//
// grid   (L_q, H, B)      block (256)
// layout S, P [B, H, L_q, L_k], fp32, contiguous
// shared 4 · 8 = 32 bytes, static
// limits any L_q and L_k; H and B up to 65535. A row of nothing but −inf (no key to see) gives
//        zeros
// paper  FlashAttention (arXiv 2205.14135), Algorithm 0, line 2 and §3.1
constexpr int THREADS = 256, WARPS = THREADS / 32;
#include "constants.cuh"

__device__ float combine(float a, float b, bool largest) {
    return largest ? fmaxf(a, b) : a + b;
}

// The largest x of the block, or the sum of all; every thread gets it.
__device__ float block_reduce(float x, bool largest) {
    __shared__ float of_warp[WARPS];
    for (int step = 16; step > 0; step /= 2)
        x = combine(x, __shfl_xor_sync(0xffffffff, x, step), largest);
    __syncthreads();   // an earlier call may still be reading of_warp
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    x = of_warp[0];
    for (int w = 1; w < WARPS; w++) x = combine(x, of_warp[w], largest);
    return x;
}

extern "C" __global__ void __launch_bounds__(THREADS)
softmax(const float* S, float* P, int L_k) {
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    const long long row = head * gridDim.x + blockIdx.x;
    S += row * L_k, P += row * L_k;

    float m = NEG_INF;
    for (int j = threadIdx.x; j < L_k; j += THREADS) m = fmaxf(m, S[j]);
    m = block_reduce(m, true);
    if (m == NEG_INF) m = 0;   // no key to see: never −inf − (−inf) = NaN

    float l = 0;
    for (int j = threadIdx.x; j < L_k; j += THREADS) l += expf(S[j] - m);
    l = block_reduce(l, false);

    const float inverse = l > 0 ? 1 / l : 0;
    for (int j = threadIdx.x; j < L_k; j += THREADS) P[j] = expf(S[j] - m) * inverse;
}
