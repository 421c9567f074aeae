// mend_the_race.cu — one step of generating text: a single query against all keys so far, in tiles,
// with the running maximum and sum of FlashAttention. The threads of a block change roles: each is
// one key of the tile while scores are made, and one column of O while values are added up. Each
// change of roles goes through shared memory.
//
// grid   (H, B)      block  (64): a key of the tile, then a column of O
// layout Q, O [B, H, D]  K, V [B, H, L_k, D], fp32, contiguous
// shared 4 · (64·65 + 64·64 + 3·64) = 33792 bytes, static
// limits D = 64, L_k >= 1; B up to 65535
// paper  FlashAttention-2 (arXiv 2307.08691), Algorithm 1, for one row
#define NEG_INF __int_as_float(0xff800000)
constexpr int D = 64, B_C = 64;   // columns; keys of a tile

extern "C" __global__ void __launch_bounds__(D)
mend_the_race(const float* Q, const float* K, const float* V, float* O, int L_k, float scale) {
    __shared__ float K_tile[B_C][D + 1], V_tile[B_C][D], q[D], S[B_C], P[B_C];
    const long long head = (long long)blockIdx.y * gridDim.x + blockIdx.x;
    Q += head * D, O += head * D, K += head * L_k * D, V += head * L_k * D;
    const int t = threadIdx.x;

    q[t] = Q[t];
    // Place 1: must anything stand here?
    // YOUR CODE HERE
    float m = NEG_INF, l = 0, O_t = 0;   // maximum and sum so far; column t of O, not yet divided
    for (int j0 = 0; j0 < L_k; j0 += B_C) {
        int keys = B_C;   // how many rows of this tile are keys
        // Place 2: must anything stand here?
        // YOUR CODE HERE
        // A warp copies a row: zeros if it is no key.
        for (int row = t / 32; row < B_C; row += D / 32)
            for (int c = t % 32; c < D; c += 32) {
                const long long from = (long long)(j0 + row) * D + c;
                K_tile[row][c] = row < keys ? K[from] : 0;
                V_tile[row][c] = row < keys ? V[from] : 0;
            }
        __syncthreads();

        // as a key: thread t makes the score of key j0 + t
        float s = 0;
        for (int c = 0; c < D; c++) s += q[c] * K_tile[t][c];
        S[t] = t < keys ? s * scale : NEG_INF;
        // Place 3: must anything stand here?
        // YOUR CODE HERE
        float m_new = m;
        for (int c = 0; c < B_C; c++) m_new = fmaxf(m_new, S[c]);
        // Place 4: must anything stand here?
        // YOUR CODE HERE
        P[t] = expf(S[t] - m_new);
        __syncthreads();

        // as a column: thread t rescales its column of O and adds the weighted values
        const float rescale = expf(m - m_new);
        m = m_new, l *= rescale, O_t *= rescale;
        for (int c = 0; c < B_C; c++) {
            l += P[c];
            O_t += P[c] * V_tile[c][t];
        }
        // Place 5: must anything stand here?
        // YOUR CODE HERE
    }
    // Place 6: must anything stand here?
    // YOUR CODE HERE
    O[t] = O_t / l;
}
