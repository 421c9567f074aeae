// Right: one exponential per score, the last piece of a warp by shuffles down, a lane that tells all.
#define NEG_INF __int_as_float(0xff800000)

__device__ float factor(float m, float m_new) {
    return m == NEG_INF ? 0 : expf(m - m_new);
}

extern "C" __global__ void online_softmax(const float* S, float* P, float* LSE, int L) {
    __shared__ float warp_m[4], warp_l[4], row_m, row_l;
    const float* scores = S + (long long)blockIdx.x * L;
    float m = NEG_INF, l = 0;
    for (int j = threadIdx.x; j < L; j += blockDim.x) {
        const float s = scores[j];
        if (s > m) {
            l = l * factor(m, s) + 1;
            m = s;
        } else if (s > NEG_INF) {
            l += expf(s - m);
        }
    }
    for (int step = 16; step; step >>= 1) {
        const float m2 = __shfl_down_sync(~0u, m, step), l2 = __shfl_down_sync(~0u, l, step);
        const float larger = fmaxf(m, m2);
        l = l * factor(m, larger) + l2 * factor(m2, larger);
        m = larger;
    }
    if (threadIdx.x % 32 == 0) warp_m[threadIdx.x / 32] = m, warp_l[threadIdx.x / 32] = l;
    __syncthreads();
    if (threadIdx.x == 0) {
        m = fmaxf(fmaxf(warp_m[0], warp_m[1]), fmaxf(warp_m[2], warp_m[3])), l = 0;
        for (int w = 0; w < 4; w++) l += warp_l[w] * factor(warp_m[w], m);
        row_m = m, row_l = l;
        LSE[blockIdx.x] = l > 0 ? m + logf(l) : NEG_INF;
    }
    __syncthreads();
    for (int j = threadIdx.x; j < L; j += blockDim.x)
        P[(long long)blockIdx.x * L + j] = row_l > 0 ? expf(scores[j] - row_m) / row_l : 0;
}
