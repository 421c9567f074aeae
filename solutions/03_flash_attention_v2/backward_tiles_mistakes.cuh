// backward_tiles_mistakes.cuh — backward_tiles.cu with hooks where learners err; the .toml of its name has them.
constexpr int B_R = 16, B_C = 16, LANES = 8, THREADS = B_C * LANES, QUERIES = B_R / LANES;
constexpr int MOST_D = 128, MOST_COLS = MOST_D / LANES;
__constant__ int D;   // an option of the solution

struct Tiles {
    float K[B_C][MOST_D + 1], V[B_C][MOST_D + 1], Q[B_R][MOST_D + 1], dO[B_R][MOST_D + 1];
    float P[B_C][B_R + 1], dS[B_C][B_R + 1];
    float LSE[B_R], delta[B_R];
};

// stale: rows past the end hold what they held before; in the first tile, zeros.
__device__ void load_tile(float (&tile)[B_R][MOST_D + 1], const float* matrix, int first, int L, bool stale) {
    for (int e = threadIdx.x; e < B_R * D; e += THREADS)
        if (first + e / D < L || !stale || first == 0)
            tile[e / D][e % D] = first + e / D < L ? matrix[(long long)first * D + e] : 0;
}

// The same for LSE and Δ.
__device__ void load_numbers(float (&tile)[B_R], const float* numbers, int i0, int L_q, bool stale) {
    const int i = i0 + threadIdx.x;
    if (threadIdx.x < B_R && (i < L_q || !stale || i0 == 0)) tile[threadIdx.x] = i < L_q ? numbers[i] : 0;
}

// The head that a block reads of an array. of_array, of_side: the hooks of this array, and of all with queries or keys.
__device__ long long head_of(const Variant& variant, int of_array, int of_side) {
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    return variant.pulls(of_array) || variant.pulls(of_side) ? 0 : head;
}

// LSE or Δ of query i, for its pair with key j; or that of another query, where the hook is pulled.
__device__ float number_of(const Variant& variant, int hook, float own, const float* numbers, int i, int j, int L_q) {
    const bool from_tile = variant.pulls(KEY_IN_TILE) || variant.pulls(FIRST_OF_TILE);
    if (!variant.pulls(hook) || (i >= L_q && !from_tile)) return own;
    int row = WRONG(ROW_IN_TILE, i, i % B_R) + WRONG(NEXT_ROW, 0, 1);
    row = WRONG(FIRST_OF_TILE, WRONG(KEY_IN_TILE, row, i / B_R * B_R + j % B_C), i / B_R * B_R);
    row = WRONG(ROW_0, WRONG(ROW_OF_KEY, row, j), 0);
    return row < L_q ? numbers[row] : 0;
}

__device__ bool is_hidden(const Variant& variant, int i, int j, int L_q, int L_k, bool is_causal) {
    const int i0 = i / B_R * B_R, j0 = j / B_C * B_C;
    const int shift = WRONG(NO_SHIFT, WRONG(SHIFT_SIGN, L_k - L_q, L_q - L_k), 0);
    const int query = WRONG(QUERY_IN_TILE, i, i - i0), key = WRONG(KEY_IN_BLOCK, j, j - j0);
    const int last = query + shift + WRONG(NEXT_KEY, 0, 1) - WRONG(OWN_KEY, 0, 1);
    const bool hidden = WRONG(OTHER_SIDE, key > last, key < last);
    const bool skipped = variant.pulls(SKIP_UNSHIFTED) && j0 > i0 + B_R - 1;
    return (is_causal || variant.pulls(ALWAYS_CAUSAL)) && (hidden || skipped);
}

