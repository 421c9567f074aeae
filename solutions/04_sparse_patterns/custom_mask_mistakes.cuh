// custom_mask_mistakes.cuh — custom_mask.cu with hooks where learners err; custom_mask_mistakes.toml says what they are.
constexpr int MOST_COLUMNS = 4, MOST_WARPS = 4, MOST_KEYS = 8192;
constexpr unsigned ALL = 0xffffffff;
__constant__ int D, WARPS;   // options of the solution

__device__ int list_of_row(const Variant& variant, int i, int L_q) {
    int row = WRONG(ROW_0, i, 0) + WRONG(NEXT_ROW, 0, 1) - WRONG(ROW_BEFORE, 0, 1);
    row = WRONG(ROW_OF_BLOCK, WRONG(ROW_IN_BLOCK, row, i % WARPS), i / WARPS * WARPS);
    return min(max(WRONG(ROW_OVER_WARPS, row, i / WARPS), 0), L_q - 1);
}

__device__ long long start_of_head(const Variant& variant, int hook, int head, int L, int L_q) {
    if (variant.pulls(ROWS_OF_QUERIES)) return min(head * (long long)L_q, (gridDim.y - 1) * (long long)L) * D;
    return WRONG(hook, head, 0) * (long long)L * D;
}

// The score of a row's key over the columns of some lanes, not yet scaled.
__device__ float score(const Variant& variant, const float* q, const float* k, int first_lane, int end_lane) {
    const int columns = D / 32, first = WRONG(FIRST_COLUMNS_LOST, 0, 1);
    const int end = WRONG(FIRST_COLUMNS, columns, min(columns, (int)variant.value / 32));
    const int q_lane = WRONG(Q_NEIGHBOURS, 1, columns), q_step = WRONG(Q_NEIGHBOURS, 32, 1);
    const int k_lane = WRONG(K_NEIGHBOURS, 1, columns), k_step = WRONG(K_NEIGHBOURS, 32, 1);
    float s = 0;
    for (int c = first; c < end; c++)
        for (int lane = first_lane; lane < end_lane; lane++)
            s += q[lane * q_lane + c * q_step] * k[lane * k_lane + c * k_step];
    return s;
}

// What a lane gets where the shuffles go wrong.
__device__ float score_of_lane(const Variant& variant, const float* q, const float* k, int lane) {
    float s = score(variant, q, k, lane, lane + 1);
    if (variant.pulls(HALF_WARP))
        for (int other = 8; other > 0; other /= 2) s += __shfl_xor_sync(ALL, s, other);
    if (variant.pulls(SHUFFLED_DOWN))
        for (int other = 16; other > 0; other /= 2) s += __shfl_down_sync(ALL, s, other);
    return s;
}

