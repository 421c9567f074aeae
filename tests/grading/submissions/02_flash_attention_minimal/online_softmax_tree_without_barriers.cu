// Wrong: the last steps of the tree have no barrier, since "a warp goes in step"; lanes may run ahead of each other.
#define NEG_INF __int_as_float(0xff800000)

extern "C" __global__ void online_softmax(const float* S, float* P, float* LSE, int L) {
    __shared__ float m[128], l[128];
    const int t = threadIdx.x;
    S += (long long)blockIdx.x * L, P += (long long)blockIdx.x * L;
    float largest = NEG_INF, sum = 0;
    for (int j = t; j < L; j += 128) {
        const float old = largest;
        largest = fmaxf(old, S[j]);
        if (largest > NEG_INF) sum = sum * expf(old - largest) + expf(S[j] - largest);
    }
    m[t] = largest, l[t] = sum;
    for (int half = 64; half > 0; half /= 2) {
        if (half >= 32) __syncthreads();
        if (t < half) {
            const float larger = fmaxf(m[t], m[t + half]);
            if (larger > NEG_INF)
                l[t] = l[t] * expf(m[t] - larger) + l[t + half] * expf(m[t + half] - larger);
            m[t] = larger;
        }
    }
    __syncthreads();
    for (int j = t; j < L; j += 128) P[j] = l[0] > 0 ? expf(S[j] - m[0]) / l[0] : 0;
    if (t == 0) LSE[blockIdx.x] = l[0] > 0 ? m[0] + logf(l[0]) : NEG_INF;
}
