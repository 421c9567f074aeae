// shuffle_in_branch.cu — the largest score of each short row, broken on purpose: the mask of the shuffle
// names all 32 lanes, but lanes without a key never come. Mended: -DMENDED=1.
//
// grid   (L_q)                         block  (64)
// layout S [L_q, L_k], m [L_q], fp32, contiguous
// shared 4 · 2 = 8 bytes, static
// limits 1 <= L_k <= 64
// options: -DMENDED=0 | -DMENDED=1
#include "constants.cuh"

extern "C" __global__ void short_row_max(const float* S, float* m, int L_k) {
    __shared__ float of_warp[2];
    const int t = threadIdx.x;
    const bool has_key = t < L_k;
    float x = has_key ? S[(long long)blockIdx.x * L_k + t] : NEG_INF;
#if !MENDED
    if (has_key)   // the others have nothing to give
#endif
        for (int step = 16; step > 0; step /= 2)
            x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, step));
    if (t % 32 == 0) of_warp[t / 32] = x;
    __syncthreads();   // both warps have left their maximum
    if (t == 0) m[blockIdx.x] = fmaxf(of_warp[0], of_warp[1]);
}
