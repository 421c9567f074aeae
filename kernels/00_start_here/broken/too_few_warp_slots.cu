// too_few_warp_slots.cu — the largest score of each row, broken on purpose: a block of 512 threads has
// more warps than of_warp has slots. Mended: -DWARPS=16.
//
// grid   (L_q)                         block  (512)
// layout S [L_q, L_k], m [L_q], fp32, contiguous
// shared 4 · WARPS bytes, static
// limits any L_q and L_k
// options: -DWARPS=8 | -DWARPS=16
#include "constants.cuh"

extern "C" __global__ void row_max(const float* S, float* m, int L_k) {
    __shared__ float of_warp[WARPS];
    S += (long long)blockIdx.x * L_k;
    float x = NEG_INF;
    for (int j = threadIdx.x; j < L_k; j += blockDim.x) x = fmaxf(x, S[j]);
    for (int step = 16; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, step));
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
    __syncthreads();   // every warp has left its maximum
    if (threadIdx.x == 0) {
        for (int w = 1; w < blockDim.x / 32; w++) x = fmaxf(x, of_warp[w]);
        m[blockIdx.x] = x;
    }
}
