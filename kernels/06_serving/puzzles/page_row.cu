// page_row.cu — one query of each sequence against a cache in pages: the block table says where a key is.
//
// grid   (B)                           block  (d), a thread per column
// layout q, O [B, d]  K, V [pages, page_size, d], fp32; block_table [B, max_pages], seq_lens [B]; contiguous
// shared 0 bytes
// limits any page size and d up to 1024 with pages · page_size · d below 2^31; each sequence has a key
// paper  PagedAttention (arXiv 2309.06180), §4
__device__ float dot(const float* q, const float* k, int d) {
    float sum = 0;
    for (int c = 0; c < d; c++) sum += q[c] * k[c];
    return sum;
}

extern "C" __global__ void page_row(const float* q, const float* K, const float* V,
                                    const int* block_table, const int* seq_lens, float* O,
                                    int max_pages, int page_size, int d, float scale) {
    const int b = blockIdx.x, c = threadIdx.x;            // my sequence, my column
    float m = __int_as_float(0xff800000), l = 0, o = 0;   // −∞, and no weight yet
    for (int j = 0; j < seq_lens[b]; j++) {
        int row = j;                                      // in which row of the pages key j is
        // BEGIN SOLUTION
        const int page = block_table[b * max_pages + j / page_size];
        row = page * page_size + j % page_size;
        // END SOLUTION
        const float s = scale * dot(q + b * d, K + row * d, d), m_new = fmaxf(m, s);
        const float rescale = expf(m - m_new), p = expf(s - m_new);
        m = m_new, l = l * rescale + p, o = o * rescale + p * V[row * d + c];
    }
    O[b * d + c] = o / l;
}
