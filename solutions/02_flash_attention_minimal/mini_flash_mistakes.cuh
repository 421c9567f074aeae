// mini_flash_mistakes.cuh — mini_flash.cu with hooks where learners err; mini_flash_mistakes.toml says what they are.
constexpr int B_R = 16, B_C = 32, LANES = 8, THREADS = B_R * LANES;
constexpr int KEYS = B_C / LANES, MOST_D = 128, MOST_COLS = MOST_D / LANES;
__constant__ int D;   // an option of the solution

struct Tiles { float Q[B_R][MOST_D], K[B_C][MOST_D], V[B_C][MOST_D], P[B_R][B_C]; };

template <int ROWS>
__device__ void load_tile(float (&tile)[ROWS][MOST_D], const float* matrix, int first, int L) {
    for (int e = threadIdx.x; e < ROWS * D; e += THREADS)
        tile[e / D][e % D] = first + e / D < L ? matrix[(long long)first * D + e] : 0;
}

// The first element of the head that a block reads. hook: of this one of Q, K and V.
__device__ long long start_of_head(const Variant& variant, int hook, int L, int L_q) {
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y, heads = gridDim.y * gridDim.z;
    if (!variant.pulls(hook)) return head * L * D;
    if (variant.pulls(ROWS_OF_QUERIES)) return min(head * L_q, (heads - 1) * L) * D;
    return WRONG(FIRST_BATCH, WRONG(FIRST_HEAD, WRONG(FIRST_OF_ALL, 0, 0), blockIdx.z * gridDim.y), blockIdx.y) * (long long)L * D;
}

// What becomes of l or O_i when the maximum rises from m to base. down: the right factor.
__device__ float factor(const Variant& variant, int upside_down, int kept, int one_lane, float m, float base) {
    const float down = expf(m - base), up = WRONG(GUARDED_FACTOR, expf(base - m), m == NEG_INF ? 0 : expf(base - m));
    const float either = WRONG(upside_down, down, up);
    return WRONG(kept, WRONG(one_lane, either, threadIdx.x % LANES == 0 ? either : 1), 1);
}

