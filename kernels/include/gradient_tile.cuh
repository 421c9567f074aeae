// gradient_tile.cuh — FlashAttention-2's backward pass as a warp sees it: its KEYS keys, of the
// block's B_C, meet B_R queries; what becomes of dK and dV, and the block's share of dQ.
//
// A warp has keys, not queries, and computes Sᵀ = K Qᵀ and dPᵀ = V dOᵀ, St and dPt in the code:
// then Pᵀ and dSᵀ are laid out as the left factors of Pᵀ dO and dSᵀ Q and stay in registers. K and
// V of the warp stay there too, as left factors, and 16 queries at a time leave room for that. Only
// dSᵀ, of which dQ needs all keys of the block, goes through shared memory.
// "Line" is a line of Algorithm 2 of FlashAttention-2 (arXiv 2307.08691). `pitch`: elements from
// one row of a matrix to the next; LSE and delta have one for each D of them.
// Include after D, WARPS, KEYS and B_R are defined; THREADS and B_C follow from them.
#pragma once
constexpr int THREADS = 32 * WARPS, B_C = WARPS * KEYS;
#include "fragment_rows.cuh"
#include "model_softmax.cuh"
#include "tile_products.cuh"

constexpr int M = KEYS / 16;   // products that a warp's keys take
static_assert(KEYS % 16 == 0, "KEYS must be a multiple of 16");
static_assert(B_R == 32 || B_R == 64, "B_R must be 32 or 64");
static_assert(WARPS == 2 || WARPS == 4 || WARPS == 8, "WARPS must be 2, 4 or 8");