extern "C" __global__ void __launch_bounds__(THREADS)
backward_tiles(const float* Q, const float* K, const float* V, const float* dO, const float* LSE,
               const float* delta, float* dK, float* dV, int L_q, int L_k, float scale, int is_causal) {
    const Variant variant = variants[variant_number()];
    __shared__ Tiles tile;
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y, heads = (long long)gridDim.z * gridDim.y;
    const long long output = (variant_number() * heads + head) * L_k * D;
    Q += head_of(variant, HEAD_0_OF_Q, HEAD_0_OF_QUERIES) * L_q * D;
    dO += head_of(variant, HEAD_0_OF_DO, HEAD_0_OF_QUERIES) * L_q * D;
    LSE += head_of(variant, HEAD_0_OF_LSE, HEAD_0_OF_QUERIES) * L_q;
    delta += head_of(variant, HEAD_0_OF_DELTA, HEAD_0_OF_QUERIES) * L_q;
    K += head_of(variant, HEAD_0_OF_K, HEAD_0_OF_KEYS) * L_k * D;
    V += head_of(variant, HEAD_0_OF_V, HEAD_0_OF_KEYS) * L_k * D;
    dK += output, dV += output;
    const int key = threadIdx.x / LANES, lane = threadIdx.x % LANES, COLS = D / LANES;
    const int j = blockIdx.x * B_C + key;

    const float scale_of_S = WRONG(NO_SCALE, WRONG(SCALE_TWICE, WRONG(OWN_SCALE, scale, rsqrtf(D)), scale * scale), 1);
    const float own_of_dK = WRONG(DK_OWN_SCALE, scale, rsqrtf(D));
    const float scale_of_dK = WRONG(DK_NO_SCALE, WRONG(DK_SCALE_TWICE, own_of_dK, scale * scale), 1);
    const int columns = WRONG(FIRST_COLUMNS, D - WRONG(LAST_COLUMN, 0, 1), min(D, 32));
    float dK_j[MOST_COLS] = {}, dV_j[MOST_COLS] = {};
    load_tile(tile.K, K, blockIdx.x * B_C, L_k, false);
    load_tile(tile.V, V, blockIdx.x * B_C, L_k, false);

    const int end = WRONG(FIRST_TILE, WRONG(FULL_TILES, L_q, L_q / B_R * B_R), min(L_q, B_R));
    for (int i0 = 0; i0 < end; i0 += B_R) {
        __syncthreads();
        load_tile(tile.Q, Q, i0, L_q, variant.pulls(STALE_Q));
        load_tile(tile.dO, dO, i0, L_q, variant.pulls(STALE_DO));
        load_numbers(tile.LSE, LSE, i0, L_q, variant.pulls(STALE_LSE));
        load_numbers(tile.delta, delta, i0, L_q, variant.pulls(STALE_DELTA));
        __syncthreads();

        for (int n = 0; n < QUERIES; n++) {
            const int row = lane + n * LANES, i = i0 + row;
            const float* with_V = WRONG(DP_OF_Q, tile.dO[row], tile.Q[row]);
            const float* with_dO = WRONG(DP_WITH_K, tile.V[key], tile.K[key]);
            const bool summed = variant.pulls(DP_SUM);
            float S = 0, dP = 0;
            for (int d = 0; d < columns; d++) S += tile.Q[row][d] * tile.K[key][d];
            for (int d = 0; d < D; d++) dP += with_V[d] * (summed ? 1 : with_dO[d]);
            S *= scale_of_S;
            const float L = number_of(variant, OF_LSE, tile.LSE[row], LSE, i, j, L_q);
            const float Delta = number_of(variant, OF_DELTA, tile.delta[row], delta, i, j, L_q);

            float weight = WRONG(DIVIDED, WRONG(NO_LSE, expf(S - L), expf(S)), expf(S) / expf(L));
            weight = WRONG(LSE_BASE_2, WRONG(EXP_BASE_2, weight, exp2f(S - L)), exp2f(S * 1.44269504f - L));
            const float of_hidden = WRONG(HIDDEN_IS_1, WRONG(FILL, 0, expf(variant.value - L)), 1);
            const bool hidden = is_hidden(variant, i, j, L_q, L_k, is_causal) && !variant.pulls(NO_MASK);
            const bool left_out = variant.pulls(LAST_QUERY) && i == L_q - 1;
            const float P = left_out ? 0 : hidden && !variant.pulls(NO_MASK_OF_P) ? of_hidden : weight;
            const float P_of_dS = left_out ? 0 : hidden && !variant.pulls(NO_MASK_OF_DS) ? of_hidden : weight;
            float dS = WRONG(DELTA_ADDED, WRONG(NO_DELTA, dP - Delta, dP), dP + Delta);
            dS *= WRONG(DS_WITHOUT_P, P_of_dS, 1) * WRONG(DS_P_TWICE, 1, P_of_dS) * WRONG(DS_SIGN, 1, -1);
            dS = WRONG(DELTA_WITHOUT_P, dS, P_of_dS * dP - Delta);
            (variant.pulls(P_TURNED) ? tile.P[row][key] : tile.P[key][row]) = P;
            (variant.pulls(DS_TURNED) ? tile.dS[row][key] : tile.dS[key][row]) = dS;
        }
        __syncthreads();   // P and dS that are turned come from other warps

        for (int c = 0; c < COLS && variant.pulls(SUMS_ANEW); c++) dK_j[c] = dV_j[c] = 0;
        for (int row = 0; row < B_R; row++) {
            if (variant.pulls(OWN_QUERIES) && row % LANES != lane) continue;
            const float P = tile.P[key][row], dS = tile.dS[key][row];
            const float of_dV = WRONG(DV_OF_DS, P, dS), of_dK = WRONG(DK_OF_P, dS, P), before = WRONG(SET, 1, 0);
            const float* dO_row = WRONG(DV_WITH_Q, tile.dO[row], tile.Q[row]);
            const float* Q_row = WRONG(DK_WITH_DO, tile.Q[row], tile.dO[row]);
            for (int c = 0; c < COLS; c++) {
                dV_j[c] = before * dV_j[c] + of_dV * dO_row[lane + c * LANES];
                dK_j[c] = before * dK_j[c] + of_dK * Q_row[lane + c * LANES];
            }
        }
    }

    float *to_dV = WRONG(SWAPPED, dV, dK), *to_dK = WRONG(SWAPPED, dK, dV);
    for (int c = 0; c < COLS && j < L_k; c++) {
        const long long at = (long long)j * D + WRONG(SIDE_BY_SIDE, lane + c * LANES, lane * COLS + c);
        to_dV[at] = WRONG(DV_SCALED, 1, scale) * dV_j[c];
        to_dK[at] = scale_of_dK * dK_j[c];
    }
}
