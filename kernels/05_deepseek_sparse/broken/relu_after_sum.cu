// relu_after_sum.cu — lightning_indexer.cu broken on purpose:
// the ReLU comes after the sum over the heads instead of before it, so that all heads are one, and
// heads that say no take away from those that say yes.
// Mended: lightning_indexer.cu.
//
// grid   (ceil(T / (64 · WARPS)), any number up to S)       block  (32 · WARPS)
//        the blocks of a column share the queries among them: few, so that keys are loaded seldom;
//        but enough to fill the GPU where S is small
// layout q [S, H, D], k [T, D], 16-bit; weights [S, H], logits [S, T], fp32; contiguous, aligned to
//        16 bytes; t = 0 … S − 1 counts queries, s = 0 … T − 1 keys; key s is legal for query t
//        if s <= t + q_start, else its logit is −∞
// shared max(128 · D · WARPS, 256 · D + 512) bytes, dynamic: the keys, then two queries with their
//        weights
// limits H at most 64; D 64 or 128; WARPS 4 or 8; |q_start| + S + T fits an int; a product that is
//        NaN counts as 0
// options: -DD=64 -DBF16=1 -DWARPS=4
// arch: sm_80
// paper  DeepSeek-V3.2 (arXiv 2512.02556), §2.1, equation 1
#include "indexer_tile.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 8 / WARPS)
lightning_indexer(const scalar_t* q, const scalar_t* k, const float* weights, float* logits,
                  int S, int T, int H, int q_start) {
    extern __shared__ __align__(256) uint4 shared_memory[];   // row_address takes that alignment
    Tiles& tile = *reinterpret_cast<Tiles*>(shared_memory);
    const int s0 = blockIdx.x * KEYS;
    const int queries = (S + gridDim.y - 1) / gridDim.y, t0 = blockIdx.y * queries;
    const int t_end = min(S, t0 + queries);

    // Query t sees the block's keys from t = s0 − q_start on.
    const int first = min(t_end, max(t0, s0 - q_start));
    fill_rows(logits, t0, first, s0, T);
    if (first >= t_end) return;

    Keys K;
    load_keys(K, tile.keys, k + (long long)s0 * D, T - s0);
    const int s = s0 + own_key();
    load_query_async(tile.query[first % 2], q, weights, first, H);
    for (int t = first; t < t_end; t++) {
        wait_for_copies<0>();
        __syncthreads();   // query t is there, and every warp is done with query t − 1
        if (t + 1 < t_end) load_query_async(tile.query[(t + 1) % 2], q, weights, t + 1, H);

        const Query& query = tile.query[t % 2];
        Logits I = {};
        for (int j = 0; j < H; j += 16) {   // 16 heads at a time
            Scores scores;
            compute_scores<mma_16x8x16>(scores, K, query, j);
            add_heads(I, scores, query.w + j);
        }
        add_lanes(I);
        for (int r = 0; r < 2; r++) I[0][r] = fmaxf(I[0][r], 0);
        for (int r = 0; r < 2; r++)   // eight lanes write eight neighbours
            if (s + 8 * r < T)
                logits[(long long)t * T + s + 8 * r] = s + 8 * r <= t + q_start ? I[0][r] : NEG_INF;
    }
}
