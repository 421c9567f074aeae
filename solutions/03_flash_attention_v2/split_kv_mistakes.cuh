// split_kv_mistakes.cuh — split_kv.cu with hooks where learners err; split_kv_mistakes.toml says what they are.
constexpr int MOST_D = 128, MOST_COLUMNS = MOST_D / 32;
__constant__ int D;   // an option of the solution

// The row of K or V where key j of row n is looked for, inside of the array. of_row_0, packed: hooks of K, or of V.
__device__ long long row_of_key(const Variant& variant, int of_row_0, int packed, int n, int j, int L, int L_max) {
    const long long start = (long long)WRONG(of_row_0, n, 0) * WRONG(packed, L_max, L);
    return min(start + j, (long long)gridDim.y * L_max - 1);
}

extern "C" __global__ void __launch_bounds__(32)
split_partial(const float* Q, const float* K, const float* V, float* O_part, float* LSE_part,
              const int* lengths, int L_max, float scale) {
    const Variant variant = variants[variant_number()];
    __shared__ float scores[32], weights_in_O[32], weights_in_l[32];   // of 32 keys, each made by one lane
    const int split = blockIdx.x, splits = gridDim.x, n = blockIdx.y, N = gridDim.y, lane = threadIdx.x;
    const int columns = D / 32, L = lengths[WRONG(LENGTH_OF_ROW_0, n, 0)];
    const int written = n * splits + split, splits_first = split * N + n;
    const long long output = (long long)variant_number() * N * splits;
    Q += WRONG(Q_OF_ROW_0, n, 0) * D;
    O_part += (output + WRONG(O_SPLITS_FIRST, written, splits_first)) * D;
    LSE_part += output + WRONG(LSE_SPLITS_FIRST, written, splits_first);
    scale = WRONG(NO_SCALE, WRONG(SCALE_TWICE, WRONG(OWN_SCALE, scale, rsqrtf(D)), scale * scale), 1);

    const int keys = WRONG(LAST_KEY, L, max(0, L - 1)), room = WRONG(FROM_ROOM, keys, L_max);
    int chunk = WRONG(ROUNDED_DOWN, (room + splits - 1) / splits, room / splits) + WRONG(ONE_MORE, 0, 1);
    chunk = WRONG(WHOLE_WARPS, chunk, (chunk + 31) / 32 * 32);
    int first = WRONG(EVEN, split * chunk, split * room / splits);
    int end = WRONG(EVEN, first + chunk, (split + 1) * room / splits);
    end += WRONG(END_TOO, 0, 1) - WRONG(LAST_KEYS, 0, 1);
    const int most = WRONG(TO_ROOM, keys, L_max);
    if (!variant.pulls(UNCLAMPED)) first = min(most, first), end = min(most, end);
    if (variant.pulls(REST_TO_LAST) && split == splits - 1) end = L;
    if (variant.pulls(ALL_KEYS)) first = 0, end = L;

    const int parts = WRONG(HALF_WARP, 1, 2);   // of the lanes, which have scores of their own
    for (int part = 0; part < parts; part++) {
        float O_s[MOST_COLUMNS] = {}, m = WRONG(START, NEG_INF, variant.value), l = 0;
        for (int j0 = first; j0 < end; j0 += 32) {
            const int there = min(32, end - j0);
            const float* k = K + row_of_key(variant, K_OF_ROW_0, K_PACKED, n, j0 + min(lane, there - 1), L, L_max) * D;
            float s = 0;
            for (int c0 = 16 * part; c0 < D; c0 += 32)
                for (int c = c0; c < c0 + 32 / parts; c++) s += Q[c] * k[c];
            __syncwarp();
            scores[lane] = s *= scale;
            __syncwarp();
            float so_far = m, m_new = m;   // so_far: up to the lane's key
            for (int i = 0; i < there; i++) {
                m_new = fmaxf(m_new, scores[i]);
                if (i <= lane) so_far = m_new;
            }
            if (variant.pulls(NO_MAXIMUM)) m = so_far = m_new = 0;
            const float rescale = expf(m - m_new), p = expf(s - m_new), p_so_far = expf(s - so_far);
            weights_in_O[lane] = WRONG(O_KEPT, p, p_so_far), weights_in_l[lane] = WRONG(L_KEPT, p, p_so_far);
            __syncwarp();
            m = m_new, l *= WRONG(L_KEPT, rescale, 1);
            for (int c = 0; c < columns; c++) O_s[c] *= WRONG(O_KEPT, rescale, 1);
            for (int i = 0; i < there; i++) {
                const float* v = V + row_of_key(variant, V_OF_ROW_0, V_PACKED, n, j0 + i, L, L_max) * D + lane;
                l += weights_in_l[i];
                for (int c = 0; c < columns; c++) O_s[c] += weights_in_O[i] * v[32 * c];
            }
        }
        if (parts == 2 && lane / 16 != part) continue;

        const bool empty = !(l > 0) && !variant.pulls(NAN_DIVISION);
        const float inverse = WRONG(NOT_DIVIDED, WRONG(DIVIDED_TWICE, 1 / l, 1 / l / l), 1);
        for (int c = 0; c < columns; c++) O_part[lane + 32 * c] = empty ? 0 : O_s[c] * inverse;
        const float log_l = WRONG(LSE_LACKS_LOG, WRONG(LSE_LOG_2, logf(l), log2f(l)), l);
        const float lse = WRONG(LSE_LACKS_M, m, 0) * WRONG(LSE_M_2, 1, 1.44269504f) + WRONG(LSE_IS_M, log_l, 0);
        if (lane == 0) LSE_part[0] = l > 0 ? lse : WRONG(LSE_EMPTY, NEG_INF, variant.value);
    }
}

