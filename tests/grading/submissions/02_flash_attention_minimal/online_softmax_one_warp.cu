// Right: one warp does a row, 32 scores at a time; the other three leave. −FLT_MAX stands for no score yet.
constexpr float FLT_MAX = 3.402823466e38f;

extern "C" __global__ void online_softmax(const float* S, float* P, float* LSE, int L) {
    if (threadIdx.x >= 32) return;
    const float* s = S + (size_t)blockIdx.x * L;
    float* p = P + (size_t)blockIdx.x * L;
    float m = -FLT_MAX, l = 0.0f;
    for (int j = threadIdx.x; j < L; j += 32) {
        const float larger = fmaxf(m, s[j]);
        l = l * __expf(m - larger) + __expf(s[j] - larger);
        m = larger;
    }
    const float of_row = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
    float largest = of_row;
    for (int lane = 2; lane < 32; lane *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lane));
    l *= __expf(m - largest);
    for (int lane = 1; lane < 32; lane *= 2) l += __shfl_xor_sync(~0u, l, lane);
    const float inverse = l > 0 ? 1.0f / l : 0.0f;
    for (int j = threadIdx.x; j < L; j += 32) p[j] = __expf(s[j] - largest) * inverse;
    if (threadIdx.x == 0) LSE[blockIdx.x] = l > 0 ? largest + __logf(l) : __int_as_float(0xff800000);
}
