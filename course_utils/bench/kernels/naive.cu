// naive.cu — attention with one thread per query and an online softmax: plain fp32 arithmetic, no shared memory and no
// barrier. For the emulator's speed this is the easy case: threads never have to wait for one another.
//
// grid   (ceil(L / 64), B·H)           block  (64)
// layout Q, K, V, O [B·H, L, 64], fp32, contiguous
// shared 0 bytes
#define NEG_INF __int_as_float(0xff800000)
constexpr int D = 64;

extern "C" __global__ void naive(const float* Q, const float* K, const float* V, float* O, int L, float scale) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= L) return;
    const long long head = (long long)blockIdx.y * L * D;
    Q += head + (long long)i * D, O += head + (long long)i * D, K += head, V += head;

    float q[D], o[D] = {}, m = NEG_INF, l = 0;
    #pragma unroll
    for (int d = 0; d < D; d++) q[d] = Q[d];
    for (int j = 0; j < L; j++) {
        float s = 0;
        #pragma unroll
        for (int d = 0; d < D; d++) s += q[d] * K[j * D + d];
        s *= scale;
        const float m_new = fmaxf(m, s), rescale = __expf(m - m_new), p = __expf(s - m_new);
        l = l * rescale + p, m = m_new;
        #pragma unroll
        for (int d = 0; d < D; d++) o[d] = o[d] * rescale + p * V[j * D + d];
    }
    #pragma unroll
    for (int d = 0; d < D; d++) O[d] = o[d] / l;
}
