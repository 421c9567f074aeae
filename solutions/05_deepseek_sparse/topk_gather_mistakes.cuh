// topk_gather_mistakes.cuh — gather_attention of topk_gather.cu with hooks where learners err; the .toml of its name has
// them. What select_topk does wrong is read off its selection, whose order is free.
constexpr int SOME = 256;   // places of a list that are looked at together
__constant__ int D, THREADS;   // options of the solution

// The row of indices that a block reads.
__device__ int list_of_block(const Variant& variant) {
    const int query = blockIdx.x, queries = gridDim.x;
    int list = WRONG(NEXT_LIST, query, (query + 1) % queries);
    list = WRONG(LIST_BEFORE, list, (query + queries - 1) % queries);
    return WRONG(FIRST_LIST, WRONG(LIST_OF_HEAD, list, blockIdx.y % queries), 0);
}

// The row of Q that a block reads.
__device__ long long row_of_Q(const Variant& variant) {
    const int query = WRONG(FIRST_QUERY, blockIdx.x, 0), head = WRONG(FIRST_HEAD, blockIdx.y, 0);
    const long long row = WRONG(Q_WITHOUT_HEADS, (long long)query * gridDim.y + head, query);
    return WRONG(Q_HEAD_AFTER_HEAD, row, (long long)head * gridDim.x + query);
}

// What stands at place n of a list of keys 0 to T - 1.
__device__ int key_at(const Variant& variant, const int* list, int n, int T) {
    if (variant.pulls(EVERY_KEY)) return n;
    int key = list[n];
    if (variant.pulls(PLACE_FOR_KEY)) key = (0 <= key && key < T) || variant.pulls(HOLES_TOO) ? n : -1;
    if (variant.pulls(MINUS_ONE_IS_LAST) && key == -1) key = T - 1;
    key = WRONG(BELOW_IS_FIRST, key, max(key, 0));
    return WRONG(PAST_IS_LAST, key, min(key, T - 1));
}

__device__ int places(const Variant& variant, const int* list, int T, int k) {
    const int number = (int)variant.value;
    int count = WRONG(EVERY_KEY, k, T) - WRONG(LAST_PLACE, 0, 1);
    count = WRONG(FIRST_PLACES, WRONG(WHOLE_STEPS, count, count / number * number), min(count, number));
    for (int n = 0; n < count && variant.pulls(UNTIL_A_HOLE); n++)
        if (list[n] < 0 || list[n] >= T) count = n;
    return count;
}

// Whether a place is one of the first warp's, or of the last one's; warps take turns after some places.
__device__ bool is_of_warp(const Variant& variant, int n) {
    const int warps = THREADS / 32;
    return n / (int)variant.value % warps == WRONG(LAST_WARP, 0, warps - 1);
}

__device__ bool is_left_out(const Variant& variant, const int* list, int n) {
    bool before = false;
    for (int other = 0; other < n && variant.pulls(ONCE); other++) before = before || list[other] == list[n];
    return before || (n == 0 && variant.pulls(FIRST_PLACE)) || (variant.pulls(WARP_ALONE) && !is_of_warp(variant, n));
}

__device__ float score(const Variant& variant, const float* q, const float* k) {
    const int columns = WRONG(FIRST_COLUMNS, WRONG(ROWS_OF_64, D, 64), min(D, (int)variant.value));
    const bool half = variant.pulls(HALF_WARP);
    float sum = 0;
    for (int c = 0; c < columns; c++)
        if (!half || c % 32 / 16 == WRONG(OTHER_HALF, 0, 1)) sum += q[c] * k[c];
    return sum;
}

