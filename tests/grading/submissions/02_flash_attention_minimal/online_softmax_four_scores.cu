// Wrong: a thread keeps its scores in four registers, enough for rows of 512.
#define NEG_INF __int_as_float(0xff800000)

extern "C" __global__ void online_softmax(const float* S, float* P, float* LSE, int L) {
    __shared__ float warp_m[4], warp_l[4];
    const float* s = S + (long long)blockIdx.x * L;
    float mine[4], m = NEG_INF, l = 0;
    for (int i = 0; i < 4; i++) {
        const int j = threadIdx.x + 128 * i;
        mine[i] = j < L ? s[j] : NEG_INF;
        m = fmaxf(m, mine[i]);
    }
    for (int step = 16; step > 0; step /= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, step));
    if (threadIdx.x % 32 == 0) warp_m[threadIdx.x / 32] = m;
    __syncthreads();
    m = fmaxf(fmaxf(warp_m[0], warp_m[1]), fmaxf(warp_m[2], warp_m[3]));
    for (int i = 0; i < 4; i++) l += mine[i] == NEG_INF ? 0 : expf(mine[i] - m);
    for (int step = 16; step > 0; step /= 2) l += __shfl_xor_sync(0xffffffff, l, step);
    if (threadIdx.x % 32 == 0) warp_l[threadIdx.x / 32] = l;
    __syncthreads();
    l = warp_l[0] + warp_l[1] + warp_l[2] + warp_l[3];
    for (int i = 0; i < 4; i++) {
        const int j = threadIdx.x + 128 * i;
        if (j < L) P[(long long)blockIdx.x * L + j] = l == 0 ? 0 : expf(mine[i] - m) / l;
    }
    if (threadIdx.x == 0) LSE[blockIdx.x] = l == 0 ? NEG_INF : m + logf(l);
}
