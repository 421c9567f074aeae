// causal_skip.cu — causal attention that loads no tile which nobody sees.
//
// A block owns B_R queries and walks over tiles of B_C keys. Query i sees the keys
// j <= i + L_k - L_q: the mask is aligned at the bottom right, so the last query sees every key.
// Most tiles lie wholly below this diagonal and need no mask; those wholly above it are not loaded.
//
// Four threads share a query: thread t % 4 owns the columns t % 4, t % 4 + 4, ... of q and of O.
//
// grid   (ceil(L_q / B_R), N)          block  (4 · B_R)
// layout Q, O [N, L_q, D]  K, V [N, L_k, D]  LSE [N, L_q], fp32, contiguous; N = B · H
// shared 8 · B_C·D bytes, static
// limits B_R a multiple of 8, up to 256; D a multiple of 4; 16 · B_C·D at most 98304
// options: -DD=32 -DB_R=32 -DB_C=16 | -DD=32 -DB_R=16 -DB_C=32 | -DD=64 -DB_R=32 -DB_C=32
// paper  FlashAttention-2 (arXiv 2307.08691), section 3.1, "Causal masking"
constexpr int COLUMNS = D / 4;   // of a thread
#define NEG_INF __int_as_float(0xff800000)

// Copies keys j0, j0 + 1, ... to shared memory, for K or V; zeros past the end.
__device__ void load_tile(float (&tile)[B_C][D], const float* matrix, int j0, int L_k) {
    for (int e = threadIdx.x; e < B_C * D; e += 4 * B_R)
        tile[e / D][e % D] = j0 + e / D < L_k ? matrix[j0 * D + e] : 0;
}

extern "C" __global__ void __launch_bounds__(4 * B_R)
causal_skip(const float* Q, const float* K, const float* V, float* O, float* LSE,
            int L_q, int L_k, float scale) {
    __shared__ float K_tile[B_C][D], V_tile[B_C][D];
    Q += (long long)blockIdx.y * L_q * D, O += (long long)blockIdx.y * L_q * D;
    K += (long long)blockIdx.y * L_k * D, V += (long long)blockIdx.y * L_k * D;
    LSE += (long long)blockIdx.y * L_q;
    const int part = threadIdx.x % 4, i0 = blockIdx.x * B_R;
    const int i = i0 + threadIdx.x / 4;   // the query of these four threads; past L_q it is idle

    float q[COLUMNS], O_i[COLUMNS] = {}, m = NEG_INF, l = 0;
    for (int c = 0; c < COLUMNS; c++) q[c] = i < L_q ? Q[i * D + part + 4 * c] * scale : 0;

    const int last = min(i0 + B_R, L_q) - 1;
    const int see_all = max(0, min(L_k, i0 + 1 + L_k - L_q)) / B_C;   // tiles that need no mask
    const int tiles = (max(0, last + 1 + L_k - L_q) + B_C - 1) / B_C;
    for (int tile = 0; tile < tiles; tile++) {
        load_tile(K_tile, K, tile * B_C, L_k);
        load_tile(V_tile, V, tile * B_C, L_k);
        __syncthreads();
        float s[B_C], m_new = m;
        for (int c = 0; c < B_C; c++) {
            s[c] = 0;
            for (int d = 0; d < COLUMNS; d++) s[c] += q[d] * K_tile[c][part + 4 * d];
            s[c] += __shfl_xor_sync(0xffffffff, s[c], 2);
            s[c] += __shfl_xor_sync(0xffffffff, s[c], 1);
            if (tile >= see_all && tile * B_C + c > i + L_k - L_q) s[c] = NEG_INF;
            m_new = fmaxf(m_new, s[c]);
        }
        if (m_new != NEG_INF) {
            const float rescale = expf(m - m_new);
            l *= rescale;
            for (int d = 0; d < COLUMNS; d++) O_i[d] *= rescale;
            for (int c = 0; c < B_C; c++) {
                const float p = expf(s[c] - m_new);
                l += p;
                for (int d = 0; d < COLUMNS; d++) O_i[d] += p * V_tile[c][part + 4 * d];
            }
            m = m_new;
        }
        __syncthreads();
    }

    // 4. One division per row. A row that sees no key gives 0 and -inf, never 0 / 0.
    float inverse = 1 / l, lse = m + logf(l);
    if (l == 0) inverse = 0, lse = NEG_INF;
    if (i < L_q) {
        for (int d = 0; d < COLUMNS; d++) O[i * D + part + 4 * d] = O_i[d] * inverse;
        if (part == 0) LSE[i] = lse;
    }
}
