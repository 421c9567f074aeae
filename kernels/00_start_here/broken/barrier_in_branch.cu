// barrier_in_branch.cu — P = softmax(S) for rows of 64 small scores, broken on purpose: only some of the
// threads reach the barrier in the sum. Mended: -DMENDED=1.
//
// grid   (L_q)                         block  (64)
// layout S, P [L_q, 64], fp32, contiguous
// shared 4 · 64 = 256 bytes, static
// limits scores below 80 (no maximum is subtracted)
// options: -DMENDED=0 | -DMENDED=1
constexpr int THREADS = 64;

extern "C" __global__ void softmax_row(const float* S, float* P) {
    __shared__ float sum[THREADS];
    const int t = threadIdx.x, e = blockIdx.x * THREADS + t;
    const float p = expf(S[e]);
    sum[t] = p;
    __syncthreads();   // every thread has left its p
    for (int step = THREADS / 2; step > 0; step /= 2) {
#if MENDED
        if (t < step) sum[t] += sum[t + step];
        __syncthreads();
#else
        if (t < step) { sum[t] += sum[t + step]; __syncthreads(); }
#endif
    }
    __syncthreads();   // the sum is complete
    P[e] = p / sum[0];
}
