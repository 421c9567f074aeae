// paged_gather_mistakes.cuh — paged_gather.cu with hooks where learners err; paged_gather_mistakes.toml says what they are.
constexpr int MOST_D = 128, MOST_COLUMNS = MOST_D / 32;
__constant__ int D;   // an option of the solution

__device__ long long place_of(const Variant& variant, int page, int slot, int head, int page_size, int heads) {
    const long long row = (long long)page * page_size + slot, of_page = (long long)page * page_size * heads * D;
    const long long of_slot = (long long)slot * heads * D, of_head = (long long)head * D;
    long long place = (WRONG(ROW_IN_32_BITS, row, (int)row) * heads + head) * D;
    place = WRONG(SLOT_IN_32_BITS, place, of_page + (int)of_slot + of_head);
    place = WRONG(SLOT_AND_HEAD_IN_32_BITS, place, of_page + (int)(of_slot + of_head));
    place = WRONG(HEADS_FIRST, place, (((long long)page * heads + head) * page_size + slot) * D);
    place = WRONG(PAGE_IS_ROW, place, (((long long)page + slot) * heads + head) * D);
    return WRONG(IN_32_BITS, place, (int)place);
}

extern "C" __global__ void key_places(const int* pages, const int* slots, long long* places, int page_size) {
    const Variant variant = variants[variant_number()];
    const int i = blockIdx.x, head = threadIdx.x, heads = blockDim.x;
    places += (long long)variant_number() * gridDim.x * heads;
    places[i * heads + head] = place_of(variant, pages[i], slots[i], head, page_size, heads);
}

extern "C" __global__ void __launch_bounds__(32)
paged_gather(const float* Q, const float* K_pages, const float* V_pages, const int* block_table,
             const int* seq_lens, float* O, float* LSE, int max_pages, int page_size, float scale) {
    const Variant variant = variants[variant_number()];
    __shared__ float scores[32];   // of 32 keys, each made by one lane
    __shared__ long long places[32];
    const int head = blockIdx.x, heads = gridDim.x, b = blockIdx.y, lane = threadIdx.x, columns = D / 32;
    const long long row = (long long)b * heads + head, output = (long long)variant_number() * gridDim.y * heads + row;
    Q += row * D, O += output * D, LSE += output;

    const int L = seq_lens[b], pages = (L + page_size - 1) / page_size, size = WRONG(PAGES_OF_16, page_size, 16);
    int keys = WRONG(WHOLE_PAGES, WRONG(FULL_PAGES, L, L / page_size * page_size), pages * page_size);
    keys = min(keys - WRONG(LAST_KEY, 0, 1), WRONG(FIRST_PAGES, keys, (int)variant.value * page_size));
    keys = WRONG(FIRST_KEYS, keys, min(keys, (int)variant.value));
    const int first_of_table = WRONG(TABLE_OF_SEQUENCE_0, b, 0) * max_pages;

    float O_b[MOST_COLUMNS] = {}, m = NEG_INF, l = 0;
    for (int j0 = 0; j0 < keys; j0 += 32) {
        const int there = min(32, keys - j0), j = j0 + min(lane, there - 1), p = j / size;
        const int page = block_table[min(first_of_table + p, elements[3] - 1)];
        const int taken = WRONG(NO_TABLE, WRONG(PLACE_IN_TABLE, page, b * max_pages + p), p);
        long long place = place_of(variant, taken, j % size, head, page_size, heads);
        place = max(0LL, min(place, (long long)elements[1] - D));   // in the pool
        float s = 0;
        for (int c = 0; c < D; c++) s += Q[c] * K_pages[place + c];
        __syncwarp();
        scores[lane] = s *= scale, places[lane] = place;
        __syncwarp();
        float m_new = m;
        for (int i = 0; i < there; i++) m_new = fmaxf(m_new, scores[i]);
        const float rescale = expf(m - m_new);
        __syncwarp();
        scores[lane] = expf(s - m_new);
        __syncwarp();
        m = m_new, l *= rescale;
        for (int c = 0; c < columns; c++) O_b[c] *= rescale;
        for (int i = 0; i < there; i++) {
            l += scores[i];
            for (int c = 0; c < columns; c++) O_b[c] += scores[i] * V_pages[places[i] + lane + 32 * c];
        }
    }

    const bool empty = WRONG(EMPTY_BY_LENGTH, !(l > 0), L == 0);
    for (int c = 0; c < columns; c++)
        O[lane + 32 * c] = empty && !variant.pulls(NAN_DIVISION) ? 0 : O_b[c] / WRONG(NOT_DIVIDED, l, 1);
    const float log_l = WRONG(LSE_LACKS_LOG, WRONG(LSE_LOG_2, logf(l), log2f(l)), l);
    const float lse = WRONG(LSE_LACKS_M, m, 0) * WRONG(LSE_M_2, 1, 1.44269504f) + WRONG(LSE_IS_M, log_l, 0);
    if (lane == 0) LSE[0] = empty ? WRONG(LSE_EMPTY, NEG_INF, variant.value) : lse;
}
