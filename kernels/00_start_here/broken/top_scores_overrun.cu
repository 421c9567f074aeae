// top_scores_overrun.cu — the 4 largest scores of each row, one thread per row, broken on purpose: a
// score that is not among them is stored behind the array. Mended: -DMENDED=1.
//
// grid   (ceil(L_q / threads))         block  (threads)
// layout S [L_q, L_k], top [L_q, 4], fp32, contiguous
// shared 0 bytes
// limits any L_q, L_k >= 4
// options: -DMENDED=0 | -DMENDED=1
constexpr int KEEP = 4;
#include "constants.cuh"

extern "C" __global__ void top_scores(const float* S, float* top, int L_q, int L_k) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;   // this thread's row
    if (i >= L_q) return;
    float best[KEEP];   // falling
    for (int k = 0; k < KEEP; k++) best[k] = NEG_INF;
    for (int j = 0; j < L_k; j++) {
        const float s = S[(long long)i * L_k + j];
        int k = KEEP;   // the place of s
        while (k > 0 && best[k - 1] < s) k--;
        for (int n = KEEP - 1; n > k; n--) best[n] = best[n - 1];
#if MENDED
        if (k < KEEP)
#endif
        best[k] = s;
    }
    for (int k = 0; k < KEEP; k++) top[i * KEEP + k] = best[k];
}
