// causal_skip.cu — exponentials in base 2, with the factor in q; a thread owns neighbouring columns; tiles are copied 16
// bytes at a time, up to the last key that the block sees, and no further.
constexpr int OWN = D / 4;
#define NEG_INF __int_as_float(0xff800000)

extern "C" __global__ void __launch_bounds__(4 * B_R)
causal_skip(const float* Q, const float* K, const float* V, float* O, float* LSE,
            int L_q, int L_k, float scale) {
    __shared__ __align__(16) float K_tile[B_C][D], V_tile[B_C][D];
    Q += (long long)blockIdx.y * L_q * D, O += (long long)blockIdx.y * L_q * D;
    K += (long long)blockIdx.y * L_k * D, V += (long long)blockIdx.y * L_k * D;
    LSE += (long long)blockIdx.y * L_q;
    const int first = threadIdx.x % 4 * OWN, i = blockIdx.x * B_R + threadIdx.x / 4;
    const int seen = i < L_q ? i + 1 + L_k - L_q : 0;                             // by this query
    const int seen_by_all = min(L_q, (int)(blockIdx.x + 1) * B_R) + L_k - L_q;   // by the last of the block

    float q[OWN], o[OWN] = {}, m = NEG_INF, l = 0;
    const float factor = scale * 1.44269504f;   // 1 / ln 2
    for (int d = 0; d < OWN; d++) q[d] = i < L_q ? Q[i * D + first + d] * factor : 0;

    for (int j0 = 0; j0 < seen_by_all; j0 += B_C) {
        const int keys = min(B_C, seen_by_all - j0);
        for (int e = threadIdx.x; e < keys * D / 4; e += 4 * B_R) {
            reinterpret_cast<float4*>(&K_tile[0][0])[e] = reinterpret_cast<const float4*>(K + j0 * D)[e];
            reinterpret_cast<float4*>(&V_tile[0][0])[e] = reinterpret_cast<const float4*>(V + j0 * D)[e];
        }
        __syncthreads();
        for (int c = 0; c < keys; c++) {
            float s = 0;
            for (int d = 0; d < OWN; d++) s += q[d] * K_tile[c][first + d];
            s += __shfl_xor_sync(0xffffffff, s, 1);
            s += __shfl_xor_sync(0xffffffff, s, 2);
            const bool sees = j0 + c < seen;
            const float m_new = sees ? fmaxf(m, s) : m;
            const float rescale = m == m_new ? 1 : exp2f(m - m_new), p = sees ? exp2f(s - m_new) : 0;
            m = m_new, l = l * rescale + p;
            for (int d = 0; d < OWN; d++) o[d] = o[d] * rescale + p * V_tile[c][first + d];
        }
        __syncthreads();
    }
    if (i < L_q) {
        const float inverse = l > 0 ? 1 / l : 0;
        for (int d = 0; d < OWN; d++) O[i * D + first + d] = o[d] * inverse;
        if (first == 0) LSE[i] = l > 0 ? (m + log2f(l)) * 0.69314718f : NEG_INF;
    }
}
