// Right: in base 2, as the fast kernels of chapter 02 do it; every thread reads four pairs from shared memory.
#define NEG_INF __int_as_float(0xff800000)
constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;

extern "C" __global__ void online_softmax(const float* S, float* P, float* LSE, int L) {
    __shared__ float2 pairs[4];
    const long long first = (long long)blockIdx.x * L;
    float m = NEG_INF, l = 0;
    for (int j = threadIdx.x; j < L; j += 128) {
        const float s = S[first + j] * LOG2E, larger = fmaxf(m, s), base = larger == NEG_INF ? 0.0f : larger;
        l = l * exp2f(m - base) + exp2f(s - base);
        m = larger;
    }
    float largest = m;
    for (int step = 1; step < 32; step <<= 1) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    l = m == NEG_INF ? 0 : l * exp2f(m - largest);
    for (int step = 1; step < 32; step <<= 1) l += __shfl_xor_sync(0xffffffffu, l, step);
    if ((threadIdx.x & 31) == 0) pairs[threadIdx.x >> 5] = make_float2(largest, l);
    __syncthreads();
    m = fmaxf(fmaxf(pairs[0].x, pairs[1].x), fmaxf(pairs[2].x, pairs[3].x));
    l = 0;
    for (int w = 0; w < 4; w++)
        if (pairs[w].y > 0) l += pairs[w].y * exp2f(pairs[w].x - m);
    // m is a product that was rounded. With a fused multiply-add the difference would be this rounding, which is large at 1e20.
    for (int j = threadIdx.x; j < L; j += 128) P[first + j] = l > 0 ? exp2f(__fmul_rn(S[first + j], LOG2E) - m) / l : 0;
    if (threadIdx.x == 127) LSE[blockIdx.x] = l > 0 ? (m + log2f(l)) * LN2 : NEG_INF;
}
