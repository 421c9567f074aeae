// Wrong: the first score of the row is subtracted, so that one read will do; it need not be the largest.
extern "C" __global__ void online_softmax(const float* S, float* P, float* LSE, int L) {
    __shared__ float of_warp[4];
    S += (long long)blockIdx.x * L, P += (long long)blockIdx.x * L;
    const float m = S[0];
    float l = 0;
    for (int j = threadIdx.x; j < L; j += 128) l += expf(S[j] - m);
    for (int step = 16; step > 0; step /= 2) l += __shfl_xor_sync(0xffffffff, l, step);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = l;
    __syncthreads();
    l = of_warp[0] + of_warp[1] + of_warp[2] + of_warp[3];
    for (int j = threadIdx.x; j < L; j += 128) P[j] = expf(S[j] - m) / l;
    if (threadIdx.x == 0) LSE[blockIdx.x] = m + logf(l);
}
