// gradient_tile.cuh — FlashAttention-2's backward pass as a warp sees it: its KEYS keys, of the
// block's B_C, meet B_R queries; what becomes of dK and dV, and the block's share of dQ.
//
// A warp has keys, not queries, and computes Sᵀ = K Qᵀ and dPᵀ = V dOᵀ: then Pᵀ and dSᵀ are laid
// out as the left factor of Pᵀ dO and dSᵀ Q and stay in registers. K and V of the warp stay there
// too, as left factors, and 16 queries at a time leave room for that. Only dS, of which dQ needs
// all keys of the block, goes through shared memory.
// "Line" is a line of Algorithm 2 of FlashAttention-2 (arXiv 2307.08691). `pitch`: elements from
// one row of a matrix to the next; LSE and delta have one for each D of them.
// Include after D, WARPS, KEYS and B_R are defined; THREADS and B_C follow from them.
#pragma once
constexpr int THREADS = 32 * WARPS, B_C = WARPS * KEYS;
#include "tile_products.cuh"

constexpr int M = KEYS / 16;   // products that a warp's keys take
constexpr float LOG2_E = 1.44269504f;
static_assert(KEYS % 16 == 0, "KEYS must be a multiple of 16");
static_assert(B_R == 32 || B_R == 64, "B_R must be 32 or 64");
static_assert(WARPS == 2 || WARPS == 4 || WARPS == 8, "WARPS must be 2, 4 or 8");

// Of queries, and of dS, two tiles: one in use, the other on its way, or read for dQ.
struct Tiles {
    scalar_t K[B_C * D], V[B_C * D], Q[2][B_R * D], dO[2][B_R * D], dS[2][B_C * B_R];
    float LSE[2][B_R], delta[2][B_R];
};

// What a warp carries from tile to tile: its keys as left factors, and the sums.
struct KeyGradients {
    unsigned K[D / 16][M][4], V[D / 16][M][4];
    float dK[M][D / 8][4], dV[M][D / 8][4];
};

// The warp's first key, counted from the block's.
__device__ inline int first_key() { return threadIdx.x / 32 * KEYS; }

__device__ inline void store_pair(scalar_t* address, float low, float high) {
    *reinterpret_cast<unsigned*>(address) = pack(low, high);
}

// Calls f(P, dS, row, column) for each number of two products, [16 M, 8 N], that this lane holds.
template <int M, int N, class F>
__device__ inline void each_score(float (&P)[M][N][4], float (&dS)[M][N][4], F f) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    #pragma unroll
    for (int n = 0; n < N; n++)
        #pragma unroll
        for (int m = 0; m < M; m++)
            #pragma unroll
            for (int e = 0; e < 4; e++)
                f(P[m][n][e], dS[m][n][e], 16 * m + e / 2 * 8 + g, 8 * n + 2 * t + e % 2);
}

// Line 6: starts to copy the block's keys; zeros from row `rows_left` on.
__device__ inline void load_keys_async(Tiles& tile, const scalar_t* K, const scalar_t* V,
                                       int rows_left, int pitch = D) {
    load_tile_async<B_C>(tile.K, K, rows_left, pitch);
    load_tile_async<B_C>(tile.V, V, rows_left, pitch);
}

// Starts to copy a number for each query of a tile; zeros from row `rows_left` on.
__device__ inline void load_rows_async(float* rows, const float* source, int rows_left,
                                       int pitch) {
    static_assert(B_R <= THREADS, "B_R must be at most 32 * WARPS");
    const int r = threadIdx.x;
    if (r < B_R) copy_4_bytes_async(rows + r, source + r * (pitch / D), r < rows_left);
}

// Line 9: starts to copy a tile of queries, from row `row` of the matrices on.
__device__ inline void load_queries_async(Tiles& tile, int place, const scalar_t* Q,
                                          const scalar_t* dO, const float* LSE, const float* delta,
                                          long long row, int rows_left, int pitch = D) {
    load_tile_async<B_R>(tile.Q[place], Q + row * D, rows_left, pitch);
    load_tile_async<B_R>(tile.dO[place], dO + row * D, rows_left, pitch);
    load_rows_async(tile.LSE[place], LSE + row, rows_left, pitch);
    load_rows_async(tile.delta[place], delta + row, rows_left, pitch);
    commit_copies();
}

// Lines 6 and 7, for a warp: its keys come from shared memory, dK = dV = 0.
__device__ inline void initialize(KeyGradients& of, const Tiles& tile) {
    #pragma unroll
    for (int d = 0; d < D; d += 16)
        for (int m = 0; m < M; m++) {
            ldmatrix_x4(of.K[d / 16][m], at(by_rows(tile.K), first_key() + 16 * m, d));
            ldmatrix_x4(of.V[d / 16][m], at(by_rows(tile.V), first_key() + 16 * m, d));
        }
    for (int m = 0; m < M; m++)
        for (int c = 0; c < D / 8; c++)
            for (int e = 0; e < 4; e++) of.dK[m][c][e] = of.dV[m][c][e] = 0;
}

// dSᵀ is stored [B_C, B_R]. Index of chunk 0 of a row; that of chunk c is this XOR 8 c, and eight
// rows use all banks.
__device__ inline int dS_row(int key) {
    return key * B_R + (B_R == 32 ? key / 2 % 4 : key % 8) * 8;
}

