// Right: four scores per load where a row is aligned, the rest one by one; a maximum of four before the sum is touched.
#define NEG_INF __int_as_float(0xff800000)

struct Pair {
    float m = NEG_INF, l = 0;
    __device__ void add(float m2, float l2) {
        if (m2 == NEG_INF) return;
        if (m2 > m) {
            l = l * expf(m - m2) + l2;
            m = m2;
        } else {
            l += l2 * expf(m2 - m);
        }
    }
};

extern "C" __global__ void online_softmax(const float* S, float* P, float* LSE, int L) {
    __shared__ Pair all[128];
    const float* s = S + (long long)blockIdx.x * L;
    float* p = P + (long long)blockIdx.x * L;
    const int vectors = L % 4 == 0 ? L / 4 : 0;
    Pair mine;
    for (int v = threadIdx.x; v < vectors; v += 128) {
        const float4 x = reinterpret_cast<const float4*>(s)[v];
        const float m4 = fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w));
        if (m4 > NEG_INF) mine.add(m4, expf(x.x - m4) + expf(x.y - m4) + expf(x.z - m4) + expf(x.w - m4));
    }
    for (int j = 4 * vectors + threadIdx.x; j < L; j += 128) mine.add(s[j], 1);
    all[threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int t = 1; t < 128; t++) mine.add(all[t].m, all[t].l);
        all[0] = mine;
        LSE[blockIdx.x] = mine.l > 0 ? mine.m + logf(mine.l) : NEG_INF;
    }
    __syncthreads();
    mine = all[0];
    for (int j = threadIdx.x; j < L; j += 128) p[j] = mine.l > 0 ? expf(s[j] - mine.m) / mine.l : 0;
}