extern "C" __global__ void
csr_attention(const float* Q, const float* K, const float* V, const int* indptr,
              const int* indices, float* O, float* LSE, int L_q, int L_k, float scale) {
    const Variant variant = variants[variant_number()];
    __shared__ float of_keys[MOST_WARPS][32];   // the scores of 32 keys, one made by each lane: faster here than shuffles
    __shared__ unsigned in_list[MOST_WARPS][MOST_KEYS / 32];   // of the row: the keys that its list has
    const int i = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.y;
    if (i >= L_q) return;
    const int columns = D / 32;
    const long long row = (long long)head * L_q + i;
    O += variant_number() * (long long)gridDim.y * L_q * D, LSE += variant_number() * (long long)gridDim.y * L_q;
    Q += start_of_head(variant, HEAD_0_OF_Q, head, L_q, L_q) + (long long)i * D;
    K += start_of_head(variant, HEAD_0_OF_K, head, L_k, L_q), V += start_of_head(variant, HEAD_0_OF_V, head, L_k, L_q);
    const float *as_K = WRONG(V_AS_K, K, V), *as_V = WRONG(K_AS_V, V, K);
    scale = WRONG(NO_SCALE, WRONG(SCALE_TWICE, WRONG(OWN_SCALE, scale, rsqrtf(D)), scale * scale), 1);
    const int v_lane = WRONG(V_NEIGHBOURS, lane, lane * columns), v_step = WRONG(V_NEIGHBOURS, 32, 1);

    const int listed_by = list_of_row(variant, i, L_q);
    const int* list = indices + WRONG(FROM_THE_START, indptr[listed_by], 0);
    const int length = indptr[listed_by + 1] - (int)(list - indices), group = (int)variant.value;
    const bool hidden_too = variant.pulls(HIDDEN), all_keys = hidden_too || variant.pulls(EVERY_KEY) || variant.pulls(BETWEEN);
    int smallest = L_k, largest = -1;
    unsigned* listed = in_list[threadIdx.x / 32];
    if (all_keys) {
        for (int w = lane; w < MOST_KEYS / 32; w += 32) listed[w] = 0;
        __syncwarp();
        for (int n = 0; n < length; n++) {
            smallest = min(smallest, list[n]), largest = max(largest, list[n]);
            if (lane == 0) listed[list[n] / 32] |= 1u << list[n] % 32;
        }
        __syncwarp();
    }
    int count = all_keys ? L_k : WRONG(FIRST_KEYS, length, min(length, group)) - WRONG(LAST_KEY, 0, 1);
    count = WRONG(WHOLE_GROUPS, count, count / group * group);
    const int turns = variant.pulls(LAST_AGAIN) || variant.pulls(TAIL) ? (count + group - 1) / group * group : count;

    float o[MOST_COLUMNS] = {}, m = WRONG(START, NEG_INF, 0), l = 0, l_of_lane = 0;
    const bool apart = variant.pulls(LANES_APART) || variant.pulls(HALF_WARP) || variant.pulls(SHUFFLED_DOWN);
    const int first = WRONG(FIRST_KEY, 0, 1);
    float* scores = of_keys[threadIdx.x / 32];
    for (int n = first; n < turns; n++) {
        const auto key_at = [&](int n) { return all_keys || variant.pulls(PLACE_FOR_KEY) ? n : list[min(n, count - 1)]; };
        if (n % 32 == 0 || n == first) {
            __syncwarp();
            if (n / 32 * 32 + lane < turns) scores[lane] = score(variant, Q, as_K + (long long)key_at(n / 32 * 32 + lane) * D, 0, 32);
            __syncwarp();
        }
        const int key = key_at(n);
        if (variant.pulls(UNTIL_AHEAD) && key > i) break;
        if ((variant.pulls(NOT_AHEAD) && key > i) || (variant.pulls(NOT_KEY_0) && key == 0)) continue;
        if (variant.pulls(CAUSAL) && key > i + L_k - L_q) continue;
        if (variant.pulls(BETWEEN) && (key < smallest || key > largest)) continue;
        const bool past = n >= count && variant.pulls(TAIL), hidden = hidden_too && !(listed[key / 32] >> key % 32 & 1);
        float s = past ? 0 : scale * (apart ? score_of_lane(variant, Q, as_K + (long long)key * D, lane) : scores[n % 32]);
        if (hidden) s = variant.value;

        float m_new = WRONG(NO_MAXIMUM, WRONG(FIRST_SCORE, fmaxf(m, s), m == NEG_INF ? s : m), 0);
        const float rescale = expf(m - m_new), p = expf(s - m_new);
        m = WRONG(M_NEVER_SET, m_new, m);
        l = l * WRONG(L_KEPT, rescale, 1) + p;
        l_of_lane = l_of_lane * rescale + (n % 32 == lane ? p : 0);
        const float* v = as_V + (long long)key * D + v_lane;
        for (int c = 0; c < columns; c++) o[c] = o[c] * WRONG(O_KEPT, rescale, 1) + (past ? 0 : p * v[c * v_step]);
    }

    l = WRONG(L_OF_LANE, l, l_of_lane);
    const bool empty = WRONG(LIST_IS_EMPTY, l == 0, length == 0) && !variant.pulls(NAN_DIVISION);
    const float inverse = WRONG(NOT_DIVIDED, 1 / l, 1);
    for (int c = 0; c < columns; c++) {
        const int column = WRONG(O_NEIGHBOURS, lane + 32 * c, lane * columns + c);
        O[row * D + (column + WRONG(O_ROLLED, 0, D / 2)) % D] = empty ? 0 : o[c] * inverse;
    }
    const float log_l = WRONG(LSE_LACKS_LOG, WRONG(LSE_LOG_2, logf(l), log2f(l)), l);
    const float lse = WRONG(LSE_LACKS_M, m, 0) * WRONG(LSE_M_2, 1, 1.44269504f) + WRONG(LSE_IS_M, log_l, 0);
    const float of_empty = WRONG(LSE_EMPTY, empty ? NEG_INF : lse, variant.value);
    if (lane == 0) LSE[row] = length == 0 || empty ? of_empty : lse;
}
