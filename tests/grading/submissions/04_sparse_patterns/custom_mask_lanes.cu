// custom_mask_lanes.cu — another way: 32 keys at a time, one per lane.
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
    __shared__ float all_q[WARPS][D];
    float* q = all_q[threadIdx.x / 32];
    for (int c = lane; c < D; c += 32) q[c] = Q[row * D + c] * scale;
    __syncwarp();

    float o[COLUMNS] = {}, m = NEG_INF, l = 0;   // m and l are the same in all lanes
    const int end = indptr[i + 1];
    for (int first = indptr[i]; first < end; first += 32) {
        const int key = first + lane < end ? indices[first + lane] : -1;
        float s = NEG_INF;
        if (key >= 0) {   // a lane per key: its row is read alone
            s = 0;
            for (int c = 0; c < D; c++) s += q[c] * K[(long long)key * D + c];
        }
        float m_new = fmaxf(m, s);
        for (int other = 16; other > 0; other /= 2)
            m_new = fmaxf(m_new, __shfl_xor_sync(ALL, m_new, other));
        const float p = expf(s - m_new), rescale = expf(m - m_new);
        l = l * rescale + warp_sum(p);
        m = m_new;
        for (int c = 0; c < COLUMNS; c++) o[c] *= rescale;
        for (int n = 0; n < min(32, end - first); n++) {
            const float weight = __shfl_sync(ALL, p, n);
            const long long from = (long long)__shfl_sync(ALL, key, n) * D + lane;
            for (int c = 0; c < COLUMNS; c++) o[c] += weight * V[from + 32 * c];
        }
    }
    for (int c = 0; c < COLUMNS; c++) O[row * D + lane + 32 * c] = l > 0 ? o[c] / l : 0;
    if (lane == 0) LSE[row] = l > 0 ? m + logf(l) : NEG_INF;
}
