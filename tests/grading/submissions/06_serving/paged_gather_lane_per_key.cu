// A lane has a key: it looks up the key's page, and multiplies all columns. Weights pass by shuffles.
constexpr int COLUMNS = D / 32;
#define NEG_INF __int_as_float(0xff800000)

__device__ inline long long place_of(int page, int slot, int head, int page_size, int heads) {
    const long long of_page = (long long)page_size * heads * D, of_slot = (long long)heads * D;
    return page * of_page + slot * of_slot + head * D;
}

extern "C" __global__ void key_places(const int* pages, const int* slots, long long* places,
                                      int page_size) {
    const int i = blockIdx.x, head = threadIdx.x, heads = blockDim.x;
    places[i * heads + head] = place_of(pages[i], slots[i], head, page_size, heads);
}

extern "C" __global__ void __launch_bounds__(32)
paged_gather(const float* Q, const float* K_pages, const float* V_pages, const int* block_table,
             const int* seq_lens, float* O, float* LSE, int max_pages, int page_size, float scale) {
    const int head = blockIdx.x, heads = gridDim.x, b = blockIdx.y, lane = threadIdx.x;
    const int L = seq_lens[b];
    const long long row = (long long)b * heads + head;
    float o[COLUMNS] = {}, m = NEG_INF, l = 0;
    for (int j0 = 0; j0 < L; j0 += 32) {
        const int j = j0 + lane;
        float s = NEG_INF;
        long long place = 0;
        if (j < L) {
            const int page = block_table[(long long)b * max_pages + j / page_size];
            place = place_of(page, j % page_size, head, page_size, heads);
            s = 0;
            for (int c = 0; c < D; c++) s += Q[row * D + c] * K_pages[place + c];
            s *= scale;
        }
        float m_new = fmaxf(m, s);
        for (int step = 16; step > 0; step /= 2)
            m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffff, m_new, step));
        const float rescale = expf(m - m_new), p = expf(s - m_new);
        m = m_new, l = l * rescale + p;
        for (int c = 0; c < COLUMNS; c++) o[c] *= rescale;
        for (int i = 0; i < min(32, L - j0); i++) {
            const float p_i = __shfl_sync(0xffffffff, p, i);
            const long long at = __shfl_sync(0xffffffff, place, i) + lane;
            for (int c = 0; c < COLUMNS; c++) o[c] += p_i * V_pages[at + 32 * c];
        }
    }
    for (int step = 16; step > 0; step /= 2) l += __shfl_xor_sync(0xffffffff, l, step);
    for (int c = 0; c < COLUMNS; c++) O[row * D + lane + 32 * c] = L > 0 ? o[c] / l : 0;
    if (lane == 0) LSE[row] = L > 0 ? m + logf(l) : NEG_INF;
}
