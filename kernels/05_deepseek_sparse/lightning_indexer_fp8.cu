// lightning_indexer_fp8.cu — lightning_indexer.cu in FP8, as DeepSeek-V3.2 runs it: vectors in
// E4M3, each with one scale, a power of two.
//
// The scales come in after the products: with c = q_scale k_scale, ReLU(c x) = c ReLU(x), since
// c >= 0. So that of a head joins its weight, and that of a key the finished logit. To multiply by
// a power of two rounds nothing, so the scales cost no accuracy.
//
// What it gains: half the bytes; and twice the products where mma.sync multiplies E4M3 itself, as
// on sm_89 and sm_120. For sm_90 and sm_100 the compiler turns each such instruction into
// conversions to fp16, two products in fp16 and additions in fp32: as accurate as those, and slower
// than bf16. Hopper's FP8 tensor cores take wgmma only (lightning_indexer_hopper.cu). They keep
// about 14 bits of a sum (DeepSeek-V3, arXiv 2412.19437, §3.3.2), and so do those of sm_89
// (SageAttention2, arXiv 2411.10958).
//
// grid   (ceil(T / (64 · WARPS)), any number up to S)       block  (32 · WARPS)
// layout q [S, H, 128], k [T, 128], E4M3, a byte a number; weights, q_scale [S, H], k_scale [T],
//        logits [S, T], fp32; contiguous, aligned to 16 bytes; t = 0 … S − 1 counts queries,
//        s = 0 … T − 1 keys; key s is legal for query t if s <= t + q_start, else its logit is −∞
// shared max(8192 · WARPS, 16896) bytes, dynamic: the keys, then two queries with their weights
// limits scales >= 0; H at most 64; WARPS 4 or 8; |q_start| + S + T fits an int; a product that is
//        NaN counts as 0
// options: -DWARPS=4
// arch: sm_89
// paper  DeepSeek-V3.2 (arXiv 2512.02556), §2.1, equation 1
constexpr int D = 64;   // tiles count in 16 bits: a pair of E4M3 is one
#include "indexer_tile.cuh"

// D += A B, over 32 E4M3 instead of 16 numbers of 16 bits. A register holds four neighbours instead
// of two: counted in bytes, a fragment is the same, and neither ldmatrix nor the swizzle needs to
// know.
__device__ inline void mma_16x8x32(float (&d)[4], const unsigned (&a)[4],
                                   unsigned b0, unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

extern "C" __global__ void __launch_bounds__(THREADS, 8 / WARPS)
lightning_indexer_fp8(const unsigned char* q, const unsigned char* k, const float* weights,
                      const float* q_scale, const float* k_scale, float* logits,
                      int S, int T, int H, int q_start) {
    extern __shared__ __align__(256) uint4 shared_memory[];   // row_address takes that alignment
    Tiles& tile = *reinterpret_cast<Tiles*>(shared_memory);
    const int s0 = blockIdx.x * KEYS;
    const int queries = (S + gridDim.y - 1) / gridDim.y, t0 = blockIdx.y * queries;
    const int t_end = min(S, t0 + queries);
    const scalar_t *q_pairs = (const scalar_t*)q, *k_pairs = (const scalar_t*)k;

    // Query t sees the block's keys from t = s0 − q_start on.
    const int first = min(t_end, max(t0, s0 - q_start));
    fill_rows(logits, t0, first, s0, T);
    if (first >= t_end) return;

    Keys K;
    load_keys(K, tile.keys, k_pairs + (long long)s0 * D, T - s0);
    const int s = s0 + own_key();
    float own_scale[2];
    for (int r = 0; r < 2; r++) own_scale[r] = s + 8 * r < T ? k_scale[s + 8 * r] : 0;
    // Thread j copies the weight of head j, and keeps its scale.
    auto scale_of_head = [=](int t) {
        return threadIdx.x < H ? q_scale[(long long)t * H + threadIdx.x] : 0;
    };
    float scale = scale_of_head(first);
    load_query_async(tile.query[first % 2], q_pairs, weights, first, H);
    for (int t = first; t < t_end; t++) {
        Query& query = tile.query[t % 2];
        wait_for_copies<0>();
        if (threadIdx.x < HEADS) query.w[threadIdx.x] *= scale;   // its own copy: no barrier yet
        __syncthreads();   // query t is there, and every warp is done with query t − 1
        if (t + 1 < t_end) {
            load_query_async(tile.query[(t + 1) % 2], q_pairs, weights, t + 1, H);
            scale = scale_of_head(t + 1);
        }

        Logits I = {};
        for (int j = 0; j < H; j += 16) {   // 16 heads at a time
            Scores scores;
            compute_scores<mma_16x8x32>(scores, K, query, j);
            relu(scores);
            add_heads(I, scores, query.w + j);
        }
        add_lanes(I);
        for (int r = 0; r < 2; r++)   // eight lanes write eight neighbours
            if (s + 8 * r < T)
                logits[(long long)t * T + s + 8 * r] =
                    s + 8 * r <= t + q_start ? I[0][r] * own_scale[r] : NEG_INF;
    }
}
