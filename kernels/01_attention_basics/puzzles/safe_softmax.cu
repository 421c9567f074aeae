// safe_softmax.cu — P = softmax(S) row by row, one warp per row: softmax_unsafe.cu with the largest score subtracted.
//
// grid   (rows)      block  (32): one warp per row
// layout S, P [rows, L_k], fp32, contiguous
// shared 0 bytes
// limits any L_k. A row of nothing but −inf gives zeros
#define NEG_INF __int_as_float(0xff800000)

extern "C" __global__ void safe_softmax(const float* S, float* P, int L_k) {
    S += (long long)blockIdx.x * L_k, P += (long long)blockIdx.x * L_k;   // my warp's row
    const int lane = threadIdx.x;
    float m = NEG_INF, l = 0;   // the largest score, the sum of the exponentials
    for (int j = lane; j < L_k; j += 32) m = fmaxf(m, S[j]);
    for (int step = 16; step > 0; step /= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, step));
    // BEGIN SOLUTION
    if (m == NEG_INF) m = 0;   // no key to see: never −∞ − (−∞) = NaN
    for (int j = lane; j < L_k; j += 32) l += expf(S[j] - m);
    for (int step = 16; step > 0; step /= 2) l += __shfl_xor_sync(0xffffffff, l, step);
    for (int j = lane; j < L_k; j += 32) P[j] = l > 0 ? expf(S[j] - m) / l : 0;
    // END SOLUTION
}