// What the merge subtracts from each LSE of a row before exp.
__device__ float base_of(const Variant& variant, const float* LSE_part, int splits) {
    float largest = WRONG(LARGEST_FROM, NEG_INF, variant.value);
    for (int s = WRONG(FIRST_NOT_IN_LARGEST, 0, 1); s < splits - WRONG(LAST_NOT_IN_LARGEST, 0, 1); s++)
        largest = fmaxf(largest, LSE_part[s]);
    largest = WRONG(FIRST_IS_LARGEST, WRONG(LAST_IS_LARGEST, largest, LSE_part[splits - 1]), LSE_part[0]);
    const float base = largest == NEG_INF && !variant.pulls(UNGUARDED) ? 0 : largest;
    return WRONG(MERGE_NO_MAXIMUM, base, 0);
}

// How many splits are merged.
__device__ int end_of(const Variant& variant, const float* LSE_part, int splits) {
    if (variant.pulls(TAKEN_FOR_EMPTY) && base_of(variant, LSE_part, splits) < variant.value) return 0;
    int end = WRONG(FIRST_SPLITS, splits, min(splits, (int)variant.value)) - WRONG(LAST_SPLIT, 0, 1);
    for (int s = 0; s < end && variant.pulls(UNTIL_EMPTY); s++)
        if (LSE_part[s] == NEG_INF) end = s;
    return end;
}

extern "C" __global__ void __launch_bounds__(MOST_D)
split_merge(const float* O_part, const float* LSE_part, float* O, float* LSE, int splits) {
    const Variant variant = variants[variant_number()];
    __shared__ float weights_in_O[MOST_D], weights_in_sum[MOST_D];   // of D splits, each made by one thread
    const int n = blockIdx.x, N = gridDim.x, column = threadIdx.x;
    const long long output = (long long)variant_number() * N, input = launch_number > 0 ? output : 0;
    O_part += (input + WRONG(O_PART_OF_ROW_0, n, 0)) * splits * D;
    LSE_part += (input + WRONG(LSE_PART_OF_ROW_0, n, 0)) * splits;
    O += (output + n) * D, LSE += output + n;

    const int end = end_of(variant, LSE_part, splits);
    const float base = base_of(variant, LSE_part, splits);
    float base_of_O = base, added = 0, largest = NEG_INF;
    int with_keys = 0, best = 0;
    for (int s = 0; s < end; s++) {
        with_keys += LSE_part[s] > NEG_INF, added += LSE_part[s], largest = fmaxf(largest, LSE_part[s]);
        if (LSE_part[s] > LSE_part[best]) best = s;
    }
    if (variant.pulls(FORMULA)) {
        base_of_O = 0;
        for (int s = 0; s < end; s++) base_of_O += expf(LSE_part[s] - base);
        base_of_O = base + logf(base_of_O);
    }

    float sum = 0, O_n = 0;
    for (int s0 = 0; s0 < end; s0 += D) {
        const int s = s0 + column, there = min(D, end - s0);
        __syncthreads();
        if (s < end) {
            float so_far = NEG_INF;
            if (variant.pulls(MERGE_O_KEPT) || variant.pulls(MERGE_L_KEPT))
                for (int i = 0; i <= s; i++) so_far = fmaxf(so_far, LSE_part[i]);
            if (so_far == NEG_INF) so_far = 0;
            const float in_O = LSE_part[s] - WRONG(MERGE_O_KEPT, base_of_O, so_far);
            const float in_sum = LSE_part[s] - WRONG(MERGE_L_KEPT, base, so_far);
            weights_in_O[column] = WRONG(AVERAGED, WRONG(EXP_2, expf(in_O), exp2f(in_O)), 1);
            weights_in_sum[column] = WRONG(EXP_2, expf(in_sum), exp2f(in_sum));
        }
        __syncthreads();
        for (int i = 0; i < there; i++) {
            sum += weights_in_sum[i];
            O_n += weights_in_O[i] * O_part[WRONG(COLUMNS_FIRST, (s0 + i) * D + column, column * splits + s0 + i)];
        }
    }

    if (variant.pulls(EMPTY_FIRST) && LSE_part[0] == NEG_INF) sum = O_n = __int_as_float(0x7fc00000);
    const bool empty = !(sum > 0);
    float divisor = WRONG(FORMULA, WRONG(NOT_DIVIDED_BY_SUM, sum, 1), 1);
    if (variant.pulls(AVERAGED)) divisor = max(1, WRONG(OF_KEYS, splits, with_keys));
    const float log_sum = WRONG(MERGE_LSE_LOG_2, logf(sum), log2f(sum));
    float lse = WRONG(MERGE_LSE_LACKS_BASE, base, 0) + log_sum;
    lse = WRONG(LSES_ADDED, WRONG(LSE_IS_LARGEST, lse, largest), added);
    O_n = WRONG(LARGEST_ALONE, O_n / divisor, O_part[best * D + column]);
    O[column] = empty && !variant.pulls(MERGE_NAN_DIVISION) ? 0 : O_n;
    if (column == 0) LSE[0] = empty ? WRONG(MERGE_LSE_EMPTY, WRONG(MERGE_NAN_LSE, NEG_INF, lse), variant.value) : lse;
}
