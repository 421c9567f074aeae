// custom_mask_range.cu — wrong: all keys between the smallest and the largest one of a row.
constexpr int COLUMNS = D / 32;   // of Q, K, V and O per lane: lane, lane + 32, …
constexpr unsigned ALL = 0xffffffff;
#define NEG_INF __int_as_float(0xff800000)
static_assert(D % 32 == 0, "each lane has as many columns");

// Sum over the 32 lanes, which all get it. All lanes of the warp must call it together.
__device__ inline float warp_sum(float x) {
    for (int other = 16; other > 0; other /= 2) x += __shfl_xor_sync(ALL, x, other);
    return x;
}

extern "C" __global__ void csr_attention(const float* Q, const float* K, const float* V,
                                         const int* indptr, const int* indices, float* O,
                                         float* LSE, int L_q, int L_k, float scale) {
    const int i = blockIdx.x * WARPS + threadIdx.x / 32;   // row of Q, one for the whole warp
    const int lane = threadIdx.x % 32;
    const int head = blockIdx.y;                           // b · H + h

    // What to do: leave if there is no such row; take Q's row into registers; for each key of the
    // list: score, online softmax (m, l, O); divide at the end; write O and LSE (natural logarithm).
    // A row without keys gives O = 0 and LSE = −∞.
    if (i >= L_q) return;
    const long long row = (long long)head * L_q + i;
    K += (long long)head * L_k * D, V += (long long)head * L_k * D;
    float q[COLUMNS], o[COLUMNS] = {}, m = NEG_INF, l = 0;
    for (int c = 0; c < COLUMNS; c++) q[c] = Q[row * D + lane + 32 * c] * scale;
    int first = L_k, last = -1;
    for (int at = indptr[i]; at < indptr[i + 1]; at++)
        first = min(first, indices[at]), last = max(last, indices[at]);
    for (int j = first; j <= last; j++) {
        const long long key = (long long)j * D + lane;
        float s = 0;
        for (int c = 0; c < COLUMNS; c++) s += q[c] * K[key + 32 * c];
        s = warp_sum(s);
        const float m_new = fmaxf(m, s);
        const float rescale = expf(m - m_new), p = expf(s - m_new);
        m = m_new;
        l = l * rescale + p;
        for (int c = 0; c < COLUMNS; c++) o[c] = o[c] * rescale + p * V[key + 32 * c];
    }
    for (int c = 0; c < COLUMNS; c++) O[row * D + lane + 32 * c] = l > 0 ? o[c] / l : 0;
    if (lane == 0) LSE[row] = l > 0 ? m + logf(l) : NEG_INF;
}
