// Right: scores in base 2, the scale applied after the maximum was subtracted; one P per lane at a
// time by shuffles, so that no P goes through shared memory.
#define NEG_INF __int_as_float(0xff800000)

extern "C" __global__ void mini_flash(const float* Q, const float* K, const float* V, float* O, float* LSE,
                                      int L_q, int L_k, float scale, int is_causal) {
    __shared__ float keys[32 * (D + 1)], values[32 * D];
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    const int lane = threadIdx.x % 8, i = blockIdx.x * 16 + threadIdx.x / 8;
    const bool inside = i < L_q;
    const float to_base_2 = scale * 1.44269504f;
    const float* q = Q + (head * L_q + (inside ? i : 0)) * D;
    K += head * L_k * D, V += head * L_k * D;
    float m = NEG_INF, l = 0, out[D / 8] = {};
    const int last = is_causal ? min(L_k - 1, i + L_k - L_q) : L_k - 1;   // the last key seen
    for (int first = 0; first < L_k; first += 32) {
        for (int e = threadIdx.x; e < 32 * D; e += 128) {
            const bool is_key = first + e / D < L_k;
            keys[e / D * (D + 1) + e % D] = is_key ? K[(long long)first * D + e] : 0;
            values[e] = is_key ? V[(long long)first * D + e] : 0;
        }
        __syncthreads();
        float s[4], m_new = m;
        for (int k = 0; k < 4; k++) {
            s[k] = 0;
            for (int d = 0; d < D; d++) s[k] += q[d] * keys[(8 * k + lane) * (D + 1) + d];
            if (first + 8 * k + lane > last) s[k] = NEG_INF;
            m_new = fmaxf(m_new, s[k]);
        }
        for (int step = 1; step < 8; step *= 2) m_new = fmaxf(m_new, __shfl_xor_sync(~0u, m_new, step));
        if (m_new == NEG_INF) m_new = -1e30f;
        const float factor = exp2f((m - m_new) * to_base_2);
        for (int c = 0; c < D / 8; c++) out[c] *= factor;
        l *= factor, m = m_new;
        for (int k = 0; k < 4; k++) {
            const float p = exp2f((s[k] - m) * to_base_2);
            for (int other = 0; other < 8; other++) {
                const float weight = __shfl_sync(~0u, p, other, 8);
                l += weight;
                for (int c = 0; c < D / 8; c++) out[c] += weight * values[(8 * k + other) * D + 8 * c + lane];
            }
        }
        __syncthreads();
    }
    if (!inside) return;
    for (int c = 0; c < D / 8; c++) O[(head * L_q + i) * D + 8 * c + lane] = l > 0 ? out[c] / l : 0;
    if (lane == 0) LSE[head * L_q + i] = l > 0 ? (m * to_base_2 + log2f(l)) * 0.69314718f : NEG_INF;
}
