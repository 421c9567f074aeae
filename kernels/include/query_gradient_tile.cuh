// query_gradient_tile.cuh — dQ without atomics, as a warp sees it: its 16 queries meet KEY_TILE keys.
//
// A warp holds queries, as in the forward pass, and dQ stays in its registers while tiles of keys come
// by in a fixed order: every run gives the same bits. S and dP are computed again.
// "Line" is a line of Algorithm 2 of FlashAttention-2 (arXiv 2307.08691). `pitch`: elements from one
// row of a matrix to the next; LSE and delta have one for each D of them.
// Include after D and WARPS are defined, and THREADS.
#pragma once
#include "fragment_rows.cuh"
#include "model_softmax.cuh"
#include "tile_products.cuh"

constexpr int QUERIES = 16 * WARPS, KEY_TILE = D > 128 ? 32 : 64;

// Of keys, two tiles: one in use, the other on its way.
struct QueryTiles {
    scalar_t Q[QUERIES * D], dO[QUERIES * D], K[2][KEY_TILE * D], V[2][KEY_TILE * D];
};

// What a lane carries from tile to tile: of its two rows LSE, as a power of two, delta and dQ / scale.
struct QueryGradients { float LSE[2], delta[2], dQ[1][D / 8][4]; };

// The warp's first query, counted from the block's.
__device__ inline int first_query() { return threadIdx.x / 32 * 16; }

// Of a lane's two queries, counted from the block's first one.
__device__ inline int query_of_lane(int half) {
    return first_query() + 8 * half + threadIdx.x % 32 / 4;
}

// Starts to copy the block's queries; zeros from row `rows_left` on.
__device__ inline void load_queries_async(QueryTiles& tile, const scalar_t* Q, const scalar_t* dO,
                                          int rows_left, int pitch = D) {
    load_tile_async<QUERIES>(tile.Q, Q, rows_left, pitch);
    load_tile_async<QUERIES>(tile.dO, dO, rows_left, pitch);
}

// Starts to copy a tile of keys; zeros from row `rows_left` on.
__device__ inline void load_keys_async(QueryTiles& tile, int place, const scalar_t* K,
                                       const scalar_t* V, int rows_left, int pitch = D) {
    load_tile_async<KEY_TILE>(tile.K[place], K, rows_left, pitch);
    load_tile_async<KEY_TILE>(tile.V[place], V, rows_left, pitch);
}

// dQ = 0. LSE and delta are those of the block's first query on.
__device__ inline void initialize(QueryGradients& queries, const float* LSE, const float* delta,
                                  int rows_left, int pitch = D) {
    for (int half = 0; half < 2; half++) {
        const int i = query_of_lane(half);
        queries.LSE[half] = i < rows_left ? LSE[i * (pitch / D)] * LOG2_E : 0;
        queries.delta[half] = i < rows_left ? delta[i * (pitch / D)] : 0;
    }
    clear(queries.dQ);
}

// Lines 10, 11 and 13 to 15 for one tile of keys. If `edge`, dS = 0 where `visible(query, key)` is
// false; queries count from the warp's first, keys from the tile's.
template <class Visible>
__device__ inline void accumulate(QueryGradients& queries, const QueryTiles& tile, int place,
                                  float scale, bool edge, Visible visible,
                                  const ModelSoftmax& softmax = {}) {
    // Lines 10 and 13: S = Q Kᵀ, dP = dO Vᵀ
    float S[1][KEY_TILE / 8][4] = {}, dP[1][KEY_TILE / 8][4] = {};
    #pragma unroll
    for (int d = 0; d < D; d += 16) {
        unsigned q[1][4], o[1][4];
        ldmatrix_x4(q[0], at(by_rows(tile.Q), first_query(), d));
        ldmatrix_x4(o[0], at(by_rows(tile.dO), first_query(), d));
        multiply_transposed(S, q, at(by_columns(tile.K[place]), 0, d));
        multiply_transposed(dP, o, at(by_columns(tile.V[place]), 0, d));
    }
    if (SOFTCAP) cap_scores(S, scale / softmax.softcap);
    // Lines 11 and 14: P = exp(scale · S − LSE), dS = P ∘ (dP − Δ); tanh has the derivative 1 − tanh²
    const float factor = softmax.factor(scale) * LOG2_E;
    float dS[1][KEY_TILE / 8][4];
    each_of_lane<1, KEY_TILE / 8>([&](int m, int n, int e, int query, int key) {
        const float P = exp2_approx(S[m][n][e] * factor - queries.LSE[query / 8]);
        dS[m][n][e] = P * (dP[m][n][e] - queries.delta[query / 8]);
        if (SOFTCAP) dS[m][n][e] *= 1 - S[m][n][e] * S[m][n][e];
    });
    if (edge)
        each_of_lane<1, KEY_TILE / 8>([&](int m, int n, int e, int query, int key) {
            if (!visible(query, key)) dS[m][n][e] = 0;
        });
    // Line 15: dQ += dS K
    #pragma unroll
    for (int k = 0; k < KEY_TILE / 16; k++) {
        unsigned a[1][4];
        pack_a(a[0], dS[0][2 * k], dS[0][2 * k + 1]);
        multiply(queries.dQ, a, at(by_rows(tile.K[place]), 16 * k, 0));
    }
}

// Writes dQ of the block's first `rows_left` queries.
__device__ inline void write_dQ(const QueryGradients& queries, scalar_t* dQ, float scale,
                                int rows_left, int pitch = D) {
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = query_of_lane(half);
        if (i >= rows_left) continue;
        unsigned* row = reinterpret_cast<unsigned*>(dQ + (long long)i * pitch) + threadIdx.x % 4;
        #pragma unroll
        for (int c = 0; c < D / 8; c++)
            row[4 * c] = pack(scale * queries.dQ[0][c][2 * half],
                              scale * queries.dQ[0][c][2 * half + 1]);
    }
}