// Of queries, and of dSᵀ, two tiles: one in use, the other on its way, or read for dQ.
struct Tiles {
    scalar_t K[B_C * D], V[B_C * D], Q[2][B_R * D], dO[2][B_R * D], dSt[2][B_C * B_R];
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

// A product of the warp's keys and 16 queries: a row is a key, a column a query. And the same in 16
// bits, as the left factor of a product.
typedef float KeysByQueries[M][2][4];
typedef unsigned LeftFactor[M][4];

__device__ inline void as_left_factor(LeftFactor& a, const KeysByQueries& product) {
    for (int m = 0; m < M; m++) pack_a(a[m], product[m][0], product[m][1]);
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

// Of each 16 columns of the warp's rows of K, in shared memory, the order becomes 0, 1, 4, 5, 8, 9,
// 12, 13 and then the others: two products of add_dQ then leave four neighbours of dQ to a lane.
__device__ inline void interleave_columns(scalar_t* K) {
    // Neighbouring lanes have neighbouring rows: eight of them then use all banks.
    for (int n = threadIdx.x % 32; n < KEYS * D / 16; n += 32) {
        const int row = first_key() + n / (D / 8) * 2 + n % 2, chunk = n / 2 % (D / 16) * 2;
        uint4* left = reinterpret_cast<uint4*>(K + swizzled(row, chunk));
        uint4* right = reinterpret_cast<uint4*>(K + swizzled(row, chunk + 1));
        const uint4 a = *left, b = *right;
        *left = make_uint4(a.x, a.z, b.x, b.z), *right = make_uint4(a.y, a.w, b.y, b.w);
    }
}

// Lines 6 and 7, for a warp: its keys come from shared memory, dK = dV = 0.
__device__ inline void initialize(KeyGradients& keys, Tiles& tile) {
    #pragma unroll
    for (int d = 0; d < D; d += 16)
        for (int m = 0; m < M; m++) {
            ldmatrix_x4(keys.K[d / 16][m], at(by_rows(tile.K), first_key() + 16 * m, d));
            ldmatrix_x4(keys.V[d / 16][m], at(by_rows(tile.V), first_key() + 16 * m, d));
        }
    clear(keys.dK);
    clear(keys.dV);
    __syncwarp();   // the warp has read its rows
    interleave_columns(tile.K);
}

// Line 10: Sᵀ = K Qᵀ, of 16 queries that begin at row r of the tile, as in the lines below.
__device__ inline void compute_St(KeysByQueries& St, const KeyGradients& keys, const scalar_t* Q,
                                  int r) {
    clear(St);
    #pragma unroll
    for (int d = 0; d < D; d += 16)
        multiply_transposed(St, keys.K[d / 16], at(by_columns(Q), r, d));
}

// Line 11: Pᵀ = exp(scale · Sᵀ − LSE).
__device__ inline void compute_Pt(KeysByQueries& Pt, const KeysByQueries& St, const float* LSE,
                                  float scale) {
    each_of_lane<M, 2>([&](int m, int n, int e, int key, int query) {
        Pt[m][n][e] = exp2_approx(St[m][n][e] * (scale * LOG2_E) - LSE[query] * LOG2_E);
    });
}

// Pᵀ = 0 where a query does not see a key. Of one that sees none, LSE is −∞ and P is ∞ until here.
template <class Visible>
__device__ inline void hide(KeysByQueries& Pt, int r, Visible visible) {
    each_of_lane<M, 2>([&](int m, int n, int e, int key, int query) {
        if (!visible(r + query, key)) Pt[m][n][e] = 0;
    });
}

// Line 12: dV += Pᵀ dO.
__device__ inline void add_dV(KeyGradients& keys, const KeysByQueries& Pt, const scalar_t* dO,
                              int r) {
    LeftFactor a;
    as_left_factor(a, Pt);
    multiply(keys.dV, a, at(by_rows(dO), r, 0));
}

// Line 13: dPᵀ = V dOᵀ.
__device__ inline void compute_dPt(KeysByQueries& dPt, const KeyGradients& keys,
                                   const scalar_t* dO, int r) {
    clear(dPt);
    #pragma unroll
    for (int d = 0; d < D; d += 16)
        multiply_transposed(dPt, keys.V[d / 16], at(by_columns(dO), r, d));
}

// With a softcap, while St is tanh(S / cap), whose derivative is 1 − tanh²: dPᵀ becomes (dPᵀ − Δ) times
// that, so that tanh need not be kept beside P.
__device__ inline void uncap(KeysByQueries& dPt, const KeysByQueries& St, const float* delta) {
    each_of_lane<M, 2>([&](int m, int n, int e, int key, int query) {
        dPt[m][n][e] = (dPt[m][n][e] - delta[query]) * (1 - St[m][n][e] * St[m][n][e]);
    });
}

// Line 14: dSᵀ = Pᵀ ∘ (dPᵀ − Δ), at once rounded as the left factor that line 16 takes.
__device__ inline void compute_dSt(LeftFactor& dSt, const KeysByQueries& Pt,
                                   const KeysByQueries& dPt, const float* delta) {
    KeysByQueries exact;
    each_of_lane<M, 2>([&](int m, int n, int e, int key, int query) {
        exact[m][n][e] = Pt[m][n][e] * (SOFTCAP ? dPt[m][n][e] : dPt[m][n][e] - delta[query]);
    });
    as_left_factor(dSt, exact);
}

// dSᵀ is stored [B_C, B_R]. Index of chunk 0 of a row; that of chunk c is this XOR 8 c, and eight
// rows use all banks.
__device__ inline int dSt_row(int key) {
    return key * B_R + (B_R == 32 ? key / 2 % 4 : key % 8) * 8;
}

// For line 15, which needs all keys of the block: dSᵀ to shared memory.
__device__ inline void store_dSt(scalar_t* tile, const LeftFactor& dSt, int r) {
    const int lane = threadIdx.x % 32, corner = dSt_row(first_key() + lane / 4) + lane % 4 * 2;
    for (int m = 0; m < M; m++)
        for (int e = 0; e < 4; e++) {
            const int row = 16 * m + e % 2 * 8, column = r + e / 2 * 8;
            *reinterpret_cast<unsigned*>(tile + (corner ^ column) + row * B_R) = dSt[m][e];
        }
}

// Line 16: dK += dSᵀ Q.
__device__ inline void add_dK(KeyGradients& keys, const LeftFactor& dSt, const scalar_t* Q, int r) {
    multiply(keys.dK, dSt, at(by_rows(Q), r, 0));
}

// Lines 10 to 16 for one tile of queries, but of line 15 only what leads to it, and that only if
// `with_dQ`. Products that do not wait for one another stand side by side, 10 with 13 and 12 with
// 16: in the order of the paper the kernels of chapter 04 need one register too many. If `edge`,
// P = 0 where `visible(query, key)` is false; queries count from the tile's first, keys from the
// warp's. Past the last query all of Q, dO, LSE and Δ are 0: P is 1, but it is multiplied by
// dO = 0, and dS is 0.
template <class Visible>
__device__ inline void accumulate(KeyGradients& keys, Tiles& tile, int place, float scale,
                                  bool with_dQ, bool edge, Visible visible,
                                  const ModelSoftmax& softmax = {}) {
    const scalar_t *Q = tile.Q[place], *dO = tile.dO[place];
    #pragma unroll 1
    for (int r = 0; r < B_R; r += 16) {
        KeysByQueries St, Pt, dPt;
        LeftFactor dSt;
        compute_St(St, keys, Q, r);                         // line 10
        if (SOFTCAP) cap_scores(St, scale / softmax.softcap);
        compute_dPt(dPt, keys, dO, r);                      // line 13
        if (SOFTCAP) uncap(dPt, St, tile.delta[place] + r);
        compute_Pt(Pt, St, tile.LSE[place] + r, softmax.factor(scale));   // line 11
        if (edge) hide(Pt, r, visible);
        compute_dSt(dSt, Pt, dPt, tile.delta[place] + r);   // line 14
        if (with_dQ) store_dSt(tile.dSt[place], dSt, r);    // line 15: its dS, for add_dQ
        add_dV(keys, Pt, dO, r);                            // line 12
        add_dK(keys, dSt, Q, r);                            // line 16
    }
}

// Line 15: dQ_sum += dS K for one tile of queries, whose dS is complete. Of each pair of warps, one
// has the upper half of the rows, the other the lower; the pairs divide the columns. `idle`: bit w
// is set where the keys of warp w are left out, as no query of the tile sees one.
__device__ inline void add_dQ(float* dQ_sum, const Tiles& tile, int place, int rows_left,
                              unsigned idle = 0, int pitch = D) {
    constexpr int ROWS = B_R / 2, COLS = D / (WARPS / 2);
    // Columns at a time, so that 32 registers hold dQ.
    constexpr int WIDTH = COLS * ROWS > 1024 ? 1024 / ROWS : COLS;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32;
    const int row = warp % 2 * ROWS, first_col = warp / 2 * COLS;

    // As by_columns, for the pitch of dSᵀ: transposed on the way, dSᵀ is the A of dS K.
    const int corner = dSt_row(lane % 8 + lane / 16 * 8) ^ (row + lane / 8 % 2 * 8);
    const unsigned dSt_address = __cvta_generic_to_shared(tile.dSt[place] + corner);
    #pragma unroll 1
    for (int col = first_col; col < first_col + COLS; col += WIDTH) {
        float dQ[ROWS / 16][WIDTH / 8][4] = {};
        auto add_keys = [&](int j) {   // keys j to j + 15
            unsigned a[ROWS / 16][4];
            for (int m = 0; m < ROWS / 16; m++)
                ldmatrix_x4_trans(a[m], (dSt_address ^ 2 * 16 * m) + 2 * B_R * j);
            multiply(dQ, a, at(by_rows(tile.K), j, col));
        };
        if (idle == 0) {
            #pragma unroll
            for (int j = 0; j < B_C; j += 16) add_keys(j);
        } else {
            #pragma unroll 1
            for (int j = 0; j < B_C; j += 16)
                if (!(idle >> j / KEYS & 1)) add_keys(j);
        }
        #pragma unroll
        for (int m = 0; m < ROWS / 16; m++)
            #pragma unroll
            for (int half = 0; half < 2; half++) {
                const int i = row + 16 * m + 8 * half + g;
                if (i >= rows_left) continue;
                float* out = dQ_sum + i * pitch + col + 4 * t;
                #pragma unroll
                for (int n = 0; n < WIDTH / 8; n += 2) {
                    const float *a = dQ[m][n] + 2 * half, *b = dQ[m][n + 1] + 2 * half;
                    add_four(out + 8 * n, make_float4(a[0], a[1], b[0], b[1]));
                }
            }
    }
}

// Writes a warp's rows, times a factor, of the first `rows_left` of them. They pass through `tile`,
// KEYS × D of shared memory that is the warp's own, so that a lane writes 16 bytes at a time.
__device__ inline void write_keys(const float (&sum)[M][D / 8][4], float factor, scalar_t* rows,
                                  scalar_t* tile, int rows_left, int pitch) {
    const int lane = threadIdx.x % 32, chunk = lane % (D / 8);
    #pragma unroll
    for (int m = 0; m < M; m++)
        #pragma unroll
        for (int half = 0; half < 2; half++)
            #pragma unroll
            for (int c = 0; c < D / 8; c++) {
                const float* two = sum[m][c] + 2 * half;
                scalar_t* place = tile + swizzled(16 * m + 8 * half + lane / 4, c);
                store_pair(place + lane % 4 * 2, factor * two[0], factor * two[1]);
            }
    __syncwarp();
    #pragma unroll
    for (int row = lane / (D / 8); row < KEYS; row += 32 / (D / 8))
        if (row < rows_left)
            reinterpret_cast<uint4*>(rows + (long long)row * pitch)[chunk] =
                *reinterpret_cast<const uint4*>(tile + swizzled(row, chunk));
}

// Line 18: writes dK and dV of the block's first `rows_left` keys. No warp reads Q or dO any more.
__device__ inline void write_gradients(const KeyGradients& keys, Tiles& tile, scalar_t* dK,
                                       scalar_t* dV, float scale, int rows_left, int pitch = D) {
    static_assert(B_C <= 2 * B_R, "WARPS * KEYS must be at most 2 * B_R");
    const int key = first_key();
    const long long at = (long long)key * pitch;
    scalar_t *Q = reinterpret_cast<scalar_t*>(tile.Q), *dO = reinterpret_cast<scalar_t*>(tile.dO);
    write_keys(keys.dK, scale, dK + at, Q + key * D, rows_left - key, pitch);
    write_keys(keys.dV, 1, dV + at, dO + key * D, rows_left - key, pitch);
}
