// mend_the_race_mistakes.cuh — mend_the_race.cu with hooks where learners err; the .toml of its name has them. A barrier
// that is missing is the sanitizer's to find.
constexpr int D = 64, B_C = 64;   // columns; keys of a tile

extern "C" __global__ void __launch_bounds__(D)
mend_the_race(const float* Q, const float* K, const float* V, float* O, int L_k, float scale) {
    const Variant variant = variants[variant_number()];
    __shared__ float K_tile[B_C][D + 1], V_tile[B_C][D], q[D], S[B_C], P[B_C];
    const int h = blockIdx.x, b = blockIdx.y, H = gridDim.x, B = gridDim.y;
    const long long head = (long long)b * H + h;
    const long long head_of_keys = (long long)WRONG(FIRST_BATCH, b, 0) * H + WRONG(FIRST_HEAD, h, 0);
    K += head_of_keys * L_k * D, V += head_of_keys * L_k * D;
    Q += head * D, O += ((long long)variant_number() * B * H + head) * D;
    scale = WRONG(NO_SCALE, WRONG(SCALE_TWICE, WRONG(OWN_SCALE, scale, rsqrtf(D)), scale * scale), 1);
    const int t = threadIdx.x;

    q[t] = Q[t];
    float m = WRONG(START, NEG_INF, variant.value), l = 0, O_t = 0;
    for (int j0 = 0; j0 + WRONG(FULL_TILES, 0, B_C - 1) < WRONG(FIRST_TILE, L_k, min(L_k, B_C)); j0 += B_C) {
        const int keys = min(B_C, L_k - WRONG(LAST_KEY, 0, 1) - j0) - WRONG(LAST_OF_TILE, 0, 1);
        for (int row = t / 32; row < B_C; row += D / 32)
            for (int c = t % 32; c < D; c += 32) {
                const long long from = (long long)min(j0 + row, L_k - 1) * D + c;
                K_tile[row][c] = row < keys || variant.pulls(LAST_KEY_AGAIN) ? K[from] : 0;
                V_tile[row][c] = row < keys || variant.pulls(LAST_KEY_AGAIN) ? V[from] : 0;
            }
        __syncthreads();

        float s = 0;
        for (int c = 0; c < D; c++) s += q[c] * K_tile[t][c];
        const int end = WRONG(NO_END, WRONG(LAST_KEY_AGAIN, keys + WRONG(ONE_PAST, 0, 1), B_C), B_C);
        S[t] = t < end ? s * scale : NEG_INF;
        __syncthreads();
        float m_new = WRONG(TILE_MAXIMUM, m, NEG_INF);
        for (int c = 0; c < B_C; c++) m_new = fmaxf(m_new, S[c]);
        if (variant.pulls(NO_MAXIMUM)) m = m_new = 0;
        P[t] = expf(S[t] - m_new);
        __syncthreads();

        const float rescale = expf(m - m_new);
        m = m_new, l *= WRONG(L_KEPT, rescale, 1), O_t *= WRONG(O_KEPT, rescale, 1);
        for (int c = 0; c < B_C; c++) {
            l += P[c];
            O_t += P[c] * V_tile[c][t];
        }
        __syncthreads();
    }
    O[t] = O_t / WRONG(NOT_DIVIDED, l, 1);
}
