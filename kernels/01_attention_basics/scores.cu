// scores.cu — S = scale · Q Kᵀ, one thread per score, with coalesced loads. A block copies 32 × 32
// pieces of Q and K to shared memory, the threads of a warp side by side along a row, and then
// reads the piece of K the other way round: "corner turning". Each float that was loaded serves
// 32 threads.
//
// grid   (ceil(L_k / 32) · ceil(L_q / 32), H, B)
// block  (32, 32): x runs over keys, y over queries
// layout Q [B, H, L_q, d]  K [B, H, L_k, d]  S [B, H, L_q, L_k], fp32, contiguous
// shared 4 · 32 · (32 + 33) = 8320 bytes, static
// limits any L_q, L_k and d; H and B up to 65535
// paper  FlashAttention (arXiv 2205.14135), Algorithm 0, line 1
#include "constants.cuh"

extern "C" __global__ void __launch_bounds__(1024)
scores(const float* Q, const float* K, float* S, int L_q, int L_k, int d,
       float scale, int is_causal) {
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    Q += head * L_q * d, K += head * L_k * d, S += head * L_q * L_k;
    const int tiles = (L_k + 31) / 32;   // tiles of 32 keys in a row of S
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int j0 = blockIdx.x % tiles * 32, j = j0 + tx;   // this thread's key
    const int i = blockIdx.x / tiles * 32 + ty;            // this thread's query

    // One column of padding: a warp reads a column of K_tile, in 32 different banks.
    __shared__ float Q_tile[32][32], K_tile[32][33];
    float sum = 0;
    for (int c0 = 0; c0 < d; c0 += 32) {
        const int column = c0 + tx;   // neighbouring threads read neighbouring floats
        const bool q_inside = i < L_q && column < d, k_inside = j0 + ty < L_k && column < d;
        Q_tile[ty][tx] = q_inside ? Q[(long long)i * d + column] : 0;
        K_tile[ty][tx] = k_inside ? K[(long long)(j0 + ty) * d + column] : 0;
        __syncthreads();   // both pieces are complete
        for (int c = 0; c < 32; c++)
            sum += Q_tile[ty][c] * K_tile[tx][c];
        __syncthreads();   // every thread is done with them
    }
    if (i >= L_q || j >= L_k) return;   // not before: all must reach the barriers

    const bool masked = is_causal && j > i + L_k - L_q;   // the last query sees every key
    S[(long long)i * L_k + j] = masked ? NEG_INF : scale * sum;
}