// Lines 10 to 14 and 16 for one tile of queries; dS is left in shared memory if `with_dQ`. If
// `edge`, P = 0 where `visible(query, key)` is false; queries count from the tile's first, keys
// from the warp's.
template <class Visible>
__device__ inline void accumulate(KeyGradients& of, Tiles& tile, int place, float scale,
                                  bool with_dQ, bool edge, Visible visible) {
    const scalar_t *Q = tile.Q[place], *dO = tile.dO[place];
    const int lane = threadIdx.x % 32, dS_lane = dS_row(first_key() + lane / 4) + lane % 4 * 2;
    #pragma unroll 1
    for (int r = 0; r < B_R; r += 16) {
        // Lines 10 and 13: Sᵀ = K Qᵀ and dPᵀ = V dOᵀ. A row is a key, a column a query.
        float P[M][2][4] = {}, dS[M][2][4] = {};
        #pragma unroll
        for (int d = 0; d < D; d += 16) {
            multiply_transposed(P, of.K[d / 16], at(by_columns(Q), r, d));
            multiply_transposed(dS, of.V[d / 16], at(by_columns(dO), r, d));
        }
        // Line 11, Pᵀ = exp(Sᵀ − LSE), and line 14, dSᵀ = Pᵀ ∘ (dPᵀ − Δ). Past the last query all
        // of Q, dO, LSE and Δ are 0: P is 1, but it is multiplied by dO = 0, and dS is 0.
        const float *LSE_i = tile.LSE[place] + r, *delta_i = tile.delta[place] + r;
        each_score(P, dS, [&](float& p, float& ds, int key, int query) {
            p = exp2_approx(p * (scale * LOG2_E) - LSE_i[query] * LOG2_E);
        });
        if (edge)   // of a query that sees no key, LSE is −∞ and P is ∞ until here
            each_score(P, dS, [&](float& p, float& ds, int key, int query) {
                if (!visible(r + query, key)) p = 0;
            });
        each_score(P, dS, [&](float& p, float& ds, int key, int query) {
            ds = p * (ds - delta_i[query]);
        });

        // Lines 12 and 16: dV += Pᵀ dO, dK += dSᵀ Q
        unsigned P_a[M][4], dS_a[M][4];
        for (int m = 0; m < M; m++) pack_a(P_a[m], P[m][0], P[m][1]);
        for (int m = 0; m < M; m++) pack_a(dS_a[m], dS[m][0], dS[m][1]);
        if (with_dQ)
            for (int m = 0; m < M; m++)
                for (int e = 0; e < 4; e++) {
                    const int row = 16 * m + e % 2 * 8, column = r + e / 2 * 8;
                    scalar_t* pair = tile.dS[place] + (dS_lane ^ column) + row * B_R;
                    *reinterpret_cast<unsigned*>(pair) = dS_a[m][e];
                }
        multiply(of.dV, P_a, at(by_rows(dO), r, 0));
        multiply(of.dK, dS_a, at(by_rows(Q), r, 0));
    }
}

// Line 15: dQ_sum += dS K for one tile of queries, whose dS is complete. Of each pair of warps, one
// has the upper half of the rows, the other the lower; the pairs divide the columns.
__device__ inline void add_dQ(float* dQ_sum, const Tiles& tile, int place, int rows_left,
                              int pitch = D) {
    constexpr int ROWS = B_R / 2, COLS = D / (WARPS / 2);
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32;
    const int row = warp % 2 * ROWS, col = warp / 2 * COLS;

    // As by_columns, for the pitch of dS: transposed on the way, dSᵀ is the A of dS K.
    const int corner = dS_row(lane % 8 + lane / 16 * 8) ^ (row + lane / 8 % 2 * 8);
    const unsigned dS_address = __cvta_generic_to_shared(tile.dS[place] + corner);
    float dQ[ROWS / 16][COLS / 8][4] = {};
    #pragma unroll
    for (int j = 0; j < B_C; j += 16) {
        unsigned a[ROWS / 16][4];
        for (int m = 0; m < ROWS / 16; m++)
            ldmatrix_x4_trans(a[m], (dS_address ^ 2 * 16 * m) + 2 * B_R * j);
        multiply(dQ, a, at(by_rows(tile.K), j, col));
    }
    #pragma unroll
    for (int m = 0; m < ROWS / 16; m++)
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = row + 16 * m + 8 * half + g;
            if (i >= rows_left) continue;
            float* out = dQ_sum + i * pitch + col + 2 * t;
            #pragma unroll
            for (int n = 0; n < COLS / 8; n++)
                add_pair(out + 8 * n, dQ[m][n][2 * half], dQ[m][n][2 * half + 1]);
        }
}

// Line 18: writes dK and dV of the block's first `rows_left` keys.
__device__ inline void write_gradients(const KeyGradients& of, scalar_t* dK, scalar_t* dV,
                                       float scale, int rows_left, int pitch = D) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    #pragma unroll
    for (int m = 0; m < M; m++)
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            const int key = first_key() + 16 * m + 8 * half + g;
            if (key >= rows_left) continue;
            #pragma unroll
            for (int c = 0; c < D / 8; c++) {
                const long long at = (long long)key * pitch + 8 * c + 2 * t;
                const float *k = of.dK[m][c] + 2 * half, *v = of.dV[m][c] + 2 * half;
                store_pair(dK + at, scale * k[0], scale * k[1]);
                store_pair(dV + at, v[0], v[1]);
            }
        }
}
