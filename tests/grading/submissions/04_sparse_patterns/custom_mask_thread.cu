// custom_mask_thread.cu — another way: one thread per row, first the maximum, then the rest.
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
    if (i >= L_q || lane > 0) return;   // slow: one thread does the work of the warp
    const long long row = (long long)head * L_q + i;
    const float* k = K + (long long)head * L_k * D;
    const float* v = V + (long long)head * L_k * D;
    const float* q = Q + row * D;
    float scores[256];   // of the first keys; others are computed again
    const int first = indptr[i], count = indptr[i + 1] - first;
    const auto score = [&](int n) {
        float s = 0;
        for (int c = 0; c < D; c++) s += q[c] * k[(long long)indices[first + n] * D + c];
        return s * scale;
    };
    float m = NEG_INF, l = 0;
    for (int n = 0; n < count; n++) {
        const float s = score(n);
        if (n < 256) scores[n] = s;
        m = fmaxf(m, s);
    }
    for (int c = 0; c < D; c++) O[row * D + c] = 0;
    for (int n = 0; n < count; n++) {
        const float p = expf((n < 256 ? scores[n] : score(n)) - m);
        l += p;
        for (int c = 0; c < D; c++)
            O[row * D + c] += p * v[(long long)indices[first + n] * D + c];
    }
    for (int c = 0; c < D && l > 0; c++) O[row * D + c] /= l;
    LSE[row] = l > 0 ? m + logf(l) : NEG_INF;
}
