// causal_skip_mistakes.cuh — causal_skip.cu with hooks where learners err; causal_skip_mistakes.toml says what they are.
constexpr int MOST_ROWS = 48, MOST_KEYS = 40, MOST_COLUMNS = 72;   // of a tile, and columns of a thread
__constant__ int D, B_R, B_C;   // options of the solution

// L_k - L_q, as the mask or the end of the loop takes it. is_right: the hook for which this one of the two is right.
__device__ int shift_of(const Variant& variant, int is_right, int shift) {
    if (variant.pulls(is_right)) return shift;
    shift = WRONG(SHIFT_FROM_0, WRONG(SHIFT_WITHOUT_SIGN, shift, abs(shift)), max(shift, 0));
    return WRONG(NO_SHIFT, WRONG(SHIFT_SIGN, shift, -shift), 0);
}

// The keys that a block walks over end here.
__device__ int end_of_keys(const Variant& variant, int i0, int L_q, int L_k) {
    if (variant.pulls(ALL_TILES)) return L_k;
    const int shift = shift_of(variant, END_IS_RIGHT, L_k - L_q);
    int end = i0 + WRONG(END_OF_FIRST, B_R - 1, 0) + shift + WRONG(END_EARLY, 1, 0);
    end = WRONG(END_BY_KEYS, end, (int)blockIdx.x * B_C + B_C + shift);
    end = WRONG(END_AT_OWN_TILE, end, (int)blockIdx.x * B_C + B_C);
    end = min(end, WRONG(END_AT_QUERIES, L_k, min(L_k, L_q)));
    end = WRONG(TILES_ROUNDED_DOWN, end, end / B_C * B_C);
    end = WRONG(LAST_TILE, end, min(end, L_k / B_C * B_C));
    return WRONG(DIAGONAL, end, min(end, (i0 + shift + 1) / B_C * B_C));
}

// Whether the mask is looked at in the tile of keys j0, j0 + 1, …
__device__ bool is_masked(const Variant& variant, int i0, int j0, int keys_end, int shift) {
    if (variant.pulls(NO_MASK)) return false;
    if (variant.pulls(LAST_TILE_MASKED)) return j0 + B_C >= keys_end;
    if (variant.pulls(OWN_TILE_MASKED)) return j0 / B_C == blockIdx.x;
    if (!variant.pulls(TEST)) return true;
    const int query = i0 + WRONG(OF_LAST_QUERY, 0, B_R - 1) + WRONG(WITHOUT_SHIFT, shift, 0);
    return j0 + WRONG(OF_FIRST_KEY, B_C - 1, 0) - WRONG(ONE_OFF, 0, 1) > query;
}

__device__ bool is_visible(const Variant& variant, int i, int j, int shift) {
    const int i0 = blockIdx.x * B_R, query = WRONG(AS_FIRST_QUERY, WRONG(AS_LAST_QUERY, i, i0 + B_R - 1), i0);
    const int last = query + shift + WRONG(NEXT_KEY, 0, 1) - WRONG(OWN_KEY, 0, 1);
    const int key = WRONG(WHOLE_TILES, j, j / B_C * B_C);
    return WRONG(OTHER_SIDE, key <= last, key > last);
}

extern "C" __global__ void
causal_skip(const float* Q, const float* K, const float* V, float* O, float* LSE, int L_q, int L_k, float scale) {
    const Variant variant = variants[variant_number()];
    __shared__ float S[MOST_ROWS][MOST_KEYS];   // of a tile; a thread of a row makes a quarter of them: faster than shuffles
    const int row = threadIdx.x / 4, part = threadIdx.x % 4, columns = D / 4, i0 = blockIdx.x * B_R;
    const int i = min(i0 + row, L_q - 1);   // a row past the end does what the last one does
    const long long output = ((long long)variant_number() * gridDim.y + blockIdx.y) * L_q + i;
    const long long head = WRONG(FIRST_HEAD, blockIdx.y, 0) * (long long)L_k * D;
    Q += ((long long)blockIdx.y * L_q + i) * D, K += head, V += head;
    scale = WRONG(NO_SCALE, WRONG(SCALE_TWICE, WRONG(OWN_SCALE, scale, rsqrtf(D)), scale * scale), 1);
    const int keys_end = end_of_keys(variant, i0, L_q, L_k), shift = shift_of(variant, MASK_IS_RIGHT, L_k - L_q);
    const bool by_tile = variant.pulls(BY_TILE);

    float O_i[MOST_COLUMNS] = {}, m = WRONG(START, NEG_INF, variant.value), l = 0;
    for (int j0 = 0; j0 < keys_end; j0 += B_C) {
        const bool masked = is_masked(variant, i0, j0, keys_end, shift);
        __syncwarp();
        for (int c = part; c < B_C; c += 4) {
            const int j = j0 + c;
            float s = 0;
            for (int d = 0; d < D && j < L_k; d++) s += Q[d] * scale * K[j * D + d];
            const bool hidden = j >= L_k || (masked && !is_visible(variant, i, j, shift));
            S[row][c] = hidden ? WRONG(FILL, NEG_INF, variant.value) : s;
        }
        __syncwarp();

        float largest = NEG_INF;
        for (int c = 0; c < B_C && by_tile; c++) largest = fmaxf(largest, S[row][c]);
        for (int c = 0; c < B_C; c++) {
            const float s = S[row][c], m_new = WRONG(NO_MAXIMUM, fmaxf(m, by_tile ? largest : s), 0);
            const bool nothing = WRONG(GUARD_OF_BEFORE, m_new, m) == NEG_INF && !variant.pulls(UNGUARDED);
            const float base = nothing ? 0 : m_new, rescale = expf(m - base), p = expf(s - base);
            m = m_new;
            l = l * WRONG(L_KEPT, rescale, 1) + p;
            const float* v = V + (long long)(j0 + c) * D + part;
            for (int d = 0; d < columns; d++)
                O_i[d] = O_i[d] * WRONG(O_KEPT, rescale, 1) + (j0 + c < L_k ? p * v[4 * d] : 0);
        }
    }

    const bool empty = l == 0 || (variant.pulls(LOW_IS_EMPTY) && m < variant.value);
    const float inverse = empty && !variant.pulls(NAN_DIVISION) ? 0 : WRONG(NOT_DIVIDED, 1 / l, 1);
    const float log_l = WRONG(LSE_LACKS_LOG, WRONG(LSE_LOG_2, logf(l), log2f(l)), l);
    const float lse = WRONG(LSE_LACKS_M, m, 0) * WRONG(LSE_M_2, 1, 1.44269504f) + WRONG(LSE_IS_M, log_l, 0);
    if (i0 + row >= L_q) return;
    for (int d = 0; d < columns; d++) O[output * D + part + 4 * d] = O_i[d] * inverse;
    if (part == 0) LSE[output] = empty ? WRONG(LSE_EMPTY, NEG_INF, variant.value) : lse;
}
