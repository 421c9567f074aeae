// indexer_tile.cuh — the lightning indexer as a warp sees it: its 64 keys stay, queries stream by.
//
// I[t, s] = sum_j w[t, j] ReLU(q[t, j] · k[s]) is a product of keys by heads, [KEYS, HEADS], for
// each query t, of which only sums over the heads are kept. So keys are the rows of mma.sync's D
// and heads its columns: a lane has the same keys for all heads, and adds in its own registers.
// Only at the end of a query do the four lanes of a row meet.
// The keys, as fragments A, are loaded once and stay in registers; the queries pass through shared
// memory, and each fragment B from there serves 64 keys.
// Include after D and WARPS are defined.
#pragma once
constexpr int THREADS = 32 * WARPS;
#include "fragment_rows.cuh"
#include "tile_products.cuh"

constexpr int HEADS = 64;             // the most; rows of a tile from H on are zeros
constexpr int M = 4, ROWS = 16 * M;   // products that a warp's keys take, and these keys
constexpr int KEYS = ROWS * WARPS;
static_assert(WARPS == 4 || WARPS == 8, "WARPS must be 4 or 8");

struct Query { scalar_t q[HEADS * D]; float w[HEADS]; };

// The keys are gone, to registers, before the first query comes.
union Tiles { scalar_t keys[KEYS * D]; Query query[2]; };

// Lane 4 g + t has rows (keys) 16 m + g and 16 m + g + 8 of product m; of 16 heads, columns
// 8 n + 2 t and 8 n + 2 t + 1.
typedef unsigned Keys[D / 16][M][4];
typedef float Scores[M][2][4], Logits[M][2];

// Brings the block's keys, zeros from key `keys_left` on, and keeps the warp's own in registers.
__device__ inline void load_keys(Keys& K, scalar_t* tile, const scalar_t* k, int keys_left) {
    load_tile_async<KEYS>(tile, k, keys_left);
    commit_copies();
    wait_for_copies<0>();
    __syncthreads();
    const unsigned rows = by_rows(tile + threadIdx.x / 32 * ROWS * D);
    #pragma unroll
    for (int d = 0; d < D; d += 16)
        #pragma unroll
        for (int m = 0; m < M; m++) ldmatrix_x4(K[d / 16][m], at(rows, 16 * m, d));
    __syncthreads();   // all warps have theirs
}

// Starts to copy the heads of query t and their weights; zeros from head H on.
__device__ inline void load_query_async(Query& query, const scalar_t* q, const float* weights,
                                        int t, int H) {
    load_tile_async<HEADS>(query.q, q + (long long)t * H * D, H);
    const int j = threadIdx.x;
    if (j < HEADS) copy_4_bytes_async(query.w + j, weights + (long long)t * H + j, j < H);
    commit_copies();
}

// S = q · k for heads j to j + 15. `product` is D += A B on tensor cores.
template <auto product>
__device__ inline void compute_scores(Scores& S, const Keys& K, const Query& query, int j) {
    clear(S);
    const unsigned heads = at(by_columns(query.q), j, 0);
    #pragma unroll
    for (int d = 0; d < D; d += 16) {
        unsigned b[4];
        ldmatrix_x4(b, at(heads, 0, d));
        #pragma unroll
        for (int m = 0; m < M; m++) {
            product(S[m][0], K[d / 16][m], b[0], b[1]);
            product(S[m][1], K[d / 16][m], b[2], b[3]);
        }
    }
}

__device__ inline void relu(Scores& S) {
    for (int m = 0; m < M; m++)
        for (int n = 0; n < 2; n++)
            for (int e = 0; e < 4; e++) S[m][n][e] = fmaxf(S[m][n][e], 0);
}

// I += sum of w S over the lane's four of these heads. `w`: that of head j.
__device__ inline void add_heads(Logits& I, const Scores& S, const float* w) {
    #pragma unroll
    for (int n = 0; n < 2; n++) {
        const float2 pair = reinterpret_cast<const float2*>(w + 8 * n)[threadIdx.x % 4];
        for (int m = 0; m < M; m++)
            for (int r = 0; r < 2; r++) {
                I[m][r] = fmaf(pair.x, S[m][n][2 * r], I[m][r]);
                I[m][r] = fmaf(pair.y, S[m][n][2 * r + 1], I[m][r]);
            }
    }
}

// The first of the two keys whose sums a lane has after add_lanes; the other is 8 further.
__device__ inline int own_key() {
    const int lane = threadIdx.x % 32;
    return threadIdx.x / 32 * ROWS + lane % 4 * 16 + lane / 4;
}

// Adds over the four lanes of a row: in I[0][r], lane 4 g + t gets the sum of row 16 t + 8 r + g.
// A lane sends what others keep: 4 + 2 shuffles instead of 16.
__device__ inline void add_lanes(Logits& I) {
    #pragma unroll
    for (int half = 2; half >= 1; half /= 2) {
        const bool upper = threadIdx.x & half;
        #pragma unroll
        for (int m = 0; m < half; m++)
            for (int r = 0; r < 2; r++) {
                const float keep = upper ? I[m + half][r] : I[m][r];
                const float send = upper ? I[m][r] : I[m + half][r];
                I[m][r] = keep + __shfl_xor_sync(0xffffffff, send, half);
            }
    }
}

// Writes −∞ to the block's keys of queries t0 to t_end − 1.
__device__ inline void fill_rows(float* logits, int t0, int t_end, int s0, int T) {
    for (int t = t0; t < t_end; t++)
        for (int s = s0 + threadIdx.x; s < min(T, s0 + KEYS); s += THREADS)
            logits[(long long)t * T + s] = NEG_INF;
}
