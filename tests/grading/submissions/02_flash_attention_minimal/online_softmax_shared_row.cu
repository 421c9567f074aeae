// Wrong: the row is kept in shared memory, which has room for 1024 scores; m and l are made of those.
#define NEG_INF __int_as_float(0xff800000)

extern "C" __global__ void online_softmax(const float* S, float* P, float* LSE, int L) {
    __shared__ float row[1024], of_warp[8];
    S += (long long)blockIdx.x * L, P += (long long)blockIdx.x * L;
    const int n = min(L, 1024);
    for (int j = threadIdx.x; j < n; j += 128) row[j] = S[j];
    __syncthreads();
    float m = NEG_INF, l = 0;
    for (int j = threadIdx.x; j < n; j += 128) m = fmaxf(m, row[j]);
    for (int step = 16; step > 0; step /= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, step));
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = m;
    __syncthreads();
    for (int w = 0; w < 4; w++) m = fmaxf(m, of_warp[w]);
    const float base = m == NEG_INF ? 0 : m;
    for (int j = threadIdx.x; j < n; j += 128) l += expf(row[j] - base);
    for (int step = 16; step > 0; step /= 2) l += __shfl_xor_sync(0xffffffff, l, step);
    if (threadIdx.x % 32 == 0) of_warp[4 + threadIdx.x / 32] = l;
    __syncthreads();
    l = of_warp[4] + of_warp[5] + of_warp[6] + of_warp[7];
    for (int j = threadIdx.x; j < L; j += 128) P[j] = l > 0 ? expf(S[j] - base) / l : 0;
    if (threadIdx.x == 0) LSE[blockIdx.x] = l > 0 ? m + logf(l) : NEG_INF;
}
