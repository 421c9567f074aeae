// Right numbers, but the scores are read three times: for the maximum, for the sum, for P.
#define NEG_INF __int_as_float(0xff800000)

extern "C" __global__ void online_softmax(const float* S, float* P, float* LSE, int L) {
    __shared__ float largest[4], sum[4];
    S += (long long)blockIdx.x * L, P += (long long)blockIdx.x * L;
    float m = NEG_INF, l = 0;
    for (int j = threadIdx.x; j < L; j += 128) m = fmaxf(m, S[j]);
    for (int step = 16; step > 0; step /= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, step));
    if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = m;
    __syncthreads();
    m = fmaxf(fmaxf(largest[0], largest[1]), fmaxf(largest[2], largest[3]));
    if (m == NEG_INF) m = 0;
    for (int j = threadIdx.x; j < L; j += 128) l += expf(S[j] - m);
    for (int step = 16; step > 0; step /= 2) l += __shfl_xor_sync(0xffffffff, l, step);
    if (threadIdx.x % 32 == 0) sum[threadIdx.x / 32] = l;
    __syncthreads();
    l = sum[0] + sum[1] + sum[2] + sum[3];
    for (int j = threadIdx.x; j < L; j += 128) P[j] = l > 0 ? expf(S[j] - m) / l : 0;
    if (threadIdx.x == 0) LSE[blockIdx.x] = l > 0 ? m + logf(l) : NEG_INF;
}