extern "C" __global__ void
gather_attention(const float* Q, const float* K, const float* V, const int* indices, float* O,
                 float* LSE, int T, int k, float scale) {
    const Variant variant = variants[variant_number()];
    __shared__ float for_l[SOME], for_O[SOME], m_of[SOME], base, rescale;   // first for_l has the scores
    __shared__ int row_of_V[SOME];
    const long long query = (long long)blockIdx.x * gridDim.y + blockIdx.y, outputs = gridDim.x * gridDim.y;
    const long long written = WRONG(O_HEAD_AFTER_HEAD, query, (long long)blockIdx.y * gridDim.x + blockIdx.x);
    const long long row = variant_number() * outputs + written;
    const int pitch = WRONG(ROWS_OF_64, D, 64), *list = indices + (long long)list_of_block(variant) * k;
    const float* q = Q + row_of_Q(variant) * pitch;
    scale = WRONG(NO_SCALE, WRONG(SCALE_TWICE, WRONG(OWN_SCALE, scale, rsqrtf(D)), scale * scale), 1);
    const int count = places(variant, list, T, k);

    float m = WRONG(START, NEG_INF, variant.value), l = 0, o = 0;
    const int tile = variant.pulls(L_KEPT) || variant.pulls(O_KEPT) ? (int)variant.value : SOME;
    for (int n0 = 0; n0 < count; n0 += SOME) {
        const int here = min(SOME, count - n0);
        __syncthreads();
        for (int e = threadIdx.x; e < here; e += THREADS) {
            const int n = n0 + e, key = key_at(variant, list, n, T);
            const bool is_key = 0 <= key && key < T, counts = is_key && !is_left_out(variant, list, n);
            const bool read = WRONG(HOLES_BELOW_READ, false, key < 0) || WRONG(HOLES_PAST_READ, false, key >= T);
            const int row_of_K = WRONG(K_BY_PLACE, WRONG(K_OF_FIRST_KEY, key, 0), n % T);
            row_of_V[e] = counts ? WRONG(V_BY_PLACE, WRONG(V_OF_FIRST_KEY, key, 0), n % T) : read ? 0 : -1;
            for_l[e] = is_key ? NEG_INF : WRONG(HOLES_COUNT, NEG_INF, variant.value);
            if (counts) for_l[e] = scale * score(variant, q, K + (long long)row_of_K * pitch);
        }
        __syncthreads();

        const float m_before = m;   // thread 0 alone knows m
        for (int e0 = 0; e0 < here && threadIdx.x == 0; e0 += tile) {
            const int end = min(e0 + tile, here);
            for (int e = e0; e < end; e++) {
                if (m == NEG_INF || WRONG(FIRST_MAXIMUM, true, n0 + e < variant.value)) m = fmaxf(m, for_l[e]);
                if (variant.pulls(HOLES_IN_M) && row_of_V[e] < 0) m = fmaxf(m, 0);
            }
            m = WRONG(NO_MAXIMUM, m, 0);
            base = m == NEG_INF ? 0 : m;
            for (int e = e0; e < end; e++) m_of[e] = base;
        }
        if (threadIdx.x == 0) rescale = expf(m_before - base);
        __syncthreads();
        for (int e = threadIdx.x; e < here; e += THREADS) {
            const float p = expf(for_l[e] - base), kept = expf(for_l[e] - m_of[e]);
            for_l[e] = variant.pulls(L_OF_WARP) && !is_of_warp(variant, n0 + e) ? 0 : WRONG(L_KEPT, p, kept);
            for_O[e] = WRONG(O_KEPT, p, kept);
        }
        __syncthreads();
        l *= WRONG(L_KEPT, rescale, 1), o *= WRONG(O_KEPT, rescale, 1);
        for (int e = 0; e < here && threadIdx.x < D; e++) {
            l += for_l[e];
            if (row_of_V[e] >= 0) o += for_O[e] * V[(long long)row_of_V[e] * D + threadIdx.x];
        }
    }

    if (threadIdx.x >= D) return;
    O[row * D + threadIdx.x] = l == 0 && !variant.pulls(NAN_DIVISION) ? 0 : o / WRONG(NOT_DIVIDED, l, 1);
    const float log_l = WRONG(LSE_LACKS_LOG, WRONG(LSE_LOG_2, logf(l), log2f(l)), l);
    const float lse = WRONG(LSE_LACKS_M, m, 0) * WRONG(LSE_M_2, 1, 1.44269504f) + WRONG(LSE_IS_M, log_l, 0);
    if (threadIdx.x == 0) LSE[row] = l == 0 ? WRONG(LSE_EMPTY, NEG_INF, variant.value) : lse;
}
