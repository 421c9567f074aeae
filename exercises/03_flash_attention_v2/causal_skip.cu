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
// limits B_R a multiple of 8, up to 256; B_C and D of 4; B_C·D at most 6144; L · D below 2^31;
//        N at most 65535
// options: -DD=32 -DB_R=32 -DB_C=16 | -DD=32 -DB_R=16 -DB_C=32 | -DD=64 -DB_R=32 -DB_C=32
// paper  FlashAttention-2 (arXiv 2307.08691), section 3.1, "Causal masking"
constexpr int COLUMNS = D / 4;   // of a thread
#define NEG_INF __int_as_float(0xff800000)
static_assert(B_R % 8 == 0 && D % 4 == 0, "whole warps; four threads share a query");

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

    // 1. The tiles to visit: those with j0 < keys_end. All of them, so far.
    int keys_end = L_k;
    // YOUR CODE HERE

    for (int j0 = 0; j0 < keys_end; j0 += B_C) {
        __syncthreads();   // all are done with the previous tiles
        load_tile(K_tile, K, j0, L_k);
        load_tile(V_tile, V, j0, L_k);
        __syncthreads();   // the tiles are there

        // 2. How many keys of this tile query i sees. All that exist, so far. Where the whole
        //    tile lies below the diagonal, leave it at that.
        int visible = min(B_C, L_k - j0);
        // YOUR CODE HERE

        for (int c = 0; c < B_C; c++) {
            float s = 0;
            for (int d = 0; d < COLUMNS; d++) s += q[d] * K_tile[c][part + 4 * d];
            s += __shfl_xor_sync(0xffffffff, s, 1);
            s += __shfl_xor_sync(0xffffffff, s, 2);   // the sum of all four, for each of them
            if (c >= visible) s = NEG_INF;

            // 3. Online softmax of one key, for a row that has seen a key before or sees this one.
            //    A row that saw none yet has m = −∞: what is −∞ − (−∞)?
            const float m_new = fmaxf(m, s);
            float base = m_new;
            // YOUR CODE HERE
            const float rescale = expf(m - base), p = expf(s - base);
            m = m_new;
            l = l * rescale + p;
            for (int d = 0; d < COLUMNS; d++)
                O_i[d] = O_i[d] * rescale + p * V_tile[c][part + 4 * d];
        }
    }

    // 4. One division per row. A row that sees no key gives 0 and −∞, never 0 / 0.
    float inverse = 1 / l, lse = m + logf(l);
    // YOUR CODE HERE
    if (i < L_q) {
        for (int d = 0; d < COLUMNS; d++) O[i * D + part + 4 * d] = O_i[d] * inverse;
        if (part == 0) LSE[i] = lse;
    }
}
