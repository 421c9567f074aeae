// paged_gather.cu — one new token of each sequence attends to keys that lie in pages.
//
// The cache is a pool of pages, each with room for page_size keys and values of every head. Which
// page holds which keys of sequence b is in row b of the block table: keys 0 … page_size − 1 are in
// page block_table[b, 0], the next ones in page block_table[b, 1], and so on. Pages of a sequence
// need not be neighbours, nor in order.
//
// paged_gather  grid (heads, B)  block (32)      a warp; lane owns the columns lane, lane + 32, …
// key_places    grid (keys)      block (heads)   only says where keys lie, for the grader
// layout Q, O [B, heads, D]  LSE [B, heads]  K_pages, V_pages [pages, page_size, heads, D], fp32;
//        block_table [B, max_pages], seq_lens [B], int32; contiguous
// shared 0 bytes
// limits D a multiple of 32; page_size >= 1; entries of the table past a sequence's end are anything
// options: -DD=64 | -DD=128
// paper  PagedAttention (arXiv 2309.06180), §4
constexpr int COLUMNS = D / 32;   // of a lane
#define NEG_INF __int_as_float(0xff800000)
static_assert(D % 32 == 0, "each lane has as many columns");

// Attention so far: the online softmax of exercise 02.1. O and l are relative to the maximum m.
struct Attention {
    float q[COLUMNS], O[COLUMNS] = {}, m = NEG_INF, l = 0;

    // One more key and its value: k and v point to the lane's first column.
    __device__ void take(const float* k, const float* v) {
        float s = 0;
        for (int c = 0; c < COLUMNS; c++) s += q[c] * k[32 * c];
        for (int step = 16; step > 0; step /= 2) s += __shfl_xor_sync(0xffffffff, s, step);
        const float m_new = fmaxf(m, s), rescale = expf(m - m_new), p = expf(s - m_new);
        m = m_new, l = l * rescale + p;
        for (int c = 0; c < COLUMNS; c++) O[c] = O[c] * rescale + p * v[32 * c];
    }
};

// Where a page has column 0 of a head, in one of its slots 0 … page_size − 1: how many numbers after
// the start of K_pages, or V_pages. Pools are larger than 2³¹ numbers, and may have as many rows.
__device__ inline long long place_of(int page, int slot, int head, int page_size, int heads) {
    long long place = 0;
    // 1.
    // YOUR CODE HERE
    return place;
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
    Attention all;
    for (int c = 0; c < COLUMNS; c++) all.q[c] = scale * Q[row * D + lane + 32 * c];

    // 2. Take the L keys of sequence b, page by page. A page is looked up once, not for each key.
    // YOUR CODE HERE

    // 3. Store O and LSE of this row. Without a key, O is 0 and LSE −∞.
    // YOUR CODE HERE
}
