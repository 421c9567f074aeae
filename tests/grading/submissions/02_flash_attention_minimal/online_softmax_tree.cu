// Right: consecutive scores per thread, and a tree in shared memory instead of shuffles.
#define NEG_INF __int_as_float(0xff800000)

extern "C" __global__ void online_softmax(const float* S, float* P, float* LSE, int L) {
    __shared__ float m[128], l[128];
    const int t = threadIdx.x, each = (L + 127) / 128, first = t * each, end = min(L, first + each);
    S += (long long)blockIdx.x * L, P += (long long)blockIdx.x * L;
    m[t] = NEG_INF, l[t] = 0;
    for (int j = first; j < end; j++) {
        const float old = m[t], s = S[j];
        m[t] = fmaxf(old, s);
        if (m[t] > NEG_INF) l[t] = l[t] * expf(old - m[t]) + expf(s - m[t]);
    }
    for (int half = 64; half > 0; half /= 2) {
        __syncthreads();
        if (t < half) {
            const float larger = fmaxf(m[t], m[t + half]);
            if (larger > NEG_INF)
                l[t] = l[t] * expf(m[t] - larger) + l[t + half] * expf(m[t + half] - larger);
            m[t] = larger;
        }
    }
    __syncthreads();
    const float lse = l[0] > 0 ? m[0] + logf(l[0]) : NEG_INF;
    for (int j = t; j < L; j += 128) P[j] = l[0] > 0 ? expf(S[j] - m[0]) / l[0] : 0;
    if (t == 0) LSE[blockIdx.x] = lse;
}
