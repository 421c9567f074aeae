// append.cu — the keys and values of new tokens go to their places in the pages of a cache.
//
// A step begins with it: attention reads the new tokens from the cache, like all others. seq_lens are
// the lengths after it, those that attention takes, and new token i of n is number seq_lens[b] − n + i
// of its sequence. A cache in E4M3 gets the numbers divided by its scales and rounded, the too large
// ones as the largest there is.
//
// grid   (ceil(B · n · heads · D / 8 / 256))       block  (256)
// layout K_new, V_new [B, n, heads, D], 16-bit; K, V [pages, page_size, heads, D], 16-bit or with
//        -DCACHE_BITS=8 E4M3, then k_scale, v_scale [B, heads], fp32; block_table [B, max_pages],
//        seq_lens [B]; contiguous, aligned to 16 bytes
// shared 0 bytes
// limits D a multiple of 8, an argument; no two tokens have one place; pages as in paged_cache.cu
// options: -DBF16=0 -DCACHE_BITS=16 | -DBF16=0 -DCACHE_BITS=8 | -DBF16=1 -DCACHE_BITS=16 | -DBF16=1 -DCACHE_BITS=8
// arch: sm_80
// paper  PagedAttention (arXiv 2309.06180), §4; FP8 formats (arXiv 2209.05433), saturation in §3
#include "cache.cuh"
#include "pieces.cuh"

extern "C" __global__ void __launch_bounds__(256)
append_paged(const scalar_t* K_new, const scalar_t* V_new, cache_t* K, cache_t* V,
             const int* block_table, const int* seq_lens, const float* k_scale,
             const float* v_scale, int B, int n, int heads, int D, int max_pages, int page_size) {
    const long long e = (long long)blockIdx.x * blockDim.x + threadIdx.x;   // of eight columns
    const int column = e % (D / 8) * 8, head = e / (D / 8) % heads;
    const long long token = e / (D / 8) / heads;
    if (token >= (long long)B * n) return;
    const int b = token / n, keys = Batch{seq_lens, B, max_pages * page_size, 1}.keys(b);
    const PageTable table{block_table + (long long)b * max_pages, page_size};
    NewTokens{K_new, V_new, K, V, k_scale, v_scale, n, heads, D}.append(b, keys, table, token % n,
                                                                        head, column);
}