extern "C" __global__ void __launch_bounds__(THREADS)
mini_flash(const float* Q, const float* K, const float* V, float* O, float* LSE,
           int L_q, int L_k, float scale, int is_causal) {
    const Variant variant = variants[variant_number()];
    __shared__ Tiles tile;
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    const long long output = (long long)variant_number() * gridDim.z * gridDim.y + head;
    Q += start_of_head(variant, OF_Q, L_q, L_q), O += output * L_q * D, LSE += output * L_q;
    K += start_of_head(variant, OF_K, L_k, L_q), V += start_of_head(variant, OF_V, L_k, L_q);
    const int row = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const int i = blockIdx.x * B_R + row, COLS = D / LANES;

    const float own_scale = rsqrtf(D);
    scale = WRONG(NO_SCALE, WRONG(SCALE_TWICE, scale, scale * scale), 1);
    scale = WRONG(OWN_SCALE, WRONG(OWN_SCALE_CAUSAL, scale, is_causal ? own_scale : scale), own_scale);
    const bool no_maximum = variant.pulls(NO_MAXIMUM) || (is_causal && variant.pulls(NO_MAXIMUM_CAUSAL));
    const float fill = WRONG(FILL, NEG_INF, variant.value);
    const int columns = WRONG(FIRST_COLUMNS, D - WRONG(LAST_COLUMN, 0, 1), min(D, 32));
    const int v_lane = WRONG(V_COLUMNS, lane, lane * COLS), v_step = WRONG(V_COLUMNS, LANES, 1);   // columns of V
    const bool own_keys = variant.pulls(OWN_KEYS), last_key = variant.pulls(O_LAST_KEY);
    float m = WRONG(START, NEG_INF, variant.value), l = 0, O_i[MOST_COLS] = {};
    load_tile(tile.Q, Q, blockIdx.x * B_R, L_q);

    for (int j0 = 0; j0 + WRONG(FULL_TILES, 0, B_C - 1) < L_k; j0 += B_C) {
        __syncthreads();
        load_tile(tile.K, K, j0, L_k);
        load_tile(tile.V, V, j0, L_k);
        __syncthreads();
        if (WRONG(ROWS_LEAVE, false, i >= L_q)) return;

        float S[KEYS] = {}, seen[KEYS];   // seen: of all keys, hidden or not
        bool past[KEYS], later[KEYS];
        for (int k = 0; k < KEYS; k++) {
            const int by_fours = lane * KEYS + k, own = lane + k * LANES;
            const int scored = variant.pulls(SCORES_BY_FOURS) || variant.pulls(KEYS_BY_FOURS) ? by_fours : own;
            for (int d = 0; d < columns; d++) S[k] += tile.Q[row][d] * tile.K[scored][d];
            const int j = j0 + WRONG(KEYS_BY_FOURS, own, by_fours);
            const int shift = WRONG(TOP_LEFT, WRONG(SHIFT_SIGN, L_k - L_q, L_q - L_k), 0);
            const int query = WRONG(QUERY_IN_BLOCK, i, row), key = WRONG(KEY_IN_TILE, j, j - j0);
            const int last = query + shift + WRONG(NEXT_KEY, 0, 1) - WRONG(OWN_KEY, 0, 1);
            later[k] = WRONG(OTHER_SIDE, key > last, key < last);
            later[k] = WRONG(SKIP_UNSHIFTED, later[k], later[k] || j0 > blockIdx.x * B_R + B_R - 1);
            later[k] = later[k] && (is_causal || variant.pulls(ALWAYS_CAUSAL)) && !variant.pulls(NO_MASK);
            past[k] = WRONG(NO_END, j >= L_k + WRONG(ONE_PAST, 0, 1) - WRONG(LAST_KEY, 0, 1), false);
            seen[k] = scale * S[k];
            S[k] = past[k] || later[k] ? fill : seen[k];
        }

        float m_new = WRONG(TILE_MAXIMUM, m, NEG_INF);
        for (int k = 0; k < KEYS; k++) {
            const bool hidden = WRONG(PAST_IN_M, past[k], false) || WRONG(LATER_IN_M, later[k], false);
            if (WRONG(FIRST_MAXIMUM, true, j0 == 0)) m_new = fmaxf(m_new, hidden ? fill : seen[k]);
        }
        for (int step = WRONG(M_FROM, LANES / 2, (int)variant.value); step > WRONG(M_STOPS, 0, 1); step /= 2) {
            const float other = WRONG(M_DOWN, __shfl_xor_sync(0xffffffff, m_new, step), __shfl_down_sync(0xffffffff, m_new, step));
            m_new = WRONG(M_ALONE, fmaxf(m_new, other), m_new);
        }
        if (no_maximum) m_new = 0;
        const float base = WRONG(UNGUARDED, m_new == NEG_INF ? 0 : m_new, m_new);
        const float of_l = factor(variant, L_INVERSE, L_KEPT, L_ONE_LANE, m, base);
        const float of_O = factor(variant, O_INVERSE, O_KEPT, O_ONE_LANE, m, base);
        m = m_new;
        l *= of_l;
        for (int c = 0; c < COLS; c++) O_i[c] *= WRONG(O_LATE, WRONG(O_SET, of_O, 0), 1);
        for (int k = 0; k < KEYS; k++) {
            const bool no_sum = WRONG(PAST_IN_L, past[k], false) || WRONG(LATER_IN_L, later[k], false);
            const bool no_weight = past[k] || WRONG(LATER_IN_O, later[k], false);
            l += expf((no_sum ? fill : seen[k]) - base);
            tile.P[row][WRONG(P_BY_FOURS, lane + k * LANES, lane * KEYS + k)] = expf((no_weight ? fill : seen[k]) - base);
        }
        __syncwarp();
        if (variant.pulls(L_EACH_TILE))
            for (int step = LANES / 2; step > 0; step /= 2) l += __shfl_xor_sync(0xffffffff, l, step);

        for (int j = 0; j < B_C; j++) {
            const float p = own_keys && j % LANES != lane ? 0 : tile.P[row][j], before = last_key ? 0 : 1;
            for (int c = 0; c < COLS; c++) O_i[c] = before * O_i[c] + p * tile.V[j][v_lane + c * v_step];
        }
        float whole = l;
        for (int step = LANES / 2; step > 0; step /= 2) whole += __shfl_xor_sync(0xffffffff, whole, step);
        for (int c = 0; c < COLS; c++) O_i[c] = WRONG(EACH_TILE, WRONG(O_LATE, O_i[c], O_i[c] * of_O), O_i[c] / whole);
    }

    const float of_lane = l;
    for (int times = 0; times < WRONG(L_TWICE, WRONG(L_ALONE, 1, 0), 2); times++)
        for (int step = WRONG(L_FROM, LANES / 2, (int)variant.value); step > WRONG(L_STOPS, 0, 1); step /= 2)
            l += WRONG(L_DOWN, __shfl_xor_sync(0xffffffff, l, step), __shfl_down_sync(0xffffffff, l, step));
    const bool empty = !(l > 0) && !variant.pulls(NAN_DIVISION);
    const float inverse = empty ? 0 : WRONG(NOT_DIVIDED, 1 / l, 1);
    for (int c = 0; c < COLS && i < L_q; c++)
        O[(long long)i * D + WRONG(O_COLUMNS, lane + c * LANES, lane * COLS + c)] =
            WRONG(EACH_TILE, O_i[c] * inverse, empty ? 0 : O_i[c]);
    l = WRONG(LSE_OF_LANE, l, of_lane);
    float lse = WRONG(LSE_LACKS_LOG, WRONG(LSE_LOG_2, logf(l), log2f(l)), l);
    lse = WRONG(LSE_IS_M, lse, 0) + WRONG(LSE_LACKS_M, m, 0) / WRONG(LSE_NO_SCALE, 1, scale) / WRONG(LSE_M_2, 1, 0.69314718f);
    if (lane == 0 && i < L_q) LSE[i] = empty ? WRONG(LSE_EMPTY, NEG_INF, 0) : lse;
}
